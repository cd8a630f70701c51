"""`Term`: something that is learned beside the algorithm, handed over in a list: `PPO(policy, config, terms=[…])`.

    acting ─▶ rollout [T, N] ─▶ reward ─▶ added to the env's, which stays ─▶ GAE ─▶ minibatch ─▶ extend ─▶ policy
                     │                                                                 ▲            │
                     └───▶ labels, made while the whole rollout is at hand ────────────┘            │
                                       at, absorb ◀── after the last minibatch ◀── Updater ◀── losses

A term may do any of this and leaves out the rest. `reward` and `labels` are functions of what was stored and of what
the term has learned, and change nothing: asked twice, they answer the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.algorithms.on_policy_targets import Losses
from striderl.collect.actors.base import ActingPart
from striderl.data.specs import TensorSpec
from striderl.execution.updater import ParameterGroup
from striderl.policies.policy import Policy, PolicyOutput


class Read(NamedTuple):
    """A whole rollout, as terms see it."""

    columns: Mapping[str, Any]
    """What was stored, [T, N, …] each; 'obs_next' holds what truly followed, of components that terms asked for."""
    last_obs: Mapping[str, Tensor]
    """What was observed after the last step, [N, …] each."""


class Term(ABC):
    """One thing to learn beside the algorithm."""

    capturable: bool = False
    """Whether `extend` and `losses` may run inside a captured region: `check_capture` has passed on them."""

    changes_memory: bool = False
    """Whether `memory` may begin trajectories with another memory; they are then learned from one by one."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Under which its state is saved; different for every term of a list."""

    @property
    def groups(self) -> Mapping[str, ParameterGroup]:
        """The term's own parameters by a name for the log, each group with its own optimiser."""
        return {}

    def check(self, policy: Policy) -> None:  # noqa: B027  (most terms fit every policy)
        """Raise when this term cannot work with the policy."""

    def check_envs(self, num_envs: int) -> None:  # noqa: B027  (most terms do not care)
        """Raise when rollouts of so many envs cannot be used."""

    def check_replay(self) -> None:  # noqa: B027  (most terms do not care)
        """Raise when this term cannot learn from samples of a replay, which are in no order."""

    def reward_names(self) -> tuple[str, ...] | None:
        """Return what the rewards of `reward` are called, before there is a rollout; None when that is not known."""
        return () if type(self).reward is Term.reward else None

    def columns(self) -> Mapping[str, TensorSpec]:
        """Return which info columns must be stored with each step; minibatches have them under 'info'."""
        return {}

    def following(self) -> tuple[str, ...]:
        """Return the components of which a rollout keeps what truly followed each step, final observations included.

        They are in `columns['obs_next']` where the env gives final observations; a replay has all of them anyway.
        """
        return ()

    def acting(self) -> ActingPart | None:
        """Return what takes part in acting, under this term's name; its columns are in minibatches under 'parts'."""
        return None

    def in_surrogate(self, stored: Mapping[str, Any]) -> Tensor | None:
        """Return which samples the policy gradient may use, from the columns of the acting part; None for all."""
        return None

    def memory(
        self, state: Mapping[str, Tensor], generator: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor] | None:
        """Return another memory [n, …] for n trajectories to begin with, and bool [n] where it is another.

        Samples that follow from another memory leave the surrogate; the draws come from the generator of the update.
        """
        return None

    def at(self, iteration: Tensor) -> None:  # noqa: B027  (most terms have no schedule)
        """Set schedules for the rollout that comes next; `iteration` (0-d) is how many were learned from."""

    def statistics(self, minibatch: Mapping[str, Any], out: PolicyOutput) -> dict[str, Tensor]:
        """Return numbers for the log about a minibatch, as 0-d tensors without gradient."""
        return {}

    def reward(self, read: Read) -> dict[str, Tensor]:
        """Return name → reward [T, N], weighted, to be added to the env's; zero in samples that are not valid."""
        return {}

    def labels(self, read: Read) -> dict[str, Tensor]:
        """Return name → column [T, N, …] that the losses want beside what minibatches of a rollout have.

        Minibatches hold them under 'labels' and this term's name. Replay has no such moment: what samples show of a
        step, its successor and its end must do there.
        """
        return {}

    def extend(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Return the minibatch, perhaps with further samples behind those that were collected.

        Added samples that only this term wants are not 'valid', but 'readable'. 'collected' then tells which samples
        are valid and were really collected: what is logged, and what is compared with the rollout, counts only those.
        """
        return minibatch

    def losses(self, minibatch: Mapping[str, Any], out: PolicyOutput) -> Losses:
        """Return name → (weight, loss) for a minibatch and what the policy says about it."""
        return {}

    def update_normalization(self, columns: Mapping[str, Any]) -> None:  # noqa: B027  (most terms have no statistics)
        """Let normalisers and schedules learn from stored columns [T, N, …], after the last minibatch."""

    def numbers(self) -> dict[str, Tensor]:
        """Return further numbers for the log, as 0-d tensors."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything learned but the optimisers' part, which the updater saves."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what was saved."""
        if state:
            raise ValueError(f"term {self.name!r} has nothing to load, found {sorted(state)}")


def collected(minibatch: Mapping[str, Any]) -> Tensor:
    """Return which samples of a minibatch are valid and were collected, not added by a term."""
    mask: Tensor = minibatch["collected"] if "collected" in minibatch else minibatch["valid"]
    return mask
