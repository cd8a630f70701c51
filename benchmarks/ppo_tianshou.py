"""Tianshou 2 in the PPO benchmarks: `PPO` on its vector replay buffer and `DummyVectorEnv`.

Its update values all samples and their log-probabilities anew before the first epoch; that is part of the update.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from ppo_tasks import (
    CLIP,
    GAMMA,
    LAM,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    VALUE_COEF,
    TrainTask,
    UpdateTask,
    Work,
    make_plain,
    rollout,
    rollout_of,
)
from tianshou.algorithm import PPO
from tianshou.algorithm.algorithm_base import _gae, policy_within_training_step
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch.distributions import Categorical, Distribution, Independent, Normal

_ACTIVATIONS = {"tanh": torch.nn.Tanh, "elu": torch.nn.ELU}


def _gaussian(parameters: tuple[torch.Tensor, torch.Tensor]) -> Distribution:
    return Independent(Normal(*parameters), 1)


def _choice(logits: torch.Tensor) -> Distribution:
    return Categorical(logits=logits)


def _learner(obs_shape: tuple[int, ...], action_space: Any, hidden: tuple[int, ...], activation: str) -> PPO:
    def body() -> Net:
        return Net(state_shape=obs_shape, hidden_sizes=list(hidden), activation=_ACTIVATIONS[activation])

    actor: Any
    critic: Any
    if isinstance(action_space, Box):
        actor = ContinuousActorProbabilistic(
            preprocess_net=body(), action_shape=action_space.shape or (), unbounded=True
        )
        critic = ContinuousCritic(preprocess_net=body())
        sample: Any = _gaussian
    else:
        actor = DiscreteActor(preprocess_net=body(), action_shape=int(action_space.n), softmax_output=False)
        critic = DiscreteCritic(preprocess_net=body())
        sample = _choice
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=sample,
        action_space=action_space,
        action_scaling=False,
        action_bound_method="clip" if isinstance(action_space, Box) else None,
    )
    return PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=LEARNING_RATE),
        eps_clip=CLIP,
        advantage_normalization=True,
        vf_coef=VALUE_COEF,
        ent_coef=0.0,
        max_grad_norm=MAX_GRAD_NORM,
        gae_lambda=LAM,
        gamma=GAMMA,
        max_batchsize=8192,
    )


def update(task: UpdateTask) -> Work:
    """Return one update of a full buffer."""
    torch.manual_seed(0)
    space = Box(-np.inf, np.inf, (task.action_size,), np.float32)
    algorithm = _learner((task.obs_size,), space, task.hidden, task.activation)
    data = rollout_of(task)
    buffer = VectorReplayBuffer(task.num_envs * task.num_steps, task.num_envs)
    following = np.concatenate([data.obs[1:], data.last_obs[None]])
    for step in range(task.num_steps):
        buffer.add(
            Batch(
                obs=data.obs[step],
                act=data.act[step],
                rew=data.rew[step],
                terminated=data.done[step],
                truncated=np.zeros_like(data.done[step]),
                done=data.done[step],
                obs_next=following[step],
                info={},
            )
        )

    def work() -> None:
        with policy_within_training_step(algorithm.policy):
            algorithm.update(buffer=buffer, batch_size=task.minibatch_size, repeat=task.epochs)

    return work


def train(task: TrainTask) -> Work:
    """Return some iterations of collecting and learning."""
    torch.manual_seed(0)
    env = DummyVectorEnv([make_plain(task.env)] * task.num_envs)
    single: gymnasium.Env[Any, Any] = make_plain(task.env)()
    algorithm = _learner(single.observation_space.shape or (), single.action_space, task.hidden, "tanh")
    samples = task.num_envs * task.num_steps
    collector: Any = Collector(algorithm, env, VectorReplayBuffer(samples, task.num_envs))
    collector.reset()

    def work() -> None:
        for _ in range(task.iterations):
            with policy_within_training_step(algorithm.policy):
                collector.collect(n_step=samples)
                algorithm.update(buffer=collector.buffer, batch_size=task.minibatch_size, repeat=task.epochs)
            collector.reset_buffer(keep_statistics=True)

    return work


def returns(num_steps: int, num_envs: int) -> Work:
    """Return one call of its compiled GAE, which wants one env after the other; masks and returns as it makes them."""
    data = rollout(num_steps, num_envs, 1, 1)
    value, rew = data.value.T.ravel(), data.rew.T.ravel().astype(np.float64)
    following = np.concatenate([data.value.T[:, 1:], data.last_value[:, None]], axis=1).ravel()
    done = data.done.T.ravel()
    last = np.zeros_like(data.done.T)
    last[:, -1] = True
    ends = done | last.ravel()

    def work() -> None:
        advantage = _gae(value, following * ~done, rew, ends, GAMMA, LAM)
        advantage + value

    return work
