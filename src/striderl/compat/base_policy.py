"""`BasePolicy`: a learner as one module that acts, prepares samples and learns, in the words of Tianshou.

    update(sample_size, buffer):   buffer.sample ─▶ process_fn ─▶ learn ─▶ post_process_fn
                                    batch, indices   + returns     dict      new priorities

    state        training   updating        who is at work
    collecting     True      False          a Collector of a training run
    updating       True      True           update; both flags are put back however it ends
    testing        False     False          a Collector after policy.eval()

A subclass writes `forward` and `learn`, and `process_fn` where targets reach over several steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, overload

import numpy as np
from torch import nn

from striderl.compat.buffer_returns import episodic_return, gaps_between, nstep_return
from striderl.compat.policy_checks import checked_batch, checked_numbers
from striderl.data import leaf
from striderl.data.batch import Batch
from striderl.data.checked_fields import refuse_overrides
from striderl.storage.replay_buffer.buffer import ReplayBuffer

Array = np.ndarray[Any, Any]


_FORWARD = "a Collector executes what forward returns as act; do it there, where training and updating are told apart"
REFUSED: Mapping[str, str] = dict.fromkeys(("exploration_noise", "map_action", "map_action_inverse"), _FORWARD)
"""Methods of later Tianshou policies that nothing here calls."""


class BasePolicy(nn.Module, ABC):
    """What acts and learns; see the top of this module."""

    updating: bool = False
    """Whether `update` is at work."""
    _drawn_weight: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, REFUSED)

    @abstractmethod
    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        """Return a Batch with `act` [B, …] for `batch.obs` [B, …].

        It may also have `state`, which comes back with the next step and is zero where an episode begins (None when
        all begin), and `policy`, a Batch of numbers that are stored with the step. Other keys are not stored.
        """

    def process_fn(self, batch: Batch, buffer: ReplayBuffer, indices: Array) -> Batch:
        """Add to a sample what depends on its neighbours in time, such as n-step returns; return the batch."""
        return batch

    @abstractmethod
    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        """Take gradient steps on a sample; return numbers by name, or lists with one number per step."""

    def post_process_fn(self, batch: Batch, buffer: ReplayBuffer, indices: Array) -> None:
        """Give new priorities to a prioritized buffer: those that `learn` has put into `batch.weight`."""
        if buffer.priorities is None:
            return
        if "weight" not in batch or batch.weight is self._drawn_weight:
            raise ValueError(
                f"{type(self).__name__}.learn was given samples of a prioritized buffer and must set batch.weight to "
                "the error of each sample [B]; or override post_process_fn"
            )
        buffer.update_weight(indices, batch.weight)

    def update(self, sample_size: int, buffer: ReplayBuffer | None, **kwargs: Any) -> dict[str, Any]:
        """Draw a sample (0 for all, in the order of time), learn from it, and return what `learn` returned."""
        if buffer is None:
            return {}
        name = type(self).__name__
        batch, indices = buffer.sample(sample_size)
        with self._update_state():
            self._drawn_weight = batch.get("weight")
            batch = checked_batch(self.process_fn(batch, buffer, indices), f"{name}.process_fn")
            numbers = checked_numbers(self.learn(batch, **kwargs), f"{name}.learn")
            self.post_process_fn(batch, buffer, indices)
        return numbers

    @contextmanager
    def _update_state(self) -> Iterator[None]:
        """Be training and updating, and put the flags back however it ends."""
        was_training = self.training
        self.train()
        self.updating = True
        try:
            yield
        finally:
            self.updating, self._drawn_weight = False, None
            self.train(was_training)

    @staticmethod
    def compute_nstep_return(
        batch: Batch,
        buffer: ReplayBuffer,
        indices: Array,
        target_q_fn: Callable[[ReplayBuffer, Array], Any],
        gamma: float = 0.99,
        n_step: int = 1,
    ) -> Batch:
        """Set `batch.returns` to the n-step targets.

        `target_q_fn(buffer, last)` returns the values [B] or [B, …] of `buffer.get(last, "obs_next")`: of what followed
        the last step of each window. Windows end with their episode; nothing follows a step that terminated.
        """
        batch.returns = nstep_return(buffer, indices, target_q_fn, gamma=gamma, n=n_step)
        return batch

    @overload
    @staticmethod
    def compute_episodic_return(
        batch: Batch,
        buffer: ReplayBuffer,
        indices: Array,
        v_s_: Any = None,
        v_s: Any = None,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
    ) -> tuple[Array, Array]: ...

    @overload
    @staticmethod
    def compute_episodic_return(
        batch: Batch, v_s_: Any = None, gamma: float = 0.99, gae_lambda: float = 0.95, rew_norm: bool = False
    ) -> Batch: ...

    @staticmethod
    def compute_episodic_return(batch: Batch, *args: Any, **kwargs: Any) -> Any:
        """Compute GAE in the argument order of Tianshou 0.4 and later, or of 0.3.

        (batch, buffer, indices, v_s_=None, v_s=None, gamma=0.99, gae_lambda=0.95) returns (returns, advantages) [B];
        (batch, v_s_=None, gamma=0.99, gae_lambda=0.95, rew_norm=False) sets `batch.returns` and returns the batch.

        `batch` has all steps in the order of time, as `buffer.sample(0)` gives them. `v_s_` [B] are the values of
        `batch.obs_next`, `v_s` [B] those of `batch.obs`. Without `v_s` the value of a step is that of the
        `obs_next` before it, and 0 where an episode begins: returns do not depend on it, advantages do. Without
        `v_s_` there are no values, which wants gae_lambda=1. `rew_norm` normalises the returns.
        """
        second = args[0] if args else kwargs.get("buffer")
        if isinstance(second, ReplayBuffer):
            return _episodic_return(batch, *args, **kwargs)
        if "buffer" in kwargs or "indices" in kwargs or not (second is None or leaf.is_array(second)):
            raise TypeError(
                "compute_episodic_return wants (batch, buffer, indices, v_s_, v_s, gamma, gae_lambda) with a "
                "ReplayBuffer, or (batch, v_s_, gamma, gae_lambda, rew_norm) with the values of batch.obs_next; found "
                f"{type(second).__name__} after the batch"
            )
        return _returns_only(batch, *args, **kwargs)


def _episodic_return(
    batch: Batch,
    buffer: ReplayBuffer,
    indices: Array,
    v_s_: Any = None,
    v_s: Any = None,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
) -> tuple[Array, Array]:
    """Compute (returns, advantages) of the steps at these indices."""
    return episodic_return(batch, gaps_between(buffer, indices), v_s_, v_s, gamma=gamma, lam=gae_lambda)


def _returns_only(
    batch: Batch, v_s_: Any = None, gamma: float = 0.99, gae_lambda: float = 0.95, rew_norm: bool = False
) -> Batch:
    """Set `batch.returns` without a buffer: an episode goes on from row to row until it is done."""
    returns, _ = episodic_return(batch, None, v_s_, None, gamma=gamma, lam=gae_lambda)
    spread = returns.std()
    batch.returns = (returns - returns.mean()) / spread if rew_norm and spread > 0.01 else returns
    return batch
