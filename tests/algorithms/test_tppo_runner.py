"""TPPO and EstimatorTPPO from dict configs: teachers from objects, checkpoints, old files and run folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from teacher_cases import HiddenGoal, goal_teacher

from striderl.algorithms.on_policy.dagger import DAgger
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.on_policy.tppo import TPPOConfig
from striderl.algorithms.terms.distill import Distill
from striderl.collect.teacher import Teacher, TeacherRouter
from striderl.envs.classic_control import Pendulum
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.settings import PolicySettings
from striderl.recipes.table import recipe
from striderl.storage.rollout_presets import QueueRolloutStorage
from striderl.training.experiment.loading import load_run
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import EvaluationSettings, LoggingSettings
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.experiment.runner_config import RunnerConfig, TeacherSettings
from striderl.training.rsl_rl.live_objects import load_teacher
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner

SMALL = {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}
PPO_SETTINGS = {"num_learning_epochs": 1, "num_mini_batches": 2, "learning_rate": 1.0e-3}


def st_rl(algorithm: dict[str, Any], policy: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A config of st_rl: PPO's settings are nested in 'ppo'."""
    return {
        "num_steps_per_env": 4,
        "save_interval": 0,
        "logger": "none",
        "seed": 1,
        "policy": {
            "class_name": "ActorCriticRecurrent",
            "rnn_type": "gru",
            "rnn_hidden_size": 6,
            **SMALL,
            **(policy or {}),
        },
        "algorithm": {"ppo": dict(PPO_SETTINGS), **algorithm},
        **more,
    }


def teacher_of(runner: OnPolicyRunner) -> Teacher | TeacherRouter:
    return next(term for term in runner.alg.terms if isinstance(term, Distill)).teacher


def labels(runner: OnPolicyRunner) -> tuple[torch.Tensor, torch.Tensor]:
    """What the teacher said in the last rollout, and what a policy that does the same would have been told."""
    data = runner.storage.data
    return data["policy"]["distill"]["label"], data["obs"]


def trained_teacher(folder: Path, normalize: bool) -> Policy:
    """Train a privileged policy a little with the runner and save it."""
    config = st_rl({"class_name": "PPO"}, {"class_name": "ActorCritic", "rnn_type": None, "rnn_hidden_size": None})
    config |= {"obs_groups": {"actor": ["critic"], "critic": ["critic"]}, "empirical_normalization": normalize}
    runner = OnPolicyRunner(HiddenGoal(8), config)
    runner.learn(2)
    runner.save(folder / "model_2")
    return runner.alg.policy


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_teacher_from_a_runners_checkpoint(tmp_path, normalize, whole_folder):
    policy = trained_teacher(tmp_path, normalize)
    path = str(tmp_path if whole_folder else tmp_path / "model_2")
    settings = {"class_name": "ActorCritic", "teacher_ac_path": path, **SMALL}
    runner = OnPolicyRunner(HiddenGoal(8), st_rl({"class_name": "TPPO", "teacher_policy": settings}))
    runner.learn(1)
    found, obs = labels(runner)
    policy.eval()
    wanted, _, _ = policy.act({name: value.flatten(0, 1) for name, value in obs.items()}, {}, {})
    torch.testing.assert_close(found.flatten(0, 1), wanted.mode().detach())


def test_the_settings_of_st_rl_reach_their_places():
    algorithm = {
        "class_name": "TPPO",
        "teacher_policy": goal_teacher(),
        "label_action_with_critic_obs": True,
        "teacher_act_prob": "tanh",
        "update_times_scale": 10,
        "using_ppo": False,
        "distillation_loss_coef": "linear",
        "distill_target": "l1",
        "distill_latent_coef": 0.5,
        "distill_latent_target": "mse_sum",
        "distill_latent_obs_component_mapping": None,
        "buffer_dilation_ratio": 2.0,
        "lr_scheduler_class_name": "CosineAnnealingLR",
        "lr_scheduler": {"T_max": 10},
        "hidden_state_resample_prob": 0.1,
        "action_labels_from_sample": True,
    }
    runner = OnPolicyRunner(HiddenGoal(4), st_rl(algorithm))
    assert isinstance(runner.trainer.algorithm, DAgger) and isinstance(runner.storage, QueueRolloutStorage)
    assert runner.alg.config.lr_scheduler_class_name == "CosineAnnealingLR" and runner.alg.config.num_mini_batches == 2
    distill = next(term for term in runner.alg.terms if isinstance(term, Distill)).config
    assert (distill.target, distill.weight, distill.teacher_act_prob) == ("l1", "linear", "tanh")
    assert distill.update_times_scale == 10 and distill.action_labels_from_sample
    runner.learn(3)
    assert len(runner.storage.data["rew"]) == 8


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("teacher_act_probability", "Did you mean 'teacher_act_prob'"),
        ("bc_loss_coef", "bc_loss_coef"),
        ("dagger_loss_coef", "dagger_loss_coef"),
    ],
)
def test_unknown_settings_are_named(wrong, text):
    algorithm = {"class_name": "TPPO", "teacher_policy": goal_teacher(), wrong: 1.0}
    with pytest.raises((KeyError, ValueError), match=text):
        OnPolicyRunner(HiddenGoal(2), st_rl(algorithm))


