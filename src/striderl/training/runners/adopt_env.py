"""Any env a runner may be given, as a `VecEnv`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from striderl.data.specs import TensorSpec
from striderl.envs.vec_env import VecEnv


def adopt_env(
    env: Any, device: torch.device | str, *, rank: int = 0, info: Mapping[str, TensorSpec] | None = None
) -> VecEnv:
    """Return a VecEnv as it is, and wrap a Gymnasium vector env or an env of any rsl_rl generation.

    Of several processes, each with as many envs, number `rank` holds those that follow on its predecessors'. `info` are
    values per env that an rsl_rl env tells in its extras and that are to be stored with each step.
    """
    if isinstance(env, VecEnv):
        return env
    if callable(getattr(env, "get_observations", None)):
        from striderl.envs.rsl_rl.env import RslRlEnv

        adopted = RslRlEnv(env, device=device, info_keys=info)
        adopted.first_env_index = rank * adopted.num_envs
        return adopted
    if hasattr(env, "single_observation_space"):
        from striderl.envs.gymnasium.env import GymnasiumEnv

        return GymnasiumEnv(env, device=device, first_env_index=rank * int(env.num_envs))
    raise TypeError(
        f"a runner wants a VecEnv, a Gymnasium vector env, or an rsl_rl env with get_observations(); found "
        f"{type(env).__name__}. A single Gymnasium env becomes one with GymnasiumEnv(lambda: env, 1)"
    )
