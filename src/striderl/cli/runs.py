"""Find the run that the command line names, and load its policy."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from striderl.cli.terminal import UsageError, message_of
from striderl.data.naming import suggestion

if TYPE_CHECKING:
    from striderl.envs.vec_env import VecEnv
    from striderl.training.experiment.loading import LoadedRun

_log = logging.getLogger(__name__)

CONFIG = "config.json"
"""What makes a folder the folder of a run."""
ROOT = Path("runs")
"""Where runs are looked for when one is not found."""
SEED = "seed_"
"""How the folders of runs that `--seeds` started begin."""
_MOST_NAMED = 3
CHECKPOINTS = ("best", "last")
"""Which checkpoints have a name; all have a number."""

ENV = "Another env to play in than the run's own, by name: a task, an id of Gymnasium, 'my_pkg.envs:make_env'."
"""What --env does, wherever a run is played."""
TRUST = (
    "Import the module that the run's files name, such as 'gymnasium:MODULE:ID'. Look at it first: importing runs "
    "code. Runs that this user made on this machine need no such word."
)
"""What --trust does, wherever a run is read."""
ACCEPT_CHANGES = "Go on although config.json or specs.json was changed since; what was changed is printed."
"""What --accept-changes does."""


def find_run(name: str | Path) -> Path:
    """Return the folder of a run; for a folder of runs, such as runs/cartpole, the newest of them."""
    path = Path(name)
    if (path / CONFIG).is_file():
        return path
    inside = known_runs(path)
    if inside:
        return max(inside, key=_age)
    for found in known_runs(ROOT):
        if found.name == str(name):
            return found
    what = "is not the folder of a run: it has no config.json" if path.is_dir() else "does not exist"
    raise UsageError(f"the run {str(name)!r} {what}. {_near(str(name))}")


def find_started(name: str | Path) -> list[Path]:
    """Return the run that a name leads to, with the seeds that `--seeds` started beside it where a folder was named."""
    run = find_run(name)
    if Path(name).name == run.name or not run.name.startswith(SEED):
        return [run]
    return [each for each in known_runs(run.parent) if each.name.startswith(SEED)]


def find_runs(name: str | Path) -> list[Path]:
    """Return all runs in a folder such as runs/cartpole, or the one run that the name leads to."""
    inside = [] if (Path(name) / CONFIG).is_file() else known_runs(Path(name))
    logged = [run for run in inside if any(run.glob("metrics*"))]
    for run in inside if logged else []:
        if run not in logged:
            _log.warning("%s has no metrics and is left out", run)
    return logged or [find_run(name)]


def known_runs(root: Path) -> list[Path]:
    """Return the runs in a folder, at most three levels down (runs/TASK/GROUP/seed_0), in order."""
    if not root.is_dir():
        return []
    return sorted(found.parent for depth in ("*", "*/*", "*/*/*") for found in root.glob(f"{depth}/{CONFIG}"))


def _age(run: Path) -> tuple[float, str]:
    """Return what sorts runs by time: their name where it is one, else when their config was written.

    Those that were started together are in a folder that has the time, or a name.
    """
    name = run.parent.name if run.name.startswith(SEED) else run.name
    try:
        return time.mktime(time.strptime(name[:19], "%Y-%m-%d_%H-%M-%S")), run.name
    except ValueError:
        return (run / CONFIG).stat().st_mtime, run.name


def load(run: str | Path, checkpoint: str, *, trust: bool = False) -> LoadedRun:
    """Load a run's policy; what is missing, damaged or not trusted is a mistake of the command line, not a crash."""
    folder = find_run(run)  # before anything large is loaded: a wrong name is reported at once
    if not checkpoint.isdigit() and checkpoint not in CHECKPOINTS:
        wanted = f"--checkpoint is {', '.join(map(repr, CHECKPOINTS))} or a number of env steps, found {checkpoint!r}"
        raise UsageError(f"{wanted}. {suggestion(checkpoint, CHECKPOINTS)}".rstrip())

    from striderl.checkpoint.errors import CheckpointError
    from striderl.training.experiment.loading import load_run

    try:
        return load_run(folder, int(checkpoint) if checkpoint.isdigit() else checkpoint, trust=trust)
    except (CheckpointError, OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise UsageError(f"{folder}: {message_of(error)}") from error


def check_named(folder: Path, task: str) -> None:
    """Raise for a run whose env was an object: a command needs a name to build one."""
    from striderl.data.registry import OBJECT

    if task.startswith(OBJECT):
        raise UsageError(
            f"{folder} was trained on an env object, a {task.removeprefix(OBJECT)}, which no file can make again; "
            "name what makes one: --env my_pkg.envs:make_env"
        )


def env_of(loaded: LoadedRun, env: str = "", *, num_envs: int = 1, filmed: bool = False) -> VecEnv:
    """Build the env of a run, or another one by name, which must have the same observations and actions."""
    from striderl.checkpoint.errors import LayoutMismatch
    from striderl.envs.tasks import make

    check_named(loaded.folder.path, env or loaded.env.task)
    settings = {} if env else loaded.env.settings
    try:
        built = make(env or loaded.env.task, num_envs=num_envs, settings=settings, filmed=filmed)
        loaded.check_env(built)
    except (ImportError, KeyError, ValueError, TypeError, RuntimeError, LayoutMismatch) as error:
        raise UsageError(message_of(error)) from error
    return built


def _near(name: str) -> str:
    runs = sorted(known_runs(ROOT), key=lambda run: (os.lstat(run / CONFIG).st_mtime, run), reverse=True)
    if not runs:
        return f"There are no runs in {str(ROOT)!r} yet; striderl train TASK makes one."
    near = suggestion(name, [str(each) for run in runs for each in (run, run.parent)])
    more = ", …" if len(runs) > _MOST_NAMED else ""
    return f"{near}Newest runs: {', '.join(map(str, runs[:_MOST_NAMED]))}{more} ('striderl list runs' lists all)"
