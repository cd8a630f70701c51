"""Every way of stepping envs gives each env the same experience."""

from __future__ import annotations

import functools
import time

import gymnasium as gym
import numpy as np
import pytest
import torch

from striderl.collect.actors.base import RandomActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.transition import Transition
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.workers.pool import WorkerConfig
from striderl.storage.rollout import RolloutStorage

NUM_ENVS, NUM_STEPS = 6, 40


def rollout(num_workers: int, schedule: str, start_method: str = "fork", num_groups: int = 3) -> RolloutStorage:
    workers = WorkerConfig(num_workers=num_workers, start_method=start_method)
    with GymnasiumEnv("CartPole-v1", NUM_ENVS, workers=workers) as env:
        config = CollectorConfig(seed=11, schedule=schedule, num_groups=num_groups)
        collector = Collector(env, RandomActor(env.action_spec), config)
        storage = RolloutStorage(collector.columns(), NUM_STEPS, NUM_ENVS, final_obs=env.obs_spec)
        collector.collect(n_step=NUM_ENVS * NUM_STEPS, storage=storage)
        assert storage.full
        return storage


@pytest.fixture(scope="module")
def reference() -> RolloutStorage:
    return rollout(0, "together")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_workers", "schedule", "start_method"),
    [
        (1, "together", "fork"),
        (3, "together", "spawn"),
        (0, "alternating", "fork"),
        (2, "alternating", "forkserver"),
        (3, "asynchronous", "fork"),
        (6, "asynchronous", "spawn"),
    ],
)
def test_all_schedules_fill_the_same_rollout(reference, num_workers, schedule, start_method):
    storage = rollout(num_workers, schedule, start_method)
    for dtype, block in storage.arena.blocks.items():
        assert torch.equal(block, reference.arena.blocks[dtype]), dtype
    assert storage.finals is not None and reference.finals is not None
    assert int(storage.finals.count) == int(reference.finals.count)


class Uneven(gym.Env):
    """Counts its steps; env 0 is slow."""

    observation_space = gym.spaces.Box(0, 1e9, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, number: int, seconds: float = 0.02) -> None:
        self.number, self.count, self.seconds = number, 0, seconds

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.array([self.number, 0], np.float32), {}

    def step(self, action):
        time.sleep(self.seconds if self.number == 0 else 0.001)
        self.count += 1
        return np.array([self.number, self.count], np.float32), float(self.count), self.count >= 15, False, {}


class Columns:
    balanced = False

    def __init__(self) -> None:
        self.steps: dict[int, list[float]] = {}

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        for row in transition.obs["obs"].tolist():
            self.steps.setdefault(int(row[0]), []).append(row[1])


@pytest.mark.slow
def test_asynchronous_steps_whoever_is_ready():
    factories = [functools.partial(Uneven, number, 0.3) for number in range(3)]
    with GymnasiumEnv(factories, workers=WorkerConfig(num_workers=3, start_method="fork")) as env:
        config = CollectorConfig(schedule="asynchronous", num_groups=3)
        collector = Collector(env, RandomActor(env.action_spec), config)
        storage = Columns()
        assert collector.collect(n_step=90, storage=storage).num_steps == 90
        counts = {number: len(steps) for number, steps in storage.steps.items()}
        assert sum(counts.values()) == 90
        assert counts.get(0, 0) < 20 < min(counts[1], counts[2])  # the slow env held nobody up
        for steps in storage.steps.values():
            assert steps == [step % 15 for step in range(len(steps))]  # in order, none lost, none twice
        collector.collect(n_step=7, storage=storage)
        assert sum(len(steps) for steps in storage.steps.values()) == 97


@pytest.mark.slow
def test_episodes_under_every_schedule():
    results = []
    for num_workers, schedule in ((0, "together"), (2, "alternating"), (2, "asynchronous")):
        workers = WorkerConfig(num_workers=num_workers, start_method="fork")
        with GymnasiumEnv("CartPole-v1", 4, workers=workers) as env:
            config = CollectorConfig(seed=5, schedule=schedule, num_groups=2)
            collected = Collector(env, RandomActor(env.action_spec), config).collect(n_episode=10)
            results.append((collected.returns, collected.lengths))
    assert results[0] == results[1] == results[2] and len(results[0][0]) == 10


@pytest.mark.slow
def test_alternating_overlaps_simulation_and_inference():
    """While one half is simulated the policy acts for the other: both are launched before one is awaited."""

    class Slow:
        def __init__(self, inner):
            self.inner = inner
            self.columns, self.noise, self.initial_state = inner.columns, inner.noise, inner.initial_state

        def act(self, obs, state, noise):
            time.sleep(0.02)
            return self.inner.act(obs, state, noise)

    def watch(schedule, order):
        launch, land = schedule.launch, schedule.land
        schedule.launch = lambda group, actions, **how: (order.append("act"), launch(group, actions, **how))
        schedule.land = lambda: (order.append("wait"), land())[1]

    for schedule in ("together", "alternating"):
        factories = [functools.partial(Uneven, 0) for _ in range(4)]
        with GymnasiumEnv(factories, workers=WorkerConfig(num_workers=4, start_method="fork")) as env:
            collector = Collector(env, Slow(RandomActor(env.action_spec)), CollectorConfig(schedule=schedule))
            collector.reset()
            order: list[str] = []
            watch(collector.schedule, order)
            collector.collect(n_step=40)
            longest = max(len(run) for run in "".join("a" if word == "act" else " " for word in order).split())
            assert longest == (1 if schedule == "together" else 2)  # both halves are launched before one is awaited
