"""Proximal policy optimisation (Schulman et al. 2017), as used on thousands of simulated robots.

    rollout [T, N] ──prepare──▶ values of what followed, GAE ──▶ minibatches ──losses──▶ Updater ──▶ learning-rate rule
                                                                  │  flat rows, or whole env columns with memory
                                                                  └─ ratio of the first minibatch is exactly 1

Read it top to bottom: `prepare` once per rollout, `losses` for each minibatch, `update` ties them together. The maths
is in `striderl.ops`, running a gradient step in `striderl.execution`. What is learned beside it (novelty, estimators,
symmetry) is handed over as `terms`: their rewards are added in `prepare`, their losses in `losses`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.algorithms.on_policy_targets import Losses, finite_rows, next_values, zero_where_not
from striderl.algorithms.terms.term import Read, Term, collected
from striderl.algorithms.terms.term_list import TermList
from striderl.data import tree
from striderl.data.checked_fields import check_field_types
from striderl.data.naming import unknown
from striderl.execution.updater import GroupConfig, ParameterGroup, Updater
from striderl.ops.losses import (
    adapted_learning_rate,
    clipped_surrogate,
    explained_variance,
    normalised,
    valid_mean,
    value_loss,
)
from striderl.ops.returns import gae
from striderl.policies.policy import Policy, PolicyOutput
from striderl.storage.rollout import RolloutStorage

SCHEDULES = ("fixed", "adaptive")


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of PPO."""

    num_learning_epochs: int = 5
    """Passes over each rollout."""
    num_mini_batches: int = 4
    """Minibatches per pass."""
    clip_param: float = 0.2
    """The ratio is kept in [1 - clip_param, 1 + clip_param]; 0.1 to 0.3 is usual."""
    gamma: float = 0.99
    """Discount per step."""
    lam: float = 0.95
    """GAE's lambda: 0 trusts the values, 1 the rewards."""
    value_loss_coef: float = 1.0
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    learning_rate: float = 1e-3
    """The first learning rate; the adaptive schedule moves it."""
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this norm; 0 means never."""
    use_clipped_value_loss: bool = True
    """Keep new values within clip_param of the old ones."""
    schedule: str = "adaptive"
    """'fixed', or 'adaptive': the learning rate follows desired_kl."""
    desired_kl: float = 0.01
    """What the adaptive schedule aims at per minibatch."""
    normalize_advantage_per_mini_batch: bool = False
    """Normalise advantages over each minibatch instead of over the whole rollout."""
    optimizer_class_name: str = "Adam"
    """Which optimiser."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(unknown("schedule", self.schedule, SCHEDULES, where="PPOConfig"))
        check_field_types(self)
        if self.num_mini_batches < 1 or self.num_learning_epochs < 1:
            raise ValueError(
                "num_mini_batches and num_learning_epochs are at least 1, "
                f"found {self.num_mini_batches} and {self.num_learning_epochs}"
            )
        if not (0.0 <= self.gamma <= 1.0 and 0.0 <= self.lam <= 1.0):
            raise ValueError(f"gamma and lam are between 0 and 1, found {self.gamma} and {self.lam}")
        if self.learning_rate <= 0.0 or self.clip_param <= 0.0:
            raise ValueError(
                f"learning_rate and clip_param are positive, found {self.learning_rate} and {self.clip_param}"
            )


class Prepared(NamedTuple):
    """A rollout with its targets, [T, N, …] each; numbers are zero in samples that are not valid."""

    columns: Mapping[str, Any]
    """What was stored."""
    act: Any
    """What was done: a tensor, or a dict of them."""
    log_prob: Tensor
    """Of the actions, when they were chosen."""
    value: Tensor
    """Predicted when the actions were chosen."""
    returns: Tensor
    """What the values should have been."""
    advantage: Tensor
    """How much better the actions were than expected."""
    resets: Tensor
    """True where a new episode begins, before that step is consumed."""
    readable: Tensor
    """False where a sample is not valid and its observation is not finite: no network may read it."""
    info: dict[str, Tensor]
    """The info columns that terms asked for."""
    numbers: dict[str, Tensor]
    """What the terms want logged of this rollout, such as the mean of each reward they added."""
    initial_state: dict[str, Tensor]
    """The policy's memory before the first step, [N, …] each; empty when it has none."""


