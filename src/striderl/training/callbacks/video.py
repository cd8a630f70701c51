"""`Video`: record a video of an episode every n iterations, and log it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from striderl.collect.actors.base import Actor
from striderl.envs.vec_env import VecEnv
from striderl.loggers.guarded import guard_all
from striderl.loggers.logger import Logger
from striderl.training.callbacks.callback import NOTHING, Reaction, RunningTrainer, is_due
from striderl.training.record import Record
from striderl.training.video import record_video

_log = logging.getLogger(__name__)


class Video:
    """Write '<folder>/step_<n>.mp4', its steps beside it, and log it under the name 'video/episode'.

    Env, seed and actor are its own, so training is unaffected. The seed is the same each time: two videos differ in the
    policy and in nothing else. A video that cannot be rendered or written logs one warning, and training continues.
    """

    SAVED_NAME: ClassVar[str] = "Video"

    def __init__(
        self,
        env: VecEnv,
        actor: Actor,
        folder: str | Path,
        *,
        loggers: Iterable[Logger] = (),
        every: int = 100,
        num_steps: int = 0,
        seed: int = 0,
        at_end: bool = True,
    ) -> None:
        """Record every `every` iterations (0: never), and after the last one unless disabled.

        A video ends with the episode or after num_steps; 0 means the env's time limit, or 500 where there is none.
        """
        if not isinstance(env, VecEnv):
            raise TypeError(f"Video wants a VecEnv of its own, found {type(env).__name__}")
        if every < 0 or num_steps < 0:
            raise ValueError(f"Video: every and num_steps are not negative, found {every} and {num_steps}")
        self.env, self.actor, self.folder = env, actor, Path(folder)
        self.loggers = guard_all(loggers)
        self.every, self.seed, self.at_end = every, seed, at_end
        self.num_steps = num_steps or env.max_episode_length or 500
        self.failed = 0
        """How many videos could not be made."""

    def on_iteration(self, record: Record, run: RunningTrainer) -> Reaction:
        """Record a video, if it is time."""
        if not is_due(record.iteration, self.every) and not (self.at_end and run.ending):
            return NOTHING
        began = time.perf_counter()
        self._film(record.step)
        return Reaction(seconds={"video": time.perf_counter() - began})

    def _film(self, step: int) -> None:
        path = self.folder / f"step_{step}.mp4"
        try:
            record_video(self.env, self.actor, path, self.num_steps, self.seed, whole_episode=True, trace=True)
        # drivers, encoders, disks and tasks fail in ways of their own; a video must not end a run
        except Exception as error:  # noqa: BLE001
            self.failed += 1
            if self.failed == 1:
                _log.warning("no video of step %d: %s: %s. Training goes on", step, type(error).__name__, error)
            return
        for logger in self.loggers:
            logger.video(step, "video/episode", path)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: every video starts from the seed."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load nothing."""

    def close(self) -> None:
        """Close the env and the loggers."""
        self.env.close()
        for logger in self.loggers:
            logger.close()
