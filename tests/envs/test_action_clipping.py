"""Actions are clipped to a Box at the boundary to an env that is not ours; what was sampled is stored."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data.actions import BoxSpec
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.workers.pool import WorkerConfig
from striderl.networks.heads.base import ActionClip
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.rollout import RolloutStorage

INFINITE = float("inf")


class EchoEnv(gymnasium.Env[Any, Any]):
    """Shows the action it was given; its bounds are those that it is built with."""

    def __init__(self, low: Any = -1.0, high: Any = 1.0, size: int = 2, dtype: str = "float32") -> None:
        self.action_space = gymnasium.spaces.Box(
            np.broadcast_to(low, size).astype(dtype), np.broadcast_to(high, size).astype(dtype), dtype=np.dtype(dtype)
        )
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(self.observation_space.shape), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.dtype == self.action_space.dtype
        return np.asarray(action, np.float64), 0.0, False, False, {"inside": self.action_space.contains(action)}


def _vector(build: Any) -> GymnasiumEnv:
    return GymnasiumEnv(SyncVectorEnv([build, build], autoreset_mode=AutoresetMode.DISABLED), keep_float64=True)


BOUNDARIES = {
    "in process": lambda build: GymnasiumEnv(build, 2, keep_float64=True),
    "vector env": _vector,
    "workers": lambda build: GymnasiumEnv(build, 2, keep_float64=True, workers=WorkerConfig(num_workers=1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_actions_are_clipped_to_the_box_at_every_boundary(boundary):
    with BOUNDARIES[boundary](EchoEnv) as env:
        env.reset(0)
        actions = torch.tensor([[2.09, -0.5], [-3.0, 1.0]])
        step = env.step(actions)
        assert step.obs["obs"].tolist() == [[1.0, -0.5], [-1.0, 1.0]]
        assert actions[0, 0] == pytest.approx(2.09)  # the caller's tensor is not changed


def test_one_sided_and_missing_bounds():
    build = functools.partial(EchoEnv, low=[-INFINITE, 0.0, -INFINITE], high=[1.0, INFINITE, INFINITE], size=3)
    env = GymnasiumEnv(build, 1, keep_float64=True)
    env.reset(0)
    assert env.step(torch.tensor([[-50.0, -50.0, -50.0]])).obs["obs"].tolist() == [[-50.0, 0.0, -50.0]]
    assert env.step(torch.tensor([[50.0, 50.0, 50.0]])).obs["obs"].tolist() == [[1.0, 50.0, 50.0]]


def test_a_bound_that_float32_cannot_hold_is_not_exceeded():
    # 0.1 is 0.1000000015 in float32: an action of that is outside of a float64 box that ends at 0.1
    build = functools.partial(EchoEnv, low=-0.1, high=0.1, dtype="float64")
    env = GymnasiumEnv(build, 1, keep_float64=True, info_keys={})
    env.reset(0)
    assert env.step(torch.tensor([[9.0, -9.0]])).obs["obs"].tolist() == [[0.1, -0.1]]
    low, high = BoxSpec(shape=(1,), low=-0.1, high=0.1).clip_bounds(np.float32)
    assert -0.1 <= float(low[0]) <= float(high[0]) <= 0.1


def test_whole_number_boxes_and_nan():
    env = GymnasiumEnv(functools.partial(EchoEnv, low=-3, high=4, dtype="int64"), 1, keep_float64=True)
    env.reset(0)
    assert env.step(torch.tensor([[9.0, -9.0]])).obs["obs"].tolist() == [[4.0, -3.0]]
    env = GymnasiumEnv(EchoEnv, 1, keep_float64=True)
    env.reset(0)
    seen = env.step(torch.tensor([[float("nan"), 5.0]])).obs["obs"][0]
    assert seen[0].isnan() and seen[1] == 1.0  # as before: the env is shown the NaN


def test_the_sampled_action_is_stored_and_its_log_prob_is_learned_from():
    env = GymnasiumEnv(EchoEnv, 4)
    torch.manual_seed(0)
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(head_settings={"init_std": 3.0}))
    actor = PolicyActor(policy)
    collector = Collector(env, actor)
    storage = RolloutStorage(collector.columns(), num_envs=4, num_steps=8)
    collector.collect(n_step=32, storage=storage)
    stored, seen = storage.data["act"], storage.data["obs"]["obs"]
    assert stored.abs().max() > 1.5 and seen.abs().max() <= 1.0
    assert torch.equal(seen[1:], stored[:-1].clamp(-1.0, 1.0))  # the env shows what it was given
    distribution = policy(storage.data["obs"], {}, {}).distribution
    assert torch.allclose(distribution.log_prob(stored), storage.data["policy"]["log_prob"], atol=1e-5)


def test_an_unbounded_box_and_choices_are_not_touched():
    clip = ActionClip(BoxSpec(shape=(2,)))
    actions = torch.tensor([[1e9, -1e9]])
    assert clip(actions) is actions
