"""One step at a time, for loops that are written by hand on a runner.

    for _ in range(num_steps_per_env):
        obs, critic_obs, rewards, dones, infos = runner.rollout_step(obs, critic_obs)
    losses, stats = runner.learn_from_rollout()

It uses the trainer's own parts, so that hand-written iterations and `learn` may follow each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.data.transition import Transition
from striderl.envs.vec_env import Obs
from striderl.policies.facade.inputs import Observations, named
from striderl.storage.rollout import RolloutStorage
from striderl.storage.rollout_presets import QueueRolloutStorage
from striderl.training.on_policy import order_generator
from striderl.training.trainer import Trainer


class Stepped(NamedTuple):
    """What one step of all envs gave."""

    obs: Obs
    """What the actor sees next, [N, …] per component."""
    critic_obs: Obs
    """What the critic sees next."""
    rewards: Tensor
    """[N]."""
    dones: Tensor
    """bool [N]."""
    infos: dict[str, Any]
    """'time_outs' bool [N], 'final_obs' where the env gives it, and the declared info of the env."""


class _Tap:
    """Stands between collector and storage and keeps the last step."""

    balanced = True

    def __init__(self, storage: RolloutStorage | QueueRolloutStorage) -> None:
        self.storage = storage
        self.last: Transition | None = None

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        self.storage.add(transition, envs)
        self.last = transition


class ManualRollout:
    """Fills the trainer's storage step by step and lets the algorithm learn from it."""

    def __init__(self, trainer: Trainer, storage: RolloutStorage | QueueRolloutStorage) -> None:
        self.trainer, self.storage = trainer, storage
        self._initial_state: dict[str, Tensor] = {}
        self._given: Obs | None = None
        self._num_starts = 0
        self._mine = False

    def step(self, obs: Observations | None, critic_obs: Observations | None) -> Stepped:
        """Step all envs once; observations other than those of the last step begin new episodes in the collector."""
        collector, storage = self.trainer.collector, self.storage
        collector.ready()
        self._follow(obs, critic_obs)
        if storage.full or not self._mine or not len(storage):
            storage.clear()
            self._mine, self._initial_state = True, collector.current_state
        tap = _Tap(storage)
        collector.collect(n_step=collector.env.num_envs, storage=tap)
        assert tap.last is not None
        self.trainer.loop.counters.env_steps += collector.env.num_envs
        return self._stepped(tap.last)

    def learn(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from a full rollout and return (losses, stats) as 0-d tensors."""
        if not (self._mine and self.storage.full):
            raise RuntimeError(
                f"the rollout is not full: {len(self.storage)} of {self.storage.num_steps * self.storage.num_envs} "
                "samples are there; call rollout_step until it is"
            )
        trainer, algorithm = self.trainer, self.trainer.algorithm
        prepared = algorithm.prepare(
            self.storage,
            initial_state=self._initial_state,
            last_obs=trainer.collector.current_obs,
            last_state=trainer.collector.current_state,
        )
        order = order_generator(trainer.seed, trainer.iteration, trainer.collector.env.device)
        numbers = algorithm.update(prepared, order)
        algorithm.update_normalization(self.storage.newest)
        trainer.iteration += 1
        trainer.loop.counters.num_updates += algorithm.num_updates_per_rollout
        self._mine = False
        return split_numbers(numbers)

    def _follow(self, obs: Observations | None, critic_obs: Observations | None) -> None:
        """Go on from observations that somebody else has made, a dataset or a reset by hand."""
        if obs is None or obs is self._given:
            return
        policy, collector = self.trainer.algorithm.policy, self.trainer.collector
        given = named(obs, policy.actor_inputs, collector.env.device)
        if critic_obs is not None:
            given = {**named(critic_obs, policy.critic_inputs, collector.env.device), **given}
        current = collector.current_obs
        if all(torch.equal(value, current[name]) for name, value in given.items() if name in current):
            return
        self._num_starts += 1
        # another seed, because noise is counted from each start
        collector.start_from({**current, **given}, seed=collector.seed + self._num_starts)
        self._mine = False

    def _stepped(self, transition: Transition) -> Stepped:
        policy, now = self.trainer.algorithm.policy, self.trainer.collector.current_obs
        infos: dict[str, Any] = {**transition.info, "time_outs": transition.truncated & ~transition.terminated}
        if transition.final_obs is not None:
            infos["final_obs"] = transition.final_obs
        self._given = {name: now[name] for name in policy.actor_inputs}
        critic = {name: now[name] for name in policy.critic_inputs}
        return Stepped(self._given, critic, transition.rew, transition.done, infos)


def split_numbers(numbers: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tell losses, the entropy among them, from statistics."""
    losses = {name: value for name, value in numbers.items() if name.endswith("_loss") or name == "entropy"}
    return losses, {name: value for name, value in numbers.items() if name not in losses}
