"""The quadruped: a sound robot, exact kinematics, the promised observation layout, and an env that can be resumed."""

from __future__ import annotations

import dataclasses
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from striderl.envs.check import check_vec_env
from striderl.envs.quadruped.base import MOTION_SPEC, PROPRIOCEPTION
from striderl.envs.quadruped.commands import CommandConfig
from striderl.envs.quadruped.robot import FOOT_NAMES, JOINT_NAMES, RobotDesign, build_model, rotation_matrices
from striderl.envs.quadruped.tasks import QUADRUPED_CONFIGS, QUADRUPED_TASKS
from striderl.envs.quadruped.velocity import (
    Quadruped,
    QuadrupedBlind,
    QuadrupedBlindConfig,
    QuadrupedDepth,
    QuadrupedDepthConfig,
    QuadrupedRough,
    QuadrupedRoughConfig,
    QuadrupedVelocityConfig,
)

DESIGN = RobotDesign()
NAMES = [name for name in QUADRUPED_TASKS if name != "quadruped"]


def make(name: str = "quadruped_flat", num_envs: int = 4, **settings: Any) -> Any:
    return QUADRUPED_TASKS[name](QUADRUPED_CONFIGS[name](num_envs=num_envs, num_threads=1, **settings))


def some_actions(num_envs: int, steps: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [scale * torch.randn(num_envs, 12, generator=generator) for _ in range(steps)]


# -- the robot ---------------------------------------------------------------------------------------------------------


def test_the_model_has_the_size_of_its_class():
    model = build_model(DESIGN)
    assert (model.nq, model.nv, model.nu, model.nsensordata) == (19, 18, 12, 25)
    assert model.body_mass.sum() == pytest.approx(13.48)  # 6 + 4 · (0.65 + 0.75 + 0.25 + 0.17 + 0.05)
    assert tuple(model.joint(index).name for index in range(1, 13)) == JOINT_NAMES
    np.testing.assert_allclose(model.jnt_range[1:], DESIGN.joint_limits)
    np.testing.assert_allclose(model.actuator_forcerange[:3, 1], [23.7, 23.7, 35.5])
    np.testing.assert_allclose(model.actuator_gainprm[:, 0], 35.0)


def test_the_default_pose_puts_all_feet_on_the_ground():
    model = build_model(DESIGN)
    data = mujoco.MjData(model)
    data.qpos[2], data.qpos[7:] = DESIGN.standing_height, DESIGN.default_pose
    mujoco.mj_forward(model, data)
    soles = [data.geom(foot).xpos[2] - DESIGN.foot_radius for foot in FOOT_NAMES]
    np.testing.assert_allclose(soles, 0.0, atol=1e-12)


def test_it_stands_and_the_ground_carries_its_weight():
    env = make(num_envs=2, randomize=(), commands=CommandConfig(standing=1.0))
    env.reset(seed=0)
    for _ in range(100):
        step = env.step(torch.zeros(2, 12))
    assert not step.terminated.any()
    assert np.all(env.now.base_height > 0.25) and np.all(env.now.base_height < DESIGN.standing_height)
    np.testing.assert_allclose(env.robot.foot_force[:, :, 2].sum(axis=1), 13.48 * 9.81, rtol=0.02)
    assert step.obs["foot_contacts"].all()
    torch.testing.assert_close(
        step.obs["contact_forces"].view(2, 4, 3)[:, :, 2].sum(1) * 100, torch.full((2,), 132.2), rtol=0.02, atol=0.0
    )
    np.testing.assert_allclose(env.now.foot_height, 0.0, atol=3e-3)


def test_parts_of_the_robot_do_not_touch_each_other():
    model = build_model(DESIGN)
    data = mujoco.MjData(model)
    data.qpos[2] = 2.0
    data.qpos[7:] = np.tile([0.0, 2.5, -2.8], 4)  # thighs through the trunk, in the air
    mujoco.mj_forward(model, data)
    assert data.ncon == 0


def test_kinematics_are_those_of_mujoco():
    env = make(num_envs=16)
    env.reset(seed=3)
    generator = np.random.default_rng(0)
    quaternion = generator.normal(size=(16, 4))
    env.qpos[:, 3:7] = quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True)
    env.qpos[:, 7:] = generator.uniform(*DESIGN.joint_limits.T, size=(16, 12))
    env.qvel[:] = generator.normal(size=(16, 18))
    env.robot.update(slice(None))
    data = mujoco.MjData(env.model)
    for index in range(16):
        env.simulation.batch.get_data(index, data)
        mujoco.mj_forward(env.model, data)
        feet = np.array([data.geom(foot).xpos for foot in FOOT_NAMES])
        np.testing.assert_allclose(env.robot.feet_world[index], feet, atol=1e-12)
        turn = data.body("trunk").xmat.reshape(3, 3)
        np.testing.assert_allclose(env.robot.rotation[index], turn, atol=1e-12)
        np.testing.assert_allclose(env.robot.feet[index], (feet - data.qpos[:3]) @ turn, atol=1e-12)
        np.testing.assert_allclose(env.robot.gravity[index], turn.T @ [0, 0, -1], atol=1e-12)
        velocity = np.zeros(6)
        mujoco.mj_objectVelocity(env.model, data, mujoco.mjtObj.mjOBJ_XBODY, data.body("trunk").id, velocity, 1)
        np.testing.assert_allclose(env.robot.ang_vel[index], velocity[:3], atol=1e-12)
        np.testing.assert_allclose(env.robot.lin_vel[index], velocity[3:], atol=1e-12)


