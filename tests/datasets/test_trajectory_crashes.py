"""A writer that dies at any byte loses at most the trajectory it was writing; damage is named and stays where it is."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest
from trajectory_cases import add_numbered, is_numbered, kill_many, record, small_spec

from striderl.checkpoint.file_ops import FileOps
from striderl.datasets.trajectories.spec import TrajectoryCorrupt, TrajectoryError
from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.datasets.trajectories.writer import TrajectoryWriter


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """(folder, content of its one shard, byte behind each of three trajectories)."""
    folder = tmp_path_factory.mktemp("recording")
    shard = record(folder, 3)
    store = TrajectoryStore(folder)
    starts = [int(store.name(index).partition("@")[2]) for index in range(3)]
    return folder, shard.read_bytes(), [*starts[1:], shard.stat().st_size]


def copy_with(recording, target: Path, content: bytes) -> Path:
    target.mkdir(exist_ok=True)
    (target / "metadata.json").write_bytes((recording[0] / "metadata.json").read_bytes())
    (target / "shard_000000.trj").write_bytes(content)
    return target


def test_a_shard_that_is_cut_at_any_byte_gives_what_was_whole(recording, tmp_path):
    _, content, ends = recording
    folder = copy_with(recording, tmp_path / "cut", content)
    shard = folder / "shard_000000.trj"
    read = -1
    for size in range(len(content), -1, -1):
        os.truncate(shard, size)
        store = TrajectoryStore(folder)
        whole = sum(end <= size for end in ends)
        assert len(store) == whole and store.problems() == [], size
        assert bool(store.unfinished_bytes()) == (size > 0 and size not in (ends[0], ends[1], ends[2])) or whole == 0
        if whole != read:  # the same bytes need not be read a hundred times
            read = whole
            assert all(is_numbered(store, index) for index in range(whole))


def test_recording_goes_on_after_a_crash_at_any_byte(recording, tmp_path):
    _, content, ends = recording
    for size in range(0, len(content), 61):
        folder = copy_with(recording, tmp_path / str(size), content[:size])
        old = TrajectoryStore(folder)
        with TrajectoryWriter(folder, small_spec()) as writer:
            add_numbered(writer, 7)
        whole = sum(end <= size for end in ends)
        assert old.refresh() == 1 and len(old) == whole + 1
        assert len(TrajectoryStore(folder)) == whole + 1 and is_numbered(old, whole)
        assert (folder / "shard_000000.trj").read_bytes() == content[:size], "what a crash left is not touched"


@pytest.mark.slow
def test_a_damaged_byte_is_named_and_harms_one_trajectory(recording, tmp_path):
    _, content, ends = recording
    folder = copy_with(recording, tmp_path / "bad", content)
    first = int(TrajectoryStore(folder).name(0).partition("@")[2])
    for place in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        (folder / "shard_000000.trj").write_bytes(damaged)
        store = TrajectoryStore(folder)
        good, named = 0, list(store.problems())
        for index in range(len(store)):
            try:
                good += is_numbered(store, index)
            except TrajectoryCorrupt as error:
                named.append(str(error))
        if place < first:  # the head: all records can be found without it
            assert good == 3 and "shard_000000.trj" in named[0], (place, named)
            continue
        assert good == 2, f"byte {place}: two of three trajectories are good, {good} are readable: {named}"
        # a bad header at the very end looks like a writer at work
        assert all("shard_000000.trj" in line for line in named)
        assert len(named) == 1 or (place >= ends[1] and store.unfinished_bytes()), (place, named)


def test_a_shard_of_nonsense_is_reported_and_the_others_are_read(recording, tmp_path, caplog):
    folder = copy_with(recording, tmp_path / "mixed", recording[1])
    (folder / "shard_000001.trj").write_bytes(b"not a shard" * 100)
    (folder / "shard_000002.trj").mkdir()
    (folder / "shard_000003.trj").write_bytes(b"")
    (folder / "notes.txt").write_text("hello")
    store = TrajectoryStore(folder)
    assert len(store) == 3 and all(is_numbered(store, index) for index in range(3))
    assert any("shard_000001.trj' is damaged: it does not begin" in line for line in store.problems())
    assert "shard_000001" in caplog.text
    caplog.clear()
    store.refresh()
    assert "shard_000001" not in caplog.text, "each problem is said once"


def test_a_shard_that_shrinks_under_a_reader_is_a_message(recording, tmp_path):
    folder = copy_with(recording, tmp_path / "shrunk", recording[1])
    store = TrajectoryStore(folder)
    os.truncate(folder / "shard_000000.trj", recording[2][0] + 100)
    assert is_numbered(store, 0)
    with pytest.raises(TrajectoryCorrupt, match="bytes too early"):
        store.read(2)


class FullDisk(FileOps):
    """Refuses to write after a number of bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, descriptor: int, content: memoryview) -> None:
        super().write(descriptor, content[: max(0, self.room)])
        self.room -= len(content)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_costs_the_trajectory_that_did_not_fit(recording, tmp_path):
    size = len(recording[1])
    for room in range(0, size, 97):
        ops = FullDisk(room)
        writer = TrajectoryWriter(tmp_path / str(room), small_spec(), ops=ops)
        written = 0
        for number in range(3):
            try:
                add_numbered(writer, number)
                written += 1
            except TrajectoryError as error:
                assert "No space left" in str(error) and f"the {written} before it are untouched" in str(error)
                shard = tmp_path / str(room) / "shard_000000.trj"
                assert not written or shard.stat().st_size == recording[2][written - 1], "nothing half is left"
                break
        ops.room = 10**9  # somebody has tidied up
        add_numbered(writer, 10)  # one step: shorter than what did not fit
        writer.close()
        store = TrajectoryStore(tmp_path / str(room))
        numbers = [store.read_about(index)["number"] for index in range(len(store))]
        assert numbers == [*range(written), 10] and store.problems() == []
        assert written == 0 or store.unfinished_bytes() == {}, "what did not fit is gone"
        assert all(is_numbered(store, index) for index in range(len(store)))


@pytest.mark.slow
def test_ten_writers_are_killed_and_nothing_that_was_written_is_lost(tmp_path):
    report = kill_many(tmp_path, kills=10, seed=5)
    assert report.broken == [] and report.kills == 10
    assert report.written >= 10 and report.torn >= 3, "the kills have to land inside of records to mean something"


def _write_some(folder: Path, first: int, count: int) -> None:
    with TrajectoryWriter(folder, small_spec()) as writer:
        for number in range(first, first + count):
            add_numbered(writer, number, 20)


def test_readers_see_only_whole_trajectories_while_two_processes_write(tmp_path):
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write_some, args=(tmp_path, first, 60)) for first in (0, 1000)]
    store = TrajectoryStore(tmp_path)
    writers[0].start()
    seen, looks = 0, 0
    while len(store) < 120:
        store.wait(seen + 1, timeout=200.0)
        assert all(is_numbered(store, index, 20) for index in range(seen, len(store)))
        seen, looks = len(store), looks + 1
        if looks == 1:  # the second comes later: however fast they write, one look cannot see all
            writers[1].start()
    for process in writers:
        process.join()
    assert looks > 1 and store.problems() == [] and store.unfinished_bytes() == {}
    numbers = sorted(store.read_about(index)["number"] for index in range(120))
    assert numbers == [*range(60), *range(1000, 1060)]
