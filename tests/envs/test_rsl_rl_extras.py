from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rsl_rl_fakes import (
    LeggedGymFake,
    PlaygroundFake,
)
from rsl_rl_reference import make, rollout, some_actions
from torch import Tensor

from striderl.data.specs import TensorSpec
from striderl.envs.rsl_rl.env import RslRlEnv
from striderl.envs.vec_env import ContractError

# -- what is handed on from extras -----------------------------------------------------------------------------------


def test_logs_of_all_kinds_become_numbers() -> None:
    fake = LeggedGymFake()
    env = RslRlEnv(fake)
    env.reset()

    def step(_: Tensor) -> Any:
        fake.extras["episode"] = {"a": 1, "both": 1.0, "text": "no", "nothing": None}
        fake.extras["log"] = {"both": torch.tensor(2.0), "vector": torch.tensor([1.0, 3.0]), "deep": {"in": True}}
        fake.extras["log"]["empty"] = torch.zeros(0)
        fake.extras["log"]["count"] = torch.tensor([[4]])
        return fake.simulator.obs, fake.simulator.privileged, fake.simulator.reward, fake.done_buffer, fake.extras

    fake.step = step  # type: ignore[method-assign]
    log = env.step(torch.zeros(3, 2)).info["log"]
    assert {name: float(value) for name, value in log.items()} == {
        "a": 1.0,
        "both": 2.0,
        "vector": 2.0,
        "deep/in": 1.0,
        "count": 4.0,
    }
    assert all(value.ndim == 0 for value in log.values() if isinstance(value, Tensor))
    fake.extras = {}
    fake.step = lambda _: (*step(_)[:4], None)  # type: ignore[method-assign]
    assert env.step(torch.zeros(3, 2)).info == {"log": {}}


def test_declared_info_keys_are_copied_and_checked() -> None:
    class Motion(LeggedGymFake):
        width = 5

        def step(self, actions: Tensor) -> Any:
            result = super().step(actions)
            self.extras["ref_motion"] = self.simulator.obs.new_ones(3, self.width)
            self.extras["observations"] = {"ref_obs": self.simulator.obs[:, :2]}
            return result

    keys = {"ref_motion": TensorSpec(shape=(5,)), "observations/ref_obs": TensorSpec(shape=(2,), dtype="float64")}
    fake = Motion()
    env = RslRlEnv(fake, info_keys=keys)
    assert env.info_spec == keys
    step = rollout(env, some_actions()[:1])[0]
    assert step.info["ref_motion"].shape == (3, 5)
    assert torch.equal(step.info["observations/ref_obs"], step.obs["obs"][:, :2].double())
    fake.width = 4
    with pytest.raises(
        ContractError, match=r"declared key 'ref_motion': wanted float32 \[3, 5\], found float32 \[3, 4\]"
    ):
        env.step(torch.zeros(3, 2))
    env = RslRlEnv(Motion(), info_keys={"ref_motoin": TensorSpec(shape=(5,))})
    with pytest.raises(ContractError, match="Did you mean 'ref_motion'"):
        rollout(env, some_actions()[:1])


# -- envs that are wrong ---------------------------------------------------------------------------------------------


def test_objects_that_are_no_rsl_rl_env_are_told_what_they_lack() -> None:
    with pytest.raises(
        ContractError, match=r"object is no rsl_rl env: it lacks step\(\), get_observations\(\), num_envs"
    ):
        RslRlEnv(object())
    almost = SimpleNamespace(step=lambda a: None, get_observations=lambda: None, num_envs=2)
    with pytest.raises(ContractError, match=r"it lacks num_actions\. Wrap it in its simulator's rsl_rl wrapper"):
        RslRlEnv(almost)
    almost.num_actions = 1
    with pytest.raises(ContractError, match=r"get_observations\(\): wanted a tensor .* found None"):
        RslRlEnv(almost)
    almost.get_observations = dict
    with pytest.raises(ContractError, match="wanted at least one tensor"):
        RslRlEnv(almost)
    almost.get_observations = lambda: torch.zeros(3, 4)
    with pytest.raises(ContractError, match=r"group 'policy': wanted a tensor \[2, …\], found float32 \[3, 4\]"):
        RslRlEnv(almost)
    almost.get_observations = lambda: {"policy": [1.0, 2.0]}
    with pytest.raises(ContractError, match=r"group 'policy': wanted a tensor \[2, …\], found a list of 2"):
        RslRlEnv(almost)
    with pytest.raises(ContractError, match="RslRlEnv is a VecEnv already"):
        RslRlEnv(RslRlEnv(LeggedGymFake()))


