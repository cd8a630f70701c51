"""`striderl train mjlab:TASK` and the like, against recordings of each simulator's launch API.

None of these simulators is installed here. mjlab itself runs in `make test-clients`; Isaac Lab, legged_gym, Playground
and Genesis are fakes of the calls that their own training scripts make.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "training"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "envs"))
import runner_configs
from rsl_rl_fakes import GroupsFake, LeggedGymFake

import striderl
from striderl.algorithms.actor_critic.fast_td3 import fast_sac
from striderl.cli.main import main
from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.clients import load_configs, override, places
from striderl.envs.tasks import make

pytestmark = pytest.mark.filterwarnings("ignore:.*offers no seed:UserWarning")


@dataclass
class Scene:
    num_envs: int = 64


@dataclass
class EnvCfg:
    scene: Scene = field(default_factory=Scene)
    sim: Any = field(default_factory=lambda: SimpleNamespace(device="cuda"))
    gravity: float = -9.81
    episode_length: int = 6
    action_repeat: int = 1


class AgentCfg:
    """mjlab's and Isaac Lab's config of a runner, as far as these tests change it."""

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        self.settings = settings or runner_configs.mjlab()
        self.clip_actions, self.max_iterations, self.seed = None, 300, 42

    def to_dict(self) -> dict[str, Any]:
        return {**self.settings, "max_iterations": self.max_iterations, "seed": self.seed}


def modules(monkeypatch, **found: Any) -> None:
    """Install modules by name, with what they contain."""
    for name, content in found.items():
        module = ModuleType(name.replace("__", "."))
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def env_of(num_envs: int, acting: str = "actor") -> GroupsFake:
    return GroupsFake(num_envs=num_envs, acting_group=acting)


def mjlab(monkeypatch) -> str:
    registry = {
        "list_tasks": lambda: ["Mjlab-Fake"],
        "load_env_cfg": lambda task: EnvCfg(),
        "load_rl_cfg": lambda task: AgentCfg(),
    }
    envs = {"ManagerBasedRlEnv": lambda cfg, device, render_mode: cfg}
    wrapper = {"RslRlVecEnvWrapper": lambda cfg, clip_actions: env_of(cfg.scene.num_envs)}
    modules(monkeypatch, mjlab={}, mjlab__tasks={}, mjlab__tasks__registry=registry)
    modules(monkeypatch, mjlab__envs=envs, mjlab__rl=wrapper)
    return "mjlab:Mjlab-Fake"


def isaac_lab(monkeypatch) -> str:
    made = {"env_cfg_entry_point": EnvCfg, "rsl_rl_cfg_entry_point": AgentCfg}
    modules(monkeypatch, isaaclab={}, isaaclab__app={"AppLauncher": lambda headless, enable_cameras: object()})
    modules(monkeypatch, isaaclab_tasks={}, isaaclab_rl={})
    modules(monkeypatch, isaaclab_tasks__utils={"load_cfg_from_registry": lambda task, entry: made[entry]()})
    wrapper = {"RslRlVecEnvWrapper": lambda env, clip_actions: env_of(env.scene.num_envs)}
    modules(monkeypatch, isaaclab_rl__rsl_rl=wrapper)
    import gymnasium

    monkeypatch.setattr(gymnasium, "make", lambda task, cfg, render_mode: cfg)
    return "isaaclab:Isaac-Fake-v0"


def legged_gym(monkeypatch) -> str:
    class EnvConfig:
        class env:
            num_envs = 4096

    class TrainConfig:
        seed = 1
        runner_class_name = "OnPolicyRunner"

        class policy:
            actor_hidden_dims = [8, 8]
            critic_hidden_dims = [8, 8]
            activation = "elu"

        class algorithm:
            num_mini_batches = 2

        class runner:
            policy_class_name = "ActorCritic"
            algorithm_class_name = "PPO"
            num_steps_per_env = 4
            max_iterations = 1500

    def make_env(name, args, env_cfg):
        assert args == ["--task", "fake", "--headless", "--sim_device", "cpu", "--rl_device", "cpu"]
        return LeggedGymFake(num_envs=env_cfg.env.num_envs), env_cfg

    tools = SimpleNamespace(get_cfgs=lambda name: (EnvConfig(), TrainConfig()), make_env=make_env)
    modules(monkeypatch, isaacgym={}, legged_gym={}, legged_gym__envs={})
    modules(monkeypatch, legged_gym__utils={"task_registry": tools, "get_args": lambda: sys.argv[1:]})
    return "legged_gym:fake"


def playground(monkeypatch) -> str:
    registry = {"get_default_config": lambda task: EnvCfg(), "load": lambda task, config: config}
    wrapper = {"RSLRLBraxWrapper": lambda env, count, seed, length, repeat: env_of(count, "state")}
    modules(monkeypatch, mujoco_playground={}, mujoco_playground__registry=registry, mujoco_playground__config={})
    parameters = {"rsl_rl_config": lambda task: AgentCfg(settings=runner_configs.mjlab("state"))}
    modules(monkeypatch, mujoco_playground__config__locomotion_params=parameters)
    modules(monkeypatch, mujoco_playground__wrapper_torch=wrapper)
    return "playground:FakeJoystick"


def genesis(monkeypatch) -> str:
    class FakeEnv(GroupsFake):
        def __init__(self, num_envs, env_cfg, obs_cfg, reward_cfg, command_cfg):
            assert env_cfg["kp"] in (20.0, 30.0)
            super().__init__(num_envs=num_envs)

    content = {
        "FakeEnv": FakeEnv,
        "get_cfgs": lambda: ({"kp": 20.0}, {}, {}, {}),
        "get_train_cfg": lambda name, count: {**runner_configs.mjlab("policy"), "max_iterations": count},
    }
    modules(monkeypatch, fake_train=content)
    modules(monkeypatch, genesis={"_initialized": False, "init": lambda **_: None, "cpu": 0, "gpu": 1})
    return "genesis:fake_train"


CLIENTS = {each.__name__: each for each in (mjlab, isaac_lab, legged_gym, playground, genesis)}


@pytest.mark.parametrize("name", CLIENTS)
def test_train_resume_evaluate_and_export(name, monkeypatch, tmp_path, capsys):
    task = CLIENTS[name](monkeypatch)
    monkeypatch.chdir(tmp_path)
    flags = ["--num-envs", "4", "--max-iterations", "2", "--name", "first"]
    flags += ["--env.env_cfg.kp", "30"] if name == "genesis" else []
    assert main(["train", task, *flags]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "Learning iteration 1/2" in out and "ended after 2 iterations" in out and "report.html" in out
    folder = tmp_path / "runs" / task.replace(":", "-") / "first"
    assert (folder / "model_1.pt").is_file()
    content = json.loads((folder / "config.json").read_text())
    assert content["env"]["task"] == task and content["env"]["num_envs"] == 4
    assert main(["evaluate", str(folder), "--episodes", "2", "--num-envs", "2"]) == 0, capsys.readouterr().err
    assert main(["resume", str(folder), "--max-iterations", "3"]) == 0, capsys.readouterr().err
    assert (folder / "model_2.pt").is_file()
    assert main(["train", task, *flags]) == 2
    assert "is there already" in capsys.readouterr().err
    agent = striderl.load(folder)
    assert agent.run == folder


def test_the_clients_fields_are_flags(monkeypatch, tmp_path, capsys):
    task = mjlab(monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert main(["train", task, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--env.scene.num_envs 64" in out and "--agent.max_iterations 300" in out
    flags = [
        "--num-envs",
        "3",
        "--agent.max-iterations",
        "1",
        "--env.gravity",
        "-5",
        "--agent.settings.save_interval=7",
    ]
    assert main(["train", task, *flags, "--name", "second"]) == 0, capsys.readouterr().err
    content = json.loads((tmp_path / "runs" / "mjlab-Mjlab-Fake" / "second" / "config.json").read_text())
    assert content["env"]["settings"] == {"gravity": -5.0} and content["train_cfg"]["save_interval"] == 7
    for wrong, message in (
        (["--agent.max-iteration", "2"], "Did you mean 'max_iterations'"),
        (["--agent.max-iterations", "many"], "is a number like 300"),
        (["--sim.dt", "2"], "there is no flag --sim.dt"),
    ):
        assert main(["train", task, *wrong]) == 2
        assert message in capsys.readouterr().err
    assert main(["train", "mjlab:Mjlab-Fak"]) == 2
    assert "Did you mean 'Mjlab-Fake'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "num_envs", "shown"),
    [
        (["--device", "cuda"], 4096, "4096 envs, rollouts of 2 steps, 8 epochs"),  # the config has 4 steps
        (["--device", "cuda", "--num-envs", "128"], 128, ""),
        ([], 64, ""),
    ],
)
def test_mjlab_on_a_gpu_learns_more_often(words, num_envs, shown, monkeypatch, capsys):
    task, asked = mjlab(monkeypatch), []

    def make_nothing(name, *, num_envs, device, settings):
        asked.append(num_envs)
        raise ValueError("there is no such device here")

    monkeypatch.setattr("striderl.envs.tasks.make", make_nothing)
    assert main(["train", task, *words]) == 2
    assert asked == [num_envs]
    assert shown in capsys.readouterr().out


def test_an_absent_simulator_is_named(capsys):
    assert main(["train", "genesis:surely_not_there"]) == 2
    assert "wants the package 'genesis' installed" in capsys.readouterr().err


def test_another_algorithm_on_a_clients_task(monkeypatch, tmp_path, capsys):
    task = mjlab(monkeypatch)
    monkeypatch.chdir(tmp_path)
    words = ["train", task, "--algorithm", "ppo", "--num-envs", "2", "--steps", "64", "--plan.num-steps-per-env", "8"]
    words += ["--algorithm.num-mini-batches", "2"]
    assert main(words) == 0, capsys.readouterr().err


def test_places_and_overrides():
    cfg = EnvCfg()
    assert dict(places(cfg))["scene.num_envs"] == 64
    override(cfg, "scene.num-envs", "8", where="env")
    assert cfg.scene.num_envs == 8
    with pytest.raises(ValueError, match="whole number"):
        override(cfg, "scene.num_envs", "8.5", where="env")
    with pytest.raises(KeyError, match="scene"):
        override(cfg, "scen.num_envs", "8", where="env")


@pytest.mark.parametrize("acting", ["policy", "actor", "state"])
def test_group_names_of_all_generations_mean_the_same(acting):
    parts = {acting: ComponentSpec(shape=(3,), group=acting), "critic": ComponentSpec(shape=(2,), group="critic")}
    learner, _ = fast_sac(ObsSpec(parts), BoxSpec(shape=(2,), low=-1.0, high=1.0), num_envs=4)
    assert tuple(learner.policy.actor_inputs) == (acting,) and tuple(learner.critic.inputs) == (acting, "critic")
    both = fast_sac(
        ObsSpec(parts),
        BoxSpec(shape=(2,), low=-1.0, high=1.0),
        num_envs=4,
        actor_obs=("critic",),
        critic_obs=("critic",),
    )[0]
    assert tuple(both.policy.actor_inputs) == tuple(both.critic.inputs) == ("critic",)
    assert ObsSpec(parts).select(["actor"]).names == ObsSpec(parts).select(["policy"]).names == (acting,)


def test_made_by_name(monkeypatch):
    task = mjlab(monkeypatch)
    env = make(task, num_envs=3, settings={"scene.num_envs": 5})
    assert env.num_envs == 3 and env.made_as == (task, {"scene.num_envs": 5})
    assert make(task, num_envs=3, settings={"clip_actions": 2.0}).action_spec.high == 2.0
    assert torch.is_tensor(env.reset()["actor"]) and load_configs(task, {"gravity": -1.0}).env.gravity == -1.0
