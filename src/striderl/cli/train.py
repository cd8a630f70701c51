"""`striderl train` and `striderl resume`: a recipe, what the command line changes in it, and a run.

striderl train cartpole --seed 3 --algorithm.learning-rate 1e-3 --env.settings.max_episode_length 200
         │             └ any field of the config, by its place
         └ the recipe of the task
"""

from __future__ import annotations

import contextlib
import logging
import math
import shlex
import shutil
import socket
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from striderl.cli.clients import train_client
from striderl.cli.launch import SLURM, Relaunch, base_config, submit_train
from striderl.cli.runs import ACCEPT_CHANGES, TRUST, check_named, find_run
from striderl.cli.seeing.report import report_at_end
from striderl.cli.terminal import UsageError, acknowledge, add_way_on, complain, leave_closed_terminal, message_of, say
from striderl.cli.terminal import rank_of_torchrun as rank_of_torchrun
from striderl.cli.train_flags import (
    JOBS,
    RESUME_HELP,
    SEEDS,
    TAGS,
    TRAIN_HELP,
    check_flags,
    overridden,
    take,
    take_list,
)
from striderl.cli.view.command import VIEW, take_view, viewed
from striderl.envs.clients import client_of
from striderl.recipes.table import task_names
from striderl.training.signals import StopSignals

if TYPE_CHECKING:
    from striderl.training.distributed import Ranks
    from striderl.training.experiment.run import Run
    from striderl.training.experiment.run_config import RunConfig
    from striderl.training.experiment.run_folder import RunFolder

_log = logging.getLogger(__name__)

_RANK_TIMEOUT = "--rank-timeout"
OWN_FLAGS = ("--resume", "--config", "--runs", "--algorithm", "--name", SEEDS, JOBS, SLURM, _RANK_TIMEOUT)
"""What the command takes besides settings, with a value each."""
RESUME_FLAGS = ("--trust", "--accept-changes")
"""Flags about the folder of a run, without a value."""
RUNNER_FLAGS = ("--max-iterations", "--env", "--device")
"""What `resume` takes for the log_dir of a runner, with a value each."""
RANK_SECONDS = 600.0
"""How long the processes of torchrun wait for each other: longer than an evaluation, a video or a save takes."""

Result = TypeVar("Result")


def train(words: list[str]) -> int:
    """Start a run, or resume one with --resume; returns the exit code."""
    # what a policy does with images and discrete observations by itself is shown where it is decided
    logging.getLogger("striderl.policies.component_defaults").setLevel(logging.INFO)
    with StopSignals(acknowledge) as signals:
        typed = shlex.join(["striderl", "train", *words])
        words, given = take(words, *OWN_FLAGS)
        words, tags = take_list(words, TAGS)
        words, given = take_view(words, given, alone=not {SEEDS, SLURM} & given.keys())
        for flag in (SEEDS, JOBS):
            if flag in given and ("--resume" in given or (flag == JOBS and SEEDS not in given)):
                raise UsageError(f"{flag} has no effect here; it belongs to striderl train TASK {SEEDS} N")
        if "--resume" in given:
            return _resume_one(given["--resume"], words, given, signals)
        for flag in RESUME_FLAGS:
            if flag in words and not (flag == "--trust" and "--config" in given):
                raise UsageError(f"{flag} is about the folder of a run; it has no effect without --resume RUN")
        if (not words and "--config" not in given) or words[:1] in (["-h"], ["--help"]):
            say(TRAIN_HELP.format(tasks=_wrapped(", ".join(task_names()))))
            return 0 if words else 2
        if words and "--algorithm" not in given and client_of(words[0]) is not None:
            take_view([], given, alone=False)
            kept = [word for flag in ("--runs", "--name") if flag in given for word in (flag, given[flag])]
            return train_client(words[0], [*words[1:], *kept], signals)
        rest, config = base_config(words, given, command="train")
        check_flags(rest, (*OWN_FLAGS, *RESUME_FLAGS))
        if SLURM in given:
            return _submitted(config, words, rest, given, tags or [])
        if SEEDS in given and "--help" not in words:
            from striderl.cli.seeds import train_several

            return train_several(config, rest, given, tags or [], signals)
        labels = {"tags": tuple(tags or ()), "command": typed}
        return _together(given, signals, lambda ranks: _start(config, rest, given, signals, ranks, labels))


