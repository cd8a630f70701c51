"""What an action of a Gymnasium env has to be, and where its rows are stored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from striderl.data.actions import DiscreteSpec, MultiDiscreteSpec, PlainActionSpec
from striderl.envs.workers.layout import Array

_TRUE = b"\x01"
_FEW = 32


class ActionPart(NamedTuple):
    """One part of an action: what it has to be, and where its rows are."""

    name: str
    """What it is called in errors."""
    wanted: tuple[int, ...]
    """The shape of a whole batch."""
    is_whole: bool
    """Whether it wants int64."""
    num_choices: Array | None
    """How many choices there are, uint64; None for real numbers."""
    rows: Array
    """This env's rows of the buffer."""

    def allows(self, values: Array) -> bool:
        """Tell whether all choices are from 0 to their number; a few are looked at one by one, which is quicker."""
        if self.num_choices is None:
            return True
        if values.ndim == 1 and len(values) <= _FEW:
            chosen: list[int] = values.tolist()
            return min(chosen) >= 0 and max(chosen) < int(self.num_choices)
        whole = values.astype(np.int64, copy=False).view(np.uint64)  # a negative number is a very large one here
        return _TRUE not in (whole >= self.num_choices).tobytes()

    @classmethod
    def of(cls, name: str, spec: PlainActionSpec, rows: Array) -> ActionPart:
        """Return the part of a spec."""
        tensor = spec.tensor
        shown = f"actions[{name!r}]" if name else "actions"
        return cls(shown, (len(rows), *tensor.shape), tensor.dtype == "int64", _num_choices(spec), rows)


def _num_choices(spec: PlainActionSpec) -> Array | None:
    """Return how many choices a discrete action has: uint64 [] or [choices]; None for an action of real numbers."""
    if isinstance(spec, DiscreteSpec):
        return np.array(spec.n, np.uint64)
    return np.array(spec.nvec, np.uint64) if isinstance(spec, MultiDiscreteSpec) else None
