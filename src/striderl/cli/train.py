"""`striderl train` and `striderl resume`: a recipe, what the command line changes in it, and a run.

striderl train cartpole --seed 3 --algorithm.learning-rate 1e-3 --env.settings.max_episode_length 200
         │             └ any field of the config, by its place
         └ the recipe of the task
"""

from __future__ import annotations

import difflib
import logging
import math
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from striderl.cli.clients import train_client
from striderl.cli.runs import ACCEPT_CHANGES, TRUST, check_named, find_run
from striderl.cli.terminal import UsageError, complain, leave_closed_terminal, message_of, rank_of_torchrun, say
from striderl.cli.train_flags import overridden, take
from striderl.envs.clients import client_of
from striderl.recipes.table import recipe, task_names
from striderl.training.signals import StopSignals

if TYPE_CHECKING:
    from striderl.training.distributed import Ranks
    from striderl.training.experiment.run import Run
    from striderl.training.experiment.run_config import RunConfig
    from striderl.training.experiment.run_folder import RunFolder

_log = logging.getLogger(__name__)

_RANK_TIMEOUT = "--rank-timeout"
OWN_FLAGS = ("--resume", "--runs", "--algorithm", "--name", _RANK_TIMEOUT)
"""What the command takes besides settings, with a value each."""
RESUME_FLAGS = ("--trust", "--accept-changes")
"""Flags about the folder of a run, without a value."""
RUNNER_FLAGS = ("--max-iterations", "--env", "--device")
"""What `resume` takes for the log_dir of a runner, with a value each."""
RANK_SECONDS = 600.0
"""How long the processes of torchrun wait for each other: longer than an evaluation, a video or a save takes."""

Result = TypeVar("Result")

TRAIN_HELP = """usage: striderl train TASK [--algorithm NAME] [--terms NAME …] [--SETTING VALUE] …
       striderl train --resume RUN [--SETTING VALUE] …

Train a policy. The recipe of the task has settings that learn; every one of them can be changed by a flag.

  TASK                  {tasks},
                        any id of Gymnasium (gymnasium:LunarLander-v3), an env of your own (my_pkg.envs:PointRobot), or
                        a simulator's task with its own settings: mjlab:TASK, isaaclab:TASK, legged_gym:TASK,
                        playground:TASK, genesis:MODULE ('striderl train mjlab:TASK --help' lists them)
  --algorithm NAME      another algorithm than the usual one ('striderl list algorithms'), or my_pkg.trpo:TRPO
  --terms NAME …        what is learned beside it ('striderl list terms'), or my_pkg.terms:MyTerm
  --steps 1000000       how long, in steps over all envs
  --num-envs 64         how many envs learn together
  --seed 1              another seed
  --device cuda         where to train
  --name first_try      the name of the run's folder, instead of the time
  --runs FOLDER         where the folder of the run is made (default: runs)
  --resume RUN          go on with a run that was stopped, instead of starting one; with --trust, --accept-changes as
                        'striderl resume' has them
  --rank-timeout SECONDS  under torchrun: name a process that does not answer for so long (default: 600)
  --SETTING VALUE       any setting by its place in the config; the most useful:
      --env.NAME VALUE                  a setting of the task itself, such as --env.reward-weights.alive 0.2
      --env.settings.NAME VALUE         … of an env of Gymnasium or of your own
      --algorithm.learning-rate 3e-4    settings of the algorithm
      --terms.rnd.weight 0.5            settings of a term
      --policy.kind lstm                a policy with memory
      --teacher.run RUN                 what tppo, estimator_tppo, atppo, dagger and the term distill learn from
      --expert.source FOLDER            what appo, atppo, gail and the terms motion_prior and adversarial imitate
      --dataset FOLDER                  what bc, td3_bc, cql, iql and bcq learn from ('striderl dataset' makes one)
      --logging.trackers tensorboard    further loggers

'striderl train TASK [--algorithm NAME] [--terms NAME …] --help' lists every setting with its meaning and value.

'torchrun --nproc-per-node 2 -m striderl train TASK' trains one run in two processes (ppo, a2c, reinforce), and with
'resume RUN' goes on with it. --num-envs and --steps are those of all processes together, not of each: the run learns
what one process with as many envs would, from minibatches with samples of every process.

The folder runs/TASK/TIME has config.json, metrics.csv, checkpoints and what other commands write. SIGTERM, Ctrl-C and
a terminal that closes (SIGHUP) save the run and end it with exit code 143, 130 or 129; 'striderl resume RUN' goes on
exactly there."""