def _submitted(
    usual: RunConfig[Any, Any], words: list[str], rest: list[str], given: dict[str, str], tags: list[str]
) -> int:
    """Check the settings here, and submit what was written to Slurm."""
    config = overridden(usual, rest, prog="striderl train")
    if JOBS in given:
        raise UsageError(
            f"{JOBS} has no effect with {SLURM}: Slurm decides how many run at a time (array_parallelism=2)"
        )
    for flag in ("--algorithm", "--config", _RANK_TIMEOUT):
        if flag in given:
            words = [*words, flag, str(Path(given[flag]).resolve()) if flag == "--config" else given[flag]]
    return submit_train(given[SLURM], config, [*words, *([TAGS, *tags] if tags else [])], given)


def resume(words: list[str]) -> int:
    """Resume a run; returns the exit code."""
    flags, words = [word for word in words if word in RESUME_FLAGS], [w for w in words if w not in RESUME_FLAGS]
    if not words or words[0] in ("-h", "--help"):
        say(RESUME_HELP.format(trust=_wrapped(TRUST), accept_changes=_wrapped(ACCEPT_CHANGES)))
        return 0 if words else 2
    with StopSignals(acknowledge) as signals:
        words, given = take(words, _RANK_TIMEOUT)
        words, given = take_view(words, given)
        if not words:
            raise UsageError("name the run: striderl resume RUN")
        return _resume_one(words[0], [*words[1:], *flags], given, signals)


def _resume_one(name: str, words: list[str], given: dict[str, str], signals: StopSignals) -> int:
    if rank_of_torchrun()[1] == 1:
        find_run(name)  # before anything large is loaded: a wrong name is reported at once
    return _together(given, signals, lambda ranks: _resume(name, words, signals, ranks, asked=VIEW in given))


# -- one process, or those of torchrun ---------------------------------------------------------------------------------


def _together(given: dict[str, str], signals: StopSignals, work: Callable[[Ranks], int]) -> int:
    """Do the work in this process, together with the others that torchrun has started; returns the exit code of all."""
    rank, world_size = rank_of_torchrun()
    seconds = _seconds(given, world_size)

    from striderl.training.distributed import RankLostError, Ranks, setup

    if world_size == 1:
        return work(Ranks())
    try:
        with setup(device="cpu", timeout=seconds) as ranks:
            code = ranks.largest(work(ranks))
            signals.leave()  # torchrun ends all processes with SIGTERM as soon as one has ended with a code
            return code
    except RankLostError as error:
        complain(str(error))
        return 1
    except Exception as error:
        error.add_note(f"in rank {rank} of {world_size}")
        raise


def _seconds(given: dict[str, str], world_size: int) -> float:
    """Return how long processes wait for each other."""
    text = given.get(_RANK_TIMEOUT)
    if text is None:
        return RANK_SECONDS
    if world_size == 1:
        raise UsageError(f"{_RANK_TIMEOUT} has no effect in one process; start several with torchrun")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < math.inf:
        raise UsageError(f"{_RANK_TIMEOUT} is a positive number of seconds, found {text!r}")
    return seconds


def _in_all(ranks: Ranks, function: Callable[[], Result]) -> Result:
    """Call a function in every process; what it raises in one of them as a mistake is raised in all, and named once."""
    result, problem = None, ""
    try:
        result = function()
    except UsageError as error:
        if ranks.world_size == 1:
            raise
        problem = message_of(error)
    problems = ranks.gather((socket.gethostname(), problem))

    def first() -> str:
        named = [(f"rank {rank} on {host}: " if rank else "") + text for rank, (host, text) in enumerate(problems)]
        return next((text for text, (_, problem) in zip(named, problems) if problem), "")

    problem = ranks.from_main(first)
    if problem:
        raise UsageError(problem)
    return cast(Result, result)


def _in_main(ranks: Ranks, function: Callable[[], Result]) -> Result:
    """Call a function in rank 0 and return its result in every process; a mistake there is raised in all."""
    try:
        return ranks.from_main(function)
    except ValueError as error:
        raise UsageError(message_of(error)) from error


