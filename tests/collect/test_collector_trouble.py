"""The collector when something goes wrong: errors in the env, interrupts, spoiled episodes, mistakes of the user."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from striderl.collect.actors.base import RandomActor, ScriptedActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.specs import TensorSpec
from striderl.envs.gymnasium import GymnasiumEnv
from striderl.envs.toy import Counting, CountingConfig
from striderl.envs.vec_env import ContractError
from striderl.envs.workers import EnvError
from striderl.storage.rollout import RolloutStorage


class Trap(gym.Env):
    """Raises once, at its fifth step, if told to by a class attribute."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    error: BaseException | None = None

    def __init__(self) -> None:
        self.count = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        if self.count == 5 and Trap.error is not None:
            error, Trap.error = Trap.error, None
            raise error
        return np.zeros(1, np.float32), 1.0, self.count % 7 == 0, False, {}


@pytest.mark.parametrize("schedule", ["together", "alternating", "asynchronous"])
@pytest.mark.parametrize("error", [ValueError("trap"), KeyboardInterrupt()], ids=["raises", "interrupt"])
@pytest.mark.parametrize("request_", [{"n_step": 40}, {"n_episode": 6}], ids=["steps", "episodes"])
def test_after_an_error_the_next_call_starts_fresh(schedule, error, request_):
    with GymnasiumEnv(Trap, 4) as env:
        collector = Collector(env, RandomActor(env.action_spec), CollectorConfig(schedule=schedule))
        Trap.error = error
        with pytest.raises((EnvError, KeyboardInterrupt)):
            collector.collect(**request_)
        collected = collector.collect(n_step=40)
        assert collected.num_steps == 40
        assert len(collector.collect(n_episode=5).returns) == 5


class Misshapen(Counting):
    """Changes a field of every step, or declares one that is missing."""

    def __init__(self, **changes):
        super().__init__(3)
        self.changes = changes
        self.info_spec = {**self.info_spec, **({"energy": TensorSpec()} if changes == {} else {})}

    def step(self, actions):
        step = super().step(actions)
        return self.changes.get("whole", step._replace(**{k: v for k, v in self.changes.items() if k in step._fields}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"obs": {"obs": torch.zeros(3, 3).double()}},
            r"obs\['obs'\] \(at step 1\): wanted dtype float32, found float64",
        ),
        ({"obs": {}}, r"obs \(at step 1\): wanted a dict with the components \['obs'\], found the components \[\]"),
        ({"reward": torch.zeros(3, 1)}, r"reward \(at step 1\): wanted shape \[3\], found \[3, 1\]"),
        ({"reward": torch.zeros(3).double()}, r"reward \(at step 1\): wanted dtype float32, found float64"),
        ({"reward": [0.0] * 3}, r"reward \(at step 1\): wanted a torch tensor, found list"),
        ({"truncated": torch.zeros(3)}, r"truncated \(at step 1\): wanted dtype bool, found float32"),
        ({"final_obs": {"obs": torch.zeros(2, 2)}}, r"final_obs\['obs'\] \(at step 1\): wanted shape"),
        ({"info": None}, r"info \(at step 1\): wanted a dict with 'log', found \[\]"),
        ({}, r"info \(at step 1\): wanted a dict with 'energy', found \['action', 'log'\]"),
        ({"whole": (1, 2)}, r"step \(at step 1\): wanted a Step\(obs, reward, terminated, …\), found tuple"),
    ],
)
def test_the_form_of_a_first_step_is_compared_with_the_specs(changes, words):
    env = Misshapen(**changes)
    with pytest.raises(ContractError, match=rf"^Misshapen: {words}"):
        Collector(env, RandomActor(env.action_spec)).collect(n_step=3)


def test_an_error_in_the_actor_leaves_the_collector_usable():
    env = Counting(3)
    calls = []

    def act(obs):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("the policy broke")
        return torch.zeros(3, dtype=torch.int64)

    collector = Collector(env, ScriptedActor(act))
    with pytest.raises(RuntimeError, match="the policy broke"):
        collector.collect(n_step=30)
    assert collector.collect(n_step=30).num_steps == 30


class Poisoned(Counting):
    """Gives a bad number in a chosen step of every episode, or of the first ones."""

    def __init__(self, num_envs, *, reward_at=None, obs_at=None, episodes=10**9):
        super().__init__(num_envs, config=CountingConfig(min_length=8, max_length=8))
        self.reward_at, self.obs_at, self.episodes = reward_at, obs_at, episodes

    def step(self, actions):
        before = self.episode_length_buf
        step = super().step(actions)
        sick = step.obs["obs"][:, 1] - step.done.float() < self.episodes
        if self.reward_at is not None:
            step.reward[(before == self.reward_at) & sick] = float("nan")
        if self.obs_at is not None:
            step.obs["obs"][(before == self.obs_at) & sick] = float("nan")
        return step


