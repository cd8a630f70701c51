"""What an action of a Gymnasium env has to be, and where its rows are stored, clipped to the bounds of its space."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from striderl.data.actions import BoxSpec, DiscreteSpec, MultiDiscreteSpec, PlainActionSpec
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
    """This env's rows of the buffer, in the dtype of the space."""
    low: Array | None = None
    """The lower bounds; None where nothing is clipped."""
    high: Array | None = None
    """The upper bounds."""

    def store(self, values: Array) -> None:
        """Write actions [N, …] to the rows, clipped where the space is bounded; NaN is passed on as it is."""
        rows = self.rows
        given = values if values.shape == rows.shape else values.reshape(rows.shape)
        if self.low is None or self.high is None:
            rows[...] = given
        elif rows.dtype.kind == "f":
            np.maximum(given, self.low, out=rows, casting="unsafe")
            np.minimum(rows, self.high, out=rows)
        else:
            rows[...] = np.minimum(np.maximum(given, self.low), self.high)

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
        low = high = None
        if isinstance(spec, BoxSpec) and spec.is_bounded:
            low, high = spec.clip_bounds(rows.dtype)
        return cls(shown, (len(rows), *tensor.shape), tensor.dtype == "int64", _num_choices(spec), rows, low, high)


def _num_choices(spec: PlainActionSpec) -> Array | None:
    """Return how many choices a discrete action has: uint64 [] or [choices]; None for an action of real numbers."""
    if isinstance(spec, DiscreteSpec):
        return np.array(spec.n, np.uint64)
    return np.array(spec.nvec, np.uint64) if isinstance(spec, MultiDiscreteSpec) else None
