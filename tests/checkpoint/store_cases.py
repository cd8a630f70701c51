"""States to save, and how two of them are compared: bit for bit, types included."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass
class Campaign:
    """How many faults a harness made, and what it found."""

    name: str
    faults: int = 0
    bad: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)

    def note(self, what: str) -> None:
        self.notes[what] = self.notes.get(what, 0) + 1

    def check(self, at_least: int) -> None:
        """Print the count, and fail when there were too few faults or one was not withstood."""
        print(self)
        assert self.faults >= at_least > 0, f"{self.name}: {self.faults} faults injected, wanted {at_least}"
        assert not self.bad, f"{self.name}: {len(self.bad)} of {self.faults}, the first: {self.bad[:3]}"

    def __str__(self) -> str:
        notes = ", ".join(f"{what} {count}" for what, count in sorted(self.notes.items()))
        return f"{self.name}: {self.faults} faults, {len(self.bad)} not withstood ({notes})"


def same(one: Any, other: Any) -> bool:
    """Tell whether two states are equal to the bit, with the same types."""
    if isinstance(one, Tensor):
        if not isinstance(other, Tensor) or one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bits(one) == bits(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, np.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(
            type(a) is type(b) and same(one[a], other[b]) for a, b in zip(one, other)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return bool(one == other)


def bits(tensor: Tensor) -> bytes:
    dense = tensor.detach().resolve_conj().resolve_neg().reshape(-1).clone(memory_format=torch.contiguous_format)
    return dense.view(torch.uint8).numpy().tobytes()


def run_state(step: int, *, width: int = 24) -> dict[str, Any]:
    """What a small run saves at a step; every number tells the step."""
    weight = torch.arange(width * width, dtype=torch.float32).reshape(width, width) * 0.5 + step
    return {
        "policy": {"body.weight": weight.t(), "body.bias": weight[0].bfloat16(), "std": torch.tensor(0.5 + step)},
        "optimizer": {"state": {0: {"step": torch.tensor(float(step)), "exp_avg": weight * 1e-3}}, "lr": 3e-4},
        "random": {"key": torch.tensor([step, 2**62, -1]), "numpy": np.arange(7, dtype=np.uint64) + step},
        "counters": {"step": step, "best": -math.inf, "last": math.nan, "zero": -0.0, "large": 2**127 + step},
        "env": [(step, "level", None, True), np.float32(0.1), {"empty": torch.empty(0, 3)}],
    }
