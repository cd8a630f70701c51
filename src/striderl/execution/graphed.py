"""CUDA graphs: record a step once, play it back with new inputs.

    first call     inputs ─▶ copies (the static inputs) ─▶ warm-up on a side stream ─▶ record ─▶ play
    later calls    inputs ─▶ copied into the static inputs ─▶ play ─▶ outputs (copied out)

A graph reads and writes the addresses it was recorded with, so inputs are copied in and outputs are copied out;
parameters, gradients and optimiser state are the addresses themselves. A step of a small network is dozens of kernels
that each take less time than Python needs to start them: played back, they are started by the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from striderl.data import tree

Signature = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


class Graphs:
    """Recorded functions by what they are called with; one pool of memory for all."""

    def __init__(self) -> None:
        """Record nothing yet."""
        self._graphs: dict[tuple[Any, Signature], _Graph] = {}
        self._pool: Any = None

    def play(self, key: Any, inputs: Any, prepare: Callable[[Any], Any], body: Callable[[Any], Any]) -> Any:
        """Return what `body(inputs)` returns, recorded under `key` and the shapes of the inputs.

        `prepare` runs before recording, twice, so that libraries allocate what they need; it must leave no trace.
        """
        found = self._graphs.get((key, signature(inputs)))
        if found is None:
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            found = self._graphs[key, signature(inputs)] = _Graph(inputs, prepare, body, self._pool)
        return found.play(inputs)


class _Graph:
    """One recorded function."""

    def __init__(self, inputs: Any, prepare: Callable[[Any], Any], body: Callable[[Any], Any], pool: Any) -> None:
        self._static = tree.map(_copied, inputs)
        self._places = [leaf for leaf in tree.leaves(self._static) if isinstance(leaf, Tensor)]
        current = torch.cuda.current_stream()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(2):
                prepare(self._static)
        current.wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._outputs = body(self._static)

    def play(self, inputs: Any) -> Any:
        values = [leaf for leaf in tree.leaves(inputs) if isinstance(leaf, Tensor)]
        with torch.no_grad():
            torch._foreach_copy_(self._places, values)
        self._graph.replay()
        return tree.map(_copied, self._outputs)


def signature(inputs: Any) -> Signature:
    """Return names, shapes and dtypes of all tensors: what a recording is good for."""
    return tuple((path, tuple(leaf.shape), leaf.dtype) for path, leaf in tree.items(inputs) if isinstance(leaf, Tensor))


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf
