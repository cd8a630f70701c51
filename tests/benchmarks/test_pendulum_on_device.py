"""The pendulum of the GPU benchmark keeps the contract and follows Gymnasium's equations."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from striderl.envs.check import check_vec_env

BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")
sys.path.insert(0, BENCHMARKS)
from pendulum_on_device import PendulumOnDevice  # noqa: E402

sys.path.remove(BENCHMARKS)


@pytest.mark.slow
def test_it_keeps_the_contract():
    report = check_vec_env(PendulumOnDevice(5, "cpu"), num_steps=230, close=True)
    assert "final observations" in str(report) and "time limit" in str(report)


def test_it_follows_gymnasium():
    ours, theirs = PendulumOnDevice(1, "cpu"), gymnasium.make("Pendulum-v1").unwrapped
    ours.reset(), theirs.reset()
    actions = torch.rand(150, 1, 1, generator=torch.Generator().manual_seed(0)) * 6.0 - 3.0
    for action in actions:
        theirs.state = ours._state[0].double().numpy().copy()  # small differences would grow from step to step
        step = ours.step(action)
        obs, reward, *_ = theirs.step(action[0].double().numpy())
        np.testing.assert_allclose(step.obs["policy"][0].numpy(), obs, atol=1e-5)
        np.testing.assert_allclose(float(step.reward), reward, atol=1e-5, rtol=1e-5)
