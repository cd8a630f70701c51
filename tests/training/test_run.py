"""Runs: the folder has everything, a stopped run goes on bit for bit, signals save in every phase."""

from __future__ import annotations

import csv
import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from run_cases import final_state, folder_at, main, taking_signals, tiny
from runner_configs import legged_gym

import striderl
from striderl.checkpoint.errors import CheckpointError, LayoutMismatch
from striderl.checkpoint.store import CheckpointStore
from striderl.data import tree
from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.registry import LOGGERS
from striderl.data.specs import ObsSpec
from striderl.envs.tasks import make
from striderl.loggers import table
from striderl.training.agent import Agent
from striderl.training.checks import use_tf32
from striderl.training.experiment import run as run_module
from striderl.training.experiment.loading import build_run_policy, load_run
from striderl.training.experiment.run import Run, num_video_steps
from striderl.training.experiment.run_config import EvaluationSettings, LoggingSettings, StopSettings, read_run_config
from striderl.training.experiment.run_folder import RunFolder, new_run_folder, read_specs, write_specs
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner
from striderl.training.signals import StopSignals

PROGRAM = Path(__file__).with_name("run_cases.py")


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drive(kind: str, path: Path, iterations: int) -> int:
    return main(kind, str(path), str(iterations))


def in_a_process(*words: object) -> int:
    return subprocess.run([sys.executable, str(PROGRAM), *map(str, words)], timeout=280, check=False).returncode


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_run_leaves_everything_in_its_folder(tmp_path):
    config = tiny(iterations=10)
    folder = new_run_folder(config, tmp_path)
    assert folder.path.parent == tmp_path / "cartpole"
    outcome = Run(config, folder).drive()
    assert outcome.exit_code == 0 and outcome.reason == "the plan is fulfilled"
    assert outcome.record is not None and outcome.record.iteration == 10
    assert read_run_config(folder.path) == config
    versions = json.loads((folder.path / "versions.json").read_text())
    assert versions["torch"] and "git_commit" in versions
    rows = list(csv.DictReader(folder.csv.open()))
    assert [int(row["step"]) for row in rows] == [32 * count for count in range(1, 11)]
    assert rows[4]["evaluate/return_mean"] and not rows[3]["evaluate/return_mean"]
    lines = [json.loads(line) for line in folder.json_lines.read_text().splitlines()]
    assert len(lines) == 10
    assert CheckpointStore(folder.checkpoints).steps()[-1] == 320


def test_two_runs_in_one_second_get_two_folders(tmp_path):
    one, two = new_run_folder(tiny(), tmp_path), new_run_folder(tiny(), tmp_path)
    assert one.path != two.path


def test_specs_survive_their_file(tmp_path):
    obs = ObsSpec.from_segments({"a": 3, "image": (1, 4, 5)})
    parts = {
        "arm": BoxSpec(shape=(2,), low=(-1.0, -float("inf")), high=float("inf"), names=("x", "y")),
        "grip": DiscreteSpec(n=3, mask="a"),
        "modes": MultiDiscreteSpec(nvec=(2, 3)),
    }
    for action in (*parts.values(), DictActionSpec(parts)):
        write_specs(tmp_path, obs, action, 0.02)
        assert read_specs(tmp_path) == (obs, action, 0.02)


def test_a_video_is_as_long_as_it_says():
    assert num_video_steps(10.0, 0.02) == 500
    assert num_video_steps(2.0, 0.0) == 50  # no unit of time: 25 steps are a second


# -- going on ----------------------------------------------------------------------------------------------------------


