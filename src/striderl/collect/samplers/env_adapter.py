"""rlpyt's single envs as Gymnasium envs. Nothing here loads torch: worker processes import this module.

env.reset() ─▶ observation                                   reset() ─▶ observation, {}
env.step(a) ─▶ EnvStep(observation, reward, done, env_info)  step(a) ─▶ observation, reward, terminated, truncated,
                                                                        {fields of env_info}
done                  env_info.timeout    env_info.traj_done      becomes
True                  –                   –                       terminated
True                  True                –                       truncated: a time limit; a dict with Gym's
                                                                  'TimeLimit.truncated' means the same
True                  –                   False                   terminated; the reset that follows goes on with
                                                                  the same game (a life was lost, not the game)
False                 –                   True                    truncated
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from striderl.data import tree
from striderl.data.episode_ends import split_done


class SingleEnvAdapter(gymnasium.Env[Any, Any]):
    """One env of rlpyt's kind behind Gymnasium's methods."""

    def __init__(self, env: Any) -> None:
        """Wrap an env that is already built."""
        self.env = env
        self.observation_space = gymnasium_space(env.observation_space)
        self.action_space = gymnasium_space(env.action_space, for_actions=True)
        self._same_game: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode, of the same game where only a life was lost; a seed starts a new game."""
        observation, self._same_game = self._same_game, None
        if seed is not None and hasattr(self.env, "seed"):
            self.env.seed(seed)
        if observation is None or seed is not None:
            observation = self.env.reset()
        return space_value(self.observation_space, observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        observation, reward, done, env_info = self.env.step(action)
        info = info_fields(env_info)
        done, late = bool(done), bool(split_done(done, env_info)[1])
        game_over, timeout = bool(info.get("traj_done", done)), bool(info.get("timeout", False)) or late
        self._same_game = observation if done and not game_over else None
        value = space_value(self.observation_space, observation)
        return value, float(reward), done and not timeout, (done and timeout) or (game_over and not done), info

    def close(self) -> None:
        """Close the env, if it can be."""
        if hasattr(self.env, "close"):
            self.env.close()


@dataclass(frozen=True)
class AdaptedBuilder:
    """Builds an rlpyt env and wraps it; can be sent to a worker process when the env's class can."""

    build: Callable[..., Any]

    def __call__(self, **env_kwargs: Any) -> SingleEnvAdapter:
        """Build."""
        return SingleEnvAdapter(self.build(**env_kwargs))


@dataclass(frozen=True)
class PinnedBuilder:
    """Builds an env in a process that it first ties to some processors."""

    build: Callable[..., Any]
    cpus: tuple[int, ...]

    def __call__(self, **env_kwargs: Any) -> Any:
        """Pin this process and build."""
        os.sched_setaffinity(0, self.cpus)
        return self.build(**env_kwargs)


@dataclass(frozen=True)
class BuiltEnv:
    """Returns an env that is already built."""

    env: Any

    def __call__(self) -> Any:
        """Return it."""
        return self.env


def info_fields(env_info: Any) -> dict[str, Any]:
    """Return the numbers of an env_info (a namedtuple, a dict or None) by name, nested ones as 'outer/inner'."""
    leaves = tree.items(env_info) if env_info is not None else ()
    return {path: leaf for path, leaf in leaves if np.asarray(leaf).dtype.kind in "biuf"}


def space_value(space: Any, observation: Any) -> Any:
    """Return an observation with dicts in place of namedtuples, as the space has them."""
    if isinstance(space, gymnasium.spaces.Dict):
        parts = observation if isinstance(observation, Mapping) else dict(zip(observation._fields, tuple(observation)))
        return {name: space_value(inner, parts[name]) for name, inner in space.spaces.items()}
    return observation


def gymnasium_space(space: Any, *, for_actions: bool = False) -> gymnasium.Space[Any]:
    """Return the Gymnasium space for one of rlpyt's (IntBox, FloatBox, Composite, GymSpaceWrapper), or it itself.

    They are recognised by their class names: rlpyt itself need not be installed.
    """
    if isinstance(space, gymnasium.Space):
        return space
    kind = type(space).__name__
    if kind == "GymSpaceWrapper":
        return gymnasium_space(space.space, for_actions=for_actions)
    if kind == "FloatBox":
        return gymnasium.spaces.Box(_bound(space.low, space.shape), _bound(space.high, space.shape), dtype=np.float32)
    if kind == "IntBox":
        return _integer_space(space, for_actions)
    if kind == "Composite":
        names: Sequence[str] = space.names
        parts = {name: gymnasium_space(part, for_actions=for_actions) for name, part in zip(names, space.spaces)}
        return gymnasium.spaces.Dict(parts)
    raise TypeError(f"space {kind} is not known; use Gymnasium's, or IntBox, FloatBox or Composite as rlpyt has them")


def _integer_space(space: Any, for_actions: bool) -> gymnasium.Space[Any]:
    """Return the space of whole numbers from low up to, not including, high."""
    low, high = np.asarray(space.low), np.asarray(space.high)
    if for_actions or space.shape == ():
        if low.any():
            raise ValueError(f"IntBox: choices start at 0 here, found low={space.low}; shift them in the env")
        if space.shape == ():
            return gymnasium.spaces.Discrete(int(high))
        return gymnasium.spaces.MultiDiscrete(np.broadcast_to(high, space.shape).astype(np.int64))
    dtype = np.dtype(space.dtype)
    bounds = (np.broadcast_to(bound, space.shape).astype(dtype) for bound in (low, high - 1))
    lowest, highest = bounds
    return gymnasium.spaces.Box(lowest, highest, dtype=dtype.type)


def _bound(bound: Any, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.broadcast_to(np.asarray(bound, np.float32), shape).copy()
