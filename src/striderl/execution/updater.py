"""`Updater`: one gradient step as one pure step, the same in every mode.

    minibatch ─▶ function ─▶ Σ weight · loss ─▶ backward ─▶ sum over processes ─▶ rule ─▶ clip ─▶ optimiser
                    │                                                              │ learning rate
                    └── losses and statistics, one packed vector ──────────────────┴─▶ metrics of the step

Nothing in it syncs with the device. The rule is applied before the optimiser, so a learning rate that follows the
KL of a minibatch is used for that minibatch already, as in rsl_rl.

With `reduce`, which sums a tensor over processes, the step is that of one process with the samples of all: means count
all valid samples (`striderl.ops.moments`), gradients are summed, and a gradient that is not finite in one process is
not finite in any, so that all of them skip the step together.

Keep memory that one gradient step frees for the next one.

glibc gives the top of its heap back to the system whenever enough of it is free, which is after every backward pass of
a large network, and allocates it again in the next forward pass: a hundred thousand page faults per update, 15 % of its
time for [512, 256, 128] on 6,144 samples. With a higher threshold the memory stays. It costs nothing but what the
process had at its peak anyway. Other allocators and systems are left alone, and STRIDERL_KEEP_MEMORY=0 leaves glibc's.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.execution.background import fall_back
from striderl.execution.epochs import OnRows, ShuffledMinibatches
from striderl.execution.graphed import addresses
from striderl.execution.joint_program import JointPrograms, PooledPrograms
from striderl.execution.modes import Eager, Evaluated, ExecutionConfig, Function, Mode, as_written, evaluated, mode_of
from striderl.execution.parameter_groups import FlatParameters as FlatParameters
from striderl.execution.parameter_groups import GroupConfig as GroupConfig
from striderl.execution.parameter_groups import ParameterGroup as ParameterGroup
from striderl.execution.parameter_groups import gradients_of
from striderl.execution.traced import PURE, ReadsValueError, RefusedError
from striderl.ops.moments import AllReduce, current_all_reduce, pooled

_log = logging.getLogger(__name__)

Rule = Callable[[Mapping[str, Tensor], Mapping[str, ParameterGroup]], None]
"""(metrics of the minibatch, groups): changes learning rates by tensor arithmetic, with `copy_`."""


class UpdateProgress(NamedTuple):
    """The metrics of several steps, as 0-d tensors."""

    mean: dict[str, Tensor]
    """The mean of every metric over the steps."""
    first: dict[str, Tensor]
    """The metrics of the first step."""
    num_steps: int
    """Number of steps."""


class _Sums:
    """Metrics of several steps, summed in one vector."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.first = self.total = torch.zeros(0)
        self.count = 0

    def add(self, names: tuple[str, ...], numbers: Tensor) -> None:
        """Add the metrics of one step [K], or of several [S, K]."""
        several = numbers.dim() == 2
        here = numbers.sum(0) if several else numbers
        if self.count:
            self.total.add_(here)
        else:
            self.names, self.first = names, numbers[0] if several else numbers
            self.total = here if several else here.clone()
        self.count += len(numbers) if several else 1


