"""Slots: the picture of the docstring, both directions, holes, overflow without a host read, NaN outside."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from striderl.ops.trajectories import assign_slots, from_slots, into_slots


def test_the_picture_of_the_docstring():
    # letters a to h are 1 to 8; env 0 resets at t = 2
    x = torch.tensor([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0], [4.0, 8.0]]).unsqueeze(-1)
    resets = torch.tensor([[0, 0], [0, 0], [1, 0], [0, 0]]).bool()
    slots = assign_slots(resets, torch.ones_like(resets), 4)
    assert into_slots(x, slots).squeeze(-1).tolist() == [[1, 5, 3, 0], [2, 6, 4, 0], [0, 7, 0, 0], [0, 8, 0, 0]]
    assert torch.equal(from_slots(into_slots(x, slots), slots), x)
    assert slots.covered.all()


def test_a_hole_costs_no_slot_but_what_follows_it_does():
    # valid: t = 0 and t = 3; the two invalid steps in between sit nowhere, step 3 begins again
    valid = torch.tensor([[1], [0], [0], [1]]).bool()
    x = torch.tensor([1.0, torch.nan, torch.nan, 4.0]).view(4, 1, 1)
    slots = assign_slots(torch.zeros_like(valid), valid, 2)
    assert into_slots(x, slots).squeeze(-1).tolist() == [[1, 4], [0, 0], [0, 0], [0, 0]]
    assert slots.covered.flatten().tolist() == [True, False, False, True]
    assert from_slots(into_slots(x, slots), slots).flatten().tolist() == [1, 0, 0, 4]


def test_too_few_slots_leave_the_late_ones_out():
    # env 0 begins again at t = 1 and t = 2, env 1 at t = 2; two extra slots go to (1, 0) and then (2, 0)
    resets = torch.tensor([[0, 0], [1, 0], [1, 1]]).bool()
    slots = assign_slots(resets, torch.ones_like(resets), 4)
    assert slots.covered.tolist() == [[True, True], [True, True], [True, False]]
    x = torch.arange(1.0, 7.0).view(3, 2, 1)
    assert from_slots(into_slots(x, slots), slots).flatten().tolist() == [1, 2, 3, 4, 5, 0]


def test_every_env_needs_a_slot():
    flags = torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="num_slots is 2, but each of the 3 envs"):
        assign_slots(flags, ~flags, 2)


@st.composite
def windows(draw):
    num_steps, num_envs = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    size = num_steps * num_envs
    resets = torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))).view(num_steps, num_envs)
    valid = torch.tensor(draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))).view(num_steps, num_envs) > 0
    return resets, valid, draw(st.integers(num_envs, num_envs + size))


@given(windows())
def test_round_trip_and_consecutive_steps(window):
    resets, valid, num_slots = window
    num_steps, num_envs = resets.shape
    x = torch.arange(1.0, num_steps * num_envs + 1).view(num_steps, num_envs, 1)
    slots = assign_slots(resets, valid, num_slots)
    placed = into_slots(x, slots)
    back = from_slots(placed, slots)
    assert torch.equal(back, torch.where(slots.covered.unsqueeze(-1), x, 0.0))
    assert slots.filled.sum() == slots.covered.sum()
    assert not (slots.covered & ~valid).any()
    # the next step of the same trajectory is one place further down
    place = slots.place
    for step in range(1, num_steps):
        for env in range(num_envs):
            if slots.covered[step, env] and slots.covered[step - 1, env]:
                same = not resets[step, env]
                assert (place[step, env] == place[step - 1, env] + num_slots) == same
    num_begins = int((resets[1:] & valid[1:] | ~valid[:-1] & valid[1:]).sum())
    if num_envs + num_begins <= num_slots:
        assert torch.equal(slots.covered, valid)
    else:
        assert slots.covered.sum() < valid.sum()
