"""The built-in quadruped: twelve joints, primitive shapes, the size, masses and gains of a Go1/Go2-class robot.

              FL ────────── FR                 one leg, seen from the robot's left
               │   x ▲       │
               │     │       │                 hip   ●   abduction about x, then thigh about y
               │  y ◀┘       │                        ╲  thigh 0.213 m
               │    trunk    │                 knee    ●  about y, always bent backwards
               │             │                        ╱   shank 0.213 m
              RL ────────── RR                 foot  ●    sphere, the only part that should touch the ground

    qpos   [ x y z | w x y z | FL hip thigh calf | FR … | RL … | RR … ]        19 numbers, radians
    qvel   [ world velocity | body angular velocity | 12 joint velocities ]    18
    ctrl   [ 12 target angles ]     force = kp · (target - q) - kd · dq/dt, limited

    sensordata   [ 4 feet × (contacts, force x y z) | 8 limbs: contacts | trunk: contacts ]       25
                   0:16                               16:24               24
                   FL FR RL RR, world frame           FL thigh, FL shank, FR thigh, …

Robot parts touch the ground and never each other. A foot has priority in a contact, so its friction is what counts.
MuJoCo reports the force of the foot on the ground; `RobotState` turns the sign.

The state of every robot as its own sensors would measure it: computed from MuJoCo's state, for all at once.

    qpos, qvel ──▶ rotation [N, 3, 3] ──▶ lin_vel, ang_vel, gravity    in the robot's frame (x ahead, y left, z up)
    12 angles  ──▶ forward kinematics ──▶ feet [N, 4, 3]               in the robot's frame
                                          feet_world [N, 4, 3]
    sensordata ──▶ foot_force [N, 4, 3], contacts

The kinematics are written out here because MuJoCo's own body positions describe the state one substep ago; computing
four legs in closed form costs less than one more stage of MuJoCo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from striderl.envs.mujoco.simulation import Bool, Float, Int, Simulation

LEGS = ("FL", "FR", "RL", "RR")
"""Front left, front right, rear left, rear right; every array over legs has this order."""
JOINT_NAMES = tuple(f"{leg}_{part}_joint" for leg in LEGS for part in ("hip", "thigh", "calf"))
"""The order of joint positions, velocities and actions."""
FOOT_NAMES = tuple(f"{leg}_foot" for leg in LEGS)
"""The geoms that carry the robot."""
LIMB_NAMES = tuple(f"{leg}_{part}" for leg in LEGS for part in ("thigh", "shank"))
"""The geoms that should not touch anything."""
TRUNK = "trunk"
"""The body that the free joint moves."""

FEET_SENSORS = slice(0, 16)
LIMB_SENSORS = slice(16, 24)
TRUNK_SENSOR = 24

FRONT = np.array([1.0, 1.0, -1.0, -1.0])
"""1 for a front leg, -1 for a rear leg."""
LEFT = np.array([1.0, -1.0, 1.0, -1.0])
"""1 for a left leg, -1 for a right leg."""


@dataclass(frozen=True, kw_only=True)
class RobotDesign:
    """Sizes in metres, masses in kg, angles in radians, torques in Nm."""

    hip_x: float = 0.19
    """How far the abduction axes' centres are in front of and behind the trunk's centre."""
    hip_y: float = 0.0475
    """How far they are to the left and right."""
    thigh_offset: float = 0.085
    """From the abduction axis sideways to the plane of the leg."""
    thigh_length: float = 0.213
    """From hip to knee."""
    shank_length: float = 0.213
    """From knee to the centre of the foot."""
    foot_radius: float = 0.022
    """Radius of the foot's sphere."""
    trunk_mass: float = 6.0
    """Mass of the trunk with its head; the whole robot has 7.48 kg more."""
    stiffness: float = 35.0
    """kp of the position servos, Nm/rad; 20 to 40 is usual for this class."""
    damping: float = 0.8
    """kd of the position servos, Nm s/rad; 0.5 to 1 is usual."""
    armature: float = 0.01
    """Inertia of the motors, felt at the joint, kg m²."""
    joint_damping: float = 0.1
    """Viscous friction of the joints, Nm s/rad."""
    hip_torque: float = 23.7
    """Largest torque of the abduction and thigh motors."""
    knee_torque: float = 35.5
    """Largest torque at the knee."""
    hip_range: tuple[float, float] = (-0.86, 0.86)
    """Limits of the abduction joints."""
    thigh_range: tuple[float, float] = (-0.7, 3.4)
    """Limits of the thigh joints; 0 is straight down, positive lets the knee go back."""
    calf_range: tuple[float, float] = (-2.8, -0.85)
    """Limits of the knees; 0 would be a straight leg."""
    default_hip: float = 0.1
    """Outward abduction of the default pose."""
    default_thigh: float = 0.8
    """Thigh angle of the default pose."""
    default_calf: float = -1.5
    """Knee angle of the default pose."""

    @property
    def default_pose(self) -> Float:
        """The twelve joint angles that action zero stands for."""
        return np.stack(
            [self.default_hip * LEFT, np.full(4, self.default_thigh), np.full(4, self.default_calf)], 1
        ).ravel()

    @property
    def joint_limits(self) -> Float:
        """Lower and upper limits, [12, 2]."""
        return np.tile(np.array([self.hip_range, self.thigh_range, self.calf_range]), (4, 1))

    @property
    def standing_height(self) -> float:
        """Height of the trunk's centre when the robot stands in its default pose on flat ground."""
        leg = self.thigh_length * np.cos(self.default_thigh)
        leg += self.shank_length * np.cos(self.default_thigh + self.default_calf)
        # the abduction tilts the plane of the leg, and lifts the hip by the sideways offset
        down = leg * np.cos(self.default_hip) - self.thigh_offset * np.sin(self.default_hip)
        return float(down) + self.foot_radius


