"""A trot for the built-in quadruped, made from the geometry of its legs: nothing is recorded, nothing is downloaded.

    one cycle      0            duty            1
    FL and RR      ███ stance ███ ╌╌ swing ╌╌╌      diagonal legs together, the other pair half a cycle later
    FR and RL      ╌╌╌ ███ stance ████ ╌ swing      frequency 2 Hz, duty factor 0.6 unless set otherwise

The trunk moves level at a constant velocity (forward, sideways, turning). A standing foot stays where it is on the
ground, so seen from the trunk it moves backwards along p(τ) = R(τ)ᵀ (p₀ - x(τ)), where the trunk has gone to (x, R)
since the middle of the stance. A swinging foot follows a polynomial of degree five that leaves and meets the ground
with the ground's own velocity, so nothing slips, and a bump of the same smoothness lifts it. Joint angles are those
that put the feet there, joint velocities those that move them so.

What the component 'motion' of the quadruped becomes in a mirror, and the leg kinematics that make motions for it.

    entry i of the mirrored field = sign[i] · x[index[i]]      legs FL FR RL RR trade places in pairs: FR FL RR RL

The component itself is described by `MOTION_SPEC` in `base.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from striderl.data.checked_fields import suggests_fields
from striderl.envs.mujoco.simulation import Float
from striderl.envs.quadruped.robot import FRONT, JOINT_NAMES, LEFT, RobotDesign, leg_vectors, quaternion_of_yaw

_PHASE = np.array([0.0, 0.5, 0.5, 0.0])
"""When each leg lands, as a share of the cycle: FL and RR, then FR and RL."""


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class TrotConfig:
    """What kind of trot."""

    forward: float = 0.6
    """Speed ahead, m/s; negative is backwards."""
    sideways: float = 0.0
    """Speed to the left, m/s."""
    turning: float = 0.0
    """Turning rate to the left, rad/s."""
    frequency: float = 2.0
    """Strides per second; 1.5 to 3 is usual for a robot of this size."""
    duty_factor: float = 0.6
    """Share of a cycle that a foot stands; 0.5 to 0.7 for a trot."""
    swing_height: float = 0.07
    """How high a swinging foot is lifted, m."""
    height: float = 0.0
    """Height of the trunk over the ground, m; 0 means that of the default pose."""
    cycles: int = 8
    """How many cycles the motion has."""
    frames_per_cycle: int = 50
    """Frames in a cycle; at 2 Hz, 50 make a frame every 10 ms."""
    robot: RobotDesign = field(default_factory=RobotDesign)
    """The robot's geometry."""

    def __post_init__(self) -> None:
        if not (self.frequency > 0.0 and 0.0 < self.duty_factor < 1.0 and self.swing_height > 0.0):
            raise ValueError(
                "a trot wants a positive frequency and swing height and a duty factor between 0 and 1, "
                f"found {self.frequency}, {self.swing_height} and {self.duty_factor}"
            )
        if self.cycles < 1 or self.frames_per_cycle < 4:
            raise ValueError(f"a trot wants a cycle of at least 4 frames, found {self.cycles}, {self.frames_per_cycle}")


@dataclass(frozen=True, kw_only=True, eq=False)
class TrotMotion:
    """A trot as arrays over frames, in the names and orders of the env's observations."""

    frame_duration: float
    """Seconds from one frame to the next."""
    values: dict[str, Float]
    """Field -> [T, size]: root_pos, root_rot (w x y z), the fields of `MOTION_SPEC`, feet_vel and foot_contacts."""
    closed: bool
    """Whether the last frame is the first again, but for the way that was made."""


def trot(config: TrotConfig | None = None) -> TrotMotion:
    """Make a trot; one that the legs cannot do raises ValueError with what to change."""
    config = config or TrotConfig()
    num_frames = config.cycles * config.frames_per_cycle + 1
    duration = 1.0 / (config.frequency * config.frames_per_cycle)
    times: Float = np.arange(num_frames, dtype=np.float64) * duration
    feet, feet_vel, contact = _feet(config, times)
    hips = np.stack([FRONT * config.robot.hip_x, LEFT * config.robot.hip_y, np.zeros(4)], axis=1)
    angles = leg_angles(feet - hips, config.robot)
    rates = np.linalg.solve(leg_jacobians(angles, config.robot), feet_vel[..., None])[..., 0]
    _check_limits(angles.reshape(num_frames, 12), config)
    gone, yaw = _way(config, times)
    height = _height(config)
    velocity = np.array([config.forward, config.sideways, 0.0, 0.0, 0.0, config.turning])
    same = np.ones((num_frames, 1))
    values = {
        "root_pos": np.concatenate([gone, height * same], axis=1),
        "root_rot": quaternion_of_yaw(yaw),
        "base_height": height * same,
        "base_lin_vel": same * velocity[:3],
        "base_ang_vel": same * velocity[3:],
        "projected_gravity": same * [0.0, 0.0, -1.0],
        "joint_pos": angles.reshape(num_frames, 12),
        "joint_vel": rates.reshape(num_frames, 12),
        "feet": feet.reshape(num_frames, 12),
        "feet_vel": feet_vel.reshape(num_frames, 12),
        "foot_contacts": contact.astype(np.float64),
    }
    return TrotMotion(frame_duration=duration, values=values, closed=config.turning == 0.0)


