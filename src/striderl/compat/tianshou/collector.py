"""`Collector(policy, env, buffer)`: a policy plays, a `ReplayBuffer` is filled, in the words of Tianshou.

    collector = Collector(policy, DummyVectorEnv([make_env] * 8), ReplayBuffer(20_000))
    collector.collect(n_step=100)                          at least 100 steps: those of whole episodes
    collector.collect(n_episode=5)                         at least 5 episodes; [2, 3]: exactly so many of each env
    collector.collect(n_step=1000, random=True)            random actions

It returns {"n/ep", "n/st", "v/st", "v/ep", "rew", "len"}: episodes that ended, steps stored, both per second, and the
mean return and length of the episodes (nan when none ended).

Steps wait until their episode has ended, so that it lies in the one ring in one piece; what is under way at the end of
a call goes on in the next. A `VectorReplayBuffer` has a ring for each env, as later Tianshou: there steps are stored as
they come, and n_step is exact. `whole_episodes` chooses the other way of counting, where there is one. `reward_metric`
makes one number of the mean return where an env gives several rewards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from striderl.compat.tianshou.base_policy import BasePolicy
from striderl.compat.tianshou.env import BaseVectorEnv, DummyVectorEnv
from striderl.compat.tianshou.env_stepping import Collected, EnvStepping, Request
from striderl.compat.tianshou.exploration import BaseNoise
from striderl.compat.tianshou.vec_env_stepping import VecEnvStepping
from striderl.data.checked_fields import refuse_assignment
from striderl.data.naming import AssertedValueError
from striderl.envs.vec_env import VecEnv
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.storage.replay_buffer.kinds import VectorReplayBuffer


class Collector:
    """Plays a policy and fills a buffer; see the top of this module."""

    def __init__(
        self,
        policy: BasePolicy,
        env: Any,
        buffer: ReplayBuffer | None = None,
        preprocess_fn: Callable[..., Any] | None = None,
        action_noise: BaseNoise | None = None,
        reward_metric: Callable[[Any], float] | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        """Take a policy, envs and where their steps go; envs are reset by the first call of `collect`.

        `env` is a vector env of `striderl.compat.tianshou.env`, an env of Gymnasium or older Gym, a list of them, a
        Gymnasium vector env, or a `VecEnv`. `preprocess_fn(obs, act, rew, done, obs_next, info, policy, state)` returns
        what to store otherwise, by key, and `preprocess_fn(obs)` first observations. `action_noise(shape)` is added to
        actions.
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
        self.env_num = self.env.num_envs if isinstance(self.env, VecEnv) else len(self.env)
        if isinstance(buffer, VectorReplayBuffer) and buffer.buffer_num != self.env_num:
            raise ValueError(f"the buffer has buffer_num={buffer.buffer_num}, the env has {self.env_num} envs")
        self._reward_metric = reward_metric
        self._noise = action_noise
        self._stepping: EnvStepping | VecEnvStepping
        if isinstance(self.env, VecEnv):
            if preprocess_fn is not None or action_noise is not None:
                raise ValueError(
                    f"preprocess_fn and action_noise want envs that are stepped one by one, found {type(env).__name__};"
                    " build DummyVectorEnv([make_env, …]), or do it in the policy"
                )
            self._stepping = VecEnvStepping(policy, self.env, buffer, seed or 0)
        else:
            if not isinstance(env, BaseVectorEnv) or seed is not None:
                self.env.seed(seed or 0)
            self._stepping = EnvStepping(policy, self.env, buffer, preprocess_fn, action_noise)
        self._starts = True  # this reset leaves the steps of the buffer, and is there for subclasses
        self.reset()
        self._starts = False

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_assignment(self, name, parts=("policy", "buffer", "env"))
        super().__setattr__(name, value)

    def get_env_num(self) -> int:
        """Return how many envs there are."""
        return self.env_num

    # -- collecting ----------------------------------------------------------------------------------------------------

    def collect(
        self,
        n_step: int | None = None,
        n_episode: int | Sequence[int] | None = None,
        random: bool = False,
        render: float | None = None,
        no_grad: bool = True,
        *,
        whole_episodes: bool | None = None,
    ) -> dict[str, Any]:
        """Collect steps or episodes, see the top of this module, and return what was collected.

        `render` is the time in seconds between two frames that are shown, `no_grad=False` lets the policy act with
        gradients. Changing between the two ways of counting steps starts new episodes.
        """
        vector = isinstance(self.buffer, VectorReplayBuffer)
        request = Request(
            n_step=_count(n_step, "n_step"),
            n_episode=self._episodes(n_episode),
            random=random,
            render=render,
            no_grad=no_grad,
            whole_episodes=n_episode is not None or (not vector if whole_episodes is None else whole_episodes),
        )
        if (n_step is None) == (n_episode is None):
            found = f"{n_step} and {n_episode}"
            raise AssertedValueError(f"collect wants exactly one of n_step and n_episode, found {found}")
        if not request.whole_episodes and not vector and self.env_num > 1 and self.buffer is not None:
            raise ValueError(
                f"steps of {self.env_num} envs cannot share one ring as they come: use VectorReplayBuffer(size, "
                f"{self.env_num}), or leave whole_episodes out"
            )
        if render and isinstance(self._stepping, VecEnvStepping):
            raise ValueError("render wants envs that are stepped one by one: build DummyVectorEnv([make_env, …])")
        started = time.perf_counter()
        collected = self._stepping.collect(request)
        return self._result(collected, time.perf_counter() - started)

    def _episodes(self, n_episode: Any) -> int | list[int] | None:
        if n_episode is None or isinstance(n_episode, (int, np.integer)):
            return _count(n_episode, "n_episode")
        quota = [int(each) for each in n_episode]
        if len(quota) != self.env_num or sum(quota) < 1:
            raise AssertedValueError(
                f"n_episode is one number for each of {self.env_num} envs, at least one of them above 0, found {quota}"
            )
        return quota

    def _result(self, found: Collected, seconds: float) -> dict[str, Any]:
        seconds, episodes = max(seconds, 1e-9), len(found.returns)
        self.collect_step += found.num_steps
        self.collect_episode += episodes
        self.collect_time += seconds
        return {
            "n/ep": episodes,
            "n/st": found.num_steps,
            "v/st": found.num_steps / seconds,
            "v/ep": episodes / seconds,
            "rew": self._mean_return(found.returns),
            "len": sum(found.lengths) / episodes if episodes else math.nan,
        }

    def _mean_return(self, returns: list[Any]) -> Any:
        if not returns:
            return math.nan
        mean = np.mean(np.asarray(returns, np.float64), axis=0)
        if mean.size == 1:
            return float(mean.reshape(()))
        return (self._reward_metric or Collector._default_rew_metric)(mean)

    @staticmethod
    def _default_rew_metric(mean: Any) -> float:
        """Raise: only a `reward_metric` can make one number of several."""
        raise AssertedValueError(
            f"the env gives {mean.size} rewards; Collector(reward_metric=…) must make one number of their mean"
        )

    # -- starting anew -------------------------------------------------------------------------------------------------

    @property
    def data(self) -> Any:
        """The last rows that the policy was shown or will be, by key; empty for a `VecEnv`."""
        return self._stepping.data if isinstance(self._stepping, EnvStepping) else None

    def reset(self) -> None:
        """Forget all steps and counts, and start new episodes; the constructor calls it, and there no step is lost."""
        self.reset_stat()
        self.reset_buffer()
        self.reset_env()
        if self._noise is not None:
            self._noise.reset()

    def reset_stat(self) -> None:
        """Count steps, episodes and time from zero."""
        self.collect_step, self.collect_episode, self.collect_time = 0, 0, 0.0

    def reset_buffer(self) -> None:
        """Forget all steps; episodes that are under way go on."""
        if self.buffer is not None and not self._starts:
            self.buffer.reset()

    def reset_env(self) -> None:
        """Start new episodes with the next call of `collect`."""
        self._stepping.reset_env()

    def seed(self, seed: int | Sequence[int] | None = None) -> Any:
        """Seed the envs and start new episodes with the next call of `collect`."""
        self.reset_env()
        if isinstance(self.env, VecEnv):
            return self.env.reset(seed=seed if seed is None else int(seed))  # type: ignore[arg-type]
        return self.env.seed(seed)

    def render(self, **kwargs: Any) -> Any:
        """Render the envs."""
        return self.env.render(**kwargs)

    def close(self) -> None:
        """Close the envs."""
        self.env.close()


def _count(value: Any, name: str) -> int | None:
    if value is not None and value < 1:
        raise AssertedValueError(f"{name} is at least 1, found {value}")
    return None if value is None else int(value)


def as_env(env: Any) -> BaseVectorEnv | VecEnv:
    """Return vector envs as they are, a Gymnasium vector env as a `VecEnv`, and single envs behind one vector env."""
    if isinstance(env, (VecEnv, BaseVectorEnv)):
        return env
    from gymnasium.vector import VectorEnv

    from striderl.envs.gymnasium.env import GymnasiumEnv

    if isinstance(env, VectorEnv):
        return GymnasiumEnv(env)
    envs = list(env) if isinstance(env, (list, tuple)) else [env]
    if not envs or not all(hasattr(each, "step") and hasattr(each, "reset") for each in envs):
        raise TypeError(
            f"Collector wants a vector env, an env with reset and step, or a list of envs, found {type(env).__name__}"
        )
    return DummyVectorEnv([lambda built=each: built for each in envs])  # type: ignore[misc]
