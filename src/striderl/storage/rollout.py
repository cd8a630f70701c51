"""Time-major experience: one rollout of T steps in N envs, every column [T, N, …].

              env 0   env 1   env 2                      final pool (rows of final_obs)
    t = 0   │ s a r │ s a r │ s a r │
    t = 1   │ s a r │ s a T │ s a r │   T: truncated ──▶ row 0: t 1, env 1, final_obs
    t = 2   │ s a r │ s a r │ s a T │                ──▶ row 1: t 2, env 2, final_obs
            └─ env column: the steps of one env in order; episodes follow each other without a gap

A time-out is worth V(final_obs), and final observations are rare, so they are kept in a small pool instead of a second
[T, N] column, which would double the memory of images. Truncated rows are packed into it by a running count, without
a device sync for their number.

Writing one step of a few envs into an arena on the CPU, without the cost of a torch call per column.

    transition.columns()                 plan (made once per arena)
    {"obs": {"joints": [N, 12]},   ──▶   "obs" ─ "joints"   numpy view of data["obs"]["joints"]   [T, N, 12]
     "rew": [N], …}                      "rew"              numpy view of data["rew"]             [T, N]

With eight envs a step holds a few hundred numbers in about ten columns: checking and joining them in torch takes far
longer than copying them. Only exact fits are written here. For everything else, from another dtype to a missing
column, the result is False, nothing is written, and `Arena.write` converts or raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from striderl.data import tree
from striderl.data.arena import Arena, Columns, Placement
from striderl.data.batch import Batch
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.data.transition import Transition as Step
from striderl.ops.returns import gae
from striderl.storage import minibatches
from striderl.storage.transition_record import TransitionRecord, as_transition


class FinalPool:
    """Final observations of truncated steps, packed, with the step and env each belongs to."""

    def __init__(self, obs_spec: ObsSpec, state: Columns, size: int, placement: Placement) -> None:
        """Allocate `size` final observations; one extra row takes what is not stored."""
        columns: Columns = {
            "obs": dict(obs_spec.components),
            "state": dict(state),
            "step": TensorSpec(dtype="int64"),
            "env": TensorSpec(dtype="int64"),
        }
        self.size = size
        self.arena = Arena(columns, (size + 1,), placement)
        self.count = torch.zeros((), dtype=torch.int64, device=placement.device)
        """Number of truncated steps so far; more than `size` means that the surplus is not in the pool."""

    def add(
        self,
        wanted: Tensor,
        final_obs: Mapping[str, Tensor],
        final_state: Mapping[str, Tensor],
        step: int | Tensor,
        env_index: Tensor,
    ) -> None:
        """Pack the rows where `wanted` [n] is true behind those that are there; `step` is a number, or int64 [1]."""
        place = torch.where(wanted, self.count + wanted.cumsum(0) - 1, self.size).clamp(max=self.size)
        data = self.arena.data
        for name, column in data["obs"].items():
            column.index_copy_(0, place, final_obs[name])
        for name, column in data["state"].items():
            column.index_copy_(0, place, final_state[name])
        data["step"].index_copy_(0, place, torch.zeros_like(env_index) + step)
        data["env"].index_copy_(0, place, env_index)
        self.count += wanted.sum()

    def clear(self) -> None:
        """Drop all rows."""
        self.count.zero_()


class RolloutStorage:
    """A rollout of fixed length; steps come in for all envs or for a part of them, each env in its own order."""

    Transition = TransitionRecord
    """A step that hand-written loops fill in field by field, for `add_transitions`."""
    balanced = True
    """Every env gets the same number of steps: an asynchronous collector must not run ahead in one column."""
    keeps_rollouts = False
    """Whether rollouts before the last one are still there."""

    def __new__(cls, *args: Any, **settings: Any) -> RolloutStorage:
        """Name the class that rsl_rl's and st_rl's arguments are for, where they are given."""
        if args and isinstance(args[0], int):
            raise TypeError(
                f"{cls.__name__} takes columns, steps and envs; with (num_envs, num_transitions_per_env, obs_shape, …) "
                f"use striderl.compat.st_rl.{cls.__name__}"
            )
        return super().__new__(cls)

    def __init__(
        self,
        columns: Columns,
        num_steps: int,
        num_envs: int,
        *,
        placement: Placement | None = None,
        final_obs: ObsSpec | None = None,
        final_state: Columns | None = None,
        pool_size: int | None = None,
    ) -> None:
        """Allocate [num_steps, num_envs]; with `final_obs`, keep the final observations of truncated steps.

        With `final_state`, keep the actor's memory at these steps too: a recurrent critic needs it to value them.

        The pool holds as many rows as there are envs, or a quarter of all steps if that is more, by default.
        """
        placement = placement or Placement()
        self.num_steps, self.num_envs = num_steps, num_envs
        self.arena = Arena(columns, (num_steps, num_envs), placement)
        self._writer = RowWriter()
        self.cursors = [0] * num_envs
        size = max(num_envs, num_steps * num_envs // 4) if pool_size is None else pool_size
        self.finals = None if final_obs is None else FinalPool(final_obs, final_state or {}, size, placement)
        self._env_index = torch.arange(num_envs, device=placement.device)
        self.targets: dict[str, Tensor] = {}
        """'returns' and 'advantages' after `compute_returns`, [T, N] or [T, N, V] each; minibatches have them too."""

    @property
    def data(self) -> dict[str, Any]:
        """All columns as views, [T, N, …] each."""
        return self.arena.data

    @property
    def newest(self) -> dict[str, Any]:
        """The columns of the rollout that was collected last, which are all."""
        return self.data

    @property
    def full(self) -> bool:
        """Whether every env has all its steps."""
        return min(self.cursors) >= self.num_steps

    @property
    def in_order(self) -> bool:
        """Whether rows are chronological: always."""
        return True

    def __len__(self) -> int:
        return sum(self.cursors)

    def add(self, transition: Step, envs: slice | None = None) -> None:
        """Write the next step of these envs (a range of columns; all by default)."""
        envs = slice(0, self.num_envs) if envs is None else envs
        step = self.cursors[envs.start]
        if len(set(self.cursors[envs])) > 1:
            raise ValueError(f"envs {envs.start} to {envs.stop} are not equally far: steps {self.cursors[envs]}")
        if step >= self.num_steps:
            raise IndexError(
                f"the rollout is full: {self.num_steps} steps are there for env {envs.start}; clear it first"
            )
        columns = transition.columns()
        if not self._writer.write(self.arena, step, envs, columns):
            self.arena.write((step, envs), columns)
        if self.finals is not None:
            self._keep_final(transition, step, envs)
        self.cursors[envs] = [step + 1] * (envs.stop - envs.start)

    def add_transitions(self, transition: Step | TransitionRecord) -> None:
        """Write the next step of all envs; of a record that was filled in field by field, too."""
        if isinstance(transition, TransitionRecord):
            transition = as_transition(transition, self.arena.columns)
        self.add(transition)

    def _keep_final(self, transition: Step, step: int, envs: slice) -> None:
        assert self.finals is not None
        if transition.final_obs is None:
            raise ValueError("this storage keeps final observations, but the env gives none (gives_final_obs=False)")
        if transition.truncated.is_cpu and not bool(transition.truncated.any()):
            return  # on the CPU checking is cheaper than copying nothing
        wanted = transition.truncated & ~transition.terminated
        self.finals.add(wanted, transition.final_obs, transition.next_state, step, self._env_index[envs])

    # -- writing inside a CUDA graph: the place is a tensor on the device -------------------------------------------

    def first_place(self) -> int:
        """Return the row of the next step of all envs."""
        if len(set(self.cursors)) > 1:
            raise ValueError(f"envs are not equally far: steps {self.cursors}")
        return self.cursors[0]

    def room(self) -> int:
        """Return how many steps of each env there is room for."""
        return self.num_steps - self.first_place()

    def pack(self, transition: Step) -> dict[str, Any]:
        """Return a step of all envs as `put` takes it."""
        rows = self.arena.pack(transition.columns())
        if self.finals is None:
            return {"rows": rows}
        assert transition.final_obs is not None
        wanted = transition.truncated & ~transition.terminated
        state = {name: transition.next_state[name] for name in self.finals.arena.data["state"]}
        return {"rows": rows, "wanted": wanted, "final_obs": transition.final_obs, "final_state": state}

    def put(self, packed: Mapping[str, Any], place: Tensor) -> None:
        """Write a packed step into the row `place`, int64 [1]; the host must count it with `count_steps`."""
        self.arena.put(packed["rows"], place)
        if self.finals is not None:
            self.finals.add(packed["wanted"], packed["final_obs"], packed["final_state"], place, self._env_index)

    def next_place(self, place: Tensor) -> Tensor:
        """Return the row after this one."""
        return place + 1

    def count_steps(self, num_steps: int) -> None:
        """Count steps of all envs that a graph has written."""
        self.cursors = [self.first_place() + num_steps] * self.num_envs

    def clear(self) -> None:
        """Start the next rollout; the memory stays allocated."""
        self.cursors = [0] * self.num_envs
        self.targets = {}
        if self.finals is not None:
            self.finals.clear()

    # -- targets -------------------------------------------------------------------------------------------------------

    def next_values(self, values: Tensor, last_values: Tensor, final_values: Tensor | None = None) -> Tensor:
        """Return the value of what followed each step, like `values` [T, N] or [T, N, V].

        That is the next row's, and `last_values` [N, …] after the last. Where an episode was truncated it is that of
        its final observation (`final_values`, one for each row of the pool, those not in use too), and V(s_t) where
        there is none. Nothing followed a step that terminated: 0 there, whatever the next episode starts with.
        """
        terminated, truncated = (_side_stream(self.data[name], values) for name in ("terminated", "truncated"))
        following = torch.cat([values[1:], last_values.unsqueeze(0)])
        following = torch.where(truncated & ~terminated, values, following)
        following = torch.where(terminated, torch.zeros_like(following), following)
        if final_values is None:
            return following
        if self.finals is None:
            raise ValueError("final_values are given, but this storage keeps no final observations")
        # rows of the pool that are not in use are sent to one place more, which is cut off again
        pool, rows, nowhere = self.finals.arena.data, self.finals.size + 1, self.num_steps * self.num_envs
        used = torch.arange(rows, device=values.device) < self.finals.count.clamp(max=self.finals.size)
        place = torch.where(used, pool["step"] * self.num_envs + pool["env"], nowhere)
        flat = torch.cat([following.flatten(0, 1), following[:1, 0]])
        return flat.index_copy(0, place, final_values).narrow(0, 0, nowhere).view_as(following)

    def compute_returns(
        self, last_values: Tensor, gamma: float, lam: float, *, final_values: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (returns, advantages) of a full rollout by GAE, and keep them as `targets`; nothing is normalised.

        Values are those stored with each step; see `next_values` for the other two. `last_values` may be [N, 1].
        """
        if not self.full:
            raise ValueError(f"compute_returns wants a full rollout of {self.num_steps} steps, found {self.cursors}")
        data = self.data
        values: Tensor = data["policy"]["value"]
        following = self.next_values(values, last_values.reshape(values[0].shape), final_values)
        returns, advantages = gae(
            data["rew"] if values.dim() == 2 else data["rew"].unsqueeze(-1),
            values,
            following,
            data["terminated"],
            data["truncated"],
            gamma=gamma,
            lam=lam,
            valid=data["valid"],
        )
        self.targets = {"returns": returns, "advantages": advantages}
        return returns, advantages

    # -- minibatches ---------------------------------------------------------------------------------------------------

    def mini_batch_generator(
        self, num_mini_batches: int, num_epochs: int, generator: torch.Generator | None = None
    ) -> Iterator[Batch]:
        """Yield minibatches of rows [n, …] with the targets; the order is torch's own unless a generator is given."""
        order = torch.default_generator if generator is None else generator
        return minibatches.mini_batch_generator(self, num_mini_batches, num_epochs, order, targets=self.targets)

    def recurrent_mini_batch_generator(
        self,
        num_mini_batches: int,
        num_epochs: int,
        generator: torch.Generator | None = None,
        *,
        initial_state: Mapping[str, Any] | None = None,
    ) -> Iterator[minibatches.SequenceMiniBatch]:
        """Yield minibatches of whole envs [T, n, …] with the targets and the envs' memory before the first step."""
        order = torch.default_generator if generator is None else generator
        return minibatches.recurrent_mini_batch_generator(
            self, num_mini_batches, num_epochs, order, initial_state=initial_state, targets=self.targets
        )

    reccurent_mini_batch_generator = recurrent_mini_batch_generator
    """The spelling of older codes."""

    def get_minibatch_from_indices(self, T_slice: slice, B_slice: slice | Tensor) -> minibatches.SequenceMiniBatch:
        """Return some steps in a row of some envs (a range, or their numbers int64 [n]), with the targets."""
        return minibatches.get_minibatch_from_indices(self, T_slice, B_slice, targets=self.targets)

    def get_statistics(self) -> minibatches.RolloutStatistics:
        """Return the mean length of the episodes' pieces and the mean reward, counting valid samples only."""
        return minibatches.get_statistics(self)

    # -- saving --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything that is stored; between iterations there is nothing worth saving."""
        finals = self.finals
        return {
            "columns": tree.copy(self.arena.state_dict()),
            "cursors": list(self.cursors),
            "finals": None if finals is None else tree.copy(finals.arena.state_dict()),
            "num_finals": 0 if finals is None else int(finals.count),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another storage of the same size."""
        if (state["finals"] is None) != (self.finals is None):
            raise ValueError("one of the two storages keeps final observations and the other does not")
        self.arena.load_state_dict(state["columns"])
        self.cursors = [int(cursor) for cursor in state["cursors"]]
        if self.finals is not None:
            self.finals.arena.load_state_dict(state["finals"])
            self.finals.count.fill_(int(state["num_finals"]))

    def batch(self) -> Batch:
        """Return what was collected as a `Batch` of views [T, N, …]; every env must have the same number of steps."""
        steps = set(self.cursors)
        if len(steps) > 1:
            raise ValueError(f"envs have different numbers of steps: {sorted(steps)}")
        return Batch(tree.index(self.data, slice(0, steps.pop())))


def _side_stream(mask: Tensor, values: Tensor) -> Tensor:
    """Return a mask [T, N] with as many dimensions as the values."""
    return mask.view(*mask.shape, *[1] * (values.dim() - mask.dim()))


# -- rows on the CPU ---------------------------------------------------------------------------------------------------


Array = np.ndarray[Any, Any]


class _Column(NamedTuple):
    """One column, or a group of columns: its memory, and what a value must look like."""

    name: str
    group: list[_Column] | None
    array: Array
    dtype: torch.dtype
    shape: tuple[int, ...]
    """Of the values of all envs, [N, …]."""


_NO_ARRAY = np.zeros(0)


class RowWriter:
    """Writes steps into the arena it was last used with; a copy starts without a plan, because views are not copied."""

    def __init__(self) -> None:
        self._arena: Arena | None = None
        self._plan: list[_Column] | None = None

    def __reduce__(self) -> tuple[type[RowWriter], tuple[()]]:
        return RowWriter, ()

    def write(self, arena: Arena, step: int, envs: slice, values: Mapping[str, Any]) -> bool:
        """Write a step of these envs and return True, or return False when the values do not fit as they are."""
        if arena is not self._arena:
            self._arena, self._plan = arena, _planned(arena)
        if self._plan is None:
            return False
        count = int(envs.stop) - int(envs.start)
        pairs: list[tuple[Array, Array]] = []
        if not _match(self._plan, values, None if count == arena.leading[1] else count, pairs):
            return False
        start, stop = envs.start, envs.stop
        for target, array in pairs:
            target[step, start:stop] = array
        return True


def _planned(arena: Arena) -> list[_Column] | None:
    """Return the plan of an arena [T, N]; None where its memory cannot be seen as numpy arrays."""
    blocks = arena.blocks.values()
    if len(arena.leading) != 2 or any(not block.is_cpu or block.dtype is torch.bfloat16 for block in blocks):
        return None
    return _columns_of(arena.data)


def _columns_of(data: Mapping[str, Any]) -> list[_Column]:
    return [
        _Column(name, None, part.numpy(), part.dtype, tuple(part.shape[1:]))
        if isinstance(part, Tensor)
        else _Column(name, _columns_of(part), _NO_ARRAY, torch.float32, ())
        for name, part in data.items()
    ]


def _match(plan: list[_Column], values: Mapping[str, Any], count: int | None, pairs: list[tuple[Array, Array]]) -> bool:
    """Pair every column with its value as an array; `count` is how many envs there are, None for all."""
    if len(values) != len(plan):
        return False
    for name, group, array, dtype, shape in plan:
        value = values.get(name)
        if group is not None:
            if not isinstance(value, dict) or not _match(group, value, count, pairs):
                return False
            continue
        if type(value) is not Tensor or value.dtype is not dtype or not value.is_cpu or value.requires_grad:
            return False
        if value.shape != (shape if count is None else (count, *shape[1:])):
            return False
        pairs.append((array, value.numpy()))
    return True
