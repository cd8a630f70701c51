"""SAC with a user's networks, trained to a result in the words of three older libraries.

The task shows a number in [-1, 1) and pays 1 - (action - number)²: 1 is the best, random actions earn -2/3, and 0 earns
2/3.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from striderl.algorithms.actor_critic.sac import SACConfig
from striderl.collect.samplers.samplers import SerialSampler
from striderl.compat.generator.agent import Agent, Algorithm
from striderl.compat.generator.trainer import Trainer, TrainerConfig
from striderl.compat.rlpyt import SAC, MinibatchRlEval, SacAgent
from striderl.compat.tianshou.algorithm_policy import AlgorithmPolicy
from striderl.compat.tianshou.collector import Collector
from striderl.compat.tianshou.trainers import offpolicy_trainer
from striderl.compat.user_models import sac_from_model
from striderl.envs.toy.bandits import ContinuousBandit, ContinuousBanditConfig
from striderl.storage.replay_buffer.kinds import VectorReplayBuffer

WANTED = 0.9
TASK = ContinuousBanditConfig(contextual=True)
CONFIG = SACConfig(
    gamma=0.9,
    tau=0.05,
    actor_learning_rate=1e-2,
    critic_learning_rate=1e-2,
    init_temperature=0.05,
    learn_temperature=False,
)


def layers(num_inputs: int, num_outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_inputs, 32), nn.ReLU(), nn.Linear(32, num_outputs))


class Model(nn.Module):
    """What a user writes: a policy and two critics."""

    def __init__(self) -> None:
        super().__init__()
        self.pi = layers(1, 2)
        self.q = nn.ModuleList(layers(2, 1) for _ in range(2))

    def action(self, x: Tensor) -> Any:
        return self.pi(x).chunk(2, dim=-1)

    def value(self, x: Tensor, a: Tensor | None = None) -> Any:
        return tuple(q(torch.cat([x, a], -1)) for q in self.q)


def bandit(num_envs: int) -> ContinuousBandit:
    return ContinuousBandit(num_envs, config=TASK)


def built(model: Model) -> Any:
    env = bandit(1)
    return sac_from_model(model, env.obs_spec, env.action_spec, CONFIG)


def test_policy_collector_and_offpolicy_trainer():
    torch.manual_seed(0)
    policy = AlgorithmPolicy(built(Model()))
    train = Collector(policy, bandit(8), VectorReplayBuffer(2000, 8), seed=0)
    test = Collector(policy, bandit(20), seed=1)
    train.collect(n_step=160, random=True)
    result = offpolicy_trainer(
        policy,
        train,
        test,
        max_epoch=4,
        step_per_epoch=60,
        collect_per_step=8,
        episode_per_test=40,
        batch_size=32,
        stop_fn=lambda reward: reward >= WANTED,
        verbose=False,
    )
    assert result["best_reward"] >= WANTED


def test_model_algorithm_agent_and_trainer():
    torch.manual_seed(0)
    model = Model()
    agent = Agent(Algorithm(built(model), model=model), seed=0)
    settings = TrainerConfig(total_timesteps=2400, learning_starts=160, batch_size=32, eval_frequency=400, seed=0)
    best = -1.0
    for log_data in Trainer(agent, bandit(8), settings, eval_env=bandit(20))():
        if log_data["log_type"] == "evaluate":
            best = max(best, log_data["logs"]["mean_episodic_return"])
            if best >= WANTED:
                break
    assert best >= WANTED


class Mu(nn.Module):
    """rlpyt's policy: mean and log of the deviation."""

    def __init__(self, observation_shape: tuple[int, ...], action_size: int) -> None:
        super().__init__()
        self.net = layers(observation_shape[0], 2 * action_size)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> tuple[Tensor, ...]:
        return self.net(observation).chunk(2, dim=-1)


class Q(nn.Module):
    """rlpyt's critic."""

    def __init__(self, observation_shape: tuple[int, ...], action_size: int) -> None:
        super().__init__()
        self.net = layers(observation_shape[0] + action_size, 1)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any, action: Tensor) -> Tensor:
        return self.net(torch.cat([observation, action], -1)).squeeze(-1)


@pytest.mark.slow
def test_sampler_algorithm_agent_and_runner():
    torch.manual_seed(0)
    sampler = SerialSampler(
        EnvCls=ContinuousBandit,
        env_kwargs={"config": TASK},
        batch_T=10,
        batch_B=8,
        max_decorrelation_steps=0,
        eval_n_envs=20,
        eval_max_trajectories=40,
    )
    runner = MinibatchRlEval(
        algo=SAC(
            discount=0.9,
            target_update_tau=0.05,
            learning_rate=1e-2,
            fixed_alpha=0.05,
            batch_size=32,
            min_steps_learn=160,
            replay_ratio=2.0,
        ),
        agent=SacAgent(Mu, Q),
        sampler=sampler,
        n_steps=2400,
        seed=0,
        log_interval_steps=800,
    )
    runner.train()
    assert max(row["ReturnAverage"] for row in runner.diagnostics) >= WANTED
