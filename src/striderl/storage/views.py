"""How picked steps of a replay are shown: one step, n steps, stacked frames.

A view is called with the reader and the picked rows and returns a dict of [B, …] tensors.

    NStep(3)     t      t+1    t+2    t+3                  rew = r0 + g r1 + g² r2, obs_next = o3, discount = g³
                 o0 r0  o1 r1  o2 r2  o3
                 o0 r0  o1 E1 │ a new episode              rew = r0 + g r1, obs_next = where it ended,
                                                           discount = g² if truncated there, 0 if terminated
                 o0 r0  o1 r1 │ nothing newer yet          rew = r0 + g r1, obs_next = o2, discount = g²
                 o0 r0 │ a step that must not count        rew = r0, obs_next = o1, discount = g
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.storage.replay_layout import TERMINATED, TRUNCATED
from striderl.storage.replay_reader import ReplayReader
from striderl.storage.replay_window import array_window, window

_from_numpy = torch.from_numpy
_REPLACED = frozenset({"rew", "terminated", "truncated"})
"""The columns that `NStep` works out anew."""

RewardFunction = Callable[[dict[str, Any]], Tensor]
"""Returns rewards [B] for steps given as `ReplayReader.rows` gives them."""


class OneStep:
    """Shows each step with what followed it."""

    def __call__(self, read: ReplayReader, index: Tensor) -> dict[str, Any]:
        """Return the columns of these steps with `obs_next`."""
        return read.rows(index)


class NStep:
    """Shows each step with the discounted rewards of up to n steps and the observation after them.

    `target = rew + discount * V(obs_next)` is right for every window: a window stops at the end of an episode and
    bootstraps from the final observation if that was a truncation; it never enters a step that must not count.
    `terminated` and `truncated` are those of the window's last step, `num_steps` is how many steps it has.
    """

    def __init__(self, n: int, *, gamma: float, reward: RewardFunction | None = None) -> None:
        """Look up to n steps ahead; `reward`, if given, replaces the stored reward of every step of the window."""
        if n < 1:
            raise ValueError(f"n is at least 1, found {n}")
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma is between 0 and 1, found {gamma}")
        self.n, self.gamma, self.reward = n, gamma, reward
        self._powers: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._arrays: dict[str, NDArray[Any]] = {}

    def __call__(self, read: ReplayReader, index: Tensor) -> dict[str, Any]:
        """Return the columns of these steps with the sums and ends of their windows."""
        if read.fast:
            return self._on_cpu(read, index.numpy())
        found = window(read, index, self.n)
        reward = self._reward(read, found.rows.flatten()).view(self.n, -1)
        powers = self._powers_like(reward)
        terminated = found.ends[:, 0]
        discount = powers.index_select(0, found.num_steps)
        return {
            **read.rows(index, found.last),
            "rew": torch.where(found.going, reward * powers[:-1, None], 0.0).sum(0),
            "terminated": terminated,
            "truncated": found.ends[:, 1],
            "discount": discount.masked_fill_(terminated, 0.0),
            "num_steps": found.num_steps,
        }

    def _on_cpu(self, read: ReplayReader, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Do the same with numpy, whose calls cost half."""
        count = len(rows)
        steps = read.steps.take(rows)  # first: then what the window looks at is in the cache
        found = array_window(read, rows, self.n)
        if self.reward is None:
            reward = read.reward_array[found.rows]
        else:
            reward = self.reward(read.rows(_from_numpy(found.rows.ravel()))).detach().numpy().reshape(self.n, count)
        powers = self._arrays.get(reward.dtype.char)
        if powers is None:
            powers = self._arrays[reward.dtype.char] = self._powers_like(torch.from_numpy(reward)).numpy()
        words = None
        if found.cut is None:
            terminated, truncated = np.zeros((2, count), np.bool_)
            discount, num_steps = powers[-1:].repeat(count), np.full(count, self.n)
        else:
            going, num_steps, words = found.cut
            reward = np.where(going, reward, reward.dtype.type(0.0))
            terminated, truncated = (words & TERMINATED) != 0, (words & TRUNCATED) != 0
            discount = powers.take(num_steps)
            discount[terminated] = 0.0
        data = read.joined(steps, rows, found.last, words, leave_out=_REPLACED)
        data["rew"] = _from_numpy(powers[:-1] @ reward)
        data["terminated"], data["truncated"] = _from_numpy(terminated), _from_numpy(truncated)
        data["discount"], data["num_steps"] = _from_numpy(discount), _from_numpy(num_steps)
        return data

    def _powers_like(self, reward: Tensor) -> Tensor:
        """Return gamma^0 … gamma^n, made once per device."""
        key = (reward.device, reward.dtype)
        if key not in self._powers:
            exponents = torch.arange(self.n + 1, dtype=torch.float64, device=reward.device)
            self._powers[key] = torch.pow(self.gamma, exponents).to(reward.dtype)
        return self._powers[key]

    def _reward(self, read: ReplayReader, index: Tensor) -> Tensor:
        return read.column(("rew",), index) if self.reward is None else self.reward(read.rows(index))


class FrameStack:
    """Shows observation components with the k - 1 frames before them, [B, k, …], oldest first.

    Frames before the start of an episode repeat its first frame, as an env that stacks frames itself would give them.
    Other columns are as in `OneStep`.
    """

    def __init__(self, k: int, *, components: Sequence[str] | None = None) -> None:
        """Stack k frames of these components; of all when None."""
        if k < 1:
            raise ValueError(f"k is at least 1, found {k}")
        self.k = k
        self.components = None if components is None else tuple(components)

    def __call__(self, read: ReplayReader, index: Tensor) -> dict[str, Any]:
        """Return the columns of these steps with stacked observations."""
        data = read.rows(index)
        earlier = []
        place = index
        for _ in range(self.k - 1):
            place = read.prev(place)
            earlier.append(place)
        names = list(data["obs"]) if self.components is None else self.components
        obs, following = dict(data["obs"]), dict(data["obs_next"])
        for name in names:
            current, after = data["obs"][name], data["obs_next"][name]
            before = [read.column(("obs", name), row) for row in reversed(earlier)]
            obs[name] = torch.stack([*before, current], dim=1)
            following[name] = torch.stack([*before[1:], current, after][-self.k :], dim=1)
        return {**data, "obs": obs, "obs_next": following}
