"""A runner goes on from a file that rsl_rl wrote."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
import torch
from runner_configs import legged_gym
from torch import nn

from striderl.envs.classic_control import Pendulum
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner


class Foreign(nn.Module):
    """A feed-forward actor-critic with the names of rsl_rl's first generation."""

    def __init__(self, hidden):
        super().__init__()
        self.std = nn.Parameter(torch.full((1,), 0.7))
        self.actor, self.critic = self.stack(hidden, 1), self.stack(hidden, 1)

    @staticmethod
    def stack(hidden, outputs):
        sizes = [3, *hidden]
        layers = []
        for width, size in pairwise(sizes):
            layers += [nn.Linear(width, size), nn.ELU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


def test_weights_and_iteration_are_taken(tmp_path, caplog):
    config = legged_gym()
    config["policy"] |= {"actor_hidden_dims": [16, 8], "critic_hidden_dims": [16, 8], "activation": "elu"}
    runner = OnPolicyRunner(Pendulum(4), config)
    torch.manual_seed(3)
    foreign = Foreign([16, 8])
    torch.save({"model_state_dict": foreign.state_dict(), "iter": 40, "infos": None}, tmp_path / "model_40.pt")
    with caplog.at_level(logging.WARNING):
        runner.load(tmp_path / "model_40.pt")
    assert "was written by rsl_rl (generation 1)" in caplog.text
    assert runner.current_learning_iteration == 40
    obs = torch.randn(5, 3)
    assert torch.allclose(runner.get_inference_policy()(obs), foreign.actor(obs), atol=1e-6)
    runner.train_mode()
    runner.learn(1)
    assert runner.current_learning_iteration == 41


def test_another_architecture_is_named(tmp_path):
    config = legged_gym()
    config["policy"] |= {"actor_hidden_dims": [16, 8], "critic_hidden_dims": [16, 8], "activation": "elu"}
    runner = OnPolicyRunner(Pendulum(4), config)
    torch.save({"model_state_dict": Foreign([16, 16]).state_dict(), "iter": 1}, tmp_path / "model.pt")
    with pytest.raises(Exception, match="in the checkpoint"):
        runner.load(tmp_path / "model.pt")
