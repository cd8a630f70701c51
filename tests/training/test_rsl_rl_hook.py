"""`class_name = "striderl.rsl_rl:PPO"`: the learners of this library in a recording of rsl_rl's own loop."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "clients"))
from point_env import PointEnv, config
from rsl_rl_loop import Groups, Loop

from free_ports import free_port
from striderl.checkpoint.foreign import read_torch_archive
from striderl.execution import background
from striderl.execution.background import FallbackError
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Override
from striderl.policies.transfer.load import TransferError
from striderl.policies.transfer.rsl_rl_state import NoCounterpartError, RslRlLayout
from striderl.training.experiment import assembly

MODELS = ("mlp", "lstm", "gru", "cnn")


def loop_of(cfg: dict[str, Any], model: str = "mlp", num_envs: int = 8) -> Loop:
    env = PointEnv(num_envs, make=lambda groups, count: Groups(groups), image=model == "cnn")
    return Loop(env, copy.deepcopy(cfg))


def acted(loop: Loop, obs: Any) -> torch.Tensor:
    loop.alg.eval_mode()
    policy = loop.alg.get_policy().to("cpu")
    policy.reset()
    return policy(obs)


@pytest.mark.parametrize("model", MODELS)
def test_a_client_trains_saves_and_resumes(model, tmp_path):
    loop = loop_of(config(model), model)
    before = [value.clone() for value in loop.alg.get_policy().parameters()]
    loop.learn(2)
    assert loop.env.num_resets == 0, "the client owns its env"
    assert set(loop.losses[0]) == {"value", "surrogate", "entropy"}
    assert all(isinstance(value, float) for value in loop.losses[-1].values())
    assert loop.rows[-1]["std"] == pytest.approx(0.8, abs=0.1)
    assert any(not torch.equal(old, new) for old, new in zip(before, loop.alg.get_policy().parameters()))
    loop.save(tmp_path / "model_1.pt")
    assert set(read_torch_archive(tmp_path / "model_1.pt")) == {
        *(f"{part}_state_dict" for part in ("actor", "critic", "optimizer")),
        *("striderl", "iter", "infos"),
    }
    again = loop_of(config(model), model)
    again.load(tmp_path / "model_1.pt")
    obs = loop.env.get_observations()
    assert torch.equal(acted(again, obs), acted(loop, obs)) and again.current_learning_iteration == 1
    assert again.alg.learning_rate == loop.alg.learning_rate
    again.learn(1)


def test_a_resumed_client_takes_the_steps_of_one_that_was_not_interrupted():
    # noise and env differ after a resume, the update does not: both learn from the same recorded rollout
    loop = loop_of(config())
    loop.learn(1)
    saved = loop.alg.save()
    again = loop_of(config())
    again.alg.load(saved, None, True)
    env = copy.deepcopy(loop.env)
    for each in (loop, again):
        each.env = copy.deepcopy(env)
    for each in (loop, again):
        each.alg.rollout.begin_anew(3)
        each.learn(1)
    mine, other = loop.alg.save(), again.alg.save()
    for name, value in mine["actor_state_dict"].items():
        assert torch.equal(value, other["actor_state_dict"][name]), name
    assert torch.equal(
        mine["optimizer_state_dict"]["state"][0]["exp_avg"], other["optimizer_state_dict"]["state"][0]["exp_avg"]
    )


def test_rsl_rls_own_file_is_loaded_with_its_optimiser():
    loop = loop_of(config(learning_rate=3e-4, schedule="fixed"))
    loop.learn(2)
    theirs = {name: value for name, value in loop.alg.save().items() if name != "striderl"}
    theirs["optimizer_state_dict"]["param_groups"][0]["lr"] = 7e-4
    again = loop_of(config(schedule="fixed"))
    assert again.alg.load(theirs, None, True)
    assert again.alg.learning_rate == pytest.approx(7e-4)
    mine = again.alg.optimizer.state_dict()
    for number, entry in theirs["optimizer_state_dict"]["state"].items():
        assert all(torch.equal(value, mine["state"][number][name]) for name, value in entry.items())
    assert len(mine["state"]) == len(mine["param_groups"][0]["params"]) == 13  # std, 3 + 3 layers of weight and bias


def test_parts_are_loaded_by_load_cfg_and_differences_are_named():
    one, other = loop_of(config()), loop_of({**config(), "seed": 9})
    critic = other.alg.critic.state_dict()
    assert not other.alg.load(one.alg.save(), {"actor": True}, True)
    obs = one.env.get_observations()
    assert torch.equal(acted(one, obs), acted(other, obs))
    assert all(torch.equal(value, other.alg.critic.state_dict()[name]) for name, value in critic.items())
    smaller = config()
    smaller["actor"]["hidden_dims"] = [16]
    with pytest.raises(TransferError, match=r"mlp\.4\.weight"):
        loop_of(smaller).alg.load(one.alg.save(), {"actor": True}, True)
    with pytest.raises(KeyError, match="load_cfg"):
        one.alg.load(one.alg.save(), {"actr": True}, True)


def test_groups_keep_rsl_rls_order_in_files_and_exports():
    cfg = config()
    cfg["obs_groups"] = {"actor": ["critic", "policy"], "critic": ["critic"]}  # the env gives policy first
    loop = loop_of(cfg)
    loop.learn(1)
    env, weights = loop.env, loop.alg.save()["actor_state_dict"]
    obs = env.get_observations()
    x = torch.cat([obs["critic"], obs["policy"]], dim=1)
    for number in (0, 2, 4):
        x = torch.nn.functional.linear(x, weights[f"mlp.{number}.weight"], weights[f"mlp.{number}.bias"])
        x = torch.nn.functional.elu(x) if number < 4 else x
    assert torch.allclose(x, acted(loop, obs), atol=1e-6)
    exported = loop.alg.get_policy().as_onnx(verbose=False)
    assert torch.allclose(exported(torch.cat([obs["critic"], obs["policy"]], dim=1)), x, atol=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_exports_act_like_the_policy(model):
    cfg = config(model)
    cfg["actor"]["obs_normalization"] = True
    loop = loop_of(cfg, model)
    loop.learn(1)
    obs = loop.env.get_observations()
    policy = loop.alg.get_policy()
    policy.reset()
    jit, onnx = torch.jit.script(policy.as_jit()), policy.as_onnx(verbose=False)
    assert onnx.output_names[0] == "actions" and len(onnx.get_dummy_inputs()) == len(onnx.input_names)
    memory = [torch.zeros(1, 8, 8) for _ in onnx.input_names[1:]]
    images = [obs["image"]] if model == "cnn" else []
    for _ in range(2):
        expected = policy(obs)
        scripted = jit(obs["policy"], images) if images else jit(obs["policy"])
        plain = onnx(obs["policy"], *(images or memory))
        plain, memory = (plain[0], list(plain[1:])) if isinstance(plain, tuple) else (plain, [])
        assert torch.allclose(scripted, expected, atol=1e-5) and torch.allclose(plain, expected, atol=1e-5)
    jit.reset()
    policy.reset()
    assert torch.allclose(jit(obs["policy"], images) if images else jit(obs["policy"]), policy(obs), atol=1e-5)


def test_an_observation_that_does_not_follow_begins_anew():
    loop = loop_of(config("gru"), "gru")
    loop.learn(1)
    loop.env.place = loop.env.place + 1.0  # the client has moved its envs
    moved = loop.env.get_observations()["policy"]
    loop.learn(1)
    assert torch.equal(loop.alg.storage.data["obs"]["policy"][0], moved)


@pytest.mark.parametrize("name", ["FastSAC", "FastTD3"])
def test_replay_learners_in_the_same_loop(name, tmp_path):
    cfg = config()
    cfg["algorithm"] |= {"class_name": f"striderl.rsl_rl:{name}", "learning_starts": 100, "batch_size": 32}
    cfg["algorithm"] |= {"num_updates": 1, "low": -50.0, "high": 5.0, "buffer_size": 4096, "action_bound": 0.5}
    cfg["algorithm"] |= {"actor_hidden_dims": (16,), "critic_hidden_dims": (16,)}
    loop = loop_of(cfg)
    loop.learn(3)
    assert loop.losses[0] == {} and {"actor", "critic"} <= set(loop.losses[2])
    assert loop.alg.num_updates == 16 and len(loop.alg.replay) == 3 * 64
    obs = loop.env.get_observations()
    loop.save(tmp_path / "model.pt")
    again = loop_of(cfg)
    again.load(tmp_path / "model.pt")
    assert torch.equal(acted(again, obs), acted(loop, obs)) and acted(loop, obs).abs().max() <= 0.5
    assert again.alg.env_steps == 3 * 64
    again.learn(1)
    with pytest.raises(KeyError, match="batchsize"):
        loop_of({**cfg, "algorithm": {**cfg["algorithm"], "batchsize": 3}})


def test_execution_settings_of_the_algorithm():
    loop = loop_of(config(execution={"mode": "eager", "strict": True}))
    assert type(loop.alg.updater.mode).__name__ == "Eager"
    with pytest.raises(FallbackError, match="CUDA graphs"):
        loop_of(config(execution={"mode": "graphed", "strict": True}))


def test_a_policy_without_a_counterpart_is_refused_by_name():
    from striderl.data.actions import BoxSpec
    from striderl.data.specs import ObsSpec

    spec = ObsSpec.from_segments({"command": 3, "joints": 4})
    override = Override(component="command", values=(1.0, 0.0, 0.0))
    policy = Policy(spec, BoxSpec(shape=(2,)), PolicyConfig(actor=(NormalizeObs(), override)))
    with pytest.raises(NoCounterpartError, match="Override"):
        RslRlLayout(policy)


@pytest.mark.slow
def test_the_hook_imports_neither_rsl_rl_nor_tensordict():
    program = "import sys, striderl.rsl_rl; assert not {'rsl_rl', 'tensordict'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


RANK_PROGRAM = """
import os, sys, torch
sys.path[:0] = sys.argv[2:]
import torch.distributed as dist
from point_env import PointEnv, config
from rsl_rl_loop import Groups, Loop

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")  # rsl_rl's runner does this
cfg = {**config(), "seed": 5 + rank}
loop = Loop(PointEnv(make=lambda groups, count: Groups(groups)), cfg, multi_gpu={"global_rank": rank, "world_size": 2})
loop.env.place = loop.env.place + rank
loop.learn(2)
loop.alg.reduce_parameters()
torch.save(loop.alg.actor.state_dict(), f"{sys.argv[1]}/{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_several_processes_share_parameters(tmp_path):
    here = Path(__file__).resolve().parent
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", RANK_PROGRAM, str(tmp_path), str(here), str(here.parent / "clients")]
    processes = [
        subprocess.Popen(words, env={**os.environ, **where, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors
    one, other = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


class NoCompiler:
    """Stands in for the process that compiles, on a machine without a compiler; what it would compile is counted."""

    alive = True
    num_graphs = 0

    def compile(self, graph: Any, inputs: Any, path: Path) -> Path:
        NoCompiler.num_graphs += 1
        error = path.with_suffix(f".{NoCompiler.num_graphs}.error")
        error.write_text("no working C++ compiler")
        return error

    def close(self) -> None:
        pass


@pytest.mark.parametrize("name", ["PPO", "FastSAC"])
def test_a_client_on_the_cpu_has_its_functions_compiled_where_it_trains_long(name, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(assembly, "switch_iteration", lambda *sizes: 3)
    monkeypatch.setattr(background, "CompileWorker", NoCompiler)
    monkeypatch.setattr(NoCompiler, "num_graphs", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def learned(max_iterations: int) -> tuple[Any, list[torch.Tensor]]:
        cfg = config()
        if name == "FastSAC":
            small = {"actor_hidden_dims": (16,), "critic_hidden_dims": (16,), "batch_size": 16, "learning_starts": 0}
            cfg["algorithm"] = {"class_name": "striderl.rsl_rl:FastSAC", "num_updates": 1, "low": -9.0, **small}
        loop = loop_of({**cfg, "max_iterations": max_iterations})
        loop.learn(6)
        return loop.alg, [each.detach().clone() for each in loop.alg.get_policy().parameters()]

    short, wanted = learned(8)
    assert not short.switch.keys and not NoCompiler.num_graphs and not short.switch.on
    long, found = learned(9)  # three times the iterations before the switch
    assert long.switch.on and len(long.switch.keys) == NoCompiler.num_graphs >= 2  # acting, and losses
    assert caplog.text.count("no working C++ compiler") == NoCompiler.num_graphs
    assert all(torch.equal(*each) for each in zip(found, wanted))
