"""Promise 2: a checkpoint is whole or invisible, and the last good one is never lost."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from crash_replay import ForgetfulDirectoryOps, ForgetfulOps, replay
from failing_ops import FailingOps, fail_every_operation, fail_every_read
from full_disk import limit_file_sizes, mounts_refused
from store_cases import run_state

from striderl.checkpoint.errors import CheckpointError
from striderl.checkpoint.store import CheckpointStore


@pytest.mark.slow
def test_every_operation_of_a_save_may_fail(folder):
    fail_every_operation(folder, errors=(errno.ENOSPC,)).check(150)


def test_every_operation_of_a_load_may_fail(folder):
    fail_every_read(folder).check(60)


@pytest.mark.slow
def test_every_crash_state_loads(folder):
    replay(folder, 500, every=4).check(500)


@pytest.mark.parametrize("planted", [ForgetfulOps, ForgetfulDirectoryOps])
def test_the_harness_catches_a_store_that_does_not_sync(folder, planted):
    assert len(replay(folder, 60, ops_class=planted).bad) > 10


@pytest.mark.slow
def test_the_harness_catches_a_store_that_leaves_things_behind(folder, monkeypatch):
    monkeypatch.setattr(CheckpointStore, "_remove_quietly", lambda self, path: None)
    assert fail_every_operation(folder, errors=(errno.EIO,)).bad


def test_file_size_limits(folder):
    limit_file_sizes(folder, 40).check(40)


@pytest.mark.slow
def test_a_full_and_a_read_only_file_system(folder):
    reason = mounts_refused()
    if reason:
        pytest.skip(f"a private mount is needed: {reason}")
    script = Path(__file__).with_name("full_disk.py")
    environment = {**os.environ, "TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["unshare", "-m", sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        timeout=280,
        env=environment,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "small file systems: 20 faults, 0 not withstood" in done.stdout
    assert "read-only: 2 faults, 0 not withstood" in done.stdout


def test_a_read_only_folder_is_told_with_its_name(folder):
    for step in (1, 2):
        CheckpointStore(folder).save(run_state(step), step=step)
    ops = FailingOps(1, errno.EROFS, ever_after=True)
    ops.count = -2  # the two listings still work on a read-only file system
    with pytest.raises(CheckpointError, match=r"step 3 .*Read-only file system; earlier checkpoints in .* untouched"):
        CheckpointStore(folder, ops=ops).save(run_state(3), step=3)
    assert CheckpointStore(folder).load().step == 2


def test_a_file_in_the_way_is_told(folder):
    (folder / "checkpoints").write_text("not a folder")
    with pytest.raises(CheckpointError, match="checkpoints"):
        CheckpointStore(folder / "checkpoints").save(run_state(1), step=1)


def test_an_interrupt_leaves_nothing_behind(folder):
    class Interrupted(FailingOps):
        def sync(self, descriptor: int) -> None:
            raise KeyboardInterrupt

    store = CheckpointStore(folder)
    store.save(run_state(1), step=1)
    with pytest.raises(KeyboardInterrupt):
        CheckpointStore(folder, ops=Interrupted()).save(run_state(2), step=2)
    assert [path.name for path in folder.iterdir()] == ["step_000000000001"]


def test_no_descriptor_is_lost(folder):
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    store = CheckpointStore(folder)
    store.save(run_state(1), step=1)
    before = descriptors()
    for nth in range(1, 60, 3):
        with pytest.raises(CheckpointError) if nth < 20 else _any():
            CheckpointStore(folder, ops=FailingOps(nth)).save(run_state(2), step=2)
        store.load()
    assert descriptors() == before
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def _any():
    import contextlib

    return contextlib.suppress(CheckpointError)