RESUME_HELP = """usage: striderl resume RUN [--trust] [--accept-changes] [--SETTING VALUE] …

Go on with a run from its newest good checkpoint, as if it had never been stopped.

  RUN                   the folder of a run, or of several (runs/cartpole: the newest of them)
  --trust               {trust}
  --accept-changes      {accept_changes}
  --SETTING VALUE       change a setting from here on, such as --plan.total-steps 2000000 for a run that has ended

The log_dir of a runner (OnPolicyRunner and the others) is a run as well:

  --max-iterations N    how many iterations there are in all; those of its train_cfg unless given
  --env NAME            the env, where the folder cannot name it: a task, or what makes one, my_pkg.envs:make_env
  --device cuda         where to train"""


def train(words: list[str]) -> int:
    """Start a run, or resume one with --resume; returns the exit code."""
    # what a policy does with images and discrete observations by itself is shown where it is decided
    logging.getLogger("striderl.policies.component_defaults").setLevel(logging.INFO)
    with StopSignals() as signals:
        words, given = take(words, *OWN_FLAGS)
        if "--resume" in given:
            return _resume_one(given["--resume"], words, given, signals)
        for flag in RESUME_FLAGS:
            if flag in words:
                raise UsageError(f"{flag} is about the folder of a run; it has no effect without --resume RUN")
        if not words or words[0] in ("-h", "--help"):
            say(TRAIN_HELP.format(tasks=_wrapped(", ".join(task_names()))))
            return 0 if words else 2
        if words[0].startswith("-"):
            raise UsageError(f"the task comes before its settings: striderl train TASK {words[0]} …")
        if "--algorithm" not in given and client_of(words[0]) is not None:
            kept = [word for flag in ("--runs", "--name") if flag in given for word in (flag, given[flag])]
            return train_client(words[0], [*words[1:], *kept], signals)
        try:
            config = recipe(words[0], given.get("--algorithm", ""))
        except (KeyError, TypeError, ValueError, ImportError) as error:
            raise UsageError(message_of(error)) from error
        _check_plain_flags(words[1:])
        return _together(given, signals, lambda ranks: _start(config, words, given, signals, ranks))


def _check_plain_flags(words: list[str]) -> None:
    """Raise for a flag that is nearly one of the command's own; all others are settings, and are checked later."""
    for word in words:
        flag = word.partition("=")[0]
        near = difflib.get_close_matches(flag, (*OWN_FLAGS, *RESUME_FLAGS), n=1, cutoff=0.85)
        if near and "." not in flag:
            raise UsageError(f"there is no flag {flag}. Did you mean {near[0]}?")


def resume(words: list[str]) -> int:
    """Resume a run; returns the exit code."""
    flags, words = [word for word in words if word in RESUME_FLAGS], [w for w in words if w not in RESUME_FLAGS]
    if not words or words[0] in ("-h", "--help"):
        say(RESUME_HELP.format(trust=_wrapped(TRUST), accept_changes=_wrapped(ACCEPT_CHANGES)))
        return 0 if words else 2
    with StopSignals() as signals:
        words, given = take(words, _RANK_TIMEOUT)
        if not words:
            raise UsageError("name the run: striderl resume RUN")
        return _resume_one(words[0], [*words[1:], *flags], given, signals)


def _resume_one(name: str, words: list[str], given: dict[str, str], signals: StopSignals) -> int:
    if rank_of_torchrun()[1] == 1:
        find_run(name)  # before anything large is loaded: a wrong name is reported at once
    return _together(given, signals, lambda ranks: _resume(name, words, signals, ranks))


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
    problems = ranks.gather(problem)

    def first() -> str:
        found = [(rank, text) for rank, text in enumerate(problems) if text]
        return "" if not found else found[0][1] if found[0][0] == 0 else f"rank {found[0][0]}: {found[0][1]}"

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


# -- the command line --------------------------------------------------------------------------------------------------


def _wrapped(text: str) -> str:
    """Return a text as lines that fit under each other in the help."""
    return ("\n" + 24 * " ").join(textwrap.wrap(text, 90))


# -- the run -----------------------------------------------------------------------------------------------------------


def _start(
    usual: RunConfig[Any, Any], words: list[str], given: dict[str, str], signals: StopSignals, ranks: Ranks
) -> int:
    def wanted() -> RunConfig[Any, Any]:
        config = overridden(usual, words[1:], prog=f"striderl train {words[0]}")
        if config.dataset:  # a run may be resumed from another working directory
            config = replace(config, dataset=str(Path(config.dataset).resolve()))
        if config.expert.source not in ("", "env"):
            config = replace(config, expert=replace(config.expert, source=str(Path(config.expert.source).absolute())))
        return _checked(config, ranks)

    config = _in_all(ranks, wanted)
    _check_same_config(config, ranks)

    from striderl.training.experiment.run_folder import RunFolder, new_run_folder

    def new_folder() -> str:
        try:
            return str(new_run_folder(config, Path(given.get("--runs", "runs")), given.get("--name", "")).path)
        except (OSError, ValueError) as error:
            raise UsageError(f"no folder for the run: {message_of(error)}") from error

    folder = RunFolder(_in_main(ranks, new_folder))
    try:
        run = _build(config, folder, signals, ranks)
    except UsageError:
        if ranks.is_main:
            shutil.rmtree(folder.path, ignore_errors=True)  # nothing was trained, so there is nothing to keep
        raise
    return _drive(run)


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


