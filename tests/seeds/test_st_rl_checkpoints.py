"""Checkpoints and run folders of st_rl: weights by its names reach policies, teachers, mutexes and savers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import striderl.compat.st_rl as st_rl
import striderl.policies as policies
from striderl.checkpoint.foreign import read_rsl_rl
from striderl.envs.wrap_env import wrap_env
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.transfer.load import TransferError
from striderl.policies.transfer.rsl_rl_names import load_rsl_rl
from striderl.training import OnPolicyRunner, RunStudents, load_sub_policy

SEGMENTS = {"proprioception": (4,), "forward_depth": (1, 5, 6), "velocity": (2,)}
CRITIC_SEGMENTS = {**SEGMENTS, "friction": (3,)}
SIZES = (36, 39, 2)
NAMED: dict[str, Any] = {
    "obs_segments": SEGMENTS,
    "critic_obs_segments": CRITIC_SEGMENTS,
    "actor_hidden_dims": [8],
    "critic_hidden_dims": [8],
}
ENCODER: dict[str, Any] = {
    "encoder_component_names": ["forward_depth", "proprioception"],
    "encoder_class_name": ["Conv2dHeadModel", "MlpModel"],
    "encoder_kwargs": [{"channels": [2], "kernel_sizes": [3], "strides": [1]}, {"hidden_sizes": [9]}],
    "encoder_output_size": 7,
}
ESTIMATOR = {
    "estimator_obs_components": ["proprioception"],
    "estimator_target_components": ["velocity"],
    "estimator_kwargs": {"hidden_sizes": [8]},
}
RNN = {"rnn_hidden_size": 5, "rnn_type": "gru"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("ActorCritic", {}),
    "memory": ("ActorCriticRecurrent", RNN),
    "encoders": ("EncoderActorCritic", ENCODER),
    "shared encoders": ("EncoderActorCritic", {**ENCODER, "critic_encoder_component_names": "shared"}),
    "two sets of encoders": (
        "EncoderActorCritic",
        {**ENCODER, "critic_encoder_component_names": ["forward_depth", "proprioception"]},
    ),
    "estimator": ("StateAc", ESTIMATOR),
    "estimator with a memory": ("StateAcRecurrent", {**ESTIMATOR, **RNN}),
    "estimator on the actor's memory": ("StateAcRecurrent", {**ESTIMATOR, **RNN, "use_actor_rnn": True}),
    "all": ("EncoderStateAcRecurrent", {**ESTIMATOR, **ENCODER, **RNN}),
    "motions": ("AmpActorCritic", {"amp_discriminator": dict(input_dim=3, style_reward_coef=1.0, hidden_dims=[4])}),
}


def saved(name: str, path: Path) -> Any:
    kind, settings = KINDS[name]
    torch.manual_seed(1)
    model = getattr(st_rl, kind)(*SIZES, **NAMED, **settings)
    with torch.no_grad():
        model.std.mul_(0.5)
    torch.save({**st_rl.PPO(model).state_dict(), "iter": 100, "infos": None}, path)
    return model


@pytest.mark.parametrize("name", KINDS)
def test_weights_by_the_old_names_give_the_same_numbers_here(name: str, tmp_path: Path) -> None:
    model = saved(name, tmp_path / "model_100.pt")
    kind, settings = KINDS[name]
    ours = getattr(policies, kind)(*SIZES, **NAMED, **settings)
    load_rsl_rl(ours.policy, read_rsl_rl(tmp_path / "model_100.pt"))
    for _ in range(3):
        obs, critic_obs = torch.randn(4, 36), torch.randn(4, 39)
        torch.testing.assert_close(ours.act_inference(obs), model.act_inference(obs))
        torch.testing.assert_close(ours.evaluate(critic_obs), model.evaluate(critic_obs))
    model.act(obs)
    ours.act(obs)
    torch.testing.assert_close(ours.action_std, model.action_std)


def test_an_image_encoder_without_nonlinearity_is_not_loaded_into_one_with(tmp_path: Path) -> None:
    model = st_rl.VisualDeterministicAC(*SIZES, **NAMED, visual_latent_size=7)
    torch.save(st_rl.PPO(model).state_dict(), tmp_path / "model_1.pt")
    ours = policies.VisualDeterministicAC(*SIZES, **NAMED, visual_latent_size=7)
    with pytest.raises(ValueError, match=r"no nonlinearity.*striderl.compat.st_rl.VisualDeterministicAC"):
        load_rsl_rl(ours.policy, read_rsl_rl(tmp_path / "model_1.pt"))
    other = st_rl.VisualDeterministicAC(*SIZES, **NAMED, visual_latent_size=7)
    st_rl.load_policy(other, tmp_path / "model_1.pt")
    obs = torch.randn(4, 36)
    torch.testing.assert_close(other.act_inference(obs), model.act_inference(obs))


def test_weights_that_have_no_place_are_named(tmp_path: Path) -> None:
    saved("encoders", tmp_path / "model_1.pt")
    plain = policies.ActorCritic(*SIZES, **NAMED)
    with pytest.raises((ValueError, TransferError), match="encoders"):
        load_rsl_rl(plain.policy, read_rsl_rl(tmp_path / "model_1.pt"))


# -- run folders -------------------------------------------------------------------------------------------------------


def run_folder(folder: Path, name: str, number: int = 100, *, normalised: bool = False) -> Any:
    """Write a run folder as st_rl does: config.json and model_<number>.pt."""
    folder.mkdir(exist_ok=True)
    model = saved(name, folder / f"model_{number}.pt")
    kind, settings = KINDS[name]
    content = {
        "policy": {**NAMED, **settings},
        "runner": {"policy_class_name": kind},
        "control": {"action_scale": 0.25},
        "normalization": {"obs_scales": {"lin_vel": 2.0}},
    }
    (folder / "config.json").write_text(json.dumps(content))
    if normalised:
        state = torch.load(folder / f"model_{number}.pt", weights_only=True)
        norm = st_rl.EmpiricalNormalization(36)
        norm(torch.randn(50, 36) * 3.0 + 1.0)
        critic = st_rl.EmpiricalNormalization(39)
        critic(torch.randn(50, 39))
        state |= {"obs_norm_state_dict": norm.state_dict(), "critic_obs_norm_state_dict": critic.state_dict()}
        torch.save(state, folder / f"model_{number}.pt")
        return lambda obs: model.act_inference(norm.normalize(obs))
    return model.act_inference


@pytest.mark.described("st_rl", 1242, "A mutex builds its sub-policies from config.json and weights of run folders.")
@pytest.mark.described("st_rl", 1280, "The action scale of each sub-policy is taken from its run.")
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("name", ["plain", "encoders", "estimator"])
def test_a_mutex_reads_st_rls_run_folders(name: str, normalised: bool, tmp_path: Path) -> None:
    played = [run_folder(tmp_path / str(number), name, number, normalised=normalised) for number in (90, 100)]
    mutex = policies.ActorCriticMutex(
        *SIZES, KINDS[name][0], [tmp_path / "90", tmp_path / "100"], SEGMENTS, CRITIC_SEGMENTS, env_action_scale=0.25,
        last_action_component="proprioception", last_action_entries=(2, 4),
    )  # fmt: skip
    obs = torch.randn(3, 36)
    chosen = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    found = mutex.act_inference(obs, chosen)
    torch.testing.assert_close(found, torch.stack([played[which](obs)[row] for row, which in enumerate((0, 1, 1))]))


def test_one_list_may_hold_folders_of_both_libraries(tmp_path: Path) -> None:
    run_folder(tmp_path / "theirs", "plain")
    runner_folder(tmp_path / "ours")
    arguments = (*SIZES, "ActorCritic", [tmp_path / "theirs", tmp_path / "ours"], SEGMENTS, CRITIC_SEGMENTS)
    with pytest.raises(ValueError, match=r"load_sub_policy=striderl.training.load_sub_policy"):
        policies.ActorCriticMutex(*arguments, last_action_entries=(2, 4))
    mutex = policies.ActorCriticMutex(*arguments, last_action_entries=(2, 4), load_sub_policy=load_sub_policy)
    assert mutex.act_inference(torch.randn(3, 36), torch.eye(2)[[0, 1, 0]]).shape == (3, 2)


class SegmentedEnv:
    """An env with these segments."""

    num_envs, num_actions, num_obs, num_privileged_obs, device, max_episode_length = 3, 2, 36, 39, "cpu", 10
    obs_segments, privileged_obs_segments = SEGMENTS, CRITIC_SEGMENTS

    def __init__(self) -> None:
        self.episode_length_buf = torch.zeros(3, dtype=torch.long)

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_observations(self) -> Any:
        return torch.randn(3, 36)

    def get_privileged_observations(self) -> Any:
        return torch.randn(3, 39)

    def reset(self) -> Any:
        return self.get_observations(), self.get_privileged_observations()

    def step(self, actions: Any) -> Any:
        return *self.reset(), torch.zeros(3), torch.zeros(3, dtype=torch.bool), {}


def runner_folder(folder: Path) -> OnPolicyRunner:
    policy = {"class_name": "ActorCritic", "actor_hidden_dims": [8], "critic_hidden_dims": [8]}
    config = {
        "num_steps_per_env": 2,
        "save_interval": 1,
        "logger": "none",
        "seed": 1,
        "policy": policy,
        "algorithm": {},
    }
    runner = OnPolicyRunner(SegmentedEnv(), config, folder)
    runner.learn(1)
    return runner


@pytest.mark.described("st_rl", 2355, "build_training_policy reads config.json and builds the student.")
@pytest.mark.described("st_rl", 2366, "load_latest_training_policy loads the newest checkpoint.")
@pytest.mark.parametrize("name", ["plain", "all", "ours"])
def test_a_student_is_read_from_either_kind_of_folder(name: str, tmp_path: Path) -> None:
    env = wrap_env(SegmentedEnv(), device="cpu")
    reader = RunStudents(env)
    folder = tmp_path / "run"
    if name == "ours":
        played = runner_folder(folder).get_inference_policy()
    else:
        run_folder(folder, name, 9)
        played = run_folder(folder, name, 100)
    student = reader(folder, "")
    assert student is not None and (name == "ours" or student.iteration == 100) and reader(folder, student.name) is None
    obs = torch.randn(3, 36)
    found = StatefulPolicy(student.policy).act_inference(env.obs_spec.select(["policy"]).split(obs))
    torch.testing.assert_close(found, played(obs))


@pytest.mark.parametrize("name", ["plain", "all"])
def test_a_runner_loads_st_rls_file(name: str, tmp_path: Path) -> None:
    played = run_folder(tmp_path, name)
    kind, settings = KINDS[name]
    shown = {key: value for key, value in {**NAMED, **settings}.items() if not key.endswith("segments")}
    config = {"num_steps_per_env": 2, "save_interval": 0, "logger": "none", "policy": {"class_name": kind, **shown}}
    algorithm = {"class_name": "EstimatorPPO" if name == "all" else "PPO"}
    runner = OnPolicyRunner(SegmentedEnv(), {**config, "algorithm": algorithm})
    runner.load(tmp_path / "model_100.pt")
    obs = torch.randn(3, 36)
    torch.testing.assert_close(runner.get_inference_policy()(obs), played(obs))
    assert runner.current_learning_iteration == 100


@pytest.mark.parametrize("name", ["plain", "memory", "ours"])
def test_a_teacher_of_a_hand_written_loop_is_a_run_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    played = runner_folder(folder).get_inference_policy() if name == "ours" else run_folder(folder, name)
    sizes = {} if name == "ours" else {"num_actor_obs": 36, "num_critic_obs": 39, "num_actions": 2}
    alg = st_rl.TPPO(
        st_rl.ActorCritic(*SIZES),
        teacher_policy={"teacher_ac_path": str(folder), **sizes},
        label_action_with_critic_obs=False,
    )
    alg.init_storage(3, 2, [36], [39], [2])
    obs = torch.randn(3, 36)
    alg.act(obs, torch.randn(3, 39))
    torch.testing.assert_close(alg.transition.action_labels, played(obs).detach())
