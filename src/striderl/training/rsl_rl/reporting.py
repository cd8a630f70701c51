"""A runner's reports: loggers and metric names, env metrics, an Optuna trial, the state of the code.

    train/value_loss            Loss/value                 collect/return_mean     Train/mean_reward
    train/surrogate_loss        Loss/surrogate             collect/length_mean     Train/mean_episode_length
    train/learning_rate         Loss/learning_rate         steps per second        Perf/{total,collection,learning}_fps
    train/std                   Policy/mean_std            seconds                 Perf/collection_time, learning_time
    train/kl, clip_fraction, …  Policy/…                   the env's own numbers   as they are, or Episode/…

The names are rsl_rl's, so that old dashboards keep working. An env's metrics are reduced to one number per run; None
where the env does not measure them, and nothing is reported:

    env.metrics()       {"tracking_error": [N], "cost_of_transport": [N]}    each env's own, of its present episode
    velocity_rmsd       sqrt(mean over envs of tracking_error²), m/s
    cost_of_transport   mean over envs, without a unit

The code a run was started from is kept as well: commit, what differs from it, and which files git does not have.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch

from striderl.checkpoint.safe_files import write_text
from striderl.collect.statistics import OF_EPISODES
from striderl.data.registry import LOGGERS
from striderl.envs.vec_env import VecEnv
from striderl.loggers.file_loggers import JsonlLogger
from striderl.loggers.guarded import Guarded
from striderl.loggers.logger import Logger
from striderl.loggers.table import make_logger
from striderl.loggers.tensorboard_logger import TensorBoardLogger
from striderl.loggers.trackers import WandbLogger
from striderl.training.experiment.runner_config import NO_LOGGER, RunnerConfig
from striderl.training.record import Record

# -- loggers -----------------------------------------------------------------------------------------------------------


class NoLogger(Logger):
    """A logger that writes nothing, for runs without a folder."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Do nothing."""


class RunnerLogger:
    """A runner's `logger`: its writer, with the attributes that clients of rsl_rl use."""

    def __init__(self, config: RunnerConfig, log_dir: Path | None) -> None:
        """Make the writer of a run; without a folder nothing is written."""
        self.logger_type = config.logger if log_dir is not None and config.logger != NO_LOGGER else None
        """The writer by name; None without one."""
        self.log_dir, self.writer = log_dir, make_writer(config, log_dir)
        self._uploads = config.upload_model and self.logger_type == "wandb"

    def save_model(self, path: str | Path, it: int) -> None:
        """Give a checkpoint to the tracker, where it keeps files."""
        if self._uploads:
            self.writer.file(Path(path))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the metrics of one iteration."""
        self.writer.log(step, numbers)

    def stop_logging_writer(self) -> None:
        """Finish the log; calling it twice is fine."""
        self.writer.close()


def make_writer(config: RunnerConfig, log_dir: Path | None) -> Logger:
    """Make the writer of a run; its errors do not end training.

    Weights & Biases is online, unless WANDB_MODE says otherwise.
    """
    if log_dir is None or config.logger == NO_LOGGER:
        return NoLogger()
    makers: dict[str, Callable[[Path], Logger]] = {
        # event files lie in the run's folder itself, where people who come from rsl_rl look for them
        "tensorboard": TensorBoardLogger,
        "wandb": lambda folder: WandbLogger(
            folder,
            project=config.wandb_project or "striderl",
            entity=config.wandb_entity,
            name=config.run_name or folder.name,
            mode="" if os.environ.get("WANDB_MODE") else "online",
        ),
    }
    logger = make_logger(config.logger, makers.get(config.logger) or LOGGERS.get(config.logger), log_dir)
    return NoLogger() if logger is None else Guarded(logger)


def make_table(log_dir: Path | None) -> Logger:
    """Make metrics.jsonl, with the names that `striderl plot` uses; its errors do not end training."""
    if log_dir is None:
        return NoLogger()
    logger = make_logger("jsonl", lambda folder: JsonlLogger(folder / "metrics.jsonl"), log_dir)
    return NoLogger() if logger is None else Guarded(logger)


# -- names -------------------------------------------------------------------------------------------------------------


_LOSSES = {
    "surrogate_loss": "Loss/surrogate",
    "value_loss": "Loss/value",
    "entropy": "Loss/entropy",
    "mirror_loss": "Loss/symmetry",
    "rnd_loss": "Loss/rnd",
    "learning_rate": "Loss/learning_rate",
    "std": "Policy/mean_std",
}
_OF_THE_POLICY = ("kl", "clip_fraction", "ratio_error", "first_ratio_error")
_EPISODES = {"return_mean": "Train/mean_reward", "length_mean": "Train/mean_episode_length"}
_OF_THE_COLLECTOR = ("episodes", "steps", *OF_EPISODES)


def tags_of(record: Record) -> dict[str, float]:
    """Return all metrics of an iteration with rsl_rl's names."""
    found = {_train_tag(name): value for name, value in record.logs("train").items()}
    for name, value in record.logs("collect").items():
        if name in _EPISODES:
            found[_EPISODES[name]] = value
        elif name not in _OF_THE_COLLECTOR:
            found[name if "/" in name else f"Episode/{name}"] = value
    numbers = record.numbers()
    return {
        **found,
        "Perf/total_fps": float(int(record.steps_per_second)),
        "Perf/collection_fps": numbers["time/collection_steps_per_second"],
        "Perf/learning_fps": numbers["time/learning_steps_per_second"],
        "Perf/collection_time": record.collection_seconds,
        "Perf/learning_time": record.learning_seconds,
    }


