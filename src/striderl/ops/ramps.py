"""Numbers that change over a run: from start to end over so many steps, then constant.

    start ──╲
             ╲            linear: a straight line         exponential: the same factor in every step
              ╲______     end

Used for epsilon, exploration noise, importance exponents: all that a schedule needs to go on is how far the run is.
"""

from __future__ import annotations

from dataclasses import dataclass

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
