"""`Sweep`: many runs with settings from a search space, by Optuna, in a folder that any number of processes work on.

    sweeps/NAME/
      sweep.json          what is searched and how; base.json has the settings that all trials share
      journal.log         Optuna's journal: trials, values, evaluations (`optuna-dashboard journal.log` shows it)
      trials/0003/seed_0  an ordinary run folder for each seed of each trial
      best.json           the settings of the best trial so far: `striderl train --config best.json`

    process 1 ─┐                 ┌─ a trial whose process has died: its runs are resumed from their checkpoints
    process 2 ─┼─ sweep's lock ─▶┤
    process 3 ─┘                 └─ a new trial ─▶ train every seed ─▶ mean of the metric ─▶ journal

A process that trains a trial holds the lock of the trial's folder, which the kernel releases when the process ends,
however that is: a trial that is running in the journal and not locked is an orphan.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from striderl.checkpoint.errors import CheckpointError
from striderl.checkpoint.safe_files import check_plain, read_json, write_json
from striderl.checkpoint.store import CheckpointStore
from striderl.checkpoint.trust import remember, require_trust
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import missing_extra, unknown
from striderl.training.callbacks.callback import NOTHING, Reaction, RunningTrainer, Watcher
from striderl.training.experiment.config_json import from_plain, to_plain
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import CONFIG_FILE, RunConfig
from striderl.training.experiment.run_folder import RunFolder, copy_run, read_config_file, write_config_file
from striderl.training.experiment.run_lock import FolderLock, FolderLockedError
from striderl.training.record import Record
from striderl.training.signals import StopSignals

_log = logging.getLogger(__name__)

SWEEP_FILE, BASE_FILE, JOURNAL_FILE, BEST_FILE = "sweep.json", "base.json", "journal.log", "best.json"
PRUNED = "pruned"
"""Why a pruned run ended."""
MAX_FIRST_FAILURES = 3
"""A sweep ends when so many trials have failed and none has succeeded."""
_TURN_SECONDS = 0.05

Params = Mapping[str, Any]
"""Setting → value."""
Configure = Callable[[Params], RunConfig[Any, Any]]
"""Returns the base config with these settings changed."""


class SweepError(RuntimeError):
    """A sweep that cannot go on; the message has the reason."""


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """What a sweep searches, and how."""

    space: Mapping[str, Any] = field(default_factory=dict)
    """Setting → list of choices, or a table with low and high, and log (True: uniform in the logarithm) or step."""
    trials: int = 20
    """How many trials there are in all processes together; with the scheduler 'pbt', members of the population."""
    seeds: int = 1
    """How many runs a trial has, with seeds from the base's on; its value is their mean."""
    metrics: tuple[str, ...] = ("evaluate/return_mean",)
    """Logged metrics whose last values are to be the best; several are searched for their Pareto front."""
    modes: tuple[Literal["max", "min"], ...] = ("max",)
    """For each metric, whether large ('max') or small ('min') values are good."""
    sampler: Literal["tpe", "random"] = "tpe"
    """How settings are chosen: from what good trials had ('tpe'), or at random."""
    pruner: Literal["median", "hyperband", "none"] = "median"
    """Which trials end early, by their evaluations; none with several metrics."""
    scheduler: Literal["none", "pbt"] = "none"
    """'pbt' is population-based training: losers copy the checkpoints of winners and go on with perturbed settings."""
    interval: int = 0
    """With 'pbt': env steps between two comparisons."""
    seed: int = 0
    """Seed of the choice of settings."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not self.space:
            raise ValueError(
                "a sweep wants a space of at least one setting: --space algorithm.learning-rate=1e-4:1e-2:log"
            )
        if self.trials < 1 or self.seeds < 1 or self.seed < 0 or self.interval < 0:
            raise ValueError(
                "trials and seeds are at least 1, seed and interval not negative, found "
                f"{self.trials}, {self.seeds}, {self.seed} and {self.interval}"
            )
        if not self.metrics or len(self.metrics) != len(self.modes):
            raise ValueError(f"every metric has a mode, found {self.metrics} and {self.modes}")
        if len(self.metrics) > 1 and self.pruner != "none":
            raise ValueError(f"pruner={self.pruner!r} has no effect with several metrics; set it to 'none'")
        if self.scheduler == "pbt":
            self._check_population()
        elif self.interval:
            raise ValueError(f"interval={self.interval} has no effect without the scheduler 'pbt'")

    def _check_population(self) -> None:
        if self.trials < 2 or self.interval < 1:
            raise ValueError(
                "the scheduler 'pbt' wants at least 2 trials, the members of its population, and an interval in env "
                f"steps, found trials={self.trials} and interval={self.interval}"
            )
        if self.seeds > 1 or len(self.metrics) > 1:
            raise ValueError("with the scheduler 'pbt' a member has one seed and one metric; set seeds and metrics so")
        if self.pruner != "none":
            raise ValueError(f"pruner={self.pruner!r} has no effect with the scheduler 'pbt'; set it to 'none'")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A trial that this process trains; it holds the lock of the trial's folder."""

    trial: Any
    """The `optuna.Trial`."""
    params: Params
    """Its settings."""
    lock: FolderLock
    """The lock of its folder."""


