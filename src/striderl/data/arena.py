"""Storage columns packed into one block of memory per dtype.

Rollouts and replay buffers keep many columns (observations, actions, log-probs, …). Reading a minibatch column by
column costs one gather each; packed side by side, all columns of a dtype are read in one.

    columns                               block float32 [T, N, 16]                 data
    obs/joints  float32 (12,)      ┌──────────────────────┬─────────┬───┐          data["obs"]["joints"]  [T, N, 12]
    act         float32 (3,)       │ obs/joints  0:12     │act 12:15│rew│          data["act"]            [T, N, 3]
    rew         float32 ()         └──────────────────────┴─────────┴───┘          data["rew"]            [T, N]
    done        bool ()            block bool [T, N, 1]                            views: writing here writes there

The block lives in ordinary memory, on a GPU, in memory shared with child processes, or in a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.data.memory import mapped_file, shared_array
from striderl.data.naming import unknown
from striderl.data.specs import TensorSpec, as_shape, torch_dtype

Columns = Mapping[str, "TensorSpec | Columns"]
"""Nested names of columns with the shape and dtype of one row."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the blocks of an arena live."""

    device: str = "cpu"
    """A torch device: 'cpu', 'cuda', 'cuda:1', …"""
    shared: bool = False
    """Share the memory with child processes; CPU only."""
    folder: Path | None = None
    """Keep the blocks in files of this folder, mapped into memory; CPU only. Files of the right size are kept."""

    def __post_init__(self) -> None:
        chosen = (self.device != "cpu") + self.shared + (self.folder is not None)
        if chosen > 1:
            raise ValueError(f"an arena is on a GPU, or shared, or in files: choose one, found {self}")


@dataclass(frozen=True)
class _Place:
    """Where one column lies: its block, its slice of the last dimension, its shape."""

    dtype: str
    start: int
    stop: int
    shape: tuple[int, ...]

    def view(self, block: Tensor) -> Tensor:
        """Return the column as a view of its block [..., W]."""
        if not self.shape:
            return block[..., self.start]
        piece = block[..., self.start : self.stop]
        return piece if len(self.shape) == 1 else piece.view(*piece.shape[:-1], *self.shape)


