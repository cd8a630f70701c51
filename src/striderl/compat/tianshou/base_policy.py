"""`BasePolicy`: a learner as one module that acts, prepares samples and learns, in the words of Tianshou.

    update(sample_size, buffer):   buffer.sample ─▶ process_fn ─▶ learn ─▶ post_process_fn
                                    batch, indices   + returns     dict      new priorities

    state        training   updating        who is at work
    collecting     True      False          a Collector of a training run
    updating       True      True           update; both flags are put back however it ends
    testing        False     False          a Collector after policy.eval()

A subclass writes `forward` and `learn`, and `process_fn` where targets reach over several steps.

Returns from the steps of a `ReplayBuffer`: n steps ahead, or to the end of each episode.

n = 2        t      t + 1    t + 2                     returns
going on     r0     r1       V                         r0 + g r1 + g² V(obs_next of t + 1)
terminated   r0     r1 end                             r0 + g r1
truncated    r0     r1 end                             r0 + g r1 + g² V(where it really ended)
newest       r0                                        r0 + g V(obs_next of t)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor, nn

from striderl.compat.parts import checked_batch, checked_numbers
from striderl.data import leaf
from striderl.data.batch import Batch
from striderl.data.checked_fields import refuse_overrides
from striderl.data.episode_ends import ends_of
from striderl.ops.returns import gae
from striderl.storage.replay_buffer.buffer import ReplayBuffer

Array = np.ndarray[Any, Any]


_FORWARD = "a Collector executes what forward returns as act; do it there, where training and updating are told apart"
REFUSED: Mapping[str, str] = dict.fromkeys(("exploration_noise", "map_action", "map_action_inverse"), _FORWARD)
"""Methods of later Tianshou policies that nothing here calls."""


class BasePolicy(nn.Module, ABC):
    """What acts and learns; see the top of this module."""

    updating: bool = False
    """Whether `update` is at work."""
    agent_id: int = 0
    """Which agent it plays, from 1, where several take turns; see `MultiAgentPolicyManager`."""
    _drawn_weight: Any = None

    def __init__(self, observation_space: Any = None, action_space: Any = None) -> None:
        """Remember the spaces, where given."""
        super().__init__()
        self.observation_space, self.action_space = observation_space, action_space

    def set_agent_id(self, agent_id: int) -> None:
        """Set which agent it plays."""
        self.agent_id = agent_id

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, REFUSED)

    @abstractmethod
    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        """Return a Batch with `act` [B, …] for `batch.obs` [B, …].

        It may also have `state`, which comes back with the next step and is zero where an episode begins (None when
        all begin), and `policy`, a Batch of numbers that are stored with the step. Other keys are not stored.
        """

    def process_fn(self, batch: Batch, buffer: ReplayBuffer, indice: Array) -> Batch:
        """Add to a sample what depends on its neighbours in time, such as n-step returns; return the batch."""
        return batch

    @abstractmethod
    def learn(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        """Take gradient steps on a sample; return numbers by name, or lists with one number per step."""

    def post_process_fn(self, batch: Batch, buffer: ReplayBuffer, indice: Array) -> None:
        """Give new priorities to a prioritized buffer: those that `learn` has put into `batch.weight`."""
        if buffer.priorities is None:
            return
        if "weight" not in batch or batch.weight is self._drawn_weight:
            raise ValueError(
                f"{type(self).__name__}.learn was given samples of a prioritized buffer and must set batch.weight to "
                "the error of each sample [B]; or override post_process_fn"
            )
        buffer.update_weight(indice, batch.weight)

    def update(self, sample_size: int, buffer: ReplayBuffer | None, **kwargs: Any) -> dict[str, Any]:
        """Draw a sample (0 for all, in the order of time), learn from it, and return what `learn` returned."""
        if buffer is None:
            return {}
        name = type(self).__name__
        batch, indice = buffer.sample(sample_size)
        with self._update_state():
            self._drawn_weight = batch.get("weight")
            batch = checked_batch(self.process_fn(batch, buffer, indice), f"{name}.process_fn")
            numbers = checked_numbers(self.learn(batch, **kwargs), f"{name}.learn")
            self.post_process_fn(batch, buffer, indice)
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
        indice: Array,
        target_q_fn: Callable[[ReplayBuffer, Array], Any],
        gamma: float = 0.99,
        n_step: int = 1,
        rew_norm: bool = False,
        *,
        ignore_done: bool = False,
    ) -> Batch:
        """Set `batch.returns` to the n-step targets, a tensor, and turn `batch.weight` into one, where there is one.

        `target_q_fn(buffer, last)` returns the values [B], [B, 1] or [B, n] of `buffer.get(last, "obs_next")`: of what
        followed the last step of each window; [B, 1] becomes [B]. Windows end with their episode; nothing follows one
        that terminated, unless `ignore_done`. `rew_norm` normalises rewards by those of the first 1000 places.
        """
        found = windows(buffer, indice, gamma=gamma, n=n_step, rew_norm=rew_norm, ignore_done=ignore_done)
        batch.returns = nstep_return(buffer, found, target_q_fn)
        if "weight" in batch:
            batch.weight = torch.as_tensor(batch.weight, dtype=batch.returns.dtype, device=batch.returns.device)
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
    batch.returns = (returns - returns.mean()) / spread if rew_norm and spread > SMALL else returns
    return batch


# -- returns -----------------------------------------------------------------------------------------------------------

SMALL = 1e-8
"""A standard deviation below which nothing is divided by it."""


class Windows(NamedTuple):
    """What up to n steps ahead hold, [B] each."""

    reward: Array
    """The discounted sum of rewards."""
    discount: Array
    """What the value of what followed is multiplied by; 0 where the window ends with a termination."""
    last: Array
    """The index of each window's last step."""


