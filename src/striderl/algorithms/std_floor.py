"""`StdFloor`: a lower end for the standard deviation that a policy learns, kept after each update."""

from __future__ import annotations

from typing import Any

from striderl.algorithms.ppo_config import PPOConfig
from striderl.networks.heads.base import Head, per_entry
from striderl.networks.heads.gaussian import GaussianHead


class StdFloor:
    """Brings the learned std of every Gaussian in a head up to a lowest one."""

    def __init__(self, head: Head[Any], lowest: float | tuple[float, ...]) -> None:
        """Find the Gaussians; a floor that none of them can have is an error."""
        self._heads = [part for part in head.modules() if isinstance(part, GaussianHead)]
        self._lowest = lowest
        if not self._heads and lowest != PPOConfig.clip_min_std:
            raise ValueError(f"clip_min_std={lowest} has no effect: {type(head).__name__} learns no standard deviation")
        for part in self._heads:
            per_entry(lowest, part.mean_layer.shape, "clip_min_std")

    def lift(self) -> None:
        """Bring the std up."""
        for part in self._heads:
            part.clip_std(min=self._lowest)
