"""`HandedSteps`: an rsl_rl env whose steps another loop takes; what came of a step is handed over.

    rsl_rl's runner      actions = alg.act(obs)        env.step(actions)        alg.process_env_step(obs, rewards, …)
    here                 │ the collector's actions     │ the client's own       │ give(obs, rewards, dones, extras)
                         └──────── RslRlEnv(HandedSteps(env, obs)).step ────────┘ returns what was given

Everything else, such as episode lengths, time limits and action terms, is the client's env. Nothing here resets,
seeds or closes it: that is its owner's.
"""

from __future__ import annotations

from typing import Any

import torch

from striderl.envs.rsl_rl.control import innermost

_OWNERS = ("reset", "reset_idx", "_reset_idx", "step", "close", "seed", "_env")
"""What only the owner of the env calls; the last one is not there yet while an object is being copied."""


class _Inner:
    """The simulator's env, without what only its owner calls."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        if name in _OWNERS:
            raise AttributeError(name)
        return getattr(self._env, name)


class HandedSteps:
    """The client's env as far as it can be read, with steps that are handed over."""

    def __init__(self, env: Any, obs: Any) -> None:
        """Take the client's env and its present observation."""
        self._env, self._obs = env, obs
        self._given: tuple[Any, ...] | None = None
        self.unwrapped = _Inner(innermost(env))

    def __getattr__(self, name: str) -> Any:
        if name in _OWNERS:
            raise AttributeError(name)
        return getattr(self._env, name)

    def see(self, obs: Any) -> None:
        """Set the present observation."""
        self._obs = obs

    def give(self, obs: Any, rewards: Any, dones: Any, extras: Any) -> None:
        """Hand over what came of the step in progress."""
        self._obs, self._given = obs, (obs, rewards, dones, extras)

    def get_observations(self) -> Any:
        """Return the present observation."""
        return self._obs

    def step(self, actions: torch.Tensor) -> tuple[Any, ...]:
        """Return what was handed over; the client has executed the actions."""
        if self._given is None:
            raise RuntimeError("process_env_step comes after act: the result of this step was not handed over")
        given, self._given = self._given, None
        return given

    def reset(self) -> Any:
        """Return the present observation: the owner of the env resets it."""
        return self._obs

    def reset_idx(self, ids: Any) -> None:
        """Do nothing: the owner of the env resets it."""

    def seed(self, seed: int) -> None:
        """Do nothing: the owner of the env seeds it."""

    def close(self) -> None:
        """Do nothing: the owner of the env closes it."""
