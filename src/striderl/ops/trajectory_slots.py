"""Place the trajectories of a [T, B] window into a fixed number of slots, without asking the host.

A recurrent library call runs whole columns: it cannot zero its state in the middle. So every trajectory gets a column
(a slot) of its own, starting at the top. Slot b belongs to the piece of env b that begins at t = 0, with its stored
state; each later beginning takes the next free slot, in order of time, with a zero state. T = 4, B = 2, num_slots = 4,
env 0 resets at t = 2, `.` is unfilled:

    steps [T, B]        slots [T, 4]
      a e                 a e c .
      b f     ─────▶      b f d .
      c g                 . g . .
      d h                 . h . .

The number of slots is static, so the whole thing can be captured in a graph. When there are more beginnings than free
slots the late ones are left out and `covered` is false there: those steps must count as invalid samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

_room: list[int] = []


@contextmanager
def room_for_trajectories(num_slots: int) -> Iterator[None]:
    """Say that the trajectories of every window [T, B] in this region fit into so many slots.

    Memory then runs a window in one library call, and does not say what it remembers after the last step.
    """
    _room.append(num_slots)
    try:
        yield
    finally:
        _room.pop()


def room_now() -> int | None:
    """Return how many slots there are in this region; None outside of one."""
    return _room[-1] if _room else None


def extra_slots(resets: Tensor, valid: Tensor) -> Tensor:
    """Return how many slots every env [B] needs beside its own: trajectories that begin after t = 0."""
    return ((resets[1:].bool() | ~valid[:-1]) & valid[1:]).sum(0)


class TrajectorySlots(NamedTuple):
    """Which step sits where, in both directions."""

    source: Tensor
    """[T, S] int64: the flat position t * B + b of the step in this place; 0 where unfilled."""
    filled: Tensor
    """[T, S] bool: whether a step sits in this place."""
    place: Tensor
    """[T, B] int64: the flat place k * S + slot of this step; 0 where not covered."""
    covered: Tensor
    """[T, B] bool: whether this step is valid and has a place."""


def assign_slots(resets: Tensor, valid: Tensor, num_slots: int) -> TrajectorySlots:
    """Give every trajectory a slot; it begins at a reset [T, B], and at a valid step after an invalid one."""
    num_steps, num_envs = resets.shape
    if num_slots < num_envs:
        raise ValueError(f"num_slots is {num_slots}, but each of the {num_envs} envs needs one")
    device = resets.device
    # a trajectory that begins at t = 0 has slot b whether or not it is a reset, so row 0 never takes an extra slot
    after_hole = torch.cat([torch.zeros_like(valid[:1]), ~valid[:-1]])
    begins = (resets.bool() | after_hole) & valid
    begins = torch.cat([torch.zeros_like(begins[:1]), begins[1:]])
    env = torch.arange(num_envs, device=device).expand(num_steps, num_envs)
    step = torch.arange(num_steps, device=device).unsqueeze(1).expand(num_steps, num_envs)
    extra = num_envs - 1 + begins.flatten().long().cumsum(0).view(num_steps, num_envs)
    # numbers grow with time, so the running maximum is the number of the latest beginning
    slot = torch.where(begins, extra, env).cummax(0).values
    start = torch.where(begins, step, torch.zeros_like(step)).cummax(0).values
    covered = valid & (slot < num_slots)

    size = num_steps * num_slots
    place = torch.where(covered, (step - start) * num_slots + slot, torch.full_like(step, size))
    # one place more than there is: steps that are not covered are written there and cut off
    source = torch.zeros(size + 1, dtype=torch.int64, device=device)
    source = source.scatter(0, place.flatten(), torch.arange(num_steps * num_envs, device=device))
    filled = torch.zeros(size + 1, dtype=torch.bool, device=device)
    filled = filled.scatter(0, place.flatten(), torch.ones_like(valid).flatten())
    return TrajectorySlots(
        source=source[:size].view(num_steps, num_slots) * filled[:size].view(num_steps, num_slots),
        filled=filled[:size].view(num_steps, num_slots),
        place=torch.where(covered, place, torch.zeros_like(place)),
        covered=covered,
    )


def into_slots(x: Tensor, slots: TrajectorySlots) -> Tensor:
    """Rearrange [T, B, F] into [T, S, F]; unfilled places are zero, whatever x holds."""
    found = x.flatten(0, 1).index_select(0, slots.source.flatten()).view(*slots.source.shape, *x.shape[2:])
    return torch.where(slots.filled.unsqueeze(-1), found, torch.zeros_like(found))


def from_slots(y: Tensor, slots: TrajectorySlots) -> Tensor:
    """Rearrange [T, S, H] back into [T, B, H]; steps that are not covered are zero."""
    found = y.flatten(0, 1).index_select(0, slots.place.flatten()).view(*slots.place.shape, *y.shape[2:])
    return torch.where(slots.covered.unsqueeze(-1), found, torch.zeros_like(found))
