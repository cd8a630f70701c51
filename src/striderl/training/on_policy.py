"""What the trainer asks of an algorithm that learns from fresh rollouts, and what both work on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from striderl.algorithms.on_policy.dagger import DAgger
from striderl.algorithms.on_policy.ppo import PPO
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data import tree
from striderl.data.arena import Columns, Placement
from striderl.data.noise import philox, stream_id
from striderl.execution.updater import Updater
from striderl.policies.policy import Policy
from striderl.storage.rollout import RolloutStorage
from striderl.storage.rollout_presets import QueueRolloutStorage, SarsaRolloutStorage


@runtime_checkable
class OnPolicyAlgorithm(Protocol):
    """Learns from a rollout in three calls: targets, gradient steps, statistics."""

    policy: Policy
    """What is learned."""
    updater: Updater
    """Takes its gradient steps."""

    @property
    def num_updates_per_rollout(self) -> int:
        """How many gradient steps one rollout is used for."""
        ...

    def actor(self) -> PolicyActor:
        """Return who collects."""
        ...

    def check_rollout(self, num_steps: int, num_envs: int, columns: Columns | None = None) -> None:
        """Raise when rollouts of this size, with these columns, cannot be used."""
        ...

    def prepare(
        self,
        storage: Any,
        *,
        initial_state: dict[str, Tensor],
        last_obs: Mapping[str, Tensor],
        last_state: Mapping[str, Tensor],
    ) -> Any:
        """Work out the targets of a full storage."""
        ...

    def update(self, prepared: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Take all gradient steps and return numbers as 0-d tensors; the order of samples comes from the generator."""
        ...

    def absorb(self, columns: Mapping[str, Any]) -> None:
        """Let normalisers learn from stored columns [T, N, …]."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything learned."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what was saved."""
        ...


def rollout_storage(
    collector: Collector, policy: Policy, num_steps: int, following: Sequence[str] = ()
) -> RolloutStorage:
    """Make the storage for rollouts of this length; final observations are kept where the env gives them.

    So is what truly followed every step of the components in `following`: of an env without final observations nobody
    knows it.
    """
    placement = Placement(device=str(collector.env.device))
    columns, num_envs = collector.columns(), collector.env.num_envs
    if not collector.env.gives_final_obs:
        return RolloutStorage(columns, num_steps, num_envs, placement=placement)
    spec, state = collector.obs_spec, policy.state_spec()
    if not following:
        return RolloutStorage(columns, num_steps, num_envs, placement=placement, final_obs=spec, final_state=state)
    return SarsaRolloutStorage(
        columns,
        num_steps,
        num_envs,
        placement=placement,
        final_obs=spec,
        final_state=state,
        components=following,
    )


def storage_for(
    algorithm: OnPolicyAlgorithm, collector: Collector, num_steps: int
) -> RolloutStorage | QueueRolloutStorage:
    """Make the storage that an algorithm learns from: one rollout, or for a dilated DAgger the newest few."""
    if not isinstance(algorithm, DAgger) or algorithm.buffer_dilation_ratio == 1.0:
        following = algorithm.terms.following() if isinstance(algorithm, PPO) else ()
        return rollout_storage(collector, algorithm.policy, num_steps, following)
    return QueueRolloutStorage(
        collector.columns(),
        num_steps,
        collector.env.num_envs,
        buffer_dilation_ratio=algorithm.buffer_dilation_ratio,
        placement=Placement(device=str(collector.env.device)),
    )


def newest_rollout(storage: RolloutStorage | QueueRolloutStorage) -> dict[str, Any]:
    """Return the columns of the rollout that was collected last; a queue must be in order, as `prepare` leaves it."""
    data = storage.data
    if isinstance(storage, RolloutStorage):
        return data
    newest: dict[str, Any] = tree.index(data, slice(-storage.num_steps, None))
    return newest


def order_generator(seed: int, iteration: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the generator of the minibatch order of one iteration: two numbers decide, nothing has to be saved.

    A GPU draws orders of its own, other than the CPU's: sending one there takes longer than a gradient step.
    """
    high, low, _, _ = philox((iteration & 0xFFFFFFFF, iteration >> 32, 0, stream_id("minibatch order")), seed)
    return torch.Generator(device).manual_seed(int(high) << 32 | int(low))
