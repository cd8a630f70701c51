"""Find the handles that rsl_rl envs offer beyond `step`: seeds, partial resets, clocks, segments.

None of these is part of rsl_rl's own contract, so each simulator has its own word. They are looked for once, at
construction, by plain names; what is not there is None, and the adapter says so when it is asked for.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.envs.rsl_rl.obs import Segments, is_mapping
from striderl.envs.vec_env import ContractError, VecEnv


@dataclass(frozen=True, kw_only=True)
class PartialReset:
    """How a simulator restarts some of its envs."""

    restart: Callable[[Tensor], Any]
    """Restarts the envs with these int64 indices; returns an observation in any form, or None when there is none."""
    refreshes: bool
    """Whether the observation is known to be up to date afterwards, not only after the next step."""


def require_rsl_rl(env: Any) -> None:
    """Raise ContractError, naming what is missing, unless the object can be an rsl_rl env."""
    name = type(env).__name__
    if isinstance(env, VecEnv):
        raise ContractError(f"{name} is a VecEnv already; use it as it is")
    missing = [f"{method}()" for method in ("step", "get_observations") if not callable(getattr(env, method, None))]
    counts = {"num_envs": getattr(env, "num_envs", None), "num_actions": getattr(env, "num_actions", None)}
    missing += [count for count, value in counts.items() if not isinstance(value, (int, np.integer))]
    if missing:
        raise ContractError(
            f"{name} is no rsl_rl env: it lacks {', '.join(missing)}. Wrap it in its simulator's rsl_rl wrapper first "
            "(RslRlVecEnvWrapper in mjlab and Isaac Lab), or use the Gymnasium adapter for a Gymnasium env."
        )


def innermost(env: Any) -> Any:
    """Return the simulator's own env below its rsl_rl wrapper, or the env itself."""
    inner = getattr(env, "unwrapped", None)
    return env if inner is None else inner


def find_seed(env: Any) -> Callable[[int], Any] | None:
    """Return the function that seeds the simulator; Playground's `seed` is a number and cannot be called."""
    for holder in (env, innermost(env)):
        seed = getattr(holder, "seed", None)
        if callable(seed):
            return seed  # type: ignore[no-any-return]
    return None


def find_reset(env: Any) -> Callable[[], Any] | None:
    """Return the function that restarts all envs; Isaac Lab's wrapper since 2.2 has none, but the env below it has."""
    for holder in (env, innermost(env)):
        reset = getattr(holder, "reset", None)
        if callable(reset):
            return reset  # type: ignore[no-any-return]
    return None


def find_partial_reset(env: Any) -> PartialReset | None:
    """Return how to restart some of the envs, or None when the simulator has no way."""
    inner = innermost(env)
    if takes_env_ids(getattr(inner, "reset", None)):
        return PartialReset(restart=lambda ids: inner.reset(env_ids=ids), refreshes=True)
    for holder in (env, inner):
        if callable(getattr(holder, "reset_idx", None)):
            return _row_reset(holder, holder.reset_idx)
    if callable(getattr(inner, "_reset_idx", None)):
        return _row_reset(inner, inner._reset_idx)
    return None


def resets_by_hand(env: Any) -> bool:
    """Tell whether the env leaves resets to its caller (mjlab's `auto_reset=False`), having shown the last state."""
    if setting(getattr(innermost(env), "cfg", None), "auto_reset") is not False:
        return False
    if not takes_env_ids(getattr(innermost(env), "reset", None)):
        raise ContractError(
            f"{type(env).__name__} is configured with auto_reset=False, but its reset() takes no env_ids, so finished "
            "envs cannot be restarted; set auto_reset=True"
        )
    return True


def takes_env_ids(reset: Any) -> bool:
    """Tell whether a reset function has a parameter called env_ids."""
    if not callable(reset):
        return False
    try:
        return "env_ids" in inspect.signature(reset).parameters
    except (TypeError, ValueError):  # compiled functions have no signature
        return False


def find_segments(env: Any, name: str) -> Segments | None:
    """Return `obs_segments` or `privileged_obs_segments` of the env, of its simulator, or of their configuration."""
    config = getattr(env, "cfg", None)
    for holder in (env, innermost(env), config, setting(config, "env")):
        found = setting(holder, name)
        if is_mapping(found):
            return found
    return None


def setting(config: Any, name: str) -> Any:
    """Read one entry of a configuration that is an object or a dict; None when it is not there."""
    if isinstance(config, Mapping):
        return config.get(name)
    return getattr(config, name, None)


def episode_limit(env: Any) -> int:
    """Return after how many steps episodes end: the longest where each env has its own limit, 0 where there is none."""
    limit = getattr(env, "max_episode_length", None)
    if limit is None:
        limit = getattr(innermost(env), "max_episode_length", None)
    if limit is None:
        return 0
    number = float(limit.max()) if isinstance(limit, Tensor) else float(limit)
    return int(number) if math.isfinite(number) else 0


def step_seconds(env: Any) -> float:
    """Return the simulated time per step: Isaac Lab and mjlab call it step_dt, legged_gym dt; 0 when unknown."""
    for seconds in (getattr(innermost(env), "step_dt", None), getattr(env, "dt", None)):
        if isinstance(seconds, (int, float)):
            return float(seconds)
    return 0.0


def length_holder(env: Any) -> Any:
    """Return the object whose episode_length_buf is a tensor, or None (Playground has none)."""
    for holder in (env, innermost(env)):
        if isinstance(getattr(holder, "episode_length_buf", None), Tensor):
            return holder
    return None


def action_device(env: Any, default: torch.device) -> torch.device:
    """Return where the env wants its actions: a string, a torch.device, or nothing and then where its tensors live."""
    device = getattr(env, "device", None)
    return default if device is None else torch.device(device)


def _row_reset(holder: Any, reset: Callable[[Tensor], Any]) -> PartialReset:
    """Follow a bare row reset by what brings the simulator (Isaac Lab) or the observation (legged_gym) up to date."""
    scene, simulator = getattr(holder, "scene", None), getattr(holder, "sim", None)
    updates = [
        update
        for update in (
            getattr(scene, "write_data_to_sim", None),
            getattr(simulator, "forward", None),
            getattr(holder, "compute_observations", None),
        )
        if callable(update)
    ]

    def restart(ids: Tensor) -> None:
        reset(ids)
        for update in updates:
            update()

    return PartialReset(restart=restart, refreshes=bool(updates))
