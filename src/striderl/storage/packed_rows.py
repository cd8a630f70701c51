"""Reads and writes rows of an arena with as few calls as possible.

`Arena` is general; a ring does the same two things a million times: write one time row of all columns, and gather rows
by number. Both are worked out once here.

    block float32 [R, N, 7]     gather: rows by number ──▶ [B, 7] ── views ──▶ act [B, 6], rew [B]
                                write:  act[t] = …, rew[t] = …   through views, numpy's on the CPU (half torch's cost)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data import tree
from striderl.data.arena import Arena, Columns
from striderl.data.naming import unknown
from striderl.data.specs import TensorSpec, torch_dtype

Path = tuple[str, ...]
_from_numpy = torch.from_numpy


class Column:
    """One column: its views for writing, and what a value must look like."""

    def __init__(self, path: Path, spec: TensorSpec, view: Tensor) -> None:
        self.path, self.name = path, "/".join(path)
        self.dtype, self.shape = torch_dtype(spec.dtype), spec.shape
        self.view = view
        self.fast = view.device.type == "cpu" and spec.dtype != "bfloat16"
        self.target: Any = view.numpy() if self.fast else view

    def fitted(self, value: Any, count: int) -> Any:
        """Return a value for `count` envs as what is written to the target, or raise with the column's name."""
        source = value if isinstance(value, Tensor) else torch.as_tensor(value)
        wanted = (count, *self.shape)
        if tuple(source.shape) != wanted:
            raise ValueError(f"column {self.name!r} wants shape {wanted}, found {tuple(source.shape)}")
        if source.device != self.view.device:
            raise ValueError(f"column {self.name!r} is on {self.view.device}, the value on {source.device}; move it")
        if source.dtype is not self.dtype:
            if not torch.can_cast(source.dtype, self.dtype):
                raise TypeError(f"column {self.name!r} holds {self.dtype}; {source.dtype} would lose its values there")
            source = source.to(self.dtype)
        source = source.detach()
        return source.numpy() if self.fast else source


class PackedRows:
    """The rows of an arena [R, N], numbered row · N + env."""

    def __init__(self, arena: Arena) -> None:
        """Work out where the columns lie; the arena stays the owner."""
        self.arena = arena
        self._count = math.prod(arena.leading)
        self._flat = {dtype: block.view(self._count, -1) for dtype, block in arena.blocks.items()}
        self.fast = all(block.device.type == "cpu" and dtype != "bfloat16" for dtype, block in arena.blocks.items())
        """Whether numpy does the work: it takes half of torch's time per call."""
        self._arrays = {dtype: flat.numpy() for dtype, flat in self._flat.items()} if self.fast else {}
        self._layout: dict[str, list[tuple[Path, str, Any, tuple[int, ...]]]] = {dtype: [] for dtype in arena.blocks}
        self.columns: list[Column] = []
        widths = dict.fromkeys(arena.blocks, 0)
        for path, spec in _leaves(arena.columns):
            start = widths[spec.dtype]
            widths[spec.dtype] += spec.size
            place = slice(start, start + spec.size) if spec.shape else start
            self._layout[spec.dtype].append((path[:-1], path[-1], place, spec.shape))
            self.columns.append(Column(path, spec, _at(arena.data, path)))
        self._skeleton = _skeleton(arena.columns)

    def fit(self, values: Mapping[str, Any], count: int, columns: Sequence[Column] | None = None) -> list[Any]:
        """Return what is to be written for `count` envs in the order of the columns, or raise; nothing is written.

        All columns are wanted unless some are named.
        """
        columns = self.columns if columns is None else columns
        if not self.fast:
            return self._fit_any(values, count, columns)
        fitted = []
        try:
            for column in columns:
                value: Any = values
                for key in column.path:
                    value = value[key]
                if value.dtype is not column.dtype or value.shape != (count, *column.shape):
                    return self._fit_any(values, count, columns)
                fitted.append(value.numpy())
        except (KeyError, AttributeError, TypeError, RuntimeError):
            return self._fit_any(values, count, columns)  # converts what can be converted, and finds the words
        return fitted

    def _fit_any(self, values: Mapping[str, Any], count: int, columns: Sequence[Column]) -> list[Any]:
        fitted = []
        for column in columns:
            value: Any = values
            for key in column.path:
                if not isinstance(value, Mapping) or key not in value:
                    found = [path for path, _ in tree.items(dict(values))]
                    raise KeyError(unknown("column", column.name, found, where="the row to be written"))
                value = value[key]
            fitted.append(column.fitted(value, count))
        return fitted

    def put(self, fitted: list[Any], place: Any) -> None:
        """Write fitted values at this place of the leading dimensions."""
        for column, value in zip(self.columns, fitted):
            column.target[place] = value

    def gather(self, index: Tensor, mode: Literal["raise", "wrap"] = "raise") -> dict[str, Any]:
        """Read rows by number into nested dicts [B, …]: one gather per dtype.

        With mode 'wrap', numbers beyond the last row go round; on a GPU they are never checked.
        """
        out = _copy(self._skeleton)
        if self.fast:
            rows = index.numpy()
            for dtype, array in self._arrays.items():
                self._name(out, dtype, array.take(rows, 0, mode=mode))
            return out
        if mode == "wrap":
            index = index % self._count
        for dtype, flat in self._flat.items():
            self._name(out, dtype, flat.index_select(0, index))
        return out

    def take(self, rows: NDArray[np.int64], mode: Literal["raise", "wrap"] = "raise") -> dict[str, NDArray[Any]]:
        """Read rows by number as arrays [B, W] by dtype; where numpy does the work (`fast`)."""
        return {dtype: array.take(rows, 0, mode=mode) for dtype, array in self._arrays.items()}

    def named(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `take` has read, or a slice of it, as nested dicts of tensors [B, …]."""
        out = _copy(self._skeleton)
        for dtype, found in rows.items():
            self._name(out, dtype, found)
        return out

    def _name(self, out: dict[str, Any], dtype: str, rows: Any) -> None:
        """Put the columns of gathered rows [B, W] under their names."""
        for path, key, place, shape in self._layout[dtype]:
            piece = rows[:, place]
            if len(shape) > 1:
                piece = piece.reshape(-1, *shape)
            node = out
            for part in path:
                node = node[part]
            node[key] = _from_numpy(piece) if self.fast else piece

    def one(self, path: Path, index: Tensor) -> Tensor:
        """Read one column of these rows."""
        return self.flat(path).index_select(0, index)

    def flat(self, path: Path) -> Tensor:
        """Return one column of all rows, as a view [rows, …]."""
        column: Tensor = _at(self.arena.data, path)
        return column.flatten(0, 1)


def _leaves(columns: Columns, prefix: Path = ()) -> Iterator[tuple[Path, TensorSpec]]:
    for name, spec in columns.items():
        if isinstance(spec, TensorSpec):
            yield (*prefix, name), spec
        else:
            yield from _leaves(spec, (*prefix, name))


def _skeleton(columns: Columns) -> dict[str, Any]:
    return {name: None if isinstance(spec, TensorSpec) else _skeleton(spec) for name, spec in columns.items()}


def _copy(skeleton: dict[str, Any]) -> dict[str, Any]:
    return {name: None if inner is None else _copy(inner) for name, inner in skeleton.items()}


def _at(nested: Mapping[str, Any], path: Path) -> Any:
    value: Any = nested
    for key in path:
        value = value[key]
    return value
