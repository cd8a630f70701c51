"""`Collector(policy, env, buffer)`: a policy plays, a `ReplayBuffer` is filled, in the words of Tianshou.

    collector = Collector(policy, gymnasium.make("CartPole-v1"), ReplayBuffer(20_000))
    collector.collect(n_step=100)                          exactly 100 steps
    collector.collect(n_episode=5)                         exactly 5 episodes from fresh starts; [2, 3]: for each env
    collector.collect(n_step=1000, random=True)            random actions
    collector.collect(n_step=100, whole_episodes=True)     at least 100 steps, stored episode by episode

It returns {"n/ep", "n/st", "v/st", "v/ep", "rew", "len"}: episodes that ended, steps stored, both per second, and the
mean return and length of the episodes (nan when none ended).

The stepping is that of `striderl.collect.Collector`, so the same rules hold: envs are seeded, a bad number puts its env
into quarantine, whatever was under way is abandoned before whole episodes are counted.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

from striderl.collect.collector import Collector as CoreCollector
from striderl.collect.collector import CollectorConfig
from striderl.collect.samplers.envs import as_vec_env
from striderl.compat.base_policy import BasePolicy
from striderl.compat.buffer_writer import BufferWriter
from striderl.compat.forward_actor import ForwardActor
from striderl.data.checked_fields import refuse_assignment
from striderl.envs.vec_env import VecEnv
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.storage.replay_buffer.kinds import VectorReplayBuffer

_log = logging.getLogger(__name__)

LONG = 100_000
"""Steps without the end of an episode after which the log says that an env may never end."""


class Collector:
    """Plays a policy and fills a buffer; see the top of this module."""

    def __init__(self, policy: BasePolicy, env: Any, buffer: ReplayBuffer | None = None, *, seed: int = 0) -> None:
        """Take a policy, envs and where their steps go; nothing is reset yet.

        `env` is a `VecEnv`, a Gymnasium env, a Gymnasium vector env, or a list of Gymnasium envs.
        """
        if not isinstance(policy, BasePolicy):
            raise TypeError(
                f"Collector wants a BasePolicy, found {type(policy).__name__}; AlgorithmPolicy(algorithm) makes one "
                "of DQN, SAC, PPO and the like"
            )
        if buffer is not None and not isinstance(buffer, ReplayBuffer):
            raise TypeError(f"Collector wants a ReplayBuffer or None, found {type(buffer).__name__}")
        self.policy, self.buffer = policy, buffer
        self.env = as_env(env)
        num_envs = self.env.num_envs
        if isinstance(buffer, VectorReplayBuffer) and buffer.buffer_num != num_envs:
            raise ValueError(f"the buffer has buffer_num={buffer.buffer_num}, the env has {num_envs} envs")
        self._actor = ForwardActor(policy, self.env.action_spec)
        self._writer = BufferWriter(buffer, num_envs, self._actor)
        self._core = CoreCollector(self.env, self._actor, CollectorConfig(seed=seed))
        self._fresh_next = True
        self.collect_step, self.collect_episode, self.collect_time = 0, 0, 0.0

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_assignment(self, name, parts=("policy", "buffer", "env"))
        super().__setattr__(name, value)

    @property
    def env_num(self) -> int:
        """How many envs there are."""
        return self.env.num_envs

    # -- collecting ----------------------------------------------------------------------------------------------------

    def collect(
        self,
        n_step: int | None = None,
        n_episode: int | Sequence[int] | None = None,
        random: bool = False,
        *,
        whole_episodes: bool = False,
    ) -> dict[str, float]:
        """Collect exactly so many steps, or exactly so many episodes (in all, or for each env).

        With `whole_episodes` and n_step, steps are stored when their episode has ended, until there are at least
        n_step; what is under way then goes on in the next such call. Changing between the two ways of counting steps
        starts new episodes.
        """
        if (n_step is None) == (n_episode is None):
            raise ValueError(f"collect wants exactly one of n_step and n_episode, found {n_step} and {n_episode}")
        if n_step is not None and n_step < 1:
            raise ValueError(f"n_step is at least 1, found {n_step}")
        writer = self._writer
        by_episode = whole_episodes or (n_episode is not None and not writer.has_rings)
        if not by_episode and not writer.has_rings:
            raise ValueError(
                f"steps of {self.env_num} envs cannot share one ring: use VectorReplayBuffer(size, {self.env_num}), or "
                "collect(n_step=…, whole_episodes=True)"
            )
        if n_episode is not None or by_episode != writer.by_episode or self._fresh_next:
            writer.begin_episodes()
            if n_episode is None:
                self._core.reset()
        writer.by_episode = by_episode
        self._actor.random = random
        writer.begin_call()
        started = time.perf_counter()
        # an error on the way leaves it true, so that the next call starts anew
        self._fresh_next = True
        if n_episode is not None:
            self._core.collect(n_episode=n_episode, storage=writer)
        elif by_episode:
            self._collect_at_least(int(n_step or 0))
        else:
            self._core.collect(n_step=n_step, storage=writer)
        self._fresh_next = n_episode is not None
        return self._result(time.perf_counter() - started)

    def _collect_at_least(self, n_step: int) -> None:
        """Step all envs until enough steps of finished episodes are stored."""
        quiet = 0
        while self._writer.num_steps < n_step:
            before = len(self._writer.returns)
            self._core.collect(n_step=self.env_num, storage=self._writer)
            quiet = quiet + self.env_num if len(self._writer.returns) == before else 0
            if quiet >= LONG and quiet - self.env_num < LONG:
                _log.warning("%d steps without the end of an episode; has the env a time limit?", quiet)

    def _result(self, seconds: float) -> dict[str, float]:
        writer, seconds = self._writer, max(seconds, 1e-9)
        episodes = len(writer.returns)
        self.collect_step += writer.num_steps
        self.collect_episode += episodes
        self.collect_time += seconds
        return {
            "n/ep": episodes,
            "n/st": writer.num_steps,
            "v/st": writer.num_steps / seconds,
            "v/ep": episodes / seconds,
            "rew": math.fsum(writer.returns) / episodes if episodes else math.nan,
            "len": sum(writer.lengths) / episodes if episodes else math.nan,
        }

    # -- starting anew -------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget all steps and counts, and start new episodes."""
        self.reset_stat()
        self.reset_buffer()
        self.reset_env()

    def reset_stat(self) -> None:
        """Count steps, episodes and time from zero."""
        self.collect_step, self.collect_episode, self.collect_time = 0, 0, 0.0

    def reset_buffer(self) -> None:
        """Forget all steps; episodes that are under way go on."""
        if self.buffer is not None:
            self.buffer.reset()

    def reset_env(self) -> None:
        """Start new episodes with the next call of `collect`."""
        self._fresh_next = True

    def close(self) -> None:
        """Close the envs."""
        self.env.close()


def as_env(env: Any) -> VecEnv:
    """Return a `VecEnv` as it is, and Gymnasium envs (one, a list, or a vector env) as one."""
    if isinstance(env, VecEnv):
        return env
    from gymnasium import Env
    from gymnasium.vector import VectorEnv

    from striderl.envs.gymnasium.env import GymnasiumEnv

    if isinstance(env, VectorEnv):
        return GymnasiumEnv(env)
    if isinstance(env, Env):
        return as_vec_env([env])
    if isinstance(env, (list, tuple)) and env and all(isinstance(each, Env) for each in env):
        return as_vec_env(list(env))
    raise TypeError(
        "Collector wants a VecEnv, a Gymnasium env, a Gymnasium vector env or a list of envs, "
        f"found {type(env).__name__}"
    )
