"""Rollouts with columns of their own, filled from each step as it comes in.

                         columns of a step        extra columns [T, N, …]               read from
    ActionLabelRollout   obs act rew …            action_labels                         a teacher
    SarsaRolloutStorage  obs act rew …            obs_next                              the step itself
    AmpRolloutStorage    obs act rew …            ref_obs ref_motion action_labels      the env's info, a teacher

The extra columns lie in an arena of their own, so a collector or a trainer that checks the columns of a
step finds what it expects; `data` and `batch` show both.

A rollout that keeps older ones: a ring of rows that grows until it holds `buffer_dilation_ratio` rollouts.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from striderl.data import tree
from striderl.data.arena import Arena, Columns, Placement
from striderl.data.batch import Batch
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.data.transition import Transition
from striderl.storage import minibatches
from striderl.storage.rollout import RolloutStorage
from striderl.storage.transition_record import TransitionRecord, as_transition

Reader = Callable[[Transition, slice], Mapping[str, Any]]
"""Returns the extra columns of one step of these envs, [n, …] each."""
Labeller = Callable[[Transition, slice], Any]
"""Returns a teacher's actions for these envs, like `transition.act`."""


class ExtraColumnsRollout(RolloutStorage):
    """A rollout with more columns than a step has."""

    def __init__(
        self,
        columns: Columns,
        num_steps: int,
        num_envs: int,
        *,
        extra: Columns,
        read: Reader,
        placement: Placement | None = None,
        final_obs: ObsSpec | None = None,
        final_state: Columns | None = None,
        pool_size: int | None = None,
    ) -> None:
        """Allocate both kinds of columns; `read` is called with each step that comes in."""
        taken = sorted(set(extra) & set(columns))
        if taken:
            raise ValueError(f"extra columns {taken} are columns of a step already; choose other names")
        super().__init__(
            columns,
            num_steps,
            num_envs,
            placement=placement,
            final_obs=final_obs,
            final_state=final_state,
            pool_size=pool_size,
        )
        self.extra = Arena(extra, (num_steps, num_envs), _side_stream(placement or Placement()))
        self._read = read

    @property
    def data(self) -> dict[str, Any]:
        """All columns as views, [T, N, …] each."""
        return {**self.arena.data, **self.extra.data}

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Write the next step of these envs (a range of columns; all by default), and what is read from it."""
        envs = slice(0, self.num_envs) if envs is None else envs
        step = self.cursors[envs.start]
        if step < self.num_steps:
            # first, because only `super().add` moves on: a step that does not fit leaves the rollout as it was
            self.extra.write((step, envs), self._read(transition, envs))
        super().add(transition, envs)

    def pack(self, transition: Transition) -> dict[str, Any]:
        """Return a step of all envs, and what is read from it, as `put` takes it."""
        extra = self.extra.pack(self._read(transition, slice(0, self.num_envs)))
        return {**super().pack(transition), "extra": extra}

    def put(self, packed: Mapping[str, Any], place: Tensor) -> None:
        """Write a packed step into the row `place`, int64 [1]."""
        self.extra.put(packed["extra"], place)
        super().put(packed, place)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything that is stored."""
        return {**super().state_dict(), "extra": tree.copy(self.extra.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another storage of the same size and columns."""
        self.extra.load_state_dict(state["extra"])
        super().load_state_dict(state)


class ActionLabelRollout(ExtraColumnsRollout):
    """A rollout with a teacher's actions: column `action_labels`, like `act`."""

    def __init__(
        self,
        columns: Columns,
        num_steps: int,
        num_envs: int,
        *,
        label: Labeller,
        placement: Placement | None = None,
        final_obs: ObsSpec | None = None,
        final_state: Columns | None = None,
        pool_size: int | None = None,
    ) -> None:
        """Call `label` for the labels of each step that is added."""

        def read(transition: Transition, envs: slice) -> dict[str, Any]:
            return {"action_labels": label(transition, envs)}

        super().__init__(
            columns,
            num_steps,
            num_envs,
            extra={"action_labels": columns["act"]},
            read=read,
            placement=placement,
            final_obs=final_obs,
            final_state=final_state,
            pool_size=pool_size,
        )


class SarsaRolloutStorage(ExtraColumnsRollout):
    """A rollout with the observation that truly followed each step: column `obs_next`, like `obs` or a part of it.

    Where an episode ended that is its final observation, never the first one of the next episode.
    """

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
        components: Sequence[str] | None = None,
    ) -> None:
        """Allocate a second set of observations: of all components, or of these."""
        stored = columns["obs"]
        assert isinstance(stored, Mapping)
        names = tuple(stored) if components is None else tuple(components)
        for name in names:
            if name not in stored:
                raise KeyError(unknown("component", name, stored, where="SarsaRolloutStorage: the observation"))

        def read(transition: Transition, envs: slice) -> dict[str, Any]:
            return {"obs_next": _true_next(transition, names)}

        super().__init__(
            columns,
            num_steps,
            num_envs,
            extra={"obs_next": {name: stored[name] for name in names}},
            read=read,
            placement=placement,
            final_obs=final_obs,
            final_state=final_state,
            pool_size=pool_size,
        )


class AmpRolloutStorage(ExtraColumnsRollout):
    """A rollout for adversarial motion priors: columns `ref_obs`, `ref_motion` and `action_labels`.

    The env gives `ref_obs`, the discriminator's input from the robot, and `ref_motion`, the same of a recorded motion,
    as info keys or observation components, both as they are after the step; frames are laid side by side, so both are
    vectors. `MotionPrior` needs no such storage; this one is for learners that are written by hand.
    """

    def __init__(
        self,
        columns: Columns,
        num_steps: int,
        num_envs: int,
        *,
        amp_obs_dim: int,
        label: Labeller | None = None,
        placement: Placement | None = None,
        final_obs: ObsSpec | None = None,
        final_state: Columns | None = None,
        pool_size: int | None = None,
    ) -> None:
        """Read vectors of this size from each step; without a teacher, each action is its own label."""
        labels = label or own_action

        def read(transition: Transition, envs: slice) -> dict[str, Any]:
            return {
                "ref_obs": _amp_vector(transition, "ref_obs", amp_obs_dim),
                "ref_motion": _amp_vector(transition, "ref_motion", amp_obs_dim),
                "action_labels": labels(transition, envs),
            }

        vector = TensorSpec(shape=(amp_obs_dim,))
        super().__init__(
            columns,
            num_steps,
            num_envs,
            extra={"ref_obs": vector, "ref_motion": vector, "action_labels": columns["act"]},
            read=read,
            placement=placement,
            final_obs=final_obs,
            final_state=final_state,
            pool_size=pool_size,
        )


def own_action(transition: Transition, envs: slice) -> Any:
    """Label a step with what was done in it, as when a recorded expert acts."""
    return transition.act


def _true_next(transition: Transition, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the true next observation of some components; on the CPU a check for ends first saves work."""
    if transition.final_obs is None:
        raise ValueError(
            "SarsaRolloutStorage keeps what truly followed each step, but the env gives no final observations "
            "(gives_final_obs=False)"
        )
    following = {name: transition.next_obs[name] for name in names}
    done = transition.done
    if done.is_cpu and not bool(done.any()):
        return following
    return transition._replace(next_obs=following).obs_next()


def _amp_vector(transition: Transition, name: str, size: int) -> Tensor:
    """Return an info key, or an observation component after the step, as vectors [n, size]."""
    found = transition.info.get(name)
    if found is None and name in transition.next_obs:
        found = transition.obs_next()[name]
    if found is None:
        raise KeyError(
            unknown("key", name, [*transition.info, *transition.obs], where="the env's info and observation")
        )
    flat = found.flatten(1)
    if flat.shape[1] != size:
        raise ValueError(f"{name!r} has {flat.shape[1]} numbers per env, amp_obs_dim is {size}")
    return flat


def _side_stream(placement: Placement) -> Placement:
    """Return the placement of the extra columns: their own files in their own folder."""
    if placement.folder is None:
        return placement
    return Placement(device=placement.device, shared=placement.shared, folder=placement.folder / "extra")


# -- older rollouts ----------------------------------------------------------------------------------------------------


class QueueRolloutStorage:
    """Rollouts of `num_steps` steps, the newest few of them; see the picture at the top of this module."""

    balanced = True
    """Every env gets the same number of steps: an asynchronous collector must not run ahead in one column."""
    keeps_rollouts = True
    """Whether rollouts before the last one are still there."""
    finals = None
    """No final observations: old rollouts are for labels, not for values."""

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
    def newest(self) -> dict[str, Any]:
        """The columns of the rollout that was collected last; the ring must be in order, as `prepare` leaves it."""
        found: dict[str, Any] = tree.index(self.data, slice(-self.num_steps, None))
        return found

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
        """Start the next rollout after the stored rows; the cursor is not rewound."""
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
        """Restore the state of another storage of the same size."""
        self.arena.load_state_dict(state["columns"])
        self.num_rows = int(state["num_rows"])
        self._written = [int(count) for count in state["written"]]
        self._fresh = [int(count) for count in state["fresh"]]