def _height(config: TrotConfig) -> float:
    return config.height or config.robot.standing_height


def _way(config: TrotConfig, times: NDArray[np.float64]) -> tuple[Float, Float]:
    """Return where the trunk is on the ground after these times, [..., 2], and how it is turned, [...]."""
    yaw = config.turning * times
    # the integral of R(ωt) v: sin(ωt)/ω and (1 - cos(ωt))/ω, which are t and 0 without turning
    along = times * np.sinc(yaw / np.pi)
    across = times * np.sinc(0.5 * yaw / np.pi) * np.sin(0.5 * yaw)
    x = config.forward * along - config.sideways * across
    y = config.forward * across + config.sideways * along
    return np.stack([x, y], axis=-1), yaw


def _feet(config: TrotConfig, times: NDArray[np.float64]) -> tuple[Float, Float, NDArray[np.bool_]]:
    """Return feet and their velocities in the trunk's frame, [T, 4, 3], and which of them stand, [T, 4]."""
    phase = (times[:, None] * config.frequency - _PHASE) % 1.0
    # a whole number of frames that rounding has put just below 1 is the beginning of the next cycle
    phase = np.where(phase > 1.0 - 1e-9, 0.0, phase)
    duty, period = config.duty_factor, 1.0 / config.frequency
    stands = phase < duty - 1e-9
    half = 0.5 * duty * period
    ground, ground_vel = _standing(config, phase * period - half)
    swing_time = (1.0 - duty) * period
    share = np.clip((phase - duty) / (1.0 - duty), 0.0, 1.0)
    ends = [_standing(config, np.full((1, 4), end)) for end in (half, -half)]
    air, air_vel = _swing(ends[0], ends[1], share, swing_time)
    bump = 64.0 * share**3 * (1.0 - share) ** 3
    bump_vel = 192.0 * share**2 * (1.0 - share) ** 2 * (1.0 - 2.0 * share) / swing_time
    stand = stands[..., None]
    feet, velocity = np.empty((*phase.shape, 3)), np.empty((*phase.shape, 3))
    feet[..., :2] = np.where(stand, ground, air)
    velocity[..., :2] = np.where(stand, ground_vel, air_vel)
    feet[..., 2] = config.robot.foot_radius - _height(config) + np.where(stands, 0.0, config.swing_height * bump)
    velocity[..., 2] = np.where(stands, 0.0, config.swing_height * bump_vel)
    return feet, velocity, stands


def _standing(config: TrotConfig, since: NDArray[np.float64]) -> tuple[Float, Float]:
    """Return where feet that stay on the ground are, seen from the trunk, [n, 4, 2], and how they move.

    `since` [n, 4] are seconds since the middle of the stance, when each foot is where it is in the default pose.
    """
    pose = leg_vectors(config.robot.default_pose.reshape(1, 4, 3), config.robot)[0, :, :2]
    middle = pose + np.stack([FRONT * config.robot.hip_x, LEFT * config.robot.hip_y], axis=1)
    gone, yaw = _way(config, since)
    away, cosine, sine = middle - gone, np.cos(yaw), np.sin(yaw)
    x = cosine * away[..., 0] + sine * away[..., 1]
    y = cosine * away[..., 1] - sine * away[..., 0]
    # a point at rest has, in a frame that moves with v and turns with ω, the velocity -v - ω × p
    velocity = np.stack([-config.forward + config.turning * y, -config.sideways - config.turning * x], axis=-1)
    return np.stack([x, y], axis=-1), velocity


