"""Envs of one GPU in several processes that share tensors by CUDA IPC: milliseconds per step of all of them.

    python benchmarks/gpu_processes.py [--envs 4096] [--processes 0 1 2 4 8]
    python benchmarks/gpu_processes.py --task mjlab:Mjlab-Velocity-Flat-Unitree-Go1

The stand-in keeps a core busy for 2 ms and 4 µs per env in every step, as a simulator does whose Python and kernel
launches limit it; its tensors are ready on the GPU. 0 processes: the same env in the trainer. A task by name takes its
place, with actions of zero. It writes nothing; what was seen is in gpu_log.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

SECONDS_PER_STEP, SECONDS_PER_ENV = 2e-3, 4e-6
CALLS = 100


def build(num_envs: int, first_env_index: int) -> Any:
    """Build a stand-in on the GPU; workers call it by its name."""
    import torch
    from table_env import TableEnv

    from striderl.data.actions import BoxSpec
    from striderl.data.specs import ObsSpec
    from striderl.envs.vec_env import Step

    class Slow(TableEnv):
        def step(self, actions: Any) -> Step:
            end = time.perf_counter() + SECONDS_PER_STEP + SECONDS_PER_ENV * num_envs
            found = super().step(actions)
            while time.perf_counter() < end:
                pass
            return found

    generator = torch.Generator(device="cuda").manual_seed(first_env_index)
    flags = torch.zeros(num_envs, dtype=torch.bool, device="cuda")
    rows = [
        Step(
            {"obs": torch.randn(num_envs, 48, generator=generator, device="cuda")},
            torch.ones(num_envs, device="cuda"), flags, flags, None, {},
        )
        for _ in range(16)
    ]  # fmt: skip
    return Slow(ObsSpec.from_segments({"obs": 48}), BoxSpec(shape=(12,)), rows)


def make_env(task: str, num_envs: int, num_processes: int) -> Any:
    """Return the env: of a task, or the stand-in."""
    from striderl.envs.tasks import make
    from striderl.envs.workers.pool import WorkerConfig
    from striderl.envs.workers.vec_env_processes import VecEnvProcesses

    if task:
        return make(task, num_envs=num_envs, device="cuda", num_processes=num_processes)
    if num_processes:
        return VecEnvProcesses(build, num_envs, WorkerConfig(num_workers=num_processes), device="cuda")
    return build(num_envs, 0)


def milliseconds(task: str, num_envs: int, num_processes: int) -> float:
    """Return the mean time of a step of all envs."""
    import torch

    env = make_env(task, num_envs, num_processes)
    env.reset(seed=0)
    actions = torch.zeros(num_envs, *env.action_spec.shape, device="cuda")
    for _ in range(20):
        env.step(actions)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        env.step(actions)
    torch.cuda.synchronize()
    found = 1e3 * (time.perf_counter() - began) / CALLS
    env.close()
    return found


def main() -> int:
    """Print a line per number of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="", help="a task by name, in place of the stand-in")
    parser.add_argument("--envs", type=int, default=4096)
    parser.add_argument("--processes", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    options = parser.parse_args()
    for number in options.processes:
        where = f"{number} processes" if number else "in the trainer"
        print(
            f"{where}: {milliseconds(options.task, options.envs, number):.2f} ms per step of {options.envs:,} envs",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
