"""Settings of adversarial rewards."""

from __future__ import annotations

from dataclasses import dataclass

from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.ops.imitation import LOSSES, REWARDS

PENALTIES = ("expert", "between")
"""Where the slope of the score may count."""


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
    """Weight of everything the discriminator learns from; 0 leaves it as it is."""
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
    """So many earlier policy samples are kept and drawn from; 0 keeps none."""
    replay_share: float = 0.5
    """Which part of the policy samples is drawn from earlier ones; the rest are those of the minibatch."""
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