def _resume(name: str, words: list[str], signals: StopSignals, ranks: Ranks) -> int:
    path = _in_main(ranks, lambda: str(find_run(name)))

    from striderl.training.experiment.log_dir import is_log_dir

    if is_log_dir(path):
        return _resume_runner(path, words, signals, ranks)

    from striderl.training.experiment.run_config import RunConfig, read_run_config
    from striderl.training.experiment.run_folder import RunFolder

    folder, accept = RunFolder(path), "--accept-changes" in words

    def settings() -> tuple[str, str, list[str]]:
        """Return the config of the folder, the one that was trained with, and what was edited in between."""
        try:
            config = read_run_config(folder.path, trust="--trust" in words, accept_changes=accept)
            sealed, edits = _trained_with(config, folder)
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
    _in_all(ranks, lambda: _restore(run, changed=[*edits, *_changes(before, config)]))
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
    return _drive(run)


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
    from striderl.training.rsl_rl.build import resume_runner

    try:
        about = read_log_dir(path, trust=trust, builds_env="--env" not in given)
        check_named(Path(path), given.get("--env", about.env.task))
        env = make(given["--env"], num_envs=about.env.num_envs, device=about.device) if "--env" in given else None
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
    say(f"{about.env.task} with {about.runner}, from iteration {runner.current_learning_iteration}: {path}")
    try:
        runner.learn(left)
    finally:
        runner.close()
    if signals.received:
        complain(f"{signals.name}: saved; 'striderl resume {path}' goes on")
        return signals.exit_code
    say(f"ended after {runner.current_learning_iteration} iterations")
    return 0


def _trained_with(config: RunConfig[Any, Any], folder: RunFolder) -> tuple[RunConfig[Any, Any], list[str]]:
    """Return the last accepted config, and later edits of the file, as 'was → is'."""
    from striderl.training.experiment.run_config import CONFIG_FILE, RunConfig
    from striderl.training.experiment.seal import accepted_content, changes

    edits = changes(folder.path, CONFIG_FILE)
    accepted = accepted_content(folder.path, CONFIG_FILE) if edits else None
    return (config if accepted is None else RunConfig.from_stored(accepted)), edits


def _changes(before: RunConfig[Any, Any], config: RunConfig[Any, Any]) -> list[str]:
    from striderl.training.experiment.seal import differences

    return differences(before.to_dict(), config.to_dict())


def _restore(run: Run, changed: list[str]) -> None:
    """Resume from the newest checkpoint; settings that do not fit it end the command with a message."""
    from striderl.checkpoint.errors import CheckpointError

    try:
        run.restore()
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
            return Run(config, folder, signals=signals, accept_changes=accept_changes, ranks=where)
        # a dataset that is damaged, or of another task, is a CheckpointError
        except (KeyError, ValueError, TypeError, ImportError, RuntimeError, OSError, CheckpointError) as error:
            _log.debug("while building the run", exc_info=True)
            raise UsageError(message_of(error)) from error

    return _in_all(ranks, build)


def _drive(run: Run) -> int:
    count = run.ranks.world_size
    processes = f" in {count} processes" if count > 1 else ""
    say(f"{run.config.env.task} with {run.config.algorithm_name}, seed {run.config.seed}{processes}: {run.folder.path}")
    if run.config.mode == "compiled":
        say("compiling comes first: tens of seconds, with a memory minutes, in which Ctrl-C waits")
    outcome = run.drive()
    folder = run.folder.path
    if not run.ranks.is_main:
        return outcome.exit_code or int(not outcome.saved)
    if outcome.exit_code:
        saved = "saved" if outcome.saved else "the last save failed"
        complain(f"{outcome.reason}: {saved}; 'striderl resume {folder}' goes on")
        leave_closed_terminal()
        return outcome.exit_code
    say(f"ended: {outcome.reason}")
    if run.evaluation is not None and run.evaluation.result is not None:
        result = run.evaluation.result
        say(f"greedy return {result.mean:.1f} over {len(result.returns)} episodes")
    if not outcome.saved:
        complain(f"the end of the run could not be saved to {folder}; the errors above say why")
        return 1
    say(f"next: striderl play {folder}   |   record, evaluate, export, plot")
    return 0
