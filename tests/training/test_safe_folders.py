"""Run folders with other things, links or hostile files: nothing is lost, nothing is followed, errors have names."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_cases import folder_at, main, tiny
from test_runner import make_runner

from striderl.checkpoint.errors import CheckpointError, FileRefused
from striderl.checkpoint.store import CheckpointStore
from striderl.data.checked_fields import check_num_threads
from striderl.envs.mujoco.simulation import MujocoConfig
from striderl.loggers.file_loggers import parts_of
from striderl.policies.run_reader import read_config, read_weights
from striderl.training.demonstrations import RunStudents
from striderl.training.experiment.config_json import ConfigError
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import LoggingSettings, RunConfig, read_run_config
from striderl.training.experiment.run_folder import RunFolder, read_specs
from striderl.training.experiment.runner_checkpoints import load_state, save_state
from striderl.training.guard import FAULTS_FILE, FaultReport, read_faults
from striderl.training.rsl_rl.reporting import store_code_state


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def listing(folder: Path) -> dict[str, bytes | str]:
    """Everything in a folder: bytes of files, targets of links."""
    return {
        path.relative_to(folder).as_posix(): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


# -- a save replaces a checkpoint and nothing else ---------------------------------------------------------------------


def occupy(kind: str, path: Path, elsewhere: Path) -> None:
    if kind == "folder":
        (path / "inner").mkdir(parents=True)
        (path / "inner" / "thesis.txt").write_text("years of work")
    elif kind == "checkpoint with notes":
        save_state(path, {"a": 1}, iteration=0)
        (path / "notes.txt").write_text("years of work")
    elif kind == "someone else's manifest":
        path.mkdir()
        (path / "manifest.json").write_text('{"name": "my web page"}')
    elif kind == "file":
        path.write_text("years of work")
    elif kind == "link to a folder":
        elsewhere.mkdir()
        (elsewhere / "thesis.txt").write_text("years of work")
        path.symlink_to(elsewhere)
    elif kind == "link to nowhere":
        path.symlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(path)


TAKEN = ["folder", "checkpoint with notes", "someone else's manifest", "file", "link to a folder", "link to nowhere"]


@pytest.mark.parametrize("kind", [*TAKEN, "pipe"])
def test_saving_onto_what_is_no_checkpoint_is_refused_and_deletes_nothing(tmp_path, kind):
    path = tmp_path / "logs"
    occupy(kind, path, tmp_path / "elsewhere")
    before = listing(tmp_path)
    with pytest.raises(FileRefused, match=r"logs' is refused: .*found .*(choose another name|move it away)"):
        save_state(path, {"a": 1}, iteration=0)
    assert listing(tmp_path) == before


def test_a_runner_saves_onto_its_own_checkpoint_and_refuses_a_folder_of_logs(tmp_path):
    runner = make_runner()
    runner.save(tmp_path / "model_0")
    runner.save(tmp_path / "model_0")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileRefused, match=r"found a folder with 'thesis\.txt'"):
        runner.save(tmp_path / "logs")
    assert (tmp_path / "logs" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    runner.save(tmp_path / "empty")  # nothing is lost with an empty folder
    assert load_state(tmp_path / "empty")["iter"] == 0


def test_a_damaged_checkpoint_of_ours_is_replaced(tmp_path):
    path = save_state(tmp_path / "model_0", {"a": 1}, iteration=0)
    (path / "tensors.safetensors").write_bytes(b"cut off")
    (path / "manifest.json").write_bytes((path / "manifest.json").read_bytes()[:-20])
    save_state(path, {"a": 2}, iteration=0)
    assert load_state(path) == {"a": 2}


def test_leftovers_are_removed_only_where_they_are_ours(tmp_path):
    (tmp_path / ".tmp_model_0").mkdir()
    (tmp_path / ".tmp_model_0" / "tensors.safetensors").write_bytes(b"half")
    save_state(tmp_path / "model_0", {"a": 1}, iteration=0)
    assert os.listdir(tmp_path) == ["model_0"]
    (tmp_path / ".tmp_model_0").mkdir()
    (tmp_path / ".tmp_model_0" / "thesis.txt").write_text("years of work")
    with pytest.raises(OSError, match=r"thesis\.txt"):
        save_state(tmp_path / "model_0", {"a": 2}, iteration=0)
    assert (tmp_path / ".tmp_model_0" / "thesis.txt").exists() and load_state(tmp_path / "model_0") == {"a": 1}


def test_a_store_deletes_no_checkpoint_with_other_files_and_no_hidden_folder_of_others(tmp_path, caplog):
    (tmp_path / ".tmp_mine").mkdir()
    (tmp_path / ".tmp_mine" / "thesis.txt").write_text("years of work")
    store = CheckpointStore(tmp_path, keep_last=1)
    first = store.save({"a": 1}, step=1)
    (first / "notes.txt").write_text("the good one")
    for step in range(2, 5):
        store.save({"a": step}, step=step)
    assert (first / "notes.txt").exists() and "because it holds 'notes.txt'" in caplog.text
    assert (tmp_path / ".tmp_mine" / "thesis.txt").exists()
    assert store.steps() == [1, 4] and store.load().step == 4


def test_the_code_state_is_not_written_through_a_link(tmp_path):
    target = tmp_path / "target"
    target.write_text("untouched")
    (tmp_path / "log" / "git").mkdir(parents=True)
    name = store_code_state(tmp_path / "first", [Path(__file__)])[0].name
    (tmp_path / "log" / "git" / name).symlink_to(target)
    with pytest.raises(FileRefused, match="it is a link"):
        store_code_state(tmp_path / "log", [Path(__file__)])
    assert target.read_text() == "untouched"


# -- a run folder with links -------------------------------------------------------------------------------------------

WRITTEN = [
    "metrics.csv",
    "metrics.jsonl",
    "metrics.part1.csv",
    "faults.jsonl",
    "config.json",
    "specs.json",
    "versions.json",
]


@pytest.mark.parametrize("kind", ["link", "link to nowhere", "pipe", "directory", "device"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_resume_with_a_link_in_the_run_folder_is_refused_and_the_target_untouched(tmp_path, name, kind):
    config = tiny(iterations=2)
    folder = folder_at(tmp_path / "run", config)
    target = tmp_path / "target"
    target.write_text('{"step": 1}\n{"step": 1000000}\n')
    path = folder.path / name
    path.unlink(missing_ok=True)
    {
        "link": lambda: path.symlink_to(target),
        "link to nowhere": lambda: path.symlink_to(tmp_path / "nowhere"),
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "device": lambda: path.symlink_to("/dev/full"),
    }[kind]()
    with pytest.raises(FileRefused, match=f"{name}' is refused: it is a"):
        Run(config, folder)
    assert target.read_text() == '{"step": 1}\n{"step": 1000000}\n' and not (tmp_path / "nowhere").exists()
    if name in ("config.json", "specs.json"):
        with pytest.raises(ConfigError, match=f"{name}' is refused: it is a"):
            read_run_config(folder.path) if name == "config.json" else read_specs(folder.path)


@pytest.mark.parametrize("kind", ["link", "link to nowhere", "file"])
@pytest.mark.parametrize("name", ["checkpoints", "faults", "videos", "plots", "export"])
def test_a_folder_of_a_run_that_is_a_link_is_refused_and_the_target_untouched(tmp_path, name, kind):
    folder = folder_at(tmp_path / "run", tiny(iterations=2))
    victim = tmp_path / "another_run" / name
    for number in range(40):  # more than a run keeps of anything
        (victim / f"step_{number:012}").mkdir(parents=True)
        (victim / f"obs_env0_step{number}.trace.npz").write_text("")
    before = sorted(victim.iterdir())
    path = folder.path / name
    {
        "link": lambda: path.symlink_to(victim),
        "link to nowhere": lambda: path.symlink_to(tmp_path / "nowhere"),
        "file": lambda: path.write_text("mine"),
    }[kind]()
    with pytest.raises(FileRefused, match=rf"{name}' is refused: it is a .*wanted a folder; move it away"):
        Run(tiny(iterations=2), folder)
    assert sorted(victim.iterdir()) == before and not (tmp_path / "nowhere").exists()


@pytest.mark.slow
def test_the_command_line_refuses_to_resume_through_a_link_in_one_sentence(tmp_path):
    assert main("cartpole", str(tmp_path / "run"), "5") == 0
    target = tmp_path / "target"
    target.write_text("years of work\n")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    (tmp_path / "run" / "metrics.jsonl").symlink_to(target)
    command = [sys.executable, "-m", "striderl", "resume", str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 2 and "Traceback" not in result.stderr, result.stderr
    assert "metrics.jsonl" in result.stderr and "a link" in result.stderr
    assert target.read_text() == "years of work\n"


def test_a_link_above_the_run_folder_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    assert main("cartpole", str(tmp_path / "runs" / "run"), "2") == 0
    assert main("cartpole", str(tmp_path / "runs" / "run"), "4") == 0
    assert (tmp_path / "disk" / "run" / "metrics.csv").is_file()


def test_a_link_in_the_place_of_the_faults_costs_a_warning_in_a_running_training(tmp_path, caplog):
    target = tmp_path / "target"
    target.write_text("untouched")
    (tmp_path / FAULTS_FILE).symlink_to(target)
    report = FaultReport()
    report.write_to(tmp_path / FAULTS_FILE)
    report.add_learned("gradient", 1, "bad", env_steps=1, num_updates=1)
    assert "it is a link" in caplog.text and target.read_text() == "untouched"
    with pytest.raises(FileRefused, match="it is a link"):
        report.resume_at(1, 1)


@pytest.mark.slow
def test_a_run_rotates_its_logs_and_resumes_exactly_across_parts(tmp_path, monkeypatch):
    small = LoggingSettings(console="off", file_megabytes=1)
    monkeypatch.setattr("striderl.training.experiment.run.MEGABYTE", 4_000)

    def drive(path: Path, iterations: int) -> None:
        config = replace(tiny(iterations=iterations), logging=small)
        run = Run(config, folder_at(path, config))
        run.restore()
        run.drive()

    drive(tmp_path / "whole", 20)
    drive(tmp_path / "halves", 11)
    for name in ("metrics.csv", "metrics.jsonl"):  # rows that came after the checkpoint, as a killed run leaves them
        with (tmp_path / "halves" / name).open("a") as file:
            file.write('{"step":99999}\n' if name.endswith("jsonl") else "99999\n")
    drive(tmp_path / "halves", 20)
    for name in ("metrics.csv", "metrics.jsonl"):
        whole, halves = (parts_of(tmp_path / run / name) for run in ("whole", "halves"))
        assert len(whole) > 2 and len(halves) > 2
        steps = [line.split(",")[0].split(":")[-1] for part in halves for line in part.read_text().splitlines()]
        assert [step for step in steps if step.isdigit()] == [str(32 * count) for count in range(1, 21)]


def test_faults_are_read_from_all_parts(tmp_path):
    (tmp_path / "faults.part1.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "faults.jsonl").write_text('{"a": 2}\n')
    assert read_faults(tmp_path / FAULTS_FILE) == [{"a": 1}, {"a": 2}]


# -- limits ------------------------------------------------------------------------------------------------------------

DEEP = ["[" * 100_000, '{"a":' * 100_000, '{"env":' + "[" * 200 + "]" * 200 + "}"]
NOT_TEXT = b'{"seed": "\xff\xfe"}'


@pytest.mark.parametrize("text", [*(deep.encode() for deep in DEEP), NOT_TEXT, b"", b'{"seed": 1, "seed": 2}'])
@pytest.mark.parametrize("reader", ["config", "specs", "other runs", "students", "faults"])
def test_deep_or_damaged_json_in_a_run_folder_is_a_named_error(tmp_path, text, reader):
    name = {"specs": "specs.json", "faults": FAULTS_FILE}.get(reader, "config.json")
    (tmp_path / name).write_bytes(text)
    (tmp_path / "model_1.pt").write_bytes(b"")
    read: Any = {
        "config": read_run_config,
        "specs": read_specs,
        "other runs": read_config,
        "students": lambda folder: RunStudents(None).model(folder),  # type: ignore[arg-type]
        "faults": lambda folder: read_faults(folder / FAULTS_FILE),
    }[reader]
    if reader == "faults" and not text:
        assert read(tmp_path) == []
        return
    with pytest.raises(ValueError, match=name):
        read(tmp_path)


def test_a_config_as_text_has_the_same_limits():
    for text in DEEP:
        with pytest.raises(ConfigError, match=r"nested too deeply|not JSON"):
            RunConfig.from_json(text)


def test_a_number_of_threads_that_would_end_the_process_is_refused_by_name():
    cores = os.cpu_count()
    for count in (100_000, -1):
        wanted = rf"num_threads is 0 to \d+ on this machine with {cores} cores, found {count}"
        for make in (lambda: replace(tiny(), num_threads=count), lambda: MujocoConfig(num_threads=count)):  # noqa: B023
            with pytest.raises(ValueError, match=wanted):
                make()
    for count in (0, 1, cores, 128):
        check_num_threads(count)


def bomb(path: Path) -> Path:
    """A state dict of 64 megabytes of zeros, compressed to a thousandth of that."""
    plain = path.with_suffix(".plain")
    torch.save({"model_state_dict": {"w": torch.zeros(1)}}, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, bytes(1 << 26) if name.endswith("data/0") else old.read(name))
    plain.unlink()
    return path


class Evil:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("was_run",))


@pytest.mark.parametrize("read", [load_state, read_weights])
def test_every_pt_file_goes_through_the_reader_with_limits(tmp_path, read, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((CheckpointError, ValueError), match="compressed or larger"):
        read(bomb(tmp_path / "model_1.pt"))
    torch.save({"model_state_dict": {"w": Evil()}}, tmp_path / "model_2.pt")
    (tmp_path / "model_3.pt").write_bytes(pickle.dumps({"w": Evil()}))
    for name in ("model_2.pt", "model_3.pt"):
        with pytest.raises((CheckpointError, ValueError), match="never run"):
            read(tmp_path / name)
    assert not (tmp_path / "was_run").exists()
    torch.save({"model_state_dict": {"w": torch.ones(2)}}, tmp_path / "model_4.pt")
    assert read(tmp_path / "model_4.pt")
    (tmp_path / "model_5.pt").symlink_to(tmp_path / "model_4.pt")
    with pytest.raises((CheckpointError, ValueError), match="link"):
        read(tmp_path / "model_5.pt")


def safetensors(header: dict[str, Any], content: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


def test_safetensors_of_other_libraries_are_read_and_false_sizes_refused_before_anything_is_allocated(tmp_path):
    path = tmp_path / "model_1.safetensors"
    line = {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}
    other = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    path.write_bytes(safetensors({"__metadata__": {"format": "pt"}, "b": line, "a": other}, bytes(8)))
    assert sorted(read_weights(path)) == ["a", "b"]
    huge = {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}
    path.write_bytes(safetensors({"w": huge}, bytes(8)))
    with pytest.raises(ValueError, match=r"model_1\.safetensors' is damaged"):
        read_weights(path)


def test_a_run_folder_names_all_its_files(tmp_path):
    folder = RunFolder(tmp_path / "nowhere")
    folder.check_files()  # nothing is there, nothing is wrong
    assert not folder.path.exists()
