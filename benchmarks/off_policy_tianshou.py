"""Tianshou 2 in the off-policy benchmarks: its `DQN` and `SAC` algorithms with its replay buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from off_policy_tasks import GAMMA, NUM_STEPS, TARGET_EVERY, TAU, Task, Work, repeated_work, steps_of
from tianshou.algorithm import DQN, SAC
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, ReplayBuffer
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode


def update(task: Task) -> Work:
    """Return some gradient steps."""
    algorithm = _dqn(task) if task.algorithm == "dqn" else _sac(task)
    steps, buffer = steps_of(task), ReplayBuffer(NUM_STEPS)
    for row in range(NUM_STEPS):
        buffer.add(
            Batch(
                obs=steps.obs[row],
                act=steps.act[row],
                rew=steps.rew[row],
                terminated=bool(steps.terminated[row]),
                truncated=False,
                obs_next=steps.obs[row + 1],
                info={},
            )
        )

    def step() -> None:
        with policy_within_training_step(algorithm.policy), torch_train_mode(algorithm):
            algorithm.update(buffer=buffer, sample_size=task.batch_size)

    return repeated_work(step, task.updates_per_sample)


def _dqn(task: Task) -> Any:
    network = Net(state_shape=(task.obs_size,), action_shape=task.action_size, hidden_sizes=list(task.hidden))
    policy = DiscreteQLearningPolicy(model=network, action_space=Discrete(task.action_size))
    return DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=task.learning_rate),
        gamma=GAMMA,
        target_update_freq=TARGET_EVERY,
        is_double=False,
    )


def _sac(task: Task) -> Any:
    space = Box(-1.0, 1.0, (task.action_size,), np.float32)
    body = Net(state_shape=(task.obs_size,), hidden_sizes=list(task.hidden))
    actor = ContinuousActorProbabilistic(
        preprocess_net=body, action_shape=(task.action_size,), unbounded=True, conditioned_sigma=True
    )
    critics = [
        ContinuousCritic(
            preprocess_net=Net(
                state_shape=(task.obs_size,),
                action_shape=(task.action_size,),
                hidden_sizes=list(task.hidden),
                concat=True,
            )
        )
        for _ in range(2)
    ]
    rate = AdamOptimizerFactory(lr=task.learning_rate)
    return SAC(
        policy=SACPolicy(actor=actor, action_space=space),
        policy_optim=rate,
        critic=critics[0],
        critic_optim=rate,
        critic2=critics[1],
        critic2_optim=rate,
        tau=TAU,
        gamma=GAMMA,
        alpha=AutoAlpha(-float(task.action_size), 0.0, rate),
    )
