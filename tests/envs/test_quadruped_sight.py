"""What the quadruped sees: the table of heights is the ground of the physics, and scan and pictures follow from it."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from striderl.envs.quadruped.robot import RobotDesign
from striderl.envs.quadruped.sight import DepthCameraConfig
from striderl.envs.quadruped.terrain import PATCHES, ROUGH_KINDS, Field, HeightMap, Plane, TerrainConfig, build_ground
from striderl.envs.quadruped.velocity import (
    Quadruped,
    QuadrupedDepth,
    QuadrupedDepthConfig,
    QuadrupedRough,
    QuadrupedRoughConfig,
    QuadrupedVelocityConfig,
)

SMALL = TerrainConfig(kinds=ROUGH_KINDS, levels=2, patch_size=6.0)
STANDING = RobotDesign().standing_height


def ray(model: Any, data: Any, start: np.ndarray, direction: np.ndarray) -> float:
    """Return how far a ray goes until it hits the static world; -1 when it hits nothing."""
    trunk_only = np.zeros(1, np.int32)
    groups = np.array([1, 1, 1, 1, 1, 1], np.uint8)
    return float(mujoco.mj_ray(model, data, start, direction, groups, 1, 1, trunk_only, None))


# -- heights -----------------------------------------------------------------------------------------------------------


def test_heights_of_one_cell():
    # vertices 0 1 / 2 6: the lower triangle is 0 + 1u + 5v, the upper 0 + 2v + 4u
    ground = HeightMap(np.array([[0.0, 1.0], [2.0, 6.0]]), cell=2.0, corner=(10.0, 20.0))
    x, y = np.array([11.0, 10.5, 10.0, 12.0, 9.0, 13.0]), np.array([20.5, 21.0, 20.0, 22.0, 21.0, 30.0])
    np.testing.assert_allclose(ground.at(x, y), [0.5 + 1.25, 1.0 + 1.0, 0.0, 6.0, 1.0, 6.0], atol=1e-5)
    np.testing.assert_array_equal(ground.nearest(np.array([10.9, 11.1]), np.array([20.9, 20.9])), [0.0, 1.0])


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
def test_interpolation_stays_between_the_corners(seed: int):
    generator = np.random.default_rng(seed)
    ground = HeightMap(generator.normal(size=(5, 7)), cell=0.5, corner=(-1.0, -2.0))
    x, y = generator.uniform(-2, 4, 50), generator.uniform(-3, 2, 50)
    found = ground.at(x, y)
    column = np.clip(np.floor((x + 1.0) / 0.5), 0, 5).astype(int)
    row = np.clip(np.floor((y + 2.0) / 0.5), 0, 3).astype(int)
    corners = np.stack([ground.heights[row + i, column + j] for i in (0, 1) for j in (0, 1)])
    assert np.all(found >= corners.min(axis=0) - 1e-5) and np.all(found <= corners.max(axis=0) + 1e-5)


def test_the_table_of_heights_is_the_ground_of_the_physics():
    env = QuadrupedRough(QuadrupedRoughConfig(num_envs=1, terrain=SMALL))
    data = mujoco.MjData(env.model)
    data.qpos[2] = 50.0
    mujoco.mj_forward(env.model, data)
    generator = np.random.default_rng(0)
    x, y = generator.uniform(-1.9, 13.9, 300), generator.uniform(-1.9, 31.9, 300)
    found = [10.0 - ray(env.model, data, np.array([a, b, 10.0]), np.array([0.0, 0.0, -1.0])) for a, b in zip(x, y)]
    np.testing.assert_allclose(env.ground.height(x, y), found, atol=1e-5)
    assert np.ptp(found) > 0.5, "there is something to see"


@pytest.mark.parametrize("kind", PATCHES)
def test_patches_get_harder_and_leave_room_to_start(kind: str):
    steps = []
    for difficulty in (0.0, 1.0):
        heights = PATCHES[kind](80, 0.1, difficulty, np.random.default_rng(0))
        assert heights.shape == (80, 80) and np.isfinite(heights).all()
        if kind != "rough":
            assert np.ptp(heights[34:47, 34:47]) == 0.0, "the middle is level"
        steps.append(np.abs(np.diff(heights, axis=0)).max())
    assert steps == [0.0, 0.0] if kind == "flat" else steps[1] > 1.9 * steps[0] > 0.0


def test_stairs_have_treads_and_risers():
    heights = PATCHES["stairs_down"](80, 0.1, 1.0, np.random.default_rng(0))
    profile = heights[40, :41]  # from the edge to the middle, along x
    rises = np.diff(profile)
    assert set(np.round(rises, 6)) == {0.0, 0.17}
    assert np.all(np.diff(np.flatnonzero(rises)) == 3), "three cells of tread"
    np.testing.assert_array_equal(PATCHES["stairs_up"](80, 0.1, 1.0, np.random.default_rng(0)), -heights)


def test_flat_kinds_make_a_plane_and_wrong_ones_an_error():
    assert isinstance(build_ground(TerrainConfig()), Plane) and isinstance(build_ground(SMALL), Field)
    with pytest.raises(ValueError, match=r"no kind 'stair_up'\. Did you mean 'stairs_up'"):
        TerrainConfig(kinds=("stair_up",))


def test_robots_start_in_the_middle_of_their_patch_and_above_ground():
    env = QuadrupedRough(QuadrupedRoughConfig(num_envs=20, terrain=SMALL, first_levels=2, randomize=()))
    env.reset(seed=0)
    level, column = env.levels.level, env.levels.column
    assert column.tolist() == list(range(5)) * 4 and set(level) == {0, 1}
    middle = np.stack([level * 6.0 + 3.0, column * 6.0 + 3.0], axis=1)
    assert np.abs(env.qpos[:, :2] - middle).max() <= 0.5
    assert env.now.foot_height.min() > 1e-3, "no foot begins in the ground"
    np.testing.assert_allclose(env.now.foot_height.min(axis=1), 0.002, atol=1e-6)


# -- the scan ----------------------------------------------------------------------------------------------------------


def test_the_scan_of_level_ground_is_zero():
    env = Quadruped(QuadrupedVelocityConfig(num_envs=2, scan_group="policy"))
    env.reset(seed=0)
    env.qpos[:, 2] = STANDING
    assert env.observe(slice(None))["height_scan"].shape == (2, 1, 17, 11)
    np.testing.assert_allclose(env.observe(slice(None))["height_scan"], 0.0, atol=1e-6)


def test_rows_of_the_scan_run_ahead_and_columns_to_the_left():
    env = QuadrupedRough(QuadrupedRoughConfig(num_envs=1, terrain=SMALL))
    env.reset(seed=0)
    place, heading = np.array([4.3, 16.1]), 0.7
    env.qpos[0, :3] = [*place, 1.0]
    env.qpos[0, 3:7] = [np.cos(heading / 2), 0.0, 0.0, np.sin(heading / 2)]
    env.robot.update(slice(None))
    scan = env.observe(slice(None))["height_scan"][0, 0]
    ahead, left = np.array([np.cos(heading), np.sin(heading)]), np.array([-np.sin(heading), np.cos(heading)])
    for row, column in ((0, 0), (16, 0), (0, 10), (16, 10), (8, 5), (11, 7)):
        point = place + (-0.8 + 0.1 * row) * ahead + (-0.5 + 0.1 * column) * left
        height = env.ground.coarse_height(point[:1], point[1:])[0]
        assert scan[row, column] == pytest.approx(5.0 * np.clip(1.0 - STANDING - height, -1, 1), abs=1e-4)


# -- the camera --------------------------------------------------------------------------------------------------------


def test_depth_of_level_ground_is_what_geometry_says():
    flat = TerrainConfig()
    env = QuadrupedDepth(QuadrupedDepthConfig(num_envs=1, terrain=flat, depth=DepthCameraConfig(size=(24, 32))))
    env.reset(seed=0)
    env.qpos[0, 2], env.qpos[0, 3:7] = 0.3, [1.0, 0.0, 0.0, 0.0]
    env.robot.update(slice(None))
    depth = env.camera.depths(env.robot, np.array([0])).reshape(24, 32)
    # a pixel `up` above the axis looks down by slope (sin p - up cos p); the camera is at 0.33 m
    up = np.tan(0.75) * 24 / 32 * (1 - 2 * (np.arange(24) + 0.5) / 24)
    expected = 0.33 / (np.sin(0.45) - up * np.cos(0.45))
    seen = (expected > 0) & (expected < 3.0)
    assert 10 < seen.sum() < 24
    np.testing.assert_allclose(depth[seen], np.repeat(expected[seen][:, None], 32, axis=1), rtol=2e-3)
    picture = env.camera.pictures(env.robot, np.array([0]))[0, 0]
    np.testing.assert_allclose(picture[seen, 5], 255 * (expected[seen] - 0.1) / 2.9, atol=1.5)
    assert np.all(picture[expected < 0] == 255), "sky"


def test_pictures_are_those_of_ray_casting():
    config = QuadrupedDepthConfig(num_envs=10, terrain=SMALL, first_levels=2, randomize=())
    env = QuadrupedDepth(config)
    env.reset(seed=4)
    generator = np.random.default_rng(1)
    tilt = np.concatenate([np.ones((10, 1)), generator.uniform(-0.06, 0.06, (10, 2)), np.zeros((10, 1))], axis=1)
    turned = np.zeros((10, 4))
    for index in range(10):  # roll and pitch by up to 7 degrees
        mujoco.mju_mulQuat(turned[index], env.qpos[index, 3:7].copy(), tilt[index] / np.linalg.norm(tilt[index]))
    env.qpos[:, 3:7] = turned
    env.robot.update(slice(None))
    ids = np.arange(10)
    depth = np.minimum(env.camera.depths(env.robot, ids), 3.0)
    pixels = generator.choice(48 * 64, 60, replace=False)
    data = mujoco.MjData(env.model)
    errors = []
    for index in ids:
        env.simulation.batch.get_data(index, data)
        mujoco.mj_forward(env.model, data)
        camera = data.qpos[:3] + env.robot.rotation[index] @ config.depth.position
        data.qpos[2] += 100.0  # the robot itself is not to be hit
        mujoco.mj_forward(env.model, data)
        for pixel in pixels:
            direction = env.robot.rotation[index] @ env.camera.rays[:, pixel].astype(float)
            far = ray(env.model, data, camera, direction)
            errors.append(depth[index, pixel] - (3.0 if far < 0 else min(far, 3.0)))
    errors = np.abs(errors)
    # at an edge neighbouring directions see different things; elsewhere the two agree
    assert np.median(errors) < 0.01
    assert np.mean(errors < 0.1) > 0.95


def test_pictures_are_taken_in_turns_and_kept_in_between():
    terrain = TerrainConfig(kinds=("rough",), levels=1, patch_size=6.0)
    env = QuadrupedDepth(QuadrupedDepthConfig(num_envs=10, terrain=terrain, randomize=()))
    before = env.reset(seed=0)["forward_depth"]
    assert before.dtype == torch.uint8 and before.shape == (10, 1, 48, 64)
    for count in range(1, 6):
        after = env.step(torch.zeros(10, 12)).obs["forward_depth"]
        changed = (after != before).flatten(1).any(dim=1)
        due = (count + torch.arange(10)) % 5 == 0
        assert torch.equal(changed, due)
        before = after
