"""Where a command begins and where it runs: the config it starts from, and submission to Slurm by submitit.

--config FILE                  settings of a file instead of a recipe
--slurm partition=gpu,time=60  submit instead of running here

submit ─▶ Slurm job: submitit ─▶ striderl train …  (a process of its own)
             ▲         │ preempted, or out of time: SIGTERM ─▶ the run saves itself and ends
             └─requeue─┘ again: striderl resume RUN, exactly there
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from striderl.checkpoint.safe_files import read_json, write_json
from striderl.cli.runs import SEED
from striderl.cli.terminal import UsageError, message_of, say
from striderl.data.naming import missing_extra
from striderl.data.registry import folder_name
from striderl.recipes.table import recipe

if TYPE_CHECKING:
    from striderl.training.experiment.run_config import RunConfig

SLURM = "--slurm"
"""The flag: KEY=VALUE,KEY=VALUE."""
RENAMED = {"time": "timeout_min", "mem": "slurm_mem", "tasks": "tasks_per_node"}
"""Slurm's words for parameters that submitit has for all clusters."""
STOPPED = 128 + signal.SIGTERM
"""The exit code of a run that was asked to stop, and has saved itself."""
STOP_SECONDS = 80.0
"""How long a run may take to save itself; submitit has Slurm wait 90 seconds after the signal."""


# -- torchrun that starts its processes again --------------------------------------------------------------------------


class Relaunch:
    """The note by which processes that torchrun has started again find the run that they were training.

    torchrun starts all of its processes anew when one has died (--max-restarts) or when nodes join; rank 0 leaves the
    folder of the run in a file in the folder of runs, and reads it when it is started again by the same torchrun.
    """

    def __init__(self, runs: Path) -> None:
        """Find the place of the note; without torchrun there is none."""
        name, agent = os.environ.get("TORCHELASTIC_RUN_ID", ""), f"{socket.gethostname()}_{os.getppid()}"
        self._agent = agent
        self._restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
        known = re.sub(r"[^\w.-]", "_", agent if name == "none" else name)
        self._note = runs / f".torchrun_{known}.json" if name else None

    def folder(self) -> str:
        """Return the folder of the run that is under way; empty where this is the first start."""
        if self._note is None or not self._note.exists():
            return ""
        try:
            left = read_json(self._note)
            found = str(left["folder"]) if self._restarted or left["agent"] == self._agent else ""
        except (ValueError, KeyError, TypeError, OSError):
            return ""
        return found if Path(found).is_dir() else ""

    def leave(self, folder: str) -> None:
        """Leave the folder of a new run."""
        if self._note is not None:
            write_json(self._note, {"folder": str(Path(folder).resolve()), "agent": self._agent})

    def until_over(self, work: Callable[[], int]) -> int:
        """Do the work and return its exit code; the note goes when the run is over or was asked to stop."""
        code = work()
        if self._note is not None and (code == 0 or code > 128):
            self._note.unlink(missing_ok=True)
        return code


def base_config(words: list[str], given: dict[str, str], *, command: str) -> tuple[list[str], RunConfig[Any, Any]]:
    """Return the words behind the task, and the config that --config or the task and --algorithm name."""
    if "--config" in given:
        if words and not words[0].startswith("-"):
            raise UsageError(f"{given['--config']} has its task; leave {words[0]!r} out")
        if "--algorithm" in given:
            raise UsageError(f"{given['--config']} has its algorithm; leave --algorithm out")
        from striderl.training.experiment.run_folder import read_config_file

        try:
            config = read_config_file(given["--config"], trust="--trust" in words)
        except (ValueError, OSError, KeyError) as error:
            raise UsageError(message_of(error)) from error
        return [word for word in words if word != "--trust"], config
    if not words or words[0].startswith("-"):
        found = f" {words[0]} …" if words else ""
        raise UsageError(f"the task comes before its settings: striderl {command} TASK{found}")
    try:
        return words[1:], recipe(words[0], given.get("--algorithm", ""))
    except (KeyError, TypeError, ValueError, ImportError) as error:
        raise UsageError(message_of(error)) from error


# -- Slurm -------------------------------------------------------------------------------------------------------------


class SlurmJob:
    """A command of this program as a job that can be requeued; it runs in a process of its own."""

    def __init__(self, first: Sequence[str], again: Sequence[str], begun: str) -> None:
        """Take the words that start it, those that go on with it, and the file that exists once it has begun."""
        self.first, self.again, self.begun = list(first), list(again), begun
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Run the command to its end; a code other than 0 fails the job.

        Where rank 0 was preempted the other ranks stop with it: they end without an error, which would end rank 0
        before it is requeued.
        """
        words = self.again if Path(self.begun).exists() else self.first
        self.process = subprocess.Popen(
            [sys.executable, "-m", "striderl", *words], env=_environment(), preexec_fn=_ignore_notice
        )
        code = self.process.wait()
        if code == STOPPED and _rank():
            return code
        if code:
            raise RuntimeError(f"'striderl {' '.join(words)}' ended with {code}; its errors are in the job's .err file")
        return code

    def checkpoint(self) -> Any:
        """Let the run save itself and return the job that goes on; submitit calls this before the time is over."""
        import submitit

        if self.process is not None and not _ended(self.process.pid, 0.0):
            os.kill(self.process.pid, signal.SIGTERM)
            if not _ended(self.process.pid, STOP_SECONDS):
                os.kill(self.process.pid, signal.SIGKILL)  # the last checkpoint on the disk is whole
        return submitit.helpers.DelayedSubmission(SlurmJob(self.first, self.again, self.begun))

    def __getstate__(self) -> dict[str, Any]:
        """Leave the process out: it stays on its node."""
        return {**self.__dict__, "process": None}


def _rank() -> int:
    import submitit

    return int(submitit.JobEnvironment().global_rank)


def _ended(child: int, seconds: float) -> bool:
    """Wait for the end of a child and return whether it came.

    Not by `Popen`: this runs in a signal handler, which interrupts a `Popen.wait` that holds the lock of the object.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)


