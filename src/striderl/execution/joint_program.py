"""Forward and backward as one compiled program, without autograd while it runs: for small networks on the CPU.

    trace once     minibatch ─▶ function ─▶ Σ weight · loss ─▶ torch.autograd.grad ─▶ graph of plain tensor operations
                                                                  │ captured tensors become inputs
    run            [leaves of the minibatch, parameters, …] ─▶ compiled graph ─▶ numbers [K], gradient block per group

`torch.compile` makes two programs with autograd between them, and checks a lot at each call: of a millisecond that a
step of a small Q-network takes, half is spent on that. How programs are made, and what they ask of a function, is in
`traced.py`.

The first result, and one of every thousand after it, is compared with the function as it is written; a program that
does not agree is not used any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.execution.modes import Evaluated, Function, as_written, evaluated
from striderl.execution.parameter_groups import ParameterGroup, gradients_of
from striderl.execution.traced import (
    CHECK_EVERY,
    MOST,
    Backend,
    Program,
    RefusedError,
    check_agreement,
    flattened,
    inductor,
    rebuilt,
)

__all__ = ["CHECK_EVERY", "MOST", "JointPrograms", "RefusedError"]


class JointPrograms:
    """Runs functions of minibatches as joint programs and leaves the gradients with the groups."""

    def __init__(self, groups: Mapping[str, ParameterGroup], backend: Backend | None = None) -> None:
        """Compile nothing yet."""
        self._groups = list(groups.values())
        self._parameters = [each for group in self._groups for each in group.flat.parameters]
        self._grads = [group.flat.grad for group in self._groups]
        self._backend = backend or inductor
        self._programs: dict[Any, tuple[tuple[str, ...], Program]] = {}
        self._layouts: dict[Function, int] = {}

    def run(self, function: Function, minibatch: Any) -> Evaluated:
        """Put the gradients of the weighted losses in place of the last ones; return the numbers.

        Raises `RefusedError` where the function cannot be compiled so; the gradients are what they were then.
        """
        leaves: list[Tensor] = []
        layout: list[Any] = [function]
        layout += [each.requires_grad for each in self._parameters]
        flattened(minibatch, leaves, layout)
        key = tuple(layout)
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = self._compiled(function, minibatch, leaves)
        names, program = found
        numbers, total, *grads = results = program(leaves)
        if program.is_due:
            check_agreement(results, self._as_written(function, minibatch)[1], later=True)
        with torch.no_grad():
            for place, grad in zip(self._grads, grads):
                place.copy_(grad)
        return Evaluated(names, total, numbers)

    def _compiled(self, function: Function, minibatch: Any, leaves: list[Tensor]) -> tuple[tuple[str, ...], Program]:
        count = self._layouts[function] = self._layouts.get(function, 0) + 1
        if as_written(function):
            raise RefusedError("it is to be run as it is written")
        if count > MOST:
            raise RefusedError(f"minibatches have come in more than {MOST} layouts")
        names, wanted = self._as_written(function, minibatch)

        def joint(*inputs: Tensor) -> tuple[Tensor, ...]:
            return self._as_written(function, rebuilt(minibatch, iter(inputs)))[1]

        program = Program(joint, leaves, self._backend)
        check_agreement(program(leaves), wanted)
        return names, program

    def _as_written(self, function: Function, minibatch: Any) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
        """Return the names of the numbers, and what a program returns."""
        found = evaluated(function, minibatch)
        return found.names, (found.numbers, found.total.detach(), *self._gradients(found.total))

    def _gradients(self, total: Tensor) -> list[Tensor]:
        """Return the gradient block of every group."""
        found = iter(gradients_of(total, self._parameters))
        return [
            torch.cat(
                [torch.zeros_like(each).view(-1) if grad is None else grad.reshape(-1)
                 for each, grad in zip(group.flat.parameters, found)]
            )
            for group in self._groups
        ]  # fmt: skip
