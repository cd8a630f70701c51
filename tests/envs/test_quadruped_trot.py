"""The procedural trot agrees with itself and with the robot, and the motion observation with both."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from striderl.datasets.motion.amp_loader import AMPLoader, with_fields
from striderl.datasets.motion.gait import clip_contacts, contacts_from_heights, foot_heights, measure_gait
from striderl.envs.quadruped.base import MOTION_SPEC
from striderl.envs.quadruped.commands import CommandConfig
from striderl.envs.quadruped.robot import (
    FOOT_NAMES,
    FRONT,
    JOINT_NAMES,
    LEFT,
    RobotDesign,
    build_model,
    leg_vectors,
    rotation_matrices,
)
from striderl.envs.quadruped.trot import TrotConfig, leg_angles, leg_jacobians, trot
from striderl.envs.quadruped.velocity import Quadruped, QuadrupedVelocityConfig
from striderl.recording.motion import (
    quadruped_fields,
    quadruped_loader_config,
    quadruped_recorder_config,
    record_motion,
    trot_clip,
    trot_clips,
)

DESIGN = RobotDesign()
KINDS = {
    "straight": TrotConfig(),
    "slow backwards": TrotConfig(forward=-0.3, frequency=1.5, duty_factor=0.7),
    "round to the left": TrotConfig(forward=0.4, sideways=0.15, turning=0.8),
}


@pytest.fixture(scope="module", params=KINDS)
def config(request):
    return KINDS[request.param]


def fine(config: TrotConfig) -> TrotConfig:
    """The same trot with frames so close that differences are derivatives."""
    return TrotConfig(**{**vars(config), "frames_per_cycle": 2000, "cycles": 1})


# -- the legs ----------------------------------------------------------------------------------------------------------


def some_angles() -> np.ndarray:
    low, high = DESIGN.joint_limits.T
    numbers = np.random.default_rng(0).uniform(0.02, 0.98, (500, 12))
    angles = low + (high - low) * numbers
    angles[:, 1::3] = np.clip(angles[:, 1::3], 0.0, 1.2)  # feet below the hips; above, another pose reaches them too
    return angles.reshape(500, 4, 3)


def test_angles_undo_vectors():
    angles = some_angles()
    np.testing.assert_allclose(leg_angles(leg_vectors(angles, DESIGN), DESIGN), angles, atol=1e-9)


def test_jacobians_are_derivatives():
    angles, step = some_angles()[:20], 1e-6
    for joint in range(3):
        shift = np.zeros(3)
        shift[joint] = step
        slope = (leg_vectors(angles + shift, DESIGN) - leg_vectors(angles - shift, DESIGN)) / (2 * step)
        np.testing.assert_allclose(leg_jacobians(angles, DESIGN)[..., joint], slope, atol=1e-8)


def test_a_foot_out_of_reach_is_refused():
    far = np.tile([0.0, 0.0, -0.5], (1, 4, 1))
    with pytest.raises(ValueError, match="out of reach"):
        leg_angles(far, DESIGN)


# -- the trot ----------------------------------------------------------------------------------------------------------


def test_velocities_are_derivatives_of_positions(config):
    motion = trot(fine(config))
    values, step = motion.values, motion.frame_duration
    for position, velocity in (("joint_pos", "joint_vel"), ("feet", "feet_vel")):
        slope = (values[position][2:] - values[position][:-2]) / (2 * step)
        np.testing.assert_allclose(values[velocity][1:-1], slope, atol=2e-3)
    clip = trot_clip(fine(config))
    for name in ("base_lin_vel", "base_ang_vel", "base_height", "projected_gravity"):
        made = with_fields(clip.select(("root_pos", "root_rot")), (name,)).values[name]
        np.testing.assert_allclose(made[1:-1], values[name][1:-1], atol=2e-3)


def test_standing_feet_stay_where_they_are_and_others_are_in_the_air(config):
    values = trot(config).values
    feet = values["feet"].reshape(-1, 4, 3)
    rotation = rotation_matrices(values["root_rot"])
    world = values["root_pos"][:, None] + np.einsum("tij,tfj->tfi", rotation, feet)
    stands = values["foot_contacts"] > 0.5
    both = stands[1:] & stands[:-1]
    moved = np.linalg.norm(world[1:] - world[:-1], axis=2)
    assert moved[both].max() < 1e-9
    height = world[..., 2] - DESIGN.foot_radius
    assert np.abs(height[stands]).max() < 1e-9
    assert height.min() > -1e-9 and height.max() == pytest.approx(config.swing_height, rel=0.02)


def test_the_gait_is_the_stated_one(config):
    clip = trot_clip(config)
    gait = measure_gait(clip_contacts(clip), clip.frame_duration)
    np.testing.assert_allclose(gait.frequency, config.frequency, rtol=1e-9)
    np.testing.assert_allclose(gait.duty_factor, config.duty_factor, atol=1.0 / config.frames_per_cycle)
    np.testing.assert_allclose(gait.phase, [0.0, 0.5, 0.5, 0.0], atol=1e-9)
    low = measure_gait(contacts_from_heights(foot_heights(clip, DESIGN.foot_radius), 1e-3), clip.frame_duration)
    np.testing.assert_allclose(low.frequency, config.frequency, rtol=1e-9)
    # the smooth lift keeps a swinging foot below a millimetre for a few frames at either end
    assert (low.duty_factor - config.duty_factor < 0.1).all() and (low.duty_factor >= config.duty_factor - 0.02).all()


def test_joints_stay_inside_their_ranges(config):
    angles = trot(config).values["joint_pos"]
    low, high = DESIGN.joint_limits.T
    assert (angles > low + 0.05).all() and (angles < high - 0.05).all()


def test_mujoco_puts_the_feet_where_the_clip_says(config):
    values = trot(config).values
    model = build_model(DESIGN)
    data = mujoco.MjData(model)
    for frame in (0, 7, 33, 61):
        data.qpos[:] = np.concatenate([values[name][frame] for name in ("root_pos", "root_rot", "joint_pos")])
        mujoco.mj_forward(model, data)
        rotation = rotation_matrices(values["root_rot"][frame : frame + 1])[0]
        for place, foot in enumerate(FOOT_NAMES):
            seen = rotation.T @ (data.geom(foot).xpos - values["root_pos"][frame])
            np.testing.assert_allclose(values["feet"][frame].reshape(4, 3)[place], seen, atol=1e-9)


def test_a_trot_that_the_legs_cannot_do_is_refused():
    with pytest.raises(ValueError, match=r"takes .*_joint from .* its range is"):
        trot(TrotConfig(height=0.41))
    with pytest.raises(ValueError, match="out of reach"):
        trot(TrotConfig(forward=4.0))
    for wrong in ({"duty_factor": 1.0}, {"frequency": 0.0}, {"cycles": 0}, {"swing_height": 0.0}):
        with pytest.raises(ValueError, match="a trot wants"):
            TrotConfig(**wrong)
    with pytest.raises(TypeError, match="Did you mean 'forward'"):
        TrotConfig(forwards=1.0)


def test_a_straight_trot_wraps_and_a_turning_one_does_not():
    straight, round_ = trot_clip(), trot_clip(TrotConfig(turning=0.5))
    assert (straight.loop, round_.loop) == ("wrap", "clamp")
    # 4 s of 0.6 m/s, and half a second of the next round
    assert straight.at([4.5])["root_pos"][0, 0] == pytest.approx(2.7)


def test_trots_fill_the_ranges_of_the_commands():
    commands = CommandConfig()
    clips = trot_clips(commands, 16)
    found = np.array([[*clip.values["base_lin_vel"][0, :2], clip.values["base_ang_vel"][0, 2]] for clip in clips])
    ranges = np.array([commands.forward, commands.sideways, commands.turning])
    share = (found - ranges[:, 0]) / (ranges[:, 1] - ranges[:, 0])
    # each quarter of each range has its quarter of 16 trots, give or take one
    counts = np.stack([np.histogram(column, bins=4, range=(0.0, 1.0))[0] for column in share.T])
    assert counts.sum() == 48 and counts.min() >= 3 and counts.max() <= 5
    assert AMPLoader(clips, quadruped_loader_config(0.02)).num_motions == 32


# -- the mirror --------------------------------------------------------------------------------------------------------


def test_mirrored_angles_put_feet_to_mirrored_places():
    hips = np.stack([FRONT * DESIGN.hip_x, LEFT * DESIGN.hip_y, np.zeros(4)], axis=1)
    angles = some_angles()
    feet = (hips + leg_vectors(angles, DESIGN)).reshape(-1, 12)
    fields = quadruped_fields(("joint_pos", "feet"))

    def mirrored(name, value):
        return value[:, list(fields[name].mirror_index)] * np.array(fields[name].mirror_sign)

    turned = mirrored("joint_pos", angles.reshape(-1, 12)).reshape(-1, 4, 3)
    np.testing.assert_allclose((hips + leg_vectors(turned, DESIGN)).reshape(-1, 12), mirrored("feet", feet), atol=1e-12)


def test_a_straight_trot_mirrored_is_itself_half_a_cycle_later():
    clip = trot_clip()
    later = clip.at(clip.times + 0.25)
    mirrored = clip.mirrored()
    for name in MOTION_SPEC.names:
        np.testing.assert_allclose(mirrored.values[name], later[name], atol=1e-9)


def test_mirrored_to_the_left_is_to_the_right():
    left, right = trot_clip(TrotConfig(turning=0.5, sideways=0.1)), trot_clip(TrotConfig(turning=-0.5, sideways=-0.1))
    mirrored, half = left.mirrored(), 25
    for name in ("base_lin_vel", "base_ang_vel"):
        np.testing.assert_allclose(mirrored.values[name], right.values[name], atol=1e-12)
    for name in ("joint_pos", "joint_vel", "feet", "feet_vel"):
        np.testing.assert_allclose(mirrored.values[name][:-half], right.values[name][half:], atol=1e-9)


# -- the env -----------------------------------------------------------------------------------------------------------


def make(**settings):
    return Quadruped(QuadrupedVelocityConfig(num_envs=2, num_threads=1, randomize=(), **settings))


def test_the_motion_observation_of_a_pose_is_the_clips_frame():
    env, clip = make(), trot_clip()
    env.reset(0)
    for row, time in enumerate((0.13, 1.57)):
        frame = {name: value[0] for name, value in clip.at(time).items()}
        env.qpos[row] = np.concatenate([frame["root_pos"], frame["root_rot"], frame["joint_pos"]])
        env.qvel[row] = np.concatenate([frame["base_lin_vel"], frame["base_ang_vel"], frame["joint_vel"]])
    env.refresh(slice(None))
    seen = MOTION_SPEC.split(env.observe(slice(None))["motion"])
    wanted = clip.at([0.13, 1.57])
    for name in MOTION_SPEC.names:
        # feet are interpolated between frames in the clip, and computed from interpolated angles in the env
        np.testing.assert_allclose(seen[name], wanted[name], atol=1e-3 if name == "feet" else 1e-9)
    assert tuple(clip.joint_names) == JOINT_NAMES == env.action_spec.names


def test_windows_have_the_width_of_two_motion_observations():
    env = make()
    loader = AMPLoader([trot_clip()], quadruped_loader_config(env.step_dt, num_preload_transitions=256))
    assert loader.size == 2 * env.obs_spec["motion"].size == 92 and loader.num_motions == 2
    first, second = loader.draw(torch.linspace(0.0, 0.999, 50).double()).split(46, dim=1)
    joints = MOTION_SPEC.slices()
    way = second[:, joints["joint_pos"]] - first[:, joints["joint_pos"]]
    mean = 0.5 * (second[:, joints["joint_vel"]] + first[:, joints["joint_vel"]])
    torch.testing.assert_close(way, mean * env.step_dt, atol=0.01, rtol=0.0)


def test_the_motion_observation_has_the_fields_that_are_asked_for():
    names = ("feet", "joint_pos")
    env, whole = make(motion_fields=names), make()
    some, all_ = env.reset(3)["motion"], MOTION_SPEC.split(whole.reset(3)["motion"])
    assert torch.equal(some, torch.cat([all_["feet"], all_["joint_pos"]], dim=1))
    loader = AMPLoader([trot_clip()], quadruped_loader_config(env.step_dt, fields=names))
    assert loader.size == 2 * env.obs_spec["motion"].size == 48
    assert "motion" not in make(motion_fields=()).obs_spec
    with pytest.raises(KeyError, match="no motion field 'joints'"):
        make(motion_fields=("joints",))


def test_the_final_motion_is_that_of_the_episode_that_ended():
    env = make(max_episode_length=3)
    env.reset(1)
    for _ in range(3):
        step = env.step(torch.zeros(2, 12))
    assert bool(step.truncated.all()) and step.final_obs is not None
    height = MOTION_SPEC.slices()["joint_vel"]
    assert bool((step.final_obs["motion"][:, height].abs().sum(dim=1) > 0.0).all())
    assert bool((step.obs["motion"][:, height] == 0.0).all())  # joints begin an episode at rest


@pytest.mark.slow
def test_played_with_its_own_weight_in_mind_the_trot_trots():
    # servos that hold the clip's angles sag under the weight; each standing foot's share of it is added: q + Jᵀf / kp
    config = TrotConfig(forward=0.3)
    env, clip = make(max_episode_length=1000), trot_clip(config)
    weight = 9.81 * float(env.model.body_mass.sum())
    steps = iter(range(1000))

    def act(obs):
        frame = {name: value[0] for name, value in clip.at((next(steps) + 1) * env.step_dt).items()}
        stands = frame["foot_contacts"] > 0.5
        force = np.zeros((4, 3))
        force[:, 2] = -weight * stands / max(stands.sum(), 1)
        torque = np.einsum("fij,fi->fj", leg_jacobians(frame["joint_pos"].reshape(1, 4, 3), DESIGN)[0], force).ravel()
        target = frame["joint_pos"] + (torque + DESIGN.damping * frame["joint_vel"]) / DESIGN.stiffness
        action = (target - DESIGN.default_pose) / env.config.action_scale
        return torch.from_numpy(action).float().expand(2, 12).clone()

    clips = record_motion(env, act, 200, quadruped_recorder_config())
    assert [clip.num_frames for clip in clips] == [150, 150]
    gait = measure_gait([clip_contacts(each) for each in clips], env.step_dt, shortest=0.05)
    np.testing.assert_allclose(gait.frequency, 2.0, rtol=0.05)
    np.testing.assert_allclose(gait.duty_factor, 0.6, atol=0.12)
    away = np.abs(gait.phase - [0.0, 0.5, 0.5, 1.0])
    assert np.minimum(away, 1.0 - away).max() < 0.1
    speed = np.mean([each.values["base_lin_vel"][:, 0].mean() for each in clips])
    assert speed == pytest.approx(0.3, abs=0.08)