def _swing(
    start: tuple[Float, Float], end: tuple[Float, Float], share: NDArray[np.float64], seconds: float
) -> tuple[Float, Float]:
    """Return positions and velocities [n, 4, 2] on the way between two (position, velocity); no acceleration there.

    Hermite's polynomial of degree five: its ends, their velocities and zero accelerations are six conditions.
    """
    s = share[..., None]
    (first, first_vel), (last, last_vel) = start, end
    leave, meet = first_vel * seconds, last_vel * seconds
    way = last - first
    cubic, quartic, quintic = (
        10.0 * way - 6.0 * leave - 4.0 * meet,
        -15.0 * way + 8.0 * leave + 7.0 * meet,
        6.0 * way - 3.0 * leave - 3.0 * meet,
    )
    place = first + leave * s + cubic * s**3 + quartic * s**4 + quintic * s**5
    velocity = (leave + 3.0 * cubic * s**2 + 4.0 * quartic * s**3 + 5.0 * quintic * s**4) / seconds
    return place, velocity


def _check_limits(angles: NDArray[np.float64], config: TrotConfig) -> None:
    low, high = config.robot.joint_limits.T
    beyond = np.maximum(low - angles, angles - high).max(axis=0)
    worst = int(beyond.argmax())
    if beyond[worst] > 0.0:
        raise ValueError(
            f"this trot takes {JOINT_NAMES[worst]} from {angles[:, worst].min():.2f} to {angles[:, worst].max():.2f} "
            f"rad, its range is {low[worst]:.2f} to {high[worst]:.2f}; a slower or faster-stepping one, or another "
            "height, stays inside"
        )


# -- mirror and legs ---------------------------------------------------------------------------------------------------


_OTHER_SIDE = {"FL": "FR", "FR": "FL", "RL": "RR", "RR": "RL"}

JOINT_MIRROR: dict[str, tuple[str, float]] = {
    name: (_OTHER_SIDE[name[:2]] + name[2:], -1.0 if "hip" in name else 1.0) for name in JOINT_NAMES
}
"""Joint -> (the joint it trades places with, its sign): abduction turns about the axis ahead, so it changes sign."""


def leg_angles(vectors: NDArray[np.float64], design: RobotDesign) -> Float:
    """Return the angles [n, 4, (hip, thigh, calf)] that bring feet to vectors [n, 4, 3] from hips; the knee bends back.

    The inverse of `leg_vectors`. A foot out of reach raises ValueError.
    """
    x, y, z = (vectors[..., axis] for axis in range(3))
    side = LEFT * design.thigh_offset
    across = y * y + z * z - side * side
    reach = x * x + across
    upper, lower = design.thigh_length, design.shank_length
    knee_cosine = (reach - upper * upper - lower * lower) / (2.0 * upper * lower)
    if (across <= 0.0).any() or (np.abs(knee_cosine) > 1.0).any():
        raise ValueError(
            f"a foot is out of reach: legs of {upper} and {lower} m cannot span {np.sqrt(np.abs(reach)).max():.3f} m"
        )
    down = -np.sqrt(across)
    hip = np.arctan2(z, y) - np.arctan2(down, side)
    calf = -np.arccos(knee_cosine)
    thigh = np.arctan2(-x, -down) - np.arctan2(lower * np.sin(calf), upper + lower * np.cos(calf))
    return np.stack([(hip + np.pi) % (2.0 * np.pi) - np.pi, thigh, calf], axis=-1)


def leg_jacobians(angles: NDArray[np.float64], design: RobotDesign) -> Float:
    """Return how feet move when angles do: d(x y z)/d(hip thigh calf), [n, 4, 3, 3], of the legs in `leg_vectors`."""
    hip, thigh = angles[..., 0], angles[..., 1]
    knee = thigh + angles[..., 2]
    upper, lower = design.thigh_length, design.shank_length
    down = -upper * np.cos(thigh) - lower * np.cos(knee)
    side = LEFT * design.thigh_offset
    sin_hip, cos_hip = np.sin(hip), np.cos(hip)
    ahead_by = (-upper * np.cos(thigh) - lower * np.cos(knee), -lower * np.cos(knee))
    down_by = (upper * np.sin(thigh) + lower * np.sin(knee), lower * np.sin(knee))
    result = np.zeros((*angles.shape, 3))
    result[..., 1, 0] = -side * sin_hip - down * cos_hip
    result[..., 2, 0] = side * cos_hip - down * sin_hip
    for joint in (1, 2):
        result[..., 0, joint] = ahead_by[joint - 1]
        result[..., 1, joint] = -down_by[joint - 1] * sin_hip
        result[..., 2, joint] = down_by[joint - 1] * cos_hip
    return result