def windows(
    buffer: ReplayBuffer, indices: Any, *, gamma: float, n: int, rew_norm: bool = False, ignore_done: bool = False
) -> Windows:
    """Look up to n steps ahead of these steps, not beyond the end of an episode or the newest step."""
    if n < 1:
        raise ValueError(f"n_step is at least 1, found {n}")
    last: Array = np.asarray(leaf.to_array(indices), np.int64)
    reward, done = np.asarray(leaf.to_array(buffer.rew), np.float64), np.asarray(leaf.to_array(buffer.done))
    if reward.ndim != 1:
        raise ValueError(f"n-step returns want one reward per step, found rewards {list(reward.shape[1:])} per step")
    if rew_norm:
        some = reward[: min(len(buffer), 1000)]
        reward = (reward - some.mean()) / some.std() if some.std() > SMALL else reward
    total, factor = reward[last], np.full(last.shape, gamma)
    for _ in range(n - 1):
        following: Array = buffer.next(last)
        going = following != last
        if not buffer.stores_obs_next:
            # what followed the newest step of an unfinished episode is not known: the window ends before it
            going &= done[following] | (buffer.next(following) != following)
        last = np.where(going, following, last)
        total = total + np.where(going, factor * reward[last], 0.0)
        factor = np.where(going, factor * gamma, factor)
    terminated = np.asarray(leaf.to_array(buffer.terminated))[last]
    return Windows(total, factor if ignore_done else np.where(terminated, 0.0, factor), last)


def nstep_return(buffer: ReplayBuffer, found: Windows, target_q_fn: Callable[[ReplayBuffer, Array], Any]) -> Tensor:
    """Return reward + discount * value of what followed each window: [B], or [B, n] for n values."""
    with torch.no_grad():
        value = torch.as_tensor(target_q_fn(buffer, found.last))
    value = value.flatten() if value.numel() == len(found.last) else value
    if value.shape[:1] != found.reward.shape:
        raise ValueError(f"target_q_fn must return one value per step [{len(found.last)}], found {list(value.shape)}")
    shape = (-1, *[1] * (value.dim() - 1))
    reward, discount = (torch.as_tensor(x, dtype=value.dtype, device=value.device).view(shape) for x in found[:2])
    return reward + discount * value


def gaps_between(buffer: ReplayBuffer, indices: Any) -> Array:
    """Return where a step is not followed by the next of these indices, bool [B]: rings do not continue each other."""
    index = np.asarray(leaf.to_array(indices))
    broken = np.append(np.asarray(buffer.next(index))[:-1] != index[1:], True)
    return broken | np.isin(index, buffer.unfinished_index())


def episodic_return(
    batch: Any, gaps: Array | None, v_s_: Any, v_s: Any, *, gamma: float, lam: float
) -> tuple[Array, Array]:
    """Return (returns, advantages) [B] by GAE for steps in the order of time, as `buffer.sample(0)` gives them.

    `v_s_` are the values of what followed each step, `v_s` those of the steps; `gaps` is true where the next row does
    not follow.
    """
    terminated, truncated = (np.asarray(leaf.to_array(each)) for each in ends_of(batch))
    stops = terminated | truncated if gaps is None else terminated | truncated | gaps
    if v_s_ is None:
        if not np.isclose(lam, 1.0):
            raise ValueError(f"without v_s_ there are no values to weigh steps by: gae_lambda is 1, found {lam}")
        v_s_ = np.zeros(len(stops))
    after = np.asarray(leaf.to_array(v_s_), np.float32).reshape(-1)
    if v_s is None:
        v_s = np.where(np.append(True, stops[:-1]), 0.0, np.roll(after, 1)) if len(after) == len(stops) else after
    columns = [np.asarray(leaf.to_array(each), np.float32).reshape(-1, 1) for each in (batch.rew, v_s, after)]
    if any(len(column) != len(stops) for column in columns):
        raise ValueError(f"rew, v_s and v_s_ want {len(stops)} numbers, found {[len(each) for each in columns]}")
    reward, value, following = (torch.from_numpy(column) for column in columns)
    flags = [torch.from_numpy(each.reshape(-1, 1)) for each in (terminated, stops & ~terminated)]
    returns, advantages = gae(reward, value, following, flags[0], flags[1], gamma=float(gamma), lam=float(lam))
    return returns.numpy()[:, 0], advantages.numpy()[:, 0]
