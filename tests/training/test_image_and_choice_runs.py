"""Images and discrete observations in whole runs: train, save, resume, load and export; on-policy and from replay."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from run_cases import folder_at, tiny

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data import tree
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.policies.actor_policy import ActorConfig
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.settings import PolicySettings
from striderl.training.evaluation import evaluate
from striderl.training.experiment.loading import load_run
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import CONFIG_FILE
from striderl.training.experiment.seal import SEAL_FILE
from striderl.training.plans import OffPolicyPlan, OnPolicyPlan
from striderl.training.trainer import Trainer


class CornerEnv(gymnasium.Env[Any, Any]):
    """One of two corners of a picture is bright; naming it pays 1. An episode is four pictures."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.corner)
        self.steps += 1
        return self._picture(), reward, False, self.steps == 4, {}

    def _picture(self) -> Any:
        self.corner = int(self.np_random.integers(2))
        picture = np.zeros((8, 8, 1), np.uint8)
        picture[:3, :3] = 255 * (1 - self.corner)
        picture[5:, 5:] = 255 * self.corner
        return picture


class ChainEnv(gymnasium.Env[Any, Any]):
    """Three states in a row; the outer two want choice 1, the middle one choice 0: no line through the number fits."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.state = 0, 0
        return np.int64(self.state), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == (self.state != 1))
        self.steps, self.state = self.steps + 1, (self.state + 1) % 3
        return np.int64(self.state), reward, False, self.steps == 6, {}


class WalkEnv(ChainEnv):
    """The chain with real-valued actions."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return super().step(bool(action[0] > 0.0))


for name, kind in (("Corner", CornerEnv), ("Chain", ChainEnv), ("Walk", WalkEnv)):
    gymnasium.register(f"striderl-test/{name}-v0", entry_point=kind)

LINEAR = {"actor_hidden_dims": (), "critic_hidden_dims": ()}


def learned_return(env: GymnasiumEnv, policy: Any, trainer: Trainer) -> float:
    for _ in trainer:
        pass
    return evaluate(env, GreedyActor(policy), 10, seed=3).mean


def ppo_return(build: Any, iterations: int, **settings: Any) -> float:
    env = GymnasiumEnv(build, 8)
    torch.manual_seed(0)
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(**settings))
    algorithm = PPO(policy, PPOConfig(num_learning_epochs=4, num_mini_batches=2, learning_rate=3e-3, gamma=0.5))
    collector = Collector(env, algorithm.actor(), CollectorConfig(seed=0))
    plan = OnPolicyPlan(num_steps_per_env=16, total_iterations=iterations)
    return learned_return(GymnasiumEnv(build, 2), policy, Trainer(algorithm, collector, plan))


@pytest.mark.slow
def test_a_linear_policy_solves_the_chain_with_one_hot_alone():
    # six steps, one reward each; a line through 0, 1, 2 gets at most two of three states right
    assert ppo_return(ChainEnv, 30, **LINEAR) == 6.0
    assert ppo_return(ChainEnv, 30, **LINEAR, one_hot=False) <= 4.0


@pytest.mark.slow
def test_a_cnn_reads_the_corner():
    assert ppo_return(CornerEnv, 10, **LINEAR) == 4.0


@pytest.mark.slow
def test_dqn_learns_the_chain():
    env = GymnasiumEnv(ChainEnv, 2)
    torch.manual_seed(0)
    policy = q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=()))
    algorithm = DQN(policy, DQNConfig(learning_rate=1e-2, gamma=0.5, target_every=10))
    plan = OffPolicyPlan(num_steps_per_env=4, batch_size=32, learning_starts=32, buffer_size=400, total_iterations=70)
    collector = Collector(env, algorithm.actor(), CollectorConfig(seed=0))
    trainer = Trainer(algorithm, collector, plan)
    assert learned_return(GymnasiumEnv(ChainEnv, 1), policy, trainer) == 6.0


# -- runs --------------------------------------------------------------------------------------------------------------


