"""Split-and-pad: the picture of the docstring, round trips, zero padding and errors that name the leaf."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from striderl.data.batch import Batch
from striderl.ops.trajectories import split_and_pad_trajectories, unpad_trajectories


def test_the_picture_of_the_docstring():
    # env 0: a b | c d (done at t = 1), env 1: e f g h; letters are numbers 1 to 8
    x = torch.tensor([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0], [4.0, 8.0]])
    dones = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]])
    padded, masks = split_and_pad_trajectories(x, dones)
    assert padded.tolist() == [[1, 3, 5], [2, 4, 6], [0, 0, 7], [0, 0, 8]]
    assert masks.tolist() == [[True, True, True], [True, True, True], [False, False, True], [False, False, True]]
    assert torch.equal(unpad_trajectories(padded, masks), x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.uint8, torch.float32])
def test_dones_of_any_dtype(dtype):
    x = torch.arange(6.0).view(3, 2)
    dones = torch.tensor([[0, 1], [1, 0], [0, 0]]).to(dtype)
    padded, _ = split_and_pad_trajectories(x, dones)
    # env 0: 0 2 | 4, env 1: 1 | 3 5
    assert padded.tolist() == [[0, 4, 1, 3], [2, 0, 0, 5], [0, 0, 0, 0]]


def test_the_argument_is_not_changed_and_the_last_row_may_say_done():
    dones = torch.tensor([[0, 0], [1, 0]])
    before = dones.clone()
    _, masks = split_and_pad_trajectories(torch.zeros(2, 2), dones)
    assert torch.equal(dones, before)
    assert masks.shape == (2, 2)


@st.composite
def rollouts(draw):
    num_steps, num_envs = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    flags = draw(st.lists(st.booleans(), min_size=num_steps * num_envs, max_size=num_steps * num_envs))
    return torch.tensor(flags).view(num_steps, num_envs)


@pytest.mark.slow
@given(rollouts())
def test_round_trip_of_nested_data(dones):
    num_steps, num_envs = dones.shape
    number = torch.arange(1.0, num_steps * num_envs + 1).view(num_steps, num_envs)
    x = Batch(obs={"joints": number.unsqueeze(-1).expand(-1, -1, 3), "image": number.to(torch.uint8)}, act=number)
    padded, masks = split_and_pad_trajectories(x, dones)
    assert masks.sum() == num_steps * num_envs
    assert masks.shape[1] == (dones[:-1].sum() + num_envs)
    assert padded.obs.image.dtype == torch.uint8
    assert (padded.act[~masks] == 0).all()
    back = unpad_trajectories(padded, masks)
    assert torch.equal(back.obs.joints, x.obs.joints)
    assert torch.equal(back.obs.image, x.obs.image)
    assert torch.equal(back.act, x.act)


@given(rollouts())
def test_against_cutting_by_hand(dones):
    num_steps, num_envs = dones.shape
    x = torch.arange(num_steps * num_envs).view(num_steps, num_envs)
    pieces = []
    for env in range(num_envs):
        piece = []
        for step in range(num_steps):
            piece.append(int(x[step, env]))
            if dones[step, env] or step == num_steps - 1:
                pieces.append(piece)
                piece = []
    padded, masks = split_and_pad_trajectories(x, dones)
    assert [padded[:, at][masks[:, at]].tolist() for at in range(masks.shape[1])] == pieces


def test_whole_envs_can_be_taken_out():
    dones = torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 1]])
    x = torch.arange(9.0).view(3, 3)
    padded, masks = split_and_pad_trajectories(x, dones)
    # env 1 owns trajectories 1 and 2
    assert torch.equal(unpad_trajectories(padded[:, 1:3], masks[:, 1:3]), x[:, 1:2])
    with pytest.raises(ValueError, match="no multiple of T = 3"):
        unpad_trajectories(padded[:, 1:2], masks[:, 1:2])


def test_gradients_pass_both_ways():
    x = torch.ones(3, 2, requires_grad=True)
    padded, masks = split_and_pad_trajectories(x, torch.tensor([[1, 0], [0, 0], [0, 0]]))
    unpad_trajectories(padded * 2, masks).sum().backward()
    assert torch.equal(x.grad, torch.full((3, 2), 2.0))


def test_row_zero_is_the_first_step_of_every_trajectory():
    state = torch.arange(6.0).view(3, 2).unsqueeze(-1)
    padded, _ = split_and_pad_trajectories(state, torch.tensor([[0, 1], [0, 0], [0, 0]]))
    assert padded[0].flatten().tolist() == [0, 1, 3]


def test_errors_name_the_leaf():
    with pytest.raises(ValueError, match=r"obs/joints has shape \(2, 3, 1\)"):
        split_and_pad_trajectories({"obs": {"joints": torch.zeros(2, 3, 1)}}, torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"\[T, N\]"):
        split_and_pad_trajectories(torch.zeros(3, 2), torch.zeros(3, 2, 1))
    with pytest.raises(TypeError, match="a is a ndarray"):
        split_and_pad_trajectories({"a": np.zeros((1, 1))}, torch.zeros(1, 1))
    with pytest.raises(ValueError, match="masks"):
        unpad_trajectories(torch.zeros(3, 2), torch.ones(3, 3))
