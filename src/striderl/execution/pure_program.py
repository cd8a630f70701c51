"""A function of nested tensors, without gradients, as compiled programs: acting, drawing, for small work on the CPU.

    inputs (obs, state, noise) ──flattened──▶ leaves ──program of this layout──▶ leaves ──rebuilt──▶ (actions, state, …)

What is asked of the function, and how programs are made, is in `traced.py`. There is one program per layout of the
inputs and per `key`, which is what the function decides in Python. The first result, and one of every thousand after
it, is compared with the function as it is written. A function that cannot be compiled, or a program that does not
agree, is a line in the log, and from then on the function runs as it is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from striderl.execution.traced import (
    MOST,
    Backend,
    Program,
    RefusedError,
    check_agreement,
    flattened,
    inductor,
    rebuilt,
)

_log = logging.getLogger(__name__)


class PureFunction:
    """Runs a pure function as compiled programs, or as it is written where that does not work."""

    def __init__(self, what: str, function: Callable[..., Any], backend: Backend | None = None) -> None:
        """Compile nothing yet; `what` names the work in the log."""
        self.what, self.function = what, function
        self.refusal = ""
        """Why the function runs as it is written; empty while it does not."""
        self._backend = backend or inductor
        self._programs: dict[Any, tuple[Program, Any]] = {}

    def __call__(self, key: Hashable, *inputs: Any) -> Any:
        """Return function(*inputs)."""
        if self.refusal:
            return self._as_written(*inputs)
        try:
            return self._run(key, inputs)
        except RefusedError as refusal:
            self.refusal = str(refusal)
            self._programs.clear()
            _log.log(refusal.level, "%s is not compiled: %s", self.what, self.refusal)
            return self._as_written(*inputs)

    @torch.no_grad()
    def _as_written(self, *inputs: Any) -> Any:
        return self.function(*inputs)

    def _run(self, key: Hashable, inputs: tuple[Any, ...]) -> Any:
        leaves: list[Tensor] = []
        layout: list[Any] = [key]
        for each in inputs:
            flattened(each, leaves, layout)
        place = tuple(layout)
        found = self._programs.get(place)
        if found is None:
            found = self._programs[place] = self._compiled(inputs, leaves)
        program, form = found
        results = program(leaves)
        if program.is_due:
            check_agreement(results, _leaves(self._as_written(*inputs)), later=True)
        return rebuilt(form, iter(results))

    def _compiled(self, inputs: tuple[Any, ...], leaves: list[Tensor]) -> tuple[Program, Any]:
        """Return the program for inputs like these, and the form of what the function returns."""
        if len(self._programs) == MOST:
            raise RefusedError(f"inputs have come in more than {MOST} layouts")
        form = self._as_written(*inputs)

        def function(*given: Tensor) -> tuple[Tensor, ...]:
            return _leaves(self._as_written(*rebuilt(inputs, iter(given))))

        program = Program(function, leaves, self._backend)
        check_agreement(program(leaves), _leaves(form))
        return program, form


def _leaves(value: Any) -> tuple[Tensor, ...]:
    leaves: list[Tensor] = []
    flattened(value, leaves, [])
    return tuple(leaves)
