"""What an env measures of itself, as one number per run: velocity error and cost of transport.

    env.metrics()   {"tracking_error": [N], "cost_of_transport": [N]}        each env's own, of its present episode
    velocity_rmsd   sqrt(mean over envs of tracking_error²), m/s
    cost_of_transport   mean over envs, without a unit

An env that does not measure them gives None, and nothing is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from striderl.envs.vec_env import VecEnv

Metric = Callable[[VecEnv], float | None]
"""A number of an env, or None where it has none."""


def velocity_rmsd(env: VecEnv) -> float | None:
    """Return the root mean square of the velocity tracking error over the envs."""
    error = env.metrics().get("tracking_error")
    return None if error is None else float(error.double().square().mean().sqrt())


def cost_of_transport(env: VecEnv) -> float | None:
    """Return the mean cost of transport over the envs, without those where it is not finite: robots at rest."""
    found = env.metrics()
    cost = found.get("cost_of_transport", found.get("CoT"))
    if cost is None:
        return None
    finite = cost[torch.isfinite(cost)]
    return float(finite.double().mean()) if finite.numel() else None


METRICS: Mapping[str, Metric] = {"velrmsd": velocity_rmsd, "CoT": cost_of_transport}
"""What a runner measures unless it is told otherwise."""
