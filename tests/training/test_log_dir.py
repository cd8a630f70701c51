"""A runner's log_dir is a run: every command and `striderl.load` read it, and training goes on from it."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runner_configs
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "envs"))
from rsl_rl_fakes import GroupsFake, IsaacLabTwoFake, LeggedGymFake

import striderl
from striderl.checkpoint.trust import UntrustedFile
from striderl.cli.main import main
from striderl.data import tree
from striderl.envs.tasks import make
from striderl.policies.policy import PolicyConfig
from striderl.policies.stages import NormalizeObs, NormalizeStage, Remember
from striderl.training.experiment.assembly import build_learner
from striderl.training.experiment.config_json import policy_from_plain, policy_to_plain
from striderl.training.experiment.loading import load_run
from striderl.training.experiment.run_config import RunConfig, read_run_config
from striderl.training.experiment.runner_checkpoints import load_state
from striderl.training.experiment.runner_config import RunnerConfig, SymmetrySettings
from striderl.training.rsl_rl.build import resume_runner
from striderl.training.rsl_rl.live_objects import load_teacher
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner

pytestmark = pytest.mark.filterwarnings("ignore:.*offers no seed:UserWarning")

GENERATIONS = {
    "legged_gym": (runner_configs.legged_gym, lambda: LeggedGymFake(num_envs=4)),
    "isaac_lab_two": (runner_configs.isaac_lab_two, lambda: IsaacLabTwoFake(num_envs=4)),
    "isaac_lab_three": (runner_configs.isaac_lab_three, lambda: GroupsFake(num_envs=4)),
    "rsl_rl_four": (runner_configs.rsl_rl_four, lambda: GroupsFake(num_envs=4)),
    "mjlab": (runner_configs.mjlab, lambda: GroupsFake(num_envs=4, acting_group="actor")),
    "st_rl": (runner_configs.st_rl, lambda: LeggedGymFake(num_envs=4)),
}


def small(**settings: Any) -> dict[str, Any]:
    """A config of Isaac Lab 2 for built-in tasks, with what a test sets at the top."""
    config = runner_configs.isaac_lab_two()
    return {**config, "num_steps_per_env": 8, "max_iterations": 4, "logger": "none", **settings}


def trained(log_dir: Path, iterations: int, config: Any = None, env: Any = None) -> OnPolicyRunner:
    env = make("pendulum", num_envs=4, settings={"max_episode_length": 20}) if env is None else env
    runner = OnPolicyRunner(env, config or small(), log_dir)
    runner.learn(iterations)
    return runner


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory) -> Path:
    """The log_dir of a runner on the pendulum after two iterations of four."""
    folder = tmp_path_factory.mktemp("logs") / "swing"
    trained(folder, 2).close()
    return folder


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_policy_of_every_generation_is_loaded_without_its_env(generation, tmp_path):
    make_config, make_env = GENERATIONS[generation]
    runner = trained(tmp_path, 1, make_config(), make_env())
    loaded = load_run(tmp_path, builds_env=False)
    assert loaded.policy.config == runner.alg.policy.config and loaded.step == runner.trainer.env_steps
    assert tree.equal(dict(loaded.policy.state_dict()), dict(runner.alg.policy.state_dict()))
    assert load_teacher(tmp_path).policy.config == loaded.policy.config
    assert loaded.env.task.startswith("object:")


def test_its_config_is_that_of_any_run_and_trains_to_the_same_weights(tmp_path):
    runner = trained(tmp_path, 2)
    config = read_run_config(tmp_path)
    assert config == runner.run_config and config.env.task == "pendulum" and config.algorithm == runner.config.algorithm
    assert config.plan.num_steps_per_env == 8 and config.seed == runner.seed
    env = make(config.env.task, num_envs=config.env.num_envs, settings=config.env.settings)
    trainer = build_learner(config, env).trainer(())
    next(trainer), next(trainer)
    assert tree.equal(dict(trainer.algorithm.policy.state_dict()), dict(runner.alg.policy.state_dict()))


def test_terms_of_a_train_cfg_are_terms_of_its_run(tmp_path):
    given = small(seed=3)
    given["algorithm"] |= {"rnd_cfg": {"weight": 0.5, "num_outputs": 2}}
    trained(tmp_path, 1, given)
    terms = read_run_config(tmp_path).terms
    assert list(terms) == ["rnd"] and terms["rnd"].weight == 0.5 and terms["rnd"].obs_components == ("obs",)


def test_a_config_of_before_has_the_policy_and_the_env_alone(log_dir, tmp_path):
    content = json.loads((log_dir / "config.json").read_text())
    before = {name: content[name] for name in ("schema", "runner", "env", "policy", "train_cfg", "device")}
    config = RunConfig.from_stored(before, "config.json")
    assert config.policy == read_run_config(log_dir).policy and config.env.task == "pendulum"


def test_an_agent_plays_it(log_dir):
    agent = striderl.load(log_dir)
    assert np.abs(agent.predict(np.zeros((2, 3), np.float32))).max() <= 2.0
    assert agent.run == log_dir


@pytest.mark.slow
def test_every_command_takes_it(log_dir, tmp_path, capsys):
    assert main(["evaluate", str(log_dir), "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 2 * 8 * 4
    assert main(["evaluate", str(log_dir), "--episodes", "2", "--checkpoint", "1"]) == 0
    assert main(["export", str(log_dir), "--output", str(tmp_path / "bundle"), "--formats", "torch"]) == 0
    assert main(["plot", str(log_dir), "--output", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert main(["record", str(log_dir), "--seconds", "0.5", "--output", str(tmp_path / "video.gif")]) == 0
    assert main(["dataset", str(log_dir), str(tmp_path / "data"), "--num-steps", "40"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(log_dir), "--checkpoint", "9"]) == 2
    assert "there are the iterations [0, 1]" in capsys.readouterr().err


def test_resume_goes_on_to_the_same_bits(tmp_path, capsys):
    trained(tmp_path / "whole", 4).close()
    trained(tmp_path / "halves", 2).close()
    assert main(["resume", str(tmp_path / "halves")]) == 0
    assert "pendulum with OnPolicyRunner, from iteration 2" in capsys.readouterr().out
    whole, halves = (load_state(tmp_path / name / "model_3.pt") for name in ("whole", "halves"))
    for state in (whole, halves):
        state.pop("seconds")
        state["trainer"].pop("seconds", None)
    assert tree.equal(dict(whole["model_state_dict"]), dict(halves["model_state_dict"]))
    assert tree.equal(whole["trainer"]["algorithm"], halves["trainer"]["algorithm"])
    rows = [json.loads(line)["step"] for line in (tmp_path / "halves" / "metrics.jsonl").read_text().splitlines()]
    assert rows == [32, 64, 96, 128]
    assert main(["resume", str(tmp_path / "halves")]) == 2
    assert "has finished 4 iterations; more goes on: --max-iterations N" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "halves"), "--algorithm.gamma", "0.9"]) == 2
    assert "the flags are --max-iterations, --env, --device and --trust" in capsys.readouterr().err


def test_a_config_object_is_resumed_as_well(tmp_path):
    stages = (NormalizeObs(), Remember(type="gru", hidden_size=5))
    config = RunnerConfig(policy=PolicyConfig(actor=stages, actor_hidden_dims=(8,)), num_steps_per_env=8, seed=3)
    runner = trained(tmp_path, 1, config)
    again = resume_runner(tmp_path)
    assert again.config == runner.config and again.current_learning_iteration == 1
    assert tree.equal(dict(again.alg.policy.state_dict()), dict(runner.alg.policy.state_dict()))


def test_objects_have_to_be_handed_over_again(tmp_path, capsys):
    def mirror(env: Any, obs: Any, actions: Any) -> tuple[Any, Any]:
        return obs, actions

    config = RunnerConfig(num_steps_per_env=8, seed=3, symmetry=SymmetrySettings(function=mirror, augment=False))
    trained(tmp_path, 1, config)
    assert main(["resume", str(tmp_path), "--max-iterations", "2"]) == 2
    error = capsys.readouterr().err
    assert "train_cfg['RunnerConfig']['symmetry'] (a SymmetrySettings)" in error and "runner.load(" in error


def make_fake(num_envs: int = 4) -> Any:
    return LeggedGymFake(num_envs=num_envs)


def test_an_env_without_a_name_has_to_be_named(tmp_path, capsys, monkeypatch):
    runner = trained(tmp_path, 1, runner_configs.legged_gym(), LeggedGymFake(num_envs=4))
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "was trained on an env object, a LeggedGymFake" in capsys.readouterr().err
    assert main(["resume", str(tmp_path)]) == 2
    assert "name what makes one: --env my_pkg.envs:make_env" in capsys.readouterr().err
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    named = ["--env", "test_log_dir:make_fake"]
    assert main(["evaluate", str(tmp_path), "--episodes", "2", "--num-envs", "2", *named]) == 0, capsys.readouterr().err
    assert main(["resume", str(tmp_path), "--max-iterations", "2", *named]) == 0, capsys.readouterr().err
    assert (tmp_path / "model_1.pt").is_file() and runner.current_learning_iteration == 1
    assert main(["evaluate", str(tmp_path), "--env", "cartpole"]) == 2
    assert "observation" in capsys.readouterr().err


def test_a_config_of_somebody_else_stays(tmp_path, caplog):
    (tmp_path / "config.json").write_text('{"mine": 1}')
    with caplog.at_level(logging.WARNING):
        trained(tmp_path, 1)
    assert (tmp_path / "config.json").read_text() == '{"mine": 1}'
    assert "config.json is not of this runner and stays" in caplog.text


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A stage from outside of the library."""

    components: tuple[str, ...] = ()

    def build(self, spec: Any, whole: Any) -> NormalizeStage:
        return NormalizeStage(NormalizeObs(components=self.components), spec)


