"""Bad envs, wrong calls and wrong constructions: each gets an error that names what is wrong (promise 20)."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from chain_reference import chain_builders
from faulty_envs import ChainEnv, HostileEnv, NestedEnv

from striderl.data.specs import TensorSpec
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.vec_env import ContractError
from striderl.envs.workers.errors import EnvCloseWarning, EnvRaised
from striderl.envs.workers.pool import WorkerConfig

HOSTILE = [
    ("observation", np.zeros(3, np.float32), r"env 1.*'obs'.*float32 of shape \(2,\).*found float32 of shape \(3,\)"),
    ("observation", np.zeros(2, np.float64), r"'obs'.*so far given as float32.*found float64"),
    ("observation", np.array(["a", "b"]), r"'obs'.*found <U1"),
    ("observation", [[0.0], [0.0, 1.0]], r"'obs'.*without a shape"),
    ("observation", None, r"'obs'.*found object"),
    ("reward", np.zeros(2), r"'reward'.*array of float64 of shape \(2,\)"),
    ("reward", "much", r"'reward'.*much"),
    ("reward", None, r"'reward'"),
    ("terminated", 0.5, r"'terminated'.*wanted True or False, found 0.5"),
    ("terminated", np.array([True]), r"'terminated'.*array of bool of shape \(1,\)"),
    ("truncated", 2, r"'truncated'.*found 2"),
    ("truncated", None, r"'truncated'.*None"),
    ("step", (1, 2, 3, 4), r"step wants to return.*found 4 values"),
    ("step", None, r"step wants to return.*found NoneType"),
]


@pytest.mark.parametrize(("field", "value", "pattern"), HOSTILE)
def test_an_env_that_changes_its_mind_is_named(field: str, value: Any, pattern: str):
    at = 1000 if field == "observation" else 5
    builders = [HostileEnv, functools.partial(HostileEnv, field, value, at)]
    env = GymnasiumEnv(builders)
    env.reset(0)
    for _ in range(at - 1):
        env.step(torch.tensor([0, 0]))
    with pytest.raises(ContractError, match=pattern) as caught:
        env.step(torch.tensor([0, 0]))
    assert "env 1" in str(caught.value) and f"after {at - 1} steps" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("terminated", 1),
        ("terminated", np.int64(0)),
        ("truncated", np.bool_(True)),
        ("info", None),
        ("reward", np.float32(1)),
    ],
)
def test_harmless_oddities_are_accepted(field: str, value: Any):
    env = GymnasiumEnv(functools.partial(HostileEnv, field, value, 1), 2)
    env.reset(0)
    step = env.step(torch.tensor([0, 0]))
    assert step.terminated.dtype == torch.bool and step.reward.dtype == torch.float32
    if field in ("terminated", "truncated"):
        assert step.done.tolist() == [bool(value)] * 2


class Depth(gymnasium.Env[Any, Any]):
    """A camera of millimetres whose space declares bytes; it sees 200, then `second`."""

    observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, second: int):
        self.second = second

    def reset(self, *, seed=None, options=None):
        return np.array([200, 3], np.uint16), {}

    def step(self, action):
        return np.array([self.second, 3], np.uint16), 0.0, False, False, {}


def test_whole_numbers_that_the_declared_dtype_cannot_hold_are_refused():
    # 1000 in a byte would be 1000 - 3 * 256 = 232, which looks like any other pixel
    env = GymnasiumEnv(lambda: Depth(1000), 1)
    assert env.reset(0)["obs"].tolist() == [[200, 3]]
    with pytest.raises(ContractError, match=r"'obs'.*wanted uint8.*found uint16 from 3 to 1000"):
        env.step(torch.tensor([0]))
    env = GymnasiumEnv(lambda: Depth(255), 1)
    env.reset(0)
    assert [env.step(torch.tensor([0])).obs["obs"].tolist() for _ in range(2)] == [[[255, 3]]] * 2


def test_bad_resets_and_infos_are_named():
    env = GymnasiumEnv(functools.partial(HostileEnv, "reset", np.zeros(2, np.float32), 0), 2)
    with pytest.raises(ContractError, match=r"env 0, phase reset.*reset wants to return \(observation, info\)"):
        env.reset(0)
    env = GymnasiumEnv(functools.partial(HostileEnv, "info", [1], 1), 1, info_keys={"height": TensorSpec()})
    env.reset(0)
    with pytest.raises(ContractError, match="'info': wanted a dict, found list"):
        env.step(torch.tensor([0]))


def test_one_env_of_another_kind_is_refused_with_the_difference():
    builders = [HostileEnv, HostileEnv, functools.partial(HostileEnv, shape=(3,))]
    with pytest.raises(ContractError, match=r"env 2 has another observation space than env 0.*\(2,\).*\(3,\)"):
        GymnasiumEnv(builders)

    class OtherNested(NestedEnv):
        observation_space = gymnasium.spaces.Dict(
            {**NestedEnv.observation_space.spaces, "camera": gymnasium.spaces.Box(0, 255, (3, 3, 1), np.uint8)}
        )

    with pytest.raises(ContractError, match=r"'camera': wanted Box.*\(2, 2, 1\).*found Box.*\(3, 3, 1\)"):
        GymnasiumEnv([NestedEnv, OtherNested])


def test_missing_and_extra_parts_of_a_nested_observation_are_named():
    class Forgetful(NestedEnv):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            del obs["arm"]["q"]
            return obs, *rest

    class Talkative(NestedEnv):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return {**obs, "gossip": np.zeros(1)}, *rest

    actions = {"gear": torch.tensor([0]), "torque": torch.zeros(1, 2)}
    for kind, pattern in (
        (Forgetful, r"'arm': wanted the parts \['mode', 'q'\], found \['mode'\]"),
        (Talkative, "gossip"),
    ):
        env = GymnasiumEnv(kind, 1)
        env.reset(0)
        with pytest.raises(ContractError, match=pattern):
            env.step(actions)


def test_wrong_actions_are_refused_before_any_env_steps():
    env = GymnasiumEnv(chain_builders(3))
    env.reset(0)
    for actions in (torch.tensor([0, 0]), torch.zeros(3), torch.zeros(3, 1, dtype=torch.int64), {"a": torch.zeros(3)}):
        with pytest.raises(ValueError, match="actions"):
            env.step(actions)
    assert env.step(torch.tensor([0, 0, 0])).obs["obs"][:, 2].tolist() == [1, 1, 1]
    nested = GymnasiumEnv(NestedEnv, 1)
    nested.reset(0)
    with pytest.raises(ValueError, match=r"\['gear', 'torque'\]"):
        nested.step({"gear": torch.tensor([0])})


class Counted(gymnasium.Env[Any, Any]):
    """Two choices of three and of two, or one of four; counts its steps."""

    observation_space = gymnasium.spaces.Box(0, 99, (1,), np.float32)

    def __init__(self, space: Any) -> None:
        self.action_space, self.t = space, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 0.0, False, False, {}


SPACES = {
    "Discrete": gymnasium.spaces.Discrete(4),
    "MultiDiscrete": gymnasium.spaces.MultiDiscrete([3, 2]),
    "MultiBinary": gymnasium.spaces.MultiBinary(2),
}
CHOICES = [
    ("Discrete", [0, 4], [0, 3], "env 1: wanted a number from 0 to 3, found 4"),
    ("Discrete", [-1, 0], [3, 0], "env 0: wanted a number from 0 to 3, found -1"),
    ("MultiDiscrete", [[0, 0], [2, 2]], [[2, 1], [0, 0]], "env 1, choice 1: wanted a number from 0 to 1, found 2"),
    ("MultiDiscrete", [[-(2**63), 0], [0, 0]], [[0, 1], [0, 0]], "env 0, choice 0: wanted a number from 0 to 2"),
    ("MultiBinary", [[0, 1], [2, 0]], [[0, 1], [1, 0]], "env 1, choice 0: wanted a number from 0 to 1, found 2"),
]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["here", "workers", "vector"])
@pytest.mark.parametrize(("space", "wrong", "right", "pattern"), CHOICES)
def test_choices_that_do_not_exist_are_refused_before_any_env_steps(
    form: str, space: str, wrong: Any, right: Any, pattern: str
):
    build = functools.partial(Counted, SPACES[space])
    if form == "vector":
        env = GymnasiumEnv(gymnasium.vector.SyncVectorEnv([build, build]))
    else:
        workers = WorkerConfig(num_workers=2 * (form == "workers"), start_method="fork")
        env = GymnasiumEnv(build, 2, workers=workers)
    with env:
        env.reset(0)
        with pytest.raises(ValueError, match=pattern):
            env.step(torch.tensor(wrong))
        # the refused step reached no env: this one is the first of both
        assert env.step(torch.tensor(right)).obs["obs"][:, 0].tolist() == [1, 1]


def test_choices_of_many_envs_are_looked_at_together():
    with GymnasiumEnv(functools.partial(Counted, SPACES["Discrete"]), 40) as env:
        env.reset(0)
        for wrong in (4, -1):
            actions = torch.zeros(40, dtype=torch.int64)
            actions[39] = wrong
            with pytest.raises(ValueError, match=f"env 39: wanted a number from 0 to 3, found {wrong}"):
                env.step(actions)
        assert env.step(torch.full((40,), 3)).obs["obs"][:, 0].tolist() == [1] * 40


def test_choices_of_other_whole_number_types_and_of_dicts_are_looked_at_too():
    with GymnasiumEnv(functools.partial(Counted, SPACES["Discrete"]), 2, first_env_index=10) as env:
        env.reset(0)
        with pytest.raises(ValueError, match="env 11: wanted a number from 0 to 3, found 7"):
            env.step(torch.tensor([0, 7], dtype=torch.uint8))
        assert env.step(torch.tensor([0, 3], dtype=torch.uint8)).obs["obs"][:, 0].tolist() == [1, 1]
    with GymnasiumEnv(NestedEnv, 1) as nested:
        nested.reset(0)
        with pytest.raises(ValueError, match=r"actions\['gear'\]: env 0: wanted a number from 0 to 2, found 3"):
            nested.step({"gear": torch.tensor([3]), "torque": torch.zeros(1, 2)})


def test_calls_in_the_wrong_order_are_refused():
    env = GymnasiumEnv(chain_builders(2))
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(torch.tensor([0, 0]))
    with pytest.raises(RuntimeError, match="step_async first"):
        env.step_wait()
    env.reset(0)
    env.step_async(torch.tensor([0, 0]))
    with pytest.raises(RuntimeError, match="under way"):
        env.step_async(torch.tensor([0, 0]))
    with pytest.raises(RuntimeError, match="under way"):
        env.reset_envs(torch.tensor([True, False]))
    assert env.is_ready()
    env.step_wait()
    with pytest.raises(ValueError, match="mask"):
        env.reset_envs(torch.tensor([1, 0]))
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.reset(0)


def test_wrong_constructions_are_refused():
    for arguments, pattern in (
        (("CartPole-v1",), "1 or more copies"),
        ((chain_builders(2), 3), "2 env builders"),
        (([],), "empty"),
    ):
        with pytest.raises(ValueError, match=pattern):
            GymnasiumEnv(*arguments)
    with pytest.raises(TypeError, match="fixed-size"):
        GymnasiumEnv(type("Wordy", (ChainEnv,), {"observation_space": gymnasium.spaces.Text(5)}), 1)


def test_exceptions_in_process_name_the_env():
    class Failing(ChainEnv):
        def step(self, action: Any) -> Any:
            if self.t == 1 and self.index == 1:
                raise ValueError("too steep")
            return super().step(action)

    env = GymnasiumEnv([functools.partial(Failing, index) for index in range(2)])
    env.reset(8)
    env.step(torch.tensor([0, 0]))
    with pytest.raises(
        EnvRaised, match=r"(?s)env 1 \(phase step, seed 8 .*step 2, episode step 1.*too steep"
    ) as caught:
        env.step(torch.tensor([0, 0]))
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.place.env_index == 1


def test_close_closes_all_envs_and_warns():
    closed = []

    class Sticky(ChainEnv):
        def close(self) -> None:
            closed.append(self.index)
            if self.index == 0:
                raise OSError("stuck")

    env = GymnasiumEnv([functools.partial(Sticky, index) for index in range(3)])
    with pytest.warns(EnvCloseWarning, match="(?s)env 0.*stuck"):
        env.close()
    assert closed == [0, 1, 2]
    env.close()
    assert closed == [0, 1, 2]
