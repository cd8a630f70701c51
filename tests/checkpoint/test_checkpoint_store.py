"""What the store keeps, finds and deletes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from store_cases import run_state, same

from striderl.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing, CheckpointVersion
from striderl.checkpoint.file_ops import FileOps
from striderl.checkpoint.folder import sealed, unsealed
from striderl.checkpoint.store import CheckpointStore


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_three_files(folder):
    store = CheckpointStore(folder / "run" / "checkpoints")
    path = store.save(run_state(1234), step=1234, config={"lr": 3e-4, "dims": (64, 64)}, layout={"observations": []})
    assert path == folder / "run" / "checkpoints" / "step_000000001234"
    assert names(path) == ["manifest.json", "state.json", "tensors.safetensors"]
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["step"] == 1234 and manifest["torch"] == torch.__version__
    found = store.load()
    assert (found.step, found.path, found.config) == (1234, path, {"lr": 3e-4, "dims": (64, 64)})
    assert found.layout == {"observations": []}
    assert same(found.state, run_state(1234))


def test_the_newest_and_the_best_are_kept(folder):
    store = CheckpointStore(folder, keep_last=2)
    for step in range(10, 70, 10):
        store.save(run_state(step), step=step, best=step in (10, 20))
    assert store.steps() == [20, 50, 60]
    assert [store.load(which).step for which in ("last", "best", 50)] == [60, 20, 50]
    assert store.latest() == folder / "step_000000000060"
    assert names(folder) == ["best.json", "step_000000000020", "step_000000000050", "step_000000000060"]


def test_the_best_stays_when_it_is_also_the_last(folder):
    store = CheckpointStore(folder, keep_last=1)
    store.save(run_state(1), step=1, best=True)
    store.save(run_state(2), step=2)
    store.save(run_state(3), step=3)
    assert store.steps() == [1, 3] and store.load("best").step == 1


def test_the_same_step_again_replaces_only_after_it_is_there(folder):
    store = CheckpointStore(folder)
    store.save({"turn": 1}, step=5)
    assert store.save({"turn": 2}, step=5).name == "step_000000000005_2"
    assert names(folder) == ["step_000000000005_2"]
    store.save({"turn": 3}, step=5, best=True)
    store.save({"turn": 4}, step=5)
    assert store.load().state == store.load(5).state == {"turn": 4}
    assert store.load("best").state == {"turn": 3}
    assert store.steps() == [5]


def test_a_damaged_newest_one_does_not_push_out_good_ones(folder):
    store = CheckpointStore(folder, keep_last=1)
    path = store.save(run_state(20), step=20)
    (path / "state.json").unlink()
    store.save(run_state(10), step=10)
    assert store.load().step == 10  # 20 is still there to be looked at, and named on every load
    assert store.steps() == [10, 20]
    store.save(run_state(20), step=20)
    assert store.steps() == [20] and store.load().step == 20


def test_a_lost_pointer_is_found_again(folder, caplog):
    store = CheckpointStore(folder)
    for step in (1, 2, 3):
        store.save(run_state(step), step=step, best=step == 2)
    (folder / "best.json").unlink()
    assert store.load("best").step == 2 and not caplog.records
    (folder / "best.json").write_bytes(b"{}")
    with caplog.at_level(logging.WARNING):
        assert store.load("best").step == 2
    assert "best.json" in caplog.text


def test_a_damaged_best_one_is_refused_not_replaced(folder):
    store = CheckpointStore(folder)
    store.save(run_state(1), step=1, best=True)
    path = store.save(run_state(2), step=2, best=True)
    (path / "state.json").write_bytes(b"")
    with pytest.raises(CheckpointCorrupt, match=r"step_000000000002/state\.json"):
        store.load("best")


def test_leftovers_of_a_cut_off_save_are_ignored_and_removed(folder):
    store = CheckpointStore(folder)
    store.save(run_state(1), step=1)
    (folder / ".tmp_step_000000000002").mkdir()
    (folder / ".tmp_step_000000000002" / "tensors.safetensors").write_bytes(b"half")
    (folder / ".tmp_best.json").write_bytes(b"half")
    (folder / "notes.txt").write_text("of the user")
    assert store.load().step == 1 and store.steps() == [1]
    store.save(run_state(2), step=2)
    assert names(folder) == ["notes.txt", "step_000000000001", "step_000000000002"]


def test_nothing_there(folder):
    store = CheckpointStore(folder / "none")
    assert store.steps() == [] and store.latest() is None and store.best() is None
    store.clean()
    with pytest.raises(CheckpointMissing, match="no checkpoint in"):
        store.load()
    with pytest.raises(CheckpointMissing, match="best"):
        store.load("best")
    CheckpointStore(folder).save({}, step=3)
    with pytest.raises(CheckpointMissing, match=r"no checkpoint of step 4; it has \[3\]"):
        CheckpointStore(folder).load(4)


def test_wrong_arguments_are_refused(folder):
    store = CheckpointStore(folder)
    with pytest.raises(ValueError, match="keep_last"):
        CheckpointStore(folder, keep_last=0)
    for step in (-1, 10**18, 1.0, True):
        with pytest.raises(ValueError, match="step"):
            store.save({}, step=step)
    with pytest.raises(ValueError, match="'last', 'best' or a step"):
        store.load("newest")
    with pytest.raises(TypeError, match=r"^state\['f'\]: function"):
        store.save({"f": lambda: 0}, step=1)
    with pytest.raises(TypeError, match=r"^config\['f'\]: function"):
        store.save({}, step=1, config={"f": lambda: 0})
    with pytest.raises(TypeError, match="config holds numbers"):
        store.save({}, step=1, config={"w": torch.ones(1)})
    assert names(folder) == []


@pytest.mark.slow
def test_what_is_too_large_to_be_read_is_not_saved(folder):
    store = CheckpointStore(folder)
    with pytest.raises(CheckpointError, match="make lists of numbers tensors"):
        store.save({"list": [0] * 1_100_000}, step=1)
    with pytest.raises(CheckpointError, match="stack some"):
        store.save({"list": [torch.empty(0)] * 50_001}, step=1)
    assert names(folder) == []


def test_a_checkpoint_larger_than_allowed_is_not_read(folder):
    CheckpointStore(folder).save(run_state(1), step=1)
    with pytest.raises(CheckpointCorrupt, match="this process can hold 100"):
        CheckpointStore(folder, max_bytes=100).load()


def test_a_newer_format_is_told_and_not_passed_over(folder):
    store = CheckpointStore(folder)
    store.save(run_state(1), step=1)
    manifest = store.save(run_state(2), step=2) / "manifest.json"
    content = unsealed(manifest.read_bytes(), manifest)
    manifest.write_bytes(sealed({**content, "version": 2, "striderl": "9.9"}))
    with pytest.raises(CheckpointVersion, match=r"format 2, written by striderl 9\.9"):
        store.load()


def test_a_renamed_directory_is_refused(folder):
    store = CheckpointStore(folder)
    store.save(run_state(1), step=1).rename(folder / "step_000000000009")
    with pytest.raises(CheckpointCorrupt, match="it holds the checkpoint of step 1"):
        store.load(9)


def test_a_copy_elsewhere_verifies(folder):
    store = CheckpointStore(folder)
    store.save(run_state(1), step=1).rename(folder / "my favourite")
    store.verify(folder / "my favourite")
    with pytest.raises(CheckpointCorrupt, match="not a directory"):
        store.verify(folder / "nothing")


class TrainingGoesOn(FileOps):
    """Lets another process save, and so delete what is being read, at the nth file that is opened."""

    def __init__(self, folder: Path, nth: int) -> None:
        self.store, self.left = CheckpointStore(folder, keep_last=1), nth

    def open_read(self, path: Path) -> BinaryIO:
        self.left -= 1
        if self.left == 0:
            for step in (2, 3):
                self.store.save(run_state(step), step=step, best=True)
        return super().open_read(path)


@pytest.mark.parametrize("which", ["last", "best"])
@pytest.mark.parametrize("nth", range(1, 8))
def test_reading_while_a_run_saves_and_deletes(folder, caplog, which, nth):
    CheckpointStore(folder, keep_last=1).save(run_state(1), step=1, best=True)
    with caplog.at_level(logging.WARNING):
        found = CheckpointStore(folder, ops=TrainingGoesOn(folder, nth)).load(which)
    assert same(found.state, run_state(found.step))
    assert not caplog.records, caplog.text


class StoreMachine(RuleBasedStateMachine):
    """Random saves, damages and restarts, against a plain list of what must be there."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.place = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.folder = Path(self.place.name)
        self.good: dict[int, int] = {}
        self.best: int | None = None
        self.count = 0
        logging.getLogger("striderl.checkpoint").setLevel(logging.ERROR)

    def store(self) -> CheckpointStore:
        return CheckpointStore(self.folder, keep_last=2)

    @rule(further=st.integers(0, 3), best=st.booleans())
    def save(self, further: int, best: bool) -> None:
        step = max(self.store().steps(), default=0) + further
        self.count += 1
        self.store().save({"count": self.count}, step=step, best=best)
        self.good[step] = self.count
        self.best = self.count if best else self.best

    @rule(file=st.sampled_from(["manifest.json", "state.json", "tensors.safetensors"]))
    def damage_the_newest(self, file: str) -> None:
        path = self.store().latest()
        if path is None or self.store().best() == path or len(self.store().steps()) < 2:
            return
        step = self.store().load().step
        if path.name.startswith(f"step_{step:012d}"):
            content = bytearray((path / file).read_bytes())
            content[len(content) // 2] ^= 8
            (path / file).write_bytes(content)
            del self.good[step]

    @invariant()
    def the_newest_good_one_loads(self) -> None:
        present = [step for step in self.store().steps() if step in self.good]
        if present:
            found = self.store().load()
            assert (found.step, found.state["count"]) == (present[-1], self.good[present[-1]])
        if self.best is not None:
            assert self.store().load("best").state == {"count": self.best}
        assert not [name for name in names(self.folder) if name.startswith(".tmp")]

    def teardown(self) -> None:
        logging.getLogger("striderl.checkpoint").setLevel(logging.NOTSET)
        self.place.cleanup()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
