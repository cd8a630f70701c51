"""`Run`: a training run from a config and a folder that can be stopped at any time and resumed.

    run = Run(config, folder)          env, policy, algorithm, collector, trainer; nothing is trained yet
    run.restore()                      resume from the newest valid checkpoint, if there is one
    outcome = run.drive()              until the plan is fulfilled, a stop rule applies, or a signal arrives

    record ─▶ Stop (time) ─▶ Evaluate ─▶ Video ─▶ Log ─▶ Progress ─▶ Stop (target) ─▶ Save

With `ranks`, several processes make one run: each has a part of the envs, and rank 0 alone has the callbacks and writes
to the folder. A checkpoint holds the parts of all; a signal to one of them stops all, at the same point.

After a signal the present phase of the iteration finishes, which takes at most seconds; an evaluation or a video is
aborted and repeated after the resume. Then everything is saved, in the middle of an iteration if need be. A resumed run
is bit-identical to one that was never stopped where the env can save its state; where it cannot, new episodes
begin and this is logged.
"""

from __future__ import annotations

import inspect
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from striderl.checkpoint.errors import CheckpointError, CheckpointMissing
from striderl.checkpoint.layout import check_layout
from striderl.checkpoint.store import CheckpointStore
from striderl.checkpoint.trust import content_digest
from striderl.data.naming import unknown
from striderl.data.registry import CALLBACKS
from striderl.envs.tasks import make
from striderl.envs.vec_env import VecEnv
from striderl.loggers.console_logger import ConsoleLogger
from striderl.loggers.file_loggers import CsvLogger, JsonlLogger
from striderl.loggers.logger import Logger
from striderl.loggers.table import make_logger, make_loggers
from striderl.training.callbacks.callback import Callback, as_callback
from striderl.training.callbacks.evaluate import Evaluate
from striderl.training.callbacks.log import Log
from striderl.training.callbacks.progress import Progress
from striderl.training.callbacks.save import Save
from striderl.training.callbacks.stop import Budget, Stop, Threshold, UnknownMetricError, WantedMetrics
from striderl.training.callbacks.video import Video
from striderl.training.checks import require_device, use_tf32
from striderl.training.distributed import RankLostError, Ranks, joined_state, own_state, states_of_ranks
from striderl.training.evaluation import EVALUATED, Stoppable
from striderl.training.experiment.assembly import (
    build_learner,
    check_ranks,
    check_workers,
    env_shard,
    rescale_learning_rates,
    state_on_device,
)
from striderl.training.experiment.config_json import ConfigError
from striderl.training.experiment.run_config import CONFIG_FILE, RunConfig
from striderl.training.experiment.run_folder import SPECS_FILE, RunFolder, read_plain_specs, run_layout, write_specs
from striderl.training.experiment.run_lock import FolderLock, FolderLockedError
from striderl.training.experiment.seal import accepted_content, write_sealed
from striderl.training.experiment.worker_fleet import WorkersError
from striderl.training.guard import FAULTS_FILE, DivergedError, FaultReport
from striderl.training.plans import OffPolicyPlan, OnPolicyPlan
from striderl.training.record import Record
from striderl.training.signals import Interrupted, StopSignals
from striderl.training.trainer import Trainer, place_of

_log = logging.getLogger(__name__)

