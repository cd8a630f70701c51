"""What a client of rsl_rl calls on a runner and finds in its log_dir."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import runner_configs
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "envs"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "clients"))
from point_env import PointEnv, config
from rsl_rl_fakes import GroupsFake, LeggedGymFake
from rsl_rl_loop import Groups, Loop

from striderl.checkpoint.errors import CheckpointCorrupt, FileRefused
from striderl.checkpoint.foreign import read_torch_archive
from striderl.data import tree
from striderl.envs.rsl_rl.env import RslRlEnv
from striderl.loggers.trackers import WandbLogger
from striderl.training import DistillationRunner, InferencePolicy, OnPolicyRunner, RunStudents
from striderl.training.experiment.config_json import ConfigError
from striderl.training.experiment.log_dir import read_agent_params
from striderl.training.rsl_rl.client_files import as_text, robot_facts
from striderl.training.rsl_rl.config_generations import read_train_config
from striderl.training.rsl_rl.reporting import make_writer

pytestmark = pytest.mark.filterwarnings("ignore:.*offers no seed:UserWarning")


def ours(model: str = "mlp", log_dir: Any = None, **changes: Any) -> OnPolicyRunner:
    env = PointEnv(make=lambda groups, count: Groups(groups), image=model == "cnn")
    cfg = {**config(model), "logger": "none", **changes}
    cfg["algorithm"] = {**cfg["algorithm"], "class_name": "PPO"}
    return OnPolicyRunner(env, cfg, log_dir, "cpu")


def loop_of(model: str = "mlp") -> Loop:
    return Loop(PointEnv(make=lambda groups, count: Groups(groups), image=model == "cnn"), config(model))


@pytest.mark.parametrize("model", ["mlp", "lstm", "cnn"])
def test_one_file_is_a_checkpoint_of_both(model, tmp_path):
    runner = ours(model, tmp_path)
    runner.learn(2)
    assert sorted(path.name for path in tmp_path.glob("model_*")) == ["model_0.pt", "model_1.pt"]
    theirs = torch.load(tmp_path / "model_1.pt", weights_only=False)
    assert theirs["iter"] == 1 and {"actor_state_dict", "critic_state_dict", "optimizer_state_dict"} <= set(theirs)
    assert "model_state_dict" not in theirs, "mjlab would take it for a file of rsl_rl 3"
    client = loop_of(model)
    client.load(tmp_path / "model_1.pt")
    obs = runner.env.get_observations()
    client.alg.eval_mode()
    assert torch.equal(client.alg.get_policy()(obs), runner.get_inference_policy()(obs))
    client.learn(1)
    client.save(tmp_path / "client.pt")
    again = ours(model)
    again.load(tmp_path / "client.pt")
    for name, value in client.alg.actor.state_dict().items():
        assert torch.equal(value, again.alg.actor.state_dict()[name])
    again.learn(1)


def test_a_resumed_file_is_exact_and_tensors_are_stored_once(tmp_path):
    one = ours(log_dir=tmp_path / "one")
    one.learn(2)
    one.env.place, one.env.episode_length_buf = torch.ones(8, 2), torch.zeros(8, dtype=torch.long)
    other = ours()
    assert other.load(tmp_path / "one" / "model_1.pt") is None
    assert tree.equal(one.trainer.state_dict()["algorithm"], other.trainer.state_dict()["algorithm"])
    assert other.current_learning_iteration == 2 and other.trainer.env_steps == one.trainer.env_steps
    content = read_torch_archive(tmp_path / "one" / "model_1.pt")
    weight = content["actor_state_dict"]["mlp.0.weight"]
    same = [
        value
        for name, value in content["striderl_run"]["tensors"].items()
        if name.endswith("actor_body.model.0.weight") and value.data_ptr() == weight.data_ptr()
    ]
    assert same, "the weights are in the file once"


def test_damage_is_detected_and_nothing_else_is_overwritten(tmp_path):
    runner = ours()
    runner.learn(1)
    path = tmp_path / "model_0.pt"
    path.touch()  # an empty file, as tempfile makes them
    runner.save(path)
    content = bytearray(path.read_bytes())
    weights = runner.alg.policy.actor_body.model[0].weight.detach().numpy().tobytes()
    place = bytes(content).index(weights)
    content[place + 8] ^= 0x40
    (tmp_path / "damaged.pt").write_bytes(bytes(content))
    with pytest.raises(CheckpointCorrupt, match="checksum"):
        ours().load(tmp_path / "damaged.pt")
    for name, made in (("thesis.pt", b"years of work"), ("folder.pt", None)):
        target = tmp_path / name
        target.mkdir() if made is None else target.write_bytes(made)
        with pytest.raises(FileRefused):
            runner.save(target)
        assert target.is_dir() if made is None else target.read_bytes() == made
    torch.save({"something": torch.ones(2)}, tmp_path / "other.pt")
    with pytest.raises(FileRefused, match="something"):
        runner.save(tmp_path / "other.pt")


def test_the_algorithm_has_rsl_rls_attributes():
    runner = ours()
    runner.learn(1)
    alg = runner.alg
    obs = runner.env.get_observations()
    assert alg.get_policy() is alg.actor and alg.critic(obs).shape == (8, 1)
    assert alg.learning_rate == pytest.approx(alg.optimizer.param_groups[0]["lr"])
    alg.learning_rate = 0.25
    assert float(alg.updater.groups["policy"].learning_rate) == 0.25
    assert runner.tot_timesteps == 64 and runner.tot_time > 0.0 and runner.cfg["num_steps_per_env"] == 8
    names = [name for name, _ in alg.actor.named_parameters()]
    assert names[:2] == ["distribution.std_param", "mlp.0.weight"] and len(names) == 7
    assert alg.actor.load_state_dict(alg.actor.state_dict()) is None and alg.rnd is None
    with pytest.raises(AttributeError, match="surely_not"):
        alg.surely_not  # noqa: B018
    with pytest.raises(ValueError, match="deterministically"):
        alg.actor(obs, stochastic_output=True)


def test_legged_gym_scripts_the_actor(tmp_path):
    runner = OnPolicyRunner(LeggedGymFake(num_envs=3), runner_configs.legged_gym(), tmp_path / "logs")
    runner.learn(1)
    actor_critic = runner.alg.actor_critic
    obs = runner.env.get_observations()
    scripted = torch.jit.script(actor_critic.actor)
    scripted.save(str(tmp_path / "policy_1.pt"))
    expected = actor_critic.act_inference(obs)
    assert torch.allclose(torch.jit.load(str(tmp_path / "policy_1.pt"))(obs), expected, atol=1e-6)
    assert actor_critic.std.shape == (2,) and not actor_critic.is_recurrent
    assert actor_critic.evaluate(runner.env.get_privileged_observations()).shape == (3, 1)
    runner.load(tmp_path / "logs" / f"model_{0}.pt")
    runner.export_policy_to_jit(tmp_path / "exported", filename="policy.pt")
    assert (tmp_path / "exported" / "policy.pt").is_file()


def test_it_prints_what_rsl_rl_prints(tmp_path, capsys):
    runner = ours(log_dir=tmp_path, run_name="first")
    runner.learn(3)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert f"\033[1m{' Learning iteration 2/3 '.center(80)}\033[0m" in lines
    labels = [line.partition(":")[0] for line in lines if ":" in line]
    wanted = ["Run name", "Total steps", "Steps per second", "Collection time", "Learning time", "Mean value loss"]
    wanted += ["Mean surrogate loss", "Mean entropy loss", "Mean reward", "Mean episode length", "Mean action std"]
    wanted += ["Episode_Reward/near", "Iteration time", "Time elapsed", "ETA"]
    assert labels[-len(wanted) :] == wanted
    assert "Total steps: 192" in lines


def test_the_tracker_gets_the_clients_names(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    cfg = read_train_config({**config(), "algorithm": {}, "logger": "wandb", "wandb_project": "mjlab", "run_name": "a"})
    logger = make_writer(cfg, tmp_path).logger
    assert isinstance(logger, WandbLogger)
    assert (logger.project, logger.run_name, logger.mode) == ("mjlab", "a", "online")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert make_writer(cfg, tmp_path).logger.mode == "offline"
    opened: dict[str, Any] = {}
    fake = SimpleNamespace(init=lambda **given: opened.update(given) or SimpleNamespace(log=lambda *a, **k: None))
    fake.Settings = lambda **given: given
    monkeypatch.setitem(sys.modules, "wandb", fake)
    logger.log(1, {"a": 1.0})
    assert (opened["project"], opened["entity"], opened["name"]) == ("mjlab", None, "a")
    assert opened["mode"] == "online"
    given = {"class_name": "rsl_rl.utils:WandbLogWriter", "project_name": "walk", "entity": "team"}
    cfg = read_train_config({**config(), "algorithm": {}, "logger": given})
    assert (cfg.logger, cfg.wandb_project, cfg.wandb_entity) == ("wandb", "walk", "team")


def test_a_tracker_that_keeps_files_gets_the_checkpoints(tmp_path):
    runner = ours(log_dir=tmp_path)
    assert runner.logger.logger_type is None
    runner.logger.save_model(tmp_path / "nothing.pt", 0)  # no tracker: nothing happens
    written: list[str] = []
    kept = ours(log_dir=tmp_path / "second", logger="tensorboard", registry_name=None)
    assert kept.logger.logger_type == "tensorboard"
    kept.logger.writer.file = lambda path: written.append(path.name)
    kept.save(tmp_path / "second" / "model_0.pt")
    assert written == []  # only W&B keeps files
    kept.close()


class JointPositionAction(SimpleNamespace):
    """An action term, recognised by the name of its class."""


class Mjlab(GroupsFake):
    """mjlab's managers as far as its metadata is read, recorded from 1.6.0."""

    def __init__(self) -> None:
        super().__init__(num_envs=3, acting_group="actor")
        joint = JointPositionAction(action_dim=2, _scale=torch.tensor([[0.5, 0.25]] * 3), _offset=torch.zeros(3, 2))
        joint._joint_names = ["hip", "knee"]
        data = SimpleNamespace(default_joint_pos=torch.tensor([[0.1, 0.2]] * 3))
        joint._entity = SimpleNamespace(joint_names=["hip", "knee"], data=data)
        term = SimpleNamespace(scale=None, clip=(-1.0, 1.0), flatten_history_dim=True, history_length=0)
        scaled = SimpleNamespace(scale=0.5, clip=None, flatten_history_dim=True, history_length=2)
        terms = {"velocity": term, "command": scaled}
        inner = self.managers = self.unwrapped
        inner.common_step_counter, inner.sim = 7, SimpleNamespace(mj_model=SimpleNamespace(nu=0))
        names = {"active_terms": ["joint_pos"], "get_term": lambda _: joint, "total_action_dim": 2}
        inner.action_manager = SimpleNamespace(**names)
        inner.command_manager = SimpleNamespace(active_terms=["twist"])
        inner.observation_manager = SimpleNamespace(
            active_terms={"actor": list(terms)}, get_term_cfg=lambda group, name: terms[name]
        )


