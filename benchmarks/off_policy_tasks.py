"""What the off-policy benchmarks ask of everybody: the same sizes, the same data, the same settings.

replay filled with NUM_STEPS random steps       obs, act, rew, obs_next, done; one env
one operation = sample a minibatch of it and take one gradient step of everything the algorithm learns

DQN    one Q-network, squared or Huber error, Adam, a target copied every 500 steps; not double
SAC    an actor, two critics with targets that follow in every step, an automatic temperature, Adam
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Work = Callable[[], object]

NUM_STEPS = 10_000
GAMMA = 0.99
TAU = 0.005
TARGET_EVERY = 500


@dataclass(frozen=True, kw_only=True)
class Task:
    """One row: sizes of a learner."""

    algorithm: str
    obs_size: int
    action_size: int
    """Number of choices for DQN, of real-valued actions for SAC."""
    hidden: tuple[int, ...]
    batch_size: int
    learning_rate: float
    updates_per_sample: int
    """Gradient steps in one sample of the benchmark."""


TASKS = {
    "DQN, [120, 84], batch 128": Task(
        algorithm="dqn",
        obs_size=4,
        action_size=2,
        hidden=(120, 84),
        batch_size=128,
        learning_rate=2.5e-4,
        updates_per_sample=100,
    ),
    "SAC, [256, 256], batch 256": Task(
        algorithm="sac",
        obs_size=17,
        action_size=6,
        hidden=(256, 256),
        batch_size=256,
        learning_rate=3e-4,
        updates_per_sample=12,
    ),
}
"""Row of the table → task."""


class Steps(NamedTuple):
    """Random experience of one env."""

    obs: Array
    """[S + 1, O] float32; row t + 1 follows row t."""
    act: Array
    """int64 [S], or float32 [S, A] within [-1, 1]."""
    rew: Array
    """float32 [S]."""
    terminated: Array
    """bool [S]."""


def steps_of(task: Task) -> Steps:
    """Return the same random steps for everybody."""
    random = np.random.default_rng(0)
    obs = random.standard_normal((NUM_STEPS + 1, task.obs_size)).astype(np.float32)
    if task.algorithm == "dqn":
        act: Array = random.integers(0, task.action_size, NUM_STEPS)
    else:
        act = random.uniform(-1.0, 1.0, (NUM_STEPS, task.action_size)).astype(np.float32)
    rew = random.standard_normal(NUM_STEPS).astype(np.float32)
    return Steps(obs, act, rew, random.random(NUM_STEPS) < 0.01)


def repeated_work(step: Callable[[], object], count: int) -> Work:
    """Return a function that takes so many gradient steps."""

    def work() -> None:
        for _ in range(count):
            step()

    return work
