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
from striderl.compat.tianshou.base_policy import BasePolicy
from striderl.compat.tianshou.collector import Collector as TianshouCollector
from striderl.compat.tianshou.collector import as_env
from striderl.compat.tianshou.env import BaseVectorEnv, DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from striderl.compat.tianshou.exploration import BaseNoise
from striderl.data.actions import BoxSpec
from striderl.data.batch import Batch
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.workers.pool import WorkerConfig
from striderl.networks.heads.base import ActionClip
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.storage.replay_buffer.kinds import VectorReplayBuffer
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


class Tianshou:
    """A vector env of Tianshou with the reset and the step of a VecEnv, as far as the test below wants them."""

    def __init__(self, envs: BaseVectorEnv) -> None:
        self.envs = envs

    def __enter__(self) -> Tianshou:
        return self

    def __exit__(self, *_: object) -> None:
        self.envs.close()

    def reset(self, seed: int) -> None:
        self.envs.seed(seed)
        self.envs.reset()

    def step(self, actions: torch.Tensor) -> Batch:
        return Batch(obs={"obs": torch.as_tensor(self.envs.step(actions.numpy())[0])})


BOUNDARIES = {
    "in process": lambda build: GymnasiumEnv(build, 2, keep_float64=True),
    "vector env": _vector,
    "workers": lambda build: GymnasiumEnv(build, 2, keep_float64=True, workers=WorkerConfig(num_workers=1)),
    "Tianshou: a list of envs": lambda build: Tianshou(as_env([build(), build()])),
    "Tianshou: Dummy": lambda build: Tianshou(DummyVectorEnv([build, build])),
    "Tianshou: Subproc": lambda build: Tianshou(SubprocVectorEnv([build, build])),
    "Tianshou: Shmem": lambda build: Tianshou(ShmemVectorEnv([build, build])),
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


# -- Tianshou ----------------------------------------------------------------------------------------------------------


class Far(BasePolicy):
    """Always the same action, outside of the box."""

    def __init__(self, action: Any) -> None:
        super().__init__()
        self.action = action

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        act = [self.action for _ in batch.obs]
        return Batch(act=Batch(act) if isinstance(self.action, dict) else np.array(act, np.float32))

    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        return {}


class Plus(BaseNoise):
    """Adds one."""

    def __call__(self, size: Any) -> Any:
        return np.ones(size, np.float32)


@pytest.mark.parametrize("form", ["one", "list", "vector", "noise", "asynchronous"])
def test_tianshous_collector_stores_what_the_policy_chose(form):
    noise = Plus() if form == "noise" else None
    env = {
        "one": EchoEnv,
        "list": lambda: [EchoEnv(), EchoEnv()],
        "vector": lambda: DummyVectorEnv([EchoEnv] * 2),
        "noise": lambda: DummyVectorEnv([EchoEnv] * 2),
        "asynchronous": lambda: DummyVectorEnv([EchoEnv] * 2, wait_num=1),
    }[form]()
    buffer = ReplayBuffer(20) if form == "one" else VectorReplayBuffer(20, 2)
    TianshouCollector(Far([5.0, -0.5]), env, buffer, action_noise=noise).collect(n_step=8, whole_episodes=False)
    batch, _ = buffer.sample(0)
    assert batch.act.tolist() == [[6.0, 0.5] if noise else [5.0, -0.5]] * 8
    assert batch.obs_next.tolist() == [[1.0, 0.5] if noise else [1.0, -0.5]] * 8  # the env shows what it was given


class PartsEnv(EchoEnv):
    """Takes a dict of a bounded force and a choice."""

    def __init__(self) -> None:
        super().__init__(size=2)
        box = self.action_space
        self.action_space = gymnasium.spaces.Dict({"force": box, "gear": gymnasium.spaces.Discrete(9)})

    def step(self, action: Any) -> tuple[Any, ...]:
        return np.array([action["force"][0], action["gear"]], np.float64), 0.0, False, False, {}


def test_a_box_inside_a_dict_is_clipped_for_tianshou_too():
    buffer, policy = ReplayBuffer(20), Far({"force": np.array([5.0, 0.0], np.float32), "gear": 7})
    TianshouCollector(policy, PartsEnv(), buffer).collect(n_step=3, whole_episodes=False)
    batch, _ = buffer.sample(0)
    assert batch.act.force[:, 0].tolist() == [5.0] * 3 and batch.obs_next.tolist() == [[1.0, 7.0]] * 3


@pytest.mark.parametrize(
    ("action", "seen"),
    [
        (np.array([9.0, -9.0]), [4.0, -3.0]),
        (np.array([9, -9]), [4.0, -3.0]),
        (torch.tensor([9.0, -9.0]), [4.0, -3.0]),
        ([9.0, -9.0], [4.0, -3.0]),
        (np.array([float("nan"), 2.0]), [float("nan"), 2.0]),
    ],
)
def test_a_clipped_action_of_tianshou_keeps_its_kind(action, seen):
    class Watched(EchoEnv):
        def step(self, action: Any) -> tuple[Any, ...]:
            kinds.append((type(action), getattr(action, "dtype", None)))
            return np.asarray(action, np.float64), 0.0, False, False, {}

    kinds: list[tuple[Any, Any]] = []
    envs = DummyVectorEnv([lambda: Watched(low=-3, high=4)])
    envs.reset()
    np.testing.assert_array_equal(envs.step([action])[0], [seen])
    if not isinstance(action, list):
        assert kinds == [(type(action), action.dtype)]


def test_a_number_for_a_box_of_one_stays_a_number():
    class One(EchoEnv):
        def step(self, action: Any) -> tuple[Any, ...]:
            return np.full(1, float(action)), 0.0, False, np.shape(action) != (), {}

    envs = DummyVectorEnv([lambda: One(size=1)])
    envs.reset()
    obs, _, done, _ = envs.step(np.array([5.0]))
    assert obs.tolist() == [[1.0]] and not done[0]
