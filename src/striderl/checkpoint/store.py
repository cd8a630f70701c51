"""A folder of checkpoints: whole or invisible, checked when read, the last good one never lost.

    checkpoints/
      step_000000001000/           tensors.safetensors  state.json  manifest.json (written last)
      step_000000002000/
      step_000000002000_2/         the same step saved again; the higher number counts
      best.json                    {"checkpoint":"step_000000001000", …}: never deleted by keep_last
      .tmp_step_000000003000/      a save that is under way, or was cut off; never read, the next save removes it

A checkpoint gets its name only after all its bytes are on the disk and were read back; older ones are deleted only
after that. One process writes to a folder; any number may read.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from striderl.checkpoint.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointMissing,
    CheckpointUnreadable,
    memory_limit,
)
from striderl.checkpoint.file_ops import FileOps, make_directories
from striderl.checkpoint.folder import (
    Payload,
    check_sizes,
    foreign_names,
    read_checkpoint,
    read_small,
    remove_checkpoint,
    sealed,
    unsealed,
    verify_checkpoint,
    write_checkpoint,
    write_file,
)

logger = logging.getLogger(__name__)

BEST = "best.json"
TEMPORARY = ".tmp_"
MAX_STEP = 10**18 - 1
_NAME = re.compile(r"step_(\d{12,18})(?:_([1-9]\d{0,8}))?")
_LEFTOVER = re.compile(rf"{re.escape(TEMPORARY)}(?:{re.escape(BEST)}|(?:deleted_)?{_NAME.pattern})")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What was saved."""

    state: Any
    """The state, with tensors on the CPU."""
    step: int
    """The step it was saved at."""
    config: dict[str, Any] | None
    """The settings it was saved with."""
    layout: dict[str, Any] | None
    """The layout of observations and actions it was saved with; see `striderl.checkpoint.layout`."""
    path: Path
    """The directory it was read from."""
    seal: Mapping[str, str]
    """Digests of the run's own files when it was saved; empty where nothing was sealed."""


class _Found(NamedTuple):
    """A directory with the name of a checkpoint; sorts by age."""

    step: int
    turn: int
    path: Path


