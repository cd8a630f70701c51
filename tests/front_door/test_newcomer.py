"""What a newcomer meets: a changed PPO is compared with PPO, and a mistake is named with what to do."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from striderl.algorithms import PPO, SAC, PPOConfig
from striderl.algorithms.building import facts_of
from striderl.cli.main import main
from striderl.cli.terminal import UsageError
from striderl.cli.train_flags import overridden
from striderl.collect import Collector
from striderl.data.registry import ALGORITHMS
from striderl.envs import ContractError, make
from striderl.loggers import Logger
from striderl.loggers.table import make_loggers
from striderl.ops import huber
from striderl.recipes.table import recipe
from striderl.training import OnPolicyPlan, Trainer


@dataclass(frozen=True, kw_only=True)
class HuberConfig(PPOConfig):
    gamma: float = 0.5
    """Another default than PPO's."""
    delta: float = 1.0
    """Where the loss becomes linear."""


class HuberPPO(PPO):
    Config = HuberConfig
    summary = "PPO with a Huber loss"

    def value_loss(self, output: Any, minibatch: Any) -> torch.Tensor:
        return huber(output.value - minibatch["returns"], self.config.delta)[minibatch["valid"]].mean()


class OwnSAC(SAC):
    summary = "SAC"


NAME = f"{__name__}:HuberPPO"


def test_a_derived_algorithm_begins_with_the_recipe_of_its_parent():
    for task in ("cartpole", "gymnasium:CartPole-v1"):
        usual, own = recipe(task, "ppo"), recipe(task, NAME)
        assert own.plan == usual.plan and own.policy == usual.policy and own.collector == usual.collector
        differing = {name for name in vars(usual.algorithm) if vars(own.algorithm)[name] != vars(usual.algorithm)[name]}
        assert differing == {"gamma"} and own.algorithm.gamma == 0.5 and own.algorithm.delta == 1.0
    assert recipe("pendulum", f"{__name__}:OwnSAC").plan == recipe("pendulum", "sac").plan
    assert ALGORITHMS.parent_of("ppo") == "" and ALGORITHMS.parent_of(NAME) == "ppo"


@pytest.mark.slow
def test_one_loss_is_changed_by_one_method(tmp_path, capsys):
    words = ["train", "cartpole", "--algorithm", NAME, "--steps", "256", "--num-envs", "2", "--runs", str(tmp_path)]
    assert main([*words, "--plan.num-steps-per-env", "64", "--algorithm.delta", "0.1"]) == 0
    assert NAME in capsys.readouterr().out


def test_a_missing_method_is_named():
    env = make("cartpole", num_envs=2)
    algorithm = facts_of("ppo").build(_policy(env))
    half = type("Half", (), {name: None for name in ("policy", "updater", "actor", "prepare", "state_dict")})()
    with pytest.raises(TypeError, match="found Half, which lacks num_updates_per_rollout, check_rollout, update"):
        Trainer(half, Collector(env, algorithm.actor()), OnPolicyPlan(total_steps=64))


def _policy(env: Any) -> Any:
    from striderl.policies import Policy

    return Policy(env.obs_spec, env.action_spec)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "cartpole", "--algorithm", "my_trpo.TRPO"],
        ["train", "my_env.PointRobot"],
        ["train", "cartpole", "--logging.trackers", "my_log.Sqlite"],
    ],
)
def test_a_dot_for_a_colon_is_named(words, capsys, tmp_path):
    assert main([*words, *(["--runs", str(tmp_path)] if "--logging.trackers" in words else [])]) == 2
    wanted = words[-1] if len(words) > 2 else words[1]
    assert f"is written 'module:name': '{wanted.replace('.', ':')}'" in capsys.readouterr().err


def test_a_config_that_is_no_dataclass_is_named(monkeypatch):
    class Wrong(PPO):
        Config = dict

    monkeypatch.setitem(ALGORITHMS.registered, "wrong", Wrong)
    with pytest.raises(TypeError, match="its Config is a frozen dataclass"):
        facts_of("wrong")


