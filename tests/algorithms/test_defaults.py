"""What an algorithm does with its own settings: `PPO(policy)` learns, and every public config can be left as it is."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import striderl.algorithms as algorithms
from striderl.algorithms import PPO
from striderl.collect import Collector, GreedyActor
from striderl.envs import make
from striderl.policies import Policy, PolicyConfig
from striderl.training import OnPolicyPlan, Trainer, evaluate

CONFIGS = [name for name in algorithms.__all__ if name.endswith("Config")]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_can_be_left_as_it_is(name):
    config = getattr(algorithms, name)()
    assert dataclasses.is_dataclass(config)
    assert dataclasses.replace(config) == config


@pytest.mark.slow
def test_ppo_learns_cartpole_as_it_is():
    # small networks for speed; every setting of PPO and plan is the default, which was at 23 after 50,000 steps before
    torch.manual_seed(0)
    env = make("cartpole", num_envs=8)
    networks = PolicyConfig(actor_hidden_dims=(64, 64), critic_hidden_dims=(64, 64))
    policy = Policy(env.obs_spec, env.action_spec, networks)
    algorithm = PPO(policy)
    trainer = Trainer(algorithm, Collector(env, algorithm.actor()), OnPolicyPlan(total_steps=40_000))
    best = 0.0
    for record in trainer:
        if record.env_steps >= 15_000 and record.iteration % 5 == 0:
            best = max(best, evaluate(make("cartpole", num_envs=10), GreedyActor(policy), 10, seed=1).mean)
        if best >= 475.0:
            break
    assert best >= 475.0
