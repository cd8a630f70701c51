"""Settings of PPO, with the names used in rsl_rl.

The defaults follow Stable-Baselines3 and learn as they are (`python benchmarks/learning.py --defaults`). rsl_rl's
own belong to configs for its runners: `RSL_RL_DEFAULTS` in `training/experiment/runner_config.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.execution.parameter_groups import OPTIMIZERS
from striderl.ops.schedules import learning_rate_rule
from striderl.policies.arguments import as_names

SCHEDULES = ("fixed", "adaptive")


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of PPO."""

    num_learning_epochs: int = 10
    """Passes over each rollout; 4 to 10 is usual."""
    num_mini_batches: int = 4
    """Minibatches per pass; 4 is usual, 32 for long rollouts of one env."""
    clip_param: float = 0.2
    """The ratio is kept in [1 - clip_param, 1 + clip_param]; 0.1 to 0.3 is usual."""
    gamma: float = 0.99
    """Discount per step."""
    lam: float = 0.95
    """GAE's lambda: 0 uses the values, 1 the rewards."""
    value_loss_coef: float = 0.5
    """Weight of the value loss; 0.5 to 1 is usual."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; up to 0.01 is usual."""
    learning_rate: float = 3e-4
    """The first learning rate; the adaptive schedule or a scheduler moves it."""
    max_grad_norm: float = 0.5
    """The gradient is clipped to this norm; 0 means never."""
    clip_networks_apart: bool = False
    """Clip the gradients of actor and critic each to max_grad_norm, as rsl_rl 4 and 5 do; otherwise all as one."""
    use_clipped_value_loss: bool = False
    """Keep new values within clip_param of the old ones."""
    clip_min_std: float | tuple[float, ...] = 1e-15
    """After each update, the learned standard deviation is raised to at least this: one number, or one per action."""
    optimizer_class_name: str = "Adam"
    """'Adam', 'AdamW', 'SGD' or 'RMSprop'."""
    schedule: str = "fixed"
    """'fixed', or 'adaptive': the learning rate follows desired_kl."""
    desired_kl: float = 0.01
    """The target KL of the adaptive schedule, per minibatch."""
    lr_scheduler_class_name: str | None = None
    """How the learning rate changes from update to update, such as 'CosineAnnealingLR'; see `ops.schedules.RULES`."""
    lr_scheduler: Mapping[str, Any] = field(default_factory=dict)
    """Settings of that scheduler by torch's names, such as {'T_max': 1000}; its unit is the update of one rollout."""
    normalize_advantage_per_mini_batch: bool = False
    """Normalise advantages over each minibatch instead of over the whole rollout."""
    normalize_values: bool = False
    """Let the critic predict returns with mean 0 and standard deviation 1; with running statistics."""
    use_mixed_precision: bool = False
    """Run the networks of the update in bfloat16; acting, log-probabilities and losses stay as they are."""
    reward_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Group → its rewards: 'env', info columns of the env, rewards of terms. The critic gives one value per group."""
    reward_group_weights: Mapping[str, float] = field(default_factory=dict)
    """Group → weight of its normalised advantage; 1 where none is given."""

    def __post_init__(self) -> None:
        _as_tuples(self)
        if self.schedule not in SCHEDULES:
            raise ValueError(unknown("schedule", self.schedule, SCHEDULES, where="PPOConfig"))
        check_field_types(self)
        if self.optimizer_class_name not in OPTIMIZERS:
            raise ValueError(unknown("optimizer", self.optimizer_class_name, OPTIMIZERS, where="PPOConfig"))
        _check_numbers(self)
        _check_scheduler(self)
        for name, weight in self.reward_group_weights.items():
            if name not in self.reward_groups:
                raise ValueError(unknown("reward group", name, self.reward_groups, where="PPOConfig.reward_groups"))
            if isinstance(weight, bool) or not isinstance(weight, (int, float)):
                raise TypeError(f"PPOConfig.reward_group_weights[{name!r}]: wanted float, found {weight!r}")


def _as_tuples(config: PPOConfig) -> None:
    """Convert lists, as read from files, to tuples."""
    lowest: object = config.clip_min_std
    if isinstance(lowest, list):
        object.__setattr__(config, "clip_min_std", tuple(lowest))
    if isinstance(config.reward_groups, Mapping):
        groups = {
            name: as_names(each, f"PPOConfig.reward_groups[{name!r}]") for name, each in config.reward_groups.items()
        }
        object.__setattr__(config, "reward_groups", groups)


def _check_numbers(config: PPOConfig) -> None:
    if config.num_mini_batches < 1 or config.num_learning_epochs < 1:
        raise ValueError(
            "num_mini_batches and num_learning_epochs are at least 1, "
            f"found {config.num_mini_batches} and {config.num_learning_epochs}"
        )
    if not (0.0 <= config.gamma <= 1.0 and 0.0 <= config.lam <= 1.0):
        raise ValueError(f"gamma and lam are between 0 and 1, found {config.gamma} and {config.lam}")
    if config.learning_rate <= 0.0 or config.clip_param <= 0.0:
        raise ValueError(
            f"learning_rate and clip_param are positive, found {config.learning_rate} and {config.clip_param}"
        )
    for name in ("value_loss_coef", "entropy_coef", "learning_rate", "max_grad_norm", "desired_kl"):
        value = float(getattr(config, name))  # a field of the config
        if not math.isfinite(value) or (value < 0.0 and name != "entropy_coef"):
            raise ValueError(f"PPOConfig.{name} is finite and not negative, found {value}")
    lowest = config.clip_min_std if isinstance(config.clip_min_std, tuple) else (config.clip_min_std,)
    if not all(0.0 <= each < float("inf") for each in lowest):
        raise ValueError(f"clip_min_std is finite and not negative, found {config.clip_min_std}")


def _check_scheduler(config: PPOConfig) -> None:
    """Raise for a scheduler that does not exist, or that conflicts with another setting."""
    name = config.lr_scheduler_class_name
    if not name:
        if config.lr_scheduler:
            raise ValueError(
                f"lr_scheduler={dict(config.lr_scheduler)} has no effect without lr_scheduler_class_name; name one"
            )
        return
    learning_rate_rule(name, config.learning_rate, config.lr_scheduler)
    if config.schedule == "adaptive":
        raise ValueError(
            f"schedule='adaptive' and lr_scheduler_class_name={name!r} would both move the learning rate; "
            "set schedule='fixed' or leave the scheduler out"
        )