def _wrapped(text: str) -> str:
    """Return a text as lines that fit under each other in the help."""
    return ("\n" + 24 * " ").join(textwrap.wrap(text, 90))


# -- the run -----------------------------------------------------------------------------------------------------------


def _start(
    usual: RunConfig[Any, Any],
    words: list[str],
    given: dict[str, str],
    signals: StopSignals,
    ranks: Ranks,
    labels: dict[str, Any],
) -> int:
    def wanted() -> RunConfig[Any, Any]:
        config = overridden(usual, words, prog=f"striderl train {usual.env.task}")
        if config.dataset:  # a run may be resumed from another working directory
            config = replace(config, dataset=str(Path(config.dataset).resolve()))
        if config.expert.source not in ("", "env"):
            config = replace(config, expert=replace(config.expert, source=str(Path(config.expert.source).absolute())))
        return _checked(config, ranks)

    config = _in_all(ranks, wanted)
    _check_same_config(config, ranks)

    from striderl.training.experiment.run_folder import RunFolder, RunLabels, new_run_folder

    def new_folder() -> str:
        name = given.get("--name", "")
        try:
            made = new_run_folder(config, Path(given.get("--runs", "runs")), name)
            made.write_labels(RunLabels(**labels, group=name.rpartition("/")[0]))
            return str(made.path)
        except (OSError, ValueError) as error:
            raise UsageError(f"no folder for the run: {message_of(error)}") from error

    relaunch = Relaunch(Path(given.get("--runs", "runs")))
    if path := _in_main(ranks, relaunch.folder):
        return relaunch.until_over(lambda: _resume(path, [], signals, ranks, asked=VIEW in given))
    folder = RunFolder(_in_main(ranks, new_folder))
    try:
        run = _build(config, folder, signals, ranks)
    except UsageError:
        if ranks.is_main:
            shutil.rmtree(folder.path, ignore_errors=True)  # nothing was trained, so there is nothing to keep
            with contextlib.suppress(OSError):  # the folder of a task without any other run
                folder.path.parent.rmdir()
        raise
    _in_main(ranks, lambda: relaunch.leave(str(folder.path)))
    return relaunch.until_over(lambda: _drive(run, asked=VIEW in given))


def _checked(config: RunConfig[Any, Any], ranks: Ranks) -> RunConfig[Any, Any]:
    """Return the config, or raise when it cannot be trained by so many processes."""
    from striderl.training.experiment.assembly import check_ranks

    try:
        check_ranks(config, ranks.world_size)
    except ValueError as error:
        raise UsageError(message_of(error)) from error
    return config


def _check_same_config(config: RunConfig[Any, Any], ranks: Ranks) -> None:
    """Raise unless all processes were started with the same settings."""
    texts = ranks.gather(config.to_json())

    def others() -> list[int]:
        return [rank for rank, text in enumerate(texts) if text != texts[0]]

    differing = ranks.from_main(others)
    if differing:
        which = " and ".join(map(str, differing))
        raise UsageError(f"rank {which} has other settings than rank 0; start all with the same command line")


def _resume(name: str, words: list[str], signals: StopSignals, ranks: Ranks, *, asked: bool) -> int:
    path = _in_main(ranks, lambda: str(find_run(name)))

    from striderl.training.experiment.log_dir import is_log_dir

    if is_log_dir(path):
        return _resume_runner(path, words, signals, ranks)

    from striderl.training.experiment.run_config import RunConfig, read_run_config
    from striderl.training.experiment.run_folder import RunFolder

    folder, accept, trust = RunFolder(path), "--accept-changes" in words, "--trust" in words

    def settings() -> tuple[str, str, list[str]]:
        """Return the config of the folder, the one that was trained with, and what was edited in between."""
        try:
            config = read_run_config(folder.path, trust=trust, accept_changes=accept)
            sealed, edits = _sealed(config, folder, trust)
            return config.to_json(), sealed.to_json(), edits
        except (ValueError, OSError) as error:
            raise UsageError(message_of(error)) from error

    texts = _in_main(ranks, settings)
    before, sealed, edits = RunConfig.from_json(texts[0]), RunConfig.from_json(texts[1]), texts[2]
    words = [word for word in words if word not in RESUME_FLAGS]

    def changed() -> RunConfig[Any, Any]:
        config = overridden(before, words, prog=f"striderl resume {name}")
        _check_same_parts(sealed, config, folder)
        return _checked(config, ranks)

    config = _in_all(ranks, changed)
    _check_same_config(config, ranks)
    run = _build(config, folder, signals, ranks, accept_changes=accept)
    _in_all(ranks, lambda: _restore(run, [*edits, *_changes(before, config)], trust=trust))
    if edits:
        if ranks.is_main:
            say(f"{folder.path}: accepted {'; '.join(edits)}")
        _in_main(ranks, lambda: _write_config(run, before))
    if config != sealed:
        run.trainer.go_on()
    if run.trainer.finished:
        run.close()
        why = run.trainer.stop_reason or "its plan is fulfilled"
        longer = "--plan.total-iterations" if config.dataset else "--plan.total-steps"
        say(f"{folder.path} has ended: {why}. A longer plan goes on: {longer} N")
        return 0
    if config != before:
        _in_main(ranks, lambda: _write_config(run, config))
    return _drive(run, asked=asked)


