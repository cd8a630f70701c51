"""What a discriminator looks at: parts that turn steps into vectors.

    StateAction     [ s | a ]         the expert's actions are known
    StatePair       [ s | s' ]        only its states are; s' never belongs to another episode
    InfoVector      info columns      the env makes the features itself

t        0     1     2 ┃   3          step 2 ended its episode: where the storage keeps what truly followed each step
follows  yes   yes   no    last_obs   ('obs_next', as replays do and rollouts where a term asks for it), s' is the final
                                      observation; without that column the pair (2, 3) does not exist
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from striderl.data.actions import ActionSpec, BoxSpec, DiscreteSpec
from striderl.data.specs import ObsSpec, TensorSpec


class Steps(NamedTuple):
    """Steps as features see them, […, …] each; columns that are not known are left out or None."""

    obs: Mapping[str, Tensor]
    """What was observed."""
    act: Any
    """What was done."""
    following: Mapping[str, Tensor] | None
    """What was observed after it; None when nothing says."""
    follows: Tensor
    """bool: where `following` really is what followed."""
    terminated: Tensor | None
    """bool: where the task ended; None when nothing says."""
    valid: Tensor
    """bool: which steps count."""
    info: Mapping[str, Tensor]
    """What the env told beside it."""
    parts: Mapping[str, Any]
    """What the acting parts of terms stored with it, by their names; empty when nothing did."""


class Features(Protocol):
    """Makes vectors of steps."""

    @property
    def size(self) -> int:
        """How many numbers there are per step."""
        ...

    @property
    def following(self) -> tuple[str, ...]:
        """The components that are looked at after a step; empty when it is enough to see the step itself."""
        ...

    def columns(self) -> Mapping[str, TensorSpec]:
        """Return the info columns that are read."""
        ...

    def known(self, steps: Steps) -> Tensor:
        """Return which valid steps have features, bool [...]."""
        ...

    def __call__(self, steps: Steps) -> Tensor:
        """Return raw features [..., size]; anything where they are not known."""
        ...


class StateAction:
    """Components of the observation, and the action; a choice as one-hot."""

    following: tuple[str, ...] = ()

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, components: Sequence[str] = ("policy",)) -> None:
        """Take which components or groups are looked at."""
        if not isinstance(action_spec, (BoxSpec, DiscreteSpec)):
            raise TypeError(f"StateAction wants a box or one choice, found {type(action_spec).__name__}")
        self._spec, self._action = obs_spec.select(components), action_spec
        self._width = action_spec.n if isinstance(action_spec, DiscreteSpec) else action_spec.tensor.size

    @property
    def size(self) -> int:
        """Of both."""
        return self._spec.size + self._width

    def columns(self) -> Mapping[str, TensorSpec]:
        """Read none."""
        return {}

    def known(self, steps: Steps) -> Tensor:
        """Return all that are valid."""
        return steps.valid

    def __call__(self, steps: Steps) -> Tensor:
        """Return [s | a]."""
        state = flat_state(steps.obs, self._spec)
        if isinstance(self._action, DiscreteSpec):
            action = functional.one_hot(steps.act.long().clamp(0, self._width - 1), self._width)
        else:
            action = steps.act.reshape(*state.shape[:-1], self._width)
        return torch.cat([state, action.to(state.dtype)], dim=-1)


class StatePair:
    """Components of the observation before and after a step."""

    def __init__(self, obs_spec: ObsSpec, components: Sequence[str] = ("policy",)) -> None:
        """Take which components or groups are looked at."""
        self._spec = obs_spec.select(components)

    @property
    def size(self) -> int:
        """Of both."""
        return 2 * self._spec.size

    @property
    def following(self) -> tuple[str, ...]:
        """All of them."""
        return self._spec.names

    def columns(self) -> Mapping[str, TensorSpec]:
        """Read none."""
        return {}

    def known(self, steps: Steps) -> Tensor:
        """Return where what followed is known."""
        return steps.valid & steps.follows

    def __call__(self, steps: Steps) -> Tensor:
        """Return [s | s']."""
        assert steps.following is not None, "the caller has looked"
        return torch.cat([flat_state(steps.obs, self._spec), flat_state(steps.following, self._spec)], dim=-1)


class InfoVector:
    """Info columns that the env declares, in order; the env sees to windows and resets itself."""

    following: tuple[str, ...] = ()

    def __init__(self, columns: Mapping[str, TensorSpec]) -> None:
        """Take name → spec of the columns."""
        self._columns = dict(columns)

    @property
    def size(self) -> int:
        """Of all."""
        return sum(spec.size for spec in self._columns.values())

    def columns(self) -> Mapping[str, TensorSpec]:
        """Return them."""
        return self._columns

    def known(self, steps: Steps) -> Tensor:
        """Return all that are valid."""
        return steps.valid

    def __call__(self, steps: Steps) -> Tensor:
        """Return them side by side."""
        leading = steps.valid.shape
        return torch.cat([steps.info[name].reshape(*leading, -1).float() for name in self._columns], dim=-1)


def flat_state(obs: Mapping[str, Tensor], spec: ObsSpec) -> Tensor:
    """Join components into one float32 vector [..., size]."""
    flat: Tensor = spec.flatten({name: obs[name] for name in spec})
    return flat.float()


def rollout_steps(columns: Mapping[str, Any], last_obs: Mapping[str, Tensor] | None = None) -> Steps:
    """Return the steps of a rollout [T, N]; without `last_obs`, what followed the last step is not known.

    A replay shows picked steps as a rollout of length one with `obs_next`, which holds final observations too; so does
    a rollout that keeps what followed.
    """
    stored = columns.get("policy", {})
    if "obs_next" in columns:
        return minibatch_steps(columns)._replace(parts=stored)
    obs, valid = columns["obs"], columns["valid"]
    last = {name: value[-1] for name, value in obs.items()} if last_obs is None else last_obs
    following = {name: torch.cat([value[1:], last[name].unsqueeze(0)]) for name, value in obs.items()}
    # what follows a step that counts may be one that does not, whose observation may be anything
    known = torch.full_like(valid[:1], last_obs is not None)
    follows = ~(columns["terminated"] | columns["truncated"]) & torch.cat([valid[1:], known])
    info = columns.get("info", {})
    return Steps(obs, columns["act"], following, follows, columns["terminated"], valid, info, stored)


def minibatch_steps(minibatch: Mapping[str, Any]) -> Steps:
    """Return the samples of a minibatch: of replay with what followed, of a rollout without.

    Of samples over several steps, the first step is meant: 'single' holds what followed that one.
    """
    valid = minibatch["valid"]
    first = minibatch.get("single", minibatch)
    follows = torch.ones_like(valid)
    if "single" not in minibatch and "num_steps" in minibatch:
        follows = minibatch["num_steps"] == 1
    return Steps(
        minibatch["obs"],
        minibatch["act"],
        first.get("obs_next"),
        follows,
        first.get("terminated"),
        valid,
        minibatch.get("info", {}),
        minibatch.get("parts", {}),
    )


def mended(reward: Tensor, known: Tensor, done: Tensor) -> Tensor:
    """Return rewards [T, N] with that of the step before, in the same episode, where a step's own is not known.

    Without final observations nobody knows what the last step of an episode led to; a reward of 0 there would make
    ends look worse than they are. The first steps of an episode, which have none before them, get 0.
    """
    before = torch.cat([torch.zeros_like(reward[:1]), reward[:-1]])
    usable = torch.cat([torch.zeros_like(known[:1]), known[:-1] & ~done[:-1]])
    return torch.where(known, reward, torch.where(usable, before, 0.0))
