"""Modes: how the losses of a minibatch and their gradients are computed.

    function(minibatch) ─▶ {name: (weight, loss)}, {name: statistic}
                              │ Σ weight · loss            │
                           backward ─▶ gradient blocks     └─▶ one packed vector [K] of all metrics

`eager` runs Python as it is written and is the reference. `compiled` runs the same through torch's compiler, which
merges the small operations that dominate small networks. `graphed` captures the whole step, optimiser included, as a
CUDA graph and replays it. All get the same samples in the same order.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from types import FunctionType
from typing import Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.execution.background import Switch, current_switch, fall_back
from striderl.execution.graphed import Graphs, are_together
from striderl.ops.returns import has_triton

_log = logging.getLogger(__name__)

Losses = Mapping[str, tuple[float | Tensor, Tensor]]
"""Name → (weight, loss)."""

PureT = TypeVar("PureT", bound=Callable[..., Any])

Function = Callable[[Any], tuple[Losses, Mapping[str, Tensor]] | tuple[Losses, Any, Mapping[str, Tensor]]]
"""Minibatch → losses with their weights, and statistics as 0-d tensors. Pure: it changes nothing and draws nothing.

What it returns in between, such as the intermediate tensors of `PPO.compute_losses`, is not read.
"""


class Evaluated(NamedTuple):
    """The outputs of a function for a minibatch."""

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
    'auto': graphed where the parameters are on a CUDA device (of several processes collection alone), eager elsewhere;
    a run captures from its second iteration on and compiles later, see `background.py`."""
    strict: bool = False
    """Raise when the mode does not work here, instead of one warning and falling back to eager mode."""
    fuse: bool = True
    """With 'graphed': compile what is captured, where Triton is installed. Updates are about twice as fast, after tens
    of seconds of compiling."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.mode not in MODES:
            raise ValueError(unknown("mode", self.mode, MODES, where="ExecutionConfig"))


def evaluated(function: Function, minibatch: Any) -> Evaluated:
    """Run a function and pack its outputs."""
    losses, *_, statistics = function(minibatch)
    # a product with 1, and a stack to be summed, are a dozen operations, there and back, of a small step's hundred
    parts = [loss if isinstance(weight, float) and weight == 1.0 else weight * loss for weight, loss in losses.values()]
    total = reduce(torch.add, parts)
    numbers = {name: loss for name, (_, loss) in losses.items()} | dict(statistics)
    packed = torch.stack([number.detach().to(total.dtype) for number in numbers.values()])
    return Evaluated(tuple(numbers), total, packed)


class Mode(ABC):
    """One way of going forward and backward."""

    records: bool = False
    """Whether whole steps are captured and replayed."""
    joint: bool = False
    """Whether forward and backward may be compiled together, see `JointPrograms`."""
    fuses: bool = False
    """Whether `fuse` compiles."""
    switch: Switch | None = None
    """When functions change to programs that are compiled beside training; None: at once, or never."""
    strict: bool = False
    """Whether what cannot be compiled or captured raises."""
    explicit: bool = False
    """Whether this mode was asked for by its name: what it cannot do is a warning then. 'auto' takes what works."""
    fixed_shapes: bool = False
    """Whether minibatches need one shape: another shape is compiled or captured again."""

    @property
    def collection(self) -> Mode:
        """How steps of envs are taken: captured also where updates that several processes share are not."""
        return self

    def play(self, key: Any, inputs: Any, prepare: Callable[[Any], Any], body: Callable[[Any], Any]) -> Any:
        """Return what `body(inputs)` returns; a graphed mode captures it under `key`, see `graphed.Graphs.play`."""
        return body(inputs)

    def play_in_place(self, key: Any, inputs: Any, function: Callable[[Any], Any]) -> Any:
        """Return what `function(inputs)` returns; in a graphed mode always at the same addresses.

        There the next call under the same key, with inputs of these shapes, overwrites it. The function is pure.
        """
        return function(inputs)

    def hold(self, key: Any, columns: Mapping[str, Any], lasting: frozenset[str]) -> Mapping[str, Any]:
        """Return columns that graphs may read in place; see `graphed.Graphs.hold`."""
        return columns

    def fuse(self, function: PureT) -> PureT:
        """Return a function of tensors, without gradients, as this mode runs it inside a graph."""
        return function

    def wrap(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a pure function without gradients as this mode runs it."""
        return function

    @abstractmethod
    def run(self, function: Function, minibatch: Any, backward: Callable[[Tensor], None]) -> Evaluated:
        """Evaluate a function and pass the total to `backward`, which computes the gradients."""


