"""Cut columns into minibatches with one gather per epoch.

    columns [n, …]   a b c d e f g        order   e b g │ a f │ d c
                            │ one gather per column and epoch
                     e b g a f d c ──split──▶   e b g │ a f │ d c       minibatches are views, next to each other
                                  or, padded:   e b g │ a f · │ d c ·   `·` is a row of zeros: not valid

Gathering each minibatch by itself costs as many small calls as there are columns, every time. Compiled and captured
code wants one shape, so there minibatches are filled up to the size of the largest; the order stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.data import tree


def shuffled_minibatches(
    columns: Mapping[str, Any],
    dims: Mapping[str, int],
    *,
    num_mini_batches: int,
    num_epochs: int,
    generator: torch.Generator,
    padded: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield minibatches in a fresh order each epoch, each sample once per epoch.

    `dims` says along which dimension each top-level column is cut (0 for rows, 1 for envs of [T, N, …]); all have the
    same size there. Sizes of minibatches differ by one at most; `padded` makes them equal with rows of zeros at the
    end, in which boolean columns are false.
    """
    paths = [(path, leaf, dims[path.partition("/")[0]]) for path, leaf in tree.items(columns)]
    sizes = {leaf.shape[dim] for _, leaf, dim in paths}
    if len(sizes) != 1:
        found = {path: leaf.shape[dim] for path, leaf, dim in paths}
        raise ValueError(f"columns to cut into minibatches must have one size, found {found}")
    count = sizes.pop()
    lengths = [len(part) for part in torch.arange(count).tensor_split(num_mini_batches)]
    filling = padded and lengths[0] != lengths[-1]
    if filling:
        paths = [(path, _with_zeros(leaf, dim), dim) for path, leaf, dim in paths]
    device = paths[0][1].device
    for _ in range(num_epochs):
        order = torch.randperm(count, generator=generator)
        if filling:
            order = _filled(order, lengths)
        order = _sent(order, device)
        cut = [lengths[0]] * num_mini_batches if filling else lengths
        pieces = [leaf.index_select(dim, order).split_with_sizes(cut, dim) for _, leaf, dim in paths]
        for leaves in zip(*pieces):
            yield _rebuilt(columns, iter(leaves))


def _sent(order: Tensor, device: torch.device) -> Tensor:
    """Return the order on the device; from pinned memory, because an ordinary copy would wait for the device."""
    return order.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else order.to(device)


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
