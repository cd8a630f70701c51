"""Environments: the contract, its adapters and the built-in tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.envs.check.checker import check_vec_env as check_vec_env
    from striderl.envs.check.probe import sample_actions as sample_actions
    from striderl.envs.gymnasium.env import GymnasiumEnv as GymnasiumEnv
    from striderl.envs.on_device import OnDevice as OnDevice
    from striderl.envs.rsl_rl.env import RslRlEnv as RslRlEnv
    from striderl.envs.tasks import TASKS as TASKS
    from striderl.envs.tasks import make as make
    from striderl.envs.vec_env import ContractError as ContractError
    from striderl.envs.vec_env import StateUnsupportedError as StateUnsupportedError
    from striderl.envs.vec_env import Step as Step
    from striderl.envs.vec_env import VecEnv as VecEnv
    from striderl.envs.workers.pool import WorkerConfig as WorkerConfig

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "check.checker": ["check_vec_env"],
        "check.probe": ["sample_actions"],
        "gymnasium.env": ["GymnasiumEnv"],
        "on_device": ["OnDevice"],
        "rsl_rl.env": ["RslRlEnv"],
        "tasks": ["TASKS", "make"],
        "vec_env": ["ContractError", "StateUnsupportedError", "Step", "VecEnv"],
        "workers.pool": ["WorkerConfig"],
    },
    unlisted={
        "vec_env": ["AsyncVecEnv"],
    },
)