def _resume_runner(path: str, words: list[str], signals: StopSignals, ranks: Ranks) -> int:
    """Resume the log_dir of a runner."""
    if ranks.world_size > 1:
        raise UsageError(f"{path} is the log_dir of a runner; in several processes it is resumed by its own program")
    trust = "--trust" in words
    words, given = take([word for word in words if word != "--trust"], *RUNNER_FLAGS)
    if words:
        raise UsageError(
            f"{path} is the log_dir of a runner, which goes on with the settings it has; the flags are "
            f"{', '.join(RUNNER_FLAGS)} and --trust, found {words[0]}"
        )

    from striderl.checkpoint.errors import CheckpointError
    from striderl.envs.tasks import make
    from striderl.training.experiment.log_dir import read_log_dir
    from striderl.training.experiment.run_folder import RunFolder
    from striderl.training.rsl_rl.build import resume_runner

    try:
        about = read_log_dir(path, trust=trust, builds_env="--env" not in given)
        check_named(Path(path), given.get("--env", about.config.env.task))
        usual = about.config
        env = make(given["--env"], num_envs=usual.env.num_envs, device=usual.device) if "--env" in given else None
        runner = resume_runner(path, env=env, device=given.get("--device", ""), trust=trust)
    except (CheckpointError, ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{path} cannot be resumed: {message_of(error)}") from error
    text = given.get("--max-iterations", str(runner.config.max_iterations))
    left = (int(text) if text.isdigit() else 0) - runner.current_learning_iteration
    if left <= 0:
        runner.close()
        raise UsageError(
            f"{path} has finished {runner.current_learning_iteration} iterations; more goes on: --max-iterations N"
        )
    runner.should_stop = lambda: bool(signals.received)
    say(f"{usual.env.task} with {about.runner}, from iteration {runner.current_learning_iteration}: {path}")
    try:
        runner.learn(left)
    finally:
        runner.close()
    if signals.received:
        complain(f"{signals.name}: saved; 'striderl resume {path}' goes on")
        return signals.exit_code
    say(f"ended after {runner.current_learning_iteration} iterations")
    for page in report_at_end(RunFolder(path)):
        say(f"report: {page}")
    return 0


def _sealed(config: RunConfig[Any, Any], folder: RunFolder, trust: bool) -> tuple[RunConfig[Any, Any], list[str]]:
    """Return the last accepted config, and later edits of the file, as 'was → is'."""
    from striderl.training.experiment.run_config import CONFIG_FILE, RunConfig
    from striderl.training.experiment.seal import SEAL_FILE, accepted_content, changes

    edits = changes(folder.path, CONFIG_FILE)
    accepted = accepted_content(folder.path, CONFIG_FILE) if edits else None
    if accepted is not None:
        config = RunConfig.from_stored(accepted, folder.path / SEAL_FILE, trust=trust, accepted=config)
    return config, edits


def _changes(before: RunConfig[Any, Any], config: RunConfig[Any, Any]) -> list[str]:
    from striderl.training.experiment.seal import differences

    return differences(before.to_dict(), config.to_dict())


def _restore(run: Run, changed: list[str], *, trust: bool) -> None:
    """Resume from the newest checkpoint; settings that do not fit it end the command with a message."""
    from striderl.checkpoint.errors import CheckpointError

    try:
        run.restore(trust=trust)
    except (CheckpointError, ValueError, KeyError, TypeError, RuntimeError, IndexError) as error:
        run.close()
        _log.debug("while restoring", exc_info=True)
        said = message_of(error).partition("\n")[0] if changed else message_of(error)
        if isinstance(error, KeyError) and " " not in said:  # a bare name: something is missing in what was saved
            said = f"its checkpoint has no entry {said!r}; it was saved by another version of striderl"
        blamed = f" with {'; '.join(changed)}" if changed else ""
        raise UsageError(f"{run.folder.path} cannot be resumed{blamed}: {said}") from error


def _write_config(run: Run, config: RunConfig[Any, Any]) -> None:
    try:
        run.folder.write_config(config)
    except OSError as error:
        run.close()
        raise UsageError(f"{run.folder.path} cannot be written: {message_of(error)}") from error


def _check_same_parts(before: RunConfig[Any, Any], config: RunConfig[Any, Any], folder: RunFolder) -> None:
    """Raise for changes after which nothing of what is saved would fit."""
    from striderl.training.experiment.config_json import ConfigError
    from striderl.training.experiment.run_config import check_same_parts

    try:
        check_same_parts(before, config, where=str(folder.path))
    except ConfigError as error:
        raise UsageError(message_of(error)) from error
    had, wanted = before.env.num_envs, config.env.num_envs
    if had != wanted and not config.dataset:
        raise UsageError(f"{folder.path} goes on with its {had} envs, found --env.num-envs {wanted}; start a new run")


def _build(
    config: RunConfig[Any, Any],
    folder: RunFolder,
    signals: StopSignals,
    ranks: Ranks,
    *,
    accept_changes: bool = False,
) -> Run:
    """Build the run; parts that do not fit are a mistake of the command line, and named without a traceback."""
    from striderl.checkpoint.errors import CheckpointError
    from striderl.training.experiment.run import Run

    def build() -> Run:
        try:
            where = ranks.at(config.device) if ranks.world_size > 1 else ranks
            return Run(
                config, folder, signals=signals, accept_changes=accept_changes, ranks=where, at_end=report_at_end
            )
        # a dataset that is damaged, or of another task, is a CheckpointError
        except (KeyError, ValueError, TypeError, ImportError, RuntimeError, OSError, CheckpointError) as error:
            _log.debug("while building the run", exc_info=True)
            raise UsageError(message_of(error)) from error

    return _in_all(ranks, build)


def _drive(run: Run, *, asked: bool) -> int:
    count = run.ranks.world_size
    processes = f" in {count} processes" if count > 1 else ""
    say(f"{run.config.env.task} with {run.config.algorithm_name}, seed {run.config.seed}{processes}: {run.folder.path}")
    if run.config.mode == "compiled":
        say("compiling comes first: tens of seconds, with a memory minutes, in which Ctrl-C waits")
    folder = run.folder.path
    try:
        with viewed(folder, asked=asked and run.ranks.is_main):
            outcome = run.drive()
    except Exception as error:
        add_way_on(error, run.config.env.task, folder, run.store.steps())
        raise
    if not run.ranks.is_main:
        return outcome.exit_code or int(not outcome.saved)
    report = run.folder.report if run.folder.report.exists() else None
    if outcome.exit_code:
        saved = "saved" if outcome.saved else "the last save failed"
        complain(f"{outcome.reason}: {saved}; 'striderl resume {folder}' goes on")
        if report is not None:
            with contextlib.suppress(OSError):  # a terminal that was closed
                say(f"report: {report}")
        leave_closed_terminal()
        return outcome.exit_code
    say(f"ended: {outcome.reason}")
    if run.evaluation is not None and run.evaluation.result is not None:
        result = run.evaluation.result
        say(f"greedy return {result.mean:.1f} over {len(result.returns)} episodes")
    if not outcome.saved:
        complain(f"the end of the run could not be saved to {folder}; the errors above say why")
        return 1
    say(f"next: striderl play {folder}   |   record, evaluate, export, plot, compare")
    if report is not None:
        say(f"report: {report}")
    return 0
