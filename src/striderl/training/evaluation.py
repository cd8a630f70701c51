"""Evaluate an actor over whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from striderl.collect.actors.base import Actor, ActorOutput
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.trace import TracedStep, TraceRecorder
from striderl.data.transition import Transition
from striderl.envs.vec_env import VecEnv
from striderl.ops.statistics import confidence_interval, mean, standard_deviation
from striderl.training.signals import StopSignals

EVALUATED = ("return_mean", "return_std", "return_low", "return_high", "length_mean", "episodes")
"""Metrics of every evaluation; those that the env measures are added."""


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Returns, lengths and metrics of whole episodes, ordered by env."""

    returns: tuple[float, ...]
    """The undiscounted return of each episode."""
    lengths: tuple[int, ...]
    """The length of each episode."""
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """What the env measures, at the end of each episode: tracking error, cost of transport, …"""

    @property
    def mean(self) -> float:
        """The mean return."""
        return mean(self.returns)

    @property
    def std(self) -> float:
        """The standard deviation of the returns, with n - 1; 0 for one episode."""
        return standard_deviation(self.returns)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the mean return."""
        return confidence_interval(self.returns)

    def numbers(self) -> dict[str, float]:
        """Return means for a log."""
        low, high = self.interval
        return {
            "return_mean": self.mean,
            "return_std": self.std,
            "return_low": low,
            "return_high": high,
            "length_mean": mean(self.lengths),
            "episodes": float(len(self.returns)),
            **{name: mean(values) for name, values in self.metrics.items()},
        }


def evaluate(
    env: VecEnv,
    actor: Actor,
    n_episode: int | Sequence[int],
    seed: int = 0,
    *,
    progress: Callable[[float], None] | None = None,
    recorder: TraceRecorder | None = None,
) -> EvaluationResult:
    """Run exactly so many episodes (in all, or for each env) from the seed; the env is reset and left mid-way.

    Each env contributes its share, so that short episodes are not preferred; see `Collector.collect`. `progress` gets
    the share of episodes that are over, `recorder` the steps of the first episode of env 0.
    """
    # a new collector resets with its seed, so the result does not depend on earlier episodes
    collector = Collector(env, actor, CollectorConfig(seed=seed))
    total = n_episode if isinstance(n_episode, int) else sum(n_episode)
    ended = None if progress is None else lambda count: progress(count / max(1, total))
    noted = _EpisodeMetrics(env, ended, recorder)
    collected = collector.collect(n_episode=n_episode, storage=noted)
    return EvaluationResult(returns=tuple(collected.returns), lengths=tuple(collected.lengths), metrics=noted.by_name())


class _EpisodeMetrics:
    """Take the place of a storage and keep the env's metrics whenever an episode ends."""

    balanced = False

    def __init__(
        self, env: VecEnv, ended: Callable[[int], None] | None = None, recorder: TraceRecorder | None = None
    ) -> None:
        self.env, self._ended, self._recorder = env, ended, recorder
        self._noted: list[list[dict[str, float]]] = [[] for _ in range(env.num_envs)]
        self._spoiled = [False] * env.num_envs

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Keep the metrics of episodes that have just ended; those with an invalid sample do not count."""
        assert envs is not None, "the collector names the envs"
        done, valid = transition.done.tolist(), transition.valid.tolist()
        if self._recorder is not None and envs.start == 0:
            step = TracedStep(
                transition.obs, transition.act, transition.rew, transition.terminated, transition.truncated
            )
            self._recorder.add(step.row(0))  # one of many envs: to keep the others would fill the memory
            self._recorder = None if done[0] else self._recorder
        numbers = {name: value.tolist() for name, value in self.env.metrics().items()} if any(done) else {}
        for offset, env in enumerate(range(envs.start, envs.stop)):
            self._spoiled[env] = self._spoiled[env] or not valid[offset]
            if done[offset]:
                if not self._spoiled[env]:
                    self._noted[env].append({name: value[env] for name, value in numbers.items()})
                self._spoiled[env] = False
        if self._ended is not None and any(done):
            self._ended(sum(len(noted) for noted in self._noted))

    def by_name(self) -> dict[str, tuple[float, ...]]:
        """Return each metric of all episodes, env by env."""
        episodes = [episode for noted in self._noted for episode in noted]
        names = episodes[0] if episodes else {}
        return {name: tuple(episode[name] for episode in episodes) for name in names}


class Stoppable:
    """An actor that raises between two steps after a signal."""

    def __init__(self, actor: Actor, signals: StopSignals) -> None:
        """Wrap the actor of an evaluation or a video."""
        self.actor, self.signals = actor, signals

    def columns(self) -> Any:
        """Return the actor's."""
        return self.actor.columns()

    def noise(self) -> Any:
        """Return the actor's."""
        return self.actor.noise()

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return the actor's."""
        return self.actor.initial_state(num_envs, device)

    def act(self, obs: dict[str, Tensor], state: Any, noise: Mapping[str, Tensor]) -> ActorOutput:
        """Act, or raise after a signal."""
        self.signals.check()
        return self.actor.act(obs, state, noise)
