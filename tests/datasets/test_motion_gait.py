"""Gait measurement: numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from striderl.datasets.motion.clip import MotionClip, standard_fields
from striderl.datasets.motion.gait import (
    clip_contacts,
    contacts_from_heights,
    foot_heights,
    measure_gait,
    touchdowns,
)


def feet(*texts: str) -> np.ndarray:
    """Contacts [T, feet] from a text for each foot, '#' for standing."""
    return np.array([[letter == "#" for letter in text] for text in texts]).T


def test_whole_strides_count():
    # landings at frames 5 and 10: one stride of 5 frames of 0.1 s, of which 3 stand; the ends do not count
    gait = measure_gait(feet("###..###..###"), 0.1)
    assert touchdowns(feet("###..###..###")[:, 0]).tolist() == [5, 10]
    assert gait.frequency[0] == pytest.approx(2.0) and gait.duty_factor[0] == pytest.approx(0.6)
    assert gait.num_strides.tolist() == [1] and gait.phase[0] == pytest.approx(0.0)


def test_a_trot_and_its_phases():
    #             landings: 4, 8, 12 | 6, 10, 14
    gait = measure_gait(feet("##..##..##..##..", "..##..##..##..##"), 0.125)
    assert gait.frequency.tolist() == [2.0, 2.0] and gait.duty_factor.tolist() == [0.5, 0.5]
    np.testing.assert_allclose(gait.phase, [0.0, 0.5])
    # foot 1 lands at 2, 6, 10 and 14: three strides
    assert gait.num_strides.tolist() == [2, 3]
    assert gait.mean_frequency == pytest.approx(2.0) and gait.mean_duty_factor == pytest.approx(0.5)


def test_phases_around_zero_do_not_average_to_a_half():
    # foot 1 lands a frame before foot 0 once, a frame after it once: phases 0.9 and 0.1, whose mean is 0
    gait = measure_gait(feet(".#####.....#####.....#####....", "..####....#####.......####...."), 0.1)
    assert min(gait.phase[1], 1.0 - gait.phase[1]) < 0.02


def test_a_foot_that_never_steps_has_no_gait():
    gait = measure_gait(feet("########", "........", "##..##.."), 0.1)
    assert gait.num_strides.tolist() == [0, 0, 0]
    assert np.isnan(gait.frequency).all() and np.isnan(gait.duty_factor).all() and np.isnan(gait.phase).all()
    assert np.isnan(gait.mean_frequency) and np.isnan(gait.mean_duty_factor)


def test_means_are_over_feet_that_step():
    gait = measure_gait(feet("########..", "#..##..##."), 0.1)
    assert gait.num_strides.tolist() == [0, 1]
    assert gait.mean_frequency == pytest.approx(1.0 / 0.4) and gait.mean_duty_factor == pytest.approx(0.5)


def test_recordings_are_pooled_and_never_joined():
    # strides of 4 frames (2 stand) and of 6 frames (5 stand): 2 strides in 10 frames, 7 of them standing
    one, two = feet(".##..##."), feet(".#####.#")
    gait = measure_gait([one, two], 0.1)
    assert gait.num_strides.tolist() == [2]
    assert gait.frequency[0] == pytest.approx(2.0) and gait.duty_factor[0] == pytest.approx(0.7)
    joined = measure_gait(np.concatenate([one, two]), 0.1)
    assert joined.num_strides.tolist() == [3]


def test_bounces_and_scuffs_are_filled_in():
    # a flight of one frame in a stance, and a stance of one frame in a flight
    noisy, clean = feet("..##.#..#..####..####"), feet("..####.....####..####")
    for text in (noisy, clean):
        gait = measure_gait(text, 0.01, shortest=0.02)
        assert touchdowns(clean[:, 0]).tolist() == [2, 11, 17]
        assert gait.num_strides.tolist() == [2] and gait.duty_factor[0] == pytest.approx(8 / 15)
    assert measure_gait(noisy, 0.01).num_strides.tolist() == [4]


def test_what_contacts_must_be():
    with pytest.raises(ValueError, match="frame_duration is positive"):
        measure_gait(feet("#."), 0.0)
    for wrong in ([], np.zeros(3), [feet("#."), feet("#.", "#.")]):
        with pytest.raises(ValueError, match="contacts are"):
            measure_gait(wrong, 0.1)


def test_heights_of_a_tilted_robot():
    # nose down by 30 degrees: the robot's x axis points down by sin 30 = 0.5, so a foot 0.2 m ahead is 0.1 m lower
    gravity = [0.5, 0.0, -np.sqrt(0.75)]
    names = ("base_height", "projected_gravity", "feet")
    fields = standard_fields(names, joint_names=(), foot_names=("a", "b"))
    values = {
        "base_height": np.full((2, 1), 0.4),
        "projected_gravity": np.tile(gravity, (2, 1)),
        "feet": np.tile([0.2, 0.0, 0.0, 0.2, 1.0, -0.3 / np.sqrt(0.75)], (2, 1)),
    }
    clip = MotionClip(name="c", frame_duration=0.1, fields=fields, values=values, foot_names=("a", "b"))
    np.testing.assert_allclose(foot_heights(clip), [[0.3, 0.0]] * 2, atol=1e-12)
    np.testing.assert_allclose(foot_heights(clip, 0.02), [[0.28, -0.02]] * 2, atol=1e-12)
    assert clip_contacts(clip).tolist() == [[False, True]] * 2
    assert contacts_from_heights(np.array([[0.009, 0.011]])).tolist() == [[True, False]]
