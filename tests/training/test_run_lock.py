"""One training at a time in a folder: the second one is refused by name, and the lock dies with its process."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys

import pytest
from run_cases import folder_at, tiny
from runner_configs import legged_gym

from striderl.checkpoint.errors import FileRefused
from striderl.cli.main import main
from striderl.envs.tasks import make
from striderl.training.distributed import Ranks
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.experiment.run_lock import LOCK_FILE, FolderLock, FolderLockedError
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner

HOLDER = """
import os, subprocess, sys, time
if sys.argv[2] == "planted":
    os.register_at_fork = lambda **hooks: None
from striderl.training.experiment.run_lock import FolderLock
lock = FolderLock(sys.argv[1])
reader, writer = os.pipe()
child = os.fork() if sys.argv[2] != "spawned" else subprocess.Popen(["sleep", "60"]).pid
if child == 0:
    os.write(writer, b"!")
    time.sleep(60)
    os._exit(0)
if sys.argv[2] != "spawned":
    os.read(reader, 1)  # on a busy machine it may be long until a forked child gives its copy up
print(child, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_second_resume_ends_in_one_line_that_names_the_first(tmp_path, capsys):
    config = tiny(iterations=4)
    run = Run(config, folder_at(tmp_path / "run", config))
    run.save()
    words = [sys.executable, "-m", "striderl", "resume", str(tmp_path / "run")]
    second = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert second.returncode == 2
    (line,) = second.stderr.splitlines()
    assert f"process {os.getpid()} on {socket.gethostname()} since 20" in line and f"kill {os.getpid()}" in line
    assert run.drive().exit_code == 0  # the first one is not disturbed
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [32, 64, 96, 128]
    capsys.readouterr()
    assert main(words[3:]) == 0 and "has ended" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_is_built_once_in_a_process(tmp_path):
    config = tiny(iterations=1)
    folder = folder_at(tmp_path / "run", config)
    first = Run(config, folder)
    with pytest.raises(FolderLockedError, match=r"by this process, since 20.*close\(\)"):
        Run(config, folder)
    first.close()
    first.close()
    second = Run(config, folder)
    del second  # dropped without close(): nobody can train with it any more
    Run(config, folder).close()


def test_a_run_that_cannot_be_built_gives_its_folder_free(tmp_path):
    config = tiny(iterations=1)
    folder = folder_at(tmp_path / "run", config)
    with pytest.raises(ValueError, match="nonsense"):
        Run(tiny(device="nonsense"), folder)
    Run(config, folder).close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["forked", "spawned", "planted"])
def test_a_killed_trainer_leaves_no_lock_though_its_worker_lives(tmp_path, kind):
    words = [sys.executable, "-c", HOLDER, str(tmp_path), kind]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        worker = int(trainer.stdout.readline())
        try:
            with pytest.raises(FolderLockedError, match=f"process {trainer.pid} on"):
                FolderLock(tmp_path)
            trainer.kill()
            trainer.wait()
            os.kill(worker, 0)  # it is there
            if kind == "planted":  # a worker with its copy keeps the lock: this test can fail
                with pytest.raises(FolderLockedError):
                    FolderLock(tmp_path)
            else:
                FolderLock(tmp_path).release()
        finally:
            os.kill(worker, signal.SIGKILL)
            trainer.kill()


def test_the_file_names_the_holder_and_nobody_after_the_end(tmp_path):
    lock = FolderLock(tmp_path)
    holder = json.loads((tmp_path / LOCK_FILE).read_text())
    assert holder["pid"] == os.getpid() and set(holder) == {"pid", "host", "since", "command"}
    assert lock.held and lock.guards_the_folder()
    lock.release()
    assert not lock.held and (tmp_path / LOCK_FILE).read_bytes() == b""


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"{", b"[" * 5000, b"\xff\xfe", b'{"pid": 1}', b"3"])
def test_a_holder_without_a_readable_name_is_refused_all_the_same(tmp_path, content):
    with (tmp_path / LOCK_FILE).open("wb") as file:
        file.write(content)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FolderLockedError, match="by another process"):
            FolderLock(tmp_path)


def test_a_link_in_its_place_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(FileRefused, match="a link"):
        FolderLock(tmp_path)
    assert (tmp_path / "precious").read_text() == "kept"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_costs_a_warning(tmp_path, monkeypatch, caplog, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING):
        lock = FolderLock(tmp_path)
    assert not lock.held and len(caplog.records) == 1 and "not locked" in caplog.text
    lock.release()


@pytest.mark.slow
def test_a_run_whose_folder_was_deleted_locks_the_new_one(tmp_path):
    config = tiny(iterations=1)
    run = Run(config, folder_at(tmp_path / "run", config))
    (tmp_path / "run").rename(tmp_path / "gone")
    assert run.save()
    with pytest.raises(FolderLockedError):
        FolderLock(tmp_path / "run")
    run.close()
    FolderLock(tmp_path / "run").release()


# -- runners -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_runner_holds_its_log_dir_while_it_learns(tmp_path):
    env, config = make("pendulum", num_envs=4), legged_gym()
    held = []

    def looking(_env):
        with pytest.raises(FolderLockedError):
            FolderLock(tmp_path)
        held.append(True)

    runner = OnPolicyRunner(env, config, tmp_path)
    runner.metric_hooks["lock"] = looking
    FolderLock(tmp_path).release()  # not before it learns
    runner.learn(2)
    assert len(held) == 2
    FolderLock(tmp_path).release()
    other = FolderLock(tmp_path)
    with pytest.raises(FolderLockedError):
        runner.learn(1)
    other.release()


def test_a_runner_without_a_folder_or_of_a_higher_rank_holds_none(tmp_path):
    env, config = make("pendulum", num_envs=4), legged_gym()
    OnPolicyRunner(env, config).learn(1)
    runner = OnPolicyRunner(env, config, tmp_path)
    runner.writes = False  # what ranks but the first have
    other = FolderLock(tmp_path)
    runner.learn(1)
    other.release()


def test_of_several_ranks_the_first_takes_the_lock(tmp_path):
    config = tiny("cartpole", 1)
    other = FolderLock(folder_at(tmp_path / "run", config).path)
    second = Run(config, RunFolder(tmp_path / "run"), ranks=Ranks(rank=1, world_size=1))
    second.close()
    with pytest.raises(FolderLockedError):
        Run(config, RunFolder(tmp_path / "run"))
    other.release()