@dataclass(frozen=True, kw_only=True)
class GroundXml:
    """What the world around the robot adds to the model's text."""

    geoms: str
    """Elements of the world body; geoms that the robot can stand on have class 'ground'."""
    assets: str = ""
    """Elements of the asset section (a height field)."""


PLANE = GroundXml(geoms='<geom name="ground" class="ground" type="plane" size="0 0 0.1" material="floor"/>')
"""An endless flat floor at height zero."""


def build_model(design: RobotDesign, ground: GroundXml = PLANE) -> Any:
    """Compile the robot and its world into one MjModel."""
    return mujoco.MjModel.from_xml_string(model_xml(design, ground))


def model_xml(design: RobotDesign, ground: GroundXml = PLANE) -> str:
    """Write the MJCF text of the robot in its world."""
    legs = "".join(_leg_xml(design, leg, FRONT[index], LEFT[index]) for index, leg in enumerate(LEGS))
    return f"""
<mujoco model="striderl quadruped">
  <compiler angle="radian"/>
  <option timestep="0.005" integrator="implicitfast" iterations="10" ls_iterations="10"/>
  <default>
    <geom contype="0" conaffinity="1" condim="3" friction="0.6 0.02 0.01" rgba="0.32 0.35 0.40 1"/>
    <joint armature="{design.armature}" damping="{design.joint_damping}"/>
    <position kp="{design.stiffness}" kv="{design.damping}" inheritrange="1"/>
    <default class="ground">
      <geom contype="1" conaffinity="0" friction="0.6 0.02 0.01" rgba="0.95 0.93 0.90 1"/>
    </default>
    <default class="looks"><geom contype="0" conaffinity="0"/></default>
    <default class="foot"><geom priority="1" friction="0.8 0.02 0.01" rgba="0.10 0.10 0.10 1"/></default>
  </default>
  <visual><headlight ambient="0.4 0.4 0.4" diffuse="0.5 0.5 0.5"/><map znear="0.01"/></visual>
  <statistic extent="2" center="0 0 0.3"/>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="0.75 0.83 0.92" rgb2="0.95 0.96 0.98" width="64"
             height="64"/>
    <texture name="grid" type="2d" builtin="checker" rgb1="0.62 0.64 0.66" rgb2="0.52 0.54 0.56" width="64"
             height="64"/>
    <material name="floor" texture="grid" texrepeat="1 1" texuniform="true"/>
    {ground.assets}
  </asset>
  <worldbody>
    <light directional="true" pos="0 0 5" dir="0.3 0.2 -1" diffuse="0.5 0.5 0.5"/>
    {ground.geoms}
    <body name="{TRUNK}" pos="0 0 {design.standing_height}">
      <freejoint name="root"/>
      <camera name="track" mode="trackcom" pos="0.45 -1.15 0.35" xyaxes="0.931 0.364 0 -0.098 0.250 0.963"/>
      <geom name="trunk" type="box" size="0.188 0.065 0.055" mass="{design.trunk_mass - 0.4}" rgba="0.85 0.86 0.88 1"/>
      <geom name="head" type="box" pos="0.225 0 0.015" size="0.045 0.045 0.035" mass="0.4" rgba="0.95 0.55 0.15 1"/>
      {legs}
    </body>
  </worldbody>
  <actuator>{"".join(_servo_xml(design, joint) for joint in JOINT_NAMES)}</actuator>
  <sensor>{_sensors_xml()}</sensor>
</mujoco>"""