def test_mjlabs_counter_and_metadata(tmp_path):
    env = Mjlab()
    facts = robot_facts(env, "local")
    assert facts is not None and facts["joint_names"] == ["hip", "knee"] and facts["action_scale"] == [0.5, 0.25]
    assert as_text(facts["observation_terms_clip"]) == "-1.000;1.000,-inf;inf"
    assert as_text(facts["observation_terms_scale"]) == "1.000,0.500" and facts["command_names"] == ["twist"]
    assert robot_facts(GroupsFake(), "local") is None
    runner = OnPolicyRunner(env, runner_configs.mjlab(), tmp_path / "run", "cpu", registry_name=None)
    runner.learn(1)
    onnx = pytest.importorskip("onnx")
    model = onnx.load(tmp_path / "run" / "run.onnx")
    found = {entry.key: entry.value for entry in model.metadata_props}
    assert found["observation_names"] == "velocity,command" and found["default_joint_pos"] == "0.100,0.200"
    env.managers.common_step_counter = 0
    infos = runner.load(tmp_path / "run" / "model_0.pt")
    assert infos == {"env_state": {"common_step_counter": 7}} and env.managers.common_step_counter == 7


def test_distillation_by_its_runner(tmp_path):
    teacher = ours(log_dir=tmp_path / "teacher")
    teacher.learn(1)
    model = {"class_name": "MLPModel", "hidden_dims": [16, 16], "activation": "elu"}
    model["distribution_cfg"] = {"class_name": "GaussianDistribution", "init_std": 0.1}
    cfg = {name: config()[name] for name in ("seed", "num_steps_per_env", "save_interval")}
    cfg |= {"student": dict(model), "teacher": dict(model), "logger": "none"}
    cfg |= {"obs_groups": {"student": ["critic"], "teacher": ["policy"]}}
    cfg["algorithm"] = {"class_name": "Distillation", "gradient_length": 4, "learning_rate": 1e-2, "loss_type": "huber"}
    env = PointEnv(make=lambda groups, count: Groups(groups))
    runner = DistillationRunner(env, cfg, tmp_path / "student", "cpu")
    with pytest.raises(ValueError, match=r"runner\.load"):
        runner.learn(1)
    runner.load(tmp_path / "teacher" / "model_0.pt")
    runner.learn(6)
    content = read_torch_archive(tmp_path / "student" / "model_5.pt")
    assert {"student_state_dict", "teacher_state_dict", "optimizer_state_dict"} <= set(content)
    again = DistillationRunner(PointEnv(make=lambda groups, count: Groups(groups)), cfg)
    again.load(tmp_path / "student" / "model_5.pt")
    assert again.alg.teacher_loaded
    again.learn(1)