class PPO:
    """Losses, targets and the update of PPO for a policy."""

    def __init__(self, policy: Policy, config: PPOConfig | None = None, terms: Sequence[Term] = ()) -> None:
        """Take the parameters of the policy and of the terms into an updater."""
        self.policy = policy
        self.terms = TermList(terms, policy)
        self.config = config = config or PPOConfig()
        group = GroupConfig(
            optimizer=config.optimizer_class_name,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
        )
        self.updater = Updater({"policy": ParameterGroup(policy.parameters(), group), **self.terms.groups()})

    @property
    def num_updates_per_rollout(self) -> int:
        """How many gradient steps one rollout is used for."""
        return self.config.num_learning_epochs * self.config.num_mini_batches

    def check_rollout(self, num_steps: int, num_envs: int) -> None:
        """Raise unless rollouts of this size can be cut into the minibatches of the config."""
        recurrent = bool(self.policy.state_spec())
        count = num_envs if recurrent else num_steps * num_envs
        if count < self.config.num_mini_batches:
            what = f"{num_envs} envs, which a policy with memory takes whole" if recurrent else f"{count} samples"
            raise ValueError(
                f"num_mini_batches={self.config.num_mini_batches} cannot be made of {what}; "
                f"set it to {count} or less, or use more {'envs' if recurrent else 'envs or steps'}"
            )

    # -- once per rollout ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(
        self,
        storage: RolloutStorage,
        *,
        initial_state: dict[str, Tensor],
        last_obs: Mapping[str, Tensor],
        last_state: Mapping[str, Tensor],
    ) -> Prepared:
        """Add the terms' rewards, value what followed each step and work out returns and advantages."""
        data = storage.data
        info, added = self.terms.info(data), self.terms.rewards(Read(data, last_obs))
        reward = sum(added.values(), start=data["rew"])
        value = data["policy"]["value"]
        next_value = next_values(self.policy, storage, last_obs, last_state)
        returns, advantage = gae(
            reward if value.dim() == 2 else reward.unsqueeze(-1),
            value,
            next_value,
            data["terminated"],
            data["truncated"],
            gamma=self.config.gamma,
            lam=self.config.lam,
            valid=data["valid"],
        )
        valid = data["valid"]
        advantage = advantage if advantage.dim() == 2 else advantage.sum(dim=-1)
        if not self.config.normalize_advantage_per_mini_batch:
            advantage = normalised(advantage, valid)
        done = data["terminated"] | data["truncated"]
        return Prepared(
            columns=data,
            act=tree.map(lambda leaf: zero_where_not(leaf, valid), data["act"]),
            log_prob=zero_where_not(data["policy"]["log_prob"], valid),
            value=zero_where_not(value, valid),
            returns=zero_where_not(returns, valid),
            advantage=advantage,
            resets=torch.cat([torch.zeros_like(done[:1]), done[:-1]]),
            readable=valid | finite_rows(data["obs"], valid),
            initial_state=initial_state,
            info=info,
            numbers=self.terms.numbers(added, valid),
        )

    # -- minibatches ---------------------------------------------------------------------------------------------------

    def minibatches(self, prepared: Prepared, generator: torch.Generator) -> Iterator[dict[str, Any]]:
        """Yield minibatches: rows in a fresh order each epoch, or whole env columns when the policy has memory."""
        recurrent = bool(prepared.initial_state)
        whole = self._whole(prepared)
        num_steps, num_envs = prepared.advantage.shape
        self.check_rollout(num_steps, num_envs)
        count = num_envs if recurrent else num_steps * num_envs
        if not recurrent:
            whole = tree.map(lambda leaf: leaf.flatten(0, 1), whole)
        for _ in range(self.config.num_learning_epochs):
            order = torch.randperm(count, generator=generator).to(prepared.advantage.device)
            for part in order.tensor_split(self.config.num_mini_batches):
                if recurrent:
                    minibatch = tree.map(lambda leaf, part=part: leaf[:, part], whole)
                    minibatch["state"] = tree.map(lambda leaf, part=part: leaf[part], prepared.initial_state)
                    yield minibatch
                else:
                    yield {**tree.map(lambda leaf, part=part: leaf[part], whole), "state": {}}

    @staticmethod
    def _whole(prepared: Prepared) -> dict[str, Any]:
        stored = prepared.columns["policy"]
        return {
            "obs": prepared.columns["obs"],
            "act": prepared.act,
            "valid": prepared.columns["valid"],
            "dist": stored["dist"],
            "memo": stored["memo"],
            "log_prob": prepared.log_prob,
            "value": prepared.value,
            "returns": prepared.returns,
            "advantage": prepared.advantage,
            "resets": prepared.resets,
            "readable": prepared.readable,
            "info": prepared.info,
        }

    # -- one minibatch -------------------------------------------------------------------------------------------------

    def losses(self, minibatch: dict[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return name → (weight, loss), those of the terms last, and numbers for the log."""
        minibatch = self.terms.extend(minibatch)
        config, valid = self.config, minibatch["valid"]
        # a sample that does not count may still have been seen by the memory, so it is run unless it cannot be
        resets = minibatch["resets"] if valid.dim() == 2 else None
        output = self.policy(minibatch["obs"], minibatch["state"], minibatch["memo"], resets, minibatch["readable"])
        advantage = minibatch["advantage"]
        if config.normalize_advantage_per_mini_batch:
            advantage = normalised(advantage, valid)
        # chosen before exp: what overflows in a sample that does not count would come back as zero times infinity
        log_prob = torch.where(valid, output.distribution.log_prob(minibatch["act"]), minibatch["log_prob"])
        surrogate, ratio = clipped_surrogate(log_prob, minibatch["log_prob"], advantage, config.clip_param, valid)
        clip = config.clip_param if config.use_clipped_value_loss else None
        value = value_loss(output.value, minibatch["value"], minibatch["returns"], clip, valid)
        entropy = valid_mean(output.distribution.entropy(), valid)
        losses: Losses = {
            "surrogate_loss": (1.0, surrogate),
            "value_loss": (config.value_loss_coef, value),
            "entropy": (config.entropy_coef, -entropy),
        }
        losses |= self.terms.losses(minibatch, output, losses)
        return losses, {"entropy": entropy.detach(), **self._statistics(minibatch, output, ratio)}

    @torch.no_grad()
    def _statistics(self, minibatch: Mapping[str, Any], output: PolicyOutput, ratio: Tensor) -> dict[str, Tensor]:
        """Return how far the policy has moved and how good the values are, on samples that were collected."""
        counted = collected(minibatch)
        old = self.policy.head.from_params(minibatch["dist"])
        several = output.value.dim() > counted.dim()
        stats = {
            "kl": valid_mean(old.kl(output.distribution), counted),
            "clip_fraction": valid_mean(((ratio - 1.0).abs() > self.config.clip_param).float(), counted),
            "explained_variance": ratio.new_zeros(())
            if several
            else explained_variance(output.value, minibatch["returns"], counted),
            "ratio_error": torch.where(counted, (ratio - 1.0).abs(), 0.0).amax(),
        }
        parameters = output.distribution.params()
        if "std" in parameters:
            stats["std"] = parameters["std"].mean()
        return stats

    # -- the whole update ----------------------------------------------------------------------------------------------

    def update(self, prepared: Prepared, generator: torch.Generator) -> dict[str, Tensor]:
        """Learn from a prepared rollout; return the means over all minibatches, as tensors."""
        self.updater.attach()
        group = self.updater.groups["policy"]
        totals: dict[str, Tensor] = {}
        count = 0
        for minibatch in self.minibatches(prepared, generator):
            losses, stats = self.losses(minibatch)
            if self.config.schedule == "adaptive":
                rate = adapted_learning_rate(group.learning_rate, stats["kl"], self.config.desired_kl)
                group.learning_rate.copy_(rate)
            norms = self.updater.step(losses)
            numbers = {
                **{name: loss.detach() for name, (_, loss) in losses.items() if name != "entropy"},
                **stats,
                **{"grad_norm" if name == "policy" else f"{name}_grad_norm": norm for name, norm in norms.items()},
            }
            if not count:
                totals["first_ratio_error"] = numbers["ratio_error"]
            for name, number in numbers.items():
                totals[name] = totals[name] + number if name in totals else number.clone()
            count += 1
        first = totals.pop("first_ratio_error")
        means = {name: total / count for name, total in totals.items()}
        return {
            **prepared.numbers,
            **means,
            "first_ratio_error": first,
            "learning_rate": group.learning_rate.clone(),
            "skipped_updates": torch.stack([each.num_skipped for each in self.updater.groups.values()]).sum(),
        }

    @torch.no_grad()
    def absorb(self, columns: Mapping[str, Any]) -> None:
        """Let the normalisers learn from stored columns, after the last minibatch: the next first ratio is 1 again."""
        self.policy.absorb(columns["obs"], columns["valid"])
        self.terms.absorb(columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the policy, the terms and their optimisers, as copies: training goes on without changing them."""
        return {
            "policy": tree.copy(dict(self.policy.state_dict())),
            "updater": self.updater.state_dict(),
            "terms": self.terms.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved policy, terms and optimisers."""
        self.policy.load_state_dict(state["policy"])
        self.updater.load_state_dict(state["updater"])
        self.terms.load_state_dict(state.get("terms", {}))