def _leg_xml(design: RobotDesign, leg: str, front: float, left: float) -> str:
    """Write one leg; its masses are those of its shapes, the motors of hip and knee sit high up."""
    ranges = {name: f"{low} {high}" for name, (low, high) in _ranges(design).items()}
    return f"""
      <body name="{leg}_hip" pos="{front * design.hip_x} {left * design.hip_y} 0">
        <joint name="{leg}_hip_joint" axis="1 0 0" range="{ranges["hip"]}"/>
        <geom name="{leg}_hip" class="looks" type="cylinder" size="0.042 0.03" zaxis="1 0 0" mass="0.65"/>
        <body name="{leg}_thigh" pos="0 {left * design.thigh_offset} 0">
          <joint name="{leg}_thigh_joint" axis="0 1 0" range="{ranges["thigh"]}"/>
          <geom name="{leg}_motor" class="looks" type="cylinder" pos="0 {-0.02 * left} 0" size="0.04 0.022"
                zaxis="0 1 0" mass="0.75"/>
          <geom name="{leg}_thigh" type="capsule" fromto="0 0 -0.04 0 0 {-design.thigh_length}" size="0.018"
                mass="0.25"/>
          <body name="{leg}_calf" pos="0 0 {-design.thigh_length}">
            <joint name="{leg}_calf_joint" axis="0 1 0" range="{ranges["calf"]}"/>
            <geom name="{leg}_shank" type="capsule" fromto="0 0 0 0 0 {0.035 - design.shank_length}" size="0.012"
                  mass="0.17" rgba="0.60 0.62 0.65 1"/>
            <geom name="{leg}_foot" class="foot" type="sphere" pos="0 0 {-design.shank_length}"
                  size="{design.foot_radius}" mass="0.05"/>
          </body>
        </body>
      </body>"""


def _ranges(design: RobotDesign) -> dict[str, tuple[float, float]]:
    return {"hip": design.hip_range, "thigh": design.thigh_range, "calf": design.calf_range}


def _servo_xml(design: RobotDesign, joint: str) -> str:
    limit = design.knee_torque if "calf" in joint else design.hip_torque
    return f'<position name="{joint.removesuffix("_joint")}" joint="{joint}" forcerange="{-limit} {limit}"/>'


def _sensors_xml() -> str:
    """Write the contact sensors in the order that the picture at the top of this file shows."""
    feet = (f'<contact name="{foot}" geom1="{foot}" data="found force" reduce="netforce"/>' for foot in FOOT_NAMES)
    limbs = (f'<contact name="{limb}" geom1="{limb}" data="found"/>' for limb in LIMB_NAMES)
    return "".join([*feet, *limbs, f'<contact name="{TRUNK}" body1="{TRUNK}" data="found"/>'])


# -- state of the robots -----------------------------------------------------------------------------------------------


CONTACT_FORCE = 1.0
"""A foot stands when the ground pushes it up with more than this many newtons."""


