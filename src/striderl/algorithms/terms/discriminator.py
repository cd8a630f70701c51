"""The discriminator of an adversarial reward: its settings, its features, and its saved state.

StateAction     [ s | a ]         for experts with actions
StatePair       [ s | s' ]        for experts with states alone; s' never belongs to another episode
InfoVector      info columns      the env computes the features itself

t        0     1     2 ┃   3          step 2 ended its episode: where the storage keeps the true successor of each
follows  yes   yes   no    last_obs   step ('obs_next', as replays do, and rollouts where a term needs it), s' is
                                      the final observation; without that column the pair (2, 3) does not exist

raw features ─▶ normalise, zeros where they are invalid ─▶ network ─▶ score
earlier          ring of raw policy features, the newest `replay_size` of them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from striderl.data.actions import ActionSpec, BoxSpec, DiscreteSpec
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.discriminator import AMPDiscriminator
from striderl.networks.mlp import MlpModel
from striderl.networks.normalizers import Normalizer
from striderl.ops.imitation import LOSSES, REWARDS, distance_from_slope, squared_slope

PENALTIES = ("expert", "between")
"""Where the gradient penalty may apply."""


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class AdversarialConfig:
    """Settings of an adversarial reward."""

    task_weight: float = 0.0
    """Weight of the env's own reward; 0 leaves it out."""
    style_weight: float = 1.0
    """Weight of the discriminator's reward."""
    loss: str = "bce"
    """'bce', 'least_squares' or 'wasserstein'; see `striderl.ops.imitation`."""
    reward: str = "minus_log_one_minus_d"
    """'log_d', 'minus_log_one_minus_d', 'difference' or 'least_squares'."""
    hidden_dims: tuple[int, ...] = (256, 256)
    """Hidden layers of the discriminator."""
    activation: str = "relu"
    """Its nonlinearity."""
    loss_weight: float = 1.0
    """Weight of the discriminator's losses; 0 leaves it as it is."""
    gradient_penalty: float = 1.0
    """Weight of the penalty on the slope of the score; 0 for none, 5 to 10 with 'least_squares'."""
    penalty_at: str = "expert"
    """Where the penalty applies: at 'expert' samples, or at points 'between' both sides, as with 'wasserstein'."""
    wanted_slope: float = 0.0
    """The slope without a penalty; 1 with 'wasserstein'."""
    learning_rate: float = 3e-4
    """Of the discriminator; the algorithm's schedule does not touch it."""
    weight_decay: float = 0.0
    """Of the discriminator (AdamW)."""
    max_grad_norm: float = 0.0
    """The discriminator's gradient is clipped to this norm; 0 means never."""
    absorbing: bool = False
    """Continue tasks that ended in an absorbing state."""
    gamma: float = 0.99
    """Discount of the absorbing state's rewards: that of the algorithm."""
    replay_size: int = 0
    """So many earlier policy samples are kept and drawn from; 0 keeps none."""
    replay_share: float = 0.5
    """Which share of the policy samples is drawn from earlier ones; the rest are those of the minibatch."""
    seed: int = 0
    """Decides which expert samples are drawn."""

    def __post_init__(self) -> None:
        check_field_types(self)
        named = {"loss": LOSSES, "reward": REWARDS, "penalty_at": PENALTIES}
        for name, value in (("loss", self.loss), ("reward", self.reward), ("penalty_at", self.penalty_at)):
            if value not in named[name]:
                raise ValueError(unknown(name, value, named[name], where=type(self).__name__))
        if min(self.gradient_penalty, self.wanted_slope, self.replay_size, self.loss_weight) < 0:
            raise ValueError("gradient_penalty, wanted_slope, replay_size and loss_weight are not negative")
        if not 0.0 <= self.replay_share <= 1.0:
            raise ValueError(f"replay_share is a part from 0 to 1, found {self.replay_share}")
        if self.absorbing and not 0.0 <= self.gamma < 1.0:
            raise ValueError(f"an absorbing state wants gamma below 1, found {self.gamma}")


# -- features ----------------------------------------------------------------------------------------------------------


class Steps(NamedTuple):
    """The inputs of features, […, …] each; unknown columns are left out or None."""

    obs: Mapping[str, Tensor]
    """The observations."""
    act: Any
    """The actions."""
    following: Mapping[str, Tensor] | None
    """The next observations; None if unknown."""
    follows: Tensor
    """bool: where `following` is the true successor."""
    terminated: Tensor | None
    """bool: where the task ended; None if unknown."""
    valid: Tensor
    """bool: which steps are valid."""
    info: Mapping[str, Tensor]
    """The info of the env."""
    parts: Mapping[str, Any]
    """The columns stored by the acting parts of terms, by their names; empty without any."""


class Features(Protocol):
    """Computes feature vectors of steps."""

    @property
    def size(self) -> int:
        """Number of features per step."""
        ...

    @property
    def following(self) -> tuple[str, ...]:
        """The components that are read after a step; empty when the step itself is enough."""
        ...

    def columns(self) -> Mapping[str, TensorSpec]:
        """Return the info columns that are read."""
        ...

    def known(self, steps: Steps) -> Tensor:
        """Return which valid steps have features, bool [...]."""
        ...

    def __call__(self, steps: Steps) -> Tensor:
        """Return raw features [..., size]; undefined where they are not known."""
        ...