def memory_tags(device: torch.device | str) -> dict[str, float]:
    """Return the memory in use, GiB: of the process at its peak; on a GPU also what torch has and what is free."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    found = {"Perf/memory": peak}
    if torch.device(device).type == "cuda":
        found["Perf/gpu_allocated"] = torch.cuda.memory_allocated(device) / 2**30
        found["Perf/gpu_global_free_mem"] = torch.cuda.mem_get_info(device)[0] / 2**30
    return found


def tags_over_time(tags: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that rsl_rl also plots over seconds instead of iterations."""
    return {f"{name}/time": tags[name] for name in _EPISODES.values() if name in tags}


_PRINTED = ("Loss/value", "Loss/surrogate", "Loss/entropy", "Loss/symmetry", "Loss/rnd")


class LearnProgress(NamedTuple):
    """Where a call of `learn` is, for what is printed."""

    iteration: int
    """The present iteration, counted from 0."""
    first: int
    """The first iteration of this call."""
    last: int
    """The iteration after its last one."""
    seconds: float
    """How long this call has taken so far."""


def as_block(
    record: Record, tags: Mapping[str, float], progress: LearnProgress, width: int, pad: int, name: str = ""
) -> str:
    """Return an iteration as rsl_rl prints it: title, speed, losses, episodes, the env's own numbers, time left."""

    def line(label: str, text: str) -> str:
        return f"{label + ':':>{pad}} {text}"

    title = f" Learning iteration {progress.iteration}/{progress.last} ".center(width)
    lines = ["#" * width, f"\033[1m{title}\033[0m", ""]
    lines += [line("Run name", name)] if name else []
    lines += [
        line("Total steps", str(record.env_steps)),
        line("Steps per second", f"{tags['Perf/total_fps']:.0f}"),
        line("Collection time", f"{record.collection_seconds:.3f}s"),
        line("Learning time", f"{record.learning_seconds:.3f}s"),
    ]
    losses = [tag for tag in _PRINTED if tag in tags]
    losses += [tag for tag in tags if tag.startswith("Loss/") and tag.endswith("_loss") and tag != "Loss/total_loss"]
    names = {tag: tag.removeprefix("Loss/").removesuffix("_loss") for tag in losses}
    lines += [line(f"Mean {names[tag]} loss", f"{tags[tag]:.4f}") for tag in losses]
    for tag, label in (
        ("Train/mean_reward", "Mean reward"),
        ("Train/mean_episode_length", "Mean episode length"),
        ("Policy/mean_std", "Mean action std"),
    ):
        lines += [line(label, f"{tags[tag]:.2f}")] if tag in tags else []
    others = [tag for tag in tags if tag.partition("/")[0] not in ("Loss", "Train", "Perf", "Policy")]
    lines += [line(tag.replace("Episode/", "Mean episode "), f"{tags[tag]:.4f}") for tag in others]
    done = progress.iteration + 1 - progress.first
    left = progress.seconds / done * (progress.last - progress.iteration - 1)
    lines += [
        "-" * width,
        line("Iteration time", f"{record.collection_seconds + record.learning_seconds:.2f}s"),
        line("Time elapsed", str(timedelta(seconds=int(progress.seconds)))),
        line("ETA", str(timedelta(seconds=int(left)))),
        "",
    ]
    return "\n".join(lines)


