"""Runs whose disk fills up, becomes read-only or is deleted: training goes on, and what was saved still loads."""

from __future__ import annotations

import ctypes
import logging
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from killed_runs import answer, config_of
from poison import digest
from run_cases import folder_at

from striderl.checkpoint.errors import CheckpointError
from striderl.checkpoint.store import CheckpointStore
from striderl.training.consumers.consumer import NOTHING
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import read_run_config
from striderl.training.experiment.run_folder import RunFolder

_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS


class At:
    """A consumer that does something after one iteration; it sees every record and changes nothing else."""

    def __init__(self, iteration: int, action: Callable[[], None]) -> None:
        self.iteration, self.action = iteration, action

    def consume(self, record: Any, run: Any) -> Any:
        if record.iteration == self.iteration:
            self.action()
        return NOTHING

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass

    def close(self) -> None:
        pass


class Heard(logging.Handler):
    """Keeps what was said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def trained(
    path: Path, kind: str = "cartpole", at: int = 3, action: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Train in a folder, do something to its disk after an iteration, and tell how it ended."""
    heard = Heard()
    logging.disable(logging.NOTSET)
    logging.getLogger().addHandler(heard)
    config = config_of(kind, 8)
    run = Run(config, folder_at(path, config), watchers=[At(at, action)])
    outcome = run.drive()
    return {
        "reason": outcome.reason,
        "saved": outcome.saved,
        "said": heard.lines,
        "state": digest(run.trainer.algorithm.state_dict()),
        "loads": _loads(path),
    }


def _loads(path: Path) -> int:
    """Return the step of the checkpoint that loads; -1 where none is there, -2 where one is damaged."""
    try:
        return CheckpointStore(RunFolder(path).checkpoints).load("last").step
    except CheckpointError as error:
        return -1 if "no checkpoint" in str(error) else -2


def judge(found: dict[str, Any], wanted: str, *, where: str, at_least: int, saved: bool = False) -> list[str]:
    """Return what is wrong with a run whose disk was taken away."""
    wrong = []
    if found["reason"] != "the plan is fulfilled" or found["state"] != wanted:
        wrong.append(f"{where}: training noticed ({found['reason']})")
    if found["loads"] < at_least:
        wrong.append(f"{where}: the checkpoint of step {at_least} was good, {found['loads']} loads")
    if found["saved"] != saved:
        wrong.append(f"{where}: says saved={found['saved']}")
    causes = [line for line in found["said"] if line.startswith("not saved")]
    turns = sum(line.startswith("saved again") for line in found["said"])  # room may come and go
    if len(causes) > 1 + turns or (not saved and not causes):
        wrong.append(f"{where}: said {len(causes)} times that it cannot save: {causes[:2]}")
    loggers = [line.split()[1] for line in found["said"] if line.startswith("logger")]
    if len(loggers) != len(set(loggers)):
        wrong.append(f"{where}: loggers warned more than once: {loggers}")
    return wrong


def limit_sizes(folder: Path, count: int) -> tuple[int, list[str]]:
    """Forbid files above a size from the third iteration on; return (faults, what is wrong)."""
    whole = answer(lambda: trained(folder / "whole"))
    largest = max(path.stat().st_size for path in _one_checkpoint(folder / "whole").iterdir())
    wrong: list[str] = []
    for number in range(count):
        size, path = number * largest // count, folder / f"size_{number}"

        def limit(size: int = size) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        found = answer(lambda path=path, limit=limit: trained(path, action=limit))
        wrong += judge(found, whole["state"], where=f"file size limit {size}", at_least=128)
        shutil.rmtree(path)
    return count, wrong


def mounts_refused() -> str:
    """Return why no file system can be mounted here, or '' where it can."""
    if shutil.which("unshare") is None:
        return "there is no program 'unshare'"
    probe = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=100, check=False)
    return done.stderr.strip() if done.returncode else ""


def mount(place: Path, options: str) -> None:
    """Mount a file system that only this process sees."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "no mounts of one's own here")
    _command("mount", "--make-rprivate", "/")
    _command("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place))


def close_for_writing(place: Path) -> None:
    """Let nobody open a file there for writing; those that are open stay so, as after an error of the disk."""
    _command("mount", "--bind", str(place), str(place))
    _command("mount", "-o", "remount,bind,ro", str(place))


def _command(*words: str) -> None:
    subprocess.run(words, check=True, timeout=100)


def small_disks(folder: Path, count: int) -> tuple[int, list[str]]:
    """Train on file systems with room for one to three checkpoints; return (faults, what is wrong)."""
    whole = answer(lambda: trained(folder / "whole"))
    size = sum(path.stat().st_size for path in _one_checkpoint(folder / "whole").iterdir()) // 1024 + 8
    place, wrong, faults = folder / "small", list[str](), 0
    place.mkdir()
    for number in range(count):
        room = size + 24 + number * size * 2 // count

        def full(room: int = room) -> dict[str, Any]:
            mount(place, f"size={room}k")
            found = trained(place / "run")
            found["loads"] = max(found["loads"], 0)
            return found

        found = answer(full)
        causes = [line for line in found["said"] if line.startswith("not saved")]
        faults += bool(causes)
        wrong += judge(found, whole["state"], where=f"tmpfs of {room}k", at_least=0, saved=found["saved"])
        if causes and "No space left" not in causes[0]:
            wrong.append(f"tmpfs of {room}k: {causes[0]}")
    return faults, wrong


def _one_checkpoint(path: Path) -> Path:
    found = CheckpointStore(RunFolder(path).checkpoints).latest()
    assert found is not None
    return found


def read_only(folder: Path, at: int = 3) -> list[str]:
    """Make the file system read-only during a run."""
    whole = answer(lambda: trained(folder / "whole"))
    place = folder / "mounted"
    place.mkdir()

    def closing() -> dict[str, Any]:
        mount(place, "size=64m")
        return trained(place / "run", at=at, action=lambda: close_for_writing(place))

    first = -1 if at == 1 else 64 + (at - 1) * 32  # the watcher comes before the save of its own iteration
    return judge(answer(closing), whole["state"], where=f"read-only after {at}", at_least=first)


def deleted(folder: Path, at: int = 3) -> list[str]:
    """Delete the folder of a run while it trains: it is made again, and can be resumed."""
    whole = answer(lambda: trained(folder / "whole"))
    path = folder / "gone"
    found = answer(lambda: trained(path, at=at, action=lambda: shutil.rmtree(path)))
    wrong = judge(found, whole["state"], where=f"deleted after {at}", at_least=64 + 8 * 32, saved=True)
    if sum("was deleted during the run" in line for line in found["said"]) != 1:
        wrong.append(f"deleted after {at}: said {found['said']}")
    if read_run_config(path) != config_of("cartpole", 8) or not (path / "specs.json").is_file():
        wrong.append(f"deleted after {at}: the folder cannot be resumed")
    return wrong
