"""Reading frames of a `ReplayBuffer`: stacks of one episode, and the observation after a step.

steps of an episode      s0  s1  s2  s3 E           stack of 3 at s1: [s0 s0 s1]      before its start: the first again
after s1, stack of 3     [s0 s1 s2]                 after s3: [s2 s3 f], f is stored, or kept for a truncated end
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from striderl.data import tree
from striderl.storage.replay_buffer_rows import take_rows

if TYPE_CHECKING:
    from striderl.storage.replay_buffer import ReplayBuffer


def stacked(buffer: ReplayBuffer, column: Any, array: NDArray[np.int64], count: int) -> Any:
    """Return `count` frames of a column up to these steps, stacked right after the index dimensions."""
    frames = []
    for _ in range(count):
        frames.append(take_rows(column, array))
        array = buffer.prev(array)
    return tree.stack(frames[::-1], axis=array.ndim)


def following(buffer: ReplayBuffer, array: NDArray[np.int64], count: int) -> Any:
    """Return the observations after these steps, with the frames before them."""
    stores = buffer.stores_obs_next
    newest = take_rows(buffer._data["obs_next"], array) if stores else _walked(buffer, array)
    if count == 1:
        return newest
    # the frames before it are those of this step; at an end without a known next one, the step's own
    known = np.asarray(True if stores else (buffer.next(array) != array) | _has_final(buffer, array))
    frames: list[Any] = [newest]
    place = np.where(known, array, buffer.prev(array))
    for _ in range(count - 1):
        frames.append(take_rows(buffer._data["obs"], place))
        place = buffer.prev(place)
    return tree.stack(frames[::-1], axis=array.ndim)


def _has_final(buffer: ReplayBuffer, array: NDArray[np.int64]) -> Any:
    return np.isin(array, list(buffer._finals))


def _walked(buffer: ReplayBuffer, array: NDArray[np.int64]) -> Any:
    """Return the observations one place on, and the final ones where episodes were truncated."""
    found = take_rows(buffer._data["obs"], buffer.next(array))
    if not buffer._finals:
        return found
    found = tree.copy(found)
    for place in np.argwhere(_has_final(buffer, array)):
        where = tuple(place.tolist())
        final = buffer._finals[int(array[where])]
        if where:
            tree.assign(found, where, final)
        else:
            found = tree.copy(final)
    return found
