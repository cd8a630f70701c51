"""Rollout storages as rsl_rl 1, parkour and st_rl have them: shapes in, minibatches with the old field names out.

    storage = RolloutStorage(num_envs, num_transitions_per_env, [48], [60], [12], device)
    storage.add_transitions(transition)                 a RolloutStorage.Transition, filled in field by field
    storage.compute_returns(last_values, gamma, lam)
    for minibatch in storage.mini_batch_generator(num_mini_batches, num_epochs):
        minibatch.obs, minibatch.old_mu, …              or unpacked, in the order of MINI_BATCH_FIELDS

    columns [T, N, …]                    minibatch                    minibatch of whole envs, for a memory
    observations, critic_observations    obs, critic_obs   [n, …]     [T, n_traj, …], padded, with masks [T, n_traj]
    actions, values, mu, sigma, …        actions, …        [n, …]     [T, n, …]
    saved hidden states [T, L, N, H]     None                         hidden_states [L, n_traj, H]

A subclass adds a column in two lines: a field of its `Transition`, and the same name behind the fields of its
`MiniBatch`; room is made when the first transition comes (see `ActionLabelRollout`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.data import tree
from striderl.data.checked_fields import refuse_overrides
from striderl.data.named_tuples import ArrayTuple, namedarraytuple
from striderl.ops.returns import gae
from striderl.ops.trajectories import split_and_pad_trajectories

__path__: list[str] = []  # the modules storage.… of st_rl and rsl_rl 1 are below, see compat/original_paths.py

MINI_BATCH_FIELDS = (
    "obs",
    "critic_obs",
    "actions",
    "values",
    "advantages",
    "returns",
    "old_actions_log_prob",
    "old_mu",
    "old_sigma",
    "hidden_states",
    "masks",
)
"""The fields of every minibatch, in the order in which rsl_rl 1 yields them as a tuple."""

Rows = slice | Tensor
"""A range, or int64 numbers [n]."""


def follow_aliases(subclass: type, base: type) -> None:
    """Let an override under an older name of a method be the method, and one of the method the older name's as well."""
    own = vars(subclass)
    for name, value in vars(base).items():
        if not callable(value) or name.startswith("__") or name == getattr(value, "__name__", name):
            continue
        method: str = value.__name__
        if name in own and method not in own:
            setattr(subclass, method, own[name])
        elif method in own and name not in own:
            setattr(subclass, name, own[method])


