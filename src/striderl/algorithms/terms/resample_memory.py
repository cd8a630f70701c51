"""`ResampleMemory`: begin some trajectories with a random memory.

    trajectory   memory before its first step         losses
    0            as in the rollout                    everything
    1            U(-1, 1) in every number             distillation and estimators only: actions came from another memory

A student trained only on memories of good trajectories generalises badly to others. The pieces of a rollout
between resets are the trajectories; they are cut apart and learned from one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from striderl.algorithms.terms.term import Term
from striderl.data.checked_fields import check_field_types
from striderl.policies.policy import Policy


@dataclass(frozen=True, kw_only=True)
class ResampleMemory(Term):
    """Replace the actor's memory before the first step by random numbers, with some probability."""

    capturable = True
    learns_in_ranks = True
    changes_memory = True

    probability: float
    """Probability that a trajectory begins with a random memory."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not 0.0 < self.probability <= 1.0:
            raise ValueError(f"hidden_state_resample_prob is above 0 and at most 1, found {self.probability}")

    @property
    def name(self) -> str:
        """Its name among the terms."""
        return "resample_memory"

    def check(self, policy: Policy) -> None:
        """Raise unless there is a memory to replace."""
        if not any(_is_actors(name) for name in policy.state_spec()):
            raise ValueError("hidden_state_resample_prob has no effect: the student's actor has no memory; set it to 0")

    def memory(
        self, state: Mapping[str, Tensor], generator: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor] | None:
        """Draw which trajectories get another memory, and one number for each number of it, in an LSTM or a GRU."""
        like = next(iter(state.values()))
        chosen = (torch.rand(like.shape[0], generator=generator, device=generator.device) < self.probability).to(
            like.device
        )
        return {
            name: _replaced(value, chosen, generator) if _is_actors(name) else value for name, value in state.items()
        }, chosen


def _is_actors(name: str) -> bool:
    return name.startswith(("actor/", "trunk/"))


def _replaced(value: Tensor, chosen: Tensor, generator: torch.Generator) -> Tensor:
    drawn = (2.0 * torch.rand(value.shape, generator=generator, device=generator.device) - 1.0).to(value)
    return torch.where(chosen.view(-1, *[1] * (value.dim() - 1)), drawn, value)
