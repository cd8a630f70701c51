"""st_rl's configs and runners: teachers as dicts, shared encoders, estimators, run folders."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from torch import Tensor

import striderl.compat.st_rl as st_rl
from striderl.algorithms.terms.distill import Distill
from striderl.policies.encode import EncodeStage
from striderl.training import OnPolicyRunner

N, T = 4, 3
SMALL: dict[str, Any] = {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}


class SegmentedEnv:
    """An env of parkour's kind: flat vectors whose pieces have names."""

    num_envs, num_actions, num_obs, num_privileged_obs, device, max_episode_length = N, 2, 6, 8, "cpu", 10
    obs_segments = {"joints": (2,), "scan": (4,)}
    privileged_obs_segments = {"joints": (2,), "scan": (4,), "mass": (2,)}

    def __init__(self) -> None:
        self.episode_length_buf = torch.zeros(N, dtype=torch.long)

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_observations(self) -> Tensor:
        return torch.randn(N, 6)

    def get_privileged_observations(self) -> Tensor:
        return torch.randn(N, 8)

    def reset(self) -> tuple[Tensor, Tensor]:
        return self.get_observations(), self.get_privileged_observations()

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        obs, privileged = self.reset()
        return obs, privileged, torch.randn(N), torch.zeros(N, dtype=torch.bool), {}


def config(algorithm: dict[str, Any] | None = None, **policy: Any) -> dict[str, Any]:
    return {
        "num_steps_per_env": T,
        "save_interval": 0,
        "logger": "none",
        "seed": 1,
        "policy": {"class_name": "ActorCritic", **SMALL, **policy},
        "algorithm": {"class_name": "PPO", **(algorithm or {})},
    }


ENCODERS: dict[str, Any] = {
    "class_name": "EncoderActorCritic",
    "encoder_component_names": ["scan"],
    "encoder_kwargs": {"hidden_sizes": [8]},
    "encoder_output_size": 3,
}


@pytest.mark.parametrize("critic", ["shared", ["scan"]])
def test_the_critic_of_a_runner_has_encoders(critic: Any) -> None:
    runner = OnPolicyRunner(SegmentedEnv(), config(**ENCODERS, critic_encoder_component_names=critic))
    runner.learn(1)
    stages = [each for each in runner.alg.policy.modules() if isinstance(each, EncodeStage)]
    assert len(stages) == (1 if critic == "shared" else 2)
    if critic == "shared":
        assert set(stages[0].network_of) == {"scan", "critic/scan"}, "one network for both"


@pytest.mark.parametrize("use_actor_rnn", [False, True])
def test_a_runner_learns_an_estimator(use_actor_rnn: bool) -> None:
    policy = {
        "class_name": "StateAcRecurrent",
        "rnn_hidden_size": 5,
        "estimator_obs_components": ["joints"],
        "estimator_target_components": ["mass"],
        "estimator_kwargs": {"hidden_sizes": [8]},
        "use_actor_rnn": use_actor_rnn,
    }
    runner = OnPolicyRunner(SegmentedEnv(), config({"class_name": "EstimatorPPO"}, **policy))
    runner.learn(1)


# -- teachers ----------------------------------------------------------------------------------------------------------


def teacher_file(folder: Path, sizes: tuple[int, int, int]) -> Any:
    torch.manual_seed(4)
    model = st_rl.ActorCritic(*sizes, **SMALL)
    torch.save({**st_rl.PPO(model).state_dict(), "iter": 9}, folder / "model_9.pt")
    return model


def student(given: dict[str, Any], **beside: Any) -> OnPolicyRunner:
    algorithm = {"class_name": "TPPO", "teacher_policy": given, "teacher_act_prob": 0.0, **beside}
    return OnPolicyRunner(SegmentedEnv(), config(algorithm))


def label_of(runner: OnPolicyRunner) -> tuple[Tensor, Tensor]:
    runner.learn(1)
    data = runner.storage.data
    return data["policy"]["distill"]["label"], data["obs"]


SEEN: dict[str, tuple[dict[str, Any], list[str]]] = {
    "privileged": ({"num_actor_obs": 8, "num_critic_obs": 8}, ["critic/joints", "critic/scan", "mass"]),
    "the actor's": ({"num_actor_obs": 6, "num_critic_obs": 8, "num_actions": 2}, ["critic/joints", "critic/scan"]),
    "segments": (
        {
            "num_actor_obs": 6,
            "num_critic_obs": 8,
            "num_actions": 2,
            "obs_segments": {"scan": (4,), "mass": (2,)},
            "privileged_obs_segments": SegmentedEnv.privileged_obs_segments,
        },
        ["critic/scan", "mass"],
    ),
}


@pytest.mark.described("st_rl", 736, "teacher_policy defines the teacher's class and the path of its weights.")
@pytest.mark.parametrize("case", SEEN)
def test_a_teacher_dict_with_sizes_and_segments(case: str, tmp_path: Path) -> None:
    sizes, names = SEEN[case]
    model = teacher_file(tmp_path, (sizes["num_actor_obs"], 8, 2))
    given = {"class_name": "ActorCritic", "teacher_ac_path": str(tmp_path / "model_9.pt"), **SMALL, **sizes}
    labels, obs = label_of(student(given))
    seen = torch.cat([obs[name] for name in names], dim=-1)
    torch.testing.assert_close(labels, model.act_inference(seen).detach())


