"""Every command from beginning to end, with tiny settings; mistakes get a suggestion, exit code 2 and no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import imageio.v3 as imageio
import numpy as np
import pytest
import torch

from striderl.cli import play as play_module
from striderl.cli.main import COMMANDS, main
from striderl.cli.options import one_line
from striderl.cli.play import NoDisplayError, portable_pixmap
from striderl.cli.runs import find_run
from striderl.training.experiment.run_config import read_run_config

TINY = [
    *("--env.num-envs", "4", "--plan.num-steps-per-env", "8", "--plan.total-steps", "128", "--seed", "3"),
    *("--evaluation.num-episodes", "2", "--evaluation.every", "2", "--policy.actor-hidden-dims", "8"),
    *("--algorithm.num-mini-batches", "2", "--logging.console", "plain", "--logging.console-every", "1"),
]


@pytest.fixture(autouse=True)
def threads():
    """Runs set torch's threads for their process; other tests get theirs back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a small run of CartPole that was trained from the command line."""
    root = tmp_path_factory.mktemp("runs")
    assert main(["train", "cartpole", *TINY, "--runs", str(root), "--stop.metric", ""]) == 0
    (folder,) = (root / "cartpole").iterdir()
    return folder


# -- train and resume --------------------------------------------------------------------------------------------------


def test_train_does_what_the_flags_say(run):
    config = read_run_config(run)
    assert (config.seed, config.env.num_envs, config.plan.total_steps) == (3, 4, 128)
    assert config.policy.actor_hidden_dims == (8,) and config.policy.critic_hidden_dims == (64, 64)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [32, 64, 96, 128]
    assert {path.name for path in run.iterdir()} >= {"config.json", "versions.json", "metrics.csv", "checkpoints"}


def test_train_shows_progress_and_where_things_are(tmp_path, capsys):
    words = ["train", "cartpole", "--algorithm", "a2c", "--plan.total-steps", "512", "--runs", str(tmp_path)]
    assert main([*words, "--stop.metric", "", "--evaluation.num-episodes=1", "--logging.console-every=1"]) == 0
    text = capsys.readouterr().out
    assert "iteration 2/2" in text and "ended: the plan is fulfilled" in text and "next: striderl play" in text
    assert read_run_config(find_run(tmp_path / "cartpole")).algorithm_name == "a2c"


def test_settings_of_the_task(tmp_path):
    words = ["train", "cartpole", *TINY, "--runs", str(tmp_path)]
    assert main([*words, "--env.settings.max_episode_length", "5", "--env.settings.sutton-barto-reward=true"]) == 0
    config = read_run_config(find_run(tmp_path / "cartpole"))
    assert config.env.settings == {"max_episode_length": 5, "sutton_barto_reward": True}


@pytest.mark.slow
def test_resume_goes_on_and_says_when_there_is_nothing_to_do(tmp_path, capsys):
    words = ["train", "cartpole", *TINY, "--runs", str(tmp_path), "--stop.metric", ""]
    assert main(words) == 0
    folder = str(find_run(tmp_path / "cartpole"))
    assert main(["resume", folder]) == 0
    assert "has ended: its plan is fulfilled" in capsys.readouterr().out
    assert main(["resume", folder, "--seed", "77"]) == 0
    assert read_run_config(folder).seed == 3  # nothing was done with another one
    assert main(["train", "--resume", folder, "--plan.total-steps", "192"]) == 0
    rows = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [32, 64, 96, 128, 160, 192]
    assert read_run_config(folder).plan.total_steps == 192


# -- using a run -------------------------------------------------------------------------------------------------------