class StateAction:
    """Components of the observation, and the action; a choice as one-hot."""

    following: tuple[str, ...] = ()

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, components: Sequence[str] = ("policy",)) -> None:
        """Set the components or groups to read."""
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
        """Set the components or groups to read."""
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
        """Return where the successor is known."""
        return steps.valid & steps.follows

    def __call__(self, steps: Steps) -> Tensor:
        """Return [s | s']."""
        assert steps.following is not None, "the caller has looked"
        return torch.cat([flat_state(steps.obs, self._spec), flat_state(steps.following, self._spec)], dim=-1)


class InfoVector:
    """Info columns that the env declares, in order; the env handles windows and resets itself."""

    following: tuple[str, ...] = ()

    def __init__(self, columns: Mapping[str, TensorSpec]) -> None:
        """Set name → spec of the columns."""
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
    """Return the steps of a rollout [T, N]; without `last_obs`, the last step has no successor.

    A replay gives sampled steps as a rollout of length one with `obs_next`, which holds final observations too; so does
    a rollout that stores successors.
    """
    stored = columns.get("policy", {})
    if "obs_next" in columns:
        return minibatch_steps(columns)._replace(parts=stored)
    obs, valid = columns["obs"], columns["valid"]
    last = {name: value[-1] for name, value in obs.items()} if last_obs is None else last_obs
    following = {name: torch.cat([value[1:], last[name].unsqueeze(0)]) for name, value in obs.items()}
    # a valid step may be followed by an invalid one with an arbitrary observation
    known = torch.full_like(valid[:1], last_obs is not None)
    follows = ~(columns["terminated"] | columns["truncated"]) & torch.cat([valid[1:], known])
    info = columns.get("info", {})
    return Steps(obs, columns["act"], following, follows, columns["terminated"], valid, info, stored)


def minibatch_steps(minibatch: Mapping[str, Any]) -> Steps:
    """Return the samples of a minibatch: of replay with successors, of a rollout without.

    Of samples over several steps, the first step is used: 'single' holds its successor.
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
    """Fill unknown rewards [T, N] with that of the step before in the same episode.

    Without final observations the result of the last step of an episode is unknown; a reward of 0 there would make
    ends look worse than they are. The first steps of an episode, which have none before them, get 0.
    """
    before = torch.cat([torch.zeros_like(reward[:1]), reward[:-1]])
    usable = torch.cat([torch.zeros_like(known[:1]), known[:-1] & ~done[:-1]])
    return torch.where(known, reward, torch.where(usable, before, 0.0))


# -- network, normaliser, memory ---------------------------------------------------------------------------------------


class Judge(nn.Module):
    """The discriminator, its normaliser and earlier policy samples: everything that is saved."""

    def __init__(self, size: int, config: AdversarialConfig, network: nn.Module | None) -> None:
        super().__init__()
        self.network = network or MlpModel(size, config.hidden_dims, 1, config.activation)
        self.normalizer = Normalizer(size)
        rows = config.replay_size
        self.earlier: Tensor
        self.earlier_ended: Tensor
        self.num_earlier: Tensor
        self.num_absorbed: Tensor
        self.register_buffer("earlier", torch.zeros(rows, size))
        self.register_buffer("earlier_ended", torch.zeros(rows, dtype=torch.bool))
        self.register_buffer("num_earlier", torch.zeros((), dtype=torch.int64))
        self.register_buffer("num_absorbed", torch.zeros((), dtype=torch.int64))

    def seen(self, raw: Tensor, counts: Tensor) -> Tensor:
        """Return normalised features [..., F]; zeros in invalid rows, which may hold NaN."""
        seen: Tensor = self.normalizer(torch.where(counts.unsqueeze(-1), raw, 0.0))
        return torch.where(counts.unsqueeze(-1), seen, 0.0)

    def score(self, seen: Tensor) -> Tensor:
        """Return scores [...] of normalised features [..., F]."""
        score: Tensor = self.network(seen)
        return score.squeeze(-1) if score.dim() == seen.dim() else score

    def slope_penalty(self, at: Tensor, wanted: float) -> Tensor:
        """Return (|d score/dx| - wanted)² at normalised features [B, F]; its gradient reaches the network."""
        if isinstance(self.network, AMPDiscriminator):
            return distance_from_slope(self.network.slope(at.detach()), wanted)  # analytic: no second backward pass
        return squared_slope(self.score, at, wanted)

    def keep(self, rows: Tensor, ended: Tensor, counts: Tensor) -> None:
        """Write valid rows [n, F] over the oldest; static shapes, so that there is no device sync."""
        size = self.earlier.shape[0]
        rows, ended, counts = rows[-size:], ended[-size:], counts[-size:]
        place = self.num_earlier + counts.cumsum(0) - 1
        # an invalid row is written to a place behind the ring, which is cut off
        index = torch.where(counts, place % size, size)
        self.earlier.copy_(torch.cat([self.earlier, rows[:1]]).index_copy(0, index, rows)[:size])
        self.earlier_ended.copy_(torch.cat([self.earlier_ended, ended[:1]]).index_copy(0, index, ended)[:size])
        self.num_earlier += counts.sum()

    def draw_earlier(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (rows [B, F], ended [B], valid [B]) for uniform numbers [B]; none are valid in an empty ring."""
        there = self.num_earlier.clamp(max=self.earlier.shape[0])
        index = (numbers * there).long()
        counts = (there > 0).expand(len(numbers))
        return self.earlier.index_select(0, index), self.earlier_ended.index_select(0, index), counts
