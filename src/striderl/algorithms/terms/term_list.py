"""`TermList`: the terms of an algorithm, asked together; names that two of them share are an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.terms.term import Read, Term
from striderl.collect.actors.base import ActingPart
from striderl.data.checked_fields import overridden
from striderl.data.naming import unknown
from striderl.execution.modes import ExecutionConfig
from striderl.execution.updater import ParameterGroup
from striderl.ops.losses import valid_mean
from striderl.policies.policy import Policy, PolicyOutput

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
            _add(found, term.groups, "group of parameters", taken=("policy",))
        return found

    def check_rollout(self, num_envs: int, columns: Mapping[str, Any] | None) -> None:
        """Raise when a term cannot use rollouts of so many envs, or wants an info column that is not there."""
        for term in self._terms:
            term.check_envs(num_envs)
        if columns is not None:
            self.info(columns)

    def reward_names(self) -> tuple[str, ...] | None:
        """Return what the terms' rewards are called; None when one of them cannot say."""
        named = [term.reward_names() for term in self._terms]
        return None if None in named else tuple(name for names in named for name in names or ())

    def info(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the info columns that the terms want, or say which one is not stored."""
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
        """Return the components whose true successors the terms want stored, each once."""
        return tuple(dict.fromkeys(name for term in self._terms for name in term.following()))

    def acting(self) -> list[ActingPart]:
        """Return what takes part in acting."""
        return [part for term in self._terms if (part := term.acting()) is not None]

    def parts(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the acting parts stored, by name, out of everything that the actor stored."""
        found: dict[str, Any] = {}
        for part in self.acting():
            if part.name not in stored:
                where = f"term {part.name!r} takes part in acting: collect with algorithm.actor(). What was stored"
                raise KeyError(unknown("column", part.name, stored, where=where))
            found[part.name] = stored[part.name]
        return found

    def in_surrogate(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Return which valid samples the policy gradient uses; the very mask 'valid' where no term objects."""
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
        """Return the memory that n trajectories begin with, and bool [n] where it is another than in the rollout."""
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
        """Return the numbers of all terms about a minibatch."""
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
        """Return the mean of each reward over valid samples, and what the terms want logged."""
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
        """Let all terms learn their statistics."""
        for term in self._terms:
            term.update_normalization(columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every term by name."""
        return {term.name: term.state_dict() for term in self._terms}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the saved state of every term."""
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
    """Raise where a term overrides what is not asked of it as it is."""
    kind = type(term).__name__
    if overridden(term, Term, "in_surrogate") and term.acting() is None:
        raise TypeError(f"{kind}.in_surrogate would have no effect: it reads what acting() stores, which is None")
    if overridden(term, Term, "memory") and not term.changes_memory:
        raise TypeError(f"{kind}.memory would have no effect: set changes_memory = True in the class")
