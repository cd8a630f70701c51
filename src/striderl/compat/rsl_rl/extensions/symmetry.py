"""`Symmetry`: learn from mirrored samples too, or be penalised where the policy is not symmetric (Mittal et al., 2024).

data_augmentation_func(env=, obs=, actions=) ─▶ (obs, actions) [n · k, …], the originals first; None stays None

use_data_augmentation    every minibatch grows by the mirrored samples
use_mirror_loss          + mirror_loss_coeff · mean (π(mirrored s) - mirrored π(s))²
neither                  the mirror loss is logged
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from striderl.compat.rsl_rl.utils.utils import resolve_callable

_log = logging.getLogger(__name__)


class Symmetry:
    """Mirrored samples and the mirror loss; see the top of this module."""

    def __init__(
        self,
        env: Any,
        data_augmentation_func: str | Callable[..., Any],
        use_data_augmentation: bool = False,
        use_mirror_loss: bool = False,
        mirror_loss_coeff: float = 0.0,
    ) -> None:
        """Take the function that mirrors, or its name; it is called with the env."""
        self.env = env
        self.use_data_augmentation, self.use_mirror_loss = use_data_augmentation, use_mirror_loss
        self.mirror_loss_coeff = mirror_loss_coeff
        self.data_augmentation_func = resolve_callable(data_augmentation_func)
        if not (use_data_augmentation or use_mirror_loss):
            _log.info("symmetry is not learned: the mirror loss is computed for the log alone")

    def augment_batch(self, batch: Any, original_batch_size: int) -> None:
        """Add the mirrored samples to a minibatch, where data augmentation is on."""
        if not self.use_data_augmentation:
            return
        batch.observations, batch.actions = self.data_augmentation_func(
            env=self.env, obs=batch.observations, actions=batch.actions
        )
        count = batch.observations.batch_size[0] // original_batch_size
        batch.old_actions_log_prob = batch.old_actions_log_prob.repeat(count, 1)
        batch.values = batch.values.repeat(count, 1)
        batch.advantages = batch.advantages.repeat(count, 1)
        batch.returns = batch.returns.repeat(count, 1)

    def compute_loss(self, actor: Any, batch: Any, original_batch_size: int) -> Tensor:
        """Return the mirror loss of a minibatch; without a graph where it is only logged."""
        if not self.use_data_augmentation:
            batch.observations, _ = self.data_augmentation_func(env=self.env, obs=batch.observations, actions=None)
        means = actor(batch.observations.detach().clone())
        _, wanted = self.data_augmentation_func(env=self.env, obs=None, actions=means[:original_batch_size])
        loss = nn.functional.mse_loss(means[original_batch_size:], wanted.detach()[original_batch_size:])
        return loss if self.use_mirror_loss else loss.detach()


def resolve_symmetry_config(alg_cfg: dict[str, Any], env: Any) -> dict[str, Any]:
    """Add the env to alg_cfg["symmetry_cfg"]."""
    if alg_cfg.get("symmetry_cfg") is None:
        alg_cfg["symmetry_cfg"] = None
    else:
        alg_cfg["symmetry_cfg"]["env"] = env
    return alg_cfg
