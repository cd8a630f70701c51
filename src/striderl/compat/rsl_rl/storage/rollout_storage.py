"""`RolloutStorage`: a rollout of TensorDict observations, in columns [T, N, …], and its minibatches.

storage = RolloutStorage("rl", num_envs, 24, obs, [12])           or "distillation"
storage.add_transition(transition)                                 T times; then clear()

mini_batch_generator              samples [n, …] in one random order
recurrent_mini_batch_generator    whole envs: observations [T, n_traj, …] with masks, the rest [T, n, …]
generator                         one step of all envs after another, for distillation

hidden states before each step    [T, L, N, H]  ─▶  at the first step of each trajectory  [L, n_traj, H]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from striderl.compat.rsl_rl.modules.rnn import HiddenState
from striderl.compat.rsl_rl.utils.utils import split_and_pad_trajectories
from striderl.data.naming import missing_extra


class RolloutStorage:
    """T steps of N envs; see the top of this module."""

    class Transition:
        """One step of N envs, filled in field by field."""

        def __init__(self) -> None:
            """Begin empty; a subclass adds its fields here."""
            self.observations: Any = None
            self.actions: Any = None
            self.rewards: Any = None
            self.dones: Any = None
            self.values: Any = None
            self.actions_log_prob: Any = None
            self.distribution_params: Any = None
            self.privileged_actions: Any = None
            self.hidden_states: tuple[HiddenState, HiddenState] = (None, None)

        def clear(self) -> None:
            """Empty all fields."""
            self.__init__()  # type: ignore[misc]

    class Batch:
        """What the generators yield; fields that a kind of training does not have are None."""

        def __init__(
            self,
            observations: Any = None,
            actions: Any = None,
            values: Any = None,
            advantages: Any = None,
            returns: Any = None,
            old_actions_log_prob: Any = None,
            old_distribution_params: Any = None,
            hidden_states: tuple[HiddenState, HiddenState] = (None, None),
            masks: Any = None,
            privileged_actions: Any = None,
            dones: Any = None,
        ) -> None:
            """Hold the fields."""
            self.observations, self.actions, self.values = observations, actions, values
            self.advantages, self.returns = advantages, returns
            self.old_actions_log_prob, self.old_distribution_params = old_actions_log_prob, old_distribution_params
            self.hidden_states, self.masks = hidden_states, masks
            self.privileged_actions, self.dones = privileged_actions, dones

    def __init__(
        self,
        training_type: str,
        num_envs: int,
        num_transitions_per_env: int,
        obs: Any,
        actions_shape: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate a rollout of observations like `obs`, for 'rl' or 'distillation'."""
        if training_type not in ("rl", "distillation"):
            raise ValueError(f"training_type: wanted 'rl' or 'distillation', found {training_type!r}")
        self.training_type, self.device = training_type, device
        self.num_envs, self.num_transitions_per_env = num_envs, num_transitions_per_env
        self.actions_shape = actions_shape
        lead = (num_transitions_per_env, num_envs)
        self.observations: Any = _observations_like(obs, lead, device)
        self.rewards = torch.zeros(*lead, 1, device=device)
        self.actions = torch.zeros(*lead, *actions_shape, device=device)
        self.dones = torch.zeros(*lead, 1, device=device).byte()
        if training_type == "distillation":
            self.privileged_actions = torch.zeros_like(self.actions)
        else:
            self.values, self.actions_log_prob, self.returns, self.advantages = (
                torch.zeros(*lead, 1, device=device) for _ in range(4)
            )
            self.distribution_params: tuple[Tensor, ...] | None = None
        self.saved_hidden_state_a: list[Tensor] | None = None
        self.saved_hidden_state_c: list[Tensor] | None = None
        self.step = 0
        """The row that is written next."""

    # -- writing -------------------------------------------------------------------------------------------------------

    def add_transition(self, transition: Transition) -> None:
        """Write the next step of all envs and count it."""
        if self.step >= self.num_transitions_per_env:
            raise OverflowError(
                f"Rollout buffer overflow: {self.num_transitions_per_env} steps are stored already; call clear() first"
            )
        row = self.step
        self.observations[row].copy_(transition.observations)
        self.actions[row].copy_(transition.actions)
        self.rewards[row].copy_(transition.rewards.view(-1, 1))
        self.dones[row].copy_(transition.dones.view(-1, 1))
        if self.training_type == "distillation":
            self.privileged_actions[row].copy_(transition.privileged_actions)
        else:
            self.values[row].copy_(transition.values)
            self.actions_log_prob[row].copy_(transition.actions_log_prob.view(-1, 1))
            if self.distribution_params is None:
                self.distribution_params = tuple(self._column(each) for each in transition.distribution_params)
            for column, value in zip(self.distribution_params, transition.distribution_params, strict=True):
                column[row].copy_(value)
        self._save_hidden_states(transition.hidden_states)
        self.step += 1

    def clear(self) -> None:
        """Begin the next rollout in row 0."""
        self.step = 0

    def _column(self, like: Tensor) -> Tensor:
        # a rollout may be in inference mode, and the update goes backward
        with torch.inference_mode(False):
            return torch.zeros(self.num_transitions_per_env, *like.shape, device=self.device)

    def _save_hidden_states(self, hidden_states: tuple[HiddenState, HiddenState]) -> None:
        actor, critic = hidden_states
        self.saved_hidden_state_a = self._saved(self.saved_hidden_state_a, actor)
        self.saved_hidden_state_c = self._saved(self.saved_hidden_state_c, critic)

    def _saved(self, columns: list[Tensor] | None, state: HiddenState) -> list[Tensor] | None:
        """Write the memory before the present step; one that has not begun yet is zero."""
        if state is None:
            for column in columns or ():
                column[self.step].zero_()
            return columns
        parts = state if isinstance(state, tuple) else (state,)
        columns = [self._column(part) for part in parts] if columns is None else columns
        for column, part in zip(columns, parts):
            column[self.step].copy_(part)
        return columns

    # -- minibatches ---------------------------------------------------------------------------------------------------

    def generator(self) -> Iterator[Batch]:
        """Yield the steps one after another, for distillation."""
        self._check_type("distillation", "generator")
        for row in range(self.num_transitions_per_env):
            yield self.Batch(
                observations=self.observations[row],
                privileged_actions=self.privileged_actions[row],
                dones=self.dones[row],
            )

    def mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[Batch]:
        """Yield minibatches of samples, in the same random order each epoch; a remainder is left out, as in rsl_rl."""
        self._check_type("rl", "mini_batch_generator")
        size = self.num_envs * self.num_transitions_per_env // num_mini_batches
        order = torch.randperm(num_mini_batches * size, device=self.device)
        observations = self.observations.flatten(0, 1)
        columns = {
            "actions": self.actions,
            "values": self.values,
            "advantages": self.advantages,
            "returns": self.returns,
            "old_actions_log_prob": self.actions_log_prob,
        }
        flat = {name: column.flatten(0, 1) for name, column in columns.items()}
        params = [each.flatten(0, 1) for each in self._params()]
        for _ in range(num_epochs):
            for rows in torch.split(order, size):
                chosen: dict[str, Any] = {name: column[rows] for name, column in flat.items()}
                chosen["old_distribution_params"] = tuple(param[rows] for param in params)
                yield self.Batch(observations[rows], **chosen)

    def recurrent_mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[Batch]:
        """Yield minibatches of whole envs: observations in padded trajectories, the rest [T, n, …]."""
        self._check_type("rl", "recurrent_mini_batch_generator")
        padded, masks = split_and_pad_trajectories(self.observations, self.dones)
        dones = self.dones.squeeze(-1).bool()
        begins = torch.cat([torch.ones_like(dones[:1]), dones[:-1]])
        before = [0, *begins.sum(0).cumsum(0).tolist()]
        states = [self._initial_states(each, begins) for each in (self.saved_hidden_state_a, self.saved_hidden_state_c)]
        size = self.num_envs // num_mini_batches
        for _ in range(num_epochs):
            for start in range(0, num_mini_batches * size, size):
                envs, found = slice(start, start + size), slice(before[start], before[start + size])
                yield self.Batch(
                    padded[:, found],
                    self.actions[:, envs],
                    self.values[:, envs],
                    self.advantages[:, envs],
                    self.returns[:, envs],
                    self.actions_log_prob[:, envs],
                    tuple(param[:, envs] for param in self._params()),
                    hidden_states=(_cut(states[0], found), _cut(states[1], found)),
                    masks=masks[:, found],
                )

    def _initial_states(self, columns: list[Tensor] | None, begins: Tensor) -> list[Tensor] | None:
        """Return the memory before each trajectory, env after env, [L, n_traj, H] each."""
        if columns is None:
            return None
        return [column.permute(2, 0, 1, 3)[begins.t()].transpose(0, 1) for column in columns]

    def _params(self) -> tuple[Tensor, ...]:
        if self.distribution_params is None:
            raise ValueError("the storage is empty; add_transition writes steps")
        return self.distribution_params

    def _check_type(self, wanted: str, method: str) -> None:
        if self.training_type != wanted:
            raise ValueError(
                f"{method} is for training_type={wanted!r}; this storage was made for {self.training_type!r}"
            )


def _cut(states: list[Tensor] | None, found: slice) -> HiddenState:
    """Return the states of some trajectories: a tensor of a GRU, a pair of an LSTM."""
    if states is None:
        return None
    parts = [state[:, found].contiguous() for state in states]
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def _observations_like(obs: Any, lead: tuple[int, int], device: torch.device | str) -> Any:
    try:
        from tensordict import TensorDict
    except ImportError as error:
        raise ImportError(missing_extra("tensordict", "tensordict", purpose="observations of rsl_rl 5")) from error
    columns = {key: torch.zeros(lead[0], *value.shape, dtype=value.dtype, device=device) for key, value in obs.items()}
    return TensorDict(columns, batch_size=list(lead), device=device)