KINDS = ("cartpole", "pendulum_lstm", "rnd", "dqn", "sac")


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Five iterations of every kind here, as they are saved, then five more in one other process."""
    root = tmp_path_factory.mktemp("halves")
    middles = {}
    for kind in KINDS:
        assert drive(kind, root / kind, 5) == 0
        middles[kind] = final_state(root / kind)
    assert in_a_process(",".join(KINDS), root, 10) == 0
    return root, middles


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_iterations_are_five_and_five_in_another_process(kind, halves, tmp_path):
    root, middle = halves[0], halves[1][kind]
    assert drive(kind, tmp_path / "whole", 10) == 0
    assert middle["iteration"] == 5
    whole, both = final_state(tmp_path / "whole"), final_state(root / kind)
    assert whole["iteration"] == 10
    assert tree.equal(whole, both)
    assert not tree.equal(whole["algorithm"], middle["algorithm"])  # the comparison can fail
    rows = [list(csv.DictReader(RunFolder(path).csv.open())) for path in (tmp_path / "whole", root / kind)]
    assert len(rows[0]) == 10 and [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]]


@pytest.mark.slow
def test_a_run_whose_envs_are_in_processes_is_the_run_of_one_process(tmp_path):
    def driven(name: str, iterations: int, num_processes: int):
        config = tiny(iterations=iterations)
        config = replace(config, env=replace(config.env, num_processes=num_processes))
        folder = folder_at(tmp_path / name, config)
        run = Run(config, folder)
        if name == "cut" and iterations == 4:
            assert run.restore()
        assert run.drive().exit_code == 0
        return final_state(tmp_path / name)["algorithm"]

    whole = driven("whole", 4, 0)
    assert not tree.equal(driven("cut", 2, 2), whole)
    assert tree.equal(driven("cut", 4, 2), whole)  # resumed, its envs from their saved state


def test_an_env_that_cannot_save_is_told_as_tier_b(tmp_path, caplog):
    assert drive("gymnasium", tmp_path / "run", 4) == 0
    with caplog.at_level(logging.WARNING):
        assert drive("gymnasium", tmp_path / "run", 6) == 0
    assert "not to the bit" in caplog.text and "new episodes begin" in caplog.text
    assert final_state(tmp_path / "run")["iteration"] == 6


def test_without_a_checkpoint_a_run_starts_again(tmp_path, caplog):
    config = tiny(iterations=2)
    folder = folder_at(tmp_path / "run", config)
    folder.csv.write_text("step,train/kl\n32,0.5\n")  # what a run that was killed early may have left
    run = Run(config, folder)
    with caplog.at_level(logging.WARNING):
        assert not run.restore()
    assert "starts from the beginning" in caplog.text
    assert run.drive().exit_code == 0
    assert [row["step"] for row in csv.DictReader(folder.csv.open())] == ["32", "64"]


def test_another_layout_is_refused(tmp_path):
    drive("cartpole", tmp_path / "run", 2)
    config = tiny("pendulum_lstm")
    run = Run(config, RunFolder(tmp_path / "run"))
    with pytest.raises(LayoutMismatch, match=r"observation 'obs': shape is \[3\], was \[4\]"):
        run.restore()
    run.close()


def test_a_disk_that_is_full_does_not_stop_training(tmp_path, caplog, monkeypatch):
    config = tiny(iterations=10)
    run = Run(config, folder_at(tmp_path / "run", config))

    def full(*_, **__):
        raise CheckpointError("no space left on device")

    monkeypatch.setattr(run.store, "save", full)
    with caplog.at_level(logging.ERROR):
        assert run.drive().reason == "the plan is fulfilled"
    assert "not saved: no space left" in caplog.text


def test_stop_rules(tmp_path):
    config = tiny(stop=replace(tiny().stop, metric="evaluate/return_mean", value=1.0))
    outcome = Run(config, folder_at(tmp_path / "metric", config)).drive()
    assert outcome.record is not None and outcome.record.iteration == 5  # the first evaluation
    assert "evaluate/return_mean" in outcome.reason
    config = tiny(stop=replace(tiny().stop, max_seconds=1e-6))
    outcome = Run(config, folder_at(tmp_path / "time", config)).drive()
    assert "seconds is used up" in outcome.reason and outcome.record is not None
    assert outcome.record.iteration == 1 and "evaluate/return_mean" in outcome.record.metrics  # the last one


@pytest.mark.slow
def test_a_resumed_run_may_get_other_limits(tmp_path):
    drive("cartpole", tmp_path / "run", 2)
    config = tiny(iterations=20, stop=replace(tiny().stop, max_seconds=1e-6))
    run = Run(config, RunFolder(tmp_path / "run"))
    assert run.restore()
    outcome = run.drive()
    assert outcome.record is not None and outcome.record.iteration == 3


@pytest.mark.slow
def test_an_agent_of_a_replay_learner(tmp_path):
    config = tiny("sac", iterations=3)
    Run(config, folder_at(tmp_path / "run", config)).drive()
    agent = Agent.load(tmp_path / "run", "last")
    actions = agent.predict(np.zeros((5, 3), np.float32))
    assert actions.shape == (5, 1) and (abs(actions) <= 2.0).all()


def test_heads_that_do_not_fit_are_refused(tmp_path):
    config = tiny("sac")
    wrong = replace(config, policy=replace(config.policy, head="gaussian"))
    with pytest.raises(ValueError, match=r"sac learns with policy.head='squashed_gaussian', found 'gaussian'"):
        Run(wrong, RunFolder(tmp_path))


@pytest.mark.slow
def test_videos_and_trackers(tmp_path):
    settings = LoggingSettings(console="off", trackers=("tensorboard",), video_every=2, video_seconds=0.2)
    config = tiny(iterations=4, logging=settings)
    folder = folder_at(tmp_path / "run", config)
    assert Run(config, folder).drive().exit_code == 0
    names = [f"step_{step}{suffix}" for step in (128, 64) for suffix in (".mp4", ".trace.npz")]
    assert sorted(path.name for path in folder.videos.iterdir()) == names  # the steps of each lie beside it
    assert list((folder.path / "tensorboard").glob("events*"))


@pytest.mark.parametrize("device", ["nonsense", "meta", "cuda:99", "mps", "xla", "cpu:7x", ""])
def test_a_device_that_is_not_there_is_named(device, tmp_path):
    config, env = tiny(device=device), make("cartpole", num_envs=1)
    for work in (
        lambda: Run(config, RunFolder(tmp_path)),
        lambda: build_run_policy(config, env.obs_spec, env.action_spec, device=device),
        lambda: OnPolicyRunner(env, legged_gym(), device=device),
    ):
        wanted = rf"^the device '{device}' cannot be used here: [^\n]{{1,150}}\. Usable: 'cpu'$"
        with pytest.raises(ValueError, match=wanted):
            work()


# -- metrics that a setting names --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "setting", "name", "meant"),
    [
        ("cartpole", "stop", "train/value_los", "train/"),
        ("sac", "stop", "colect/return_mean", "collect/return_mean"),
        ("cartpole", "stop", "progress/env_steps", "collect/"),
        ("sac", "checkpoints", "train/rewards", "train/"),
        ("cartpole", "checkpoints", "collect/return_men", "collect/return_mean"),
    ],
)
def test_a_metric_that_is_not_logged_ends_the_run_at_once(kind, setting, name, meant, tmp_path):
    config = tiny(kind, iterations=4)
    config = replace(config, env=replace(config.env, settings={"max_episode_length": 6}))  # an episode per iteration
    field = "metric" if setting == "stop" else "best"
    config = replace(config, **{setting: replace(getattr(config, setting), **{field: name})})
    run = Run(config, folder_at(tmp_path / "run", config))
    outcome = run.drive()
    assert outcome.exit_code == 1 and outcome.saved
    assert f"{setting}.{field}: the log has no metric {name!r}" in outcome.reason and meant in outcome.reason
    assert run.trainer.iteration <= (2 if kind == "sac" else 1)  # SAC has made its 16 gradient steps after two
    mended = replace(config, **{setting: replace(getattr(config, setting), **{field: "evaluate/return_mean"})})
    mended = replace(mended, stop=replace(mended.stop, value=1e9))
    again = Run(mended, folder_at(tmp_path / "run", mended))
    assert again.restore() and again.drive().exit_code == 0 and again.trainer.iteration == 4


def test_a_metric_of_evaluations_is_known_before_the_first(tmp_path):
    config = tiny(stop=StopSettings(metric="evaluate/return_men"))
    with pytest.raises(ValueError, match=r"stop.metric: the log has no metric 'evaluate/return_men'. Did you mean"):
        Run(config, RunFolder(tmp_path))
    off = EvaluationSettings(every=0, at_end=False, num_episodes=2, num_envs=2)
    with pytest.raises(ValueError, match=r"is never logged: evaluation\.every is 0"):
        Run(tiny(stop=StopSettings(metric="evaluate/return_mean"), evaluation=off), RunFolder(tmp_path))


def test_a_metric_may_come_with_the_first_episode(tmp_path):
    config = tiny(iterations=30, stop=StopSettings(metric="collect/return_mean", value=1.0))
    run = Run(config, folder_at(tmp_path / "run", config))  # 8 steps an iteration: the first episode takes some
    outcome = run.drive()
    assert outcome.exit_code == 0 and outcome.reason.startswith("collect/return_mean = ") and run.trainer.iteration > 1


# -- loggers -----------------------------------------------------------------------------------------------------------

ERRORS = (ImportError("no such package"), PermissionError("credentials"), SystemExit("bye"))


def failing_loggers():
    """Every logger with one error, every error with several loggers; all pairs under the deep profile."""
    names = [name for name in LOGGERS.names() if name != "console"]
    every = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
    return [
        (name, error)
        for one, name in enumerate(names)
        for two, error in enumerate(ERRORS)
        if every or one % len(ERRORS) == two
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "error"), failing_loggers())
def test_a_logger_that_cannot_be_made_costs_a_warning(name, error, tmp_path, monkeypatch, caplog):
    def fails(folder):
        raise error

    files = {"csv": "CsvLogger", "jsonl": "JsonlLogger"}  # which a run makes with settings of its own
    if name in files:
        monkeypatch.setattr(run_module, files[name], lambda path, **settings: fails(path))
    else:
        monkeypatch.setattr(table, f"make_{name}", fails)
    trackers = () if name in files else (name,)
    config = tiny(iterations=1, logging=LoggingSettings(console="off", trackers=trackers))
    folder = folder_at(tmp_path / "run", config)
    assert Run(config, folder).drive().exit_code == 0
    assert caplog.text.count(f"logger {name} cannot be made: {type(error).__name__}") == 1
    assert folder.json_lines.exists() or name == "jsonl"


# -- signals -----------------------------------------------------------------------------------------------------------

PHASES = ["start", "collect", "prepare", "update", "absorb", "consume", "evaluate", "save"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    assert drive("cartpole", path, 6) == 0
    return final_state(path)


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_every_phase_saves_and_the_run_goes_on_exactly(phase, tmp_path, uninterrupted):
    path = tmp_path / "run"
    began = time.monotonic()
    number = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[PHASES.index(phase) % 3]
    assert main("cartpole", str(path), "6", phase, str(int(number))) == 128 + number
    assert time.monotonic() - began < 60.0
    saved = CheckpointStore(RunFolder(path).checkpoints).steps()
    assert bool(saved) == (phase != "start")
    assert drive("cartpole", path, 6) == 0
    assert tree.equal(final_state(path), uninterrupted)
    rows = list(csv.DictReader(RunFolder(path).csv.open()))
    assert [int(row["step"]) for row in rows] == [32 * count for count in range(1, 7)]
    assert rows[4]["evaluate/return_mean"]  # an evaluation that was broken off is done again


def test_the_second_signal_ends_at_once():
    program = (
        "import os, signal, time\n"
        "from striderl.training.signals import StopSignals\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with StopSignals() as signals:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    assert signals.exit_code == 143 and signals.name == 'SIGTERM'\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(300)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=280, check=False).returncode == 130


def test_what_is_ignored_stays_ignored():
    with taking_signals():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN and not signals.received
            assert signal.getsignal(signal.SIGINT) != signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        assert signal.getsignal(signal.SIGTERM) != before and signals.exit_code == 0
    assert signal.getsignal(signal.SIGTERM) == before


# -- what was learned --------------------------------------------------------------------------------------------------


def test_an_agent_is_loaded_from_a_folder(tmp_path):
    config = tiny(iterations=5)
    run = Run(config, folder_at(tmp_path / "run", config))
    run.drive()
    trained = Agent(run.learner.policy)
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    for which in ("best", "last", 160):
        agent = Agent.load(tmp_path / "run", which)
        assert np.array_equal(agent.predict(observations), trained.predict(observations))
    RunFolder(tmp_path / "run").write_config(replace(config, device="cuda:7"))
    assert load_run(tmp_path / "run").policy.value_head.layer.weight.device.type == "cpu"  # wherever it was trained
    RunFolder(tmp_path / "run").write_config(config)
    loaded = load_run(tmp_path / "run")
    assert loaded.step == 160 and loaded.step_dt == 0.02 and loaded.config == config
    fresh = Agent(Run(config, folder_at(tmp_path / "fresh", config)).learner.policy)
    assert any(
        not torch.equal(one, two) for one, two in zip(fresh.policy.parameters(), trained.policy.parameters())
    )  # the comparison above can fail


@pytest.fixture
def without_tf32():
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    parts = (cudnn, cudnn.conv, cudnn.rnn, matmul)
    before = [part.fp32_precision for part in parts]
    for part in parts:
        part.fp32_precision = "ieee"
    yield
    for part, precision in zip(parts, before):
        part.fp32_precision = precision


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_switched_on_by_a_run_on_a_gpu_unless_it_says_no(tmp_path, tf32, without_tf32, monkeypatch):
    assert tiny(iterations=1).tf32
    asked: list[torch.device] = []
    monkeypatch.setattr(run_module, "use_tf32", asked.append)
    Run(tiny(iterations=1, tf32=tf32), RunFolder(tmp_path)).close()
    assert asked == ([torch.device("cpu")] if tf32 else [])


@pytest.mark.parametrize(("device", "wanted"), [("cpu", "ieee"), ("cuda:1", "tf32")])
def test_tf32_is_for_gpus(device, wanted, without_tf32, caplog):
    caplog.set_level("INFO")
    use_tf32(torch.device(device))
    assert torch.backends.cuda.matmul.fp32_precision == torch.backends.cudnn.fp32_precision == wanted
    assert ("--tf32 False" in caplog.text) == (wanted == "tf32")


@pytest.mark.slow
def test_whichever_switch_a_client_has_used_both_are_read():
    # torch raises for code that reads the old switch after the new one was set; mjlab sets the new one
    program = """
import os, sys
import torch, torch._dynamo
from striderl.networks.mlp import MlpModel, kernel_dtype

def check(switch):
    if switch == "new":
        torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.fp32_precision = "tf32"
    elif switch == "old":
        torch.backends.cuda.matmul.allow_tf32 = True
    else:
        torch.backends.fp32_precision = "tf32"
    assert kernel_dtype() is torch.float32
    torch.compile(MlpModel(3, (4,), 2), backend="eager")(torch.ones(2, 3))
    # as a run with tf32 does
    torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.fp32_precision = "tf32"

for switch in ("new", "old", "global"):  # each in a process of its own, for which torch is imported once
    if not os.fork():
        check(switch)
        sys.exit()
    assert os.wait()[1] == 0, switch
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


def test_no_module_uses_torchs_old_switches():
    source = Path(striderl.__file__).parent
    old = ("allow_tf32", "set_float32_matmul_precision", "get_float32_matmul_precision")
    found = [path for path in source.rglob("*.py") if any(name in path.read_text() for name in old)]
    assert not found
