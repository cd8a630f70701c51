"""Ramps: hand-worked numbers."""

from __future__ import annotations

import pytest

from striderl.ops.ramps import Ramp, as_ramp


def test_linear_ramp():
    ramp = Ramp(start=1.0, end=0.2, num_steps=4)
    assert [ramp.at(step) for step in (-1, 0, 1, 2, 4, 9)] == pytest.approx([1.0, 1.0, 0.8, 0.6, 0.2, 0.2])


def test_exponential_ramp_has_one_factor():
    # 1 → 1/16 in 4 steps: a factor of 1/2 each
    ramp = Ramp(start=1.0, end=1.0 / 16.0, num_steps=4, kind="exponential")
    assert [ramp.at(step) for step in range(6)] == pytest.approx([1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16])


def test_a_number_is_a_constant_ramp():
    assert as_ramp(0.3).at(0) == as_ramp(0.3).at(10**9) == 0.3
    ramp = Ramp(start=0.0, end=1.0, num_steps=2)
    assert as_ramp(ramp) is ramp


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": 1.0, "end": 0.0, "kind": "linar"}, "Did you mean 'linear'"),
        ({"start": 1.0, "end": 0.0, "kind": "exponential"}, "positive numbers, found 1.0 and 0.0"),
        ({"start": 1.0, "end": 0.0, "num_steps": 0}, "num_steps is at least 1, found 0"),
    ],
)
def test_impossible_ramps_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Ramp(**settings)
