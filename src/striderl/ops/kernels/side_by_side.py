"""Operations that do not need each other, on streams of their own: actor and critic run at the same time.

    stream 0   ┌ actor, forward  ──────────┐              ┌ actor: d hidden layers ──────┐
    stream 1   │                           │  losses      ├ actor: d weights ────────────┤
    stream 2   └ critic, forward ──────────┘              ├ critic: d hidden layers ─────┤
    stream 3                                              └ critic: d weights ───────────┘

A kernel on a robot's network leaves part of the GPU idle in its last wave, and a step of a small LSTM half of it; a
second network fills the rest. The results are those of the operations one after the other, to the bit.

`execution.beside` puts `side_by_side` into compiled programs. Memory that a stream frees is used again by that stream
alone, and only after it has waited for the main one, so nothing is overwritten while it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

MOST_ROWS = 65536
"""Of more rows than this an operation fills the GPU, and two would share its cache: one after the other is faster."""
MOST = 4
"""How many operations run at the same time."""

OPERATIONS: dict[str, tuple[Any, int]] = {}
"""Name → the operation, and the dimension of its first argument that has one entry per row."""


def may_run_beside(operation: Any, *, rows_dim: int) -> None:
    """Let an operation run beside others; `rows_dim` is the dimension of rows of its first argument, a tensor.

    It must return tensors, in a tuple or a list, that are none of its inputs.
    """
    OPERATIONS[operation.name()] = operation, rows_dim


_branch: ContextVar[int] = ContextVar("branch", default=0)
_streams: dict[int, list[Any]] = {}


def _stream(device: torch.device, number: int) -> Any:
    """Return one of the side streams of a device; two of them belong to each branch."""
    place = torch.cuda.current_device() if device.index is None else device.index
    if place not in _streams:
        _streams[place] = [torch.cuda.Stream(device) for _ in range(2 * MOST)]  # type: ignore[no-untyped-call]
    return _streams[place][number]


@contextmanager
def aside(like: Tensor) -> Iterator[None]:
    """Run what is inside beside later work of this branch, until `joined`; it starts after all work so far.

    Nothing else is done on a CPU. What it reads and writes must stay allocated until then.
    """
    if not like.is_cuda:
        yield
        return
    stream = _stream(like.device, 2 * _branch.get() + 1)
    stream.wait_stream(torch.cuda.current_stream(like.device))
    with torch.cuda.stream(stream):
        yield


def joined(like: Tensor) -> None:
    """Let later work of this branch wait for what runs `aside`."""
    if like.is_cuda:
        torch.cuda.current_stream(like.device).wait_stream(_stream(like.device, 2 * _branch.get() + 1))


# -- one operation for several -----------------------------------------------------------------------------------------


@torch.library.custom_op("striderl::side_by_side", mutates_args=())
def side_by_side(tensors: list[Tensor], calls: str) -> list[Tensor]:
    """Run several operations, each on a stream of its own, and return the outputs of all, one after the other.

    `calls` is JSON: [[name, arguments], …], where {"tensor": n} stands for the n-th of the tensors.
    """
    device, parts = tensors[0].device, json.loads(calls)
    if device.type != "cuda":
        return [each for part in parts for each in _called(part, tensors)]
    main = torch.cuda.current_stream(device)
    streams = [main, *(_stream(device, 2 * number) for number in range(1, len(parts)))]
    for stream in streams[1:]:
        stream.wait_stream(main)
    found: list[Tensor] = []
    for number, (stream, part) in enumerate(zip(streams, parts)):
        token = _branch.set(number)
        try:
            with torch.cuda.stream(stream):
                found += _called(part, tensors)
        finally:
            _branch.reset(token)
    for stream in streams[1:]:
        main.wait_stream(stream)
    return found


@side_by_side.register_fake
def _(tensors: list[Tensor], calls: str) -> list[Tensor]:
    return [each for call in json.loads(calls) for each in _called(call, tensors)]


def _called(call: list[Any], tensors: list[Tensor]) -> list[Tensor]:
    name, arguments = call
    return list(OPERATIONS[name][0](*_filled(arguments, tensors)))


def _filled(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, dict):
        return tensors[value["tensor"]]
    return [_filled(each, tensors) for each in value] if isinstance(value, list) else value
