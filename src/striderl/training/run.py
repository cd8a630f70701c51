"""`Run`: a config and a folder become a training run that can be stopped at any time and goes on where it stopped.

    run = Run(config, folder)          env, policy, algorithm, collector, trainer; nothing is trained yet
    run.restore()                      go on from the newest good checkpoint, if there is one
    outcome = run.drive(signals)       until the plan is fulfilled, a rule says stop, or a signal comes

    record ─▶ Stop (time) ─▶ Evaluate ─▶ Video ─▶ Log ─▶ Progress ─▶ Stop (target) ─▶ Save

A signal lets the present phase of the iteration finish, which takes at most seconds; an evaluation or a video is broken
off and done again after the resume. Then everything is saved, in the middle of an iteration if need be. A resumed run
has the bits of one that was never stopped, where the env can save its state (tier A); where it cannot, new episodes
begin and the log says so (tier B).
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from striderl.checkpoint.errors import CheckpointError, CheckpointMissing
from striderl.checkpoint.layout import check_layout, describe
from striderl.checkpoint.store import CheckpointStore
from striderl.collect.actors import Acted, Actor
from striderl.data import tree
from striderl.envs.tasks import make
from striderl.envs.vec_env import VecEnv
from striderl.loggers.console_logger import ConsoleLogger
from striderl.loggers.table import make_loggers
from striderl.training.algorithm_entry import Learner
from striderl.training.algorithm_table import algorithm_entry
from striderl.training.config_json import to_plain
from striderl.training.consumers.consumer import Consumer
from striderl.training.consumers.evaluate import Evaluate
from striderl.training.consumers.log import Log
from striderl.training.consumers.progress import Progress
from striderl.training.consumers.save import Save
from striderl.training.consumers.stop import Stop
from striderl.training.consumers.stop_rules import Budget, Threshold
from striderl.training.consumers.video import Video
from striderl.training.record import Record
from striderl.training.run_config import RunConfig
from striderl.training.run_folder import RunFolder
from striderl.training.run_specs import write_specs
from striderl.training.signals import Interrupted, StopSignals
from striderl.training.trainer import Trainer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    reason: str
    """Why: the plan, a stop rule, or the name of a signal."""
    exit_code: int
    """0, or 143 (SIGTERM) and 130 (SIGINT)."""
    record: Record | None
    """The last record, if there was any."""


class Run:
    """Everything that one run needs, built in order; see the top of this module."""

    def __init__(
        self,
        config: RunConfig[Any, Any],
        folder: RunFolder,
        *,
        signals: StopSignals | None = None,
        watchers: Sequence[Consumer] = (),
    ) -> None:
        """Build the parts; what does not fit is named here. `watchers` see every record before it is logged."""
        require_device(config.device)
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        self.config, self.folder = config, folder
        self.signals = signals if signals is not None else StopSignals()
        self.store = CheckpointStore(folder.checkpoints, config.checkpoints.keep_last)
        self.env = _make_env(config, config.env.num_envs)
        self.learner: Learner = algorithm_entry(config.algorithm_name).learner(config, self.env)
        write_specs(folder.path, self.env.obs_spec, self.env.action_spec, self.env.step_dt)
        self.evaluation = self._evaluation()
        self.log = Log(*make_loggers(("csv", "jsonl", *config.logging.trackers), folder.path))
        for logger in self.log.loggers:
            logger.config(to_plain(config))
        consumers: list[Consumer] = [
            self._time_limit(),
            self.evaluation,
            *self._video(),
            *watchers,
            self.log,
            *self._progress(),
            self._target(),
            self._save(),
        ]
        self.trainer: Trainer = self.learner.trainer(consumers)
        self._saved_step = -1

    # -- the parts -----------------------------------------------------------------------------------------------------

    def _evaluation(self) -> Evaluate:
        settings = self.config.evaluation
        return Evaluate(
            _make_env(self.config, min(settings.num_envs, settings.num_episodes)),
            Stoppable(self.learner.greedy, self.signals),
            every=settings.every,
            n_episode=settings.num_episodes,
            seed=settings.seed,
            at_end=settings.at_end,
        )

    def _video(self) -> list[Consumer]:
        settings = self.config.logging
        if not settings.video_every:
            return []
        return [
            Video(
                _make_env(self.config, 1),
                Stoppable(self.learner.greedy, self.signals),
                self.folder.videos,
                loggers=self.log.loggers,
                every=settings.video_every,
                num_steps=num_video_steps(settings.video_seconds, self.env.step_dt),
                seed=self.config.evaluation.seed,
            )
        ]

    def _progress(self) -> list[Consumer]:
        settings = self.config.logging
        if settings.console == "off":
            return []
        live = {"auto": sys.stdout.isatty(), "rich": True, "plain": False}[settings.console]
        console = ConsoleLogger(title=self.config.env.task, live=live)
        return [Progress(console, every=1 if live else settings.console_every)]

    def _time_limit(self) -> Stop:
        # before the evaluation, which is to know that this iteration is the last; there without a limit as well, so
        # that a resumed run may get one
        return Stop(Budget(seconds=self.config.stop.max_seconds or math.inf))

    def _target(self) -> Stop:
        settings = self.config.stop
        return Stop(Threshold(settings.metric, settings.value, mode=settings.mode, times=settings.times))

    def _save(self) -> Save:
        settings = self.config.checkpoints
        return Save(self._keep, every=settings.every, best=settings.best, mode=settings.mode)

    # -- saving and going on -------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Save the present state, whatever phase it is in; a failure is logged, and training may go on."""
        self._keep(self.trainer.state_dict(), "last")

    def _keep(self, state: dict[str, Any], name: str) -> None:
        step = int(state["env_steps"])
        if name != "best" and step == self._saved_step:
            return  # 'iteration_50' and 'last' of one record are one and the same state
        try:
            self.store.save(state, step=step, best=name == "best", config=to_plain(self.config), layout=self._layout())
        except CheckpointError as error:
            _log.error("not saved: %s", error)
            return
        self._saved_step = step

    def _layout(self) -> dict[str, Any]:
        seen = [name for name, part in self.env.obs_spec.items() if part.dtype.startswith("float")]
        normalized = seen if self.config.policy.normalize_obs else []
        return describe(self.env.obs_spec, self.env.action_spec, normalized=normalized)

    def restore(self) -> bool:
        """Go on from the newest good checkpoint; returns whether there is one."""
        try:
            checkpoint = self.store.load("last")
        except CheckpointMissing:
            _log.warning("%s holds no checkpoint; the run starts from the beginning", self.folder.path)
            self.log.resume_at(0)
            return False
        check_layout(checkpoint.layout, self._layout(), where=str(checkpoint.path))
        state = _on_device(checkpoint.state, self.env.device)
        self.trainer.load_state_dict(state)
        self._saved_step = checkpoint.step
        if state["collector"]["env"] is None:
            _log.warning(
                "resumed on tier B: %s cannot save its state, so new episodes begin; policy, optimiser, normalisers "
                "and counters go on exactly",
                type(self.env).__name__,
            )
        return True

    # -- training ------------------------------------------------------------------------------------------------------

    def drive(self) -> Outcome:
        """Train until the run is over or a signal comes; everything is closed afterwards."""
        try:
            while not self.trainer.finished and not self.signals.received:
                self._advance()
            if self.signals.received:
                return self._leave()
            return self._outcome(self.trainer.stop_reason or "the plan is fulfilled", 0)
        finally:
            self.close()

    def _advance(self) -> None:
        try:
            self.trainer.advance()
        except Interrupted:
            self.trainer.repeat_consumer()

    def _leave(self) -> Outcome:
        """Save after a signal."""
        steps = self.trainer.env_steps
        between = self.trainer.phase == self.trainer.regime.phases[0]
        if steps and not (between and steps == self._saved_step):
            self._saved_step = -1  # the same number of steps may by now stand for a later phase
            self.save()
        return self._outcome(self.signals.name, self.signals.exit_code)

    def _outcome(self, reason: str, exit_code: int) -> Outcome:
        return Outcome(reason=reason, exit_code=exit_code, record=self.trainer.record)

    def close(self) -> None:
        """Close loggers and envs; calling it twice is fine."""
        self.trainer.close()


