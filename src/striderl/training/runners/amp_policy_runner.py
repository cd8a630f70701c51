"""`AmpPolicyRunner`: the runner for adversarial motion priors, with rsl_rl's constructor.

    runner = AmpPolicyRunner(env, train_cfg, log_dir="logs/trot", device="cuda:0")
    runner.learn(num_learning_iterations=10000)
    runner.metrics_velrmsd, runner.metrics_CoT

train_cfg["algorithm"] is an 'APPO' or an 'ATPPO'; see `config_motion.py`. Everything else is `OnPolicyRunner`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from striderl.algorithms.terms.motion_prior import MotionPrior
from striderl.training.runners.config_generations import read_train_config
from striderl.training.runners.on_policy_runner import OnPolicyRunner


class AmpPolicyRunner(OnPolicyRunner):
    """Trains with PPO and a motion prior."""

    def __init__(
        self, env: Any, train_cfg: Any, log_dir: str | Path | None = None, device: torch.device | str = "cpu"
    ) -> None:
        """Build everything from the config, which must have a motion prior."""
        config = read_train_config(train_cfg)
        if config.motion is None:
            raise ValueError(
                "AmpPolicyRunner learns from motions: set algorithm['class_name'] to 'APPO' or 'ATPPO', or "
                "RunnerConfig.motion; without them use OnPolicyRunner"
            )
        super().__init__(env, train_cfg, log_dir, device)

    @property
    def prior(self) -> MotionPrior:
        """The motion prior, with its discriminator and its normaliser (`judge.network`, `judge.normalizer`)."""
        return next(term for term in self.alg.terms if isinstance(term, MotionPrior))
