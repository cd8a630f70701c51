"""The parkour field: lanes as promised, an `engaging_block` that selects skills, and success at the end."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from striderl.envs.quadruped.parkour import NO_BLOCK, PIT, SKILLS, Lanes, Parkour, ParkourConfig, ParkourFieldConfig

EASY_JUMP = ParkourFieldConfig(kinds=("jump",), obstacles=1, levels=3, columns=1)


def make(num_envs: int = 1, **settings: Any) -> Parkour:
    return Parkour(ParkourConfig(num_envs=num_envs, num_threads=1, randomize=(), **settings))


def blocks_at(env: Parkour, places: list[float]) -> np.ndarray:
    found = []
    for place in places:
        env.qpos[0, 0] = place
        found.append(env.engaging_block(slice(None))[0])
    return np.array(found)


# -- lanes -------------------------------------------------------------------------------------------------------------


def test_every_lane_has_every_obstacle_in_its_own_order():
    lanes = Lanes(ParkourFieldConfig(columns=8, levels=2))
    assert lanes.length == 9.0  # 1 + 4 · 2
    orders = []
    for lane in range(16):
        skills = lanes.blocks[lane, :-1, 2].astype(int)
        assert sorted(skills) == [1, 2, 3, 3, 4], "a box is two blocks"
        orders.append(tuple(skills))
        starts = lanes.blocks[lane, :-1, 0]
        assert np.all(np.diff(starts) > 0) and starts[0] == 1.5
    assert len(set(orders[:8])) > 4, "columns differ"
    assert orders[:8] == orders[8:], "levels differ only in size"


def test_sizes_grow_with_the_level():
    # levels 0, 1, 2 of 3: difficulty 0, 0.5, 1
    for kind, sizes in {
        "jump": [0.04, 0.16, 0.30],  # 0.17 is rounded to the grid of 2 cm
        "leap": [0.04, 0.28, 0.50],
        "crawl": [0.44, 0.36, 0.28],
        "tilt": [0.60, 0.46, 0.34],
    }.items():
        lanes = Lanes(ParkourFieldConfig(kinds=(kind,), obstacles=1, levels=3, columns=1))
        np.testing.assert_allclose(lanes.blocks[:, 0, 3], sizes, atol=1e-9)
        assert set(lanes.blocks[:, 0, 2]) == {SKILLS.index(kind)}


def test_sizes_may_be_told():
    lanes = Lanes(ParkourFieldConfig(kinds=("crawl",), obstacles=1, levels=3, columns=1, sizes={"crawl": (0.4, 0.32)}))
    np.testing.assert_allclose(lanes.blocks[:, 0, 3], [0.40, 0.36, 0.32], atol=1e-9)
    with pytest.raises(ValueError, match=r"no kind with a size 'crwl'. Did you mean 'crawl'\?"):
        ParkourFieldConfig(sizes={"crwl": (0.4, 0.3)})
    with pytest.raises(ValueError, match=r"sizes\['jump'\] is \(easiest, hardest\) above 0"):
        ParkourFieldConfig(sizes={"jump": (0.0, 0.3)})


def test_walking_is_a_free_lane_and_wrong_kinds_are_named():
    lanes = Lanes(ParkourFieldConfig(kinds=("walk",), obstacles=2, levels=1, columns=1))
    assert tuple(lanes.next_block(np.array([0]), np.array([2.0]), behind=0.25)[0]) == NO_BLOCK
    with pytest.raises(ValueError, match=r"no kind 'jmp'\. Did you mean 'jump'"):
        ParkourFieldConfig(kinds=("jmp",))


def test_heights_are_those_of_the_physics():
    env = make(lanes=ParkourFieldConfig(kinds=("jump", "leap", "tilt"), obstacles=3, levels=2, columns=2))
    data = mujoco.MjData(env.model)
    data.qpos[2] = 50.0
    mujoco.mj_forward(env.model, data)
    generator = np.random.default_rng(0)
    x, y = generator.uniform(-2.5, 9.5, 400), generator.uniform(-1.5, 9.0, 400)
    down, nothing = np.array([0.0, 0.0, -1.0]), np.zeros(1, np.int32)
    found = [
        5.0 - mujoco.mj_ray(env.model, data, np.array([a, b, 5.0]), down, None, 1, -1, nothing, None)
        for a, b in zip(x, y)
    ]
    np.testing.assert_allclose(env.ground.height(x, y), found, atol=1e-6)
    assert {round(height, 2) for height in found} >= {PIT, 0.0, 0.04, 0.3, 0.5}


def test_a_bar_leaves_its_clearance():
    env = make(lanes=ParkourFieldConfig(kinds=("crawl",), obstacles=1, levels=1, columns=1))
    data = mujoco.MjData(env.model)
    data.qpos[2] = 50.0
    mujoco.mj_forward(env.model, data)
    nothing = np.zeros(1, np.int32)
    up = mujoco.mj_ray(
        env.model, data, np.array([1.6, 0.0, 0.1]), np.array([0.0, 0.0, 1.0]), None, 1, -1, nothing, None
    )
    assert 0.1 + up == pytest.approx(0.44)
    assert env.ground.height(np.array([1.6]), np.array([0.0]))[0] == 0.0


# -- what the robot is told --------------------------------------------------------------------------------------------


def test_the_engaged_block_of_a_box():
    env = make(lanes=EASY_JUMP, reach=1.2)
    env.reset(seed=0)
    # the box is from 1.5 to 2.4 m: up at 1.5 … 1.6, down at 2.4 … 2.5
    walk, up, over, down, after = blocks_at(env, [0.2, 0.5, 1.7, 2.0, 2.8])
    np.testing.assert_allclose(walk, [1.2, 0, 0, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(up, [1.0, 0, 0, 0, 1, 0, 0.1, 0.04, 1.0], atol=1e-9)
    np.testing.assert_allclose(over[[0, 8]], [-0.2, 1.0], atol=1e-9)  # its hind legs are still at the front edge
    np.testing.assert_allclose(down, [0.4, 0, 0, 0, 1, 0, 0.1, 0.04, -1.0], atol=1e-9)
    np.testing.assert_allclose(after, [1.2, 0, 0, 0, 0, 0, 0, 0, 0])
    assert up[1:6].argmax() == SKILLS.index("jump") == 3


@pytest.mark.parametrize("kind", ["tilt", "crawl", "leap"])
def test_other_skills_have_no_direction(kind: str):
    env = make(lanes=ParkourFieldConfig(kinds=(kind,), obstacles=1, levels=1, columns=1))
    env.reset(seed=0)
    block = blocks_at(env, [1.0])[0]
    assert block[1:6].tolist() == [float(name == kind) for name in SKILLS]
    assert block[0] == pytest.approx(0.5) and block[-1] == 0.0 and block[7] > 0.0


def test_blocks_are_observed_by_all_envs():
    env = make(num_envs=8)
    obs = env.reset(seed=0)
    assert obs["engaging_block"].shape == (8, 9) and obs["height_scan"].shape == (8, 1, 17, 9)
    env.qpos[:, 0] = 1.0
    step = env.step(torch.zeros(8, 12))
    one_hot = step.obs["engaging_block"][:, 1:6]
    assert (one_hot.sum(dim=1) == 1).all() and len(one_hot.argmax(dim=1).unique()) > 1


def test_the_command_leads_back_to_the_middle():
    env = make(num_envs=3, speed=(0.7, 0.7))
    env.reset(seed=0)
    env.qpos[:, 1] = env.lane * 2.4 + [0.3, 0.0, -0.3]
    env.qpos[:, 3:7] = [1.0, 0.0, 0.0, 0.0]
    env.qvel[:] = 0.0
    step = env.step(torch.zeros(3, 12))
    command = step.obs["command"] / 2.0
    assert torch.allclose(command[:, 0], torch.tensor(0.7)) and (command[:, 1] == 0).all()
    assert command[0, 2] < -0.3 and abs(command[1, 2]) < 0.1 and command[2, 2] > 0.3


# -- ends of episodes --------------------------------------------------------------------------------------------------


def test_the_end_of_the_lane_is_success_and_raises_the_level():
    env = make(num_envs=2, lanes=EASY_JUMP)
    env.reset(seed=0)
    env.qpos[0, 0] = 3.05  # the lane ends at 1 + 2 m
    step = env.step(torch.zeros(2, 12))
    assert step.info["success"].tolist() == [True, False]
    assert step.truncated.tolist() == [True, False] and not step.terminated.any()
    assert env.levels.level.tolist() == [1, 0]
    assert step.info["log"]["episode/success"] == 1.0
    assert env.qpos[0, 0] < 0.5, "back at the start"
    assert env.qpos[0, 1] == pytest.approx(2.4, abs=0.21), "of the lane of the next level"
    assert env.metrics()["success_rate"].tolist() == pytest.approx([0.2, 0.0])


def test_the_pit_is_a_fall_and_lowers_the_level():
    env = make(num_envs=2, lanes=EASY_JUMP, first_levels=2)
    env.reset(seed=0)
    env.levels.level[:] = 1
    env.qpos[0, :3] = [0.0, 1.2, -0.4]  # between two lanes
    step = env.step(torch.zeros(2, 12))
    assert step.terminated.tolist() == [True, False] and not step.info["success"].any()
    assert env.levels.level.tolist() == [0, 1]


def test_a_gap_has_no_floor():
    env = make(lanes=ParkourFieldConfig(kinds=("leap",), obstacles=1, levels=2, columns=1), first_levels=1)
    env.reset(seed=0)
    env.levels.level[:], env.lane[:] = 1, 1
    env.qpos[0, :2] = [1.75, 2.4]  # over the middle of a gap of half a metre: the feet at ±0.2 m find nothing
    done = [bool(env.step(torch.zeros(1, 12)).terminated[0]) for _ in range(40)]
    assert any(done)


def test_a_robot_that_does_not_get_further_is_stuck():
    env = make(num_envs=2, patience=0.2)
    env.reset(seed=0)
    ends = []
    for _ in range(11):
        env.qpos[0, 0] += 0.05  # one is carried along, the other stays where it is
        env.qpos[1, 0], env.qvel[1, 0] = env.furthest[1], 0.0
        ends.append(env.step(torch.zeros(2, 12)).terminated.tolist())
    assert ends == [[False, False]] * 10 + [[False, True]]


def test_progress_is_paid_up_to_the_speed_that_is_asked_for():
    env = make(num_envs=3, reward_weights={"progress": 1.0, "off_centre": -1.0}, speed=(0.5, 0.5))
    env.reset(seed=0)
    env.step(torch.zeros(3, 12))
    env.qvel[:, 0] = [0.25, 0.5, 2.0]
    terms = env.rewards()
    np.testing.assert_allclose(terms["progress"], [0.5, 1.0, 1.0])
    np.testing.assert_allclose(terms["off_centre"], np.abs(env.qpos[:, 1] - env.lane * 2.4))
    with pytest.raises(ValueError, match="speeds above 0"):
        make(speed=(0.0, 1.0))


def test_robots_start_on_their_lane():
    env = make(num_envs=20, first_levels=6)
    env.reset(seed=0)
    assert np.abs(env.aside()).max() <= 0.2 and np.abs(env.qpos[:, 0]).max() <= 0.3
    assert env.lane.tolist() == (env.levels.level * 8 + np.arange(20) % 8).tolist()
    assert env.now.foot_height.min() > 0.0 and env.robot.gravity[:, 2].max() < -0.99