class Updater:
    """Takes gradient steps on several groups of parameters together."""

    def __init__(
        self,
        groups: Mapping[str, ParameterGroup],
        *,
        mode: str | ExecutionConfig = "eager",
        reduce: AllReduce | None = None,
    ) -> None:
        """Create the groups by name; a parameter belongs to one of them.

        Without `reduce`, an updater that is made inside `ops.moments.pooled` takes that of the region.
        """
        reduce = reduce or current_all_reduce()
        self.groups = dict(groups)
        first = next(iter(self.groups.values()), None)
        device = torch.device("cpu") if first is None else first.flat.flat.device
        self.mode = mode_of(mode, device, alone=reduce is None)
        if device.type == "cpu":
            keep_freed_memory()
        if self.mode.fuses:
            for group in self.groups.values():
                group.write_out()
        self.reduce = reduce
        self.after_step: Callable[[], None] | None = None
        """Called by `run` after every gradient step that is not captured: envs may be stepped in between."""
        self._names: dict[Any, tuple[str, ...]] = {}
        self._ends: dict[Any, Callable[[Tensor], Tensor]] = {}
        self._joint: JointPrograms | PooledPrograms | None = None
        if device.type == "cpu" and reduce is None:
            self._joint = JointPrograms(self.groups, switch=self.mode.switch)
        elif device.type == "cpu" and reduce is not None and self.mode.switch is not None:
            self._joint = PooledPrograms(self.groups, reduce, self.mode.switch)
        self._refused: dict[Function, Mode] = {}
        self._norm_names = tuple("grad_norm" if name == "policy" else f"{name}_grad_norm" for name in self.groups)
        owner: dict[int, str] = {}
        for name, group in self.groups.items():
            for parameter in group.flat.parameters:
                other = owner.setdefault(id(parameter), name)
                if other != name:
                    raise ValueError(f"a parameter {list(parameter.shape)} is in both groups {other!r} and {name!r}")

    def attach(self) -> None:
        """Check, before each update, that every parameter and gradient is still in its block."""
        for group in self.groups.values():
            group.flat.attach()

    def trainable(self) -> tuple[bool, ...]:
        """Return which parameters are not frozen: graphs and programs fit these alone."""
        return tuple(each.requires_grad for group in self.groups.values() for each in group.flat.parameters)

    def pooled(self) -> AbstractContextManager[None]:
        """Return a region in which means and statistics use the samples of all processes; see `ops.moments`."""
        return pooled(self.reduce)

    def step(self, function: Function, minibatch: Any, rule: Rule | None = None) -> dict[str, Tensor]:
        """Take one step; return losses (not weighted), statistics and the norms of the gradients, by name."""
        for group in self.groups.values():
            if not group.flat.is_attached:
                group.flat.attach()
        take = self._captured_step if self.mode.records else self.gradient_step
        names, numbers = take(function, minibatch, rule)
        return dict(zip(names, numbers.unbind()))

    def run(self, function: Function, minibatches: Iterable[Any], rule: Rule | None = None) -> UpdateProgress:
        """Take one step per minibatch; the metrics of all steps are summed in one vector.

        Where steps are captured, minibatches are gathered inside the graph, and many steps are one graph.
        """
        sums = _Sums()
        if self.mode.records:
            for found in self._captured_steps(function, minibatches, rule):
                sums.add(*found)
        else:
            for minibatch in minibatches:
                sums.add(*self.gradient_step(function, minibatch, rule))
                if self.after_step is not None:
                    self.after_step()
        if not sums.count:
            raise ValueError("there are no minibatches to learn from")
        mean, first = self._agreed(torch.stack([sums.total / sums.count, sums.first]))
        return UpdateProgress(dict(zip(sums.names, mean.unbind())), dict(zip(sums.names, first.unbind())), sums.count)

    def gradient_step(self, function: Function, minibatch: Any, rule: Rule | None) -> tuple[tuple[str, ...], Tensor]:
        """Compute losses and gradients, sum them over all processes, and take one step of every optimiser.

        Returns the names and values of losses, statistics and gradient norms.
        """
        with self.pooled():
            if isinstance(self.mode, Eager):
                found = evaluated(function, minibatch)
                self._backward(found.total)
            else:
                found = self._evaluated(function, minibatch)
        if self.reduce is not None:
            for group in self.groups.values():
                group.flat.grad.copy_(self.reduce(group.flat.grad))
        return (*found.names, *self._norm_names), self._end_of(found.names, rule)(found.numbers)

    def _captured_steps(
        self, function: Function, minibatches: Iterable[Any], rule: Rule | None
    ) -> Iterator[tuple[tuple[str, ...], Tensor]]:
        if isinstance(minibatches, ShuffledMinibatches):
            yield from self._steps_on_rows(function, minibatches, rule)
        else:
            yield from (self._captured_step(function, minibatch, rule) for minibatch in minibatches)

    def _steps_on_rows(
        self, function: Function, minibatches: ShuffledMinibatches, rule: Rule | None
    ) -> Iterator[tuple[tuple[str, ...], Tensor]]:
        on_rows = OnRows(function, tuple(minibatches.dims.items()))
        # one place for all functions: they are run one after the other, and columns are large
        held = self.mode.hold(on_rows.dims, minibatches.columns, minibatches.lasting)
        key = (on_rows, rule, self.trainable(), addresses(held))
        for rows in minibatches.rows_of_many():
            numbers = self.mode.play(
                key,
                rows,
                lambda rows: self._try_out(on_rows, {"columns": held, "rows": rows[0]}, rule),
                lambda rows: torch.stack(
                    [self._named_step(key, on_rows, {"columns": held, "rows": each}, rule) for each in rows.unbind()]
                ),
            )
            yield self._names[key], numbers

    def _captured_step(self, function: Function, minibatch: Any, rule: Rule | None) -> tuple[tuple[str, ...], Tensor]:
        key = (function, rule, self.trainable())
        numbers = self.mode.play(
            key,
            minibatch,
            lambda inputs: self._try_out(function, inputs, rule),
            lambda inputs: self._named_step(key, function, inputs, rule),
        )
        return self._names[key], numbers

    def _named_step(self, key: Any, function: Function, minibatch: Any, rule: Rule | None) -> Tensor:
        self._names[key], numbers = self.gradient_step(function, minibatch, rule)
        return numbers

    def _end_of(self, names: tuple[str, ...], rule: Rule | None) -> Callable[[Tensor], Tensor]:
        """Return what comes after the gradients, as a function of the metrics: rule, clipping and optimisers.

        It returns the metrics followed by the norms of the gradients.
        """
        end = self._ends.get((names, rule))
        if end is None:

            def end_as_written(numbers: Tensor) -> Tensor:
                if rule is not None:
                    rule(dict(zip(names, numbers.unbind())), self.groups)
                norms = torch.stack([group.step() for group in self.groups.values()])
                return torch.cat([numbers, norms.to(numbers.dtype)])

            end = self._ends[names, rule] = self.mode.fuse(end_as_written)
        return end

    def _evaluated(self, function: Function, minibatch: Any) -> Evaluated:
        """Compute metrics and gradients: as one program where the mode and the function allow it."""
        if self.mode.joint and self._joint is not None and function not in self._refused:
            try:
                if (found := self._joint.run(function, minibatch)) is not None:
                    return found
            except ReadsValueError as refusal:
                # torch's compiler would cut the function there, and put a loop over cells in the place of a memory
                _log.info("forward and backward run as they are written: %s", refusal)
                self._refused[function] = Eager()
            except RefusedError as refusal:
                self._refused[function] = self.mode
                self._report(function, refusal)
        return self._refused.get(function, self.mode).run(function, minibatch, self._backward)

    def _report(self, function: Function, refusal: RefusedError) -> None:
        """Warn where a function is not compiled at all, or has been wrong; compiled in two programs is only slower."""
        if self.mode.switch is None or as_written(function):
            _log.log(refusal.level, "forward and backward are compiled apart: %s", refusal)
        else:
            fall_back(
                "losses are not compiled, so they run as they are written, slower",
                refusal,
                f"{PURE}, or choose mode='eager'",
                strict=self.mode.strict,
            )

    def _try_out(self, function: Function, minibatch: Any, rule: Rule | None) -> None:
        """Take a step and undo it, so that everything is compiled and allocated."""
        found = self.mode.run(function, minibatch, self._backward)
        places = [place for group in self.groups.values() for place in group.changing()]
        before = [place.clone() for place in places]
        try:
            self._end_of(found.names, rule)(found.numbers)
        finally:  # also of a step that failed half-way
            for place, value in zip(places, before):
                place.copy_(value)
            for group in self.groups.values():
                group.zero_grad()

    def _backward(self, total: Tensor) -> None:
        """Put the gradients of a total in the place of the last ones."""
        if self.mode.records:
            # adding to each parameter's gradient is a kernel of its own; joined, all are one
            groups = list(self.groups.values())
            parameters = [parameter for group in groups for parameter in group.flat.parameters]
            found = iter(gradients_of(total, parameters))
            for group in groups:
                group.set_grad([next(found) for _ in group.flat.parameters])
            return
        for group in self.groups.values():
            group.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]

    def _agreed(self, numbers: Tensor) -> Tensor:
        """Return the mean over processes, so that metrics that are no sample means are equal in all processes too."""
        if self.reduce is None:
            return numbers
        sums = self.reduce(torch.cat([numbers, torch.ones_like(numbers[:1])]))
        return sums[:-1] / sums[-1:]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every group."""
        return {name: group.state_dict() for name, group in self.groups.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the saved state of every group."""
        if state.keys() != self.groups.keys():
            raise ValueError(f"saved groups {sorted(state)} are not this updater's {sorted(self.groups)}")
        for name, group in self.groups.items():
            group.load_state_dict(state[name])


# -- memory ------------------------------------------------------------------------------------------------------------


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # the names of mallopt's parameters are numbers
_KEPT = 512 * 2**20
_LARGEST_MMAP = 32 * 2**20
"""The highest that glibc takes; larger blocks are mapped one by one."""
_done = False


def keep_freed_memory() -> bool:
    """Raise glibc's thresholds, once per process; return whether they are raised."""
    global _done
    if _done or os.environ.get("STRIDERL_KEEP_MEMORY") == "0" or platform.libc_ver()[0] != "glibc":
        return _done
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    _done = bool(mallopt(_TRIM_THRESHOLD, _KEPT)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP))
    _log.debug("glibc keeps up to %d MiB of freed memory", _KEPT // 2**20)
    return _done