class Eager(Mode):
    """Python as it is written."""

    def run(self, function: Function, minibatch: Any, backward: Callable[[Tensor], None]) -> Evaluated:
        """Go forward and backward."""
        found = evaluated(function, minibatch)
        backward(found.total)
        return found


class EagerUpdates(Eager):
    """Python as it is written for updates, whose sums over processes lie between its operations, and captured steps.

    Each process steps envs of its own, so collecting needs no other process, and one whose capture fails goes on alone.
    A captured sum over processes must be captured by all of them (NCCL) and gloo's cannot be; and a communicator is not
    destroyed while a graph refers to it, so a process that has lost another one would hang instead of saving.
    """

    def __init__(self, graphed: Graphed) -> None:
        """Take the mode of collecting."""
        self._graphed = graphed

    @property
    def collection(self) -> Mode:
        """The captured mode."""
        return self._graphed


class Switching(Mode):
    """Python as it is written, until programs that are compiled beside training take over; see `background.py`."""

    joint = True

    def __init__(self, switch: Switch, strict: bool = False) -> None:
        """Compile nothing yet; `strict` raises where a function cannot be compiled."""
        self.switch, self.strict = switch, strict
        switch.strict = switch.strict or strict
        self._eager = Eager()

    def run(self, function: Function, minibatch: Any, backward: Callable[[Tensor], None]) -> Evaluated:
        """Go forward and backward as written: a function that has no program."""
        return self._eager.run(function, minibatch, backward)


class Compiled(Mode):
    """Through torch's compiler: one program per function and per shape of a minibatch."""

    fixed_shapes = True

    def __init__(self, strict: bool = False, backend: str | Callable[..., Any] = "inductor") -> None:
        """Compile nothing yet; `strict` raises later errors instead of falling back.

        `backend` is the one of `torch.compile` to use.
        """
        self.strict, self.backend = strict, backend
        self.joint = backend == "inductor" and not self.records
        self.fallback: str = ""
        """Why everything runs eagerly; empty while it does not."""
        self._eager = Eager()
        self.programs: dict[Function, Callable[[Any], Evaluated]] = {}

    def run(self, function: Function, minibatch: Any, backward: Callable[[Tensor], None]) -> Evaluated:
        """Go forward and backward in compiled code; the same function must be given each time, not a copy of it."""
        if self.fallback or as_written(function):
            return self._eager.run(function, minibatch, backward)
        program = self.programs.get(function)
        if program is None:
            program = self.programs[function] = _compiled_losses(function, self.backend, merged=self.records)
        try:
            found = program(minibatch)
            backward(found.total)
        except Exception as error:  # the compiler raises many kinds; other errors are raised again in eager mode
            if self.strict:
                raise
            self.fallback = f"{type(error).__name__}: {error}"
            found = self._eager.run(function, minibatch, backward)
            _log.warning(
                "compiling failed, so updates go on eagerly, with the same results and several times slower: %s. "
                "Mend what it names, or choose mode='eager'; with strict=True it raises instead",
                self.fallback.partition("\n")[0],
            )
        return found


@runtime_checkable
class AsWritten(Protocol):
    """A function that calls what the compiler would replace by something slower; it is run as it is written."""

    as_written: bool


def as_written(function: object) -> bool:
    """Return whether a function is not to be compiled."""
    return isinstance(function, AsWritten) and function.as_written


