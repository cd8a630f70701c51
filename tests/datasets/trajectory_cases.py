"""Small recordings whose every value follows from a number, and a writer process that is killed at work."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.checkpoint.file_ops import FileOps
from striderl.data import tree
from striderl.data.specs import TensorSpec
from striderl.datasets.trajectories.spec import TrajectorySpec
from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.datasets.trajectories.writer import TrajectoryWriter

FLAG = TensorSpec(dtype="bool")
COLUMNS = {
    "obs": {"joints": TensorSpec(shape=(3,)), "critic/depth": TensorSpec(shape=(1, 2, 2))},
    "act": TensorSpec(shape=(2,)),
    "rew": TensorSpec(),
    "terminated": FLAG,
    "truncated": FLAG,
    "valid": FLAG,
}


def small_spec(**changes: Any) -> TrajectorySpec:
    """Two components, one of them an image; with the observation after the end."""
    settings = {"codecs": {"critic/depth": "normalized_image"}, "final_obs": True, **changes}
    return TrajectorySpec.from_columns(COLUMNS, **settings)


def numbered(number: int, length: int | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Steps and final observation of trajectory `number`; images are whole 255ths, so they come back exactly."""
    length = 1 + number % 5 if length is None else length
    generator = torch.Generator().manual_seed(number)

    def depth(rows: int) -> Tensor:
        return torch.randint(256, (rows, 1, 2, 2), generator=generator).float() / 255.0

    ends = torch.arange(length) == length - 1
    steps = {
        "obs": {"joints": torch.randn(length, 3, generator=generator), "critic/depth": depth(length)},
        "act": torch.randn(length, 2, generator=generator),
        "rew": torch.full((length,), float(number)),
        "terminated": ends & (number % 2 == 0),
        "truncated": ends & (number % 2 == 1),
        "valid": torch.ones(length, dtype=torch.bool),
    }
    return steps, {"joints": torch.randn(1, 3, generator=generator), "critic/depth": depth(1)}


def add_numbered(writer: TrajectoryWriter, number: int, length: int | None = None) -> None:
    """Write trajectory `number`."""
    steps, final = numbered(number, length)
    writer.add(steps, final_obs=final, about={"number": number})


def record(folder: Path, count: int, *, length: int | None = None) -> Path:
    """Write trajectories 0 … count - 1 and return their shard."""
    with TrajectoryWriter(folder, small_spec()) as writer:
        for number in range(count):
            add_numbered(writer, number, length)
    return max(folder.glob("shard_*.trj"))


def is_numbered(store: TrajectoryStore, index: int, length: int | None = None) -> bool:
    """Whether a trajectory is, bit for bit, the one whose number it carries."""
    number = store.read_about(index)["number"]
    steps, final = numbered(number, length)
    return tree.equal(store.read(index), steps) and tree.equal(store.read_final_obs(index), final)


# -- a writer that is killed -------------------------------------------------------------------------------------------


class SlowOps(FileOps):
    """Hands bytes over a few at a time, so that a kill lands inside of a record."""

    def write(self, descriptor: int, content: memoryview) -> None:
        for start in range(0, len(content), 48):
            super().write(descriptor, content[start : start + 48])
            time.sleep(1e-4)


def _write_for_ever(folder: Path, first: int, told: int) -> None:
    torch.set_num_threads(1)  # a fork has no threads of its parent's pool
    writer = TrajectoryWriter(folder, small_spec(), ops=SlowOps())
    for number in range(first, first + 10_000):
        add_numbered(writer, number)
        os.write(told, b".")


def kill_a_writer(folder: Path, first: int, moment: random.Random) -> int:
    """Start a writer of trajectories first, first + 1, …, kill -9 it, and return how many it said it had written."""
    read, write = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(folder, first, write))
    process.start()
    os.close(write)
    said = len(os.read(read, 1))
    time.sleep(moment.uniform(0.0, 0.02))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while more := os.read(read, 4096):
        said += len(more)
    os.close(read)
    return said


class KillReport:
    """What many kills did."""

    def __init__(self) -> None:
        self.kills = 0
        self.written = 0
        self.torn = 0
        """Kills that left an unfinished trajectory behind."""
        self.broken: list[str] = []


def kill_many(folder: Path, kills: int, seed: int) -> KillReport:
    """Kill writers of one folder again and again; after each, everything that was said to be written must be there."""
    report, moment, store = KillReport(), random.Random(seed), TrajectoryStore(folder)
    for turn in range(kills):
        said = kill_a_writer(folder, 10_000 * turn, moment)
        before = len(store)
        try:
            store.refresh()
            found = len(store) - before
            if found not in (said, said + 1):  # the last one may be whole without having been announced
                report.broken.append(f"kill {turn}: {said} trajectories were announced, {found} are there")
            bad = [store.name(index) for index in range(before, len(store)) if not is_numbered(store, index)]
            report.broken += [f"kill {turn}: {name} differs" for name in bad] + store.problems()
        except Exception as error:  # noqa: BLE001  (a reader that raises is what is looked for)
            report.broken.append(f"kill {turn}: {type(error).__name__}: {error}")
        report.kills += 1
        report.written += found
    report.torn = len(store.unfinished_bytes())
    if len(TrajectoryStore(folder)) != len(store):
        report.broken.append("a new reader finds another number of trajectories")
    return report
