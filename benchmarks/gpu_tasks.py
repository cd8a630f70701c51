"""What is timed on a GPU: PPO on an env that is a table of ready tensors, so that only the library's own cost shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

OBS, PRIVILEGED, ACTIONS = 48, 12, 12
END_PROBABILITY = 0.01
"""That an episode terminates in a step; and as much again that its time is up."""


@dataclass(frozen=True, kw_only=True)
class GpuTask:
    """One row of the table, but for who does it."""

    num_envs: int = 4096
    num_steps: int = 24
    kind: str = "mlp"
    """'mlp': 512-256-128; 'lstm': 256 units, then 256-128."""
    precision: str = "tf32"
    """'fp32', 'tf32' or 'bf16'."""
    mode: str = "graphed"
    """'eager', 'graphed' (captured as it is), 'fused' (compiled, then captured) or 'auto'; rsl_rl has 'eager' and
    'compiled', its own `torch_compile_mode`."""
    iterations: int = 20
    warmup: int = 6

    @property
    def hidden(self) -> tuple[int, ...]:
        """The layers of actor and critic."""
        return (256, 128) if self.kind == "lstm" else (512, 256, 128)

    def plain(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def set_precision(task: GpuTask) -> None:
    """Let matrix products use TF32 unless the row says float32; this process does nothing else."""
    allowed = task.precision != "fp32"
    torch.backends.cuda.matmul.fp32_precision = "tf32" if allowed else "ieee"
    torch.backends.cudnn.fp32_precision = "tf32" if allowed else "ieee"


def table(task: GpuTask) -> list[dict[str, torch.Tensor]]:
    """Return what the env shows in each step of a rollout."""
    torch.manual_seed(1)
    count, device = task.num_envs, "cuda"
    return [
        {
            "policy": torch.randn(count, OBS, device=device),
            "privileged": torch.randn(count, PRIVILEGED, device=device),
            "reward": torch.randn(count, device=device),
            "terminated": torch.rand(count, device=device) < END_PROBABILITY,
            "truncated": torch.rand(count, device=device) < END_PROBABILITY,
        }
        for _ in range(task.num_steps)
    ]


def timed(phases: Mapping[str, Callable[[], Any]], task: GpuTask) -> dict[str, Any]:
    """Run the phases in turns; return the median and the range of each in milliseconds, and the first round's."""
    seen: dict[str, list[float]] = {name: [] for name in phases}
    for _ in range(task.warmup + task.iterations):
        for name, work in phases.items():
            torch.cuda.synchronize()
            started = time.perf_counter()
            work()
            torch.cuda.synchronize()
            seen[name].append(1e3 * (time.perf_counter() - started))
    kept = {name: sorted(values[task.warmup :]) for name, values in seen.items()}
    return {
        "median_ms": {name: values[len(values) // 2] for name, values in kept.items()},
        "range_ms": {name: [values[0], values[-1]] for name, values in kept.items()},
        "first_ms": {name: values[0] for name, values in seen.items()},
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20,
    }