class RolloutStorage:
    """A rollout of T steps in N envs, [T, N, …] each; see the top of this module."""

    MiniBatch: ClassVar[type[ArrayTuple]] = namedarraytuple("MiniBatch", MINI_BATCH_FIELDS)
    """What the generators yield; further fields are columns of the same name."""

    class Transition:
        """One step of N envs, filled in field by field."""

        def __init__(self) -> None:
            self.observations: Any = None
            self.critic_observations: Any = None
            self.actions: Any = None
            self.rewards: Any = None
            self.dones: Any = None
            self.values: Any = None
            self.actions_log_prob: Any = None
            self.action_mean: Any = None
            self.action_sigma: Any = None
            self.hidden_states: Any = None

        def clear(self) -> None:
            """Set all fields to their first values; fields that only this step had are dropped."""
            self.__dict__.clear()
            self.__init__()  # type: ignore[misc]  # as the older libraries do: a subclass adds fields there

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        follow_aliases(cls, RolloutStorage)
        reason = "minibatches are read from critic_observations; set critic_observations"
        refuse_overrides(cls, {"privileged_observations": reason})

    def __init__(
        self,
        num_envs: int,
        num_transitions_per_env: int,
        obs_shape: Sequence[int],
        privileged_obs_shape: Sequence[int | None] | None,
        actions_shape: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate a rollout; `privileged_obs_shape` [None] or None where the critic sees what the actor sees."""
        self.num_envs, self.num_transitions_per_env = int(num_envs), int(num_transitions_per_env)
        self.device = torch.device(device)
        self.obs_shape, self.actions_shape = tuple(obs_shape), tuple(actions_shape)
        alone = privileged_obs_shape is None or any(size is None for size in privileged_obs_shape)
        self.privileged_obs_shape = None if alone else tuple(privileged_obs_shape or ())
        self.step = 0
        """The row that is written next."""
        self.num_rows = self.num_transitions_per_env
        """How many rows are in use when the storage is full."""
        self.extra: dict[str, Tensor] = {}
        """Columns of further fields by name, [T, N, …] each; made with the first transition."""
        self.saved_hidden_states: Any = None
        """The memory before every step, [T, L, N, H] each; made with the first one."""
        self._allocate(self.num_rows)

    def _allocate(self, rows: int) -> None:
        lead = (rows, self.num_envs)
        self.observations = self._zeros(*lead, *self.obs_shape)
        self.critic_observations = (
            None if self.privileged_obs_shape is None else self._zeros(*lead, *self.privileged_obs_shape)
        )
        self.actions, self.mu, self.sigma = (self._zeros(*lead, *self.actions_shape) for _ in range(3))
        self.rewards, self.values, self.actions_log_prob, self.returns, self.advantages = (
            self._zeros(*lead, 1) for _ in range(5)
        )
        self.dones = self._zeros(*lead, 1).byte()

    def _zeros(self, *shape: Any, dtype: torch.dtype | None = None) -> Tensor:
        with torch.inference_mode(False):  # a loop may be in inference mode, and the update goes backward
            return torch.zeros(*shape, device=self.device, dtype=dtype)

    @property
    def privileged_observations(self) -> Tensor | None:
        """The critic's observations, as rsl_rl 1 names them."""
        return self.critic_observations

    # -- writing -------------------------------------------------------------------------------------------------------

    def add_transitions(self, transition: Any) -> None:
        """Write the next step of all envs and count it."""
        if self.step >= self.num_rows:
            raise OverflowError(
                f"Rollout buffer overflow: {self.num_rows} steps are stored already; call clear() after the update"
            )
        self._write(self.step, transition)
        self.step += 1

    @torch.no_grad()
    def _write(self, row: int, transition: Any) -> None:
        self.observations[row].copy_(_field(transition, "observations"))
        if self.critic_observations is not None:
            self.critic_observations[row].copy_(_field(transition, "critic_observations"))
        self.actions[row].copy_(_field(transition, "actions"))
        for name in ("rewards", "dones", "values", "actions_log_prob"):
            column: Tensor = vars(self)[name]
            column[row].copy_(_field(transition, name).reshape(-1, 1))
        self.mu[row].copy_(_field(transition, "action_mean"))
        self.sigma[row].copy_(_field(transition, "action_sigma"))
        for name in self.MiniBatch._fields[len(MINI_BATCH_FIELDS) :]:
            value = torch.as_tensor(_field(transition, name), device=self.device)
            if name not in self.extra:
                self.extra[name] = self._zeros(self._capacity, *value.shape, dtype=value.dtype)
            self.extra[name][row].copy_(value)
        self._save_hidden_states(transition.hidden_states, row)

    @property
    def _capacity(self) -> int:
        """How many rows are allocated."""
        return self.observations.shape[0]

    def _save_hidden_states(self, hidden_states: Any, row: int | None = None) -> None:
        """Store the memory before a step; a memory that has not begun yet is zero."""
        row = self.step if row is None else row
        leaves = [] if hidden_states is None else tree.leaves(hidden_states)
        if not leaves or any(leaf is None for leaf in leaves):
            if self.saved_hidden_states is not None:
                tree.map(lambda saved: saved[row].zero_(), self.saved_hidden_states)
            return
        if self.saved_hidden_states is None:
            self.saved_hidden_states = tree.map(
                lambda leaf: self._zeros(self._capacity, *leaf.shape, dtype=leaf.dtype), hidden_states
            )
        tree.map(lambda saved, leaf: saved[row].copy_(leaf), self.saved_hidden_states, hidden_states)

    def clear(self) -> None:
        """Begin the next rollout in row 0."""
        self.step = 0

    # -- targets -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def compute_returns(self, last_values: Tensor, gamma: float, lam: float) -> None:
        """Compute `returns`, and `advantages` normalised over the whole rollout, by GAE.

        A done ends the bootstrap, whatever its reason: what a time-out is worth is added to its reward before.
        """
        rows = self._rows()
        values, dones = self.values[:rows].squeeze(-1), self.dones[:rows].squeeze(-1).bool()
        following = torch.cat([values[1:], last_values.to(values).reshape(1, -1)])
        returns, advantages = gae(
            self.rewards[:rows].squeeze(-1), values, following, dones, torch.zeros_like(dones), gamma=gamma, lam=lam
        )
        self.returns[:rows] = returns.unsqueeze(-1)
        spread = advantages.std() if advantages.numel() > 1 else torch.zeros(())
        self.advantages[:rows] = ((advantages - advantages.mean()) / (spread + 1e-8)).unsqueeze(-1)

    def get_statistics(self) -> tuple[Tensor, Tensor]:
        """Return the mean length of the trajectories, cut at the end of the rollout, and the mean reward."""
        ends = self.dones[: self._rows()].squeeze(-1).bool().clone()
        ends[-1] = True
        return torch.tensor(ends.numel() / int(ends.sum())), self.rewards[: self._rows()].mean()

    def _rows(self) -> int:
        """Return how many rows hold steps."""
        if not self.step:
            raise ValueError(f"the storage is empty; {type(self).__name__}.add_transitions writes steps")
        return self.step

    # -- minibatches ---------------------------------------------------------------------------------------------------

    def mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[Any]:
        """Yield minibatches of samples [n, …] in a fresh order each epoch; every sample is used once per epoch."""
        count = self._rows() * self.num_envs
        self._check_count(num_mini_batches, count, "samples")
        for _ in range(num_epochs):
            for part in torch.randperm(count, device=self.device).tensor_split(num_mini_batches):
                yield self.get_minibatch_from_indices(part // self.num_envs, part % self.num_envs)

    def recurrent_mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[Any]:
        """Yield minibatches of whole envs: observations in padded trajectories, the rest [T, n, …]."""
        self._check_count(num_mini_batches, self.num_envs, "envs")
        rows = self._rows()
        dones = self.dones[:rows].squeeze(-1).bool()
        begins = torch.cat([torch.ones_like(dones[:1]), dones[:-1]])
        bounds = [0, *(-(-self.num_envs * (place + 1) // num_mini_batches) for place in range(num_mini_batches))]
        before = torch.cat([begins.new_zeros(1, dtype=torch.long), begins.sum(0).cumsum(0)]).tolist()
        for _ in range(num_epochs):
            for start, stop in pairwise(bounds):
                padded = slice(before[start], before[stop])
                yield self.get_minibatch_from_indices(slice(0, rows), slice(start, stop), padded, begins)

    reccurent_mini_batch_generator = recurrent_mini_batch_generator
    """The spelling of older codes."""

    def get_minibatch_from_indices(
        self,
        T_slice: Rows,
        B_slice: Rows,
        padded_B_slice: slice | None = None,
        prev_done_mask: Tensor | None = None,
    ) -> Any:
        """Return steps of envs: single samples for two index tensors [n], whole envs with `padded_B_slice`.

        padded_B_slice: the trajectories of these envs among those of all envs, env after env; then observations are
            padded, and the memory before each trajectory comes along.
        prev_done_mask: bool [T, N], where a trajectory begins; from `dones` unless given.
        """
        where = (T_slice, B_slice)
        critic = self.observations if self.critic_observations is None else self.critic_observations
        fields: dict[str, Any] = {
            "obs": self.observations[where],
            "critic_obs": critic[where],
            "actions": self.actions[where],
            "values": self.values[where],
            "advantages": self.advantages[where],
            "returns": self.returns[where],
            "old_actions_log_prob": self.actions_log_prob[where],
            "old_mu": self.mu[where],
            "old_sigma": self.sigma[where],
            "hidden_states": None,
            "masks": None,
            **{name: column[where] for name, column in self.extra.items()},
        }
        if padded_B_slice is not None:
            dones = self.dones[where].squeeze(-1)
            seen = {name: fields[name] for name in ("obs", "critic_obs")}
            padded, masks = split_and_pad_trajectories(seen, dones)
            if padded_B_slice.stop - padded_B_slice.start != masks.shape[1]:
                raise ValueError(
                    f"padded_B_slice has {padded_B_slice.stop - padded_B_slice.start} trajectories, "
                    f"the envs {B_slice} have {masks.shape[1]}"
                )
            fields |= {**padded, "masks": masks, "hidden_states": self._initial_states(where, prev_done_mask)}
        missing = [name for name in self.MiniBatch._fields if name not in fields]
        if missing:
            raise ValueError(f"no transition with {missing} was added; set them before add_transitions")
        return self.MiniBatch(**{name: fields[name] for name in self.MiniBatch._fields})

    def _initial_states(self, where: tuple[Any, Any], begins: Tensor | None) -> Any:
        """Return the memory before each trajectory of these envs, [L, n_traj, H] each; None without a memory."""
        if self.saved_hidden_states is None:
            return None
        if begins is None:
            dones = self.dones[: self._rows()].squeeze(-1).bool()
            begins = torch.cat([torch.ones_like(dones[:1]), dones[:-1]])
        chosen = begins[where].t()

        def first(saved: Tensor) -> Tensor:
            rows = saved[where[0]].transpose(1, 2)[:, where[1]]  # [T, n, L, H]
            return rows.transpose(0, 1)[chosen].transpose(0, 1).contiguous()

        return tree.map(first, self.saved_hidden_states)

    def _check_count(self, num_mini_batches: int, count: int, what: str) -> None:
        if not 1 <= num_mini_batches <= count:
            raise ValueError(f"num_mini_batches={num_mini_batches} of {count} {what}; give 1 to {count}")


class QueueRolloutStorage(RolloutStorage):
    """A storage that keeps older rollouts: it grows to `buffer_dilation_ratio` rollouts, then overwrites the oldest.

    `clear` does not rewind. Sequences want chronological rows, which `untie_buffer_loop` makes; the recurrent
    generator calls it. Old samples are off-policy: returns and ratios are meaningful with a ratio of 1 alone.
    """

    def __init__(
        self,
        num_envs: int,
        num_transitions_per_env: int,
        obs_shape: Sequence[int],
        privileged_obs_shape: Sequence[int | None] | None,
        actions_shape: Sequence[int],
        device: torch.device | str = "cpu",
        *,
        buffer_dilation_ratio: float = 1.0,
    ) -> None:
        """Allocate int(buffer_dilation_ratio · T) rows, of which the first rollout uses T."""
        if buffer_dilation_ratio < 1.0:
            raise ValueError(f"buffer_dilation_ratio is at least 1, one rollout; found {buffer_dilation_ratio}")
        self.buffer_dilation_ratio = buffer_dilation_ratio
        super().__init__(num_envs, num_transitions_per_env, obs_shape, privileged_obs_shape, actions_shape, device)
        self.max_rows = int(buffer_dilation_ratio * self.num_transitions_per_env)
        self._allocate(self.max_rows)
        self._written = self._fresh = 0

    def add_transitions(self, transition: Any) -> None:
        """Write the next step of all envs into the ring."""
        if self._fresh >= self.num_transitions_per_env:
            raise OverflowError(
                f"Rollout buffer overflow: the rollout has {self._fresh} steps; call clear() after the update"
            )
        self._write(self.step % self.max_rows, transition)
        self._fresh, self._written = self._fresh + 1, self._written + 1
        self.step = self._written % self.max_rows if self._written > self.max_rows else self._written

    def clear(self) -> None:
        """Begin the next rollout behind the stored rows, and let the buffer grow by one rollout."""
        self._fresh = 0
        self.num_rows = min(self.num_rows + self.num_transitions_per_env, self.max_rows)

    def untie_buffer_loop(self) -> None:
        """Rotate the ring so that rows are chronological and the oldest is row 0, which is written next."""
        start = self.step % self.max_rows
        if self._written <= self.max_rows or not start:
            return
        for column in (*tree.leaves(self.saved_hidden_states or {}), *self.extra.values(), *self._columns()):
            column.copy_(torch.roll(column, -start, dims=0))
        self._written = self.step = self.max_rows

    def _columns(self) -> list[Tensor]:
        found = [value for value in vars(self).values() if isinstance(value, Tensor)]
        return [column for column in found if tuple(column.shape[:2]) == (self.max_rows, self.num_envs)]

    def _rows(self) -> int:
        if not self._written:
            return super()._rows()
        return min(self._written, self.max_rows)

    def recurrent_mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[Any]:
        """Untie the ring, then yield minibatches of whole envs."""
        self.untie_buffer_loop()
        return super().recurrent_mini_batch_generator(num_mini_batches, num_epochs)

    reccurent_mini_batch_generator = recurrent_mini_batch_generator


class ActionLabelRollout(QueueRolloutStorage):
    """A storage with a teacher's actions: `action_labels`."""

    MiniBatch = namedarraytuple("MiniBatch", [*MINI_BATCH_FIELDS, "action_labels"])

    class Transition(RolloutStorage.Transition):
        """A step with labels."""

        def __init__(self) -> None:
            super().__init__()
            self.action_labels: Any = None


class AmpRolloutStorage(ActionLabelRollout):
    """A storage for adversarial motion priors: `ref_obs` of the robot, `ref_motion` of the expert, `action_labels`."""

    MiniBatch = namedarraytuple("MiniBatch", [*MINI_BATCH_FIELDS, "action_labels", "ref_obs", "ref_motion"])

    class Transition(ActionLabelRollout.Transition):
        """A step with motions."""

        def __init__(self) -> None:
            super().__init__()
            self.ref_obs: Any = None
            self.ref_motion: Any = None


class SarsaRolloutStorage(RolloutStorage):
    """A storage of (s, a, r, s'): `next_obs` and `next_critic_obs` in every minibatch.

    A transition has `next_observations`, and `next_critic_observations` where the critic sees more: what truly
    followed, which is the last observation of an episode that ended and not the first one of the next.
    """

    MiniBatch = namedarraytuple("MiniBatch", [*MINI_BATCH_FIELDS, "next_obs", "next_critic_obs"])

    class Transition(RolloutStorage.Transition):
        """A step with what followed."""

        def __init__(self) -> None:
            super().__init__()
            self.next_observations: Any = None
            self.next_critic_observations: Any = None

        @property
        def next_obs(self) -> Any:
            """What the actor saw next."""
            return self.next_observations

        @property
        def next_critic_obs(self) -> Any:
            """What the critic saw next; the actor's where it sees no more."""
            found = self.next_critic_observations
            return self.next_observations if found is None else found


def _field(transition: Any, name: str) -> Any:
    value = getattr(transition, name, None)
    if value is None:
        raise ValueError(f"the transition has no {name}; set it before add_transitions")
    return value
