"""The transitions that ChainEnv must give, worked out beside the adapter."""

from __future__ import annotations

import functools
from typing import Any

import torch
from faulty_envs import ChainEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from striderl.envs.gymnasium.env import GymnasiumEnv


def chain_builders(num_envs: int, length: int = 2, *, reuse: bool = True) -> list[Any]:
    return [functools.partial(ChainEnv, index, length, reuse) for index in range(num_envs)]


def chain_vector(kind: str, mode: AutoresetMode, num_envs: int, length: int = 2) -> Any:
    # Gymnasium itself loses the final observation of an array that an env reuses, in this one mode
    builders = chain_builders(num_envs, length, reuse=mode is not AutoresetMode.SAME_STEP)
    return (AsyncVectorEnv if kind == "async" else SyncVectorEnv)(builders, autoreset_mode=mode)


class ChainReference:
    """What ChainEnv must do, computed by hand: one list entry per env."""

    def __init__(self, num_envs: int, length: int = 2) -> None:
        self.length = length
        self.episode = [0] * num_envs
        self.t = [0] * num_envs

    def obs(self) -> list[list[float]]:
        return [[float(i), float(e), float(t)] for i, (e, t) in enumerate(zip(self.episode, self.t))]

    def step(self, actions: list[int]) -> tuple[Any, ...]:
        rewards, ends, stops, finals = [], [], [], []
        for i, action in enumerate(actions):
            self.t[i] += 1
            rewards.append(10.0 * self.t[i] + action)
            done = self.t[i] >= self.length + i + self.episode[i]
            ends.append(done and self.episode[i] % 2 == 0)
            stops.append(done and self.episode[i] % 2 == 1)
            finals.append([float(i), float(self.episode[i]), float(self.t[i])])
            if done:
                self.reset(i)
        return rewards, ends, stops, finals

    def reset(self, i: int) -> None:
        self.episode[i] += 1
        self.t[i] = 0


def check_chain(env: GymnasiumEnv, num_steps: int, reset_at: dict[int, list[bool]] | None = None) -> int:
    """Step an env of chains beside the reference; returns how many episodes ended."""
    reference = ChainReference(env.num_envs)
    assert env.reset(3)["obs"].tolist() == reference.obs()
    ended = 0
    for number in range(num_steps):
        actions = [(number + i) % 3 for i in range(env.num_envs)]
        step = env.step(torch.tensor(actions))
        rewards, ends, stops, finals = reference.step(actions)
        assert step.reward.tolist() == rewards
        assert step.terminated.tolist() == ends
        assert step.truncated.tolist() == stops
        assert step.obs["obs"].tolist() == reference.obs()
        assert step.final_obs is not None
        assert step.final_obs["obs"].tolist() == finals
        assert step.info["valid"].all()
        assert env.episode_length_buf.tolist() == reference.t
        ended += int(step.done.sum())
        mask = (reset_at or {}).get(number)
        if mask is not None:
            for i, chosen in enumerate(mask):
                if chosen:
                    reference.reset(i)
            assert env.reset_envs(torch.tensor(mask))["obs"].tolist() == reference.obs()
    return ended
