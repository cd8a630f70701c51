"""Clips: interpolation by kind, wrapping, mirroring, orders, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from motion_samples import HALF, ramp, turning

from striderl.datasets.motion.amp_loader import with_fields
from striderl.datasets.motion.clip import (
    ClipError,
    ClipField,
    MotionClip,
    interpolate,
    left_right,
    other_side,
    rotate_inverse,
    slerp,
    standard_fields,
    turning_between,
)

# -- interpolation -----------------------------------------------------------------------------------------------------


def test_a_line_between_frames():
    # frames 0 1 2 3 4 at 0.0 0.1 0.2 0.3 0.4 s; before and after, the ends
    found = ramp().at([-1.0, 0.0, 0.05, 0.28, 0.4, 9.0])["x"][:, 0]
    np.testing.assert_allclose(found, [0.0, 0.0, 0.5, 2.8, 4.0, 4.0])


def test_a_rotation_turns_at_a_constant_rate():
    # a third of 90 degrees about z is 30 degrees: half of it is 15
    found = turning().at([1.0 / 3.0])["root_rot"][0]
    np.testing.assert_allclose(found, [np.cos(np.pi / 12), 0.0, 0.0, np.sin(np.pi / 12)], atol=1e-12)


def test_a_rotation_never_goes_the_long_way():
    # -q is the same rotation as q; a straight line to it would pass through another one
    start, end = torch.tensor([1.0, 0.0, 0.0, 0.0]).double(), -torch.tensor([HALF, 0.0, 0.0, HALF]).double()
    middle = slerp(start, end, torch.tensor([0.5]).double())
    np.testing.assert_allclose(middle.numpy(), [np.cos(np.pi / 8), 0.0, 0.0, np.sin(np.pi / 8)], atol=1e-12)


def test_tiny_and_half_turns_are_finite():
    start = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    end = torch.tensor([[1.0, 0.0, 0.0, 1e-9], [0.0, 0.0, 0.0, 1.0]])
    middle = slerp(start, end, torch.full((2, 1), 0.5))
    np.testing.assert_allclose(middle.numpy(), [[1.0, 0.0, 0.0, 0.0], [HALF, 0.0, 0.0, HALF]], atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 1.0))
def test_slerp_has_length_one_and_moves_in_proportion(seed, fraction):
    numbers = np.random.default_rng(seed).normal(size=(2, 4))
    first, second = (torch.from_numpy(each / np.linalg.norm(each)) for each in numbers)
    between = slerp(first, second, torch.tensor([fraction]).double())
    assert float(between.norm()) == pytest.approx(1.0)
    whole = np.linalg.norm(turning_between(first.numpy(), second.numpy()))
    part = np.linalg.norm(turning_between(first.numpy(), between.numpy()))
    assert part == pytest.approx(fraction * whole, abs=1e-6)


def test_a_direction_keeps_its_length():
    down, ahead = torch.tensor([0.0, 0.0, -1.0]), torch.tensor([1.0, 0.0, 0.0])
    found = interpolate("direction", down, ahead, torch.tensor([0.5]))
    np.testing.assert_allclose(found.numpy(), [HALF, 0.0, -HALF], atol=1e-6)


# -- wrapping ----------------------------------------------------------------------------------------------------------


def walking(loop: str = "wrap") -> MotionClip:
    """A round of 0.4 s: 'x' goes 0 1 0 -1 0, the position 2 m in a round."""
    return MotionClip(
        name="walking",
        frame_duration=0.1,
        fields={"x": ClipField(size=1), "root_pos": ClipField(size=1, kind="position")},
        values={"x": np.array([[0.0], [1.0], [0.0], [-1.0], [0.0]]), "root_pos": np.linspace(0.0, 2.0, 5)[:, None]},
        loop=loop,
    )


def test_a_wrapped_clip_goes_on_and_positions_move_on():
    found = walking().at([0.1, 0.45, 0.5, 0.9])
    np.testing.assert_allclose(found["x"][:, 0], [1.0, 0.5, 1.0, 1.0], atol=1e-9)
    np.testing.assert_allclose(found["root_pos"][:, 0], [0.5, 2.25, 2.5, 4.5])


def test_a_clip_that_does_not_close_cannot_wrap():
    with pytest.raises(ClipError, match=r"'ramp' wraps, .* 'x' differs by 4 .* append the first frame"):
        ramp(loop="wrap")


# -- mirroring and orders ----------------------------------------------------------------------------------------------

JOINTS = ("FL_hip", "FL_thigh", "FR_hip", "FR_thigh")
FEET = ("FL_foot", "FR_foot")


def two_legs() -> MotionClip:
    """A robot of two legs; entry i of a frame is i + 1."""
    names = ("root_pos", "base_ang_vel", "joint_pos", "feet", "foot_contacts")
    fields = standard_fields(names, joint_names=JOINTS, foot_names=FEET, mirror=left_right(JOINTS))
    values = {name: np.tile(np.arange(1.0, kind.size + 1.0), (2, 1)) for name, kind in fields.items()}
    return MotionClip(
        name="two legs", frame_duration=0.1, fields=fields, values=values, joint_names=JOINTS, foot_names=FEET
    )


def test_the_mirror_swaps_sides_and_signs():
    found = two_legs().mirrored()
    first = {name: value[0].tolist() for name, value in found.values.items()}
    assert first["root_pos"] == [1.0, -2.0, 3.0]
    assert first["base_ang_vel"] == [-1.0, 2.0, -3.0]
    assert first["joint_pos"] == [-3.0, 4.0, -1.0, 2.0]
    assert first["feet"] == [4.0, -5.0, 6.0, 1.0, -2.0, 3.0]
    assert first["foot_contacts"] == [2.0, 1.0]


def test_mirrored_twice_is_the_same():
    clip = two_legs()
    back = clip.mirrored().mirrored()
    for name, value in clip.values.items():
        np.testing.assert_array_equal(back.values[name], value)


def test_another_order_of_joints_and_feet():
    other = two_legs().ordered(("FR_hip", "FL_hip", "FR_thigh", "FL_thigh"), ("FR_foot", "FL_foot"))
    assert other.values["joint_pos"][0].tolist() == [3.0, 1.0, 4.0, 2.0]
    assert other.values["feet"][0].tolist() == [4.0, 5.0, 6.0, 1.0, 2.0, 3.0]
    # the mirror table has followed: ordering and mirroring commute
    one = other.mirrored()
    two = two_legs().mirrored().ordered(other.joint_names, other.foot_names)
    for name in one.fields:
        np.testing.assert_array_equal(one.values[name], two.values[name])
    with pytest.raises(ClipError, match="joint names"):
        two_legs().ordered(("A", "B", "C", "D"))


def test_names_of_sides():
    assert other_side("FL_hip_joint") == "FR_hip_joint" and other_side("right_knee") == "left_knee"
    assert other_side("waist") == "waist"
    assert left_right(["L_hip", "R_hip", "waist"])["waist"] == ("waist", 1.0)


def test_without_a_table_there_is_no_mirror_image():
    with pytest.raises(ClipError, match=r"cannot be mirrored: the fields \['x'\]"):
        ramp().mirrored()


@pytest.mark.parametrize(
    ("index", "sign"),
    [((1, 2, 0), (1.0, 1.0, 1.0)), ((0, 1), (1.0, 1.0)), ((0, 1, 2), (1.0, 2.0, 1.0)), ((1, 0, 2), (1.0, -1.0, 1.0))],
)
def test_a_mirror_table_must_come_back(index, sign):
    with pytest.raises(ClipError):
        ClipField(size=3, mirror_index=index, mirror_sign=sign)


# -- derived fields ----------------------------------------------------------------------------------------------------


def test_velocities_and_gravity_follow_from_poses():
    # 1 m/s along the world's x while the robot faces y (90 degrees), turning by 0.2 rad/s
    times = np.arange(5) * 0.1
    yaw = np.pi / 2 + 0.2 * times
    rotation = np.stack([np.cos(yaw / 2), 0 * yaw, 0 * yaw, np.sin(yaw / 2)], axis=1)
    rotation[1::2] *= -1.0  # the same rotations in their other writing
    position = np.stack([times, 0 * times, 0.3 + 0 * times], axis=1)
    joints = np.stack([2.0 * times, times**2], axis=1)
    fields = standard_fields(("root_pos", "root_rot", "joint_pos"), joint_names=("a", "b"), foot_names=())
    clip = MotionClip(
        name="drift",
        frame_duration=0.1,
        fields=fields,
        values={"root_pos": position, "root_rot": rotation, "joint_pos": joints},
        joint_names=("a", "b"),
    )
    names = ("base_height", "base_lin_vel", "base_ang_vel", "projected_gravity", "joint_vel")
    found = with_fields(clip, names)
    assert tuple(found.fields) == names
    np.testing.assert_allclose(found.values["base_height"], 0.3)
    np.testing.assert_allclose(found.values["base_lin_vel"][0], [0.0, -1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(found.values["base_ang_vel"], np.tile([0.0, 0.0, 0.2], (5, 1)), atol=1e-9)
    np.testing.assert_allclose(found.values["projected_gravity"], np.tile([0.0, 0.0, -1.0], (5, 1)), atol=1e-12)
    # the second joint is t²: 2 t in the middle, the slope of the nearest pair at the ends (0.1 and 0.7)
    np.testing.assert_allclose(found.values["joint_vel"][:, 1], [0.1, 0.2, 0.4, 0.6, 0.7])
    with pytest.raises(ClipError, match="lacks one of"):
        with_fields(clip, ("feet_vel",))
    with pytest.raises(ClipError, match="no field 'contacts'"):
        with_fields(clip, ("contacts",))


def test_a_wrapped_clip_has_the_same_velocity_at_both_ends():
    # steps of a round are +1 -1 -1 +1 per 0.1 s: at frame 0 the mean of the last and the first, +10
    clip = replace(
        walking(),
        fields={"joint_pos": ClipField(size=1, of="joints")},
        values={"joint_pos": walking().values["x"]},
        joint_names=("a",),
    )
    found = with_fields(clip, ("joint_vel",)).values["joint_vel"][:, 0]
    np.testing.assert_allclose(found, [10.0, 0.0, -10.0, 0.0, 10.0], atol=1e-9)


def test_the_world_in_a_turned_frame():
    facing_left = np.array([[HALF, 0.0, 0.0, HALF]])
    np.testing.assert_allclose(rotate_inverse(facing_left, np.array([[1.0, 0.0, 0.0]])), [[0.0, -1.0, 0.0]], atol=1e-12)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frame_duration": 0.0}, "positive frame duration"),
        ({"frame_duration": float("nan")}, "positive frame duration"),
        ({"weight": -1.0}, "weight that is not negative"),
        ({"loop": "round"}, "no loop 'round'"),
        ({"values": {"x": np.zeros((1, 1))}}, "at least 2"),
        ({"values": {"x": np.zeros((3, 2))}}, r"wants \[frames, 1\] in 'x', found \[3, 2\]"),
        ({"values": {"x": np.array([[0.0], [np.nan], [np.inf]])}}, "not finite, first in frame 1"),
        ({"values": {"x": np.zeros((3, 1), np.int64)}}, "float32 or float64"),
        ({"values": {"y": np.zeros((3, 1))}}, "has fields"),
    ],
)
def test_what_a_clip_must_be(change, message):
    with pytest.raises(ClipError, match=message):
        replace(ramp(), **change)


def test_rotations_have_length_one():
    values = turning().values["root_rot"].copy()
    values[1] = 0.0
    with pytest.raises(ClipError, match=r"wants length 1 in 'root_rot', a quaternion; frame 1 has 0"):
        replace(turning(), values={"root_rot": values})
    nearly = replace(turning(), values={"root_rot": 1.05 * turning().values["root_rot"]})
    np.testing.assert_allclose(nearly.values["root_rot"], turning().values["root_rot"], atol=1e-12)