def as_lines(title: str, tags: Mapping[str, float], width: int, pad: int) -> str:
    """Return metrics as lines of text under a title."""
    lines = ["#" * width, title.center(width)]
    lines += [f"{name + ':':>{pad}} {value:.4g}" for name, value in tags.items()]
    return "\n".join(lines)


def _train_tag(name: str) -> str:
    if name in _LOSSES:
        return _LOSSES[name]
    if name in _OF_THE_POLICY:
        return f"Policy/{name}"
    return f"Rnd/{name.removeprefix('rnd_')}" if name.startswith("rnd_") else f"Loss/{name}"


# -- what an env measures ----------------------------------------------------------------------------------------------


Metric = Callable[[VecEnv], float | None]
"""A number of an env, or None where it has none."""


def velocity_rmsd(env: VecEnv) -> float | None:
    """Return the root mean square of the velocity tracking error over the envs."""
    error = env.metrics().get("tracking_error")
    return None if error is None else float(error.double().square().mean().sqrt())


def cost_of_transport(env: VecEnv) -> float | None:
    """Return the mean cost of transport over the envs, without those where it is not finite: robots at rest."""
    found = env.metrics()
    cost = found.get("cost_of_transport", found.get("CoT"))
    if cost is None:
        return None
    finite = cost[torch.isfinite(cost)]
    return float(finite.double().mean()) if finite.numel() else None


METRICS: Mapping[str, Metric] = {"velrmsd": velocity_rmsd, "CoT": cost_of_transport}
"""The default metrics of a runner."""


# -- trials ------------------------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)


def report_to_trial(trial: Any, value: float | None, step: int) -> bool:
    """Report a metric and check for pruning; there may be none before an episode has finished.

    A trial that is to be pruned raises `optuna.TrialPruned` where Optuna is installed; else True is returned.
    """
    if value is None:
        return False
    trial.report(value, step)
    if not trial.should_prune():
        return False
    _log.info("the trial was pruned after iteration %d", step)
    if importlib.util.find_spec("optuna") is None:
        return True
    raise importlib.import_module("optuna").TrialPruned(f"after iteration {step}, with {value}")


# -- the code ----------------------------------------------------------------------------------------------------------


_SECONDS = 30


def repository_of(path: str | Path) -> Path | None:
    """Return the top folder of the git repository that a file or folder is in, or None."""
    path = Path(path).resolve()
    folder = path if path.is_dir() else path.parent
    found = _git(folder, "rev-parse", "--show-toplevel")
    return None if found is None else Path(found.strip())


def store_code_state(log_dir: str | Path, repositories: Iterable[str | Path]) -> list[Path]:
    """Write log_dir/git/<name>.diff for every repository and return these files.

    Each begins with the commit and the status, then follows the difference to the commit, which `git apply` takes.
    """
    written: list[Path] = []
    folder = Path(log_dir) / "git"
    for given in dict.fromkeys(Path(each) for each in repositories):
        top = repository_of(given)
        commit = None if top is None else _git(top, "rev-parse", "HEAD")
        if top is None or commit is None:
            _log.warning("%s is in no git repository with a commit; its code is not stored with the run", given)
            continue
        status, difference = _git(top, "status", "--porcelain") or "", _git(top, "diff", "--binary", "HEAD") or ""
        head = [f"# commit {commit.strip()}", *(f"# {line}" for line in status.splitlines())]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{top.name}.diff"
        number = 2
        while path in written:  # two repositories of the same name
            path, number = folder / f"{top.name}_{number}.diff", number + 1
        write_text(path, "\n".join([*head, difference]))
        written.append(path)
    return written


def _git(folder: Path, *arguments: str) -> str | None:
    """Return git's output, or None when it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.warning("git could not be asked: %s", error)
        return None
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else None