class Arena:
    """Columns of leading shape `leading` (time and env, or ring position), packed by dtype."""

    def __init__(self, columns: Columns, leading: tuple[int, ...], placement: Placement | None = None) -> None:
        """Allocate zeros for every column; with files, keep what they hold."""
        placement = placement or Placement()
        leading = as_shape(leading)
        widths: dict[str, int] = {}
        places = _plan(columns, widths)
        memory = {dtype: _allocate(dtype, (*leading, width), placement) for dtype, width in widths.items()}
        self._attach(columns, tuple(leading), placement, places, memory)

    def _attach(
        self,
        columns: Columns,
        leading: tuple[int, ...],
        placement: Placement,
        places: dict[str, Any],
        memory: dict[str, Any],
    ) -> None:
        self.columns = columns
        self.leading = leading
        self.placement = placement
        self.blocks: dict[str, Tensor] = {dtype: torch.as_tensor(block) for dtype, block in memory.items()}
        self._memory = memory
        self._places = places
        self._order: list[tuple[str, _Place]] = list(_walk(places))
        self.data: dict[str, Any] = self._views(self.blocks)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.columns, self.leading, self.placement, self._places, self._memory

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._attach(*state)

    def _views(self, blocks: Mapping[str, Tensor]) -> dict[str, Any]:
        return _map_places(self._places, lambda place: place.view(blocks[place.dtype]))

    @property
    def num_bytes(self) -> int:
        """How much memory all blocks take."""
        return sum(block.numel() * block.element_size() for block in self.blocks.values())

    def write(self, loc: Any, values: Mapping[str, Any]) -> None:
        """Write one nested dict of tensors to all columns at data[...][loc]; keys, shapes and dtypes must fit.

        The columns of a dtype lie side by side, so joining the values writes them all in one call. Everything is
        checked before anything is written.
        """
        rows = {dtype: block[loc] for dtype, block in self.blocks.items()}
        pieces = self._pieces(values, rows)
        for dtype, row in rows.items():
            torch.cat(pieces[dtype], dim=-1, out=row)

    def pack(self, values: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return one nested dict of tensors [N, …] as rows [N, W] by dtype, in the layout of the blocks [T, N, W]."""
        like = {dtype: block[0] for dtype, block in self.blocks.items()}
        return {dtype: torch.cat(pieces, dim=-1) for dtype, pieces in self._pieces(values, like).items()}

    def put(self, rows: Mapping[str, Tensor], place: Tensor) -> None:
        """Write packed rows at a place, int64 [1], on the device: for steps in CUDA graphs."""
        for dtype, block in self.blocks.items():
            block.index_copy_(0, place, rows[dtype].unsqueeze(0))

    def _pieces(self, values: Mapping[str, Any], rows: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
        found = dict(_walk(values))
        pieces: dict[str, list[Tensor]] = {dtype: [] for dtype in rows}
        for path, place in self._order:
            if path not in found:
                raise KeyError(unknown("column", path, found, where="the row to be written"))
            pieces[place.dtype].append(_piece(found.pop(path), place, rows[place.dtype], path))
        if found:
            raise KeyError(unknown("column", next(iter(found)), [path for path, _ in self._order], where="the arena"))
        return pieces

    def select(self, loc: Any) -> dict[str, Any]:
        """Read all columns at [loc]: one gather per dtype, then views of it."""
        return self._views({dtype: block[loc] for dtype, block in self.blocks.items()})

    def gather(self, index: Tensor) -> dict[str, Any]:
        """Read the rows with these positions in the flattened leading dimensions."""
        rows = math.prod(self.leading)
        return self._views({dtype: block.view(rows, -1).index_select(0, index) for dtype, block in self.blocks.items()})

    def state_dict(self) -> dict[str, Tensor]:
        """Return the blocks by dtype."""
        return dict(self.blocks)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load saved blocks; other dtypes or shapes than this arena's raise before anything is changed."""
        if state.keys() != self.blocks.keys():
            raise ValueError(f"the saved arena has dtypes {sorted(state)}, this one has {sorted(self.blocks)}")
        for dtype, block in self.blocks.items():
            if state[dtype].shape != block.shape:
                raise ValueError(f"saved block {dtype}: shape {tuple(state[dtype].shape)}, wanted {tuple(block.shape)}")
        for dtype, block in self.blocks.items():
            block.copy_(state[dtype])


def _plan(columns: Columns, widths: dict[str, int]) -> dict[str, Any]:
    """Give every column its slice, in order, and count the width of each dtype's block."""
    places: dict[str, Any] = {}
    for name, spec in columns.items():
        if isinstance(spec, TensorSpec):
            start = widths.get(spec.dtype, 0)
            widths[spec.dtype] = start + spec.size
            places[name] = _Place(spec.dtype, start, start + spec.size, spec.shape)
        elif isinstance(spec, Mapping):
            places[name] = _plan(spec, widths)
        else:
            raise TypeError(f"column {name!r}: wanted a TensorSpec or a mapping of them, found {type(spec).__name__}")
    return places


def _piece(value: Any, place: _Place, row: Tensor, path: str) -> Tensor:
    """Return a value as the [..., width] piece of its row, or raise."""
    source = value if isinstance(value, Tensor) else torch.as_tensor(value)
    lead = row.shape[:-1]
    if source.shape != lead + place.shape:
        raise ValueError(f"column {path!r} wants shape {(*lead, *place.shape)}, found {tuple(source.shape)}")
    if source.device != row.device:
        raise ValueError(f"column {path!r} is on {row.device}, the value on {source.device}; move it first")
    if source.dtype is not row.dtype:
        if not torch.can_cast(source.dtype, row.dtype):
            raise TypeError(f"column {path!r} holds {row.dtype}; {source.dtype} would lose its values there")
        source = source.to(row.dtype)
    if len(place.shape) == 1:
        return source
    return source.reshape(*lead, place.stop - place.start) if place.shape else source.unsqueeze(-1)


def _map_places(places: Mapping[str, Any], function: Any) -> dict[str, Any]:
    return {
        name: function(place) if isinstance(place, _Place) else _map_places(place, function)
        for name, place in places.items()
    }


def _walk(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _walk(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _allocate(dtype: str, shape: tuple[int, ...], placement: Placement) -> Any:
    """Return zeros: a tensor, or an array where the memory is shared or mapped, which stays so when it is sent."""
    if not placement.shared and placement.folder is None:
        return torch.zeros(shape, dtype=torch_dtype(dtype), device=placement.device)
    if dtype == "bfloat16":
        raise TypeError("bfloat16 columns cannot be shared or kept in files; store float16 or float32")
    return shared_array(shape, dtype) if placement.folder is None else _mapped(placement.folder, dtype, shape)


def _mapped(folder: Path, dtype: str, shape: tuple[int, ...]) -> Any:
    """Map the file of one dtype, made new or kept."""
    folder.mkdir(parents=True, exist_ok=True)
    return mapped_file(folder / f"{dtype}.bin", shape, dtype, keep=True)
