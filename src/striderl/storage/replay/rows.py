"""Reads and writes rows of an arena with as few calls as possible.

`Arena` is general; a ring does the same two things a million times: write one time row of all columns, and gather rows
by number. Both are computed once here.

    block float32 [R, N, 7]     gather: rows by number ──▶ [B, 7] ── views ──▶ act [B, 6], rew [B]
                                write:  act[t] = …, rew[t] = …   through views, numpy's on the CPU (half torch's cost)

One gather per dtype, and one in all where the arena is made of records (`RecordArena`).

The columns of a step as one record of bytes, so that reading a step touches one stretch of memory.

    columns    act float32 (6,), rew float32 (), terminated, truncated, valid bool ()
    record     │ act 0:24               │ rew 24:28 │ T U V 28:31 │ ·│     32 bytes, half a cache line

    memory uint8 [R, N, 32];  blocks: float32 [R, N, 7] in bytes 0:28 and bool [R, N, 3] in bytes 28:31

Larger dtypes come first and every record is a multiple of the largest, so each number lies aligned to its dtype.
The bools begin at a multiple of four bytes: three flags and one byte more are a word, which is compared at once.

`split_columns`, `step_arena` and `sparse` are what the parts of a replay hold, and where they live.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data import tree
from striderl.data.arena import Arena, Columns, Placement
from striderl.data.naming import unknown
from striderl.data.specs import TensorSpec, torch_dtype

KeyPath = tuple[str, ...]
Mode = Literal["raise", "wrap"]
_from_numpy = torch.from_numpy
_EVERY = slice(None)


class Column:
    """One column: its views for writing, and what a value must look like."""

    def __init__(self, path: KeyPath, spec: TensorSpec, view: Tensor) -> None:
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


class _Name(NamedTuple):
    """Where gathered rows [B, W] hold one column, or the columns below a name."""

    name: str
    below: list[_Name] | None
    dtype: str
    index: Any
    """Cuts the column out; None where it is all there is."""
    shape: tuple[int, ...]
    """Of one row, where it has more than one dimension; () otherwise."""


class PackedRows:
    """The rows of an arena [R, N], numbered row · N + env."""

    def __init__(self, arena: Arena) -> None:
        """Compute where the columns lie; the arena stays the owner."""
        self.arena = arena
        self._count = math.prod(arena.leading)
        self._flat = {dtype: block.view(self._count, -1) for dtype, block in arena.blocks.items()}
        self.fast = all(block.device.type == "cpu" and dtype != "bfloat16" for dtype, block in arena.blocks.items())
        """Whether numpy does the work: it takes half of torch's time per call."""
        records = arena if isinstance(arena, RecordArena) else None
        self._records = None if records is None else records.records
        self._arrays = {dtype: flat.numpy() for dtype, flat in self._flat.items()} if self.fast else {}
        self._kinds = [(dtype, np.dtype(dtype)) for dtype in self._arrays]
        self._starts = dict.fromkeys(arena.blocks, 0)
        """Dtype → where its columns begin in what `take` reads, counted in numbers."""
        if records is not None:
            self._starts = {dtype: start // np.dtype(dtype).itemsize for dtype, start in records.offsets.items()}
        self.columns = [Column(path, spec, _at(arena.data, path)) for path, spec in _leaves(arena.columns)]
        self._names = self._named_below(arena.columns, dict(self._starts))
        self.lone_flags = "bool" in self._flat and self._flat["bool"].shape[1] < WORD
        """Whether the words that this reads hold no more than three bools; the last byte is 0."""
        self._words: NDArray[np.uint32] | None = None
        if self._records is not None and "bool" in self._starts:
            self._words = self._records.view(np.uint32)[:, self._starts["bool"] // WORD]

    def _named_below(self, columns: Columns, starts: dict[str, int]) -> list[_Name]:
        """Give every column its place in gathered rows, in order."""
        names = []
        for name, spec in columns.items():
            if not isinstance(spec, TensorSpec):
                names.append(_Name(name, self._named_below(spec, starts), "", None, ()))
                continue
            start = starts[spec.dtype]
            starts[spec.dtype] += spec.size
            alone = self._records is None and bool(spec.shape) and spec.size == self._flat[spec.dtype].shape[1]
            index = None if alone else (_EVERY, slice(start, start + spec.size) if spec.shape else start)
            names.append(_Name(name, None, spec.dtype, index, spec.shape if len(spec.shape) > 1 else ()))
        return names

    # -- writing -------------------------------------------------------------------------------------------------------

    def fit(self, values: Mapping[str, Any], count: int, columns: Sequence[Column] | None = None) -> list[Any]:
        """Return what is to be written for `count` envs in the order of the columns, or raise; nothing is written.

        All columns are required unless some are named.
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
            return self._fit_any(values, count, columns)  # converts what can be converted, and raises otherwise
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

    # -- reading -------------------------------------------------------------------------------------------------------

    def gather(self, index: Tensor, mode: Mode = "raise") -> dict[str, Any]:
        """Read rows by number into nested dicts [B, …].

        With mode 'wrap', numbers beyond the last row go round; on a GPU they are never checked.
        """
        if self.fast:
            return self.named(self.take(index.numpy(), mode))
        if mode == "wrap":
            index = index % self._count
        rows = {dtype: flat.index_select(0, index) for dtype, flat in self._flat.items()}
        return _named(self._names, rows, _as_it_is)

    def take(self, rows: NDArray[np.int64], mode: Mode = "raise") -> dict[str, NDArray[Any]]:
        """Read rows by number as arrays [B, W] by dtype, for `named`; where numpy does the work (`fast`)."""
        if self._records is None:
            return {dtype: array.take(rows, 0, mode=mode) for dtype, array in self._arrays.items()}
        found = self._records.take(rows, 0, mode=mode)
        return {dtype: found.view(kind) for dtype, kind in self._kinds}

    def named(self, rows: Mapping[str, Any], leave_out: Container[str] = ()) -> dict[str, Any]:
        """Return what `take` has read, or a slice of it, as nested dicts of tensors [B, …].

        Those in `leave_out` are None.
        """
        return _named(self._names, rows, _from_numpy, leave_out)

    def words(self, taken: Mapping[str, NDArray[Any]]) -> NDArray[np.uint32]:
        """Return the first bools of rows that `take` has read, four in a word, uint32 [B]."""
        if self._records is not None:
            word: NDArray[np.uint32] = taken["bool"].view(np.uint32)[:, self._starts["bool"] // WORD]
            return word
        flags = taken["bool"][:, :WORD]
        padded = np.zeros((flags.shape[0], WORD), np.bool_)
        padded[:, : flags.shape[1]] = flags
        return padded.view(np.uint32)[:, 0]

    def words_at(self, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the first bools of these rows, four in a word, uint32 like `rows`."""
        if self._words is not None:
            return self._words[rows]
        return self.words({"bool": self._arrays["bool"].take(rows.ravel(), 0)}).reshape(rows.shape)

    def one(self, path: KeyPath, index: Tensor) -> Tensor:
        """Read one column of these rows."""
        return self.flat(path).index_select(0, index)

    def flat(self, path: KeyPath) -> Tensor:
        """Return one column of all rows, as a view [rows, …]."""
        column: Tensor = _at(self.arena.data, path)
        return column.view(self._count, *column.shape[2:])


def _named(
    names: list[_Name], rows: Mapping[str, Any], wrapped: Callable[[Any], Tensor], leave_out: Container[str] = ()
) -> dict[str, Any]:
    """Put the columns of gathered rows under their names."""
    out: dict[str, Any] = {}
    for name, below, dtype, index, shape in names:
        if name in leave_out:
            out[name] = None
            continue
        if below is not None:
            out[name] = _named(below, rows, wrapped)
            continue
        piece = rows[dtype] if index is None else rows[dtype][index]
        out[name] = wrapped(piece.reshape(-1, *shape) if shape else piece)
    return out


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


def _leaves(columns: Columns, prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, TensorSpec]]:
    for name, spec in columns.items():
        if isinstance(spec, TensorSpec):
            yield (*prefix, name), spec
        else:
            yield from _leaves(spec, (*prefix, name))


def _at(nested: Mapping[str, Any], path: KeyPath) -> Any:
    value: Any = nested
    for key in path:
        value = value[key]
    return value


# -- records -----------------------------------------------------------------------------------------------------------


WORD = 4
"""Bytes of a word of flags."""


class RecordArena(Arena):
    """An arena whose blocks are strided parts of one memory; everything else is as in any arena."""

    def __init__(self, columns: Columns, leading: tuple[int, ...], placement: Placement) -> None:
        """Allocate zeros for every record."""
        super().__init__(columns, (0, *leading[1:]))  # works out where the columns lie within their dtype
        widths = {dtype: int(block.shape[-1]) for dtype, block in self.blocks.items()}
        self.offsets, size = _offsets(widths)
        """Dtype → the byte of the record where its columns begin."""
        record = TensorSpec(shape=(size,), dtype="uint8")
        memory = Arena({"record": record}, leading, placement).blocks["uint8"]
        self.records: NDArray[np.uint8] = memory.view(-1, size).numpy()
        """The bytes of all rows, [R · N, size]."""
        blocks = {}
        for dtype, width in widths.items():
            start = self.offsets[dtype]
            stop = start + width * np.dtype(dtype).itemsize
            blocks[dtype] = memory[..., start:stop].view(torch_dtype(dtype))
        self._attach(columns, leading, placement, self._places, blocks)


def _offsets(widths: dict[str, int]) -> tuple[dict[str, int], int]:
    """Return where each dtype begins in a record, and how long a record is."""
    sizes = {dtype: np.dtype(dtype).itemsize for dtype in widths}
    offsets: dict[str, int] = {}
    end = 0
    for dtype in sorted(widths, key=lambda dtype: (-sizes[dtype], dtype != "bool")):
        start = _up(end, WORD if dtype == "bool" else sizes[dtype])
        offsets[dtype] = start
        end = start + widths[dtype] * sizes[dtype]
    return offsets, _up(end, max(WORD, *sizes.values()))


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


# -- columns -----------------------------------------------------------------------------------------------------------


FLAGS = ("terminated", "truncated", "valid")
"""The columns that lie first in the block of bools."""


def _word(*flags: bool) -> np.uint32:
    """Return flags as they lie in memory, four bytes read as one number."""
    return np.uint32(np.array([*flags, False], np.bool_).view(np.uint32)[0])


TERMINATED, TRUNCATED, VALID = _word(True, False, False), _word(False, True, False), _word(False, False, True)
ENDS, SEEN = TERMINATED | TRUNCATED, TERMINATED | TRUNCATED | VALID
"""Bits of the word of a step's flags; an ordinary step has `word & SEEN == VALID`."""


def split_columns(columns: Columns) -> tuple[Columns, Columns]:
    """Return the observation columns and the others, flags first: they are then the first three of the bool block."""
    wanted = ("obs", "act", "rew", *FLAGS)
    missing = [name for name in wanted if name not in columns]
    if missing or isinstance(columns["obs"], TensorSpec):
        found = f"missing {missing}" if missing else "'obs' is not a mapping of components"
        raise ValueError(f"a replay wants the columns of transition_columns(…): {found}")
    others = {name: spec for name, spec in columns.items() if name not in ("obs", *FLAGS)}
    unused = sorted(set(others) - {"act", "rew", "info", "policy"})
    if unused:
        raise ValueError(f"columns {unused} are not part of a transition; put them under 'info' or 'policy'")
    flags = TensorSpec(dtype="bool")
    return columns["obs"], {**dict.fromkeys(FLAGS, flags), **others}


def step_arena(columns: Columns, leading: tuple[int, int], placement: Placement) -> Arena:
    """Make room for the columns of steps: records on the CPU; one block per dtype in files and on other devices."""
    in_memory = placement.folder is None and placement.device == "cpu"
    if in_memory and all(spec.dtype != "bfloat16" for spec in _specs(columns)):
        return RecordArena(columns, leading, placement)
    return Arena(columns, leading, part_of(placement, "steps"))


def part_of(placement: Placement, name: str) -> Placement:
    """Return the placement of one part: its own files in its own folder."""
    if placement.folder is None:
        return placement
    return Placement(folder=Path(placement.folder) / name)


def sparse(placement: Placement, columns: Columns) -> Placement:
    """Return the placement of the final observations, where memory that is never written takes no room if possible."""
    if placement.folder is not None:
        return part_of(placement, "finals")
    if placement.device == "cpu" and all(spec.dtype != "bfloat16" for spec in _specs(columns)):
        return Placement(shared=True)
    return placement


def _specs(columns: Columns) -> list[TensorSpec]:
    found: list[TensorSpec] = []
    for spec in columns.values():
        found += [spec] if isinstance(spec, TensorSpec) else _specs(spec)
    return found
