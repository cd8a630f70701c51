"""config.json and specs.json are as the run left them, or the difference is named; a run goes on only with consent."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace

import pytest
import torch
from run_cases import folder_at, tiny

from striderl.checkpoint.errors import CheckpointError
from striderl.checkpoint.store import CheckpointStore
from striderl.checkpoint.trust import content_digest
from striderl.cli.main import main
from striderl.training.agent import Agent
from striderl.training.experiment import seal
from striderl.training.experiment.config_json import ConfigError
from striderl.training.experiment.loading import load_run
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import read_run_config
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.experiment.seal import RunChangedError, read_sealed, write_sealed

SEALED = ("config.json", "specs.json")
OFTEN = 5 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 1
NAMED = (ConfigError, CheckpointError)
"""What a reader of a run may raise about a file; anything else is a crash."""


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of four iterations with checkpoints."""
    path = tmp_path_factory.mktemp("made") / "run"
    config = tiny(iterations=4)
    Run(config, folder_at(path, config)).drive()
    return path


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def edited(path, **settings):
    """Change settings by their dotted names (with __), as somebody with an editor does."""
    content = json.loads((path / "config.json").read_text())
    for name, value in settings.items():
        *above, last = name.split("__")
        part = content
        for key in above:
            part = part[key]
        assert last in part
        part[last] = value
    (path / "config.json").write_text(json.dumps(content, indent=2))


def flips(path, number, names, seed):
    """Flip one random bit of one of the files, again and again; yields the name, and puts the file back."""
    numbers = random.Random(seed)
    for _ in range(number):
        name = numbers.choice(names)
        whole = (path / name).read_bytes()
        place, bit = numbers.randrange(len(whole)), numbers.randrange(8)
        (path / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        yield name, whole
        (path / name).write_bytes(whole)


def unnoticed(path, number, names, seed, read):
    """Count flips that gave another content without an error, or an error that does not name the file."""
    silent = 0
    for name, whole in flips(path, number, names, seed):
        try:
            read(path)
        except NAMED:
            continue
        except Exception:  # noqa: BLE001  (whatever else it is does not name the file)
            silent += 1
            continue
        silent += content_digest(json.loads((path / name).read_bytes())) != content_digest(json.loads(whole))
    return silent


# -- flips -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_flip_goes_unnoticed_where_the_policy_is_read(run):
    assert unnoticed(run, 120 * OFTEN, SEALED, 1, lambda path: load_run(path, "last")) == 0
    assert load_run(run, "last").step == 128


@pytest.mark.slow
def test_no_flip_goes_unnoticed_where_a_run_is_resumed(run):
    config = read_run_config(run)

    def rebuild(path):
        Run(read_run_config(path), RunFolder(path)).close()

    assert unnoticed(run, 20 * OFTEN, SEALED, 2, rebuild) == 0
    assert read_run_config(run) == config


@pytest.mark.slow
def test_the_flips_would_be_noticed_if_they_were_not(run, monkeypatch):
    monkeypatch.setattr(seal, "_differences_from_seal", lambda *_: [])
    monkeypatch.setattr("striderl.training.experiment.loading.check_digest", lambda *_: None)
    monkeypatch.setattr("striderl.training.experiment.loading.check_same_parts", lambda *_, **__: None)
    assert unnoticed(run, 60 * OFTEN, SEALED, 1, lambda path: load_run(path, "last")) > 0


def test_a_flip_in_the_seal_itself_is_noticed(run):
    for _ in flips(run, 60, ["seal.json"], 3):
        with pytest.raises(NAMED):
            load_run(run, "last")


@pytest.mark.slow
def test_without_the_seal_the_checkpoint_vouches(run):
    (run / "seal.json").unlink()
    assert load_run(run, "last").step == 128
    assert unnoticed(run, 30 * OFTEN, SEALED, 4, lambda path: load_run(path, "last")) == 0


def test_other_spaces_are_the_same_settings(run):
    for name in SEALED:
        (run / name).write_text(json.dumps(json.loads((run / name).read_text())))
    assert load_run(run, "last").step == 128


def test_another_run_cannot_lend_its_files(run, tmp_path):
    config = tiny(iterations=2, env=replace(tiny().env, task="pendulum"))
    other = Run(config, folder_at(tmp_path / "other", config))
    other.drive()
    for name in ("specs.json", "seal.json"):
        shutil.copy(tmp_path / "other" / name, run / name)
    with pytest.raises(NAMED):
        load_run(run, "last")
    shutil.copy(tmp_path / "other" / "config.json", run / "config.json")
    with pytest.raises(NAMED):
        load_run(run, "last")


@pytest.mark.parametrize("command", ["evaluate", "export", "play", "record", "resume"])
@pytest.mark.parametrize("name", SEALED)
def test_every_command_names_what_was_changed(run, command, name, capsys):
    if name == "specs.json":
        content = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps({**content, "step_dt": 0.5}))
        said = "step_dt: 0.02 → 0.5"
    else:
        edited(run, algorithm__clip_param=0.5)
        said = "algorithm.clip_param: 0.2 → 0.5"
    assert main([command, str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and "--accept-changes" in line


def test_bytes_that_are_no_text_are_named(run, capsys):
    (run / "config.json").write_bytes(b"\xff\xfe\x00")
    assert main(["resume", str(run)]) == 2 and main(["evaluate", str(run)]) == 2
    assert all("config.json" in line for line in capsys.readouterr().err.splitlines())


# -- consent -----------------------------------------------------------------------------------------------------------


def test_a_changed_setting_is_accepted_by_a_flag_and_sealed_with_the_next_checkpoint(run, capsys):
    edited(run, algorithm__clip_param=0.5, plan__total_iterations=6)
    assert main(["resume", str(run)]) == 2
    line = capsys.readouterr().err
    assert "algorithm.clip_param: 0.2 → 0.5" in line and "plan.total_iterations: 4 → 6" in line
    assert main(["resume", str(run), "--accept-changes"]) == 0
    assert "accepted algorithm.clip_param: 0.2 → 0.5; plan.total_iterations: 4 → 6" in capsys.readouterr().out
    checkpoint = CheckpointStore(run / "checkpoints").load("last")
    assert checkpoint.step == 192 and checkpoint.config["algorithm"]["clip_param"] == 0.5
    assert checkpoint.seal["config.json"] == content_digest(json.loads((run / "config.json").read_text()))
    assert load_run(run, "last").config.algorithm.clip_param == 0.5  # without the flag from now on
    assert main(["resume", str(run)]) == 0 and "has ended" in capsys.readouterr().out


def test_a_run_that_has_ended_can_accept_a_change(run):
    edited(run, evaluation__seed=7)
    assert main(["resume", str(run), "--accept-changes"]) == 0
    assert load_run(run, "last").config.evaluation.seed == 7


def test_settings_of_the_command_line_need_no_flag_also_when_the_run_is_killed_before_it_saves(run, capsys):
    class Killed(BaseException):
        pass

    def killed(_):
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "_advance", killed)
        with pytest.raises(Killed):
            main(["resume", str(run), "--plan.total-iterations", "5", "--algorithm.clip-param", "0.5"])
    assert main(["resume", str(run)]) == 0
    assert CheckpointStore(run / "checkpoints").load("last").config["algorithm"]["clip_param"] == 0.5


def test_a_changed_specs_file_is_written_anew_with_the_flag(run):
    before = json.loads((run / "specs.json").read_text())
    (run / "specs.json").write_text(json.dumps({**before, "step_dt": 0.5}))
    assert main(["resume", str(run), "--accept-changes", "--plan.total-iterations", "5"]) == 0
    assert json.loads((run / "specs.json").read_text()) == before
    assert load_run(run, "last").step == 160


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"env__num_envs": 8}, "goes on with its 4 envs"),
        ({"policy__actor_hidden_dims": [32]}, "actor_hidden_dims: [16] → [32]"),
        ({"policy__activation": "relu"}, "activation: 'elu' → 'relu'"),
        ({"policy__kind": "lstm"}, "kind: 'mlp' → 'lstm'"),
        ({"terms": {"rnd": {}}}, "goes on with terms"),
        ({"env__task": "acrobot"}, "another layout"),
        ({"plan__num_steps_per_env": 16}, ""),
        ({"algorithm__num_mini_batches": 1}, ""),
        ({"seed": 5, "plan__total_iterations": 5}, ""),
        ({"env__settings": {"nonsense": 1}}, "nonsense"),
        ({"device": "cuda:99"}, "cuda:99"),
        ({"collector": {"seed": 77}}, "collector.seed"),
        ({"plan__warmup_steps": 3}, ""),
    ],
)
def test_what_cannot_change_ends_in_a_sentence(run, settings, said, capsys):
    if "policy__activation" in settings:
        assert json.loads((run / "config.json").read_text())["policy"]["activation"] == "elu"
    edited(run, **settings)
    code = main(["resume", str(run), "--accept-changes"])
    text = capsys.readouterr().err
    assert "Traceback" not in text and code == (2 if said else code) and code in (0, 2)
    assert said in text and (code == 0 or text.startswith("striderl: "))