def test_plain_ppo_takes_no_teacher():
    with pytest.raises((KeyError, ValueError), match="teacher_policy"):
        OnPolicyRunner(HiddenGoal(2), st_rl({"class_name": "PPO", "teacher_policy": {}}))


def test_a_teacher_without_weights_is_refused():
    with pytest.raises(ValueError, match="teacher_ac_path"):
        OnPolicyRunner(HiddenGoal(2), st_rl({"class_name": "TPPO", "teacher_policy": {"class_name": "ActorCritic"}}))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        settings = {"class_name": "ActorCritic", "teacher_ac_path": "nowhere"}
        OnPolicyRunner(HiddenGoal(2), st_rl({"class_name": "TPPO", "teacher_policy": settings}))


def test_parkours_keys_beside_the_teacher(tmp_path):
    trained_teacher(tmp_path, normalize=False)
    algorithm = {
        "class_name": "TPPO",
        "teacher_policy_class_name": "ActorCritic",
        "teacher_ac_path": str(tmp_path / "model_2"),
        "teacher_policy": dict(SMALL),
    }
    runner = OnPolicyRunner(HiddenGoal(4), st_rl(algorithm))
    assert isinstance(runner.trainer.algorithm, PPO) and isinstance(teacher_of(runner), Teacher)


def test_defect_26_an_old_file_brings_its_normaliser_along(tmp_path):
    # one layer: action = W (goal - mean) / (std + 0.01)
    weights = {"std": torch.ones(2), "actor.0.weight": 2.0 * torch.eye(2), "actor.0.bias": torch.zeros(2)}
    critic = {"critic.0.weight": torch.zeros(1, 2), "critic.0.bias": torch.zeros(1)}
    normalizer = {"_mean": torch.tensor([[0.5, 0.0]]), "_std": torch.tensor([[0.49, 1.99]]), "count": torch.tensor(10)}
    torch.save(
        {"model_state_dict": {**weights, **critic}, "obs_norm_state_dict": normalizer, "iter": 3, "infos": None},
        tmp_path / "model_3.pt",
    )
    settings = {"class_name": "ActorCritic", "actor_hidden_dims": [], "critic_hidden_dims": []}
    settings["teacher_ac_path"] = str(tmp_path / "model_3.pt")
    runner = OnPolicyRunner(HiddenGoal(4), st_rl({"class_name": "TPPO", "teacher_policy": settings}))
    runner.learn(1)
    found, obs = labels(runner)
    wanted = 2.0 * (obs["goal"] - torch.tensor([0.5, 0.0])) / torch.tensor([0.5, 2.0])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_schema_of_this_library_has_a_place_for_teachers():
    config = RunnerConfig(
        policy=PolicyConfig(actor_obs=("cue", "first"), actor_hidden_dims=(8,), critic_hidden_dims=(8,)),
        algorithm=PPOConfig(num_mini_batches=2),
        teacher=TeacherSettings(teacher=goal_teacher(), config=TPPOConfig(distill_target="mse_sum")),
        num_steps_per_env=4,
        logger="none",
    )
    runner = OnPolicyRunner(HiddenGoal(4), config)
    runner.learn(1)
    assert runner.alg.config.num_mini_batches == 2
    assert runner.trainer.record.metrics["train/distillation_loss"] > 0


def test_several_teachers_from_a_config():
    given = {"teachers": [goal_teacher(), goal_teacher()], "component": "first"}
    runner = OnPolicyRunner(HiddenGoal(4), st_rl({"class_name": "TPPO", "teacher_policy": given}))
    assert isinstance(teacher_of(runner), TeacherRouter)
    runner.learn(1)
    with pytest.raises(ValueError, match="component"):
        given = {"teachers": [goal_teacher(), goal_teacher()]}
        OnPolicyRunner(HiddenGoal(4), st_rl({"class_name": "TPPO", "teacher_policy": given}))