def test_evaluate(run, capsys):
    assert main(["evaluate", str(run), "--episodes", "3", "--num-envs", "2"]) == 0
    assert "95 % interval of the mean" in capsys.readouterr().out
    assert main(["evaluate", str(run), "--episodes", "3", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["episodes"] == 3.0 and first["return_mean"] == first["length_mean"] > 0
    assert main(["evaluate", str(run.parent), "--episodes", "3", "--json", "--checkpoint", str(first["step"])]) == 0
    assert json.loads(capsys.readouterr().out) == first  # the same seed, the same episodes


@pytest.mark.slow
def test_record(run, tmp_path, capsys):
    path = tmp_path / "film.mp4"
    assert main(["record", str(run), "--seconds", "0.4", "--output", str(path)]) == 0
    frames = imageio.imread(path)
    assert len(frames) == 11 and frames[0].std() > 1  # 20 steps of 0.02 s, every second one, and the first
    assert main(["record", str(run), "--seconds", "0.1"]) == 0
    assert list((run / "videos").glob("record_*.mp4"))


class Painted(gymnasium.Env):
    """Shows a picture, when it was told to before."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def render(self):
        return np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)


@pytest.mark.slow
def test_a_run_on_an_env_of_gymnasium_is_filmed(tmp_path, monkeypatch):
    painted = gymnasium.envs.registration.EnvSpec("Painted-v0", entry_point=Painted, max_episode_steps=20)
    monkeypatch.setitem(gymnasium.registry, painted.id, painted)
    words = ["train", "gymnasium:Painted-v0", *TINY, "--runs", str(tmp_path), "--stop.metric", ""]
    assert main(words) == 0
    path = tmp_path / "film.mp4"
    folder = str(find_run(tmp_path / "gymnasium_Painted-v0"))
    assert main(["record", folder, "--seconds", "0.2", "--output", str(path)]) == 0
    assert imageio.imread(path)[0].std() > 1


def test_play_writes_a_video_where_there_is_no_display(run, monkeypatch, capsys):
    class Nothing:
        def __init__(self, title):
            raise NoDisplayError("no $DISPLAY")

    monkeypatch.setattr("striderl.cli.play.Window", Nothing)
    assert main(["play", str(run), "--seconds", "0.2"]) == 0
    assert "no window (no $DISPLAY); writing a video" in capsys.readouterr().out
    assert list((run / "videos").glob("play_*.mp4"))


def test_play_shows_every_step_until_the_window_is_closed(run, monkeypatch):
    shown = []

    class Fake:
        def __init__(self, title):
            assert "cartpole" in title

        def show(self, frame):
            shown.append(frame.copy())
            return len(shown) < 5

        def __enter__(self):
            return self

        def __exit__(self, *_):
            shown.append("closed")

    monkeypatch.setattr("striderl.cli.play.Window", Fake)
    monkeypatch.setattr(play_module.time, "sleep", lambda seconds: None)
    assert main(["play", str(run), "--seconds", "5"]) == 0
    assert len(shown) == 6 and shown[-1] == "closed"
    assert not np.array_equal(shown[0], shown[4])


def test_a_picture_for_the_window():
    frame = np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)
    assert portable_pixmap(frame) == b"P6 2 1 255\n\x01\x02\x03\x04\x05\x06"


@pytest.mark.slow
def test_export(run, tmp_path, capsys, one_operator_table):
    bundle = tmp_path / "bundle"
    assert main(["export", str(run), "--output", str(bundle), "--formats", "onnx"]) == 0
    assert "policy.onnx" in capsys.readouterr().out
    from striderl.export.exported_policy import load_bundle
    from striderl.training.agent import Agent

    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    assert np.array_equal(load_bundle(bundle).act(observations), Agent.load(run).predict(observations))
    assert main(["export", str(run), "--output", str(bundle), "--formats", "onnx"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["export", str(run), "--output", str(bundle), "--formats", "onnx", "--overwrite"]) == 0


@pytest.mark.slow
def test_plot(run, tmp_path, capsys):
    picture = tmp_path / "plots" / "curves.png"
    assert main(["plot", str(run), str(run.parent), "--output", str(picture)]) == 0
    assert imageio.imread(picture).std() > 1
    assert main(["plot", str(run), "--metrics", "train/nothing", "--output", str(tmp_path / "other.png")]) == 2
    assert "train/nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "names"),
    [("tasks", ["quadruped_rough"]), ("algorithms", ["reinforce"]), ("recipes", ["cartpole", "ppo, a2c"])],
)
def test_list(kind, names, capsys):
    assert main(["list", kind]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in names)
    assert main(["list"]) == 0
    assert text in capsys.readouterr().out


# -- help --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: striderl {command}") and len(text) > 200


def test_the_help_of_a_task_has_the_sentence_of_every_setting(capsys):
    assert main(["train", "cartpole", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--algorithm.clip-param FLOAT The ratio is kept in [1 - clip_param, 1 + clip_param]" in text
    assert "--plan.total-steps INT The run is over when the envs have made this many steps" in text
    assert "(default: 100000)" in text


def test_overview_and_version(capsys):
    assert main(["--help"]) == 0
    assert "striderl train cartpole" in capsys.readouterr().out
    assert main([]) == 2
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("striderl 0.")


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["tarin", "cartpole"], "Did you mean 'train'?"),
        (["train", "cartpol"], "Did you mean 'cartpole'?"),
        (["train", "cartpole", "--algorithm", "pop"], "Did you mean 'ppo'?"),
        (["train", "cartpole", "--algorithm"], "--algorithm wants a value"),
        (["train", "--seed", "3"], "the task comes before its settings"),
        (["train", "cartpole", "--algorithm.learning-rat", "1"], "--algorithm.learning-rate"),
        (["train", "cartpole", "--algorithm.gamma", "much"], "--algorithm.gamma"),
        (["train", "cartpole", "--algorithm.gamma", "1.5"], "gamma and lam are between 0 and 1"),
        (["train", "cartpole", "--policy.kind", "lstn"], "lstm"),
        (["train", "cartpole", "--env.settings.max_episode_lenght", "3"], "Did you mean 'max_episode_length'?"),
        (["train", "cartpole", "--env.num-envs", "0"], "at least 1"),
        (
            ["train", "gymnasium:CartPole-v1", "--env.sutton_barto_reward", "true"],
            "there is no flag --env.sutton_barto_reward. Did you mean --env.settings.sutton_barto_reward?",
        ),
        (["train", "gymnasium:CartPole-v1", "--env.num-env=2"], "Did you mean --env.num-envs"),
        (["train", "gymnasium:CartPool-v1"], "CartPool"),
        (["train", "cartpole", "--device", "cuda:99"], "cuda"),
        (["train", "cartpole", "--device", "meta"], "the device 'meta' cannot be used here"),
        (
            ["train", "cartpole", "--terms", "rnd", "--terms.rnd.weight", "nan"],
            "weight: wanted a finite number, found nan",
        ),
        (["train", "cartpole", "--env.settings.max_episode_length", "NaN"], "wanted a number, found nan"),
        (
            ["train", "pendulum", "--algorithm", "sac", "--mode", "compiled", "--algorithm.mode", "eager"],
            "mode='compiled' and algorithm.mode='eager'",
        ),
        (["train", "nothing_like_it"], "Also an id of Gymnasium ('gymnasium:LunarLander-v3') and an env of your own"),
        (["train", "gymnasium:CartPol-v1"], "Gymnasium has no env 'CartPol-v1'"),
        (["train", "quadruped", "--env.reward-weights.aliv", "2"], "Did you mean --env.reward-weights.alive?"),
        (["train", "cartpole", "--stop.metric", "evaluate/return_men"], "Did you mean 'evaluate/return_mean'?"),
        (["resume", "runs/cartpole/nothing"], "does not exist"),
        (["evaluate", "nothing"], "does not exist"),
        (["play", "nothing"], "does not exist"),
        (["plot"], "at least one run"),
        (["plot", "nothing"], "does not exist"),
        (["export"], "RUN"),
        (["list", "taks"], "Did you mean 'tasks'?"),
        (["--verison"], "Did you mean '--version'?"),
        (["play", "x", "--secnds", "3"], "there is no flag --secnds. Did you mean --seconds?"),
        (["play", "x", "y"], "there is no argument y."),
        (["import-trajectories"], "missing from striderl import-trajectories: OLD, NEW."),
        (["train", "cartpole", "--policy.kind", "lstn"], "--policy.kind cannot be 'lstn'. Did you mean 'lstm'?"),
        (
            ["train", "cartpole", "--runs", "/proc/none"],
            "no folder for the run: no such file or directory: '/proc/none'",
        ),
    ],
)
def test_a_mistake_gets_a_hint_and_exit_code_2(words, hint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert hint in captured.err and captured.err.count("\n") == 1, "one line"
    assert captured.err.startswith("striderl: ")
    assert not list(tmp_path.glob("runs/*")), "a run that was never built leaves no folder"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["play", "RUN", "--checkpoint", "bets"], "or a number of env steps, found 'bets'. Did you mean 'best'?"),
        (["evaluate", "RUN", "--checkpoint", "999"], "no checkpoint of step 999; it has ["),
        (["evaluate", "RUN", "--seed", "-1"], "--seed is not negative, found -1"),
        (["record", "RUN", "--seed", "-1"], "--seed is not negative, found -1"),
        (["resume", "RUN", "--env.num-envs", "5"], "goes on with its 4 envs, found --env.num-envs 5"),
        (["resume", "RUN", "--policy.actor-hidden-dims", "9"], "goes on with the policy that it has"),
        (["resume", "RUN", "--algorithm.gama", "0.9"], "Did you mean --algorithm.gamma?"),
        (["export", "RUN", "--formats", "onx"], "Did you mean 'onnx'?"),
        (["export", "RUN", "--output", "RUN", "--overwrite"], "something else than a bundle in it"),
        (["plot", "RUN", "--metrics", "evaluate/retrun_mean"], "Did you mean 'evaluate/return_mean'?"),
        (["clips", "record", "RUN", "x"], "clips are recorded of quadruped tasks; 'cartpole' does not observe motions"),
    ],
)
def test_a_mistake_about_a_run_is_told_in_a_line(words, hint, run, capsys):
    files = sorted(run.rglob("*"))
    assert main([str(run) if word == "RUN" else word for word in words]) == 2
    said = capsys.readouterr().err
    assert hint in said and said.count("\n") == 1
    assert sorted(run.rglob("*")) == files, "nothing is written or lost"


COLOURED = (
    "\x1b[31m╭─\x1b[0m \x1b[31;1mUnrecognized options\x1b[0m ────────╮\n"
    "\x1b[31m│\x1b[0m Unrecognized options: --secnds, 3 \x1b[31m│\x1b[0m\n"
    "\x1b[31m│\x1b[0m ───────────────────────────────── \x1b[31m│\x1b[0m\n"
    "\x1b[31m│\x1b[0m Perhaps you meant:                \x1b[31m│\x1b[0m\n"
    "\x1b[31m│\x1b[0m     --seconds FLOAT               \x1b[31m│\x1b[0m\n"
    "╰───────────────────────────────────╯\n"
)


def test_a_box_of_a_terminal_becomes_a_line():
    assert one_line(COLOURED) == "there is no flag --secnds. Did you mean --seconds?"
    assert one_line("") == "the command line cannot be read."


def test_a_run_is_found_by_its_name_and_similar_ones_are_suggested(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("2026-01-01_10-00-00", "2026-01-02_10-00-00"):
        folder = tmp_path / "runs" / "cartpole" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{")
    assert find_run("runs/cartpole").name == find_run("2026-01-02_10-00-00").name == "2026-01-02_10-00-00"
    assert main(["evaluate", "runs/cartpole/2026-01-03_10-00-00"]) == 2
    assert "Did you mean 'runs/cartpole/2026-01-0" in capsys.readouterr().err
    assert main(["evaluate", "runs/cartpol"]) == 2
    assert "Did you mean 'runs/cartpole'?" in capsys.readouterr().err
    assert main(["evaluate", "runs/cartpole"]) == 2  # damaged
    assert "not JSON" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    assert main(["resume", "other"]) == 2
    assert "has no config.json" in capsys.readouterr().err


def test_a_run_without_a_checkpoint_is_told(run, tmp_path, capsys):
    for name in ("config.json", "specs.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "no checkpoint" in capsys.readouterr().err


# -- as a program ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_program_trains_and_help_is_quick(tmp_path):
    program = [sys.executable, "-m", "striderl"]
    done = subprocess.run(
        [*program, "train", "cartpole", *TINY], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "greedy return" in done.stdout and list((tmp_path / "runs" / "cartpole").glob("*/checkpoints/step_*"))


def test_help_loads_no_torch():
    program = (
        "import sys\nfrom striderl.cli.main import main\n"
        "assert main(['train', '--help']) == 0 and main(['list', 'recipes']) == 0 and main(['train', 'cartpol']) == 2\n"
        "assert 'torch' not in sys.modules, 'torch was loaded'"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: striderl train TASK" in done.stdout
    assert time.monotonic() - began < 60  # about 0.2 s on a machine that does nothing else


@pytest.mark.parametrize(
    ("flag", "meant"), [("--algoritm", "--algorithm"), ("--resme", "--resume"), ("--run", "--runs")]
)
def test_a_misspelt_flag_of_the_command_itself_is_named(flag, meant, capsys):
    assert main(["train", "cartpole", flag, "x"]) == 2
    assert f"there is no flag {flag}. Did you mean {meant}?" in capsys.readouterr().err