def spoiled(position: int, value: Any) -> RslRlEnv:
    """A v3 env whose step is right at first and then has another value in one place."""
    fake = make("v3")
    good = fake.step

    def step(actions: Tensor) -> Any:
        result = list(good(actions))
        if fake.simulator.episode.max() >= 1:
            result[position] = value(result[position]) if callable(value) else value
        return tuple(result)

    fake.step = step
    return RslRlEnv(fake)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (
            0,
            lambda obs: {**obs, "policy": obs["policy"][:, :3]},
            r"group 'policy': wanted float32 \[3, 4\].*found float32 \[3, 3\]",
        ),
        (
            0,
            lambda obs: {**obs, "critic": obs["critic"].double()},
            r"group 'critic': wanted float32.*found float64 \[3, 3\]",
        ),
        (0, lambda obs: {"policy": obs["policy"]}, r"group 'critic': wanted float32 \[3, 3\].*found None"),
        (1, lambda reward: reward[:2], r"reward: wanted numbers \[3\], found float32 \[2\]"),
        (1, lambda reward: reward > 0, r"reward: wanted numbers \[3\], found bool \[3\]"),
        (1, None, r"reward: wanted numbers \[3\], found None"),
        (2, lambda done: done[:, None].expand(3, 2), r"dones: wanted flags \[3\], found bool \[3, 2\]"),
        (2, [False, False, True], r"dones: wanted flags \[3\], found a list of 3"),
        (3, {"time_outs": True}, r"extras\['time_outs'\]: wanted flags \[3\], found a value of type bool"),
        (3, 7, r"extras: wanted a dict, found a value of type int"),
    ],
)
def test_a_wrong_step_names_the_field_and_the_step(position: int, value: Any, message: str) -> None:
    env = spoiled(position, value)
    env.reset()
    with pytest.raises(ContractError, match=rf"GroupsFake.*{message}.*\[in step 2 since construction\]"):
        for _ in range(9):
            env.step(torch.full((3, 2), 1.0))  # env 2 starts at 0.25 and falls with its third step, number 2


def test_gymnasiums_five_values_are_not_taken_for_the_first_generation() -> None:
    fake = make("v3")
    fake.step = lambda _: (fake.get_observations(), torch.zeros(3), torch.zeros(3), torch.zeros(3), {})
    with pytest.raises(ContractError, match=r"wanted \(obs, reward, dones, extras\).* a tuple of 5"):
        rollout(RslRlEnv(fake), some_actions()[:1])
    flat = LeggedGymFake(privileged=False)
    flags = torch.zeros(3, dtype=torch.bool)
    flat.step = lambda _: (flat.simulator.obs, torch.zeros(3), flags, flags, {})  # type: ignore[method-assign]
    with pytest.raises(ContractError, match=r"reward: wanted numbers \[3\], found bool \[3\]"):
        rollout(RslRlEnv(flat), some_actions()[:1])


@pytest.mark.parametrize("actions", [torch.zeros(3), torch.zeros(2, 2), torch.zeros(3, 3), {"legs": torch.zeros(3, 2)}])
def test_wrong_actions_are_refused(actions: Any) -> None:
    env = RslRlEnv(LeggedGymFake())
    env.reset()
    with pytest.raises(ContractError, match=r"actions: wanted float32 \[3, 2\], found"):
        env.step(actions)


def test_one_line_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="striderl.envs.rsl_rl.env"):
        RslRlEnv(PlaygroundFake())
    assert len(caplog.records) == 1
    line = caplog.records[0].getMessage()
    assert "PlaygroundFake speaks rsl_rl generation v3: 3 envs, 2 actions, groups state, privileged_state" in line
    assert "counted by the adapter" in line
