"""Sequences of a replay for recurrent networks, with the stored memory and a burn-in.

    picked          ▼
    place    … 6  7  8  9 10 11 12 …         state kept before every 3rd place: 0, 3, 6, 9, …
    sequence   6  7  8  9 10                 starts at 6 with the memory from before 6; length 3, burn_in 2
    learn      ·  ·  x  x  x                 burn-in steps only warm the memory up
    resets     0  0  0  1  0                 a new episode begins at 9: the memory starts from zero there

Shapes are static, [T, B] with T = burn_in + length. Places after the newest step are filled with what is there and have
`valid` false.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from striderl.storage.replay_reader import ReplayReader


class SequenceView:
    """Shows a run of steps from (or shortly before) each picked one, [T, B, …]."""

    def __init__(self, length: int, *, burn_in: int = 0) -> None:
        """Show `burn_in` steps to warm up on, then `length` steps to learn from."""
        if length < 1 or burn_in < 0:
            raise ValueError(f"wanted length >= 1 and burn_in >= 0, found {length} and {burn_in}")
        self.length, self.burn_in = length, burn_in

    def __call__(self, read: ReplayReader, index: Tensor) -> dict[str, Any]:
        """Return all columns with `obs_next` [T, B, …], `resets`, `valid`, `learn` bool [T, B], and `state` [B, …]."""
        start, found = self._starts(read, index)
        num_steps = self.burn_in + self.length
        offset = torch.arange(num_steps, device=index.device).unsqueeze(1)
        rows = read.shifted(start, offset)
        flat = rows.flatten()
        data = _shaped(read.rows(flat), num_steps, index.shape[0])
        there = (read.position(start) + offset < read.size_of(start)) & found
        ended = data["terminated"] | data["truncated"]
        resets = torch.cat([self._begins(read, start).unsqueeze(0), ended[:-1]])
        valid = data["valid"] & there
        state = {} if read.states is None else read.states.gather(start)
        return {
            **data,
            "resets": resets & there,
            "valid": valid,
            "learn": valid & (offset >= self.burn_in),
            "state": state,
        }

    def _starts(self, read: ReplayReader, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows to start from, where memory is kept, and whether there is such a row for each pick."""
        if read.states is None or read.states.every == 1:
            return index, torch.ones_like(index, dtype=torch.bool)
        every = read.states.every
        back = read.shifted(index, -(index // read.num_envs % every))
        # the memory from before the oldest steps may be gone with the step it belonged to; the next one is there
        gone = read.position(back) > read.position(index)
        ahead = read.shifted(back, every)
        wrapped = ahead // read.num_envs % every != 0
        ahead = torch.where(wrapped, index % read.num_envs, ahead)
        start = torch.where(gone, ahead, back)
        return start, read.alive(start)

    def _begins(self, read: ReplayReader, start: Tensor) -> Tensor:
        """Tell where an episode begins with the first row itself; at the oldest row the past is not known."""
        before = read.shifted(start, -1)
        return read.done(before) & (read.position(start) > 0)


def _shaped(rows: dict[str, Any], num_steps: int, count: int) -> dict[str, Any]:
    return {
        name: _shaped(value, num_steps, count) if isinstance(value, dict) else value.unflatten(0, (num_steps, count))
        for name, value in rows.items()
    }