def import_optuna() -> Any:
    """Return the module, or raise naming the extra."""
    try:
        import optuna
    except ImportError as error:
        raise ImportError(missing_extra("optuna", "tune", purpose="A sweep")) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


# -- the folder --------------------------------------------------------------------------------------------------------


def new_sweep_folder(folder: str | Path, settings: SweepSettings, base: RunConfig[Any, Any]) -> Path:
    """Make the folder of a sweep with its settings; an existing one raises."""
    path = Path(folder)
    distributions_of(settings.space)
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise FileExistsError(f"{path} exists; choose another name, or go on: striderl sweep --resume {path}") from None
    write_config_file(path / BASE_FILE, base)
    write_sweep_file(path, settings)  # last: a folder with this file is whole
    return path


def write_sweep_file(folder: Path, settings: SweepSettings) -> None:
    """Write the settings of a sweep; a space that names a module is registered as made here."""
    if modules_in_space(settings.space):
        remember(folder / SWEEP_FILE, to_plain(settings))
    write_json(folder / SWEEP_FILE, to_plain(settings))


def modules_in_space(space: Any) -> list[str]:
    """Return what texts of a space have before a colon: they become words of `striderl train`, which imports them."""
    if isinstance(space, str):
        return [space.partition(":")[0]] if ":" in space else []
    if isinstance(space, Mapping):
        return modules_in_space([*space, *space.values()])
    return [name for part in space for name in modules_in_space(part)] if isinstance(space, (list, tuple)) else []


def read_sweep_folder(folder: str | Path, *, trust: bool = False) -> tuple[SweepSettings, RunConfig[Any, Any]]:
    """Return the settings of a sweep and the config that its trials share."""
    path = Path(folder)
    if not (path / SWEEP_FILE).is_file():
        raise FileNotFoundError(f"{str(path)!r} is not the folder of a sweep: it has no {SWEEP_FILE}")
    content = read_json(path / SWEEP_FILE)
    require_trust(path / SWEEP_FILE, content, modules_in_space(content), trust=trust)
    return from_plain(SweepSettings, content, SWEEP_FILE), read_config_file(path / BASE_FILE, trust=trust)


def distributions_of(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return Optuna's distribution of every setting; a wrong one is named."""
    optuna = import_optuna()
    found = {}
    for name, given in space.items():
        try:
            found[name] = _distribution(optuna.distributions, given)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"space: {name} = {given!r}: {error}") from error
    return found