class NoFolder(Logger):
    def __init__(self) -> None:
        """Take nothing."""

    def log(self, step: int, numbers: Any) -> None:
        """Do nothing."""


def test_an_own_logger_that_cannot_be_made_stops_the_run(tmp_path):
    with pytest.raises(ValueError, match="def __init__\\(self, folder\\)"):
        make_loggers([f"{__name__}:NoFolder"], tmp_path)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (lambda obs: obs["obs"], "wanted a dict from component to tensor, found Tensor"),
        (lambda obs: {"obs": obs["obs"][:, 1:]}, r"component 'obs' of shape \(2, 4\), found one of shape \(2, 3\)"),
        (lambda obs: {"other": obs["obs"]}, "found the components"),
    ],
)
def test_a_first_observation_that_breaks_the_spec_is_named(shown, said, monkeypatch):
    env = make("cartpole", num_envs=2)
    collector = Collector(env, facts_of("ppo").build(_policy(env)).actor())
    reset = env.reset
    monkeypatch.setattr(env, "reset", lambda seed=None: shown(reset(seed)))
    with pytest.raises(ContractError, match=said):
        collector.ready()


ENVS = """
import gymnasium, numpy as np

class Base(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}

class Short(Base):
    def step(self, action):
        return super().step(action)[:4]

class Raises(Base):
    def step(self, action):
        raise ValueError("the simulator is gone")

class Wants(Base):
    def __init__(self, robot):
        self.robot = robot

class NanReward(Base):
    def step(self, action):
        return np.zeros(3, np.float32), float("nan"), True, False, {}
"""


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("Short", 1, "step wants to return (observation, reward, terminated, truncated, info), found 4 values"),
        ("Raises", 1, 'raise ValueError("the simulator is gone")'),
        ("Wants", 2, "missing a required argument: 'robot' (--env.settings.NAME VALUE gives one)"),
        ("NanReward", 1, "spoiled 20 episodes in a row, none can be counted: reward of env 0 was nan"),
    ],
)
def test_a_mistake_of_an_own_env_is_named_without_the_frames_of_the_library(
    name, code, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_envs.py").write_text(ENVS)
    monkeypatch.delitem(sys.modules, "broken_envs", raising=False)
    words = ["train", f"broken_envs:{name}", "--steps", "16", "--num-envs", "2", "--plan.num-steps-per-env", "8"]
    assert main([*words, "--logging.console", "off", "--algorithm.num-mini-batches", "1"]) == code
    found = capsys.readouterr().err
    assert said in found and "striderl/envs" not in found and "striderl/training" not in found
    assert ("nothing was saved yet" in found) == (code == 1)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("--stepps", "--steps"), ("--total_timesteps", "--steps"), ("--lr", "--algorithm.learning-rate")],
)
def test_flags_of_other_libraries_get_a_suggestion(typed, meant, capsys):
    assert main(["train", "cartpole", typed, "1"]) == 2
    assert f"there is no flag {typed.replace('_', '-')}. Did you mean {meant}?" in capsys.readouterr().err


def test_names_and_numbers_may_be_written_as_elsewhere():
    for typed, name in {"PPO": "ppo", "FastTD3": "fast_td3", "td3-bc": "td3_bc", "DiscreteSAC": "discrete_sac"}.items():
        assert ALGORITHMS.spelled(typed) == name
    usual = recipe("cartpole", "PPO")
    for words in (["--steps", "2e3"], ["--steps=2e3"], ["--plan.total_steps", "2_000"], ["--num_envs", "3"]):
        config = overridden(usual, words, prog="striderl train")
        assert (config.env.num_envs == 3) if "--num_envs" in words else (config.plan.total_steps == 2000)
    with pytest.raises(UsageError, match=r"--plan.total-steps wants a whole number, found '1.5'"):
        overridden(usual, ["--steps", "1.5"], prog="striderl train")