def pendulum_run(path: Path) -> Path:
    """A run of two iterations of PPO with a memory and a normaliser."""
    config = recipe("pendulum", "ppo")
    policy = PolicySettings(
        normalize_obs=True, kind="lstm", memory_size=8, actor_hidden_dims=(16,), critic_hidden_dims=(16,)
    )
    small = replace(
        config,
        env=replace(config.env, num_envs=4),
        policy=policy,
        algorithm=PPOConfig(num_mini_batches=2),
        plan=replace(config.plan, num_steps_per_env=8, total_steps=0, total_iterations=2, warmup_steps=0),
        evaluation=EvaluationSettings(every=5, num_episodes=2, num_envs=2),
        logging=LoggingSettings(console="off"),
        num_threads=1,
    )
    path.mkdir()
    folder = RunFolder(path)
    folder.write_config(small)
    Run(small, folder).drive()
    return path


@pytest.mark.slow
def test_a_teacher_from_the_folder_of_a_run(tmp_path):
    path = pendulum_run(tmp_path / "run")
    student = {"rnn_type": "gru", "rnn_hidden_size": 6}
    for settings in ({"teacher_ac_path": str(path)}, load_teacher(path, "last")):
        runner = OnPolicyRunner(Pendulum(3), st_rl({"class_name": "TPPO", "teacher_policy": settings}, student))
        runner.learn(1)
        found, obs = labels(runner)
        policy = load_run(path).policy
        wanted, _, _ = policy.act(obs, policy.initial_state(3), policy.settled(torch.zeros(4, 3)))
        torch.testing.assert_close(found, wanted.mode().detach())


@pytest.mark.slow
def test_a_runner_with_a_teacher_resumes_bit_for_bit(tmp_path):
    config = st_rl({"class_name": "TPPO", "teacher_policy": goal_teacher(), "teacher_act_prob": 0.5})
    whole, first, second = (OnPolicyRunner(HiddenGoal(4), config) for _ in range(3))
    whole.learn(4)
    first.learn(2)
    first.save(tmp_path / "model")
    second.load(tmp_path / "model")
    second.learn(2)
    for name, value in whole.alg.policy.state_dict().items():
        assert torch.equal(value, second.alg.policy.state_dict()[name]), name


@pytest.mark.parametrize("using_ppo", [True, False])
def test_an_estimator_student_from_a_config(using_ppo):
    policy = {
        "class_name": "StateAcRecurrent",
        "rnn_type": "gru",
        "rnn_hidden_size": 6,
        "estimator_obs_components": ["cue"],
        "estimator_target_components": ["first"],
        "estimator_kwargs": {"hidden_sizes": [4]},
    }
    algorithm = {"class_name": "EstimatorTPPO", "teacher_policy": goal_teacher(), "using_ppo": using_ppo}
    algorithm |= {"estimator_loss_func": "l1_loss"}
    runner = OnPolicyRunner(HiddenGoal(4), st_rl(algorithm, policy))
    assert {term.name for term in runner.alg.terms} == {"estimator_loss", "distill"}
    runner.learn(1)


def test_the_adaptor_of_a_privileged_policy_is_trained_too():
    policy = {
        "class_name": "PrivilegeStateAcRecurrent",
        "rnn_type": "gru",
        "rnn_hidden_size": 6,
        "estimator_obs_components": ["cue"],
        "estimator_target_components": ["first"],
        "estimator_kwargs": {"hidden_sizes": [4]},
        "adaptor_obs_components": ["cue", "first"],
        "adaptor_target_components": ["goal"],
        "adaptor_kwargs": {"hidden_sizes": [4]},
    }
    groups = {"obs_groups": {"actor": ["policy"], "critic": ["policy", "critic"]}}
    for algorithm, losses in (
        ({"class_name": "EstimatorPPO", "estimator_loss_func": "l1_loss"}, ["l1_loss", "l1_loss"]),
        ({"class_name": "EstimatorPPO", "adaptor_loss_func": "huber_loss"}, ["mse_loss", "huber_loss"]),
    ):
        runner = OnPolicyRunner(HiddenGoal(4), st_rl(algorithm, policy, **groups))
        assert [(term.name, term.loss) for term in runner.alg.terms] == list(
            zip(("estimator_loss", "adaptor_loss"), losses)
        )
        runner.learn(1)
        numbers = runner.trainer.record.metrics
        assert numbers["train/estimator_loss"] > 0 and numbers["train/adaptor_loss"] > 0
