"""An env seen from another device behaves like the env itself."""

from __future__ import annotations

import pytest
import torch

from striderl.data import tree
from striderl.envs.check.checker import check_vec_env
from striderl.envs.classic_control.cartpole import CartPole
from striderl.envs.on_device import OnDevice

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_steps_equal_those_of_the_env(device):
    plain, moved = CartPole(5), OnDevice(CartPole(5), device)
    first = moved.reset(3)
    assert all(value.device.type == device for value in first.values())
    assert all(torch.equal(first[name].cpu(), value) for name, value in plain.reset(3).items())
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        actions = torch.randint(0, 2, (5,), generator=generator)
        one, two = plain.step(actions), moved.step(actions.to(device))
        assert two.reward.device.type == device
        for name in ("obs", "reward", "terminated", "truncated", "final_obs"):
            pairs = zip(tree.leaves(getattr(one, name)), tree.leaves(getattr(two, name)))
            assert all(torch.equal(a, b.cpu()) for a, b in pairs), name


@pytest.mark.parametrize("device", DEVICES)
def test_it_fulfils_the_contract(device):
    check_vec_env(OnDevice(CartPole(3), device))


def test_state_and_ages_pass_through():
    env = OnDevice(CartPole(2), "cpu")
    env.reset(1)
    env.step(torch.tensor([0, 1]))
    saved = env.state_dict()
    one = env.step(torch.tensor([1, 1]))
    env.load_state_dict(saved)
    two = env.step(torch.tensor([1, 1]))
    assert all(torch.equal(one.obs[name], two.obs[name]) for name in one.obs)
    env.episode_length_buf = torch.tensor([7, 9])
    assert env.env.episode_length_buf.tolist() == [7, 9] == env.episode_length_buf.tolist()
