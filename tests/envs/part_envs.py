"""Envs for tests of `VecEnvProcesses`: built by name in another process."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from striderl.envs import make
from striderl.envs.vec_env import Step, VecEnv


class Spoilt:
    """Another env that raises, dies or hangs when it is given the action that asks for it."""

    def __init__(self, env: VecEnv) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, actions: torch.Tensor) -> Step:
        """Do what the largest action asks for: 2 raise, 3 die, 4 hang."""
        wish = int(actions.abs().max())
        if wish == 2:
            raise ArithmeticError("the joint came off")
        if wish == 3:
            os._exit(7)
        if wish == 4:
            time.sleep(60.0)
        return self._env.step(actions)


def spoilt(num_envs: int, first_env_index: int) -> Any:
    """Build some pendulums that can be made to fail."""
    return Spoilt(make("pendulum", num_envs=num_envs, first_env_index=first_env_index))


def too_few(num_envs: int, first_env_index: int) -> VecEnv:
    """Build an env less than asked for."""
    return make("pendulum", num_envs=num_envs - 1, first_env_index=first_env_index)