def test_update_of_some_rows_leaves_the_others():
    env = make(num_envs=3)
    env.reset(seed=0)
    before = env.robot.gravity.copy()
    env.qpos[:, 3:7] = [0.0, 1.0, 0.0, 0.0]  # on the back: half a turn about x
    env.robot.update(np.array([1]))
    np.testing.assert_allclose(env.robot.gravity[1], [0.0, 0.0, 1.0])
    np.testing.assert_array_equal(env.robot.gravity[[0, 2]], before[[0, 2]])


def test_a_quarter_turn_to_the_left():
    half = np.sqrt(0.5)
    np.testing.assert_allclose(rotation_matrices(np.array([[half, 0, 0, half]]))[0] @ [1, 0, 0], [0, 1, 0], atol=1e-12)


# -- observations ------------------------------------------------------------------------------------------------------


def test_proprioception_is_the_vector_of_48():
    env = make(num_envs=2)
    env.reset(seed=1)
    action = some_actions(2, 1)[0]
    step = env.step(action)
    spec = env.obs_spec.select(PROPRIOCEPTION)
    assert spec.names == PROPRIOCEPTION
    flat = spec.flatten(step.obs)
    assert flat.shape == (2, 48)
    torch.testing.assert_close(flat[:, 9:12], torch.from_numpy(2.0 * env.command).float())
    torch.testing.assert_close(flat[:, 36:], action)
    torch.testing.assert_close(flat[:, 3:6], torch.from_numpy(0.25 * env.qvel[:, 3:6]).float())
    torch.testing.assert_close(flat[:, 12:24], torch.from_numpy(env.qpos[:, 7:] - DESIGN.default_pose).float())
    torch.testing.assert_close(flat[:, 24:36], torch.from_numpy(0.05 * env.qvel[:, 6:]).float())


def test_motion_features_have_the_documented_order():
    env = make(num_envs=2)
    obs = env.reset(seed=1)
    parts = MOTION_SPEC.split(obs["motion"].double().numpy())
    assert MOTION_SPEC.size == 46
    np.testing.assert_allclose(parts["base_height"][:, 0], env.qpos[:, 2], atol=1e-6)
    np.testing.assert_allclose(parts["joint_pos"], env.qpos[:, 7:], atol=1e-6)
    np.testing.assert_allclose(parts["joint_vel"], env.qvel[:, 6:], atol=1e-6)
    np.testing.assert_allclose(parts["base_ang_vel"], env.qvel[:, 3:6], atol=1e-6)
    np.testing.assert_allclose(parts["feet"].reshape(2, 4, 3), env.robot.feet, atol=1e-6)
    assert "motion" not in make(observe_motion=False).obs_spec


@pytest.mark.parametrize(
    ("task", "policy", "critic"),
    [
        ("quadruped_flat", {"base_lin_vel"}, set()),
        ("quadruped_rough", {"base_lin_vel", "height_scan"}, set()),
        ("quadruped_blind", set(), {"base_lin_vel", "height_scan"}),
        ("quadruped_depth", {"forward_depth"}, {"base_lin_vel", "height_scan"}),
        ("parkour", {"base_lin_vel", "engaging_block"}, {"height_scan"}),
    ],
)
def test_who_sees_what(task: str, policy: set[str], critic: set[str]):
    spec = make(task, num_envs=1).obs_spec
    privileged = {"friction", "mass", "contact_forces", "foot_contacts", "foot_height"}
    assert set(spec.select(["policy"])) == policy | set(PROPRIOCEPTION) - {"base_lin_vel"} | (policy & {"base_lin_vel"})
    assert set(spec.select(["critic"])) == critic | privileged
    assert set(spec.select(["motion"])) == {"motion"}