class Stoppable:
    """An actor that lets go between two steps when a signal has come."""

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

    def act(self, obs: dict[str, Tensor], state: Any, noise: Mapping[str, Tensor]) -> Acted:
        """Act, unless the run was asked to stop."""
        self.signals.check()
        return self.actor.act(obs, state, noise)


def require_device(name: str) -> None:
    """Raise ValueError when tensors cannot live there."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the device {name!r} cannot be used here: {reason}") from error


def num_video_steps(seconds: float, step_dt: float) -> int:
    """Return how many steps so many seconds are; where the task's time has no unit, 25 steps are a second."""
    return max(1, round(seconds / (step_dt or 0.04)))


def _make_env(config: RunConfig[Any, Any], num_envs: int) -> VecEnv:
    return make(config.env.task, num_envs=num_envs, device=config.device, settings=config.env.settings)


def _on_device(state: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a loaded state with what the collector and the storage hold on the device; envs take care of theirs."""
    if device.type == "cpu":
        return dict(state)

    def moved(part: Any) -> Any:
        return tree.map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, part)

    collector = {**state["collector"], "groups": moved(state["collector"]["groups"])}
    collector["statistics"] = moved(collector["statistics"])
    return {**state, "collector": collector, **{name: moved(state[name]) for name in ("rollout",) if name in state}}
