"""A file system whose nth operation fails, once or from then on."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

from store_cases import Campaign, run_state, same

from striderl.checkpoint.errors import CheckpointError
from striderl.checkpoint.file_ops import FileOps
from striderl.checkpoint.store import CheckpointStore

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)


class FailingOps(FileOps):
    """Counts operations; fails the `nth` (from 1), and with `ever_after` all that follow."""

    def __init__(self, nth: int = 0, error: int = errno.EIO, *, ever_after: bool = False) -> None:
        self.nth, self.error, self.ever_after = nth, error, ever_after
        self.count = 0

    def tick(self, path: Any = None) -> None:
        self.count += 1
        if self.nth and (self.count == self.nth or (self.ever_after and self.count > self.nth)):
            raise OSError(self.error, os.strerror(self.error), str(path) if path is not None else None)

    def make_directory(self, path: Path) -> None:
        self.tick(path)
        super().make_directory(path)

    def create(self, path: Path) -> int:
        self.tick(path)
        return super().create(path)

    def write(self, descriptor: int, content: memoryview) -> None:
        try:
            self.tick()
        except OSError:
            super().write(descriptor, content[: len(content) // 2])  # a full disk takes what still fits
            raise
        super().write(descriptor, content)

    def sync(self, descriptor: int) -> None:
        self.tick()
        super().sync(descriptor)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)  # Linux closes also when it reports an error
        self.tick()

    def sync_directory(self, path: Path) -> None:
        self.tick(path)
        super().sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self.tick(source)
        super().rename(source, target)

    def remove_file(self, path: Path) -> None:
        self.tick(path)
        super().remove_file(path)

    def remove_directory(self, path: Path) -> None:
        self.tick(path)
        super().remove_directory(path)

    def names(self, path: Path) -> list[str]:
        self.tick(path)
        return super().names(path)

    def is_directory(self, path: Path) -> bool:
        self.tick(path)
        return super().is_directory(path)

    def open_read(self, path: Path) -> BinaryIO:
        self.tick(path)
        return FailingFile(super().open_read(path), self)  # type: ignore[return-value]


class FailingFile:
    """A file whose reads count as operations."""

    def __init__(self, file: BinaryIO, ops: FailingOps) -> None:
        self.file, self.ops = file, ops

    def read(self, size: int = -1) -> bytes:
        self.ops.tick(self.file.name)
        return self.file.read(size)

    def readinto(self, target: memoryview) -> int:
        self.ops.tick(self.file.name)
        return self.file.readinto(target)  # type: ignore[attr-defined, no-any-return]

    def seek(self, place: int) -> int:
        return self.file.seek(place)

    def fileno(self) -> int:
        return self.file.fileno()

    def __enter__(self) -> FailingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def fail_every_operation(folder: Path, *, errors: tuple[int, ...] = ERRORS) -> Campaign:
    """Let the nth operation of a save fail, for every n until none fails, once and from then on."""
    campaign = Campaign("failing operations of a save")
    logging.getLogger("striderl.checkpoint").setLevel(logging.ERROR)
    before = CheckpointStore(folder / "before", keep_last=2)
    for step in (1, 2, 3):
        before.save(run_state(step), step=step, best=step == 1)
    for error in errors:
        for ever_after in (False, True):
            nth = 0
            going_on = True
            while going_on:
                nth += 1
                where = folder / "now"
                shutil.copytree(before.directory, where)
                going_on = _fail_one_save(campaign, where, nth, error, ever_after)
                shutil.rmtree(where)
    logging.getLogger("striderl.checkpoint").setLevel(logging.NOTSET)
    return campaign


def _fail_one_save(campaign: Campaign, folder: Path, nth: int, error: int, ever_after: bool) -> bool:
    """Return whether the nth operation still belonged to the save."""
    what = f"operation {nth} with {errno.errorcode[error]}{' and all after it' if ever_after else ''}"
    good = CheckpointStore(folder, keep_last=2)
    ops = FailingOps(nth, error, ever_after=ever_after)
    acknowledged = True
    try:
        CheckpointStore(folder, keep_last=2, ops=ops).save(run_state(4), step=4, best=True)
    except CheckpointError as failure:
        acknowledged = False
        if os.strerror(error) not in str(failure):
            campaign.bad.append(f"{what}: the message does not say what the system said: {failure}")
    except Exception as failure:  # noqa: BLE001  (any other error is what this looks for)
        campaign.bad.append(f"{what}: {type(failure).__name__}: {failure}")
        return False
    if ops.count < nth:
        return False
    campaign.faults += 1
    campaign.note("saved all the same" if acknowledged else "refused")
    found = good.load("last")
    if found.step not in ((4,) if acknowledged else (3, 4)) or not same(found.state, run_state(found.step)):
        campaign.bad.append(f"{what}: step {found.step} was loaded, saved={acknowledged}")
    best = good.load("best")
    if best.step not in ((4,) if acknowledged else (1, 4)) or not same(best.state, run_state(best.step)):
        campaign.bad.append(f"{what}: step {best.step} is the best, saved={acknowledged}")
    good.save(run_state(5), step=5)
    campaign.bad += [f"{what}: {line}" for line in leftovers(folder, good)]
    return True


def leftovers(folder: Path, store: CheckpointStore) -> list[str]:
    """Return what a folder has besides whole checkpoints and the pointer to the best."""
    found = []
    for path in folder.iterdir():
        if path.name == "best.json":
            continue
        try:
            store.verify(path)
        except CheckpointError as error:
            found.append(f"leftover {path.name}: {error}")
        if not path.name.startswith("step_"):
            found.append(f"leftover {path.name}")
    kept = len(store.steps())
    if kept > store.keep_last + 1:
        found.append(f"{kept} checkpoints are kept")
    return found


def fail_every_read(folder: Path) -> Campaign:
    """Let the nth operation of a load fail; an EIO leads to the previous one, anything else is told."""
    campaign = Campaign("failing operations of a load")
    logging.getLogger("striderl.checkpoint").setLevel(logging.ERROR)
    store = CheckpointStore(folder)
    for step in (1, 2):
        store.save(run_state(step), step=step)
    for error in (errno.EIO, errno.EACCES, errno.EMFILE):
        nth = 0
        while True:
            nth += 1
            ops = FailingOps(nth, error)
            what = f"operation {nth} with {errno.errorcode[error]}"
            try:
                found = CheckpointStore(folder, ops=ops).load("last")
                if not same(found.state, run_state(found.step)):
                    campaign.bad.append(f"{what}: another state")
                campaign.note(f"loaded {found.step}")
            except CheckpointError as failure:
                campaign.note("told")
                if os.strerror(error) not in str(failure):
                    campaign.bad.append(f"{what}: {failure}")
            except Exception as failure:  # noqa: BLE001  (any other error is what this looks for)
                campaign.bad.append(f"{what}: {type(failure).__name__}: {failure}")
            if ops.count < nth:
                break
            campaign.faults += 1
    logging.getLogger("striderl.checkpoint").setLevel(logging.NOTSET)
    return campaign