@pytest.mark.parametrize("where", [{"reward_at": 3}, {"obs_at": 3}])
def test_an_env_that_spoils_every_episode_is_an_error_not_a_wait(where):
    env = Poisoned(2, **where)
    with pytest.raises(RuntimeError, match=r"env 0 spoiled 20 episodes in a row.*was nan"):
        Collector(env, RandomActor(env.action_spec)).collect(n_episode=4)


@pytest.mark.parametrize("where", [{"reward_at": 3}, {"obs_at": 3}])
def test_spoiled_episodes_are_played_again_and_counted_nowhere(where):
    env = Poisoned(2, **where, episodes=2)
    collector = Collector(env, RandomActor(env.action_spec))
    collected = collector.collect(n_episode=4)
    assert collected.lengths == [8] * 4 and collected.returns == [28.0] * 4
    read = collector.statistics.read()
    assert read["return_mean"] == 28.0 and read["episodes"] == 4
    assert {fault.component for fault in collected.faults} <= {"reward", "obs"} and collected.faults


def test_max_steps_and_the_statistics_of_exact_episodes():
    env = Counting(3, config=CountingConfig(min_length=2, max_length=40))
    collector = Collector(env, RandomActor(env.action_spec))
    with pytest.raises(RuntimeError, match=r"ended \d+ of \d+ episodes within max_steps=10"):
        collector.collect(n_episode=30, max_steps=10)
    fresh = Collector(Counting(3, config=CountingConfig(min_length=2, max_length=40)), RandomActor(env.action_spec))
    collected = fresh.collect(n_episode=6)
    read = fresh.statistics.read()
    # envs that had their quota first went on, but nothing of that is counted
    assert read["episodes"] == 6 and read["length_mean"] == pytest.approx(np.mean(collected.lengths))
    assert read["steps"] == collected.num_steps == sum(collected.lengths)


def test_waiting_transitions_are_not_mixed_into_a_rollout():
    env = Counting(8)
    collector = Collector(env, RandomActor(env.action_spec))
    storage = RolloutStorage(collector.columns(), 2, 8)
    collector.collect(n_step=12)
    with pytest.raises(ValueError, match="4 transitions of an earlier call are waiting"):
        collector.collect(n_step=16, storage=storage)
    assert len(storage) == 0
    collector.reset()
    collector.collect(n_step=16, storage=storage)
    assert storage.full


def test_a_rollout_refuses_envs_that_are_not_equally_far():
    env = Counting(4)
    collector = Collector(env, RandomActor(env.action_spec))
    storage = RolloutStorage(collector.columns(), 4, 4)
    storage.cursors = [0, 0, 1, 1]
    with pytest.raises(ValueError, match="not equally far"):
        collector.collect(n_step=4, storage=storage)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"noise_block": 0}, ValueError, "noise_block is at least 1"),
        ({"window": 0}, ValueError, "window is at least 1"),
        ({"num_groups": 0}, ValueError, "num_groups is at least 1"),
        ({"decorrelation_steps": -5}, ValueError, "decorrelation_steps is at least 0"),
        ({"seed": -1}, ValueError, "seed is at least 0"),
        ({"limit": -1.0}, ValueError, "positive magnitude"),
        ({"limit": float("nan")}, ValueError, "positive magnitude"),
        ({"window": 2.5}, TypeError, "CollectorConfig.window: wanted int"),
    ],
)
def test_bad_settings_are_named(settings, error, text):
    with pytest.raises(error, match=text):
        CollectorConfig(**settings)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"n_step": 2.5}, TypeError, "n_step is a whole number"),
        ({"n_step": True}, TypeError, "n_step is a whole number"),
        ({"n_episode": 1.0}, TypeError, "n_episode is a whole number"),
        ({"n_episode": [1, 2.5]}, TypeError, "n_episode is a whole number"),
        ({"n_step": 4, "storage": []}, TypeError, "storage wants add"),
    ],
)
def test_bad_arguments_are_named(arguments, error, text):
    env = Counting(2)
    with pytest.raises(error, match=text):
        Collector(env, RandomActor(env.action_spec)).collect(**arguments)


@pytest.mark.slow
def test_numpy_numbers_are_numbers():
    env = Counting(2)
    collector = Collector(env, RandomActor(env.action_spec))
    assert collector.collect(n_step=np.int64(6)).num_steps == 6
    assert len(collector.collect(n_episode=np.int64(3)).returns) == 3
    assert len(collector.collect(n_episode=np.array([1, 1])).returns) == 2


def test_wrong_parts_are_named():
    env = Counting(2)
    with pytest.raises(TypeError, match="wants a VecEnv, found CartPoleEnv"):
        Collector(gym.make("CartPole-v1").unwrapped, RandomActor(env.action_spec))
    with pytest.raises(TypeError, match="wrap a function in ScriptedActor"):
        Collector(env, lambda obs: obs)