MEGABYTE = 1_000_000
"""Bytes of a megabyte of `LoggingSettings.file_megabytes`."""


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run ended."""

    reason: str
    """Why: the plan, a stop rule, or the name of a signal."""
    exit_code: int
    """0, or 143 (SIGTERM), 130 (SIGINT) and 129 (SIGHUP), or 1 when nothing could be learned for too long."""
    record: Record | None
    """The last record, if there was any."""
    saved: bool = True
    """Whether the final state is on the disk; where saving failed (a full disk), the log has the reason."""


class Run:
    """Everything that one run needs, built in order; see the top of this module."""

    def __init__(
        self,
        config: RunConfig[Any, Any],
        folder: RunFolder,
        *,
        signals: StopSignals | None = None,
        watchers: Sequence[Callback] = (),
        accept_changes: bool = False,
        ranks: Ranks | None = None,
        objects: Mapping[str, Any] | None = None,
        at_end: Callable[[RunFolder], Sequence[Path]] | None = None,
    ) -> None:
        """Take the folder's lock and build the parts; raise naming those that do not fit.

        watchers: callbacks that get every record before it is logged.
        at_end: called when training has ended, whatever the reason; the files that it returns are given to the loggers.
        objects: live parts that a config cannot hold: 'env' (an env, a class or a function), 'teacher', 'expert', …
        accept_changes: whether specs.json is rewritten where it is not as the run left it.
        ranks: the processes that train this run together; rank 0 has the lock and writes.
        """
        self.ranks = ranks if ranks is not None else Ranks()
        check_ranks(config, self.ranks.world_size)
        self.objects, self.at_end = dict(objects or {}), at_end
        self.lock = FolderLock(folder.path) if self.ranks.is_main else None
        try:
            self._build(config, folder, signals, watchers, accept_changes)
        except BaseException:
            if config.workers.kind and hasattr(self, "env"):
                self.env.close()
            self._unlock()
            raise

    def _build(
        self,
        config: RunConfig[Any, Any],
        folder: RunFolder,
        signals: StopSignals | None,
        watchers: Sequence[Callback],
        accept_changes: bool,
    ) -> None:
        require_device(config.device)
        folder.check_files()
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        if config.tf32:
            use_tf32(torch.device(config.device))
        self.config, self.folder = config, folder
        self.signals = signals if signals is not None else StopSignals()
        self.store = CheckpointStore(folder.checkpoints, config.checkpoints.keep_last)
        check_workers(config, self.ranks.world_size, self.objects)
        if config.workers.kind:
            from striderl.training.experiment.remote_collector import build_with_workers

            self.env, self.learner = build_with_workers(config)
        else:
            count, first = env_shard(config, self.ranks)
            self.env = self._make_env(count, first_env_index=first, num_processes=config.env.num_processes)
            self.learner = build_learner(config, self.env, self.ranks, self.objects)
        watchers = [*watchers, *(as_callback(CALLBACKS.get(name)()) for name in config.callbacks)]
        callbacks = self._of_main(watchers, accept_changes) if self.ranks.is_main else []
        self.trainer: Trainer = self.learner.trainer([*callbacks, self._save()])
        guard = self.trainer.loop.guard
        guard.patience, guard.min_valid = config.stop.bad_iterations, config.stop.min_valid
        if self.ranks.is_main:
            self._faults.write_to(folder.path / FAULTS_FILE)
        self._wanted = self._wanted_metrics(open_ended=bool(watchers))
        self._saved: tuple[Any, ...] = ()
        self._trouble: set[str] = set()

    def _is_live(self) -> bool:
        """Return whether the run was built with an env object rather than an env factory."""
        env = self.objects.get("env")
        return env is not None and not inspect.isclass(env) and hasattr(env, "step")

    def _make_env(
        self, num_envs: int, *, filmed: bool = False, first_env_index: int = 0, num_processes: int = 0
    ) -> VecEnv:
        return make(
            self.objects.get("env", self.config.env.task),
            num_envs=num_envs,
            device=self.config.device,
            settings=self.config.env.settings,
            filmed=filmed,
            first_env_index=first_env_index,
            num_processes=num_processes,
        )

    # -- the parts -----------------------------------------------------------------------------------------------------

    def _of_main(self, watchers: Sequence[Callback], accept_changes: bool) -> list[Callback]:
        """Return the callbacks of rank 0 and write the specs."""
        self._specs = self._sealed_specs(accept_changes)
        self.evaluation = self._evaluation()
        self._check_evaluated()
        self.log = Log(*self._loggers())
        for logger in self.log.loggers:
            logger.config(self.config.to_dict())
        return [
            self._time_limit(),
            *([] if self.evaluation is None else [self.evaluation]),
            *self._video(),
            *watchers,
            self.log,
            *self._progress(),
            self._target(),
        ]

    def _sealed_specs(self, accept_changes: bool) -> Any:
        """Write specs.json where it is missing, and return the digests for every checkpoint."""
        env, path = self.env, self.folder.path
        if self.store.steps() and (path / SPECS_FILE).exists():
            # once there are checkpoints they are kept: `restore` raises for an env that has changed
            try:
                return read_plain_specs(path)
            except ConfigError:
                if not accept_changes:
                    raise
        return write_specs(path, env.obs_spec, env.action_spec, env.step_dt, env.actuation)

    def _loggers(self) -> list[Logger]:
        settings, path = self.config.logging, self.folder.path
        size, parts = settings.file_megabytes * MEGABYTE, settings.max_files
        files = [
            make_logger("csv", lambda _: CsvLogger(self.folder.csv, max_bytes=size, max_parts=parts), path),
            make_logger("jsonl", lambda _: JsonlLogger(self.folder.json_lines, max_bytes=size, max_parts=parts), path),
        ]
        return [*(each for each in files if each is not None), *make_loggers(settings.trackers, path)]

    def _evaluation(self) -> Evaluate | None:
        """Return the evaluation; None with an env object, because it would need a second one."""
        settings = self.config.evaluation
        if self._is_live():
            return None
        if self.config.workers.kind:
            from striderl.training.experiment.remote_collector import RemoteEvaluate

            return RemoteEvaluate(self.env, self.learner.policy, settings)
        return Evaluate(
            self._make_env(min(settings.num_envs, settings.num_episodes)),
            Stoppable(self.learner.greedy, self.signals),
            every=settings.every,
            n_episode=settings.num_episodes,
            seed=settings.seed,
            at_end=settings.at_end,
            trace=self.folder.evaluation,
        )

    def _video(self) -> list[Callback]:
        settings = self.config.logging
        if not settings.video_every:
            return []
        return [
            Video(
                self._make_env(1, filmed=True),
                Stoppable(self.learner.greedy, self.signals),
                self.folder.videos,
                loggers=self.log.loggers,
                every=settings.video_every,
                num_steps=num_video_steps(settings.video_seconds, self.env.shown_dt),
                seed=self.config.evaluation.seed,
            )
        ]

    def _progress(self) -> list[Callback]:
        settings = self.config.logging
        if settings.console == "off":
            return []
        live = {"auto": sys.stdout.isatty(), "rich": True, "plain": False}[settings.console]
        console = ConsoleLogger(title=self.config.env.task, live=live)
        return [Progress(console, every=1 if live else settings.console_every)]

    def _time_limit(self) -> Stop:
        # before the evaluation, so that it sees that this iteration is the last; present without a limit as well, so
        # that a resumed run may get one
        return Stop(Budget(seconds=self.config.stop.max_seconds or math.inf))

    def _target(self) -> Stop:
        settings = self.config.stop
        return Stop(Threshold(settings.metric, settings.value, mode=settings.mode, times=settings.times))

    def _metrics_named(self) -> dict[str, str]:
        return {"stop.metric": self.config.stop.metric, "checkpoints.best": self.config.checkpoints.best}

    def _check_evaluated(self) -> None:
        """Raise, before any evaluation, for a setting that names a metric that evaluations do not have."""
        config = self.config
        for setting, name in self._metrics_named().items():
            family, _, measured = name.partition("/")
            if family != "evaluate" or (measured in EVALUATED and self.evaluation is not None):
                continue
            if self.evaluation is None:
                raise ValueError(
                    f"{setting}={name!r} is never logged: an env object cannot be evaluated beside its training; hand "
                    "over its class or a function that makes it"
                )
            env = self.evaluation.env
            env.reset(config.evaluation.seed)  # an env's metrics are available after a reset
            known = [f"evaluate/{each}" for each in (*EVALUATED, *env.metrics())]
            measures_later = len(known) == len(EVALUATED) and type(env).metrics is not VecEnv.metrics
            if name not in known and not measures_later:
                raise ValueError(unknown("metric", name, known, where=f"{setting}: the log"))
        if config.stop.metric.startswith("evaluate/") and not (config.evaluation.every or config.evaluation.at_end):
            raise ValueError(f"stop.metric={config.stop.metric!r} is never logged: evaluation.every is 0, at_end False")

    def _wanted_metrics(self, *, open_ended: bool) -> WantedMetrics:
        """Return the check for metrics that settings name."""
        # an actor may skip gradient steps, and reports in the others only
        min_updates = 1 if isinstance(self.config.plan, OnPolicyPlan) else 16
        return WantedMetrics(self._metrics_named(), min_updates=min_updates, open_ended=open_ended)

    def _save(self) -> Save:
        settings = self.config.checkpoints
        return Save(self._keep, every=settings.every, best=settings.best, mode=settings.mode)

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def save(self) -> bool:
        """Save the present state in any phase and return whether that succeeded; training may continue."""
        state = self.trainer.state_dict()
        self._keep(state, "last")
        return self._saved == place_of(state)

    def _keep(self, state: dict[str, Any], name: str) -> None:
        if self.ranks.of_main(name != "best" and self._saved == place_of(state)):
            return  # 'iteration_50' and 'last' of one record are one and the same state
        whole = joined_state(self.ranks, state)
        if self.ranks.of_main(self.ranks.is_main and self._write(whole, name)):
            self._saved = place_of(state)

    def _write(self, state: dict[str, Any], name: str) -> bool:
        """Write a state to the disk and return whether that succeeded; a failure does not end the run."""
        step, config = int(state["env_steps"]) or int(state["num_updates"]), self.config.to_dict()
        try:
            self._restore_folder()
            seal = {CONFIG_FILE: content_digest(config), SPECS_FILE: content_digest(self._specs)}
            self.store.save(state, step=step, best=name == "best", config=config, layout=self._layout(), seal=seal)
        except (CheckpointError, OSError) as error:
            self._complain(error, step)
            return False
        if self._trouble:
            _log.warning("saved again, at step %d", step)
            self._trouble.clear()
        return True

    def _complain(self, error: CheckpointError | OSError, step: int) -> None:
        """Log once per cause that a run cannot be saved: a disk stays full for many checkpoints."""
        root = error.__cause__ if isinstance(error.__cause__, OSError) else error
        cause = str(root.errno) if isinstance(root, OSError) else type(error).__name__
        if cause not in self._trouble:
            self._trouble.add(cause)
            _log.error("not saved: %s. Training goes on, and every later save is tried", error)
        else:
            _log.debug("not saved at step %d: %s", step, error)

    def _restore_folder(self) -> None:
        """Rewrite files that a resume needs if they were deleted in the meantime."""
        if (self.folder.path / CONFIG_FILE).exists():
            return
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self.folder.write_config(self.config)
        self.folder.write_versions()
        write_sealed(self.folder.path, SPECS_FILE, self._specs)
        _log.warning("%s was deleted during the run; it is made again, without what was lost", self.folder.path)
        if self.lock is not None and not self.lock.guards_the_folder():
            self.lock.release()
            try:
                self.lock = FolderLock(self.folder.path)
            except FolderLockedError as error:
                _log.error("%s", error)

    def _layout(self) -> dict[str, Any]:
        normalized = self.config.policy.normalize_obs
        return run_layout(self.env.obs_spec, self.env.action_spec, normalize_obs=normalized)

    def restore(self, *, trust: bool = False) -> bool:
        """Resume from the newest valid checkpoint; return whether there is one. For `trust` see `read_run_config`."""
        newest = partial(self._newest_states, trust)
        state = own_state(self.ranks, newest, self.trainer.state_dict, env_shard(self.config, self.ranks))
        if not state:
            return False
        state = state_on_device(state, self.env.device)
        self.trainer.load_state_dict(state)
        self._faults.resume_at(self.trainer.env_steps, self.trainer.num_updates)
        self._saved = place_of(state)
        if "collector" in state and state["collector"]["env"] is None and "reshared" not in state:
            _log.warning(
                "resumed, but not to the bit: %s cannot save its state, so new episodes begin; policy, optimiser, "
                "normalisers and counters go on exactly",
                type(self.env).__name__,
            )
        return True

    def _newest_states(self, trust: bool) -> list[dict[str, Any]]:
        """Return the state of every process that saved the newest checkpoint; nothing without one."""
        self.store.clean()
        try:
            checkpoint = self.store.load("last")
        except CheckpointMissing:
            _log.warning("%s holds no checkpoint; the run starts from the beginning", self.folder.path)
            self.log.resume_at(0)
            self._faults.resume_at(0, 0)
            return []
        check_layout(checkpoint.layout, self._layout(), where=str(checkpoint.path))
        if checkpoint.config is not None:
            before = RunConfig.from_stored(checkpoint.config, checkpoint.path, trust=trust, accepted=self.config)
            rescale_learning_rates(checkpoint.state, before, self.config, self.env, self.objects)
        return states_of_ranks(checkpoint.state)

    @property
    def _faults(self) -> FaultReport:
        return self.trainer.loop.counters.faults

    # -- training ------------------------------------------------------------------------------------------------------

    def drive(self) -> RunOutcome:
        """Train until the run is over or a signal comes; everything is closed afterwards."""
        if self.ranks.is_main:
            self._seal_config()
        try:
            outcome = self._train()
            if self.ranks.is_main and self.at_end is not None:
                for path in self.at_end(self.folder):
                    for logger in self.log.loggers:
                        logger.file(path)
            return outcome
        finally:
            self.close()

    def _train(self) -> RunOutcome:
        try:
            while not self.trainer.finished and not self._asked_to_stop():
                self._advance()
            if self._asked_to_stop():
                return self._leave(self.signals.name, self.signals.exit_code)
            if fruitless := self.trainer.loop.guard.why_fruitless(self.trainer.iteration):
                return self._leave(fruitless, 1)
            return self._outcome(self.trainer.stop_reason or "the plan is fulfilled", 0)
        except (DivergedError, UnknownMetricError) as error:
            return self._leave(str(error), 1)
        except RankLostError:  # with it go its episodes, which begin anew, but also its shard of a replay
            if self.ranks.is_main and not isinstance(self.config.plan, OffPolicyPlan):
                self._write(self.trainer.state_dict(), "last")
            raise
        except WorkersError as error:  # their states cannot be asked for any more: the last checkpoint is what there is
            return self._outcome(str(error), 1, saved=bool(self.store.steps()))

    def _seal_config(self) -> None:
        """Update config.json to the present config: a run that is built in a program may have another one."""
        config = self.config.to_dict()
        try:
            if content_digest(accepted_content(self.folder.path, CONFIG_FILE)) != content_digest(config):
                self.folder.write_config(self.config)
        except (OSError, ConfigError) as error:
            _log.error("%s is not written: %s. Training goes on", self.folder.path / CONFIG_FILE, error)

    def _asked_to_stop(self) -> bool:
        """Return whether any of the processes has received a signal; all of them return the same."""
        agreed = self.ranks.largest(self.signals.received)
        self.signals.follow(agreed)
        return bool(agreed)  # a signal that came in the meantime is seen by this process alone, and handled next time

    def _advance(self) -> None:
        try:
            phase = self.trainer.advance()
        except Interrupted:  # from an evaluation or a video; it is repeated after the resume
            if self.ranks.is_main:
                self.ranks.from_main(lambda: None)  # the others wait for its metrics, in `KeepTogether`
            return
        if phase == "consume" and self.trainer.record is not None:
            self._wanted.check(self.trainer.record)

    def _leave(self, reason: str, exit_code: int) -> RunOutcome:
        """Save before the end of the plan; a run without any step is not saved and starts over."""
        saved = self.save() if self.trainer.env_steps or self.trainer.num_updates else True
        return self._outcome(reason, exit_code, saved)

    def _outcome(self, reason: str, exit_code: int, saved: bool = True) -> RunOutcome:
        return RunOutcome(
            reason=reason,
            exit_code=exit_code,
            record=self.trainer.record,
            saved=self.ranks.of_main(saved and not self._trouble),
        )

    def close(self) -> None:
        """Close loggers and envs and release the folder; calling it twice is fine."""
        try:
            self._faults.close()
            self.trainer.close()
            self.env.close()  # offline runs have no collector to close it
        finally:
            self._unlock()

    def _unlock(self) -> None:
        if self.lock is not None:
            self.lock.release()


def num_video_steps(seconds: float, shown_dt: float) -> int:
    """Convert seconds to steps; where the env has neither a time unit nor `render_fps`, 25 steps are a second."""
    return max(1, round(seconds / (shown_dt or 0.04)))