def case(kind: str, task: str, iterations: int) -> Any:
    config = tiny(kind, iterations)
    changes: dict[str, Any] = {"env": replace(config.env, task=f"gymnasium:striderl-test/{task}-v0", settings={})}
    if kind == "sac":
        changes["policy"] = replace(config.policy, normalize_obs=True)
    return replace(config, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "task"), [("gymnasium", "Corner"), ("gymnasium", "Chain"), ("dqn", "Corner"), ("sac", "Walk")]
)
def test_a_run_is_saved_resumed_loaded_and_exported(kind, task, tmp_path):
    from striderl.cli.export import export_loaded

    config = case(kind, task, 6)
    folder = folder_at(tmp_path / "run", config)
    assert Run(config, folder).drive().exit_code == 0
    longer = replace(config, plan=replace(config.plan, total_iterations=8))
    run = Run(longer, folder)
    assert run.restore()
    before = tree.copy(dict(run.learner.policy.state_dict()))
    assert any("conv" in name for name in before) == (task == "Corner")
    assert run.drive().exit_code == 0
    assert any(not torch.equal(before[name], value) for name, value in run.learner.policy.state_dict().items())
    loaded = load_run(folder.path, "last")
    kinds = [type(stage).__name__ for _, stage in loaded.policy.actor.named_stages()]
    assert kinds == (["EncodeStage"] if task == "Corner" else ["OneHotStage"])
    bundle = export_loaded(loaded, tmp_path / "bundle", formats=("torch",), overwrite=False)
    (observation,) = bundle.metadata["observations"]
    assert observation["dtype"] == ("uint8" if task == "Corner" else "int64")
    assert observation.get("num_choices") == (None if task == "Corner" else [3])
    assert max(bundle.parity["torch"].values()) <= 1e-5


@pytest.mark.slow
def test_the_command_line_shows_what_is_done_by_default(tmp_path, caplog):
    from striderl.cli.main import main

    words = "--plan.total-steps 0 --plan.total-iterations 1 --plan.num-steps-per-env 8 --evaluation.every 0"
    words += " --evaluation.at-end False --logging.console off --runs"
    assert main(["train", "gymnasium:striderl-test/Corner-v0", *words.split(), str(tmp_path)]) == 0
    lines = [record.getMessage() for record in caplog.records if "is encoded by a CNN" in record.getMessage()]
    assert len(lines) == 1 and "flatten_images=True" in lines[0]


def test_a_run_of_an_older_version_keeps_its_layers(tmp_path):
    # its config.json does not have the settings yet: then images were flattened and choices were numbers
    config = case("gymnasium", "Corner", 2)
    folder = folder_at(tmp_path / "run", config)
    plain = json.loads((folder.path / CONFIG_FILE).read_text())
    assert plain["policy"].pop("flatten_images") is False and plain["policy"].pop("one_hot") is True
    del plain["schema"]
    (folder.path / CONFIG_FILE).write_text(json.dumps(plain))
    (folder.path / SEAL_FILE).unlink()  # nothing was sealed then
    from striderl.training.experiment.run_config import read_run_config

    old = read_run_config(folder.path)
    assert old.policy.flatten_images and not old.policy.one_hot
    assert Run(old, folder).drive().exit_code == 0
    assert not load_run(folder.path, "last").policy.actor.stages
    assert PolicySettings() == PolicySettings(flatten_images=False, one_hot=True)


def test_an_agent_plays_a_discrete_observation_and_a_picture():
    from striderl.training.agent import Agent

    for build in (ChainEnv, CornerEnv):
        env = GymnasiumEnv(build, 2)
        agent = Agent(Policy(env.obs_spec, env.action_spec, PolicyConfig(**LINEAR)))
        single = build()
        obs, _ = single.reset(seed=0)
        assert int(agent.predict(obs)) in (0, 1)
        agent.reset()
        assert agent.predict(np.stack([obs, obs])).shape == (2,)
