"""`RolloutFileBase`: recorded rollouts as if envs were stepped, N trajectories side by side.

    get_batch()        PlayedTransition of [N, …]       one step of every env; where a trajectory ends, the next begins
    get_batch(24)      PlayedTransition of [24, N, …]   time-major, as a rollout
    for transition in dataset: …                        until nothing is left; also through a torch DataLoader

A subclass provides the trajectories, in four methods: `reset_all`, `refresh_handlers`, `get_buffer`,
`fill_transition`. The first use resets, so that a dataset may be made before anything is recorded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import IterableDataset


class DatasetOver(Exception):  # noqa: N818  (an end, not an error)
    """All trajectories were read as often as they should be."""


class PlayedTransition(NamedTuple):
    """One recorded step of N envs, or T of them: every tensor is [N, …] or [T, N, …]."""

    observation: dict[str, Tensor]
    """The observation, by component; without those of group 'critic'."""
    privileged_observation: dict[str, Tensor]
    """The components of group 'critic'; empty where none were recorded."""
    action: Any
    """The executed action, or in recordings of DAgger the teacher's: a tensor, or a dict of them."""
    reward: Tensor
    """float32."""
    done: Tensor
    """bool: the last step of a trajectory."""
    timeout: Tensor
    """bool: it ended, but the task did not: a time limit, or the recording stopped."""
    next_observation: dict[str, Tensor]
    """The next observation in this env; after the last step of a trajectory, the first of the next one."""
    next_privileged_observation: dict[str, Tensor]
    """The same for group 'critic'."""
    final_observation: dict[str, Tensor]
    """The true next observation, all components: after the last step the final one, or where that was not recorded the
    last observation again."""
    valid: Tensor
    """bool: false, and zeros everywhere, where an env has nothing left to read."""


class RolloutFileBase(IterableDataset[PlayedTransition], ABC):
    """N cursors in recorded rollouts; see the top of this module."""

    def __init__(self, data_dir: str | Path | Sequence[Any], num_envs: int, device: torch.device | str = "cpu") -> None:
        """Store the place of the data; it is read on first use.

        data_dir: one folder or several.
        """
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise ValueError(f"num_envs is a whole number of at least 1, found {num_envs!r}")
        self.data_dir, self.num_envs, self.device = data_dir, num_envs, torch.device(device)
        self.all_env_ids = torch.arange(num_envs, device=self.device)
        """0 to num_envs - 1."""
        self._initialized = False

    # -- reading -------------------------------------------------------------------------------------------------------

    def reset(self, env_ids: Tensor | Sequence[int] | None = None) -> None:
        """Restart all envs from the beginning of the dataset, or some envs with the next trajectories."""
        if env_ids is None or not self._initialized:
            self.reset_all()
            self._initialized = True
        else:
            self.refresh_handlers(env_ids)

    def get_batch(self, num_transitions_per_env: int | None = None) -> PlayedTransition:
        """Return the next step of every env, [N, …], or the next few, [T, N, …]; raises DatasetOver at the end."""
        self._ensure()
        buffer = self.get_buffer(num_transitions_per_env)
        self.fill_transition(buffer)
        return buffer

    def get_transition_batch(self) -> tuple[PlayedTransition, dict[str, Any]]:
        """Return one step as `env.step` would: (transition, infos), with 'time_outs' [N] among the infos."""
        transition = self.get_batch()
        return transition, {"time_outs": transition.timeout}

    def __iter__(self) -> Iterator[PlayedTransition]:
        """Restart and return this dataset."""
        self.reset()
        return self

    def __next__(self) -> PlayedTransition:
        """Return the next step of every env."""
        try:
            return self.get_batch()
        except DatasetOver:
            raise StopIteration from None

    def _ensure(self) -> None:
        if not self._initialized:
            self.reset()

    # -- what a subclass fills in --------------------------------------------------------------------------------------

    @abstractmethod
    def reset_all(self) -> None:
        """Restart all envs."""

    @abstractmethod
    def refresh_handlers(self, env_ids: Tensor | Sequence[int]) -> None:
        """Begin the next trajectory in these envs, wherever they are."""

    @abstractmethod
    def get_buffer(self, num_transitions_per_env: int | None = None) -> PlayedTransition:
        """Return an empty transition of [N, …], or of [T, N, …]."""

    @abstractmethod
    def fill_transition(self, buffer: PlayedTransition, env_ids: Tensor | Sequence[int] | None = None) -> None:
        """Write the next step, or as many as the buffer has, of these envs into it, and advance their cursors.

        Other envs stay where they are, and so do their places in the buffer. Raises DatasetOver at the end.
        """
