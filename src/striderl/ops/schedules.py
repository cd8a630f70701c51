"""Learning rates by iteration, as tensor functions without host synchronisation or state.

    iteration   0     1     2     3     4
    linear      1/4   2/4   3/4   1     1        LinearLR(start_factor=0.25, end_factor=1, total_iters=3)
    step        1     1     1/10  1/10  1/100    StepLR(step_size=2, gamma=0.1)

Arguments, defaults and values are those of `torch.optim.lr_scheduler`, in closed form: a rate follows from the
iteration alone, so a resumed run needs one number.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from striderl.data.naming import unknown

Rule = Callable[[Tensor], Tensor]
"""Iteration (0-d, integer) → learning rate (0-d, float32)."""


def linear(first: float, *, start_factor: float = 1.0 / 3.0, end_factor: float = 1.0, total_iters: int = 5) -> Rule:
    """Go from first · start_factor to first · end_factor in a straight line over `total_iters` iterations."""
    _positive(total_iters=total_iters)
    if not (0.0 < start_factor <= 1.0 and 0.0 <= end_factor <= 1.0):
        raise ValueError(
            f"factors are between 0 and 1, and start_factor is not 0, found {start_factor} and {end_factor}"
        )
    return lambda t: (
        first * (start_factor + (end_factor - start_factor) * (t.double().clamp(max=total_iters)) / total_iters)
    )


def exponential(first: float, *, gamma: float) -> Rule:
    """Multiply by gamma in each iteration."""
    return lambda t: first * torch.full_like(t, gamma, dtype=torch.float64) ** t


def cosine(first: float, *, T_max: float, eta_min: float = 0.0) -> Rule:
    """Go from first to eta_min in `T_max` iterations along half a cosine, and back in the next as many."""
    _positive(T_max=T_max)
    return lambda t: eta_min + (first - eta_min) * (1.0 + (math.pi * t.double() / T_max).cos()) / 2.0


def step(first: float, *, step_size: int, gamma: float = 0.1) -> Rule:
    """Multiply by gamma every `step_size` iterations."""
    _positive(step_size=step_size)
    return lambda t: first * torch.full_like(t, gamma, dtype=torch.float64) ** (t // step_size)


def multistep(first: float, *, milestones: Sequence[int], gamma: float = 0.1) -> Rule:
    """Multiply by gamma in each of the iterations named; one named twice counts twice."""
    places = sorted(int(place) for place in milestones)

    def rule(t: Tensor) -> Tensor:
        passed = sum(((t >= place).double() for place in places), start=torch.zeros_like(t, dtype=torch.float64))
        return first * torch.full_like(passed, gamma) ** passed

    return rule


def held_back(first: float, *, factor: float = 1.0 / 3.0, total_iters: int = 5) -> Rule:
    """Give first · factor for `total_iters` iterations, then first."""
    if not 0.0 <= factor <= 1.0:
        raise ValueError(f"factor is between 0 and 1, found {factor}")
    return lambda t: torch.where(t < total_iters, first * factor, first)


def constant(first: float) -> Rule:
    """Stay with first."""
    return lambda t: torch.full_like(t, first, dtype=torch.float64)


RULES: Mapping[str, Callable[..., Rule]] = {
    "constant": constant,
    "linear": linear,
    "exponential": exponential,
    "cosine": cosine,
    "step": step,
    "multistep": multistep,
    "ConstantLR": held_back,
    "LinearLR": linear,
    "ExponentialLR": exponential,
    "CosineAnnealingLR": cosine,
    "StepLR": step,
    "MultiStepLR": multistep,
}
"""Rules by name; the second half are torch's names. 'ConstantLR' is torch's, which is held back at first."""


def learning_rate_rule(name: str, first: float, settings: Mapping[str, Any]) -> Rule:
    """Return the rule of this name for a first learning rate; unknown names and settings raise."""
    if name not in RULES:
        raise ValueError(unknown("learning-rate schedule", name, RULES, where="striderl.ops.schedules"))
    rule = RULES[name]
    wanted = {key: each for key, each in inspect.signature(rule).parameters.items() if key != "first"}
    for key in settings:
        if key not in wanted:
            raise ValueError(unknown("setting", key, wanted, where=f"the schedule {name!r}"))
    missing = [key for key, each in wanted.items() if each.default is each.empty and key not in settings]
    if missing:
        raise ValueError(f"the schedule {name!r} wants {missing} too, found {dict(settings)}")
    made = rule(first, **settings)
    return lambda iteration: made(iteration).float()


def _positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if number <= 0:
            raise ValueError(f"{name} is positive, found {number}")
