"""CUDA graphs: capture a function once, replay it with new inputs.

    first call     inputs ─▶ copies (the static inputs) ─▶ warm-up on a side stream ─▶ capture ─▶ replay
    later calls    inputs ─▶ copied into the static inputs ─▶ replay ─▶ outputs (copied out)

A graph reads and writes the addresses it was captured with, so inputs are copied in and outputs are copied out;
parameters, gradients and optimiser state are the addresses themselves. A step of a small network is dozens of kernels
that each take less time than Python needs to start them: replayed, they are started by the device.

All graphs share one pool of memory: outputs of one may be overwritten when another is replayed. So
whatever must last is copied, inside the graph or after it, to memory allocated before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from striderl.data import tree

Signature = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]

MOST = 8
"""Number of graphs kept per function; with more kinds of inputs, the oldest is captured again when needed."""
MOST_IN_ALL = 64
"""Number of graphs kept in all: functions and storages that are gone leave theirs behind."""


_together: ContextVar[bool] = ContextVar("together", default=False)


@contextmanager
def together() -> Iterator[None]:
    """Capture several functions as one graph: inside, they run as parts of the outer graph."""
    token = _together.set(True)
    try:
        yield
    finally:
        _together.reset(token)


def are_together() -> bool:
    """Return whether this is a part of a larger graph."""
    return _together.get()


class SideStream:
    """A second stream: work `running` there and later work may overlap, until `join`."""

    def __init__(self, device: torch.device) -> None:
        """Create a stream of a CUDA device; on other devices everything runs in order."""
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start what is inside after everything so far. Its inputs must stay unchanged and allocated until `join`."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let later work wait for it."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)


class StaticInputs:
    """Static memory for inputs; inputs of one dtype with as many rows lie side by side, and are copied in one call.

    obs [N, 48]   reward [N]   noise [N, 12]      block float32 [N, 61]      values: views of the blocks
    """

    def __init__(self, inputs: Any) -> None:
        """Allocate memory for nested tensors, and copy them in."""
        leaves = [leaf for leaf in tree.leaves(inputs) if isinstance(leaf, Tensor)]
        kinds: dict[tuple[torch.dtype, int], list[int]] = {}
        for at, leaf in enumerate(leaves):
            if leaf.dim():
                kinds.setdefault((leaf.dtype, leaf.shape[0]), []).append(at)
        self._packed: list[tuple[Tensor, list[int]]] = []
        views: dict[int, Tensor] = {}
        for (dtype, rows), places in kinds.items():
            widths = [leaves[at][0].numel() for at in places] if rows else []
            if len(places) < 2 or not rows:
                continue
            block = torch.empty(rows, sum(widths), dtype=dtype, device=leaves[places[0]].device)
            self._packed.append((block, places))
            pieces = zip(places, block.split_with_sizes(widths, dim=1))
            views |= {at: piece.view(leaves[at].shape) for at, piece in pieces}
        self._alone = [at for at in range(len(leaves)) if at not in views]
        views |= {at: leaves[at].detach().clone() for at in self._alone}
        self._places = [views[at] for at in self._alone]
        order = iter(range(len(leaves)))
        self.values = tree.map(lambda leaf: views[next(order)] if isinstance(leaf, Tensor) else leaf, inputs)
        """The inputs, in the static memory."""
        self._count = len(leaves)
        self.fill(leaves)

    @torch.no_grad()
    def fill(self, leaves: list[Tensor]) -> None:
        """Copy new inputs in, in the order of `tree.leaves`."""
        if len(leaves) != self._count:
            raise ValueError(f"this was recorded with {self._count} tensors, found {len(leaves)}")
        for block, places in self._packed:
            parts = [leaves[at] if leaves[at].dim() == 2 else leaves[at].reshape(block.shape[0], -1) for at in places]
            if {part.dtype for part in parts} != {block.dtype}:
                parts = [part.to(block.dtype) for part in parts]
            torch.cat(parts, dim=1, out=block)
        for place, at in zip(self._places, self._alone):
            place.copy_(leaves[at])


class CapturedGraph:
    """One captured function."""

    def __init__(
        self, inputs: Any, prepare: Callable[[Any], Any], body: Callable[[Any], Any], pool: Any, in_place: bool = False
    ) -> None:
        """Capture `body(inputs)` on copies of the inputs, after two runs of `prepare`; the body is not executed.

        With `in_place`, the outputs have memory of their own; `prepare` must return tensors like them.
        """
        self._static = StaticInputs(inputs)
        current = torch.cuda.current_stream()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(2):
                example = prepare(self._static.values)
        current.wait_stream(side)
        places = tree.map(torch.empty_like, example) if in_place else None
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self.outputs = body(self._static.values)
            """What the body returned; overwritten by the next replay, of any graph unless it is in place."""
            if in_place:
                self.outputs = _overwritten(places, self.outputs)

    def play(self, values: list[Tensor]) -> None:
        """Copy the leaves of new inputs in, in the order of `tree.leaves`, and replay the body."""
        self._static.fill(values)
        self._graph.replay()


class Graphs:
    """Captured functions by key and input shapes; one pool of memory for all."""

    def __init__(self) -> None:
        """Start without graphs."""
        self.graphs_by_key: dict[Any, dict[Signature, CapturedGraph]] = {}
        self.held: dict[Any, Any] = {}
        self._pool: Any = None

    def clear(self) -> None:
        """Drop all graphs; columns stay at their addresses."""
        self.graphs_by_key.clear()

    def record(
        self, key: Any, inputs: Any, prepare: Callable[[Any], Any], body: Callable[[Any], Any], in_place: bool = False
    ) -> CapturedGraph:
        """Return the graph of `body` under `key` for inputs of these shapes; capture it if there is none.

        `prepare` runs before capture, twice, so that libraries allocate what they need; it must not change any state.
        """
        found = self.graphs_by_key.setdefault(key, {})
        shapes = signature(inputs)
        if shapes not in found:
            self._make_room(key)
            with torch.enable_grad():
                found[shapes] = self.make(inputs, prepare, body, in_place)
        return found[shapes]

    def make(
        self, inputs: Any, prepare: Callable[[Any], Any], body: Callable[[Any], Any], in_place: bool = False
    ) -> CapturedGraph:
        """Return a new graph that its caller owns, for as long as it is referenced; see `record`."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return CapturedGraph(inputs, prepare, body, self._pool, in_place)

    def _make_room(self, key: Any) -> None:
        """Drop the oldest graphs of this key, and those of the oldest other keys, until one more may come."""
        found = self.graphs_by_key[key]
        while len(found) >= MOST:
            found.pop(next(iter(found)))
        number = sum(len(each) for each in self.graphs_by_key.values())
        for other in [each for each in self.graphs_by_key if each != key]:
            if number < MOST_IN_ALL:
                break
            number -= len(self.graphs_by_key.pop(other))

    @torch.no_grad()
    def play(
        self, key: Any, inputs: Any, prepare: Callable[[Any], Any], body: Callable[[Any], Any], in_place: bool = False
    ) -> Any:
        """Return what `body(inputs)` returns, as copies unless it is `in_place`; see `record`.

        Inside of `together`, run it.
        """
        if are_together():
            with torch.enable_grad():
                return body(inputs)
        recording = self.record(key, inputs, prepare, body, in_place)
        recording.play([leaf for _, leaf in _tensors(inputs)])
        return recording.outputs if in_place else tree.map(_copied, recording.outputs)

    @torch.no_grad()
    def hold(self, key: Any, columns: Mapping[str, Any], lasting: frozenset[str]) -> dict[str, Any]:
        """Return the columns at addresses that stay the same from call to call, for graphs that read them there.

        What is under one of the names `lasting` has such an address by itself and is read in place; the rest is copied.
        """
        kept = {name: value for name, value in columns.items() if name in lasting}
        moving = {name: value for name, value in columns.items() if name not in lasting}
        place = (key, signature(moving))
        if place in self.held:
            leaves = (tree.leaves(self.held[place]), tree.leaves(moving))
            pairs = [pair for pair in zip(*leaves) if isinstance(pair[0], Tensor)]
            if pairs:
                torch._foreach_copy_([one for one, _ in pairs], [other for _, other in pairs])
        else:
            while len(self.held) >= MOST:
                self.held.pop(next(iter(self.held)))
            self.held[place] = tree.map(_copied, moving)
        held = {**self.held[place], **kept}
        return {name: held[name] for name in columns}