def test_both_class_names_are_accepted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    teacher_file(tmp_path, (8, 8, 2))
    given = {"class_name": "ActorCritic", "teacher_ac_path": str(tmp_path / "model_9.pt"), **SMALL}
    assert any(isinstance(term, Distill) for term in student(given, teacher_policy_class_name="ActorCritic").alg.terms)
    with caplog.at_level(logging.WARNING):
        student(given, teacher_policy_class_name="EncoderActorCritic", teacher_ac_path=given["teacher_ac_path"])
    assert "teacher_policy_class_name" in caplog.text
    with pytest.raises(ValueError, match="teacher_ac_path"):
        student(given, teacher_ac_path="elsewhere")


def test_sizes_that_do_not_fit_are_named(tmp_path: Path) -> None:
    teacher_file(tmp_path, (7, 8, 2))
    given = {"class_name": "ActorCritic", "teacher_ac_path": str(tmp_path / "model_9.pt"), **SMALL}
    with pytest.raises(ValueError, match=r"num_actor_obs=7.*8 and 6"):
        student({**given, "num_actor_obs": 7})
    with pytest.raises(ValueError, match=r"num_actions=3.*2"):
        student({**given, "num_actions": 3})
    with pytest.raises(KeyError, match=r"obs_segments.*'scam'"):
        student({**given, "obs_segments": {"scam": (4,)}})


# -- st_rl's own runners -----------------------------------------------------------------------------------------------


class MotionEnv(SegmentedEnv):
    """An env of st_rl's kind: extras with the critic's observation, motions, and metrics."""

    tracking_error, CoT = torch.tensor([3.0, 4.0, 3.0, 4.0]), torch.tensor([0.5, 1.5, 0.5, 1.5])

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def _extras(self) -> dict[str, Any]:
        return {"observations": {"critic": torch.randn(N, 8), "ref_obs": torch.randn(N, 3)}}

    def get_observations(self) -> Any:
        return torch.randn(N, 6), self._extras()

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        self.steps += 1
        dones = torch.full((N,), self.steps % 5 == 0)
        infos = {**self._extras(), "ref_motion": torch.randn(N, 3), "time_outs": dones, "log": {"up_max": self.steps}}
        return torch.randn(N, 6), torch.ones(N), dones, infos


AMP_CONFIG: dict[str, Any] = {
    "num_steps_per_env": T,
    "save_interval": 2,
    "logger": "none",
    "policy": {
        "class_name": "AmpActorCritic",
        **SMALL,
        "amp_discriminator": {"input_dim": 3, "style_reward_coef": 1.0, "hidden_dims": [8]},
    },
    "algorithm": {"class_name": "APPO", "num_learning_epochs": 2, "amp_obs_dim": 3},
}


@pytest.mark.described("st_rl", 2257, "The example builds env, algorithm and AmpPolicyRunner, and trains.")
@pytest.mark.described("st_rl", 2185, "learn collects rollouts, computes returns, updates, evaluates, logs and saves.")
def test_the_amp_example(tmp_path: Path) -> None:
    env = MotionEnv()
    algo = st_rl.APPO(AMP_CONFIG, env)
    runner = st_rl.AmpPolicyRunner(env, algo, device="cpu", log_dir=tmp_path)
    found = runner.learn(num_learning_iterations=5)
    assert found == (runner.metrics_velrmsd, runner.metrics_CoT)
    assert runner.metrics_velrmsd == pytest.approx(12.5**0.5) and runner.metrics_CoT == 1.0
    assert env.steps == 5 * T and runner.current_learning_iteration == 5
    assert {"Loss/total_loss", "Train/style_reward", "Train/task_reward", "Episode/up_max"} <= set(runner.logged)
    assert runner.logged["Episode/up_max"] == 5 * T and runner.logged["Train/mean_episode_length"] == 5.0
    assert (tmp_path / "model_5.pt").is_file()


@pytest.mark.described("st_rl", 2548, "OnPolicyRunner(env, train_cfg, log_dir, device) trains, saves and loads.")
@pytest.mark.described("st_rl", 2642, "load restores the iteration and optional optimizer states.")
@pytest.mark.described("st_rl", 2650, "get_inference_policy returns a policy function with normalisation.")
@pytest.mark.described("rsl_rl", 41, "A runner joins env, algorithm and module.")
@pytest.mark.described("rsl_rl", 43, "learn steps all envs, then updates; save, load and get_inference_policy.")
def test_the_runner_saves_one_file_and_loads_it(tmp_path: Path) -> None:
    cfg = {**AMP_CONFIG, "empirical_normalization": True}
    runner = st_rl.OnPolicyRunner(MotionEnv(), cfg, tmp_path)
    runner.learn(4, init_at_random_ep_len=True)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["model_2.pt", "model_4.pt"]
    assert torch.load(tmp_path / "model_4.pt", weights_only=True)["iter"] == 4
    runner.save(tmp_path / "mine.pt", infos={"note": 1})
    other = st_rl.OnPolicyRunner(MotionEnv(), cfg)
    assert other.load(tmp_path / "mine.pt") == {"note": 1} and other.current_learning_iteration == 4
    obs = torch.randn(N, 6)
    torch.testing.assert_close(other.get_inference_policy()(obs), runner.get_inference_policy()(obs))
    assert not other.alg.actor_critic.training
    count = int(other.alg.obs_normalizer.count)
    other.get_inference_policy()(obs)
    assert int(other.alg.obs_normalizer.count) == count > 0