def test_a_clients_folder_is_read_by_its_yaml(tmp_path):
    # params/agent.yaml as mjlab and Isaac Lab write it, beside rsl_rl's own file
    yaml = pytest.importorskip("yaml")
    client = loop_of()
    client.save(tmp_path / "model_4.pt")
    saved = torch.load(tmp_path / "model_4.pt", weights_only=False)
    torch.save({name: value for name, value in saved.items() if name != "striderl"}, tmp_path / "model_4.pt")
    cfg = {**config(), "algorithm": {"class_name": "PPO"}, "wandb_tags": ()}
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "agent.yaml").write_text(yaml.dump(cfg))
    assert "!!python/tuple" in (tmp_path / "params" / "agent.yaml").read_text()
    env = RslRlEnv(client.env)
    found = RunStudents(env)(tmp_path, "")
    assert found is not None and found.iteration == 4
    obs = client.env.get_observations()
    client.alg.eval_mode()
    expected = client.alg.get_policy()(obs)
    assert torch.allclose(InferencePolicy(found.policy)(obs), expected, atol=1e-6)
    laughs = "".join(f"{new}: &{new} [*{old}, *{old}]\n" for old, new in pairwise("abcdefghijklmnopqrstuvwx"))
    for text in ("a: " + "[" * 3000 + "]" * 3000, "a: &a [*a]", f"a: &a [1, 1]\n{laughs}"):
        (tmp_path / "params" / "agent.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"agent\.yaml"):
            read_agent_params(tmp_path)
    (tmp_path / "params" / "agent.yaml").write_text("a: &a [1]\nb: [*a, *a]")
    assert read_agent_params(tmp_path) == {"a": [1], "b": [[1], [1]]}
    (tmp_path / "params" / "agent.yaml").write_text("!!python/object/apply:os.system [echo]")
    with pytest.raises(ValueError, match=r"agent\.yaml"):
        read_agent_params(tmp_path)