def _compiled_losses(
    function: Function, backend: str | Callable[..., Any], *, merged: bool
) -> Callable[[Any], Evaluated]:
    def program(minibatch: Any) -> Evaluated:
        return evaluated(function, minibatch)

    return _compiled(program, backend, merged=merged)


def _compiled(program: PureT, backend: str | Callable[..., Any], *, merged: bool = False) -> PureT:
    """Compile a function for one shape of inputs at a time.

    Torch caches programs by code object and gives up after eight; with one of its own, each function has eight.
    """
    assert isinstance(program, FunctionType)
    alone = FunctionType(
        program.__code__.replace(), program.__globals__, program.__name__, program.__defaults__, program.__closure__
    )
    options: dict[str, Any] | None = None
    if merged and backend == "inductor":
        # independent small kernels become one: on a GPU the way from one to the next is most of their time
        options = {"combo_kernels": True}
        if has_triton():
            from striderl.execution.beside import SideBySide

            options["post_grad_custom_pre_pass"] = SideBySide()
    return cast(PureT, torch.compile(alone, dynamic=False, backend=backend, options=options))


class Graphed(Compiled):
    """As CUDA graphs: one graph per function and per shape of a minibatch, of compiled code where that works.

    Compiling takes tens of seconds, capture of functions as they are written a second or two. With a switch, iteration
    0 runs as written; from then on functions are captured as written until it is on, and then again, compiled.
    """

    records = True

    def __init__(self, strict: bool = False, *, fused: bool = True, switch: Switch | None = None) -> None:
        """Start without graphs; with `fused`, functions are compiled before capture, which merges small kernels."""
        super().__init__(strict)
        self.graphs = Graphs()
        self.given_up = ""
        """Why nothing is captured any more; empty while steps are."""
        self.fuses, self.switch = fused, switch
        self._captured_compiled = self.compiles

    @property
    def captures(self) -> bool:
        """Whether steps are captured now: in iteration 0 of a run that counts its iterations they are not."""
        return self.switch is None or self.switch.captures

    @property
    def compiles(self) -> bool:
        """Whether what is captured now is compiled first; graphs of the other kind are not replayed any more."""
        return self.fuses and (self.switch is None or (self.switch.captures and self.switch.on))

    def run(self, function: Function, minibatch: Any, backward: Callable[[Tensor], None]) -> Evaluated:
        """Go forward and backward, in compiled code or as written."""
        runs = super().run if self.compiles else self._eager.run
        return runs(function, minibatch, backward)

    def play(self, key: Any, inputs: Any, prepare: Callable[[Any], Any], body: Callable[[Any], Any]) -> Any:
        """Capture the first time, replay from then on."""
        return self._played(key, inputs, prepare, body, in_place=False)

    def play_in_place(self, key: Any, inputs: Any, function: Callable[[Any], Any]) -> Any:
        """Capture the first time, replay from then on; results keep their addresses."""
        return self._played(key, inputs, function, function, in_place=True)

    def _played(
        self, key: Any, inputs: Any, prepare: Callable[[Any], Any], body: Callable[[Any], Any], *, in_place: bool
    ) -> Any:
        """Replay; what cannot be captured runs as it is from then on, with one warning, or raises if strict.

        Run as it is, `body` starts the kernels of its graph one by one, in the same order on the same numbers.
        """
        if self._captured_compiled != self.compiles:
            self.graphs.clear()
            self._captured_compiled = self.compiles
        if self.captures and not self.given_up:
            try:
                return self.graphs.play(key, inputs, prepare, body, in_place=in_place)
            except RuntimeError as error:
                if self.strict or are_together():  # the capture of the larger graph handles it
                    raise
                self.given_up = str(error).partition("\n")[0]
                _log.warning(
                    "steps cannot be recorded, so they go on one by one, with the same results and slower: %s. "
                    "Mend what it names, or choose mode='compiled' or 'eager'; with strict=True it raises instead",
                    self.given_up,
                )
        with torch.enable_grad():
            return body(inputs)

    def hold(self, key: Any, columns: Mapping[str, Any], lasting: frozenset[str]) -> Mapping[str, Any]:
        """Return the columns at fixed addresses; those that are not `lasting` are copied."""
        return self.graphs.hold(key, columns, lasting)

    def fuse(self, function: PureT) -> PureT:
        """Compile a function that does not change anything; where the compiler cannot, it is captured as it is."""
        return self._try_fused(function) if self.fuses else function

    def _try_fused(self, function: PureT) -> PureT:
        state = {"works": True}

        @cache
        def compiled() -> Callable[..., Any]:  # not before the switch: importing the compiler takes seconds
            return _compiled(_plain(function), self.backend, merged=True)

        def run(*inputs: Any) -> Any:
            if state["works"] and self.compiles:
                try:
                    return compiled()(*inputs)
                except Exception as error:  # the compiler raises many kinds
                    if self.strict or torch.cuda.is_current_stream_capturing():
                        raise
                    state["works"] = False
                    reason = str(error).partition("\n")[0]
                    _log.warning(
                        "compiling failed, so a step is recorded as it is, about half as fast: %s. "
                        "Mend what it names, or set ExecutionConfig(fuse=False); with strict=True it raises instead",
                        reason,
                    )
            return function(*inputs)

        return cast(PureT, run)

    def wrap(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the function as a captured graph, compiled first where this mode does that."""
        fused = self.fuse(function)

        def body(inputs: Any) -> Any:
            with torch.no_grad():
                return fused(inputs)

        return lambda inputs: self._played(function, inputs, body, body, in_place=False)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function that calls this one, which may be a method or an object."""

    def program(*inputs: Any) -> Any:
        return function(*inputs)

    return program


MODES = ("auto", "eager", "compiled", "graphed")
"""The ways of running a step."""


def mode_of(chosen: str | ExecutionConfig, device: torch.device | str = "cpu", *, alone: bool = True) -> Mode:
    """Return the mode of a name or a config, for parameters on this device; log once which and why.

    An empty name is 'eager'. Updates shared by several processes (not `alone`) are not captured, see `EagerUpdates`: on
    a GPU 'auto' and 'graphed' capture the steps of envs there.
    """
    config = ExecutionConfig(mode=chosen or "eager") if isinstance(chosen, str) else chosen
    on_cuda = torch.device(device).type == "cuda"
    if config.mode == "graphed" and not on_cuda:
        fall_back(
            "gradient steps are eager, several times slower than on a GPU",
            f"mode='graphed' records CUDA graphs, and the parameters are on {device}",
            "Move them there (--device cuda), or choose 'compiled' or 'auto'",
            strict=config.strict,
        )
        return Eager()
    if on_cuda and config.mode in ("auto", "graphed"):
        fused = config.fuse and has_triton()
        switch = current_switch() if config.mode == "auto" else None
        mode = Graphed(config.strict, fused=fused, switch=switch)
        mode.explicit = config.mode == "graphed"
        if not alone:
            return _eager_updates(mode)
        how = "compiled and recorded" if mode.compiles else "recorded"
        when = "" if mode.captures else " from iteration 1 on"
        _log.info("gradient steps are %s as CUDA graphs%s (mode=%r)", how, when, config.mode)
        return mode
    if config.mode == "auto" and not on_cuda and (switch := current_switch()) is not None:
        return Switching(switch, config.strict)
    if config.mode == "auto":
        why = f"the parameters are on {device}"
        _log.info("gradient steps are eager: %s (mode='auto'; 'compiled' is faster in long runs)", why)
    return Compiled(config.strict) if config.mode == "compiled" else Eager()


def _eager_updates(graphed: Graphed) -> EagerUpdates:
    """Return the mode of several processes; warn where CUDA graphs were asked for, 'auto' takes what works."""
    what = "collection is captured, and updates are eager"
    why = "several processes sum their gradients between the operations of an update"
    if graphed.explicit:
        fall_back(what, why, "Updates are fastest in one process; 'auto' is the same here", strict=graphed.strict)
    else:
        _log.info("%s: %s (mode='auto')", what, why)
    return EagerUpdates(graphed)
