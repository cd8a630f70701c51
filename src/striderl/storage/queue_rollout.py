"""A rollout that remembers older ones: a ring of rows that grows until it holds `buffer_dilation_ratio` rollouts.

T = 2 steps per rollout, buffer_dilation_ratio 2.5, so at most 5 rows; numbers are steps of one env in order:

    after rollout    1          2            3              4
    rows             1 2        1 2 3 4      6 2 3 4 5      6 7 8 4 5      a ring now: the oldest is overwritten
    cursor           0          0            1              3              the row that is written next
    after untying    1 2        1 2 3 4      2 3 4 5 6      4 5 6 7 8      chronological, cursor 0

`clear` begins the next rollout and keeps what is there. Samples in any order may be drawn from the ring as it is;
sequences need `untie_buffer_loop` first. The memory is allocated once at its largest, so addresses never move. Final
observations are not kept: this data outlives the policy that collected it, and serves imitation, not returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.data import tree
from striderl.data.arena import Arena, Columns, Placement
from striderl.data.batch import Batch
from striderl.data.transition import Transition
from striderl.storage import minibatches
from striderl.storage.transition_record import TransitionRecord, as_transition


class QueueRolloutStorage:
    """Rollouts of `num_steps` steps, the newest few of them; see the picture at the top of this module."""

    balanced = True
    """Every env gets the same number of steps: an asynchronous collector must not run ahead in one column."""

    def __init__(
        self,
        columns: Columns,
        num_steps: int,
        num_envs: int,
        *,
        buffer_dilation_ratio: float = 1.0,
        placement: Placement | None = None,
    ) -> None:
        """Allocate int(buffer_dilation_ratio · num_steps) rows; the first rollout uses num_steps of them."""
        if buffer_dilation_ratio < 1.0:
            raise ValueError(f"buffer_dilation_ratio is at least 1, one rollout; found {buffer_dilation_ratio}")
        self.num_steps, self.num_envs = num_steps, num_envs
        self.max_rows = int(buffer_dilation_ratio * num_steps)
        """How many rows there are in the end."""
        self.num_rows = num_steps
        """How many rows may be used by now; grows by up to num_steps with each `clear`."""
        self.arena = Arena(columns, (self.max_rows, num_envs), placement or Placement())
        self._written = [0] * num_envs
        self._fresh = [0] * num_envs

    @property
    def data(self) -> dict[str, Any]:
        """All columns as views of the rows in use, [rows, N, …] each, in the order of the ring."""
        views: dict[str, Any] = tree.index(self.arena.data, slice(0, min(max(self._written), self.max_rows)))
        return views

    @property
    def full(self) -> bool:
        """Whether every env has all steps of the present rollout."""
        return min(self._fresh) >= self.num_steps

    @property
    def cursor(self) -> int:
        """The row that is written next; all envs must be at the same step."""
        return self._steps() % self.num_rows

    @property
    def in_order(self) -> bool:
        """Whether the rows in use are chronological."""
        return self._steps() <= self.max_rows or self.cursor == 0

    def __len__(self) -> int:
        return sum(min(written, self.max_rows) for written in self._written)

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Write the next step of these envs (a range of columns; all by default)."""
        envs = slice(0, self.num_envs) if envs is None else envs
        fresh, written = self._fresh[envs.start], self._written[envs.start]
        if fresh >= self.num_steps:
            raise IndexError(
                f"the rollout is full: {self.num_steps} steps are there for env {envs.start}; clear it first"
            )
        self.arena.write((written % self.max_rows, envs), transition.columns())
        count = envs.stop - envs.start
        self._fresh[envs], self._written[envs] = [fresh + 1] * count, [written + 1] * count

    def add_transitions(self, transition: Transition | TransitionRecord) -> None:
        """Write the next step of all envs; of a record that was filled in field by field, too."""
        if isinstance(transition, TransitionRecord):
            transition = as_transition(transition, self.arena.columns)
        self.add(transition)

    def clear(self) -> None:
        """Begin the next rollout behind what is there; the cursor is not rewound."""
        self._fresh = [0] * self.num_envs
        self.num_rows = min(self.num_rows + self.num_steps, self.max_rows)

    def untie_buffer_loop(self) -> None:
        """Rotate the ring so that the oldest row is row 0, where the next step will be written.

        While there still is room nothing is overwritten and the rows are in order, so there is nothing to do.
        """
        if self.in_order:
            return
        start = self.cursor
        for block in self.arena.blocks.values():
            block.copy_(torch.roll(block, -start, dims=0))
        self._written = [self.max_rows] * self.num_envs

    # -- minibatches ---------------------------------------------------------------------------------------------------

    def mini_batch_generator(
        self, num_mini_batches: int, num_epochs: int, generator: torch.Generator | None = None
    ) -> Iterator[Batch]:
        """Yield minibatches of rows [n, …]; the order is torch's own unless a generator is given."""
        order = torch.default_generator if generator is None else generator
        return minibatches.mini_batch_generator(self, num_mini_batches, num_epochs, order)

    def recurrent_mini_batch_generator(
        self,
        num_mini_batches: int,
        num_epochs: int,
        generator: torch.Generator | None = None,
        *,
        initial_state: Mapping[str, Any] | None = None,
    ) -> Iterator[minibatches.SequenceMiniBatch]:
        """Yield minibatches of whole envs [T, n, …] with the envs' memory before row 0; the ring must be untied."""
        order = torch.default_generator if generator is None else generator
        return minibatches.recurrent_mini_batch_generator(
            self, num_mini_batches, num_epochs, order, initial_state=initial_state
        )

    reccurent_mini_batch_generator = recurrent_mini_batch_generator
    """The spelling of older codes."""

    def get_minibatch_from_indices(self, T_slice: slice, B_slice: slice | Tensor) -> minibatches.SequenceMiniBatch:
        """Return some steps in a row of some envs (a range, or their numbers int64 [n]); the ring must be untied."""
        return minibatches.get_minibatch_from_indices(self, T_slice, B_slice)

    def get_statistics(self) -> minibatches.RolloutStatistics:
        """Return the mean length of the episodes' pieces and the mean reward, counting valid samples only."""
        return minibatches.get_statistics(self)

    def batch(self) -> Batch:
        """Return the rows in use as a `Batch` of views; every env must have the same number of steps."""
        self._steps()
        return Batch(self.data)

    def _steps(self) -> int:
        steps = set(self._written)
        if len(steps) > 1:
            raise ValueError(f"envs have different numbers of steps: {sorted(steps)}")
        return next(iter(steps))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything that is stored."""
        return {
            "columns": tree.copy(self.arena.state_dict()),
            "num_rows": self.num_rows,
            "written": list(self._written),
            "fresh": list(self._fresh),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what another storage of the same size held."""
        self.arena.load_state_dict(state["columns"])
        self.num_rows = int(state["num_rows"])
        self._written = [int(count) for count in state["written"]]
        self._fresh = [int(count) for count in state["fresh"]]
