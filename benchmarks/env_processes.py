"""A simulator that waits in Python, its envs in 1, 2 and 4 processes: steps per second of the whole.

Run by `python benchmarks/envs.py --only processes`. The stand-in sleeps in every step, as a simulator whose Python and
kernel launches limit it does: 2 ms, and 4 µs per env. Sleeping needs no core, so the row shows what sharing costs and
gains, on however many cores; 'in the trainer' is the same env without any process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness import Benchmark
from harness_clock import Sample, timed_block
from harness_report import Contender, Table

NUM_ENVS = (256, 1024, 4096)
SECONDS_PER_STEP, SECONDS_PER_ENV = 2e-3, 4e-6
CALLS = 50


def build(num_envs: int, first_env_index: int) -> Any:
    """Build a stand-in: ready tensors of a quadruped's size, and a pause in every step."""
    import torch
    from table_env import TableEnv

    from striderl.data.actions import BoxSpec
    from striderl.data.specs import ObsSpec
    from striderl.envs.vec_env import Step

    class Slow(TableEnv):
        def step(self, actions: Any) -> Step:
            time.sleep(SECONDS_PER_STEP + SECONDS_PER_ENV * num_envs)
            return super().step(actions)

    generator = torch.Generator().manual_seed(first_env_index)
    flags = torch.zeros(num_envs, dtype=torch.bool)
    rows = [
        Step({"obs": torch.randn(num_envs, 48, generator=generator)}, torch.ones(num_envs), flags, flags, None, {})
        for _ in range(16)
    ]
    return Slow(ObsSpec.from_segments({"obs": 48}), BoxSpec(shape=(12,)), rows)


@contextmanager
def prepare(contender: str, table: str, row: str) -> Iterator[Callable[[], Sample]]:
    """Build the envs of one row, in as many processes as the contender has."""
    import torch

    from striderl.envs.workers.pool import WorkerConfig
    from striderl.envs.workers.vec_env_processes import VecEnvProcesses

    num_envs, number = int(row.split()[0].replace(",", "")), int(contender.removeprefix("p"))
    env = VecEnvProcesses(build, num_envs, WorkerConfig(num_workers=number)) if number else build(num_envs, 0)
    env.reset(seed=0)
    actions = torch.zeros(num_envs, 12)

    def block() -> None:
        for _ in range(CALLS):
            env.step(actions)

    try:
        block()
        yield lambda: timed_block(block, CALLS * num_envs)
    finally:
        env.close()


PROCESSES = Benchmark(
    name="processes",
    contenders={
        "p4": Contender(name="4 processes", needs=("striderl", "torch"), role="subject"),
        "p2": Contender(name="2 processes", needs=("striderl", "torch"), role="information"),
        "p1": Contender(name="1 process", needs=("striderl", "torch"), role="information"),
        "p0": Contender(name="in the trainer", needs=("striderl", "torch")),
    },
    tables=[
        Table(
            title="A simulator that waits in Python",
            rows=tuple(f"{count:,} envs" for count in NUM_ENVS),
            contenders=("p0", "p1", "p2", "p4"),
            unit="steps/s",
            clocks=("wall",),
            ratio_title="4 processes / in the trainer",
        )
    ],
    prepare=prepare,
    also_report=("numpy",),
    rounds=5,
    starts=1,
)
