"""Modes: how the losses of a minibatch and their gradients are computed.

    function(minibatch) ─▶ {name: (weight, loss)}, {name: statistic}
                              │ Σ weight · loss            │
                           backward ─▶ gradient blocks     └─▶ one packed vector [K] of all numbers

`eager` runs Python as it is written and is the reference. `compiled` runs the same through torch's compiler, which
merges the small operations that dominate small networks. `graphed` records the whole step, optimiser included, as a
CUDA graph and plays it back. All see the same samples in the same order.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.execution.graphed import Graphs

_log = logging.getLogger(__name__)

Losses = Mapping[str, tuple[float | Tensor, Tensor]]
"""Name → (weight, loss)."""

Function = Callable[[Any], tuple[Losses, Mapping[str, Tensor]]]
"""Minibatch → losses with their weights, and statistics as 0-d tensors. Pure: it changes nothing and draws nothing."""


class Evaluated(NamedTuple):
    """What a function says about a minibatch."""

    names: tuple[str, ...]
    """Of the numbers: the losses first, then the statistics; a statistic replaces a loss of the same name."""
    total: Tensor
    """The weighted sum of the losses."""
    numbers: Tensor
    """All numbers in one vector [K], without gradient; losses are not weighted."""


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class ExecutionConfig:
    """How gradient steps are run."""

    mode: str = "eager"
    """'eager'; 'compiled': faster for small networks after tens of seconds of compiling; 'graphed': CUDA graphs; or
    'auto': graphed where the parameters are on a CUDA device, eager elsewhere."""
    strict: bool = False
    """Raise when the mode does not work here, instead of one warning and going on in eager mode."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.mode not in MODES:
            raise ValueError(unknown("mode", self.mode, MODES, where="ExecutionConfig"))


def evaluated(function: Function, minibatch: Any) -> Evaluated:
    """Run a function and pack what it says."""
    losses, statistics = function(minibatch)
    total = torch.stack([weight * loss for weight, loss in losses.values()]).sum()
    numbers = {name: loss for name, (_, loss) in losses.items()} | dict(statistics)
    packed = torch.stack([number.detach().to(total.dtype) for number in numbers.values()])
    return Evaluated(tuple(numbers), total, packed)


class Mode(ABC):
    """One way of going forward and backward."""

    records: bool = False
    """Whether whole steps are recorded and played back."""
    fixed_shapes: bool = False
    """Whether minibatches of one shape are wanted: another shape is compiled or recorded anew."""

    def play(self, key: Any, inputs: Any, prepare: Callable[[Any], Any], body: Callable[[Any], Any]) -> Any:
        """Return what `body(inputs)` returns; a mode that records does so under `key`, see `graphed.Graphs.play`."""
        return body(inputs)

    def wrap(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a pure function without gradients as this mode runs it."""
        return function

    @abstractmethod
    def run(self, function: Function, minibatch: Any, clear: Callable[[], None]) -> Evaluated:
        """Add the gradient of the total to the parameters; `clear` sets the gradients to zero and is called here."""


class Eager(Mode):
    """Python as it is written."""

    def run(self, function: Function, minibatch: Any, clear: Callable[[], None]) -> Evaluated:
        """Go forward and backward."""
        found = evaluated(function, minibatch)
        clear()
        found.total.backward()  # type: ignore[no-untyped-call]
        return found


class Compiled(Mode):
    """Through torch's compiler: one program per function and per shape of a minibatch."""

    fixed_shapes = True

    def __init__(self, strict: bool = False, backend: str | Callable[..., Any] = "inductor") -> None:
        """Compile nothing yet; `strict` raises what goes wrong later instead of falling back.

        `backend` is the one of `torch.compile` to use.
        """
        self.strict, self.backend = strict, backend
        self.fallback: str = ""
        """Why everything runs eagerly; empty while it does not."""
        self._eager = Eager()
        self._programs: dict[Function, Callable[[Any], Evaluated]] = {}

    def run(self, function: Function, minibatch: Any, clear: Callable[[], None]) -> Evaluated:
        """Go forward and backward in compiled code; the same function must be given each time, not a copy of it."""
        if self.fallback:
            return self._eager.run(function, minibatch, clear)
        program = self._programs.get(function)
        if program is None:
            program = self._programs[function] = _compiled(function, self.backend)
        try:
            found = program(minibatch)
            clear()
            found.total.backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # the compiler raises many kinds; what is not its fault comes again in eager mode
            if self.strict:
                raise
            self.fallback = f"{type(error).__name__}: {error}"
            found = self._eager.run(function, minibatch, clear)
            _log.warning(
                "compiling failed, so updates go on eagerly, with the same results: %s. "
                "ExecutionConfig(mode='compiled', strict=True) raises instead",
                self.fallback.partition("\n")[0],
            )
        return found


def _compiled(function: Function, backend: str | Callable[..., Any]) -> Callable[[Any], Evaluated]:
    def program(minibatch: Any) -> Evaluated:
        return evaluated(function, minibatch)

    # torch remembers programs by code object and gives up after eight; with one of its own, each function has eight
    alone = FunctionType(program.__code__.replace(), program.__globals__, "program", None, program.__closure__)
    compiled: Callable[[Any], Evaluated] = torch.compile(alone, dynamic=False, backend=backend)
    return compiled


class Graphed(Eager):
    """As CUDA graphs: one recording per function and per shape of a minibatch."""

    records = True
    fixed_shapes = True

    def __init__(self) -> None:
        """Record nothing yet."""
        self._graphs = Graphs()

    def play(self, key: Any, inputs: Any, prepare: Callable[[Any], Any], body: Callable[[Any], Any]) -> Any:
        """Record the first time, play back from then on."""
        return self._graphs.play(key, inputs, prepare, body)

    def wrap(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the function as a recording of itself."""

        def body(inputs: Any) -> Any:
            with torch.no_grad():
                return function(inputs)

        return lambda inputs: self._graphs.play(function, inputs, body, body)


MODES = ("auto", "eager", "compiled", "graphed")
"""The ways of running a step."""


def mode_of(chosen: str | ExecutionConfig, device: torch.device | str = "cpu") -> Mode:
    """Return the mode of a name or a config, for parameters on this device; one line in the log says which and why."""
    config = ExecutionConfig(mode=chosen) if isinstance(chosen, str) else chosen
    on_cuda = torch.device(device).type == "cuda"
    if config.mode == "graphed" and not on_cuda:
        reason = f"mode='graphed' records CUDA graphs, and the parameters are on {device}"
        if config.strict:
            raise ValueError(f"{reason}; move them there, or choose 'eager' or 'compiled'")
        _log.warning("%s: gradient steps go on eagerly", reason)
        return Eager()
    if config.mode == "graphed" or (config.mode == "auto" and on_cuda):
        _log.info("gradient steps are recorded as CUDA graphs (mode=%r)", config.mode)
        return Graphed()
    return Compiled(config.strict) if config.mode == "compiled" else Eager()
