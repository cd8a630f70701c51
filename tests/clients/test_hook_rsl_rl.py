"""rsl_rl's own runner with the learners of this library, and the numbers of both compared."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from point_env import PointEnv, config

pytest.importorskip("rsl_rl", reason="these tests run with `make test-clients`")

from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from tensordict import TensorDict

MODELS = ("mlp", "lstm", "gru", "cnn")


def point_env(model: str = "mlp", num_envs: int = 8) -> PointEnv:
    return PointEnv(num_envs, make=lambda groups, count: TensorDict(groups, batch_size=[count]), image=model == "cnn")


def runner_of(
    cfg: dict[str, Any], model: str = "mlp", log_dir: Any = None, *, theirs: bool = False, num_envs: int = 8
) -> OnPolicyRunner:
    cfg = copy.deepcopy(cfg)
    if theirs:
        cfg["algorithm"]["class_name"] = "PPO"
    return OnPolicyRunner(point_env(model, num_envs), cfg, None if log_dir is None else str(log_dir), "cpu")


@pytest.mark.parametrize("model", MODELS)
def test_one_string_trains_saves_exports_and_resumes(model, tmp_path, capsys):
    runner = runner_of(config(model), model, tmp_path)
    runner.learn(2)
    assert "Learning iteration 1/2" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["model_0.pt", "model_1.pt"]
    assert runner.env.num_resets == 0
    runner.export_policy_to_jit(str(tmp_path / "exported"), "policy.pt")
    runner.export_policy_to_onnx(str(tmp_path / "exported"), "policy.onnx")
    again = runner_of(config(model), model)
    again.load(str(tmp_path / "model_1.pt"))
    assert again.current_learning_iteration == 1
    for name, value in runner.alg.save()["actor_state_dict"].items():
        assert torch.equal(value, again.alg.save()["actor_state_dict"][name])
    again.learn(1)


@pytest.mark.parametrize("model", MODELS)
def test_checkpoints_go_both_ways(model, tmp_path):
    ours = runner_of(config(model), model, tmp_path)
    ours.learn(2)
    theirs = runner_of(config(model), model, theirs=True)
    theirs.load(str(tmp_path / "model_1.pt"))
    obs = point_env(model).get_observations()
    assert torch.allclose(acted(theirs, obs), acted(ours, obs), atol=1e-6)
    assert theirs.alg.learning_rate == pytest.approx(ours.alg.learning_rate)
    theirs.alg.train_mode()
    theirs.learn(2)
    theirs.save(str(tmp_path / "theirs.pt"))
    back = runner_of(config(model), model)
    back.load(str(tmp_path / "theirs.pt"))
    assert torch.allclose(acted(theirs, obs), acted(back, obs), atol=1e-6)
    saved, again = torch.load(tmp_path / "theirs.pt", weights_only=False), back.alg.save()
    for part in ("actor_state_dict", "critic_state_dict"):
        assert set(saved[part]) == set(again[part])
        for name, value in saved[part].items():
            assert torch.allclose(value.float(), again[part][name].float(), atol=1e-6), name
    for number, entry in saved["optimizer_state_dict"]["state"].items():
        for name, value in entry.items():
            assert torch.allclose(value, again["optimizer_state_dict"]["state"][number][name]), (number, name)


def acted(runner: OnPolicyRunner, obs: Any) -> torch.Tensor:
    policy = runner.get_inference_policy("cpu")
    policy.reset()
    with torch.no_grad():
        return policy(obs)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("max_grad_norm", [1.0, 0.05])
def test_the_update_is_that_of_rsl_rl(model, max_grad_norm, tmp_path, monkeypatch):
    # one minibatch: its order does not matter. Both see the same observations, actions, rewards and ends. rsl_rl
    # divides advantages by the std of a sample (N - 1), we by that of the population: 0.02 % with 2,048 samples.
    cfg = config(model, num_mini_batches=1, num_learning_epochs=3, max_grad_norm=max_grad_norm, learning_rate=3e-3)
    ours, theirs = (runner_of(cfg, model, theirs=each, num_envs=256) for each in (False, True))
    start = ours.alg.save()
    theirs.alg.load(start, None, True)
    env = ours.env
    env.episode_length_buf = torch.arange(env.num_envs) % 19  # time-outs inside the rollout
    obs = env.get_observations()
    for alg in (ours.alg, theirs.alg):
        alg.train_mode()
    for _ in range(cfg["num_steps_per_env"]):
        with torch.inference_mode():
            actions = ours.alg.act(obs)
            monkeypatch.setattr(theirs.alg.actor.distribution, "sample", lambda chosen=actions: chosen.clone())
            theirs.alg.act(obs)
            obs, rewards, dones, extras = env.step(actions)
            for alg in (ours.alg, theirs.alg):
                alg.process_env_step(obs, rewards, dones, extras)
    with torch.inference_mode():
        for alg in (ours.alg, theirs.alg):
            alg.compute_returns(obs)
    mine, other = ours.alg.update(), theirs.alg.update()
    assert set(mine) == set(other)
    for name, value in other.items():
        assert mine[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    assert ours.alg.learning_rate == pytest.approx(theirs.alg.learning_rate)
    found, expected = ours.alg.save(), theirs.alg.save()
    for part in ("actor_state_dict", "critic_state_dict"):
        for name, value in expected[part].items():
            assert torch.allclose(found[part][name].float(), value.float(), atol=1e-4), (part, name)
            assert not name.endswith("weight") or not torch.equal(value, start[part][name])


def test_novelty_symmetry_and_logs(tmp_path):
    rnd = {"weight": 0.5, "state_normalization": True, "reward_normalization": True, "num_outputs": 2}
    rnd |= {"predictor_hidden_dims": [8], "target_hidden_dims": [8]}
    mirror = {"use_data_augmentation": True, "use_mirror_loss": True, "mirror_loss_coeff": 0.1}
    mirror["data_augmentation_func"] = "point_env:mirrored"
    cfg = config(rnd_cfg=rnd, symmetry_cfg=mirror)
    cfg["obs_groups"]["rnd_state"] = ["policy"]
    runner = runner_of(cfg, log_dir=tmp_path)
    runner.learn(2)
    assert runner.alg.rnd.weight == pytest.approx(0.5 * 0.1) and runner.alg.intrinsic_rewards.shape == (8,)
    theirs = runner_of(cfg, theirs=True)
    theirs.load(str(tmp_path / "model_1.pt"))
    for name, value in theirs.alg.rnd.state_dict().items():
        assert torch.allclose(value.float(), runner.alg.save()["rnd_state_dict"][name].float(), atol=1e-6), name
    theirs.learn(1)
    theirs.save(str(tmp_path / "theirs.pt"))
    runner.load(str(tmp_path / "theirs.pt"))


@pytest.mark.parametrize("name", ["FastSAC", "FastTD3"])
def test_replay_learners_in_the_same_loop(name, tmp_path):
    cfg = config()
    cfg["algorithm"] = {**cfg["algorithm"], "class_name": f"striderl.rsl_rl:{name}", "learning_starts": 100}
    cfg["algorithm"] |= {"batch_size": 32, "num_updates": 1, "low": -50.0, "high": 5.0, "buffer_size": 4096}
    cfg["algorithm"] |= {"actor_hidden_dims": (16,), "critic_hidden_dims": (16,)}
    runner = runner_of(cfg, log_dir=tmp_path)
    runner.learn(3)
    assert runner.alg.num_updates == 8 * 2 and runner.alg.env_steps == 3 * 64
    again = runner_of(cfg)
    again.load(str(tmp_path / "model_2.pt"))
    obs = point_env().get_observations()
    assert torch.equal(acted(again, obs), acted(runner, obs)) and acted(again, obs).abs().max() <= 1.0
    runner.export_policy_to_onnx(str(tmp_path), "policy.onnx")
    runner.export_policy_to_jit(str(tmp_path), "policy.pt")
    again.alg.train_mode()
    again.learn(1)


def test_distillation(tmp_path):
    teacher = runner_of(config(), log_dir=tmp_path)
    teacher.learn(1)
    cfg = config()
    model = {"class_name": "MLPModel", "hidden_dims": [16, 16], "activation": "elu"}
    distribution = {"class_name": "GaussianDistribution", "init_std": 0.1}
    cfg = {name: cfg[name] for name in ("seed", "num_steps_per_env", "save_interval")}
    cfg |= {
        "obs_groups": {"student": ["critic"], "teacher": ["policy"]},
        "teacher": {**model, "distribution_cfg": distribution},
    }
    cfg["student"] = {**model, "distribution_cfg": dict(distribution)}
    cfg["algorithm"] = {"class_name": "striderl.rsl_rl:Distillation", "gradient_length": 4, "learning_rate": 1e-2}
    theirs_cfg = copy.deepcopy(cfg)
    theirs_cfg["algorithm"]["class_name"] = "Distillation"
    runner = DistillationRunner(point_env(), copy.deepcopy(cfg), str(tmp_path / "student"), "cpu")
    with pytest.raises(ValueError, match="not loaded"):
        runner.learn(1)
    runner.load(str(tmp_path / "model_0.pt"))
    obs = point_env().get_observations()
    losses = []
    update = runner.alg.update
    runner.alg.update = lambda: losses.append(update()) or losses[-1]
    runner.learn(12)
    assert losses[-1]["behavior"] < 0.5 * losses[0]["behavior"]
    theirs = DistillationRunner(point_env(), theirs_cfg, None, "cpu")
    theirs.load(str(tmp_path / "student" / "model_11.pt"))
    assert torch.allclose(acted(theirs, obs), acted(runner, obs), atol=1e-6)
    again = DistillationRunner(point_env(), copy.deepcopy(cfg), None, "cpu")
    again.load(str(tmp_path / "student" / "model_11.pt"))
    again.alg.train_mode()
    again.learn(1)
    theirs.save(str(tmp_path / "theirs.pt"))
    again.load(str(tmp_path / "theirs.pt"))


@pytest.mark.parametrize("model", MODELS)
def test_the_classes_of_the_facade_learn_the_same_weights(model):
    """`striderl.compat.rsl_rl` with the same seed: the same keys, the same weights, files that go both ways."""
    from striderl.compat.rsl_rl.runners import OnPolicyRunner as FacadeRunner

    cfg = config(model)
    cfg["algorithm"]["class_name"] = "PPO"
    runners = []
    for kind in (OnPolicyRunner, FacadeRunner):
        torch.manual_seed(3)
        runner = kind(point_env(model), copy.deepcopy(cfg), None, "cpu")
        runner.learn(3)
        runners.append(runner)
    theirs, ours = (runner.alg.save() for runner in runners)
    assert list(theirs) == list(ours)
    for part in ("actor_state_dict", "critic_state_dict"):
        assert list(theirs[part]) == list(ours[part])
        for name, value in theirs[part].items():
            torch.testing.assert_close(ours[part][name], value, atol=1e-5, rtol=1e-4)
    assert runners[0].alg.learning_rate == pytest.approx(runners[1].alg.learning_rate)
    runners[0].alg.load(ours, None, True)
    runners[1].alg.load(theirs, None, True)