def test_what_was_randomised_can_be_observed():
    env = make(num_envs=6)
    obs = env.reset(seed=2)
    torch.testing.assert_close(obs["friction"], torch.from_numpy(env.randomized["friction"]).float())
    torch.testing.assert_close(obs["mass"], torch.from_numpy(env.randomized["body_mass"] - 6.0).float())
    assert len(obs["mass"].unique()) == 6 and obs["mass"].abs().max() > 0.1
    plain = make(num_envs=6, randomize=())
    obs = plain.reset(seed=2)
    assert (obs["mass"] == 0).all() and torch.allclose(obs["friction"], torch.tensor(0.8))


def test_noise_is_added_only_to_what_the_policy_sees():
    quiet, noisy = make(num_envs=64), make(num_envs=64, noise_level=1.0)
    calm, seen = quiet.reset(seed=5), noisy.reset(seed=5)
    away = (seen["joint_pos"] - calm["joint_pos"]).abs()
    assert 0.005 < away.max() <= 0.01 + 1e-6  # uniform within 0.01 rad
    for name in ("command", "last_action", "motion", "foot_height"):
        assert torch.equal(seen[name], calm[name])
    blind = make("quadruped_blind", noise_level=1.0)
    assert not any("base_lin_vel" in name for name in blind.randomized)


# -- control -----------------------------------------------------------------------------------------------------------


def test_actions_are_targets_around_the_default_pose():
    env = make(num_envs=2, action_scale=0.3, randomize=())
    env.reset(seed=0)
    env.step(torch.full((2, 12), 0.5))
    np.testing.assert_allclose(env.ctrl[0], DESIGN.default_pose + 0.15)
    env.step(torch.full((2, 12), 100.0))  # clipped to 5, and the target to the joint's range
    np.testing.assert_allclose(env.ctrl[0], np.minimum(DESIGN.default_pose + 1.5, DESIGN.joint_limits[:, 1]))
    assert float(env.reset_envs(torch.tensor([True, False]))["last_action"][1, 0]) == 5.0


def test_a_step_is_a_fiftieth_of_a_second():
    env = make()
    assert env.step_dt == pytest.approx(0.02) and env.max_episode_length == 1000


# -- ends of episodes --------------------------------------------------------------------------------------------------


def test_a_robot_on_its_side_has_fallen():
    env = make(num_envs=2, randomize=())
    env.reset(seed=0)
    env.qpos[1, 2] = 0.6
    env.qpos[1, 3:7] = [np.cos(0.7), np.sin(0.7), 0.0, 0.0]  # rolled by 1.4 rad, in the air
    step = env.step(torch.zeros(2, 12))
    assert step.terminated.tolist() == [False, True] and not step.truncated.any()
    assert step.final_obs["projected_gravity"][1, 2] > -0.3 and step.obs["projected_gravity"][1, 2] < -0.99


def test_a_robot_whose_trunk_touches_the_ground_has_fallen():
    env = make(num_envs=2, randomize=())
    env.reset(seed=0)
    env.qpos[0, 2], env.qpos[0, 7:] = 0.054, np.tile([0.0, 3.2, -0.9], 4)  # on its belly, legs in the air
    step = env.step(torch.zeros(2, 12))
    assert step.terminated.tolist() == [True, False]


def test_time_is_over_after_max_episode_length():
    env = make(num_envs=2, max_episode_length=5, randomize=())
    env.reset(seed=0)
    flags = [env.step(torch.zeros(2, 12)).truncated.tolist() for _ in range(6)]
    assert flags == [[False, False]] * 4 + [[True, True], [False, False]]


def test_leaving_the_field_cuts_the_episode_short():
    env = make("quadruped_rough", num_envs=2, randomize=())
    env.reset(seed=0)
    env.qpos[0, :2] = [-1.6, 4.0]  # the border is 2 m wide, and its last half metre counts as outside
    step = env.step(torch.zeros(2, 12))
    assert step.truncated.tolist() == [True, False] and not step.terminated.any()


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_metrics_are_what_was_driven():
    env = make(num_envs=3, randomize=())
    env.reset(seed=0)
    error, energy, distance = np.zeros(3), np.zeros(3), np.zeros(3)
    for action in some_actions(3, 12, scale=0.5):
        command = env.command[:, :2].copy()
        env.step(action)
        velocity = env.robot.lin_vel[:, :2]
        error += np.linalg.norm(velocity - command, axis=1)
        energy += np.abs(env.robot.torque * env.robot.joint_vel).sum(axis=1) * 0.02
        distance += np.linalg.norm(velocity, axis=1) * 0.02
    found = env.metrics()
    np.testing.assert_allclose(found["tracking_error"], error / 12, rtol=1e-5)
    np.testing.assert_allclose(found["cost_of_transport"], energy / (13.48 * 9.81 * distance), rtol=1e-5)
    env.reset_envs(torch.tensor([True, True, True]))
    assert torch.equal(env.metrics()["tracking_error"], found["tracking_error"]), "of the last episode until a new step"
    env.step(torch.zeros(3, 12))
    assert not torch.equal(env.metrics()["tracking_error"], found["tracking_error"])