class RobotState:
    """The motion of N robots; arrays stay the same objects and `update` refreshes rows of them."""

    def __init__(self, simulation: Simulation, design: RobotDesign) -> None:
        num_envs = simulation.num_envs
        self.position: Float = simulation.qpos[:, :3]
        """Where the trunk is in the world, [N, 3]; a live view."""
        self.quaternion: Float = simulation.qpos[:, 3:7]
        """How it is turned, w x y z; a live view."""
        self.joint_pos: Float = simulation.qpos[:, 7:]
        """Joint angles, [N, 12]; a live view."""
        self.joint_vel: Float = simulation.qvel[:, 6:]
        """Joint velocities, [N, 12]; a live view."""
        self.ang_vel: Float = simulation.qvel[:, 3:6]
        """Turning rate in the robot's frame, [N, 3]; a live view."""
        self.world_vel: Float = simulation.qvel[:, :3]
        """Velocity of the trunk in the world's frame, [N, 3]; a live view."""
        self.torque: Float = simulation.bind("actuator_force")
        """Motor torques in the last substep, Nm, [N, 12]; live."""
        self.rotation: Float = np.zeros((num_envs, 3, 3))
        """From the robot's frame to the world's."""
        self.lin_vel: Float = np.zeros((num_envs, 3))
        """Velocity of the trunk in the robot's frame, m/s."""
        self.gravity: Float = np.zeros((num_envs, 3))
        """Which way is down, in the robot's frame: 0 0 -1 when it stands level."""
        self.feet: Float = np.zeros((num_envs, 4, 3))
        """Centres of the feet in the robot's frame."""
        self.feet_world: Float = np.zeros((num_envs, 4, 3))
        """Centres of the feet in the world."""
        self._sensors: Float = simulation.bind("sensordata")
        self._design = design
        self._hips = np.stack([FRONT * design.hip_x, LEFT * design.hip_y, np.zeros(4)], axis=1)

    def update(self, rows: slice | Int) -> None:
        """Recompute what is derived from positions and velocities, for these rows."""
        rotation = rotation_matrices(self.quaternion[rows])
        self.rotation[rows] = rotation
        self.gravity[rows] = -rotation[:, 2]
        # sums over an axis of length three add in the same order for any number of envs; a matrix product may not
        self.lin_vel[rows] = (rotation * self.world_vel[rows][:, :, None]).sum(axis=1)
        feet = self._hips + leg_vectors(self.joint_pos[rows].reshape(-1, 4, 3), self._design)
        self.feet[rows] = feet
        turned = (rotation[:, None] * feet[:, :, None, :]).sum(axis=3)
        self.feet_world[rows] = self.position[rows][:, None] + turned

    @property
    def foot_force(self) -> Float:
        """Contact force on each foot, N in the world's frame, [N, 4, 3]; of the last substep."""
        return -self._sensors[:, FEET_SENSORS].reshape(-1, 4, 4)[:, :, 1:]

    @property
    def foot_contact(self) -> Bool:
        """Which feet carry weight, [N, 4]."""
        # the sensor's sign is the other way round: it is the foot that pushes down
        return np.asarray(self._sensors[:, 3:16:4] < -CONTACT_FORCE)

    @property
    def limb_contact(self) -> Bool:
        """Which thighs and shanks touch something, [N, 8]."""
        return np.asarray(self._sensors[:, LIMB_SENSORS] > 0.0)

    @property
    def trunk_contact(self) -> Bool:
        """Whether the trunk or the head touches something, [N]."""
        return np.asarray(self._sensors[:, TRUNK_SENSOR] > 0.0)

    @property
    def heading(self) -> Float:
        """The direction of the robot's x axis on the ground, radians, [N]."""
        return np.asarray(np.arctan2(self.rotation[:, 1, 0], self.rotation[:, 0, 0]))


def rotation_matrices(quaternion: NDArray[np.float64]) -> Float:
    """Return the matrices [n, 3, 3] of unit quaternions w x y z, [n, 4]."""
    w, x, y, z = np.ascontiguousarray(quaternion.T)
    result = np.empty((len(quaternion), 3, 3))
    result[:, 0, 0] = 1.0 - 2.0 * (y * y + z * z)
    result[:, 0, 1] = 2.0 * (x * y - w * z)
    result[:, 0, 2] = 2.0 * (x * z + w * y)
    result[:, 1, 0] = 2.0 * (x * y + w * z)
    result[:, 1, 1] = 1.0 - 2.0 * (x * x + z * z)
    result[:, 1, 2] = 2.0 * (y * z - w * x)
    result[:, 2, 0] = 2.0 * (x * z - w * y)
    result[:, 2, 1] = 2.0 * (y * z + w * x)
    result[:, 2, 2] = 1.0 - 2.0 * (x * x + y * y)
    return result


def leg_vectors(angles: NDArray[np.float64], design: RobotDesign) -> Float:
    """Return the vectors from hips to feet in the robot's frame, [n, 4, 3], for angles [n, 4, (hip, thigh, calf)].

    In its plane the foot is at (-l₁ sin b - l₂ sin(b+c), -l₁ cos b - l₂ cos(b+c)); abduction turns the plane.
    """
    hip, thigh = angles[..., 0], angles[..., 1]
    knee = thigh + angles[..., 2]
    down = -design.thigh_length * np.cos(thigh) - design.shank_length * np.cos(knee)
    side = LEFT * design.thigh_offset
    sin_hip, cos_hip = np.sin(hip), np.cos(hip)
    result = np.empty(angles.shape)
    result[..., 0] = -design.thigh_length * np.sin(thigh) - design.shank_length * np.sin(knee)
    result[..., 1] = side * cos_hip - down * sin_hip
    result[..., 2] = side * sin_hip + down * cos_hip
    return result


def quaternion_of_yaw(yaw: NDArray[np.float64]) -> Float:
    """Return the quaternions w x y z, [n, 4], that turn by these angles about the vertical."""
    zero = np.zeros_like(yaw)
    return np.stack([np.cos(0.5 * yaw), zero, zero, np.sin(0.5 * yaw)], axis=1)
