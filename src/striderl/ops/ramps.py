"""Schedules: a number goes from start to end over so many steps, then stays constant.

    start ──╲
             ╲            linear: a straight line         exponential: the same factor in every step
              ╲______     end

Used for epsilon, exploration noise, importance exponents; a value depends on the step alone.

Decay schedules of distillation: probability that the teacher acts, weight of a loss.

x / scale     0      1/2    1      2          x is the learning iteration
'linear'      1      0.5    0      0          max(0, 1 - x / scale)
'exp'         1      0.60   0.37   0.13       (1 - 1 / scale)^x, here for scale 100
'tanh'        0.88   0.73   0.5    0.12       (1 - tanh((x - scale) / scale)) / 2
0.3           0.3    0.3    0.3    0.3        a number stays
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown

KINDS = ("linear", "exponential")


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class Ramp:
    """A number that goes from `start` to `end` over `num_steps`."""

    start: float
    """The number at step 0."""
    end: float
    """The number from step `num_steps` on."""
    num_steps: int = 1
    """How long it takes."""
    kind: str = "linear"
    """'linear', or 'exponential' between two positive numbers."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(unknown("kind", self.kind, KINDS, where="Ramp"))
        check_field_types(self)
        if self.num_steps < 1:
            raise ValueError(f"Ramp.num_steps is at least 1, found {self.num_steps}")
        if self.kind == "exponential" and (self.start <= 0.0 or self.end <= 0.0):
            raise ValueError(f"an exponential ramp wants positive numbers, found {self.start} and {self.end}")

    def at(self, step: int) -> float:
        """Return the number at this step; before the first it is `start`."""
        done = min(max(step / self.num_steps, 0.0), 1.0)
        if self.kind == "exponential":
            return float(self.start * (self.end / self.start) ** done)
        return self.start + (self.end - self.start) * done


def constant(value: float) -> Ramp:
    """Return a ramp that stays where it is."""
    return Ramp(start=value, end=value)


def as_ramp(value: float | Ramp) -> Ramp:
    """Return a number as a constant ramp, a ramp as it is."""
    return value if isinstance(value, Ramp) else constant(float(value))


# -- decay of a teacher ------------------------------------------------------------------------------------------------


def linear(x: Tensor, scale: float) -> Tensor:
    """Fall in a straight line to 0 at `scale`."""
    return (1.0 - x / scale).clamp(min=0.0)


def exponential(x: Tensor, scale: float) -> Tensor:
    """Lose one part in `scale` with every step."""
    return torch.full_like(x, 1.0 - 1.0 / scale) ** x


def tanh(x: Tensor, scale: float) -> Tensor:
    """Fall from 0.88 through a half at `scale` towards 0."""
    return 0.5 * (1.0 - ((x - scale) / scale).tanh())


SCHEDULES: Mapping[str, Callable[[Tensor, float], Tensor]] = {"linear": linear, "exp": exponential, "tanh": tanh}
"""Every schedule with a name."""


@dataclass(frozen=True)
class TeacherSchedule:
    """A number for every iteration: a schedule by name, or a constant."""

    option: str | float
    """A name of `SCHEDULES`, or the number itself."""
    scale: float = 100.0
    """Iterations after which the schedule has fallen most of its way."""

    def __post_init__(self) -> None:
        if isinstance(self.option, str):
            if self.option not in SCHEDULES:
                raise ValueError(unknown("schedule", self.option, SCHEDULES, where="a number is another choice; it"))
            lowest = 1.0 if self.option == "exp" else 0.0
            if not math.isfinite(self.scale) or self.scale <= 0.0 or self.scale < lowest:
                raise ValueError(f"the scale of {self.option!r} is positive (at least 1 for 'exp'), found {self.scale}")
        elif isinstance(self.option, bool) or not isinstance(self.option, (int, float)):
            raise TypeError(f"a schedule is one of {sorted(SCHEDULES)} or a number, found {self.option!r}")
        elif not math.isfinite(self.option):
            raise ValueError(f"a schedule that is a number is finite, found {self.option}")

    def __call__(self, iteration: Tensor | float) -> Tensor:
        """Return the number of an iteration as a tensor like it, float32; without a device synchronisation."""
        x = torch.as_tensor(iteration).to(torch.float64)
        if not isinstance(self.option, str):
            return torch.full_like(x, float(self.option)).float()
        return SCHEDULES[self.option](x, self.scale).float()

    def require_probability(self, what: str) -> None:
        """Raise for a constant that is no probability; the schedules with names are."""
        if not isinstance(self.option, str) and not 0.0 <= self.option <= 1.0:
            raise ValueError(f"{what} is a probability between 0 and 1, found {self.option}")