def test_the_log_names_rewards_and_metrics():
    env = make(num_envs=2, max_episode_length=3)
    env.reset(seed=0)
    logs = [env.step(torch.zeros(2, 12)).info["log"] for _ in range(3)]
    assert {f"reward/{name}" for name in env.config.reward_weights} <= set(logs[0])
    assert {"episode/tracking_error", "episode/cost_of_transport", "episode/return"} <= set(logs[2])
    assert logs[0]["reward/alive"] == pytest.approx(0.5 * 0.02)


# -- one contract for all tasks ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_contract_is_kept(name: str):
    report = check_vec_env(make(name, num_envs=3), num_steps=40)
    assert report.ok, str(report)


def run(env: Any, actions: list[torch.Tensor]) -> list[torch.Tensor]:
    result = []
    for action in actions:
        step = env.step(action)
        result += [*step.obs.values(), *step.final_obs.values(), step.reward, step.terminated, step.truncated]
    return [*result, *env.metrics().values()]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_saved_env_continues_to_the_bit(name: str):
    settings = {"max_episode_length": 25, "noise_level": 0.5}
    first, second = make(name, num_envs=5, **settings), make(name, num_envs=5, **settings)
    first.reset(seed=3)
    second.reset(seed=99)
    actions = some_actions(5, 70, scale=1.5)  # wild enough for falls and two time-outs before and after the save
    run(first, actions[:35])
    obs = second.load_state_dict(first.state_dict())
    assert all(torch.equal(obs[key], value) for key, value in first.load_state_dict(first.state_dict()).items())
    for one, two in zip(run(first, actions[35:]), run(second, actions[35:]), strict=True):
        assert torch.equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quadruped_flat", "quadruped_depth", "parkour"])
def test_threads_and_company_change_nothing(name: str):
    config = QUADRUPED_CONFIGS[name]
    one = QUADRUPED_TASKS[name](config(num_envs=6, num_threads=1))
    two = QUADRUPED_TASKS[name](config(num_envs=6, num_threads=2))
    part = QUADRUPED_TASKS[name](config(num_envs=2, num_threads=1, first_env_index=3))
    for env in (one, two, part):
        env.reset(seed=11)
    actions = some_actions(6, 40, scale=1.5)
    many = run(one, actions)
    assert all(torch.equal(a, b) for a, b in zip(many, run(two, actions), strict=True))
    few = run(part, [action[3:5] for action in actions])
    assert all(torch.equal(a[3:5], b) for a, b in zip(many, few, strict=True))


def test_seeds_differ():
    env = make(num_envs=2)
    assert not torch.equal(env.reset(seed=1)["joint_pos"], env.reset(seed=2)["joint_pos"])
    assert torch.equal(env.reset(seed=1)["joint_pos"], env.reset(seed=1)["joint_pos"])


# -- wrong settings ----------------------------------------------------------------------------------------------------


def test_a_wrong_reward_name_is_named():
    with pytest.raises(
        KeyError, match=r"Quadruped has no reward term 'tracking_lin_vell'. Did you mean 'tracking_lin_vel'"
    ):
        make(reward_weights={"tracking_lin_vell": 1.0})


def test_configs_are_what_the_classes_say():
    assert dataclasses.is_dataclass(QuadrupedVelocityConfig) and QUADRUPED_TASKS["quadruped"] is Quadruped
    pairs = {
        "quadruped_rough": (QuadrupedRough, QuadrupedRoughConfig),
        "quadruped_blind": (QuadrupedBlind, QuadrupedBlindConfig),
        "quadruped_depth": (QuadrupedDepth, QuadrupedDepthConfig),
    }
    for name, (task, config) in pairs.items():
        assert QUADRUPED_TASKS[name] is task and QUADRUPED_CONFIGS[name] is config
    assert set(QUADRUPED_TASKS) == set(QUADRUPED_CONFIGS)


def test_a_custom_robot_stands_on_its_own_legs():
    tall = RobotDesign(thigh_length=0.25, shank_length=0.25, trunk_mass=9.0, stiffness=60.0)
    env = make(num_envs=1, robot=tall, randomize=(), commands=CommandConfig(standing=1.0))
    env.reset(seed=0)
    for _ in range(60):
        step = env.step(torch.zeros(1, 12))
    assert not step.terminated.any()
    np.testing.assert_allclose(env.now.foot_height, 0.0, atol=3e-3)
    assert tall.standing_height > DESIGN.standing_height + 0.05
