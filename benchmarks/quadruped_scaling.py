"""striderl's quadruped: env steps per second with 1 and 2 simulation threads, from 16 to 4,096 envs.

Run by `python benchmarks/envs.py --only quadruped`. There is no peer with the same robot, so the two thread counts are
compared with each other; everything of a step counts (physics, observations, rewards, resets), nothing of learning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness import Benchmark
from harness_clock import Sample, timed_block
from harness_process import UnavailableError
from harness_report import Contender, Table

NUM_ENVS = (16, 64, 256, 1024, 4096)
STEPS_PER_SAMPLE = 8192
"""Env steps in one sample: 512 calls with 16 envs, 2 with 4,096."""
MODULE = "striderl.envs.quadruped.velocity"


def make_env(num_envs: int, num_threads: int) -> Any:
    """Build the flat-ground task, or say that this version of striderl has none."""
    try:
        from striderl.envs.quadruped.velocity import Quadruped, QuadrupedVelocityConfig
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("striderl."):
            raise
        raise UnavailableError(f"{MODULE} is not there yet") from None
    return Quadruped(QuadrupedVelocityConfig(num_envs=num_envs, num_threads=num_threads))


@contextmanager
def prepare(contender: str, table: str, row: str) -> Iterator[Callable[[], Sample]]:
    """Build the envs of one row and let the robots fall into a mixture of episodes."""
    import torch

    num_envs = int(row.split()[0].replace(",", ""))
    env = make_env(num_envs, int(contender[0]))
    generator = torch.Generator().manual_seed(0)
    actions = [torch.randn(num_envs, 12, generator=generator) for _ in range(16)]
    calls = STEPS_PER_SAMPLE // num_envs
    env.reset(seed=0)

    def block() -> None:
        for call in range(calls):
            env.step(actions[call % len(actions)])

    try:
        for call in range(50):  # random actions: after a second some have fallen and some have not
            env.step(actions[call % len(actions)])
        yield lambda: timed_block(block, calls * num_envs)
    finally:
        env.close()


QUADRUPED = Benchmark(
    name="quadruped",
    contenders={
        "2_threads": Contender(name="2 threads", needs=("striderl", "mujoco", "torch"), role="subject"),
        "1_thread": Contender(name="1 thread", needs=("striderl", "mujoco", "torch")),
    },
    tables=[
        Table(
            title="Quadruped on flat ground",
            rows=tuple(f"{count:,} envs" for count in NUM_ENVS),
            contenders=("1_thread", "2_threads"),
            unit="steps/s",
            clocks=("wall", "cpu"),
            ratio_title="2 threads / 1 thread",
        )
    ],
    prepare=prepare,
    also_report=("numpy",),
    rounds=5,
    starts=1,
)