class CheckpointStore:
    """Saves, loads and keeps the checkpoints in one folder."""

    def __init__(
        self,
        directory: str | Path,
        keep_last: int = 3,
        *,
        max_bytes: int | None = None,
        ops: FileOps | None = None,
    ) -> None:
        """Use a folder, usually RUN/checkpoints, made at the first save; keep the newest `keep_last` and the best.

        Checkpoints of more than `max_bytes` (by default the machine's memory) are not read.
        """
        if keep_last < 1:
            raise ValueError(f"keep_last is at least 1, found {keep_last}")
        self.directory = Path(directory)
        self.keep_last = keep_last
        self._max_bytes = max_bytes
        self._ops = ops if ops is not None else FileOps()

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(
        self,
        state: Any,
        *,
        step: int,
        best: bool = False,
        config: Mapping[str, Any] | None = None,
        layout: Mapping[str, Any] | None = None,
        seal: Mapping[str, str] | None = None,
    ) -> Path:
        """Save a state and return its directory; when that fails, everything saved before is as it was.

        `seal` has digests of files that belong to the state and lie elsewhere; they are given back by `load`.
        Raises TypeError for a state that cannot be saved, with the place, and CheckpointError when the system refuses.
        """
        if type(step) is not int or not 0 <= step <= MAX_STEP:
            raise ValueError(f"step is a whole number from 0 to {MAX_STEP}, found {step!r}")
        payload = Payload(state, config, layout)
        try:
            make_directories(self._ops, self.directory)
            path = self._new_path(step)
        except OSError as error:
            raise self._write_error(step, error, payload) from error
        self.clean()
        self._commit(path, payload, step=step, best=best, seal=seal)
        self._delete_old(path)
        return path

    def _commit(self, path: Path, payload: Payload, *, step: int, best: bool, seal: Mapping[str, str] | None) -> None:
        """Write a checkpoint under another name, read it back, and only then give it its own."""
        temporary = self.directory / f"{TEMPORARY}{path.name}"
        try:
            write_checkpoint(self._ops, temporary, payload, step=step, best=best, seal=seal)
            verify_checkpoint(self._ops, temporary, max_bytes=payload.num_bytes * 2 + 2**30)
            if best:
                # before the name is given: a pointer to nothing is ignored, but a best one without its pointer is lost
                self._point_to_best(path, step)
            self._ops.rename(temporary, path)
            self._ops.sync_directory(self.directory)
        except OSError as error:
            raise self._write_error(step, error, payload) from error
        except (CheckpointCorrupt, CheckpointUnreadable) as error:
            raise CheckpointError(
                f"checkpoint {path.name} was not kept, because it could not be read back: {error}"
            ) from error
        finally:
            # nothing is there after a success; also an interrupt must leave nothing behind
            self._remove_quietly(temporary)
            self._remove_quietly(self.directory / f"{TEMPORARY}{BEST}")

    def clean(self) -> None:
        """Remove what cut-off saves left behind; what cannot be removed is logged."""
        if not self.directory.is_dir():
            return
        try:
            names = self._ops.names(self.directory)
        except OSError as error:
            logger.warning("cannot look for leftovers in %s: %s", self.directory, error.strerror)
            return
        for name in names:
            if _LEFTOVER.fullmatch(name):
                self._remove_quietly(self.directory / name)

    def _new_path(self, step: int) -> Path:
        taken = [found.turn for found in self._found() if found.step == step]
        suffix = f"_{max(taken) + 1}" if taken else ""
        return self.directory / f"step_{step:012d}{suffix}"

    def _point_to_best(self, path: Path, step: int) -> None:
        temporary = self.directory / f"{TEMPORARY}{BEST}"
        write_file(self._ops, temporary, [memoryview(sealed({"checkpoint": path.name, "step": step}))])
        self._ops.rename(temporary, self.directory / BEST)

    def _delete_old(self, newest: Path) -> None:
        """Delete what is neither among the newest good ones, nor the best, nor newer than the one just saved."""
        try:
            best, found = self.best(), self._found()
            keep = {newest, best}
            steps = {found_step for found_step, _, path in found if path == newest}
            for step, _, path in reversed(found):
                if len(steps) < self.keep_last and step not in steps and self._has_all_files(path):
                    steps.add(step)
                    keep.add(path)
            enough = min(steps) if len(steps) == self.keep_last else -1
            for step, _, path in found:
                # a damaged one is useless as soon as there are enough good ones after it
                if path not in keep and (step in steps or step < enough or self._has_all_files(path)):
                    self._delete(path)
        except (OSError, CheckpointError) as error:
            logger.warning("old checkpoints in %s could not be deleted: %s", self.directory, error)

    def delete_all(self) -> None:
        """Delete every checkpoint; other files stay, and so does a checkpoint that somebody has put files into."""
        for found in self._found():
            self._delete(found.path)

    def _delete(self, path: Path) -> None:
        """Make a checkpoint invisible in one step, then remove it."""
        hidden = self.directory / f"{TEMPORARY}deleted_{path.name}"
        try:
            others = foreign_names(self._ops.names(path))
            if others:
                logger.warning("checkpoint %s is old and kept, because it holds %r", path, others[0])
                return
            self._ops.rename(path, hidden)
            remove_checkpoint(self._ops, hidden)
        except OSError as error:
            logger.warning("checkpoint %s could not be deleted: %s", path, error.strerror)

    def _remove_quietly(self, path: Path) -> None:
        try:
            remove_checkpoint(self._ops, path)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("the leftover %s could not be removed: %s", path, error.strerror)

    def _write_error(self, step: int, error: OSError, payload: Payload) -> CheckpointError:
        where = error.filename or self.directory
        return CheckpointError(
            f"checkpoint of step {step} (about {payload.num_bytes} bytes) could not be written to {str(where)!r}: "
            f"{error.strerror or error}; earlier checkpoints in {str(self.directory)!r} are untouched"
        )

    # -- loading -------------------------------------------------------------------------------------------------------

    def load(self, which: str | int = "last") -> Checkpoint:
        """Load the last checkpoint, the best, or that of a step.

        A damaged last one is named in a warning and the newest good one is used; a damaged best one, or one asked for
        by its step, raises CheckpointCorrupt.
        """
        if which == "last":
            return self._load_last()
        if which == "best":
            return self._load_best()
        if type(which) is not int:
            raise ValueError(f"which is 'last', 'best' or a step, found {which!r}")
        paths = [found.path for found in self._found() if found.step == which]
        if not paths:
            raise CheckpointMissing(f"{str(self.directory)!r} has no checkpoint of step {which}; it has {self.steps()}")
        return self._read(paths[-1])

    def verify(self, path: str | Path) -> None:
        """Check every byte of a checkpoint; raises CheckpointCorrupt with the file and the reason."""
        manifest = verify_checkpoint(self._ops, Path(path), max_bytes=self._limit())
        _check_name(Path(path), manifest.step)

    def steps(self) -> list[int]:
        """Return the steps of which there is a checkpoint, in order; it is not looked into."""
        return sorted({found.step for found in self._found()})

    def latest(self) -> Path | None:
        """Return the newest checkpoint that has all its files, or None."""
        return next((found.path for found in reversed(self._found()) if self._has_all_files(found.path)), None)

    def seal(self) -> Mapping[str, str]:
        """Return the seal of the newest checkpoint that has all its files; empty where there is none."""
        path = self.latest()
        return {} if path is None else check_sizes(self._ops, path, max_bytes=self._limit()).seal

    def best(self) -> Path | None:
        """Return the best checkpoint, or None; where `best.json` is lost or damaged, the newest saved as the best."""
        try:
            content = unsealed(read_small(self._ops, self.directory / BEST), self.directory / BEST)
            name = content.get("checkpoint")
            path = self.directory / name if isinstance(name, str) and _NAME.fullmatch(name) else None
        except CheckpointCorrupt as error:
            path = None
            if (self.directory / BEST).exists():
                logger.warning("%s", error)
        if path is not None and self._ops.is_directory(path) and self._saved_as_best(path, unknown=True):
            return path
        flagged = (found.path for found in reversed(self._found()) if self._saved_as_best(found.path, unknown=False))
        return next(flagged, None)

    def _load_best(self) -> Checkpoint:
        while True:
            path = self.best()
            if path is None:
                raise CheckpointMissing(f"no checkpoint in {str(self.directory)!r} was saved as the best")
            try:
                return self._read(path)
            except CheckpointCorrupt:
                if path.exists():
                    raise
                # the running process has found a better one and deleted this one in the meantime

    def _load_last(self) -> Checkpoint:
        damaged: dict[Path, CheckpointError] = {}
        path = self._newest(damaged)
        while path is not None:
            try:
                checkpoint = self._read(path)
            except (CheckpointCorrupt, CheckpointUnreadable) as error:
                if isinstance(error, CheckpointUnreadable) and error.errno != errno.EIO:
                    raise  # a lack of rights or memory does not mean damage; an older state would be a surprise
                damaged[path] = error
                path = self._newest(damaged)
                continue
            # one that is gone by now was deleted by the running process after we had looked: not a fault
            reasons = [str(error) for bad, error in damaged.items() if bad.exists()]
            if reasons:
                logger.warning("%s; loading %s instead", "; ".join(reasons), checkpoint.path.name)
            return checkpoint
        if damaged:
            reasons = [str(error) for error in damaged.values()]
            raise CheckpointCorrupt(self.directory, "no good checkpoint is left: " + "; ".join(reasons))
        raise CheckpointMissing(f"there is no checkpoint in {str(self.directory)!r}")

    def _newest(self, but: Mapping[Path, object]) -> Path | None:
        """Look again, because a running process may have saved and deleted in the meantime."""
        return next((found.path for found in reversed(self._found()) if found.path not in but), None)

    def _read(self, path: Path) -> Checkpoint:
        manifest, parts = read_checkpoint(self._ops, path, max_bytes=self._limit())
        _check_name(path, manifest.step)
        return Checkpoint(
            state=parts["state"],
            step=manifest.step,
            config=parts["config"],
            layout=parts["layout"],
            path=path,
            seal=manifest.seal,
        )

    def _has_all_files(self, path: Path) -> bool:
        try:
            check_sizes(self._ops, path, max_bytes=self._limit())
        except CheckpointError:
            return False
        return True

    def _saved_as_best(self, path: Path, *, unknown: bool) -> bool:
        """Return whether a checkpoint was saved as the best; `unknown` is returned for a damaged one."""
        try:
            return check_sizes(self._ops, path, max_bytes=self._limit()).best
        except CheckpointError:
            return unknown

    def _found(self) -> list[_Found]:
        """Return all directories with the name of a checkpoint, oldest first."""
        return sorted(self._named())

    def _named(self) -> Iterator[_Found]:
        try:
            names = self._ops.names(self.directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointUnreadable(self.directory, error) from error
        for name in names:
            match = _NAME.fullmatch(name)
            if match:
                yield _Found(int(match[1]), int(match[2] or 1), self.directory / name)

    def _limit(self) -> int:
        return memory_limit() if self._max_bytes is None else self._max_bytes


def _check_name(path: Path, step: int) -> None:
    """Raise for a directory that was renamed to another step: a run would resume from a wrong count."""
    match = _NAME.fullmatch(path.name)
    if match and int(match[1]) != step:
        raise CheckpointCorrupt(path, f"it holds the checkpoint of step {step}")
