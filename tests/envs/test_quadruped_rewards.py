"""Reward terms, commands and the curriculum of the quadruped, with numbers that can be redone by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from striderl.envs.mujoco.streams import Streams
from striderl.envs.quadruped.commands import CommandConfig, Levels, VelocityCommands, is_moving
from striderl.envs.quadruped.rewards import REWARD_TERMS, Measured, RewardConfig
from striderl.envs.quadruped.robot import RobotDesign
from striderl.envs.quadruped.terrain import TerrainConfig
from striderl.envs.quadruped.velocity import (
    Quadruped,
    QuadrupedRough,
    QuadrupedRoughConfig,
    QuadrupedVelocityConfig,
)

POSE = RobotDesign().default_pose


def measured(**changed: Any) -> Measured:
    """One robot that stands still in its default pose, with some things changed."""
    robot: dict[str, Any] = {
        "lin_vel": np.zeros((1, 3)),
        "ang_vel": np.zeros((1, 3)),
        "gravity": np.array([[0.0, 0.0, -1.0]]),
        "joint_pos": POSE[None].copy(),
        "joint_vel": np.zeros((1, 12)),
        "torque": np.zeros((1, 12)),
        "foot_force": np.zeros((1, 4, 3)),
        "foot_contact": np.ones((1, 4), bool),
        "limb_contact": np.zeros((1, 8), bool),
        "trunk_contact": np.zeros(1, bool),
    }
    fields: dict[str, Any] = {
        "command": np.zeros((1, 3)),
        "actions": np.zeros((1, 12)),
        "previous_actions": np.zeros((1, 12)),
        "joint_acc": np.zeros((1, 12)),
        "landed": np.zeros((1, 4)),
        "foot_vel": np.zeros((1, 4, 3)),
        "foot_height": np.zeros((1, 4)),
        "base_height": np.array([0.3]),
        "fell": np.zeros(1, bool),
        "default_pose": POSE,
        "soft_limits": (np.full(12, -3.0), np.full(12, 1.0)),
        "config": RewardConfig(),
        "step_dt": 0.02,
    }
    for name, value in changed.items():
        (robot if name in robot else fields)[name] = np.asarray(value) if name != "config" else value
    state: Any = SimpleNamespace(**robot)
    return Measured(robot=state, **fields)


def one(values: list[float], index: int, number: float) -> list[list[float]]:
    values = list(values)
    values[index] = number
    return [values]


ZERO = [0.0] * 12
HAND_WORKED = [
    ("tracking_lin_vel", {"command": [[0.5, 0.0, 9.0]]}, math.exp(-1.0)),  # 0.5² / 0.25 = 1
    ("tracking_lin_vel", {"command": [[0.3, 0.4, 0.0]], "lin_vel": [[0.3, 0.4, 5.0]]}, 1.0),
    ("tracking_ang_vel", {"command": [[9.0, 9.0, 1.0]], "ang_vel": [[7.0, 7.0, 0.5]]}, math.exp(-1.0)),
    ("lin_vel_z", {"lin_vel": [[1.0, 2.0, -0.3]]}, 0.09),
    ("ang_vel_xy", {"ang_vel": [[1.0, -2.0, 7.0]]}, 5.0),
    ("orientation", {"gravity": [[0.6, 0.0, -0.8]]}, 0.36),
    ("base_height", {"base_height": [0.4]}, 0.01),
    ("torques", {"torque": one(ZERO, 3, -3.0)}, 9.0),
    ("energy", {"torque": one(ZERO, 3, -3.0), "joint_vel": one(ZERO, 3, 2.0)}, 6.0),
    ("dof_vel", {"joint_vel": one(ZERO, 5, 4.0)}, 16.0),
    ("dof_acc", {"joint_acc": one(ZERO, 5, 10.0)}, 100.0),
    ("action_rate", {"actions": one(ZERO, 0, 1.0), "previous_actions": one(ZERO, 0, -1.0)}, 4.0),
    # two feet land after 0.2 s and 0.05 s: only the first was longer than 0.1 s; 0.1 / 0.02 per second
    ("feet_air_time", {"landed": [[0.2, 0.05, 0.0, 0.0]], "command": [[0.5, 0.0, 0.0]]}, 5.0),
    ("feet_air_time", {"landed": [[9.0, 0.0, 0.0, 0.0]], "command": [[0.5, 0.0, 0.0]]}, 7.5),  # at most 0.15 s count
    ("feet_air_time", {"landed": [[0.2, 0.2, 0.2, 0.2]]}, 0.0),  # nobody asked for steps
    ("foot_slip", {"foot_vel": [[[0.3, 0.4, 9.0]] * 4], "foot_contact": [[True, False, False, True]]}, 0.5),
    ("foot_clearance", {"foot_vel": [[[0.6, 0.8, 0.0]] + [[0.0] * 3] * 3]}, 0.06**2),
    ("collision", {"limb_contact": [[True, False, True] + [False] * 5]}, 2.0),
    ("trunk_contact", {"trunk_contact": [True]}, 1.0),
    ("stumble", {"foot_force": [[[50.0, 0.0, 10.0], [30.0, 0.0, 10.0], [0.0] * 3, [0.0] * 3]]}, 1.0),
    ("dof_pos_limits", {"joint_pos": one(ZERO, 4, 1.25)}, 0.25),
    ("hip_deviation", {"joint_pos": [POSE + np.tile([0.1, 0.5, 0.5], 4)]}, 0.4),
    ("pose_deviation", {"joint_pos": [POSE + 0.1]}, 0.12),
    ("stand_still", {"joint_pos": [POSE + 0.1]}, 1.2),
    ("stand_still", {"joint_pos": [POSE + 0.1], "command": [[0.0, 0.0, 0.5]]}, 0.0),
    ("alive", {}, 1.0),
    ("alive", {"fell": [True]}, 0.0),
    ("fall", {"fell": [True]}, 50.0),  # one fall in a step of 0.02 s
]


@pytest.mark.parametrize(("name", "changed", "expected"), HAND_WORKED)
def test_terms_by_hand(name: str, changed: dict[str, Any], expected: float):
    found = REWARD_TERMS[name](measured(**changed))
    assert found.shape == (1,) and found.dtype == np.float64
    assert found[0] == pytest.approx(expected)


def test_every_term_has_a_number_to_redo():
    assert {name for name, _, _ in HAND_WORKED} == set(REWARD_TERMS)


def test_a_robot_that_does_as_asked_loses_nothing():
    quiet = {"tracking_lin_vel", "tracking_ang_vel", "alive"}
    for name, term in REWARD_TERMS.items():
        assert term(measured())[0] == (1.0 if name in quiet else pytest.approx(0.0)), name


def test_weights_are_per_second_and_the_reward_is_their_sum():
    weights = {"alive": 2.0, "torques": -1e-3}
    env = Quadruped(QuadrupedVelocityConfig(num_envs=2, reward_weights=weights))
    env.reset(seed=0)
    step = env.step(torch.zeros(2, 12))
    expected = 0.02 * (2.0 - 1e-3 * np.square(env.robot.torque).sum(axis=1))
    np.testing.assert_allclose(step.reward, expected, rtol=1e-5)
    assert step.info["log"]["reward/alive"] == pytest.approx(0.04)


def test_a_foot_that_lands_is_told_how_long_it_flew():
    env = Quadruped(QuadrupedVelocityConfig(num_envs=1, randomize=()))
    env.reset(seed=0)
    for _ in range(50):
        env.step(torch.zeros(1, 12))
    assert env.robot.foot_contact.all() and not env.now.landed.any()
    env.qpos[0, 2] += 0.05  # lift it; it falls for about 0.1 s
    flight = []
    for _ in range(20):
        env.step(torch.zeros(1, 12))
        flight.append((env.robot.foot_contact[0].copy(), env.now.landed[0].copy()))
    landings = [(index, landed[0]) for index, (_, landed) in enumerate(flight) if landed[0] > 0]
    first = next(index for index, (contact, _) in enumerate(flight) if contact[0])
    assert landings[0][0] == first > 2
    assert landings[0][1] == pytest.approx(0.02 * (first + 1)), "in the air from the lift until now"


def test_rewards_judge_the_command_that_was_in_force():
    commands = CommandConfig(forward=(1.0, 1.0), sideways=(0.0, 0.0), turning=(-1.0, 1.0), interval=3, standing=0.0)
    env = Quadruped(QuadrupedVelocityConfig(num_envs=2, commands=commands))
    env.reset(seed=0)
    for count in range(1, 7):
        asked = env.command.copy()
        step = env.step(torch.zeros(2, 12))
        np.testing.assert_array_equal(env.now.command, asked)
        changed = not np.array_equal(env.command, asked)
        assert changed == (count % 3 == 0)
        torch.testing.assert_close(step.obs["command"], torch.from_numpy(2.0 * env.command).float())


# -- commands ----------------------------------------------------------------------------------------------------------


def test_commands_fill_their_ranges():
    streams = Streams(4000)
    streams.restart(1)
    config = CommandConfig(forward=(-1.0, 2.0), sideways=(0.1, 0.5), turning=(0.0, 0.0), standing=0.25, smallest=0.3)
    current = np.zeros((4000, 3))
    VelocityCommands(config, streams, current=current, count=np.zeros(4000, np.int64)).begin(np.arange(4000))
    still = (current == 0.0).all(axis=1)
    assert 0.25 < still.mean() < 0.33  # a quarter by order, and a few that were below 0.3 m/s
    moving = current[~still]
    assert np.hypot(moving[:, 0], moving[:, 1]).min() >= 0.3
    assert moving[:, 0].min() < -0.9 and moving[:, 0].max() > 1.9
    assert moving[:, 1].min() >= 0.1 and moving[:, 1].max() <= 0.5


def test_new_commands_come_in_time_and_do_not_repeat():
    streams = Streams(3)
    streams.restart(0)
    current, count = np.zeros((3, 3)), np.zeros(3, np.int64)
    commands = VelocityCommands(CommandConfig(interval=10, standing=0.0), streams, current=current, count=count)
    commands.begin(np.arange(3))
    seen = [current.copy()]
    commands.advance(np.array([9, 10, 20]))
    assert np.array_equal(current[0], seen[0][0]) and not np.any(current[1:] == seen[0][1:])
    assert count.tolist() == [0, 1, 1]
    seen.append(current.copy())
    commands.advance(np.array([10, 20, 21]))
    assert not np.any(current[:2] == seen[1][:2]) and np.array_equal(current[2], seen[1][2])
    with pytest.raises(ValueError, match="forward wants"):
        CommandConfig(forward=(1.0, -1.0))


def test_turning_on_the_spot_is_motion():
    assert is_moving(np.array([[0.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.05, 0.05, 0.05]])).tolist() == [True, False, False]


# -- the curriculum ----------------------------------------------------------------------------------------------------


def make_levels(num_envs: int, *, rising: bool = True) -> Levels:
    streams = Streams(num_envs)
    streams.restart(0)
    level = np.zeros(num_envs, np.int64)
    return Levels(streams, level=level, num_levels=4, num_columns=3, first_levels=2, rising=rising)


def test_levels_go_up_and_down():
    levels = make_levels(6)
    levels.level[:] = [0, 1, 2, 0, 3, 3]
    up = np.array([True, True, False, False, False, False])
    down = np.array([True, False, True, True, False, True])
    levels.move(np.arange(6), up=up, down=down)
    assert levels.level.tolist() == [1, 2, 1, 0, 3, 2]
    levels.move(np.array([4]), up=np.array([True]), down=np.array([False]))
    assert 0 <= levels.level[4] <= 3, "beyond the last level comes any level"


def test_first_levels_are_drawn_once():
    levels = make_levels(200)
    levels.begin(np.arange(200))
    assert set(levels.level) == {0, 1} and 60 < levels.level.sum() < 140
    assert levels.column.tolist() == [index % 3 for index in range(200)]
    levels.level[:] = 3
    levels.streams.episode[:] = 1
    levels.begin(np.arange(200))
    assert set(levels.level) == {3}
    still = make_levels(2, rising=False)
    still.move(np.arange(2), up=np.array([True, True]), down=np.array([False, False]))
    assert still.level.tolist() == [0, 0]


def test_terrain_levels_follow_what_was_walked():
    terrain = TerrainConfig(kinds=("rough", "flat"), levels=3, patch_size=4.0)
    commands = CommandConfig(forward=(1.0, 1.0), sideways=(0.0, 0.0), turning=(0.0, 0.0), standing=0.0)
    config = QuadrupedRoughConfig(
        num_envs=4, terrain=terrain, commands=commands, max_episode_length=100, randomize=(), first_levels=1
    )
    env = QuadrupedRough(config)
    env.reset(seed=0)
    env.levels.level[:] = 1
    for _ in range(99):
        env.step(torch.zeros(4, 12))
    assert env.asked_distance == pytest.approx(1.98)
    env.followed_distance[:] = [1.9, 1.9, 0.5, 1.3]  # well, well, badly, so-so
    env.furthest[0] = 0.9  # the first has left the middle of its patch, more than a fifth of 4 m
    log = env.step(torch.zeros(4, 12)).info["log"]
    assert env.levels.level.tolist() == [2, 1, 0, 1]
    assert log["curriculum/level"] == 1.0
    assert env.metrics()["terrain_level"].tolist() == [2.0, 1.0, 0.0, 1.0]
