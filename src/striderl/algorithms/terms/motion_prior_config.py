"""Settings of motion priors, and what the words of st_rl mean in them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from striderl.algorithms.terms.adversarial_config import AdversarialConfig
from striderl.data.checked_fields import suggests_fields
from striderl.networks.discriminator import AMPDiscriminator


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class MotionPriorConfig(AdversarialConfig):
    """Settings of a motion prior: those of an adversarial reward, with what is usual for motions."""

    components: tuple[str, ...] = ("motion",)
    """Observation components or groups that make a frame."""
    frames: int = 2
    """Frames of a motion, the last one after the step; 1 where a component holds a whole window itself."""
    task_weight: float = 0.5
    """Weight of the env's own reward; 0 leaves it out."""
    style_weight: float = 0.5
    """Weight of the discriminator's reward."""
    loss: str = "least_squares"
    """'least_squares', 'bce' or 'wasserstein'; see `striderl.ops.imitation`."""
    reward: str = "least_squares"
    """'least_squares' (0 to 1), or the reward that fits another loss."""
    hidden_dims: tuple[int, ...] = (512, 256)
    """Hidden layers of the discriminator."""
    gradient_penalty: float = 5.0
    """Weight of the penalty on the slope of the score at the expert's motions."""
    learning_rate: float = 1e-4
    """Of the discriminator; the algorithm's schedule does not touch it."""
    weight_decay: float = 1e-3
    """Of the discriminator (AdamW)."""
    max_grad_norm: float = 1.0
    """The discriminator's gradient is scaled down to this norm; 0 means never."""
    replay_size: int = 100_000
    """So many earlier motions of the policy are kept and drawn from; 0 keeps none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frames < 1 or not self.components:
            raise ValueError(f"a motion has at least one frame of one component, found {self.frames} frames")
        if self.absorbing:
            raise ValueError("a motion prior has no absorbing states: an end has its final motion, which is scored")

    def weighed(self, *, task_reward_lerp: float, style_reward_coef: float) -> MotionPriorConfig:
        """Return the same with st_rl's weights: (1 - w) · c · style + w · task for w = lerp and c = coef."""
        style_weight = (1.0 - task_reward_lerp) * style_reward_coef
        return replace(self, task_weight=task_reward_lerp, style_weight=style_weight)

    def of_discriminator(self, discriminator: AMPDiscriminator) -> MotionPriorConfig:
        """Return the same with the weights and the penalty that a discriminator was made with."""
        mixed = self.weighed(
            task_reward_lerp=discriminator.task_reward_lerp, style_reward_coef=discriminator.style_reward_coef
        )
        return replace(mixed, gradient_penalty=discriminator.grad_pen)
