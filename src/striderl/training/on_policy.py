"""What the trainer asks of an algorithm that learns from fresh rollouts, and what both work on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from striderl.collect.collector import Collector
from striderl.data.arena import Columns, Placement
from striderl.data.noise import philox, stream_id
from striderl.policies.policy import Policy
from striderl.storage.rollout import RolloutStorage


@runtime_checkable
class OnPolicyAlgorithm(Protocol):
    """Learns from a rollout in three calls: targets, gradient steps, statistics."""

    policy: Policy
    """What is learned."""

    @property
    def num_updates_per_rollout(self) -> int:
        """How many gradient steps one rollout is used for."""
        ...

    def check_rollout(self, num_steps: int, num_envs: int, columns: Columns | None = None) -> None:
        """Raise when rollouts of this size, with these columns, cannot be used."""
        ...

    def prepare(
        self,
        storage: RolloutStorage,
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


def rollout_storage(collector: Collector, policy: Policy, num_steps: int) -> RolloutStorage:
    """Make the storage for rollouts of this length; final observations are kept where the env gives them."""
    gives = collector.env.gives_final_obs
    return RolloutStorage(
        collector.columns(),
        num_steps,
        collector.env.num_envs,
        placement=Placement(device=str(collector.env.device)),
        final_obs=collector.obs_spec if gives else None,
        final_state=policy.state_spec() if gives else None,
    )


def order_generator(seed: int, iteration: int) -> torch.Generator:
    """Return the generator of the minibatch order of one iteration: two numbers decide, nothing has to be saved."""
    high, low, _, _ = philox((iteration & 0xFFFFFFFF, iteration >> 32, 0, stream_id("minibatch order")), seed)
    return torch.Generator().manual_seed(int(high) << 32 | int(low))
