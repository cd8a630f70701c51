"""`AdversarialReward`: a reward for what looks like the expert's (GAIL, Ho and Ermon 2016), on PPO and on replay alike.

    step ─▶ features ─▶ normalise ─▶ discriminator ─▶ score d ─▶ style reward, added to task_weight · env's
    expert rows ─────▶ the same ───▶ the same ──────▶ loss: tell the two apart; penalty on the slope of what it sees

The reward is computed when steps are read, never stored: what the discriminator has learned is in it at once. The
discriminator has an optimiser of its own and no part in the policy. One normaliser serves both sides; it learns once
per iteration from raw features of both, and from neither when it is read.

With `absorbing` (Kostrikov et al. 2019) features have an indicator more. A task that ends goes on for ever in an
absorbing state: zeros with the indicator 1, which the discriminator knows from both sides. The reward of a step that
terminated has gamma / (1 - gamma) times the absorbing state's with it, so that ending is worth what the expert's is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.terms.adversarial_expert import ExpertRows, fingerprint, uniform_numbers
from striderl.algorithms.terms.adversarial_features import Features, Steps, minibatch_steps, rollout_steps
from striderl.algorithms.terms.term import Read, Term, collected
from striderl.data import tree
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.data.noise import stream_id
from striderl.data.specs import TensorSpec
from striderl.execution.updater import GroupConfig, ParameterGroup
from striderl.networks.mlp import MlpModel
from striderl.networks.normalizers import Normalizer
from striderl.ops.adversarial import LOSSES, REWARDS, expert_loss, policy_loss, squared_slope, style_reward
from striderl.ops.losses import valid_mean
from striderl.ops.pooling import current_all_reduce
from striderl.policies.policy import PolicyOutput

PENALTIES = ("expert", "between")
_STREAMS = {name: stream_id(f"adversarial {name}") for name in ("expert", "policy", "absorbing", "way")}
"""Random numbers for one purpose each."""


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class AdversarialConfig:
    """Settings of an adversarial reward."""

    task_weight: float = 0.0
    """Weight of the env's own reward; 0 leaves it out."""
    style_weight: float = 1.0
    """Weight of the discriminator's reward."""
    loss: str = "bce"
    """'bce', 'least_squares' or 'wasserstein'; see `striderl.ops.adversarial`."""
    reward: str = "minus_log_one_minus_d"
    """'log_d', 'minus_log_one_minus_d', 'difference' or 'least_squares'."""
    hidden_dims: tuple[int, ...] = (256, 256)
    """Hidden layers of the discriminator."""
    activation: str = "relu"
    """Its nonlinearity."""
    gradient_penalty: float = 1.0
    """Weight of the penalty on the slope of the score; 0 for none, 5 to 10 with 'least_squares'."""
    penalty_at: str = "expert"
    """Where the slope counts: at 'expert' samples, or at points 'between' both sides, as with 'wasserstein'."""
    wanted_slope: float = 0.0
    """The slope without a penalty; 1 with 'wasserstein'."""
    learning_rate: float = 3e-4
    """Of the discriminator; the algorithm's schedule does not touch it."""
    weight_decay: float = 0.0
    """Of the discriminator (AdamW)."""
    max_grad_norm: float = 0.0
    """The discriminator's gradient is scaled down to this norm; 0 means never."""
    absorbing: bool = False
    """Let tasks that ended go on in an absorbing state."""
    gamma: float = 0.99
    """Discount of the absorbing state's rewards: that of the algorithm."""
    replay_size: int = 0
    """Policy samples are drawn from so many earlier ones; 0 takes those of the minibatch."""
    seed: int = 0
    """Decides which expert samples are drawn."""

    def __post_init__(self) -> None:
        check_field_types(self)
        named = {"loss": LOSSES, "reward": REWARDS, "penalty_at": PENALTIES}
        for name, value in (("loss", self.loss), ("reward", self.reward), ("penalty_at", self.penalty_at)):
            if value not in named[name]:
                raise ValueError(unknown(name, value, named[name], where="AdversarialConfig"))
        if min(self.gradient_penalty, self.wanted_slope, self.replay_size) < 0:
            raise ValueError("gradient_penalty, wanted_slope and replay_size are not negative")
        if self.absorbing and not 0.0 <= self.gamma < 1.0:
            raise ValueError(f"an absorbing state wants gamma below 1, found {self.gamma}")


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
        """Return normalised features [..., F]; zeros where they do not count, which may hold NaN."""
        seen: Tensor = self.normalizer(torch.where(counts.unsqueeze(-1), raw, 0.0))
        return torch.where(counts.unsqueeze(-1), seen, 0.0)

    def score(self, seen: Tensor) -> Tensor:
        """Return scores [...] of normalised features [..., F]."""
        score: Tensor = self.network(seen)
        return score.squeeze(-1) if score.dim() == seen.dim() else score

    def keep(self, rows: Tensor, ended: Tensor, counts: Tensor) -> None:
        """Write rows [n, F] that count over the oldest; static shapes, so that no value has to come to the host."""
        size = self.earlier.shape[0]
        rows, ended, counts = rows[-size:], ended[-size:], counts[-size:]
        place = self.num_earlier + counts.cumsum(0) - 1
        # a row that does not count is written to a place behind the ring, which is cut off
        index = torch.where(counts, place % size, size)
        self.earlier.copy_(torch.cat([self.earlier, rows[:1]]).index_copy(0, index, rows)[:size])
        self.earlier_ended.copy_(torch.cat([self.earlier_ended, ended[:1]]).index_copy(0, index, ended)[:size])
        self.num_earlier += counts.sum()

    def draw_earlier(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (rows [B, F], ended [B], counts [B]) for uniform numbers [B]; none count while there are none."""
        there = self.num_earlier.clamp(max=self.earlier.shape[0])
        index = (numbers * there).long()
        counts = (there > 0).expand(len(numbers))
        return self.earlier.index_select(0, index), self.earlier_ended.index_select(0, index), counts


class AdversarialReward(Term):
    """Rewards likeness to expert rows, and learns to tell them from the policy's."""

    capturable = True

    def __init__(
        self,
        features: Features,
        expert: ExpertRows,
        config: AdversarialConfig | None = None,
        *,
        network: nn.Module | None = None,
        device: torch.device | str = "cpu",
        name: str = "adversarial",
    ) -> None:
        """Take what is looked at, the expert's side, and perhaps a network [..., F] to [...] of one's own."""
        self.config = config = config or AdversarialConfig()
        if expert.size != features.size:
            raise ValueError(f"the expert's rows have {expert.size} features, the policy's steps {features.size}")
        self.features, self.expert, self._name = features, expert.to(device), name
        self.judge = Judge(features.size + int(config.absorbing), config, network).to(device)
        mean, var = self._expert_moments()
        # as if one sample had been seen: the first thousands of both sides outweigh it
        self.judge.normalizer.update_from_moments(mean, var, 1.0)
        group = GroupConfig(
            optimizer="AdamW" if config.weight_decay else "Adam",
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
        )
        self._groups = {"discriminator": ParameterGroup(self.judge.network.parameters(), group)}

    @property
    def name(self) -> str:
        """Its name among the terms."""
        return self._name

    @property
    def groups(self) -> Mapping[str, ParameterGroup]:
        """The discriminator's parameters, with an optimiser of their own."""
        return self._groups

    def columns(self) -> Mapping[str, TensorSpec]:
        """Return the info columns that the features read."""
        return self.features.columns()

    # -- the reward ----------------------------------------------------------------------------------------------------

    def reward_names(self) -> tuple[str, ...]:
        """Return the style reward, and what brings the env's own to its weight where that is not 1."""
        return ("style_reward",) if self.config.task_weight == 1.0 else ("task_reward_correction", "style_reward")

    @torch.no_grad()
    def reward(self, read: Read) -> dict[str, Tensor]:
        """Return the style reward, and what brings the env's own to its weight."""
        columns, config = read.columns, self.config
        steps = rollout_steps(columns, read.last_obs)
        rows, known = self._rows(steps)
        style = self._style(rows, known)
        if self.features.wants_following:
            style = _mended(style, known, columns["terminated"] | columns["truncated"])
        if config.absorbing:
            assert steps.terminated is not None
            style = style + torch.where(steps.terminated, self._absorbing_value(), 0.0)
        valid, task = columns["valid"], columns["rew"]
        found: dict[str, Tensor] = {}
        if config.task_weight != 1.0:
            # first in the sum: with a weight of 0, what is left of the env's is exactly 0 before the style is added
            found["task_reward_correction"] = torch.where(valid, (config.task_weight - 1.0) * task, 0.0)
        found["style_reward"] = torch.where(valid, config.style_weight * style, 0.0).to(task.dtype)
        return found

    def _style(self, rows: Tensor, counts: Tensor) -> Tensor:
        score = self.judge.score(self.judge.seen(rows, counts))
        return torch.where(counts, style_reward(self.config.reward, score), 0.0)

    def _absorbing_value(self) -> Tensor:
        """Return gamma / (1 - gamma) times the reward of the absorbing state, a 0-d tensor."""
        row = self._absorbing_rows(1)
        style = self._style(row, torch.ones_like(row[:, 0], dtype=torch.bool))[0]
        return self.config.gamma / (1.0 - self.config.gamma) * style

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _rows(self, steps: Steps) -> tuple[Tensor, Tensor]:
        """Return raw features [..., F], with the indicator where there is one, and which of them are known."""
        pairs = self.features.wants_following
        if pairs and steps.following is None:
            raise ValueError(
                f"term {self.name!r} looks at what followed a step, which minibatches of a rollout do not have; "
                "set replay_size, so that it learns from earlier rollouts"
            )
        known = steps.valid
        if not self.config.absorbing:
            return self.features(steps), known & steps.follows if pairs else known
        ended = steps.terminated
        if ended is None:
            raise ValueError(
                f"term {self.name!r} with absorbing states must know which steps terminated, which minibatches of a "
                "rollout do not say; set replay_size, so that it learns from earlier rollouts"
            )
        indicator = torch.zeros_like(ended)
        if pairs:
            assert steps.following is not None
            following = {name: _zero_where(ended, value) for name, value in steps.following.items()}
            steps = steps._replace(following=following, follows=steps.follows | ended)
            indicator, known = ended, known & steps.follows
        rows = self.features(steps)
        return torch.cat([rows, indicator.unsqueeze(-1).to(rows.dtype)], dim=-1), known

    def _absorbing_rows(self, count: int) -> Tensor:
        """Return rows [count, F] of the absorbing state."""
        rows = torch.zeros(count, self.judge.normalizer.mean.shape[0], device=self.judge.num_absorbed.device)
        rows[:, -1] = 1.0
        return rows

    def _policy_side(self, minibatch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return policy rows [B', F] and which of them count."""
        if self.config.replay_size:
            count = minibatch["valid"].numel()
            numbers = self._numbers(_STREAMS["policy"], minibatch, count)
            rows, ended, counts = self.judge.draw_earlier(numbers)
        else:
            steps = minibatch_steps(minibatch)._replace(valid=collected(minibatch))
            rows, counts = self._rows(steps)
            rows, counts = rows.reshape(-1, rows.shape[-1]), counts.flatten()
            ended = torch.zeros_like(counts) if steps.terminated is None else steps.terminated.flatten()
        if not self.config.absorbing:
            return rows, counts
        return torch.cat([rows, self._absorbing_rows(len(rows))]), torch.cat([counts, counts & ended])

    def _expert_side(self, minibatch: Mapping[str, Any], count: int) -> Tensor:
        """Return expert rows [count, F], absorbing ones among them as often as its tasks ended."""
        drawn = self.expert.draw(self._numbers(_STREAMS["expert"], minibatch, count))
        if not self.config.absorbing:
            return drawn
        steps, ends = len(self.expert.features), self.expert.num_ends
        absorbs = self._numbers(_STREAMS["absorbing"], minibatch, count) < ends / (steps + ends)
        plain = torch.cat([drawn, torch.zeros_like(drawn[:, :1])], dim=-1)
        return torch.where(absorbs.unsqueeze(-1), self._absorbing_rows(count), plain)

    def _numbers(self, stream: int, minibatch: Mapping[str, Any], count: int) -> Tensor:
        """Return uniform numbers [count] that the minibatch and the number of the iteration decide.

        So the loss is a function of what is given, which can be captured and repeated, and nothing has to be counted.
        """
        return uniform_numbers(stream, fingerprint(minibatch) + self.judge.num_absorbed, count, self.config.seed)

    # -- learning ------------------------------------------------------------------------------------------------------

    def losses(self, minibatch: Mapping[str, Any], out: PolicyOutput) -> Losses:
        """Return how badly the two sides are told apart, and the penalty; nothing here reaches the policy."""
        config, judge = self.config, self.judge
        policy, counts = self._policy_side(minibatch)
        expert = self._expert_side(minibatch, len(policy))
        # as many expert samples count as policy samples could; with no policy sample at all, nothing is learned
        any_policy = counts.any().expand(len(expert))
        seen_policy, seen_expert = judge.seen(policy.detach(), counts), judge.seen(expert, any_policy)
        of_policy, of_expert = judge.score(seen_policy), judge.score(seen_expert)
        found: Losses = {
            "discriminator_expert_loss": (1.0, valid_mean(expert_loss(config.loss, of_expert), any_policy)),
            "discriminator_policy_loss": (1.0, valid_mean(policy_loss(config.loss, of_policy), counts)),
        }
        if config.gradient_penalty:
            at, where = seen_expert, any_policy
            if config.penalty_at == "between":
                way = self._numbers(_STREAMS["way"], minibatch, len(expert)).unsqueeze(-1).to(seen_expert.dtype)
                at, where = seen_policy + way * (seen_expert - seen_policy), counts
            slope = squared_slope(judge.score, at, config.wanted_slope)
            found["discriminator_gradient_penalty"] = (config.gradient_penalty, valid_mean(slope, where))
        right = valid_mean((of_expert.detach() > 0.0).float(), any_policy)
        right = 0.5 * (right + valid_mean((of_policy.detach() < 0.0).float(), counts))
        found["discriminator_accuracy"] = (0.0, right)
        return found

    @torch.no_grad()
    def absorb(self, columns: Mapping[str, Any]) -> None:
        """Let the normaliser learn from raw features of both sides, as much of each; keep policy samples."""
        steps = rollout_steps(columns)
        rows, counts = self._rows(steps)
        rows, counts = rows.reshape(-1, rows.shape[-1]), counts.flatten()
        counts = counts & rows.isfinite().all(dim=-1)
        self.judge.normalizer.update(rows, counts)
        mean, var = self._expert_moments()
        count, reduce = counts.sum(dtype=torch.float64), current_all_reduce()
        # as many as all processes have seen of the policy, so that their normalisers stay equal
        self.judge.normalizer.update_from_moments(mean, var, count if reduce is None else reduce(count))
        self.judge.num_absorbed += 1
        if self.config.replay_size:
            ended = torch.zeros_like(counts) if steps.terminated is None else steps.terminated.flatten()
            self.judge.keep(rows, ended, counts)

    def _expert_moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the expert's rows; the indicator of one side is that of absorbing rows."""
        mean, var = self.expert.mean, self.expert.var
        if self.config.absorbing:
            # 0.5 ± 0.5: zeros and ones stay apart, however rare ends are
            mean, var = torch.cat([mean, mean.new_full((1,), 0.5)]), torch.cat([var, var.new_full((1,), 0.25)])
        return mean, var

    def state_dict(self) -> dict[str, Any]:
        """Return discriminator, normaliser, earlier samples and the count of iterations."""
        return dict(tree.copy(dict(self.judge.state_dict())))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what was saved."""
        self.judge.load_state_dict(state)


def _mended(style: Tensor, known: Tensor, done: Tensor) -> Tensor:
    """Return rewards [T, N] with that of the step before, in the same episode, where a step's own is not known."""
    before = torch.cat([torch.zeros_like(style[:1]), style[:-1]])
    usable = torch.cat([torch.zeros_like(known[:1]), known[:-1] & ~done[:-1]])
    return torch.where(known, style, torch.where(usable, before, 0.0))


def _zero_where(condition: Tensor, value: Tensor) -> Tensor:
    """Return value [..., …] with zeros where the condition [...] is true."""
    shaped = condition.view(*condition.shape, *[1] * (value.dim() - condition.dim()))
    return torch.where(shaped, torch.zeros_like(value), value)