def signature(inputs: Any) -> Signature:
    """Return names, shapes and dtypes of all tensors: the inputs a graph fits."""
    return tuple((path, tuple(leaf.shape), leaf.dtype) for path, leaf in _tensors(inputs))


def _tensors(inputs: Any) -> list[tuple[str, Tensor]]:
    """Return all tensors with their paths: what `tree.items` finds, in a fraction of the time."""
    found: list[tuple[str, Tensor]] = []
    _walk(inputs, "", found)
    return found


def _walk(value: Any, path: str, found: list[tuple[str, Tensor]]) -> None:
    if type(value) is dict:
        for name, each in value.items():
            _walk(each, f"{path}/{name}" if path else name, found)
    elif isinstance(value, Tensor):
        found.append((path, value))
    elif value is not None:
        found += [(place, leaf) for place, leaf in tree.items(value, path) if isinstance(leaf, Tensor)]


def addresses(held: Any) -> tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]:
    """Return where tensors lie in memory and how: a graph that reads them in place fits these alone."""
    found = [leaf for leaf in tree.leaves(held) if isinstance(leaf, Tensor)]
    return tuple((leaf.data_ptr(), tuple(leaf.shape), leaf.stride()) for leaf in found)


def _overwritten(places: Any, values: Any) -> Any:
    """Copy nested tensors into others of the same structure, and return these."""
    pairs = list(zip(tree.leaves(places), tree.leaves(values), strict=True))
    torch._foreach_copy_([one for one, _ in pairs], [other for _, other in pairs])
    return places


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf
