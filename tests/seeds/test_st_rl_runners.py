"""st_rl's configs and runners: teachers as dicts, shared encoders, estimators, run folders."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

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


@pytest.mark.described("st_rl", 683, "teacher_policy defines the teacher's class and the path of its weights.")
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