def test_an_own_config_in_a_program_is_what_the_folder_holds_afterwards(run):
    config = replace(tiny(iterations=5), stop=replace(tiny().stop, bad_iterations=7))
    own = Run(config, RunFolder(run))
    assert own.restore()
    own.drive()
    assert read_run_config(run) == config and load_run(run, "last").config == config


# -- writing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("operation", range(4))
def test_a_writer_that_is_killed_leaves_a_good_pair(tmp_path, monkeypatch, operation, fresh):
    if not fresh:
        write_sealed(tmp_path, "config.json", {"seed": 1})
    left = [operation]

    def counted(real):
        def write(*arguments):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return real(*arguments)

        return write

    with monkeypatch.context() as patch:
        patch.setattr(seal, "write_bytes", counted(seal.write_bytes))
        patch.setattr(seal, "write_text", counted(seal.write_text))
        try:
            write_sealed(tmp_path, "config.json", {"seed": 2})
        except KeyboardInterrupt:
            assert operation < 3
    if (tmp_path / "config.json").exists():
        assert read_sealed(tmp_path, "config.json")["seed"] in (1, 2)
    else:
        assert fresh and operation < 2
    write_sealed(tmp_path, "config.json", {"seed": 3})
    (tmp_path / "config.json").write_text('{"seed": 2}')
    with pytest.raises(RunChangedError, match="seed: 3 → 2"):  # what it was once is not what it is
        read_sealed(tmp_path, "config.json")


def test_a_run_that_was_made_before_there_were_seals_is_read_as_it_is(run):
    store = CheckpointStore(run / "checkpoints")
    last = store.load("last")
    shutil.rmtree(run / "checkpoints")
    store.save(last.state, step=last.step, config=last.config, layout=last.layout)
    (run / "seal.json").unlink()
    assert b"seal" not in (run / "checkpoints" / f"step_{last.step:012d}" / "manifest.json").read_bytes()
    edited(run, algorithm__clip_param=0.5, plan__total_iterations=5)
    assert load_run(run).config.algorithm.clip_param == 0.5 and Agent.load(run) is not None
    assert main(["resume", str(run)]) == 0
    assert store.load("last").seal and (run / "seal.json").exists()  # from now on it is sealed
    edited(run, algorithm__clip_param=0.6)
    with pytest.raises(RunChangedError):
        load_run(run)
