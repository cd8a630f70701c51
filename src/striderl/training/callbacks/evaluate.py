"""`Evaluate`: run whole episodes in envs of its own, every n iterations."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from striderl.checkpoint.errors import FileRefused
from striderl.collect.actors.base import Actor
from striderl.collect.trace import TraceRecorder, write_trace
from striderl.envs.vec_env import VecEnv
from striderl.training.callbacks.callback import NOTHING, Reaction, RunningTrainer, is_due
from striderl.training.evaluation import EvaluationResult, evaluate
from striderl.training.record import Record
from striderl.training.video import MOST_TRACED

_log = logging.getLogger(__name__)


class Evaluate:
    """Add 'evaluate/return_mean' and others to the record.

    Envs, seed and actor are its own, so training is unaffected; a `GreedyActor` over the learning policy acts
    deterministically. The seed is the same each time, so that two evaluations differ in the policy and in nothing else.
    """

    SAVED_NAME: ClassVar[str] = "Evaluate"

    def __init__(
        self,
        env: VecEnv,
        actor: Actor,
        *,
        every: int = 10,
        every_steps: int = 0,
        n_episode: int = 10,
        seed: int = 0,
        at_end: bool = True,
        trace: Path | None = None,
    ) -> None:
        """Evaluate every `every` iterations (0: never), and after the last one unless disabled.

        With `every_steps`, evaluate instead after each iteration in which that many more env steps are complete. The
        first episode of the last evaluation is written to the file `trace`, for the report.
        """
        if not isinstance(env, VecEnv):
            raise TypeError(f"Evaluate wants a VecEnv of its own, found {type(env).__name__}")
        if min(every, every_steps) < 0 or n_episode < 1:
            raise ValueError(
                "Evaluate: every and every_steps are not negative and n_episode is at least 1, "
                f"found {every}, {every_steps} and {n_episode}"
            )
        self.env, self.actor = env, actor
        self.every, self.every_steps, self.n_episode = every, every_steps, n_episode
        self.seed, self.at_end, self.trace = seed, at_end, trace
        self.result: EvaluationResult | None = None
        """Result of this process's last evaluation, episode by episode."""

    def on_iteration(self, record: Record, run: RunningTrainer) -> Reaction:
        """Evaluate, if it is time."""
        if not self._due(record) and not (self.at_end and run.ending):
            return NOTHING
        began = time.perf_counter()
        self.result = self.play() if self.trace is None or not run.ending else self._play_and_trace(self.trace)
        metrics = {f"evaluate/{name}": value for name, value in self.result.numbers().items()}
        return Reaction(metrics=metrics, seconds={"evaluation": time.perf_counter() - began})

    def play(self) -> EvaluationResult:
        """Play the episodes and return their returns and metrics."""
        return evaluate(self.env, self.actor, self.n_episode, self.seed)

    def _play_and_trace(self, path: Path) -> EvaluationResult:
        """Play the episodes, and write the steps of the first one."""
        recorder = TraceRecorder(MOST_TRACED)
        result = evaluate(self.env, self.actor, self.n_episode, self.seed, recorder=recorder)
        try:
            write_trace(path, recorder.trace(0, seed=self.seed, step_dt=self.env.step_dt))
        except (OSError, FileRefused) as error:  # a full disk must not end a run for the sake of a picture
            _log.warning("no trace of the evaluation: %s", error)
        return result

    def _due(self, record: Record) -> bool:
        if not self.every_steps:
            return is_due(record.iteration, self.every)
        before = record.env_steps - record.num_steps
        return record.env_steps // self.every_steps > before // self.every_steps

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: every evaluation starts from the seed."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load nothing."""

    def close(self) -> None:
        """Close the env."""
        self.env.close()
