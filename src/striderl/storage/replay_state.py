"""Saving a replay and going on with it, without pickle.

In memory, the state holds the rows in use. In files, the data stays where it is: the files are flushed, and the state
holds where the ring stood and how often it was saved. A mark beside the files says how far they have been written, so
that after a crash the rows that were overwritten since the last save are known and dropped:

    saved at step 100, capacity 60, files written up to step 130     steps 40 … 99 were alive, 40 … 70 are overwritten
                                                                     alive after loading: 71 … 99
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.checkpoint.safe_files import open_read, write_json
from striderl.data.memory import mapped_file

if TYPE_CHECKING:
    from striderl.storage.packed_rows import PackedRows
    from striderl.storage.replay import Replay

_log = logging.getLogger(__name__)
_FORMAT = 1


@runtime_checkable
class StatefulView(Protocol):
    """A view that draws random numbers of its own, such as `Hindsight`."""

    def state_dict(self) -> dict[str, Any]:
        """Return where its draws stand."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        ...


def save_replay(replay: Replay) -> dict[str, Any]:
    """Return the state of a replay; its files are written out first."""
    cursor, view = replay.cursor, _stateful(replay)
    used = min(cursor.rows, int(cursor.totals.max()) + 1)
    state: dict[str, Any] = {
        "format": _FORMAT,
        "num_envs": replay.num_envs,
        "steps_per_env": replay.steps_per_env,
        "generation": replay.generation,
        "totals": torch.from_numpy(cursor.totals),
        "first_alive": torch.from_numpy(cursor.first_alive),
        "picker": replay.picker.state_dict(),
        "view": None if view is None else view.state_dict(),
        "episodes": None if replay.episodes is None else replay.episodes.state_dict(),
        "states": None if replay.states is None else _blocks(replay.states.packed, None),
    }
    if replay.placement.folder is not None:
        _mark(replay).commit(replay)
        return {**state, "steps": None, "frames": None, "finals": None}
    steps = _blocks(replay.steps, used)
    ended = (steps["bool"][..., 0] | steps["bool"][..., 1]).flatten().nonzero().squeeze(1)
    finals = {dtype: block.flatten(0, 1).index_select(0, ended) for dtype, block in replay.finals.arena.blocks.items()}
    return {
        **state,
        "steps": steps,
        "frames": _blocks(replay.frames, used),
        "finals": {"rows": ended, "blocks": finals},
    }


def load_replay(replay: Replay, state: Mapping[str, Any]) -> None:
    """Bring a replay into a saved state; everything is checked before anything is changed."""
    _check(replay, state)
    totals, first = state["totals"].numpy(), state["first_alive"].numpy()
    if state["steps"] is None:
        first = _mark(replay).still_alive(replay, totals, first)
    else:
        for name, packed in (("steps", replay.steps), ("frames", replay.frames)):
            _check_blocks(name, packed, state[name])
        for packed, saved in ((replay.steps, state["steps"]), (replay.frames, state["frames"])):
            for dtype, block in packed.arena.blocks.items():
                block[: saved[dtype].shape[0]].copy_(saved[dtype])
        rows = state["finals"]["rows"].to(replay.read.device)
        for dtype, block in replay.finals.arena.blocks.items():
            block.view(-1, block.shape[-1])[rows] = state["finals"]["blocks"][dtype].to(replay.read.device)
    if replay.states is not None:
        for dtype, block in replay.states.packed.arena.blocks.items():
            block.copy_(state["states"][dtype])
    if replay.episodes is not None:
        replay.episodes.load_state_dict(state["episodes"])
    replay.cursor.set(totals, first)
    replay.picker.load_state_dict(state["picker"])
    replay.picker.keep(replay.read.alive(torch.arange(replay.read.num_rows, device=replay.read.device)))
    if (view := _stateful(replay)) is not None:
        view.load_state_dict(state["view"])
    replay.generation = int(state["generation"])


def _stateful(replay: Replay) -> StatefulView | None:
    view: object = replay.view
    return view if isinstance(view, StatefulView) else None


def _mark(replay: Replay) -> Mark:
    if replay.mark is None:
        raise ValueError("this replay is not in files")
    return replay.mark


def _check(replay: Replay, state: Mapping[str, Any]) -> None:
    wanted = {"num_envs": replay.num_envs, "steps_per_env": replay.steps_per_env, "format": _FORMAT}
    for name, value in wanted.items():
        if state.get(name) != value:
            raise ValueError(f"the saved replay has {name} {state.get(name)}, this one {value}")
    if (state["steps"] is None) != (replay.placement.folder is not None):
        raise ValueError("one of the two replays is in files and the other is not; load it into the same placement")
    if (state["episodes"] is None) != (replay.episodes is None):
        raise ValueError("one of the two replays keeps the bounds of episodes and the other does not")
    if (state["view"] is None) != (_stateful(replay) is None):
        raise ValueError("the views of the two replays differ: one draws random numbers of its own, the other does not")
    if (state["states"] is None) != (replay.states is None):
        raise ValueError("one of the two replays keeps the actor's memory and the other does not")


def _blocks(packed: PackedRows, rows: int | None) -> dict[str, Tensor]:
    return {dtype: block[:rows].clone() for dtype, block in packed.arena.blocks.items()}


def _check_blocks(name: str, packed: PackedRows, saved: Mapping[str, Tensor]) -> None:
    blocks = packed.arena.blocks
    if saved.keys() != blocks.keys():
        raise ValueError(f"the saved {name} have dtypes {sorted(saved)}, these {sorted(blocks)}")
    for dtype, block in blocks.items():
        if saved[dtype].shape[1:] != block.shape[1:] or saved[dtype].shape[0] > block.shape[0]:
            raise ValueError(f"saved {name} {dtype}: shape {list(saved[dtype].shape)}, wanted {list(block.shape)}")


class Mark:
    """How far the files of a replay have been written: int64 [N] in a file of its own, written before the rows are."""

    def __init__(self, folder: Path, num_envs: int) -> None:
        """Open the mark of a folder, or make one."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.written: NDArray[np.int64] = mapped_file(folder / "written.bin", (num_envs,), np.int64, keep=True)

    def commit(self, replay: Replay) -> None:
        """Write the files out, then say in one atomic step which generation they are."""
        for path in self._folder.rglob("*.bin"):
            with open_read(path) as file:
                os.fsync(file.fileno())  # pages that were written through a mapping included
        content = {"generation": replay.generation, "totals": replay.cursor.totals.tolist()}
        write_json(self._folder / "commit.json", content, indent=None)

    def still_alive(self, replay: Replay, totals: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the oldest step of each env that the files still hold."""
        if (self.written < totals).any():
            raise ValueError(
                f"the files in {self._folder} were written up to step {self.written.tolist()}, the saved replay stood "
                f"at {totals.tolist()}: they belong to another run"
            )
        alive = np.minimum(np.maximum(first, self.written - replay.cursor.rows + 1), totals)
        lost = int((alive - first).sum())
        if lost:
            saved = int((totals - first).sum())
            _log.warning("%d of %d saved steps were overwritten after the save and are dropped", lost, saved)
        return alive