def _ignore_notice() -> None:
    """Ignore Slurm's notice in the child: it goes to every process of a job, and submitit's own handles it."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _environment() -> dict[str, str]:
    """Return the environment of the command: with several tasks, they are the ranks of one run."""
    import submitit

    if submitit.JobEnvironment().num_tasks > 1:
        submitit.helpers.TorchDistributedEnvironment().export(overwrite=True)
    return dict(os.environ)


def import_submitit() -> Any:
    """Return the module, or raise naming the extra."""
    try:
        import submitit
    except ImportError as error:
        raise ImportError(missing_extra("submitit", "slurm", purpose="A job of Slurm")) from error
    return submitit


def submit_train(text: str, config: RunConfig[Any, Any], words: list[str], given: dict[str, str]) -> int:
    """Submit a run, or with --seeds a job array of runs, and return."""
    count = _seeds(given)
    stamp = given.get("--name", time.strftime("%Y-%m-%d_%H-%M-%S"))
    task = folder_name(config.env.task)
    runs = Path(given.get("--runs", "runs")).resolve()
    jobs = []
    for number in range(count):
        name = f"{stamp}/{SEED}{config.seed + number}" if "--seeds" in given else stamp
        if (runs / task / name).exists():
            raise UsageError(f"{runs / task / name} exists; choose another name, or go on: striderl resume it")
        named = [*words, "--seed", str(config.seed + number), "--name", name, "--runs", str(runs)]
        jobs.append(
            SlurmJob(["train", *named], ["resume", str(runs / task / name)], str(runs / task / name / "config.json"))
        )
        say(f"{runs / task / name}")
    return _submit(text, jobs, runs / task / f"{stamp.replace('/', '_')}_slurm", f"striderl-{task}")


def submit_sweep(text: str, folder: Path, count: int) -> int:
    """Submit processes that work on a sweep, as a job array, and return."""
    words = ["sweep", "--resume", str(folder)]
    jobs = [SlurmJob(words, words, str(folder / "sweep.json")) for _ in range(max(1, count))]
    return _submit(text, jobs, folder / "slurm", f"striderl-{folder.name}")


def _seeds(given: dict[str, str]) -> int:
    text = given.get("--seeds", "1")
    if not text.isdigit() or text == "0":
        raise UsageError(f"--seeds is how many runs there are, found {text!r}")
    return int(text)


def _submit(text: str, jobs: list[SlurmJob], folder: Path, name: str) -> int:
    try:
        submitit = import_submitit()
    except ImportError as error:
        raise UsageError(message_of(error)) from error
    cluster, parameters = slurm_parameters(text)
    try:
        executor = submitit.AutoExecutor(folder=folder / "%j", cluster=cluster)
        usual: dict[str, Any] = {"slurm_job_name": name} if cluster == "slurm" else {}
        executor.update_parameters(**{**usual, **parameters})
        submitted = executor.submit_array(jobs) if len(jobs) > 1 else [executor.submit(jobs[0])]
    except (RuntimeError, ValueError, NameError, OSError) as error:  # NameError: submitit's for an unknown parameter
        raise UsageError(f"{SLURM}: {message_of(error)}") from error
    for job in submitted:
        say(f"job {job.job_id}: output in {job.paths.stdout}")
    return 0


def slurm_parameters(text: str) -> tuple[str, dict[str, Any]]:
    """Return the cluster and submitit's parameters of 'partition=gpu,time=4:00:00,gpus_per_node=1'."""
    shared = ("timeout_min", "mem_gb", "tasks_per_node", "nodes", "cpus_per_task", "gpus_per_node", "stderr_to_stdout")
    found: dict[str, Any] = {}
    cluster = "slurm"
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"{SLURM} is written KEY=VALUE,KEY=VALUE, such as partition=gpu,time=60; found {part!r}")
        if name == "cluster":
            cluster = value
            continue
        name = RENAMED.get(name, name)
        name = name if name in shared or name.startswith("slurm_") else f"slurm_{name}"
        found[name] = minutes(value) if name == "timeout_min" else int(value) if value.isdigit() else value
    if cluster not in ("slurm", "local"):
        raise UsageError(f"{SLURM}: cluster is 'slurm', or 'local' to try a job without one, found {cluster!r}")
    return cluster, found


def minutes(text: str) -> int:
    """Return a time as Slurm writes it in minutes: '90', '4:00:00', '2-12:00:00'."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        raise UsageError(
            f"{SLURM}: time is minutes, hours:minutes:seconds or days-hours:minutes:seconds, found {text!r}"
        )
    days, first, second, third = found.groups()
    if days is not None:
        return int(days) * 1440 + int(first) * 60 + int(second or 0)
    if third is not None:
        return int(first) * 60 + int(second) + (int(third) + 59) // 60
    return int(first) + (1 if second and int(second) else 0)
