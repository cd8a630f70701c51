"""Cut what a storage holds into minibatches: rows in any order, or whole envs as sequences.

    storage [T, N]        mini_batch_generator             recurrent_mini_batch_generator
      env  0 1 2          rows of any step and env         whole env columns
    t = 0  a d g            h c a e │ b i d g f              g a │ d
    t = 1  b e h            one permutation of all rows      h b │ e      [T, n], any n; no env is left out
    t = 2  c f i            per epoch, cut into pieces       i c │ f

Each epoch has an order of its own and uses every sample exactly once; pieces differ in size by one at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from striderl.data import tree
from striderl.data.arena import Arena
from striderl.data.batch import Batch
from striderl.ops.losses import valid_mean
from striderl.ops.returns import backward_scan
from striderl.ops.trajectories import split_and_pad_trajectories


class TimeMajorStorage(Protocol):
    """A storage of rows [T, N, …], such as `RolloutStorage` and `QueueRolloutStorage`."""

    arena: Arena
    """The columns of a step."""
    num_envs: int
    """N."""

    @property
    def data(self) -> dict[str, Any]:
        """All columns as views."""
        ...

    @property
    def in_order(self) -> bool:
        """Whether the rows in use are chronological."""
        ...

    def batch(self) -> Batch:
        """Return the rows in use as views, or raise when envs have different numbers of steps."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...


class SequenceMiniBatch(NamedTuple):
    """Sequences of some envs."""

    steps: Batch
    """All columns, [T, n, …] each."""
    resets: Tensor
    """bool [T, n]: a new episode begins, before that step is processed; false in a row whose past is not stored."""
    valid: Tensor
    """bool [T, n]."""
    dones: Tensor
    """bool [T, n]: the episode ended in this step."""
    state: Any
    """The memory before row 0, [n, …] each, as far as it was given."""

    def padded(self) -> tuple[Batch, Tensor]:
        """Return the episodes' pieces padded to one length: ([T, n_traj, …] columns, masks [T, n_traj]).

        `striderl.ops.trajectories.unpad_trajectories` puts them back together.
        """
        return split_and_pad_trajectories(self.steps, self.dones)


class RolloutStatistics(NamedTuple):
    """What a storage holds, in two numbers (0-d tensors)."""

    mean_trajectory_length: Tensor
    """Valid steps per piece of an episode; where an episode began before the data or goes on after it, the piece."""
    mean_reward: Tensor
    """Per valid step."""


def mini_batch_generator(
    storage: TimeMajorStorage,
    num_mini_batches: int,
    num_epochs: int,
    generator: torch.Generator,
    *,
    targets: Mapping[str, Any] | None = None,
) -> Iterator[Batch]:
    """Yield minibatches of rows [n, …], a fresh permutation each epoch.

    `targets` (returns, advantages, …), [T, N, …] each, are cut in the same way and come along under their names.
    """
    storage.batch()  # raises when envs have different numbers of steps
    count = len(storage)
    _check_count(num_mini_batches, num_epochs, count, "samples")
    added = _added(storage, targets)
    device = next(iter(storage.arena.blocks.values())).device
    for _ in range(num_epochs):
        order = torch.randperm(count, generator=generator).to(device)
        for part in order.tensor_split(num_mini_batches):
            rows = tree.map(lambda leaf, part=part: leaf.flatten(0, 1).index_select(0, part), added)
            yield Batch({**storage.arena.gather(part), **rows})


def recurrent_mini_batch_generator(
    storage: TimeMajorStorage,
    num_mini_batches: int,
    num_epochs: int,
    generator: torch.Generator,
    *,
    initial_state: Mapping[str, Any] | None = None,
    targets: Mapping[str, Any] | None = None,
) -> Iterator[SequenceMiniBatch]:
    """Yield minibatches of whole envs [T, n, …], a fresh order of envs each epoch.

    `initial_state` is the memory of all envs before row 0, [N, …] each; `targets` as in `mini_batch_generator`.
    """
    num_envs = storage.num_envs
    _check_count(num_mini_batches, num_epochs, num_envs, "envs")
    device = next(iter(storage.arena.blocks.values())).device
    for _ in range(num_epochs):
        order = torch.randperm(num_envs, generator=generator).to(device)
        for part in order.tensor_split(num_mini_batches):
            minibatch = get_minibatch_from_indices(storage, slice(None), part, targets=targets)
            state = tree.map(lambda leaf, part=part: leaf[part], dict(initial_state or {}))
            yield minibatch._replace(state=state)


def get_minibatch_from_indices(
    storage: TimeMajorStorage, T_slice: slice, B_slice: slice | Tensor, *, targets: Mapping[str, Any] | None = None
) -> SequenceMiniBatch:
    """Return some steps in a row of some envs (a range, or their numbers int64 [n])."""
    if T_slice.step not in (None, 1):
        raise ValueError(f"sequences are steps in a row; T_slice has step {T_slice.step}")
    if not storage.in_order:
        raise ValueError("the rows of the ring are not in order; call untie_buffer_loop() before taking sequences")
    whole = storage.batch()
    wanted = tree.index(Batch({**dict(whole.items()), **dict(_given(targets, storage))}), (T_slice, B_slice))
    done = whole.terminated | whole.truncated
    resets = torch.cat([torch.zeros_like(done[:1]), done[:-1]])
    where = (T_slice, B_slice)
    return SequenceMiniBatch(wanted, resets[where], whole.valid[where], done[where], {})


def get_statistics(storage: TimeMajorStorage) -> RolloutStatistics:
    """Return the mean length of the episodes' pieces and the mean reward, counting valid samples only."""
    whole = storage.batch()
    done, valid = whole.terminated | whole.truncated, whole.valid
    began = torch.cat([torch.zeros_like(done[:1]), done[:-1]])
    # valid steps so far in each piece: a scan that restarts where a piece begins, read forward in time
    so_far = backward_scan(valid.float().flip(0), (~began).float().flip(0)).flip(0)
    ends = torch.cat([done[:-1], torch.ones_like(done[-1:])])
    pieces = (ends & (so_far > 0.0)).sum()
    return RolloutStatistics(valid.sum() / pieces.clamp(min=1), valid_mean(whole.rew, valid))


def _added(storage: TimeMajorStorage, targets: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the columns to cut besides those of a step: further columns of the storage, and the targets."""
    rows = len(storage) // storage.num_envs
    further = {name: value for name, value in storage.data.items() if name not in storage.arena.data}
    return {**tree.index(further, slice(0, rows)), **_given(targets, storage)}


def _given(targets: Mapping[str, Any] | None, storage: TimeMajorStorage) -> dict[str, Any]:
    given = dict(targets or {})
    taken = sorted(set(given) & set(storage.data))
    if taken:
        raise ValueError(f"targets {taken} have the names of stored columns; choose other names")
    wanted = (len(storage) // storage.num_envs, storage.num_envs)
    for path, leaf in tree.items(given):
        if tuple(leaf.shape[:2]) != wanted:
            raise ValueError(f"target {path!r} wants shape [{wanted[0]}, {wanted[1]}, …], found {list(leaf.shape)}")
    return given


def _check_count(num_mini_batches: int, num_epochs: int, count: int, what: str) -> None:
    if num_mini_batches < 1 or num_epochs < 1:
        raise ValueError(f"num_mini_batches and num_epochs are at least 1, found {num_mini_batches} and {num_epochs}")
    if num_mini_batches > count:
        raise ValueError(f"{num_mini_batches} minibatches cannot be made of {count} {what}; ask for {count} or fewer")