def test_overrides_of_a_runner_and_a_users_algorithm_class_are_used() -> None:
    class Mine(st_rl.APPO):
        def compute_losses(self, minibatch: Any) -> Any:
            losses, inter_vars, stats = super().compute_losses(minibatch)
            return {**losses, "mine": self.actor_critic.action_mean.square().mean()}, inter_vars, stats

    class Scaled(st_rl.OnPolicyRunner):
        def rollout_step(self, obs: Tensor, critic_obs: Tensor, **kwargs: Any) -> Any:
            return super().rollout_step(0.0 * obs, critic_obs, **kwargs)

    runner = Scaled(MotionEnv(), {**AMP_CONFIG, "algorithm": {"class_name": Mine}})
    runner.learn(1)
    assert "Loss/mine" in runner.logged and isinstance(runner.alg, Mine)
    assert float(runner.alg.storage.observations.abs().sum()) == 0.0


class Trial:
    """An Optuna trial."""

    def __init__(self) -> None:
        self.reported: list[tuple[float, int]] = []

    def report(self, value: float, step: int) -> None:
        self.reported.append((value, step))

    def should_prune(self) -> bool:
        return len(self.reported) == 2


@pytest.mark.described("st_rl", 2142, "trial is a handle for hyperparameter tuning, to which metrics are reported.")
def test_a_trial_is_told_the_metric() -> None:
    trial = Trial()
    with pytest.raises(optuna.TrialPruned):
        st_rl.AmpPolicyRunner(MotionEnv(), AMP_CONFIG).learn(5, trial=trial)
    assert [step for _, step in trial.reported] == [1, 2], "pruned after the second"
    assert trial.reported[0][0] == pytest.approx(12.5**0.5)


@pytest.mark.described("st_rl", 2672, "TwoStageRunner learns from a dataset first, then in the env.")
@pytest.mark.described("st_rl", 2701, "rollout_step fetches recorded transitions while pretraining.")
def test_two_stages(tmp_path: Path) -> None:
    from striderl.recording import DemonstrationSaver

    class Recorded(MotionEnv):
        def step(self, actions: Tensor) -> tuple[Any, ...]:
            obs, rewards, dones, infos = super().step(actions)
            return obs, rewards, dones, {key: infos[key] for key in ("observations", "time_outs")}

        def _extras(self) -> dict[str, Any]:
            return {"observations": {"critic": torch.randn(N, 8)}}

    class Expert:
        def act(self, obs: Tensor) -> Tensor:
            return torch.ones(len(obs), 2)

        act_inference = act

        def reset(self, dones: Tensor) -> None: ...

    DemonstrationSaver(Recorded(), Expert(), tmp_path, 5, 20, 4).collect_and_save()
    cfg = {
        "num_steps_per_env": 5,
        "policy": {"class_name": "ActorCritic", **SMALL},
        "algorithm": {"class_name": "TPPO", "teacher_policy": st_rl.ActorCritic(8, 8, 2), "learning_rate": 1e-2},
        "pretrain_iterations": 3,
        "pretrain_dataset": {"data_dir": tmp_path, "dataset_loops": 0},
    }
    env = Recorded()
    runner = st_rl.TwoStageRunner(env, cfg)
    runner.learn(3)
    assert env.steps == 0 and torch.equal(runner.alg.storage.actions, torch.ones(5, N, 2)), "what was recorded"
    runner.learn(2)
    assert env.steps == 10
    with pytest.raises(ValueError, match="wants 'pretrain_dataset'"):
        st_rl.TwoStageRunner(env, {name: value for name, value in cfg.items() if name != "pretrain_dataset"})


@pytest.mark.described("st_rl", 557, "Style and task reward are logged separately.")
def test_training_runners_log_the_documents_keys() -> None:
    from striderl.training import AmpPolicyRunner

    runner = AmpPolicyRunner(MotionEnv(), {**AMP_CONFIG, "seed": 1})
    runner.learn(1)
    metrics = next(runner.trainer).metrics
    assert {"train/total_loss", "train/style_reward", "train/task_reward"} <= set(metrics)
    assert metrics["train/task_reward"] == pytest.approx(1.0), "the env's own"
    losses = {name: metrics[f"train/{name}"] for name in ("surrogate_loss", "value_loss")}
    entropy = runner.alg.config.entropy_coef * metrics["train/entropy"]
    prior = metrics["train/total_loss"] - (sum(losses.values()) - entropy)
    assert prior > 0.0, "the discriminator's part"
