"""`Term`: an additional reward or loss of an algorithm, passed in a list: `PPO(policy, config, terms=[…])`.

    acting ─▶ rollout [T, N] ─▶ reward ─▶ added to the env's, which stays ─▶ GAE ─▶ minibatch ─▶ extend ─▶ policy
                     │                                                                 ▲            │
                     └───▶ labels, computed from the whole rollout ────────────────────┘            │
                         at, update_normalization ◀── after the last minibatch ◀── Updater ◀── losses

A term may implement any of this. `reward` and `labels` are functions of the stored columns and of the term's state,
and change nothing: called twice, they return the same. `TermList` is all terms of an algorithm; names must be
different.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.algorithms.on_policy_targets import Losses
from striderl.collect.actors.base import ActingPart
from striderl.data.checked_fields import overridden
from striderl.data.naming import unknown
from striderl.data.specs import TensorSpec
from striderl.execution.modes import ExecutionConfig
from striderl.execution.updater import ParameterGroup
from striderl.ops.losses import valid_mean
from striderl.policies.policy import Policy, PolicyOutput


class Read(NamedTuple):
    """A whole rollout, as terms get it."""

    columns: Mapping[str, Any]
    """What was stored, [T, N, …] each; 'obs_next' holds true successors, of components that terms need."""
    last_obs: Mapping[str, Tensor]
    """The observations after the last step, [N, …] each."""


class Term(ABC):
    """An additional reward or loss of an algorithm."""

    capturable: bool = False
    """Whether `extend` and `losses` may run inside a captured region: `check_capture` has passed on them."""

    learns_in_ranks: bool = False
    """Whether its losses and statistics are means of `ops.losses` and `ops.moments`, which count the samples of all
    processes."""

    changes_memory: bool = False
    """Whether `memory` may begin trajectories with another memory; minibatches are then made of trajectories."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of its saved state; different for every term of a list."""

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
        """Return the names of the rewards of `reward`, before there is a rollout; None if unknown."""
        return () if type(self).reward is Term.reward else None

    def columns(self) -> Mapping[str, TensorSpec]:
        """Return which info columns must be stored with each step; minibatches have them under 'info'."""
        return {}

    def following(self) -> tuple[str, ...]:
        """Return the components of which a rollout stores true successors, final observations included.

        They are in `columns['obs_next']` where the env gives final observations; a replay has all of them anyway.
        """
        return ()

    def acting(self) -> ActingPart | None:
        """Return the acting part, under this term's name; its columns are in minibatches under 'parts'."""
        return None

    def in_surrogate(self, stored: Mapping[str, Any]) -> Tensor | None:
        """Return which samples the policy gradient may use, from the columns of the acting part; None for all."""
        return None

    def memory(
        self, state: Mapping[str, Tensor], generator: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor] | None:
        """Return another memory [n, …] for n trajectories to begin with, and bool [n] where it is used.

        Samples that follow from another memory are left out of the surrogate; draws use the update's generator.
        """
        return None

    def at(self, iteration: Tensor) -> None:  # noqa: B027  (most terms have no schedule)
        """Set schedules for the next rollout; `iteration` (0-d) is the number of rollouts learned from."""

    def statistics(self, minibatch: Mapping[str, Any], out: PolicyOutput) -> dict[str, Tensor]:
        """Return metrics about a minibatch, as 0-d tensors without gradient."""
        return {}

    def reward(self, read: Read) -> dict[str, Tensor]:
        """Return name → reward [T, N], weighted, to be added to the env's; zero in samples that are not valid."""
        return {}

    def labels(self, read: Read) -> dict[str, Tensor]:
        """Return name → column [T, N, …] that the losses need besides the columns of minibatches.

        Minibatches hold them under 'labels' and this term's name. Replay has no labels: samples must hold the
        step, its successor and its end there.
        """
        return {}

    def extend(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Return the minibatch, optionally with further samples after the collected ones.

        Added samples that only this term uses are not 'valid', but 'readable'. 'collected' then marks the samples that
        are valid and were collected: metrics, and comparisons with the rollout, use only those.
        """
        return minibatch

    def losses(self, minibatch: Mapping[str, Any], out: PolicyOutput) -> Losses:
        """Return name → (weight, loss) for a minibatch and the policy's output."""
        return {}

    def update_normalization(self, columns: Mapping[str, Any]) -> None:  # noqa: B027  (most terms have no statistics)
        """Update normalisers and schedules from stored columns [T, N, …], after the last minibatch."""

    def numbers(self) -> dict[str, Tensor]:
        """Return further metrics as 0-d tensors."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the term's state without the optimisers', which the updater saves."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        if state:
            raise ValueError(f"term {self.name!r} has nothing to load, found {sorted(state)}")


def collected(minibatch: Mapping[str, Any]) -> Tensor:
    """Return which samples of a minibatch are valid and were collected, not added by a term."""
    mask: Tensor = minibatch["collected"] if "collected" in minibatch else minibatch["valid"]
    return mask


# -- all terms of an algorithm -----------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)


class TermList:
    """Several terms, in the order in which they were given."""

    def __init__(self, terms: Sequence[Term], policy: Policy) -> None:
        """Check each term against the policy, and that no two have the same name."""
        if isinstance(terms, Term):
            raise TypeError(f"terms wants a list, found one {type(terms).__name__}; write terms=[…] around it")
        self._terms = tuple(terms)
        names: set[str] = set()
        for term in self._terms:
            if not isinstance(term, Term):
                raise TypeError(f"terms wants objects such as Estimation(), found {type(term).__name__}")
            if term.name in names:
                raise ValueError(f"two terms are called {term.name!r}; leave one of them out")
            names.add(term.name)
            term.check(policy)
            _check_overrides(term)

    def __iter__(self) -> Iterator[Term]:
        return iter(self._terms)

    def __len__(self) -> int:
        return len(self._terms)

    def groups(self) -> dict[str, ParameterGroup]:
        """Return the terms' own groups of parameters."""
        found: dict[str, ParameterGroup] = {}
        for term in self._terms:
            _add(found, term.groups, "group of parameters", taken=("policy", "critic"))
        return found

    def check_rollout(self, num_envs: int, columns: Mapping[str, Any] | None) -> None:
        """Raise when a term cannot use rollouts of so many envs, or needs an info column that is not stored."""
        for term in self._terms:
            term.check_envs(num_envs)
        if columns is not None:
            self.info(columns)

    def reward_names(self) -> tuple[str, ...] | None:
        """Return the names of the terms' rewards; None if one is unknown."""
        named = [term.reward_names() for term in self._terms]
        return None if None in named else tuple(name for names in named for name in names or ())

    def info(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the info columns that the terms need, or raise with the one that is not stored."""
        found: dict[str, Any] = {}
        stored = columns["info"]
        for term in self._terms:
            for name in term.columns():
                if name not in stored:
                    where = f"term {term.name!r} reads what the env does not declare in info_spec: the storage"
                    raise KeyError(unknown("info column", name, stored, where=where))
                found[name] = stored[name]
        return found

    def following(self) -> tuple[str, ...]:
        """Return the components of which terms need true successors, each once."""
        return tuple(dict.fromkeys(name for term in self._terms for name in term.following()))

    def acting(self) -> list[ActingPart]:
        """Return the acting parts."""
        return [part for term in self._terms if (part := term.acting()) is not None]

    def parts(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of the acting parts, by name, out of all columns of the actor."""
        found: dict[str, Any] = {}
        for part in self.acting():
            if part.name not in stored:
                where = f"term {part.name!r} takes part in acting: collect with algorithm.actor(). What was stored"
                raise KeyError(unknown("column", part.name, stored, where=where))
            found[part.name] = stored[part.name]
        return found

    def in_surrogate(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Return which valid samples the policy gradient uses; the mask 'valid' itself where no term excludes any."""
        counted: Tensor = minibatch["valid"]
        parts = minibatch.get("parts", {})
        for term in self._terms:
            allowed = term.in_surrogate(parts[term.name]) if term.name in parts else None
            counted = counted if allowed is None else counted & allowed
        return counted & ~minibatch["other_memory"] if "other_memory" in minibatch else counted

    @property
    def changes_memory(self) -> bool:
        """Whether any term begins trajectories with another memory."""
        return any(term.changes_memory for term in self._terms)

    def possible_mode(self, mode: str | ExecutionConfig) -> str | ExecutionConfig:
        """Return the mode; 'auto' is 'eager' where rollouts are cut into a number of trajectories that varies."""
        name = mode if isinstance(mode, str) else mode.mode
        if name != "auto" or not self.changes_memory:
            return mode
        _log.info("gradient steps are eager: terms cut rollouts into a varying number of trajectories (mode='auto')")
        return "eager"

    def memory(self, state: dict[str, Tensor], generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        """Return the memory that n trajectories begin with, and bool [n] where it differs from the rollout."""
        other = torch.zeros_like(next(iter(state.values())).flatten(1)[:, 0], dtype=torch.bool)
        for term in self._terms:
            given = term.memory(state, generator)
            if given is not None:
                state, other = given[0], other | given[1]
        return state, other

    def at(self, iteration: Tensor) -> None:
        """Set the schedules of all terms."""
        for term in self._terms:
            term.at(iteration)

    def statistics(self, minibatch: Mapping[str, Any], out: PolicyOutput) -> dict[str, Tensor]:
        """Return the metrics of all terms for a minibatch."""
        found: dict[str, Tensor] = {}
        for term in self._terms:
            _add(found, term.statistics(minibatch, out), "number")
        return found

    @torch.no_grad()
    def rewards(self, read: Read) -> dict[str, Tensor]:
        """Return name → reward [T, N] of all terms."""
        found: dict[str, Tensor] = {}
        shape = read.columns["rew"].shape
        for term in self._terms:
            for name, reward in term.reward(read).items():
                if reward.shape != shape:
                    raise ValueError(f"reward {name!r} has shape {list(reward.shape)}, wanted {list(shape)}")
                _add(found, {name: reward}, "reward")
        return found

    @torch.no_grad()
    def labels(self, read: Read) -> dict[str, dict[str, Tensor]]:
        """Return the labels of all terms that have some, by term."""
        found: dict[str, dict[str, Tensor]] = {}
        shape = read.columns["valid"].shape
        for term in self._terms:
            labels = term.labels(read)
            for name, label in labels.items():
                if label.shape[:2] != shape:
                    raise ValueError(
                        f"label {name!r} of term {term.name!r} has shape {list(label.shape)}, wanted "
                        f"[{shape[0]}, {shape[1]}, …]"
                    )
            if labels:
                found[term.name] = labels
        return found

    def numbers(self, rewards: Mapping[str, Tensor], valid: Tensor) -> dict[str, Tensor]:
        """Return the mean of each reward over valid samples, and the terms' metrics."""
        found = {name: valid_mean(reward, valid) for name, reward in rewards.items()}
        for term in self._terms:
            _add(found, term.numbers(), "number")
        return found

    def extend(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Let each term add samples."""
        for term in self._terms:
            minibatch = term.extend(minibatch)
        return minibatch

    def losses(self, minibatch: Mapping[str, Any], out: PolicyOutput, taken: Losses) -> Losses:
        """Return the losses of all terms; `taken` are those of the algorithm, which keep their names."""
        found: Losses = {}
        for term in self._terms:
            _add(found, term.losses(minibatch, out), "loss", taken=taken)
        return found

    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the statistics of all terms."""
        for term in self._terms:
            term.update_normalization(columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every term by name."""
        return {term.name: term.state_dict() for term in self._terms}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the saved state of every term."""
        wanted = {term.name for term in self._terms}
        if set(state) != wanted:
            raise ValueError(f"saved terms {sorted(state)} are not this algorithm's {sorted(wanted)}")
        for term in self._terms:
            term.load_state_dict(state[term.name])


def _add(
    found: dict[str, Any], new: Mapping[str, Any], what: str, taken: Sequence[str] | Mapping[str, Any] = ()
) -> None:
    for name, value in new.items():
        if name in found or name in set(taken):
            raise ValueError(f"two parts give a {what} called {name!r}; names must differ")
        found[name] = value


def _check_overrides(term: Term) -> None:
    """Raise where a term overrides a method that its other settings disable."""
    kind = type(term).__name__
    if overridden(term, Term, "in_surrogate") and term.acting() is None:
        raise TypeError(f"{kind}.in_surrogate would have no effect: it reads what acting() stores, which is None")
    if overridden(term, Term, "memory") and not term.changes_memory:
        raise TypeError(f"{kind}.memory would have no effect: set changes_memory = True in the class")
