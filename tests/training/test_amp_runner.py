"""`AmpPolicyRunner`: st_rl's configs and its usage example, corrected; experts from the env and from clips."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from striderl.algorithms.on_policy.ppo import PPOConfig
from striderl.algorithms.terms.distill import Distill
from striderl.algorithms.terms.expert import EnvExpert
from striderl.algorithms.terms.mimic import Mimic
from striderl.algorithms.terms.motion_prior import MotionPriorConfig
from striderl.collect.teacher import Teacher
from striderl.data import tree
from striderl.data.actions import BoxSpec
from striderl.data.specs import ObsSpec
from striderl.datasets.motion.amp_loader import AMPLoader
from striderl.datasets.motion.clip import ClipField, MotionClip
from striderl.envs.classic_control import Pendulum
from striderl.policies.policy import Policy, PolicyConfig
from striderl.training.experiment.runner_config import MotionSettings, PresetSettings, RunnerConfig
from striderl.training.rsl_rl.build import build_actor_critic, build_runner
from striderl.training.rsl_rl.on_policy_runner import AmpPolicyRunner, OnPolicyRunner

FIELDS, FRAMES = 3, 2


class StRlEnv:
    """An env as st_rl has them: extras['observations']['ref_obs'] is [N, frames, fields], extras['ref_motion'] [N, F].

    What happens follows from a counter, so that a test can tell what belongs to which step.
    """

    num_envs, num_actions, max_episode_length, device = 4, 2, 7, "cpu"

    def __init__(self) -> None:
        self.count = torch.arange(4.0)
        self.episode_length_buf = torch.arange(4)
        self.before = self.count.clone()

    def _extras(self) -> dict[str, Any]:
        frames = torch.stack([self.before, self.count], dim=1)
        ref_obs = frames.unsqueeze(-1) + 0.1 * torch.arange(FIELDS)
        return {"observations": {"critic": self._obs(), "ref_obs": ref_obs}}

    def _obs(self) -> torch.Tensor:
        return torch.stack([self.count.sin(), self.count.cos(), self.count], dim=1)

    def get_observations(self) -> tuple[torch.Tensor, dict[str, Any]]:
        return self._obs(), self._extras()

    def seed(self, seed: int) -> None:
        """Nothing here is random."""

    def reset(self) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.get_observations()

    def step(self, actions: torch.Tensor) -> tuple[Any, ...]:
        self.before, self.count = self.count, self.count + 1.0
        self.episode_length_buf = self.episode_length_buf + 1
        expert = torch.stack([self.before, self.count + 0.5], dim=1).unsqueeze(-1) + 0.1 * torch.arange(FIELDS)
        dones = self.episode_length_buf >= 7
        self.episode_length_buf = torch.where(dones, 0, self.episode_length_buf)
        self.count = torch.where(dones, 100.0, self.count)
        self.before = torch.where(dones, self.count, self.before)
        self.log = {"height": 0.3}
        extras = self._extras() | {"ref_motion": expert.flatten(1), "time_outs": dones, "log": self.log}
        return self._obs(), -actions.square().sum(-1), dones.long(), extras


def config(
    algorithm: dict[str, Any] | None = None, policy: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """A config of st_rl for adversarial motion priors."""
    return {
        "runner_class_name": "AmpPolicyRunner",
        "num_steps_per_env": 5,
        "save_interval": 0,
        "logger": "none",
        "seed": 1,
        "policy": {
            "class_name": "AmpActorCritic",
            "actor_hidden_dims": [8],
            "critic_hidden_dims": [8],
            "amp_discriminator": {
                "input_dim": FRAMES * FIELDS,
                "style_reward_coef": 2.0,
                "hidden_dims": [8],
                "task_reward_lerp": 0.25,
                "discriminator_grad_pen": 10.0,
            },
            **(policy or {}),
        },
        "algorithm": {
            "class_name": "APPO",
            "ppo": {"num_learning_epochs": 1, "num_mini_batches": 2, "learning_rate": 1e-3},
            "discriminator_loss_coef": 0.5,
            "amp_obs_dim": FRAMES * FIELDS,
            **(algorithm or {}),
        },
    }


def test_the_example_of_the_seed_corrected(tmp_path):
    # defect 33: the constructor takes (env, train_cfg, log_dir, device), and the algorithm is built from the config
    env = StRlEnv()
    runner = AmpPolicyRunner(env, config(), log_dir=tmp_path, device="cpu")
    runner.learn(num_learning_iterations=2)
    assert (runner.metrics_velrmsd, runner.metrics_CoT) == (None, None), "this env measures neither"
    assert (tmp_path / "model_1.pt").exists()
    prior = runner.prior
    assert (prior.config.task_weight, prior.config.style_weight) == (0.25, 1.5)
    assert (prior.config.gradient_penalty, prior.config.loss_weight) == (10.0, 0.5)
    assert (prior.config.components, prior.config.frames) == (("ref_obs",), 1)
    assert isinstance(prior.expert, EnvExpert) and prior.expert.size == 6
    assert not any("discriminator" in name for name in runner.alg.policy.state_dict())
    assert env.log == {"height": 0.3}, "defect 22: what the env gives is left as it is"
    metrics = runner.trainer.record.metrics
    names = ("loss", "accuracy", "expert_score", "policy_score", "gradient_penalty", "expert_loss", "policy_loss")
    assert {"train/style_reward", *(f"train/discriminator_{name}" for name in names)} <= set(metrics)


def test_motions_are_those_after_the_step_and_never_of_another_episode():
    runner = AmpPolicyRunner(StRlEnv(), config())
    runner.learn(1)
    storage, collector = runner.storage, runner.trainer.collector
    prepared = runner.alg.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
    labels = prepared.labels["motion_prior"]
    ended = storage.data["terminated"] | storage.data["truncated"]
    assert bool(ended.any()) and not bool((labels["known"] & ended).any())
    # the two frames of a window are one step apart; the expert, shown in the same step, is half a step ahead
    first, second = labels["rows"].unflatten(-1, (FRAMES, FIELDS))[labels["known"]].unbind(1)
    torch.testing.assert_close(second, first + 1.0)
    shown = prepared.info["ref_motion"][labels["known"]]
    torch.testing.assert_close(
        shown - labels["rows"][labels["known"]], torch.tensor([0.0] * 3 + [0.5] * 3).expand(len(shown), 6)
    )


@pytest.mark.slow
def test_a_runner_resumes_bit_for_bit(tmp_path):
    def clips_runner() -> AmpPolicyRunner:
        return AmpPolicyRunner(Pendulum(3), clip_config())

    whole, first, second = (clips_runner() for _ in range(3))
    whole.learn(4)
    first.learn(2)
    first.save(tmp_path / "model")
    second.load(tmp_path / "model")
    second.learn(2)
    one, two = whole.alg.state_dict(), second.alg.state_dict()
    for (path, mine), (_, theirs) in zip(tree.items(one), tree.items(two)):
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs, path


# -- clips -------------------------------------------------------------------------------------------------------------


def clip() -> MotionClip:
    values = {"obs": torch.linspace(-1.0, 1.0, 60).reshape(20, 3).numpy()}
    return MotionClip(name="wave", frame_duration=0.05, fields={"obs": ClipField(size=3)}, values=values)


def clip_config(**algorithm: Any) -> dict[str, Any]:
    given = config({"motion_files": [clip()], "motion_prior": {"components": ["obs"], "frames": 2}, **algorithm})
    given["algorithm"].pop("amp_obs_dim")
    return given


def test_clips_from_a_config():
    runner = build_runner("AmpPolicyRunner", Pendulum(3), clip_config(motion_loader={"num_preload_transitions": 50}))
    assert isinstance(runner, AmpPolicyRunner) and isinstance(runner.prior.expert, AMPLoader)
    loader = runner.prior.expert.config
    assert (loader.time_between_frames, loader.num_frames, loader.num_preload_transitions) == (0.05, 2, 50)
    runner.learn(1)
    assert runner.trainer.record.metrics["train/discriminator_loss"] > 0


@pytest.mark.slow
def test_the_schema_of_this_library_has_a_place_for_motions():
    prior = MotionPriorConfig(components=("obs",), hidden_dims=(8,), replay_size=16)
    settings = RunnerConfig(
        policy=PresetSettings(settings={"actor_hidden_dims": [8], "critic_hidden_dims": [8]}),
        algorithm=PPOConfig(num_mini_batches=2),
        motion=MotionSettings(expert=torch.randn(50, 6), prior=prior),
        num_steps_per_env=4,
        logger="none",
        seed=0,
    )
    runner = AmpPolicyRunner(Pendulum(3), settings)
    runner.learn(1)
    weights = [AmpPolicyRunner(Pendulum(3), replace(settings, seed=seed)).prior.judge.network for seed in (0, 0, 1)]
    first, same, other = ([p.flatten()[0].item() for p in network.parameters()] for network in weights)
    assert first == same != other, "the seed decides the discriminator's weights"


# -- other settings ----------------------------------------------------------------------------------------------------


def test_a_teacher_beside_the_expert():
    spec = ObsSpec.from_segments({"obs": 3})
    teacher = Teacher(Policy(spec, BoxSpec(shape=(2,)), PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=(4,))))
    algorithm = {"class_name": "ATPPO", "teacher_policy": teacher, "teacher_act_prob": 0.5}
    runner = AmpPolicyRunner(StRlEnv(), config(algorithm))
    runner.learn(1)
    assert any(isinstance(term, Distill) for term in runner.alg.terms)
    assert {"train/distillation_loss", "train/discriminator_loss"} <= set(runner.trainer.record.metrics)
    with pytest.raises(ValueError, match="using_ppo=False reads no reward"):
        AmpPolicyRunner(StRlEnv(), config({**algorithm, "using_ppo": False}))


def test_mimic_becomes_a_reward():
    runner = AmpPolicyRunner(StRlEnv(), config({"mimic_loss_coef": 0.2}))
    (mimic,) = (term for term in runner.alg.terms if isinstance(term, Mimic))
    assert (mimic.config.weight, mimic.config.kind, mimic.config.components) == (0.2, "distance", ("ref_obs",))
    runner.learn(1)
    # the last three of six numbers are 0.5 apart, at the ends too, which are paid like the step before
    assert runner.trainer.record.metrics["train/mimic_reward"] == pytest.approx(-0.2 * (3 * 0.25) ** 0.5, rel=1e-4)


def test_a_recurrent_policy_with_encoders():
    policy = {
        "class_name": "EncoderAmpActorCriticRecurrent",
        "rnn_type": "gru",
        "rnn_hidden_size": 4,
        "encoder_component_names": ["obs"],
        "encoder_kwargs": {"hidden_sizes": [4]},
        "encoder_output_size": 3,
    }
    runner = AmpPolicyRunner(StRlEnv(), config(policy=policy))
    runner.learn(1)
    assert runner.alg.policy.state_spec()


def test_a_policy_is_built_with_its_discriminator():
    model = build_actor_critic(StRlEnv(), "AmpActorCritic", config()["policy"])
    assert model.discriminator.input_dim == 6


def test_plain_ppo_says_that_the_discriminator_has_no_effect(caplog):
    given = config()
    given["algorithm"] = {"class_name": "PPO", "num_mini_batches": 2}
    given["runner_class_name"] = "OnPolicyRunner"
    OnPolicyRunner(StRlEnv(), given)
    assert "amp_discriminator has no effect" in caplog.text
    with pytest.raises(ValueError, match="learns from motions"):
        AmpPolicyRunner(StRlEnv(), given)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ({"discriminator_loss_coeff": 1.0}, "Did you mean 'discriminator_loss_coef'"),
        ({"dagger_loss_coef": 1.0}, "dagger_loss_coef"),
        ({"amp_obs_dim": 5}, "told differently"),
        ({"motion_prior": {"frames": 2}}, "give components and frames, or neither"),
        ({"motion_prior": {"lose": "bce"}}, "Did you mean 'loss'"),
        ({"expert": "somebody"}, "the expert is 'env'"),
        ({"expert": torch.zeros(3, 6), "motion_files": ["a.npz"]}, "keep one"),
    ],
)
def test_what_does_not_fit_is_said(algorithm, words):
    with pytest.raises((KeyError, ValueError, TypeError), match=words):
        AmpPolicyRunner(StRlEnv(), config(algorithm))
