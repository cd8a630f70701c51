"""Terms on replay: rewards that are recomputed whenever a step is read.

    sampled step ─▶ view ─▶ for each of its n steps:  reward of the env + Σ term.reward  ─▶ discounted sum ─▶ target

The latest state of a term is used for every step of the window. A term
gets samples as a rollout of length one: columns [1, B, …], and what followed them as `last_obs` [B, …]. Terms that
have parameters are updated from the same samples, after the algorithm; they do not get the policy's output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.terms.term import Read, Term, TermList
from striderl.data import tree
from striderl.execution.updater import Updater
from striderl.policies.acting import Acting
from striderl.policies.policy import Policy, PolicyOutput
from striderl.storage.replay.reader import ReplayReader
from striderl.storage.replay.replay import View
from striderl.storage.replay.views import NStep, RewardFunction

_STEP = ("obs", "act", "rew", "terminated", "truncated", "valid", "info", "policy", "obs_next")
"""The columns of a step."""


class RewardTerms:
    """The terms of an off-policy algorithm; an empty list does nothing."""

    def __init__(self, terms: Sequence[Term], policy: Acting, mode: str = "eager") -> None:
        """Check the terms against the policy and create their updater."""
        self.terms = TermList(terms, cast(Policy, policy))  # terms read specs, which both kinds of policy have
        """The terms, in order."""
        if self.terms.acting():
            names = [part.name for part in self.terms.acting()]
            raise ValueError(f"the terms {names} take part in acting, which learners from replay have no place for")
        for term in self.terms:
            term.check_replay()
        groups = self.terms.groups()
        self.updater = Updater(groups, mode=mode) if groups else None

    def __len__(self) -> int:
        return len(self.terms)

    def view(self, n: int, gamma: float) -> View:
        """Return n-step samples with the terms' rewards added."""
        if n == 1 and not len(self):
            return SingleStep(gamma)
        view = NStep(n, gamma=gamma, reward=self.reward_function())
        return view if n == 1 or self.updater is None else WithFirstStep(view)

    def reward_function(self) -> RewardFunction | None:
        """Return a function that gives the reward of each step; None without terms, so that stored rewards are read."""
        return self._reward if len(self) else None

    def _reward(self, rows: dict[str, Any]) -> Tensor:
        columns = one_step(rows)
        self.terms.info(columns)
        total: Tensor = rows["rew"]
        for reward in self.terms.rewards(Read(columns, rows["obs_next"])).values():
            total = total + reward.squeeze(0)
        return total

    def relabelled(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return sequences [T, B, …] with the terms' rewards added."""
        if not len(self):
            return sample
        reward = self._reward(single_steps(sample))
        return {**sample, "rew": reward.view_as(sample["rew"])}

    def step(self, minibatch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Update the terms with parameters of their own from samples; return their metrics."""
        return {} if self.updater is None else self.updater.step(self._losses, minibatch)

    def _losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        return self.terms.losses(minibatch, cast(PolicyOutput, None), {}), {}

    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the terms' statistics from samples [B, …]."""
        if len(self):
            self.terms.update_normalization(one_step(columns))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the terms and of their optimisers."""
        return {
            "terms": self.terms.state_dict(),
            "updater": {} if self.updater is None else self.updater.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.terms.load_state_dict(state["terms"])
        if self.updater is not None:
            self.updater.load_state_dict(state["updater"])


class SingleStep:
    """Returns what `NStep(1)` does, but for the counts, in fewer operations: the usual case."""

    capturable = True

    def __init__(self, gamma: float) -> None:
        """Set the discount per step."""
        self.gamma = gamma

    def __call__(self, read: ReplayReader, index: Tensor) -> dict[str, Any]:
        """Return the columns of these steps with `obs_next` and `discount`, which is 0 where they terminated."""
        rows = read.rows(index)
        rows["discount"] = (~rows["terminated"]).to(rows["rew"].dtype).mul_(self.gamma)
        return rows


class WithFirstStep:
    """Adds to n-step samples the next observation of their first step, for terms that learn from single steps."""

    def __init__(self, view: View) -> None:
        """Wrap the view of the samples."""
        self.view = view

    def __call__(self, read: ReplayReader, index: Tensor) -> dict[str, Any]:
        """Return the view's columns, and under 'single' the end and the next observation of the first step."""
        flags = read.flags(index)
        first = {"obs_next": read.obs_next(index), "terminated": flags[:, 0], "truncated": flags[:, 1]}
        return {**self.view(read, index), "single": first}


def single_steps(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steps of sequences [T, B, …] as rows [T · B, …], time first."""
    return {name: tree.map(lambda leaf: leaf.flatten(0, 1), sample[name]) for name in _STEP if name in sample}


def one_step(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns [B, …] as a rollout of one step [1, B, …]."""
    shown: dict[str, Any] = tree.map(lambda leaf: leaf.unsqueeze(0) if isinstance(leaf, Tensor) else leaf, dict(rows))
    return shown
