"""Cut columns into minibatches with one gather per epoch.

    columns [n, …]   a b c d e f g        order   e b g │ a f │ d c
                            │ one gather per column and epoch
                     e b g a f d c ──split──▶   e b g │ a f │ d c       minibatches are views, next to each other
                                  or, padded:   e b g │ a f · │ d c ·   `·` is a row of zeros: not valid

Gathering each minibatch by itself costs as many small calls as there are columns, every time. Compiled and captured
code needs one shape, so there minibatches are filled up to the size of the largest; the order stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from striderl.data import tree
from striderl.execution.modes import Function, as_written
from striderl.ops.returns import has_triton

MOST_AT_ONCE = 32
"""Largest number of gradient steps in one captured graph."""


class ShuffledMinibatches:
    """Minibatches in a fresh order each epoch, each sample once per epoch; iterating goes through all epochs."""

    def __init__(
        self,
        columns: Mapping[str, Any],
        dims: Mapping[str, int],
        *,
        num_mini_batches: int,
        num_epochs: int,
        generator: torch.Generator,
        padded: bool = False,
        lasting: frozenset[str] = frozenset(),
    ) -> None:
        """Take columns of one size along `dims`: 0 for rows, 1 for envs of [T, N, …], for each top-level name.

        Sizes of minibatches differ by one at most; `padded` makes them equal with rows of zeros at the end, in which
        boolean columns are false. What is `lasting` lies at the same address in every update: captured steps read it
        there.
        """
        paths = [(path, leaf, dims[path.partition("/")[0]]) for path, leaf in tree.items(columns)]
        sizes = {leaf.shape[dim] for _, leaf, dim in paths}
        if len(sizes) != 1:
            found = {path: leaf.shape[dim] for path, leaf, dim in paths}
            raise ValueError(f"columns to cut into minibatches must have one size, found {found}")
        self.count = sizes.pop()
        self.dims = {name: dims[name] for name in columns}
        self.num_epochs, self.generator = num_epochs, generator
        least, larger = divmod(self.count, num_mini_batches)
        self._lengths = [least + (number < larger) for number in range(num_mini_batches)]
        self._filling = padded and self._lengths[0] != self._lengths[-1]
        self.lasting = frozenset() if self._filling else lasting
        self.columns: dict[str, Any] = dict(columns)
        if self._filling:
            leaves = iter([_with_zeros(leaf, dim) for _, leaf, dim in paths])
            self.columns = _rebuilt(columns, leaves)
        self._device = paths[0][1].device
        self._drawn: list[Tensor] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield minibatches: one gather per column and epoch, then views."""
        paths = [(leaf, self.dims[path.partition("/")[0]]) for path, leaf in tree.items(self.columns)]
        for order, cut in self._orders():
            pieces = [leaf.index_select(dim, order).split_with_sizes(cut, dim) for leaf, dim in paths]
            for leaves in zip(*pieces):
                yield _rebuilt(self.columns, iter(leaves))

    def rows(self) -> Iterator[Tensor]:
        """Yield which rows the minibatches are made of, in the same order; int64 [n] each."""
        for order, cut in self._orders():
            yield from order.split_with_sizes(cut)

    def rows_of_many(self) -> Iterator[Tensor]:
        """Yield the rows of several minibatches of one size at a time, int64 [k, n], the same k each time."""
        drawn = [order for order, _ in self._orders()]
        rows = torch.cat(drawn).view(len(drawn) * len(self._lengths), -1)
        number = next(size for size in range(min(MOST_AT_ONCE, len(rows)), 0, -1) if len(rows) % size == 0)
        yield from rows.view(-1, number, rows.shape[1]).unbind()

    def _orders(self) -> Iterator[tuple[Tensor, list[int]]]:
        """Yield the order of every epoch; it is drawn once, when it is first needed."""
        cut = [self._lengths[0]] * len(self._lengths) if self._filling else self._lengths
        if self.generator.device.type == "cuda" and has_triton() and not self._drawn:
            self._drawn = [self._ready(order) for order in _permutations(self.count, self.num_epochs, self.generator)]
        for epoch in range(self.num_epochs):
            if epoch == len(self._drawn):
                order = torch.randperm(self.count, generator=self.generator, device=self.generator.device)
                self._drawn.append(self._ready(order))
            yield self._drawn[epoch], cut

    def _ready(self, order: Tensor) -> Tensor:
        """Return an order filled up to minibatches of one size, where the columns are."""
        return _sent(_filled(order, self._lengths) if self._filling else order, self._device)


@dataclass(frozen=True)
class OnRows:
    """A function of minibatches as a function of {'columns', 'rows'}: the gather becomes a part of the step."""

    function: Function
    dims: tuple[tuple[str, int], ...]

    @property
    def as_written(self) -> bool:
        """Whether the function is not to be compiled."""
        return as_written(self.function)

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Gather the rows of the columns and evaluate the function."""
        columns, rows = inputs["columns"], inputs["rows"]
        return self.function({name: _taken(columns[name], dim, rows) for name, dim in self.dims})


def _permutations(count: int, number: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    from striderl.ops.kernels.columns import permutations  # needs Triton

    seed = torch.randint(-(2**63), 2**63 - 1, (1,), generator=generator, device=generator.device)
    return permutations(count, number, seed).unbind()


def _taken(column: Any, dim: int, rows: Tensor) -> Any:
    if isinstance(column, Mapping):
        return {name: _taken(each, dim, rows) for name, each in column.items()}
    return column.index_select(dim, rows)


def _sent(order: Tensor, device: torch.device) -> Tensor:
    """Return the order on the device; from pinned memory, because an ordinary copy would wait for the device."""
    if device.type == "cuda" and not order.is_cuda:
        return order.pin_memory().to(device, non_blocking=True)
    return order.to(device)


def _filled(order: Tensor, lengths: list[int]) -> Tensor:
    """Return the order with the number of the row of zeros at the end of every piece that is shorter."""
    longest, count = lengths[0], order.shape[0]
    parts = [
        torch.nn.functional.pad(part, (0, longest - len(part)), value=count) for part in order.split_with_sizes(lengths)
    ]
    return torch.cat(parts)


def _with_zeros(leaf: Tensor, dim: int) -> Tensor:
    """Return a copy with one row of zeros more."""
    return torch.cat([leaf, torch.zeros_like(leaf.narrow(dim, 0, 1))], dim)


def _rebuilt(columns: Mapping[str, Any], leaves: Iterator[Tensor]) -> dict[str, Any]:
    """Return new leaves in the places of the old ones, dicts all the way."""
    return {
        name: _rebuilt(value, leaves) if isinstance(value, Mapping) else next(leaves) for name, value in columns.items()
    }
