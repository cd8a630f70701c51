"""Nothing that a file names is imported without --trust: every command and every public reader, on hostile files."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from striderl.checkpoint import trust
from striderl.checkpoint.trust import UntrustedFile, is_known, remember, require_trust
from striderl.cli.main import main
from striderl.collect.schedules import WorkerSettings
from striderl.envs.tasks import modules_named
from striderl.recipes.table import recipe
from striderl.training.experiment.config_json import must_be_known
from striderl.training.experiment.run_config import RunConfig

pytestmark = pytest.mark.timeout(400)  # the program runs every command once or twice

PROGRAM = Path(__file__).with_name("trust_program.py")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trust")
    words = [sys.executable, str(PROGRAM), str(folder)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "result.json").read_text())


@pytest.mark.slow
def test_every_command_and_every_public_reader_has_a_case(result):
    assert result["missing"] == []


@pytest.mark.slow
def test_nothing_is_imported_without_trust(result):
    cases = {**result["plain"], **result["readers"]}
    assert {name: case["said"] for name, case in cases.items() if case["imported"]} == {}
    wrong = ("unexpected keyword", "required positional", "has no attribute")
    assert [name for name, case in cases.items() if any(word in case["said"] for word in wrong)] == []  # really read


@pytest.mark.slow
def test_no_place_of_a_name_and_no_file_of_a_run_is_forgotten(result):
    places = result["places"]
    assert {name: case["said"] for name, case in places.items() if case["imported"]} == {}
    named = {name: case["said"] for name, case in places.items() if "not quite" not in name}
    assert len(named) > 30
    assert {name: said for name, said in named.items() if "names the module 'payload_module'" not in said} == {}
    said = " ".join(case["said"] for name, case in places.items() if "not quite" in name)
    assert "wanted 'module:name', found 'payload_module'" in said and "wanted a function or 'package.module" in said


@pytest.mark.slow
def test_what_is_refused_names_the_file_the_module_and_the_flag(result):
    for name, case in result["plain"].items():
        if case["trusting"] is not False:
            (line,) = [line for line in case["said"].splitlines() if line.startswith("striderl: ")]
            assert "config.json" in line and "'payload_module'" in line and "--trust" in line, (name, line)


@pytest.mark.slow
def test_with_trust_it_is_imported(result):
    for name, case in result["trusted"].items():
        wanted = case.get("trusting", True) is True
        assert case["imported"] is wanted, (name, case["said"])


@pytest.mark.slow
def test_a_run_that_was_made_here_needs_no_word_also_as_a_copy(result):
    assert {name: case["imported"] for name, case in result["known"].items()} == {"evaluate": True, "resume": True}


@pytest.mark.slow
def test_the_harness_catches_an_unsafe_reader(result):
    assert result["planted"]["imported"]


# -- names and records -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "settings", "modules"),
    [
        ("cartpole", {}, []),
        ("quadruped", {"note": "a:b"}, []),  # settings of a built-in task are fields of its config
        ("gymnasium:CartPole-v1", {}, []),
        ("gymnasium:ALE/Pong-v5", {"frameskip": 4}, []),
        ("gymnasium:evil:CartPole-v1", {}, ["evil"]),
        ("gymnasium:evil.deep:CartPole-v1", {}, ["evil.deep"]),
        ("evil:Env", {}, ["evil"]),
        ("gymnasium:GymV26Environment-v0", {"env_id": "évil:CartPole-v1"}, ["évil"]),
        ("genesis:evil", {}, ["genesis", "evil"]),
        ("isaaclab:evil:Isaac-v0", {}, ["isaaclab", "evil"]),
        ("gymnasium:GymV26Environment-v0", {"env_id": "evil:CartPole-v1"}, ["evil"]),
        ("gymnasium:CartPole-v1", {"inner": [{"id": "evil.deep:X"}]}, ["evil.deep"]),
    ],
)
def test_modules_that_a_task_names(task, settings, modules):
    assert modules_named(task, settings) == modules


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "striderl" / "known_runs"


def test_a_record_is_of_the_content_and_for_this_user_alone(state, tmp_path):
    content = {"env": {"task": "gymnasium:mine:X"}}
    with pytest.raises(UntrustedFile, match=r"names the module 'mine'.*--trust"):
        require_trust(tmp_path / "config.json", content, ["mine"], trust=False)
    remember(tmp_path / "config.json", content)
    require_trust("elsewhere/config.json", content, ["mine"], trust=False)
    assert not is_known({"env": {"task": "gymnasium:mine:Y"}})
    (record,) = state.iterdir()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700 and stat.S_IMODE(record.stat().st_mode) == 0o600
    state.chmod(0o777)
    assert not is_known(content)  # others could have written it
    state.chmod(0o700)
    record.unlink()
    record.symlink_to("/etc/hostname")
    assert not is_known(content)


def test_a_cluster_that_a_file_names_wants_trust_too(state, tmp_path):
    config = recipe("cartpole", "impala")
    there = WorkerSettings(kind="ray", num_workers=2, address="ray://203.0.113.9:10001")
    content = replace(config, workers=there).to_dict()
    with pytest.raises(UntrustedFile, match=r"names the cluster 'ray://203.0.113.9:10001'.*--trust"):
        RunConfig.from_stored(content, tmp_path / "config.json")
    assert RunConfig.from_stored(content, "config.json", trust=True).workers == there
    assert RunConfig.from_stored(content, "config.json", builds_env=False).workers == there  # nothing is connected
    here = replace(config, workers=replace(there, address="auto")).to_dict()
    assert RunConfig.from_stored(here, "config.json").workers.address == "auto"
    assert must_be_known(content) and not must_be_known(here)


def test_a_record_that_cannot_be_written_costs_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    remember(tmp_path / "config.json", {"a": 1})
    assert len(caplog.records) == 1 and "not recorded" in caplog.text and not is_known({"a": 1})


def test_records_are_bounded(state, monkeypatch):
    monkeypatch.setattr(trust, "MAX_RECORDS", 20)
    for number in range(50):
        remember("config.json", {"number": number})
        os.utime(state / trust.content_digest({"number": number}), (number, number))
    assert len(list(state.iterdir())) <= 20
    assert is_known({"number": 49}) and not is_known({"number": 0})


def test_nothing_is_recorded_for_a_run_that_names_no_module(state, tmp_path):
    words = ["train", "cartpole", "--plan.total-steps", "64", "--env.num-envs", "2", "--logging.console", "off"]
    small = ["--plan.num-steps-per-env", "16", "--evaluation.num-episodes", "1", "--stop.metric", ""]
    assert main([*words, *small, "--runs", str(tmp_path / "runs")]) == 0
    assert not state.exists()


@pytest.mark.parametrize("flag", ["--trust", "--accept-changes"])
def test_flags_about_a_folder_have_no_effect_without_one(flag, capsys):
    assert main(["train", "cartpole", flag]) == 2
    assert "no effect without --resume" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate", "play", "record", "export", "dataset", "resume", "report", "doctor"])
def test_help_explains_trust(command, capsys):
    assert main([command, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--trust" in text and "importing runs code" in text