def test_a_stage_of_a_foreign_module_wants_trust(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "here"))
    config = RunnerConfig(policy=PolicyConfig(actor=(Foreign(),)), num_steps_per_env=8, seed=3)
    trained(tmp_path / "run", 1, config)
    assert load_run(tmp_path / "run").policy.config.actor == (Foreign(),)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(UntrustedFile, match="test_log_dir"):
        load_run(tmp_path / "run", builds_env=False)
    assert load_run(tmp_path / "run", trust=True).policy.config.actor == (Foreign(),)


def test_a_policy_as_data_and_back():
    stages = (NormalizeObs(components=("a",), eps=0.1), Remember(type="lstm", hidden_size=7))
    config = PolicyConfig(trunk=stages[:1], critic=stages, head_settings={"init_std": 0.5}, actor_hidden_dims=(3, 4))
    plain = json.loads(json.dumps(policy_to_plain(config)))
    assert plain["critic"][1]["stage"] == "Remember" and policy_from_plain(plain) == config
    with pytest.raises(ValueError, match="Did you mean 'Remember'"):
        policy_from_plain({"actor": [{"stage": "Rememer"}]})


def test_a_runner_can_be_asked_to_stop(tmp_path):
    runner = OnPolicyRunner(make("pendulum", num_envs=4), small(), tmp_path)
    runner.should_stop = lambda: runner.current_learning_iteration == 2
    runner.learn(4)
    assert runner.current_learning_iteration == 2 and (tmp_path / "model_1.pt").is_file()
    assert torch.isfinite(next(runner.alg.policy.parameters())).all()
