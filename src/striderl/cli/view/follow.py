"""`CheckpointFollower`: the policy of a run that may be training in another process, by its checkpoints.

    checkpoints/step_…1000   step_…2000   best.json ─▶ 1000
                 │            │
    'best' ──────┘            └────── 'last'            a number of steps: that one, as long as it is there

`poll` looks at names and times of files, which costs next to nothing, and loads only when one of them has changed. A
folder that was deleted, is damaged or was written by a newer version leaves the policy as it is: `problem` names it.
"""

from __future__ import annotations

import os
from pathlib import Path

from striderl.checkpoint.errors import CheckpointError, CheckpointMissing
from striderl.checkpoint.store import CheckpointStore
from striderl.cli.terminal import UsageError, message_of
from striderl.data.naming import suggestion
from striderl.training.experiment.loading import LoadedRun, load_run, load_untrained
from striderl.training.experiment.log_dir import is_log_dir
from striderl.training.experiment.run_config import CONFIG_FILE
from striderl.training.experiment.run_folder import SPECS_FILE, RunFolder

NAMED = ("best", "last")
"""Checkpoints that are followed; a number is one that stays."""
_FAILURES = (CheckpointError, OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError)
_HIDDEN = "."

Signature = tuple[object, ...]


class CheckpointFollower:
    """Loads a run's policy, and again whenever another checkpoint is the one that is followed."""

    def __init__(self, folder: Path, which: str, *, trust: bool = False) -> None:
        """Load the checkpoint; of a run that has none yet, the policy as it was before training."""
        self.folder, self._which, self._trust = folder, checked_name(which), trust
        self.problem = ""
        """Why the newest state of the folder cannot be shown; empty where it can."""
        self.num_swaps = 0
        """How often another checkpoint was loaded since."""
        self._seen = signature(folder)
        try:
            self.loaded = self._load()
        except _FAILURES as error:
            raise UsageError(f"{folder}: {message_of(error)}") from error

    @property
    def which(self) -> str:
        """What is followed: 'best', 'last', or a number of env steps."""
        return self._which

    def follow(self, which: str) -> bool:
        """Follow another checkpoint from now on; returns whether another policy was loaded, as `poll` does."""
        self._which, self._seen = checked_name(which), ()
        return self.poll()

    def poll(self) -> bool:
        """Load what is new; returns whether it is another policy. Never raises: what is wrong becomes `problem`."""
        now = signature(self.folder)
        if now == self._seen:
            return False
        self._seen = now
        if not now:
            self.problem = f"{self.folder} is gone; the policy that was loaded last goes on"
            return False
        try:
            loaded = self._load()
        except _FAILURES as error:
            self.problem = f"{message_of(error)}; the policy that was loaded last goes on"
            return False
        if loaded.layout != self.loaded.layout:
            self.problem = f"{self.folder} has other observations or actions now; start the view again"
            return False
        self.problem = ""
        if loaded.step == self.loaded.step:
            return False
        self.loaded, self.num_swaps = loaded, self.num_swaps + 1
        return True

    def choices(self) -> tuple[str, ...]:
        """Return 'best', 'last' and the steps of which there is a checkpoint."""
        try:
            steps = () if is_log_dir(self.folder) else CheckpointStore(RunFolder(self.folder).checkpoints).steps()
        except _FAILURES:
            steps = ()
        return (*NAMED, *(str(step) for step in steps))

    def _load(self) -> LoadedRun:
        which = int(self._which) if self._which.isdigit() else self._which
        try:
            return load_run(self.folder, which, trust=self._trust)
        except CheckpointMissing:
            if self._which.isdigit():
                raise
            return load_untrained(self.folder, trust=self._trust)


def checked_name(which: str) -> str:
    """Return the name of a checkpoint, or raise UsageError."""
    if not which.isdigit() and which not in NAMED:
        wanted = f"a checkpoint is {', '.join(map(repr, NAMED))} or a number of env steps, found {which!r}"
        raise UsageError(f"{wanted}. {suggestion(which, NAMED)}".rstrip())
    return which


def signature(folder: Path) -> Signature:
    """Return what changes with the run's files: names and times; empty where the folder is gone."""
    checkpoints = RunFolder(folder).checkpoints
    found: list[object] = []
    for path in (folder, checkpoints):
        try:
            with os.scandir(path) as entries:
                # a save that is under way has a hidden name, and comes to an end under its own
                names = (entry.name for entry in entries if entry.is_dir() or entry.name.endswith((".pt", ".json")))
                found.append(tuple(sorted(name for name in names if not name.startswith(_HIDDEN))))
        except OSError:
            if path == folder:
                return ()
    for path in (folder / CONFIG_FILE, folder / SPECS_FILE, checkpoints / "best.json"):
        try:
            about = path.lstat()
        except OSError:
            found.append(None)
        else:
            found.append((about.st_mtime_ns, about.st_size))
    return tuple(found)
