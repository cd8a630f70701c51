"""`AdversarialReward`: a reward for behaviour like the expert's (GAIL, Ho and Ermon 2016), on PPO and on replay alike.

    step ─▶ features ─▶ normalise ─▶ discriminator ─▶ score d ─▶ style reward, added to task_weight · env's
    expert rows ─────▶ the same ───▶ the same ──────▶ loss: classify the two sides; gradient penalty on its input

The reward is computed when steps are read, never stored: it always uses the present discriminator. The
discriminator has an optimiser of its own and no part in the policy. One normaliser serves both sides; updated once
per iteration from raw features of both, and not when it is read.

Features that minibatches of a rollout do not contain (next observations, ends) are computed once, as `labels`, when the
whole rollout is available, and stored with the samples.

With `absorbing` (Kostrikov et al. 2019) features have one more indicator. A task that ends continues for ever in an
absorbing state: zeros with the indicator 1, which the discriminator gets from both sides. The reward of a step that
terminated has gamma / (1 - gamma) times the absorbing state's with it, so that ending is worth the same on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from striderl.algorithms.building import DISCRIMINATOR_SEED, BuildContext
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.terms.discriminator import (
    AdversarialConfig,
    Features,
    Judge,
    StateAction,
    StatePair,
    Steps,
    mended,
    minibatch_steps,
    rollout_steps,
)
from striderl.algorithms.terms.expert import (
    EnvExpert,
    Expert,
    ExpertRows,
    expert_rows,
    fingerprint,
    order_fingerprint,
    places,
    uniform_numbers,
)
from striderl.algorithms.terms.term import Read, Term, collected
from striderl.data import tree
from striderl.data.noise import stream_id
from striderl.data.specs import TensorSpec
from striderl.execution.updater import GroupConfig, ParameterGroup
from striderl.ops.imitation import expert_loss, policy_loss, style_reward
from striderl.ops.losses import valid_mean
from striderl.ops.moments import any_of_all, current_all_reduce
from striderl.policies.policy import PolicyOutput
from striderl.storage.replay.replay import Replay

__all__ = ["AdversarialConfig", "AdversarialReward"]

_STREAMS = {name: stream_id(f"adversarial {name}") for name in ("expert", "policy", "choice", "absorbing", "way")}
"""Random numbers for one purpose each."""


class _Rows(NamedTuple):
    """One side of a comparison."""

    rows: Tensor
    """Raw features [B, F]."""
    counts: Tensor
    """bool [B]: which of them are valid."""
    ended: Tensor
    """bool [B]: where the task ended."""


@dataclass(frozen=True, kw_only=True)
class AdversarialTermConfig(AdversarialConfig):
    """Settings of an adversarial reward by name: with the features to read."""

    components: tuple[str, ...] = ("policy",)
    """Components or groups of the observation that the discriminator reads."""
    features: Literal["state_action", "state_pair"] = "state_action"
    """The parts of a step it reads: the observation and the action, or the observations before and after."""


class AdversarialReward(Term):
    """Rewards similarity to an expert, and trains the discriminator between expert and policy."""

    Config: ClassVar[type[Any]] = AdversarialTermConfig
    summary = "rewards steps that a discriminator takes for an expert's (--expert)"

    @classmethod
    def build(cls, config: Any, context: BuildContext) -> AdversarialReward:
        """Build the term from its config and the run's expert, a dataset."""
        features: Features
        if config.features == "state_action":
            features = StateAction(context.obs_spec, context.action_spec, config.components)
        else:
            features = StatePair(context.obs_spec, config.components)
        expert = context.load("expert")
        if isinstance(expert, Replay):
            expert = expert_rows(expert, features)
        if not isinstance(expert, ExpertRows):
            raise TypeError(f"an adversarial reward wants a dataset as the expert, found {type(expert).__name__}")
        with context.seeded(DISCRIMINATOR_SEED):
            return AdversarialReward(features, expert, config, device=context.device)

    capturable = True
    learns_in_ranks = True

    def __init__(
        self,
        features: Features,
        expert: Expert | EnvExpert,
        config: AdversarialConfig | None = None,
        *,
        network: nn.Module | None = None,
        device: torch.device | str = "cpu",
        name: str = "adversarial",
    ) -> None:
        """Set the features, the expert, and optionally a custom network [..., F] to [...]."""
        self.config = config = config or AdversarialConfig()
        if expert.size != features.size:
            raise ValueError(f"the expert's rows have {expert.size} features, the policy's steps {features.size}")
        if config.absorbing and not isinstance(expert, ExpertRows):
            raise ValueError("absorbing states want an expert whose ends are known: ExpertRows(…, num_ends=…)")
        self.features, self._name = features, name
        self.expert = expert if isinstance(expert, EnvExpert) else expert.to(device)
        self.judge = Judge(features.size + int(config.absorbing), config, network).to(device)
        if not isinstance(self.expert, EnvExpert):
            # a prior of one sample: the first thousands of both sides outweigh it
            self.judge.normalizer.update_from_moments(*self._expert_moments(self.expert), 1.0)
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
        """Return the info columns that the features read, and the expert's where the env provides it."""
        expert = {self.expert.column: self.expert.spec} if isinstance(self.expert, EnvExpert) else {}
        return {**self.features.columns(), **expert}

    def following(self) -> tuple[str, ...]:
        """Return the components that the features read after a step."""
        return self.features.following

    # -- the reward ----------------------------------------------------------------------------------------------------

    def reward_names(self) -> tuple[str, ...]:
        """Return the style reward, and a correction that weights the env's own reward if its weight is not 1."""
        return ("style_reward",) if self.config.task_weight == 1.0 else ("task_reward_correction", "style_reward")

    @torch.no_grad()
    def reward(self, read: Read) -> dict[str, Tensor]:
        """Return the style reward, and a correction that weights the env's own reward."""
        columns, config = read.columns, self.config
        steps = rollout_steps(columns, read.last_obs)
        rows, known = self._rows(steps)
        style = self._style(rows, known)
        if self.features.following:
            style = mended(style, known, columns["terminated"] | columns["truncated"])
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

    def labels(self, read: Read) -> dict[str, Tensor]:
        """Return the number of each step and, where minibatches do not contain them, its features."""
        found = {"place": places(read.columns["valid"])}
        if not (self.features.following or self.config.absorbing):
            return found
        rows, known = self._rows(rollout_steps(read.columns, read.last_obs))
        return {**found, "rows": rows, "known": known, "ended": read.columns["terminated"]}

    def _rows(self, steps: Steps) -> tuple[Tensor, Tensor]:
        """Return raw features [..., F], with the indicator where there is one, and which of them are known."""
        if self.features.following and steps.following is None:
            raise ValueError(
                f"term {self.name!r} looks at what followed a step, which these samples do not tell; minibatches of "
                "PPO have it under 'labels', those of replay under 'obs_next'"
            )
        if not self.config.absorbing:
            return self.features(steps), self.features.known(steps)
        ended = steps.terminated
        if ended is None:
            raise ValueError(
                f"term {self.name!r} with absorbing states must know which steps terminated, which these samples do "
                "not tell; minibatches of PPO have it under 'labels', those of replay under 'terminated'"
            )
        indicator = torch.zeros_like(ended)
        if self.features.following:
            assert steps.following is not None
            following = {name: _zero_where(ended, value) for name, value in steps.following.items()}
            steps = steps._replace(following=following, follows=steps.follows | ended)
            indicator = ended
        rows = self.features(steps)
        return torch.cat([rows, indicator.unsqueeze(-1).to(rows.dtype)], dim=-1), self.features.known(steps)

    def _absorbing_rows(self, count: int) -> Tensor:
        """Return rows [count, F] of the absorbing state."""
        rows = torch.zeros(count, self.judge.normalizer.mean.shape[0], device=self.judge.num_absorbed.device)
        rows[:, -1] = 1.0
        return rows

    def policy_side(self, minibatch: Mapping[str, Any], number: Tensor) -> tuple[Tensor, Tensor]:
        """Return policy rows [B', F] and which of them are valid; `number` seeds the draw."""
        rows, counts, ended = self._minibatch_rows(minibatch)
        if self.config.replay_size:
            valid = collected(minibatch).flatten()
            rows, counts, ended = self._with_earlier(_Rows(rows, counts, ended), valid, number)
        if not self.config.absorbing:
            return rows, counts
        return torch.cat([rows, self._absorbing_rows(len(rows))]), torch.cat([counts, counts & ended])

    def _minibatch_rows(self, minibatch: Mapping[str, Any]) -> _Rows:
        """Return the samples' own features: from their labels, or computed from the samples."""
        counted, labels = collected(minibatch), self._labels_of(minibatch)
        if "rows" in labels:
            rows, counts, ended = labels["rows"], labels["known"] & counted, labels["ended"]
        else:
            steps = minibatch_steps(minibatch)._replace(valid=counted)
            rows, counts = self._rows(steps)
            ended = torch.zeros_like(counts) if steps.terminated is None else steps.terminated
        return _Rows(rows.reshape(-1, rows.shape[-1]), counts.flatten(), ended.flatten())

    def _labels_of(self, minibatch: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Return the `labels` of these samples; samples of a replay have none."""
        found: Mapping[str, Tensor] = minibatch.get("labels", {}).get(self.name, {})
        return found

    def _with_earlier(self, own: _Rows, valid: Tensor, number: Tensor) -> _Rows:
        """Return rows of which a part is drawn from earlier policy samples, as soon as there are some."""
        count = len(own.rows)
        drawn, drawn_ended, there = self.judge.draw_earlier(self._uniform("policy", number, count))
        chosen = there & valid & (self._uniform("choice", number, count) < self.config.replay_share)
        rows = torch.where(chosen.unsqueeze(-1), drawn, own.rows)
        return _Rows(rows, own.counts | chosen, torch.where(chosen, drawn_ended, own.ended))

    def expert_side(self, minibatch: Mapping[str, Any], number: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return expert rows [count, F] and which of them are valid; absorbing ones are as frequent as its ends."""
        if isinstance(self.expert, EnvExpert):
            counted = collected(minibatch)
            shown = self.expert.rows(minibatch["info"], counted.shape).flatten(0, -2)
            return shown, counted.flatten() & shown.isfinite().all(dim=-1)
        drawn = self.expert.draw(self._uniform("expert", number, count))
        place = self._labels_of(minibatch).get("place")
        every = torch.ones_like(drawn[:, 0], dtype=torch.bool)
        if place is not None and place.numel() == count:
            every = place.flatten() != 0  # rows that fill a minibatch up to the size of others are at no place
        if not self.config.absorbing:
            return drawn, every
        assert isinstance(self.expert, ExpertRows), "the constructor has looked"
        steps, ends = len(self.expert.features), self.expert.num_ends
        absorbs = self._uniform("absorbing", number, count) < ends / (steps + ends)
        plain = torch.cat([drawn, torch.zeros_like(drawn[:, :1])], dim=-1)
        return torch.where(absorbs.unsqueeze(-1), self._absorbing_rows(count), plain), every

    def _number(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Return a whole number, 0-d, derived from the minibatch and the iteration, as a seed for draws.

        So the loss is a pure function of its inputs, which can be captured and repeated, and nothing has to be counted.
        """
        labels = self._labels_of(minibatch)
        own = order_fingerprint(labels["place"]) if labels else fingerprint(minibatch)
        return own + self.judge.num_absorbed

    def _uniform(self, purpose: str, number: Tensor, count: int) -> Tensor:
        """Return uniform numbers [count] for one purpose."""
        return uniform_numbers(_STREAMS[purpose], number, count, self.config.seed)

    # -- learning ------------------------------------------------------------------------------------------------------

    def losses(self, minibatch: Mapping[str, Any], out: PolicyOutput) -> Losses:
        """Return the discriminator loss and the penalty; no gradient reaches the policy."""
        config, judge, number = self.config, self.judge, self._number(minibatch)
        policy, counts = self.policy_side(minibatch, number)
        expert, there = self.expert_side(minibatch, number, len(policy))
        # if one side has no valid sample, neither side is used
        counts, there = counts & any_of_all(there), there & any_of_all(counts)
        seen_policy, seen_expert = judge.seen(policy.detach(), counts), judge.seen(expert.detach(), there)
        of_policy, of_expert = judge.score(seen_policy), judge.score(seen_expert)
        found: Losses = {
            "discriminator_expert_loss": (config.loss_weight, valid_mean(expert_loss(config.loss, of_expert), there)),
            "discriminator_policy_loss": (config.loss_weight, valid_mean(policy_loss(config.loss, of_policy), counts)),
        }
        if config.gradient_penalty:
            at, where = seen_expert, there
            if config.penalty_at == "between":
                way = self._uniform("way", number, len(expert)).unsqueeze(-1).to(seen_expert.dtype)
                at, where = seen_policy + way * (seen_expert - seen_policy), counts & there
            penalty = valid_mean(judge.slope_penalty(at, config.wanted_slope), where)
            found["discriminator_gradient_penalty"] = (config.loss_weight * config.gradient_penalty, penalty)
        return found | self._numbers_for_the_log(found, (of_policy, counts), (of_expert, there))

    @torch.no_grad()
    def _numbers_for_the_log(
        self, losses: Losses, policy: tuple[Tensor, Tensor], expert: tuple[Tensor, Tensor]
    ) -> Losses:
        """Return the whole loss, mean scores and the accuracy of the discriminator, as losses without weight."""
        total = sum((weight * loss.detach() for weight, loss in losses.values()), start=torch.zeros_like(policy[0][0]))
        means = [valid_mean(score, counts) for score, counts in (policy, expert)]
        # the scores of a Wasserstein critic have no origin: the threshold is the middle between the two sides
        middle = 0.5 * (means[0] + means[1]) if self.config.loss == "wasserstein" else torch.zeros_like(means[0])
        right = valid_mean((policy[0] < middle).float(), policy[1]) + valid_mean(
            (expert[0] > middle).float(), expert[1]
        )
        return {
            "discriminator_loss": (0.0, total),
            "discriminator_accuracy": (0.0, 0.5 * right),
            "discriminator_policy_score": (0.0, means[0]),
            "discriminator_expert_score": (0.0, means[1]),
        }

    @torch.no_grad()
    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the normaliser from raw features of both sides in equal parts; store policy samples."""
        steps = rollout_steps(columns)
        rows, counts = self._rows(steps)
        rows, counts = rows.reshape(-1, rows.shape[-1]), counts.flatten()
        counts = counts & rows.isfinite().all(dim=-1)
        normalizer = self.judge.normalizer
        normalizer.update(rows, counts)
        if isinstance(self.expert, EnvExpert):
            shown = self.expert.rows(steps.info, steps.valid.shape).flatten(0, -2)
            normalizer.update(shown, steps.valid.flatten() & shown.isfinite().all(dim=-1))
        else:
            count, reduce = counts.sum(dtype=torch.float64), current_all_reduce()
            # as many as all processes have seen of the policy, so that their normalisers stay equal
            total = count if reduce is None else reduce(count)
            normalizer.update_from_moments(*self._expert_moments(self.expert), total)
        self.judge.num_absorbed += 1
        if self.config.replay_size:
            ended = torch.zeros_like(counts) if steps.terminated is None else steps.terminated.flatten()
            self.judge.keep(rows, ended, counts)

    def _expert_moments(self, expert: Expert) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the expert's rows; the indicator of one side is that of absorbing rows."""
        mean, var = expert.mean, expert.var
        if self.config.absorbing:
            # 0.5 ± 0.5: zeros and ones stay apart, however rare ends are
            mean, var = torch.cat([mean, mean.new_full((1,), 0.5)]), torch.cat([var, var.new_full((1,), 0.25)])
        return mean, var

    def state_dict(self) -> dict[str, Any]:
        """Return discriminator, normaliser, earlier samples and the count of iterations."""
        return dict(tree.copy(dict(self.judge.state_dict())))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.judge.load_state_dict(state)


def _zero_where(condition: Tensor, value: Tensor) -> Tensor:
    """Return value [..., …] with zeros where the condition [...] is true."""
    shaped = condition.view(*condition.shape, *[1] * (value.dim() - condition.dim()))
    return torch.where(shaped, torch.zeros_like(value), value)
