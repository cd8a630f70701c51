"""Returns from the steps of a `ReplayBuffer`: n steps ahead, or to the end of each episode.

n = 2        t      t + 1    t + 2                     returns
going on     r0     r1       V                         r0 + g r1 + g² V(obs_next of t + 1)
terminated   r0     r1 end                             r0 + g r1
truncated    r0     r1 end                             r0 + g r1 + g² V(where it really ended)
newest       r0                                        r0 + g V(obs_next of t)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from striderl.data import leaf
from striderl.data.episode_ends import ends_of
from striderl.ops.returns import gae
from striderl.storage.replay_buffer.buffer import ReplayBuffer

Array = np.ndarray[Any, Any]


class Windows(NamedTuple):
    """What up to n steps ahead hold, [B] each."""

    reward: Array
    """The discounted sum of rewards."""
    discount: Array
    """What the value of what followed is multiplied by; 0 where the window ends with a termination."""
    last: Array
    """The index of each window's last step."""


def windows(buffer: ReplayBuffer, indices: Any, *, gamma: float, n: int) -> Windows:
    """Look up to n steps ahead of these steps, not beyond the end of an episode or the newest step."""
    if n < 1:
        raise ValueError(f"n_step is at least 1, found {n}")
    last: Array = np.asarray(leaf.to_array(indices), np.int64)
    reward, done = np.asarray(leaf.to_array(buffer.rew), np.float64), np.asarray(leaf.to_array(buffer.done))
    if reward.ndim != 1:
        raise ValueError(f"n-step returns want one reward per step, found rewards {list(reward.shape[1:])} per step")
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
    return Windows(total, np.where(terminated, 0.0, factor), last)


def nstep_return(
    buffer: ReplayBuffer,
    indices: Any,
    target_q_fn: Callable[[ReplayBuffer, Array], Any],
    *,
    gamma: float,
    n: int,
) -> Tensor:
    """Return reward + discount * value of what followed each window, like the values: [B] or [B, …]."""
    found = windows(buffer, indices, gamma=gamma, n=n)
    with torch.no_grad():
        value = torch.as_tensor(target_q_fn(buffer, found.last))
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
