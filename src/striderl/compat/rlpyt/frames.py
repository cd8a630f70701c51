"""Stacks of video frames in a replay, each frame stored once.

    observation at t      f3 f4 f5 f6           four frames, oldest first; the next one is f4 f5 f6 f7
    stored                one frame per row, the newest; a stack is put together from this row and those before
    starts                rows whose stack does not follow from the row before, such as the first of an episode, are
                          kept whole: [0 0 0 f0], or [f0 f0 f0 f0], as the env gives it

A million Atari observations of four frames are 31 GiB as they come and 8 GiB so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def follows(observation: Tensor, before: Tensor) -> Tensor:
    """Return where a stack [..., n, h, w] is that of the step before with one new frame, bool [...]."""
    return (observation[..., :-1, :, :] == before[..., 1:, :, :]).flatten(-3).all(-1)


def are_stacks(example: Any, samples: Any) -> bool:
    """Return whether observations are stacks of frames: images uint8 [n, h, w], each following from the one before.

    The first samples decide. Where no episode goes on within them, images with several channels are taken for stacks;
    those that are none are then all kept whole, as starts.
    """
    observation = example.observation
    if not (hasattr(observation, "shape") and len(observation.shape) == 3 and observation.shape[0] > 1):
        return False
    if np.asarray(observation).dtype != np.uint8:
        return False
    going = ~samples.done[:-1].bool()
    matching = follows(samples.observation[1:], samples.observation[:-1])
    return bool(matching[going].all())


class FrameStore:
    """The frames of a ring of T rows and B envs."""

    def __init__(self, T: int, B: int, shape: tuple[int, ...], device: torch.device) -> None:
        """Make room for stacks [n, h, w]."""
        self.num_frames = shape[0]
        # zeros of numpy: memory that is not written yet is not taken
        self.frames = torch.from_numpy(np.zeros((T, B, *shape[1:]), np.uint8)).to(device)
        self.is_start = torch.zeros(T, B, dtype=torch.bool)
        self.starts: dict[tuple[int, int], Tensor] = {}
        self._last: Tensor | None = None

    def write(self, rows: Tensor, observation: Tensor) -> None:
        """Write stacks [t, B, n, h, w] in these rows of the ring, in the order of time."""
        index = rows.cpu()
        for row, env in self._marked(index):
            del self.starts[row, env]
        new = torch.ones(observation.shape[:2], dtype=torch.bool)
        new[1:] = ~follows(observation[1:], observation[:-1]).cpu()
        if self._last is not None:
            new[0] = ~follows(observation[0], self._last).cpu()
        self.frames[rows] = observation[:, :, -1]
        self.is_start[index] = new
        for step, env in new.nonzero().tolist():
            self.starts[int(index[step]), env] = observation[step, env].clone()
        self._last = observation[-1].clone()

    def _marked(self, rows: Tensor) -> list[tuple[int, int]]:
        found = self.is_start[rows].nonzero().tolist()
        return [(int(rows[step]), env) for step, env in found]

    def read(self, rows: Tensor, envs: Tensor) -> Tensor:
        """Return the stacks [batch, n, h, w] of rows and envs [batch]."""
        n, length = self.num_frames, len(self.frames)
        back = torch.arange(n - 1, -1, -1, device=rows.device)
        stacks = self.frames[(rows.unsqueeze(1) - back) % length, envs.unsqueeze(1)]
        index, columns = rows.cpu(), envs.cpu()
        open_ = torch.ones(len(index), dtype=torch.bool)
        for age in range(n):  # the newest start within a stack gives all frames up to it
            at = (index - age) % length
            for place in (open_ & self.is_start[at, columns]).nonzero().flatten().tolist():
                stacks[place, : n - age] = self.starts[int(at[place]), int(columns[place])][age:]
                open_[place] = False
        return stacks