def _distribution(kinds: Any, given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        if not given:
            raise ValueError("there is no choice")
        texts = [" ".join(map(str, each)) if isinstance(each, (list, tuple)) else each for each in given]
        return kinds.CategoricalDistribution(tuple(texts))
    if not isinstance(given, Mapping):
        raise ValueError("wanted a list of choices, or a table with low and high")
    for name in given:
        if name not in ("low", "high", "log", "step"):
            raise ValueError(unknown("entry", name, ("low", "high", "log", "step"), where="a range"))
    if "low" not in given or "high" not in given:
        raise ValueError("a range has low and high")
    low, high, log = given["low"], given["high"], bool(given.get("log", False))
    if isinstance(low, int) and isinstance(high, int):
        return kinds.IntDistribution(low, high, log=log, step=given.get("step") or 1)
    return kinds.FloatDistribution(float(low), float(high), log=log, step=given.get("step"))


def newest_step(run: Path) -> int:
    """Return the step of the newest checkpoint of a run; -1 without one."""
    return max(CheckpointStore(RunFolder(run).checkpoints).steps(), default=-1)


# -- the sweep ---------------------------------------------------------------------------------------------------------


class Sweep:
    """One process of a sweep."""

    def __init__(
        self,
        folder: str | Path,
        settings: SweepSettings,
        base: RunConfig[Any, Any],
        configure: Configure,
        *,
        signals: StopSignals | None = None,
        report: Callable[[str], None] = _log.info,
    ) -> None:
        """Open the journal of the folder; `report` gets a line for every trial."""
        optuna = import_optuna()
        self.folder, self.settings, self.base, self.configure = Path(folder), settings, base, configure
        self.signals = signals if signals is not None else StopSignals()
        self.report = report
        self.distributions = distributions_of(settings.space)
        check_plain(self.folder / JOURNAL_FILE)
        backend = optuna.storages.journal.JournalFileBackend(str(self.folder / JOURNAL_FILE))
        self.study: Any = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name=self.folder.name,
            load_if_exists=True,
            directions=["maximize" if mode == "max" else "minimize" for mode in settings.modes],
            pruner=self._pruner(optuna.pruners),
        )
        if any(not t.distributions.items() <= self.distributions.items() for t in self.study.get_trials(False)):
            raise SweepError(f"{self.folder / JOURNAL_FILE} has settings that the space of {SWEEP_FILE} does not have")

    def _pruner(self, kinds: Any) -> Any:
        total = int(getattr(self.base.plan, "total_steps", 0)) or int(self.base.plan.total_iterations)
        if self.settings.pruner == "median":
            return kinds.MedianPruner(n_startup_trials=5, n_warmup_steps=total // 5)
        if self.settings.pruner == "hyperband":
            return kinds.HyperbandPruner(min_resource=max(1, total // 9), max_resource=max(1, total))
        return kinds.NopPruner()

    def work(self) -> int:
        """Train trials until there are enough, or a signal comes; returns the exit code."""
        while not self.signals.received:
            claim = self.claim()
            if claim is None:
                break
            try:
                self._train(claim)
            finally:
                claim.lock.release()
        return self.signals.exit_code

    def claim(self) -> Claim | None:
        """Return the next trial for this process: an orphan, or a new one; None when there are enough."""
        with self.turn():
            found = self._orphan()
            if found is not None:
                return found
            count = len(self.study.get_trials(deepcopy=False))
            if count >= self.settings.trials:
                return None
            kinds = import_optuna().samplers
            kind = kinds.TPESampler if self.settings.sampler == "tpe" else kinds.RandomSampler
            # by the number of the trial, so that a resumed sweep and one that was never stopped choose alike
            self.study.sampler = kind(seed=hash((self.settings.seed, count)) % 2**32)
            return self._claimed(self.study.ask())

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock of the sweep: one process at a time takes a trial or writes the best settings."""
        while True:
            try:
                lock = FolderLock(self.folder)
                break
            except FolderLockedError:
                time.sleep(_TURN_SECONDS)
        try:
            yield
        finally:
            lock.release()

    def _claimed(self, trial: Any) -> Claim:
        return Claim(trial=trial, params=self._params(trial), lock=FolderLock(self._made(trial.number)))

    def _params(self, trial: Any) -> dict[str, Any]:
        """Return the settings of a trial; those that it has already stay."""
        found: dict[str, Any] = {}
        for name, kind in self.distributions.items():
            if hasattr(kind, "choices"):
                found[name] = trial.suggest_categorical(name, kind.choices)
            elif isinstance(kind.low, int):
                found[name] = trial.suggest_int(name, kind.low, kind.high, step=kind.step, log=kind.log)
            else:
                found[name] = trial.suggest_float(name, kind.low, kind.high, step=kind.step, log=kind.log)
        return found

    def _orphan(self) -> Claim | None:
        """Return a trial whose process has ended before the trial has."""
        optuna = import_optuna()
        for frozen in self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            try:
                FolderLock(self._made(frozen.number)).release()
            except FolderLockedError:
                continue
            # the id is not public, and there is no other way to go on with a trial
            return self._claimed(optuna.trial.Trial(self.study, frozen._trial_id))
        return None

    def _made(self, number: int) -> Path:
        place = self.place(number)
        place.mkdir(parents=True, exist_ok=True)
        return place

    def place(self, number: int) -> Path:
        """Return the folder of a trial."""
        return self.folder / "trials" / f"{number:04d}"

    # -- one trial -----------------------------------------------------------------------------------------------------

    def _train(self, claim: Claim) -> None:
        """Train the seeds of a trial and store their mean; after a signal the trial stays as it is."""
        done: list[list[float]] = []
        for number in range(self.settings.seeds):
            known = claim.trial.user_attrs.get(f"seed_{number}")
            if known is None:
                try:
                    known = self.train_seed(claim, number, done)
                except (CheckpointError, ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
                    if isinstance(error, SweepError):
                        raise
                    _log.debug("in trial %d", claim.trial.number, exc_info=True)
                    return self._fail(claim, str(error.args[0]) if isinstance(error, KeyError) else str(error))
            if self.signals.received:
                return None
            if known == PRUNED:
                self.study.tell(claim.trial, state=import_optuna().trial.TrialState.PRUNED)
                return self.report(f"{self.name_of(claim.trial)} pruned: {self._listed(claim.params)}")
            if isinstance(known, str):
                return self._fail(claim, known)
            claim.trial.set_user_attr(f"seed_{number}", known)
            done.append(known)
        values = [sum(each) / len(done) for each in zip(*done)]
        self.study.tell(claim.trial, values)
        return self._told(claim, values)

    def train_seed(self, claim: Claim, number: int, done: list[list[float]]) -> list[float] | str:
        """Train one seed and return the values of the metrics, PRUNED, or why it failed."""
        config = self.trial_config(claim.params, seed=self.base.seed + number)
        watch = TrialWatch(self, claim.trial, number, done)
        outcome = self.train_run(config, self.place(claim.trial.number) / f"seed_{number}", watch)
        if outcome.exit_code:
            return str(outcome.reason)
        return PRUNED if outcome.reason == PRUNED else watch.values(outcome.record)

    def trial_config(self, params: Params, *, seed: int) -> RunConfig[Any, Any]:
        """Return the config of one run: it logs to its own folder, and its best checkpoint is by the sweep's metric."""
        config = self.configure(params)
        metric, mode = self.settings.metrics[0], self.settings.modes[0]
        best = (
            replace(config.checkpoints, best=metric, mode=mode)
            if metric.startswith("evaluate/")
            else config.checkpoints
        )
        return replace(config, seed=seed, checkpoints=best, logging=replace(config.logging, console="off"))

    def train_run(self, config: RunConfig[Any, Any], path: Path, watch: Watcher, *, parent: Path | None = None) -> Any:
        """Train a run to its end, from its checkpoint where it has one, else from its parent's; returns the outcome."""
        begun = (path / CONFIG_FILE).exists()
        if not begun and parent is not None:
            copy_run(parent, path)
        trained = begun and (parent is None or newest_step(path) != newest_step(parent))
        path.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(path)
        folder.write_config(config)
        folder.write_versions()
        run = Run(config, folder, signals=self.signals, watchers=[watch])
        try:
            if begun or parent is not None:
                run.restore()
            if not trained:
                run.trainer.go_on()  # a parent may have ended with a reason of its own
        except BaseException:
            run.close()
            raise
        return run.drive()

    # -- results -------------------------------------------------------------------------------------------------------

    def _fail(self, claim: Claim, reason: str) -> None:
        """Store that a trial has failed; raise where every trial does."""
        states = import_optuna().trial.TrialState
        claim.trial.set_user_attr("error", reason)
        self.study.tell(claim.trial, state=states.FAIL)
        self.report(f"{self.name_of(claim.trial)} failed: {reason} ({self._listed(claim.params)})")
        failed = len(self.study.get_trials(deepcopy=False, states=(states.FAIL,)))
        if failed >= MAX_FIRST_FAILURES and not self.completed():
            raise SweepError(f"{failed} trials have failed and none has succeeded; the last one: {reason}")

    def _told(self, claim: Claim, values: list[float]) -> None:
        with self.turn():
            best = self.best_trials()
            self.write_best(best)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in zip(self.settings.metrics, values))
        ahead = ", ".join(self.name_of(trial) for trial in best)
        ahead = "best so far" if claim.trial.number in [trial.number for trial in best] else f"best: {ahead}"
        self.report(f"{self.name_of(claim.trial)}: {shown} ({self._listed(claim.params)}), {ahead}")

    def completed(self) -> list[Any]:
        """Return the trials that have values, in order."""
        state = import_optuna().trial.TrialState.COMPLETE
        return list(self.study.get_trials(deepcopy=False, states=(state,)))

    def best_trials(self) -> list[Any]:
        """Return the best trial, or with several metrics those that no other is better than in all."""
        if not self.completed():
            return []
        return list(self.study.best_trials) if len(self.settings.metrics) > 1 else [self.study.best_trial]

    def write_best(self, best: list[Any]) -> None:
        """Write the settings of the best trials: best.json, or best_trial_N.json for each of a front."""
        if len(self.settings.metrics) == 1:
            for trial in best:
                write_config_file(self.folder / BEST_FILE, self.configure(trial.params))
            return
        wanted = {f"best_trial_{trial.number}.json": trial for trial in best}
        for name, trial in wanted.items():
            if not (self.folder / name).exists():
                write_config_file(self.folder / name, self.configure(trial.params))
        for old in self.folder.glob("best_trial_*.json"):
            if old.name not in wanted:
                old.unlink(missing_ok=True)

    def name_of(self, trial: Any) -> str:
        """Return how a trial is called in the lines of the sweep."""
        return f"trial {trial.number}"

    @staticmethod
    def _listed(params: Params) -> str:
        shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in params.items()}
        return ", ".join(f"{name} {value}" for name, value in shown.items())


class TrialWatch(Watcher):
    """Report evaluations of a run to its trial, and stop the run where the pruner asks for it."""

    def __init__(self, sweep: Sweep, trial: Any, number: int, done: list[list[float]]) -> None:
        super().__init__(lambda record: None)
        self._metrics, self._prunes = sweep.settings.metrics, sweep.settings.pruner != "none"
        self._trial, self._done = trial, [each[0] for each in done]
        plan = sweep.base.plan
        length = int(getattr(plan, "total_steps", 0)) or int(plan.total_iterations) * 1_000_000
        self._offset = number * length
        """Evaluations of later seeds come behind those of earlier ones."""
        self._reported = set(sweep.study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        self._last: dict[str, float] = {}

    def on_iteration(self, record: Record, run: RunningTrainer) -> Reaction:
        """Report the metric where the record has it, and return whether to stop."""
        numbers = record.numbers()
        self._last |= {name: numbers[name] for name in self._metrics if name in numbers}
        name = self._metrics[0]
        if not self._prunes or name not in record.metrics:
            return NOTHING
        mean = sum([*self._done, self._last[name]]) / (len(self._done) + 1)
        step = self._offset + record.step
        if step not in self._reported:  # a resumed run repeats the evaluations after its checkpoint
            self._trial.report(mean, step)
        return Reaction(stop=PRUNED) if self._trial.should_prune() and not run.ending else NOTHING

    def values(self, record: Record | None) -> list[float]:
        """Return the last value of every metric; one that was never logged raises."""
        known = {} if record is None else record.numbers()
        found = {**known, **self._last}
        for name in self._metrics:
            if name not in found:
                raise SweepError(unknown("metric", name, sorted(found), where="the log of a trial"))
            if not math.isfinite(found[name]):
                raise ValueError(f"{name} is {found[name]}")
        return [float(found[name]) for name in self._metrics]
