"""An env with one bad number, and the same env without it.

    Poisoned(inner, injection)            gives the bad number
    Masked(inner, injection, heals)       does itself what quarantine promises: `valid` false, episodes cut, zeros shown

A masked env follows the documentation of `collect.quarantine` and shares no code with it. So a run on one and a run on
the other that end with equal weights show that the bad number reached nothing.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from striderl.data.specs import TensorSpec
from striderl.envs.vec_env import Obs, Step, VecEnv


@dataclass(frozen=True)
class Injection:
    """One bad number: where, in which env, at which step of it, and what."""

    place: str
    env: int
    step: int
    value: float = math.nan


class Wrapped(VecEnv):
    """An env around another; it counts steps and knows what it showed last."""

    def __init__(self, inner: VecEnv, injection: Injection) -> None:
        self.inner, self.injection = inner, injection
        self.num_envs, self.device = inner.num_envs, inner.device
        self.obs_spec, self.action_spec = inner.obs_spec, inner.action_spec
        self.info_spec = {**inner.info_spec, "valid": TensorSpec(dtype="bool")}
        self.gives_final_obs, self.max_episode_length = inner.gives_final_obs, inner.max_episode_length
        self.step_dt, self.count, self.done = inner.step_dt, 0, False
        self.shown: Obs = {}

    def reset(self, seed: int | None = None) -> Obs:
        obs = {name: value.clone() for name, value in self.inner.reset(seed).items()}
        if self.injection.place == "start" and not self.done:
            self.done = True
            self.spoil_obs(obs)
        self.shown = obs
        return obs

    def step(self, actions: Any) -> Step:
        step = self.inner.step(actions)
        final = None if step.final_obs is None else {name: value.clone() for name, value in step.final_obs.items()}
        obs = {name: value.clone() for name, value in step.obs.items()}
        info = {**step.info, "valid": torch.ones(self.num_envs, dtype=torch.bool)}
        step = Step(obs, step.reward.clone(), step.terminated.clone(), step.truncated.clone(), final, info)
        if not self.done and self.is_due(step):
            self.done = True
            self.spoil(step)
        self.after(step)
        self.count += 1
        self.shown = step.obs
        return step

    def is_due(self, step: Step) -> bool:
        if self.injection.place == "final_obs":  # the first end in that env from then on
            return self.count >= self.injection.step and bool(step.done[self.injection.env])
        return self.count == self.injection.step and self.injection.place != "start"

    @abstractmethod
    def spoil(self, step: Step) -> None:
        """Do to a step what happens at the place of the injection."""

    @abstractmethod
    def spoil_obs(self, obs: Obs) -> None:
        """Do it to an observation."""

    def after(self, step: Step) -> None:
        """Do what else there is to do in every step."""

    def reset_envs(self, mask: Tensor) -> Obs:
        self.shown = {name: value.clone() for name, value in self.inner.reset_envs(mask).items()}
        return self.shown

    @property
    def episode_length_buf(self) -> Tensor:
        return self.inner.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.inner.episode_length_buf = value

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "count": self.count, "done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> Obs:
        self.count, self.done = int(state["count"]), bool(state["done"])
        return self.inner.load_state_dict(state["inner"])


class Poisoned(Wrapped):
    """Gives one bad number."""

    def spoil(self, step: Step) -> None:
        place, env, value = self.injection.place, self.injection.env, self.injection.value
        if place == "reward":
            step.reward[env] = value
        elif place == "final_obs":
            assert step.final_obs is not None
            step.final_obs["obs"][env, 1] = value
        else:
            self.spoil_obs(step.obs)

    def spoil_obs(self, obs: Obs) -> None:
        obs["obs"][self.injection.env, 0] = self.injection.value


class Masked(Wrapped):
    """Gives no bad number and says itself which samples do not count."""

    def __init__(self, inner: VecEnv, injection: Injection, heals: Callable[[int], bool]) -> None:
        """`heals` tells after which of its steps the collector would have reset the sick envs."""
        super().__init__(inner, injection)
        self.heals = heals
        self.sick = torch.zeros(inner.num_envs, dtype=torch.bool)

    def spoil(self, step: Step) -> None:
        place, env = self.injection.place, self.injection.env
        if place == "reward":
            step.reward[env] = 0.0
            step.info["valid"][env] = False
        elif place == "final_obs":
            assert step.final_obs is not None
            step.final_obs["obs"][env] = self.shown["obs"][env]
        else:
            if not step.done[env]:
                step.truncated[env] = True
                assert step.final_obs is not None
                step.final_obs["obs"][env] = self.shown["obs"][env]
            self.falls_ill = env

    falls_ill = -1

    def spoil_obs(self, obs: Obs) -> None:
        obs["obs"][self.injection.env] = 0.0
        self.sick[self.injection.env] = True

    def after(self, step: Step) -> None:
        step.info["valid"] &= ~self.sick
        self.sick &= ~step.done
        if self.falls_ill >= 0:
            self.sick[self.falls_ill] = True
            self.falls_ill = -1
        step.obs["obs"][self.sick] = 0.0
        if self.heals(self.count) and bool(self.sick.any()):
            step.obs["obs"][:] = self.inner.reset_envs(self.sick)["obs"]
            step.truncated[self.sick] = True  # the episode is abandoned, so a policy with memory begins anew
            self.sick[:] = False
