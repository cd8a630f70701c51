"""Cut a rollout at episode ends, pad the pieces to one length, and put them back together.

`dones[t, n]`: step t is the last of its trajectory; the last row of a rollout always ends one. Trajectories
are ordered env by env. With T = 4 steps, 2 envs and env 0 done at t = 1:

    x [T, N]            padded [T, 3]          masks [T, 3]
      a e                 a c e                  1 1 1
      b f    ── split ─▶  b d f     and          1 1 1
      c g                 0 0 g                  0 0 1
      d h    ◀─ unpad ──  0 0 h                  0 0 1

The padded length is always T, so that unpadding needs nothing but the masks, and the padding is zero, never left-over
memory. Row 0 holds the first step of every trajectory: splitting stored recurrent states and taking row 0 gives each
trajectory's initial state. How many trajectories there are depends on the data, so this costs a host synchronisation:
it is the reference. `assign_slots` is the static-shape form for graphs.

Put a blank step before every reset of a [T, B] window, in which a recurrent network can zero its state.

A library call runs whole columns: it cannot zero its state in the middle. So there are blank steps in which its gates
do, as many as the env with most resets has. How many that is depends on the data: it is for the CPU, where reading it
costs nothing. T = 4, B = 2, env 0 resets at t = 2, `c` clears the state, `h` holds it until the end:

    steps [T, B]        spaced [5, 2]
      p u                 p u
      q v     ─────▶      q v
      r w                 c w
      s x                 r x
                          s h

Place the trajectories of a [T, B] window into a fixed number of slots, without a host synchronisation.

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

Sequences [T, B] of replayed steps for recurrent networks: bootstrapping from where episodes really ended.

    time                0    1    2    3                   an episode is truncated at 1; its final observation is f
    seen                o0   o1   o2   o3
    woven          o0   o1   f    o2   o3   n3             n3 is the observation after the last step
    here [t]       0    1         3    4                   where the value of o_t is read
    here [t] + 1        1    2         4    5              where the value of what followed step t is read

A memory that reads the woven sequence (resets at 3, as the new episode begins there) has seen the whole past at f, so
that one pass gives all values. How many observations are woven in depends on the sequence; the shape is that of the
sequence with most of them, or 2 T where values may not be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.data import tree

# -- padded ------------------------------------------------------------------------------------------------------------


def split_and_pad_trajectories(x: Any, dones: Tensor) -> tuple[Any, Tensor]:
    """Split [T, N, …] leaves at `dones` [T, N] (any dtype) into ([T, n_traj, …] leaves, masks [T, n_traj])."""
    if dones.dim() != 2:
        raise ValueError(f"dones must have shape [T, N], found {tuple(dones.shape)}")
    masks = _trajectory_masks(dones)

    def split(path: str, leaf: Any) -> Tensor:
        found = _as_tensor(path, leaf)
        if tuple(found.shape[:2]) != tuple(dones.shape):
            raise ValueError(
                f"{path or 'x'} has shape {tuple(found.shape)}; its first two sizes must be "
                f"those of dones, {tuple(dones.shape)}"
            )
        env_major = found.transpose(0, 1).flatten(0, 1)
        padded = found.new_zeros(masks.shape[1], masks.shape[0], *found.shape[2:])
        return padded.index_put((masks.t(),), env_major).transpose(0, 1)

    return tree.map_with_path(split, x), masks


def unpad_trajectories(padded: Any, masks: Tensor) -> Any:
    """Invert the split: [T, n_traj, …] leaves become [T, N, …]; the trajectories of whole envs must be given."""
    num_steps = masks.shape[0]
    keep = masks.bool().t()

    def join(path: str, leaf: Any) -> Tensor:
        found = _as_tensor(path, leaf)
        if tuple(found.shape[:2]) != tuple(masks.shape):
            raise ValueError(
                f"{path or 'padded'} has shape {tuple(found.shape)}; its first two sizes must be "
                f"those of the masks, {tuple(masks.shape)}"
            )
        steps = found.transpose(0, 1)[keep]
        if steps.shape[0] % num_steps:
            raise ValueError(
                f"the masks cover {steps.shape[0]} steps, which is no multiple of T = {num_steps}; "
                "give all trajectories of every env that takes part"
            )
        return steps.reshape(-1, num_steps, *found.shape[2:]).transpose(0, 1)

    return tree.map_with_path(join, padded)


def _trajectory_masks(dones: Tensor) -> Tensor:
    """Return [T, n_traj], true for the steps that each trajectory has."""
    num_steps = dones.shape[0]
    ends = dones.bool().clone()
    ends[-1] = True
    positions = ends.t().flatten().nonzero().flatten()
    before = torch.cat([positions.new_full((1,), -1), positions[:-1]])
    lengths = positions - before
    return torch.arange(num_steps, device=dones.device).unsqueeze(1) < lengths.unsqueeze(0)


def _as_tensor(path: str, leaf: Any) -> Tensor:
    if not isinstance(leaf, Tensor):
        raise TypeError(f"{path or 'x'} is a {type(leaf).__name__}; wanted a tensor (striderl.data.tree.to_torch)")
    return leaf


# -- shapes ------------------------------------------------------------------------------------------------------------


_static: list[bool] = []


@contextmanager
def static_shapes() -> Iterator[None]:
    """Forbid shapes that depend on values within this region, as a captured graph does."""
    _static.append(True)
    try:
        yield
    finally:
        _static.pop()


def shapes_are_static() -> bool:
    """Return whether this is a region of `static_shapes`, in which code runs as it will be captured."""
    return bool(_static)


def shapes_may_depend_on_values(x: Tensor) -> bool:
    """Return whether code may read values of x on the host: on the CPU, when nothing is traced or captured."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        return False
    return not _static and x.device.type == "cpu"


