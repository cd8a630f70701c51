"""BCQ for choices (Fujimoto et al. 2019): DQN restricted to choices that are likely under the data.

head      Q-values, and how likely the data is to take each choice (its own output on the same features)
choice    the best Q-value among choices at least `threshold` times as likely as the likeliest
loss      DQN's + cross-entropy of the taken choice + a little on the size of the logits
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from striderl.algorithms.building import OFFLINE, BuildContext, refuse_terms
from striderl.algorithms.terms.term import Term
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, Judged, Seen
from striderl.data.actions import DiscreteSpec
from striderl.data.checked_fields import suggests_fields
from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec
from striderl.networks.distributions.base import register_distribution
from striderl.networks.distributions.categorical import masked_log_probs
from striderl.networks.distributions.deterministic import QValues
from striderl.networks.heads.base import NO_OBS, Head, read_mask
from striderl.ops.td import huber, td_target


@dataclass(frozen=True)
class ImitatedQ(QValues):
    """Q-values of likely choices, with the likelihoods behind them."""

    log_probs: Tensor
    """[..., n]: of each choice under the data."""
    logits: Tensor
    """[..., n], not normalised."""
    every_value: Tensor
    """[..., n]: Q-values of all choices, likely or not."""

    def value_of(self, action: Tensor) -> Tensor:
        """Return the Q-value of choices [...], whether they are likely or not."""
        return self.every_value.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


register_distribution(ImitatedQ)


class ImitatedQHead(Head[Tensor]):
    """Features to Q-values and likelihoods; unlikely choices are masked."""

    def __init__(self, input_size: int, num_actions: int, *, threshold: float, mask: str = "") -> None:
        super().__init__()
        if not 0.0 <= threshold <= 1.0:
            raise ValueError(f"threshold is between 0 and 1, found {threshold}")
        self.value_layer = nn.Linear(input_size, num_actions)
        self.imitation_layer = nn.Linear(input_size, num_actions)
        self.num_actions, self.threshold, self.mask = num_actions, threshold, mask
        self.mask_components = (mask,) if mask else ()

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> ImitatedQ:
        """Return the Q-values for features [..., F]."""
        values, logits = self.value_layer(features), self.imitation_layer(features)
        allowed = read_mask(obs, self.mask)
        log_probs = masked_log_probs(logits, allowed)
        likely = (log_probs - log_probs.amax(dim=-1, keepdim=True)).exp() >= self.threshold
        chosen = QValues.from_values(values, likely if allowed is None else likely & allowed.bool())
        return ImitatedQ(chosen.values, log_probs, logits, values)

    def noise_spec(self) -> NoiseSpec:
        """Return noise of size zero."""
        return NoiseSpec(shape=(0,), kind="normal")

    def params_spec(self) -> dict[str, TensorSpec]:
        """Store the Q-values."""
        return {"values": TensorSpec(shape=(self.num_actions,))}

    def from_params(self, params: Mapping[str, Tensor]) -> QValues:
        """Make the greedy choice over these values."""
        return QValues(params["values"])


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class BCQConfig(DQNConfig):
    """Settings of BCQ: those of DQN, and those of `Imitated`."""

    threshold: float = 0.3
    """How likely a choice must be, next to the likeliest; 0 is DQN, 1 behaviour cloning."""
    logit_penalty: float = 0.01
    """The weight of the size of the logits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.threshold <= 1.0 or self.logit_penalty < 0.0:
            raise ValueError(
                f"threshold is in [0, 1] and logit_penalty not negative, found {self.threshold} and "
                f"{self.logit_penalty}"
            )


class Imitated:
    """Learns Q-values of choices that are likely under the data; pass it to `q_policy` and `DQN`."""

    def __init__(self, *, threshold: float = 0.3, logit_penalty: float = 0.01) -> None:
        """Set the threshold relative to the likeliest choice, and the weight of the size of the logits."""
        self.threshold, self.logit_penalty = threshold, logit_penalty

    def head(self, input_size: int, action_spec: DiscreteSpec) -> Head[Any]:
        """Build Q-values and likelihoods."""
        return ImitatedQHead(input_size, action_spec.n, threshold=self.threshold, mask=action_spec.mask)

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing."""
        return {}

    def targets(self, seen: Seen, choice: Tensor | None, minibatch: Mapping[str, Any]) -> Tensor:
        """Return r + discount · Q'(s', a*) for the best likely a*."""
        slow: ImitatedQ = seen()
        chosen = slow.mode() if choice is None else choice
        return td_target(minibatch["rew"], minibatch["discount"], slow.value_of(chosen))

    def judge(self, seen: Seen, minibatch: Mapping[str, Any]) -> Judged:
        """Return the Huber loss, plus the cross-entropy of the taken choice."""
        values: ImitatedQ = seen()
        action = minibatch["act"].long().unsqueeze(-1)
        value = values.value_of(minibatch["act"])
        difference = value - minibatch["target"]
        imitation = -values.log_probs.gather(-1, action).squeeze(-1)
        size = torch.square(values.logits).mean(dim=-1)
        loss = huber(difference) + imitation + self.logit_penalty * size
        return Judged(loss, value.detach(), difference.detach().abs())


class BCQ(DQN):
    """Q-learning from a dataset, restricted to its likely choices."""

    Config: ClassVar[type[Any]] = BCQConfig
    summary = "Q-learning from a dataset among what it would choose, for choices"
    loop = OFFLINE
    takes_terms = False

    @classmethod
    def kind_of(cls, config: BCQConfig) -> Imitated:
        """Return Q-values and likelihoods."""
        return Imitated(threshold=config.threshold, logit_penalty=config.logit_penalty)

    @classmethod
    def build(cls, config: BCQConfig, context: BuildContext, terms: Sequence[Term] = ()) -> BCQ:
        """Build the learner from its config; nothing explores, and it takes no terms."""
        refuse_terms(context, terms)
        if config.epsilon != DQNConfig().epsilon:
            raise ValueError("algorithm.epsilon has no effect: nothing is collected")
        return cls(cls.build_policy(config, context), context.own_mode(config))