# -- with blank steps --------------------------------------------------------------------------------------------------


class SpacedTrajectories(NamedTuple):
    """Where the steps of a window lie among L steps with blank ones."""

    num_steps: int
    """L."""
    place: Tensor
    """[T, B] int64: the flat place k * B + b of each step."""
    gates: Tensor
    """[L, B, 2] bool: the state is to be zeroed, or held, in this place; neither in a valid step."""


def space_trajectories(resets: Tensor, valid: Tensor) -> SpacedTrajectories:
    """Find the places; an invalid step [T, B] zeroes the state itself, and there is none before t = 0."""
    num_steps, num_envs = resets.shape
    blank = torch.zeros_like(valid)
    blank[1:] = resets[1:] & valid[1:] & valid[:-1]
    place = torch.arange(num_steps).unsqueeze(1) + blank.cumsum(0)
    length = int(place[-1].max()) + 1
    flat = place * num_envs + torch.arange(num_envs)
    live = torch.zeros(length * num_envs, dtype=torch.bool).index_copy(0, flat.flatten(), valid.flatten())
    over = torch.arange(length).unsqueeze(1) > place[-1]
    gates = torch.stack([~live.view(length, num_envs) & ~over, over], dim=-1)
    return SpacedTrajectories(length, flat, gates)


# -- in slots ----------------------------------------------------------------------------------------------------------


_room: list[int] = []


@contextmanager
def room_for_trajectories(num_slots: int) -> Iterator[None]:
    """Declare that the trajectories of every window [T, B] in this region fit into so many slots.

    A recurrent network then runs a window in one library call, and returns no state after the last step.
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
    """Return how many slots every env [B] needs besides its own: trajectories that begin after t = 0."""
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


# -- replayed ----------------------------------------------------------------------------------------------------------


class Weaving(NamedTuple):
    """Order of time of observations and final observations together, L steps long."""

    source: Tensor
    """int64 [L, B]: row of the observations [T] followed by the next observations [T]."""
    resets: Tensor
    """bool [L, B]: an episode begins here."""
    valid: Tensor
    """bool [L, B]: something is here."""
    here: Tensor
    """int64 [T, B]: where step t is; the observation after it is at the next place."""

    def woven(self, obs: Tensor, obs_next: Tensor) -> Tensor:
        """Return a component [L, B, …] from its values [T, B, …] in the steps and after them."""
        both = torch.cat([obs, obs_next])
        index = self.source.view(*self.source.shape, *[1] * (obs.dim() - 2)).expand(*self.source.shape, *obs.shape[2:])
        return both.gather(0, index)


def weave(ended: Tensor, resets: Tensor, valid: Tensor) -> Weaving:
    """Return the order for steps [T, B]: `ended` where an episode ends with the step, `resets` where one begins."""
    ended = ended & valid
    num_steps, count = ended.shape
    time = torch.arange(num_steps, device=ended.device).unsqueeze(1).expand(-1, count)
    before = ended.cumsum(0) - ended.long()
    here = time + before
    extra = int(before[-1].max()) if shapes_may_depend_on_values(ended) else num_steps - 1
    length = num_steps + 1 + extra
    source = torch.zeros(length, count, dtype=torch.int64, device=ended.device).scatter(0, here, time)
    alive = torch.zeros(length, count, dtype=torch.bool, device=ended.device).scatter(0, here, valid)
    begins = torch.zeros_like(alive).scatter(0, here, resets)
    # the observation after a valid step is known, even where the next step is invalid
    after = here + 1
    source = source.scatter(0, after, torch.where(valid, num_steps + time, source.gather(0, after)))
    alive = alive.scatter(0, after, valid | alive.gather(0, after))
    return Weaving(source, begins, alive, here)


class SequenceWindow(NamedTuple):
    """The n-step windows of all steps of a sequence, [T, B] each."""

    reward: Tensor
    """The discounted sum of the rewards."""
    discount: Tensor
    """The discount of the value after the window; 0 where it ends with a termination."""
    last: Tensor
    """int64: the last step of the window."""


def sequence_windows(
    reward: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor, *, gamma: float, n: int
) -> SequenceWindow:
    """Return windows of up to n steps that stay within their episode, the valid steps and the sequence."""
    num_steps, count = reward.shape
    time = torch.arange(num_steps, device=reward.device).unsqueeze(1)
    last = time.expand(-1, count)
    ended = terminated | truncated
    going, total, factor = torch.ones_like(ended), reward, torch.full_like(reward, gamma)
    for ahead in range(1, min(n, num_steps)):
        going = going & ~ended.roll(1 - ahead, 0) & valid.roll(-ahead, 0) & (time + ahead < num_steps)
        total = total + torch.where(going, gamma**ahead * reward.roll(-ahead, 0), torch.zeros_like(reward))
        factor = torch.where(going, factor * gamma, factor)
        last = last + going
    return SequenceWindow(total, factor * ~terminated.gather(0, last), last)


def sequence_priority(error: Tensor, counts: Tensor, eta: float) -> Tensor:
    """Return eta · max + (1 - eta) · mean of |error| [T, B] over the steps that count, one number per sequence [B]."""
    size = torch.where(counts, error.abs(), torch.zeros_like(error))
    mean = size.sum(dim=0) / counts.sum(dim=0).clamp(min=1)
    return eta * size.amax(dim=0) + (1.0 - eta) * mean
