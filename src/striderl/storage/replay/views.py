"""Views of sampled steps of a replay: one step, n steps, stacked frames.

A view is called with the reader and the sampled rows and returns a dict of [B, …] tensors.

    NStep(3)     t      t+1    t+2    t+3                  rew = r0 + g r1 + g² r2, obs_next = o3, discount = g³
                 o0 r0  o1 r1  o2 r2  o3
                 o0 r0  o1 E1 │ a new episode              rew = r0 + g r1, obs_next = where it ended,
                                                           discount = g² if truncated there, 0 if terminated
                 o0 r0  o1 r1 │ nothing newer yet          rew = r0 + g r1, obs_next = o2, discount = g²
                 o0 r0 │ an invalid step                   rew = r0, obs_next = o1, discount = g

Sequences of a replay for recurrent networks, with the stored memory and a burn-in.

    sampled         ▼
    place    … 6  7  8  9 10 11 12 …         state kept before every 3rd place: 0, 3, 6, 9, …
    sequence   6  7  8  9 10                 starts at 6 with the memory from before 6; length 3, burn_in 2
    learn      ·  ·  x  x  x                 burn-in steps only warm the memory up
    resets     0  0  0  1  0                 a new episode begins at 9: the memory starts from zero there

Shapes are static, [T, B] with T = burn_in + length. Places after the newest step are filled with what is there and have
`valid` false.

Windows of up to n steps from each row on, for n-step returns.

k            0  1  2  3          a window extends while nothing ended before, and the step is stored and valid
step         ·  ·  E  ·
going        1  1  1  0          num_steps 3, last is the row at k = 2, ends are its flags

Hindsight: pretend that what was reached later had been the goal (Andrychowicz et al. 2017).

    step          t     t+1   t+2   t+3 = end of the episode (so far)
    achieved      a0    a1    a2    a3    a4
    'future'      goal := what was achieved after a step drawn from t … end
    'final'       goal := what was achieved at the end
    'episode'     goal := what was achieved after any step of the episode that is still stored

Goals are put into the copies that a sample consists of; the replay itself is never changed. Rewards are computed
anew for these samples with the user's function, in every step of a window of n under the one goal of its sample. Where
episodes end stays as it was stored: the env's flags do not depend on the goal.

    view = Hindsight(reward, gamma=config.gamma, n=config.n_step)
    replay = Replay(collector.columns(), 100_000, env.num_envs, view=view, episodes=True)
    trainer = Trainer(algorithm, collector, plan, storage=replay)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data.naming import unknown
from striderl.storage.replay.reader import ReplayReader
from striderl.storage.replay.rows import ENDS, SEEN, TERMINATED, TRUNCATED, VALID
from striderl.storage.replay.samplers import Draws

_from_numpy = torch.from_numpy
_REPLACED = frozenset({"rew", "terminated", "truncated"})
"""The columns that `NStep` recomputes."""

RewardFunction = Callable[[dict[str, Any]], Tensor]
"""Returns rewards [B] for steps given as `ReplayReader.rows` gives them."""


class OneStep:
    """Returns each step with its next observation."""

    capturable = True
    """Whether it reads through tensors alone, so that a CUDA graph can hold it."""

    def __call__(self, read: ReplayReader, index: Tensor) -> dict[str, Any]:
        """Return the columns of these steps with `obs_next`."""
        return read.rows(index)


class NStep:
    """Returns each step with the discounted rewards of up to n steps and the observation after them.

    `target = rew + discount * V(obs_next)` is right for every window: a window stops at the end of an episode and
    bootstraps from the final observation if that was a truncation; it never includes an invalid step.
    `terminated` and `truncated` are those of the window's last step, `num_steps` is its length.
    """

    capturable = True

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
        """Do the same with numpy, at half the cost per call."""
        count = len(rows)
        steps = read.steps.take(rows)  # first: then the window's reads are in the cache
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
    """Returns observation components with the k - 1 frames before them, [B, k, …], oldest first.

    Frames before the start of an episode repeat its first frame, as an env that stacks frames itself would give them.
    Other columns are as in `OneStep`.
    """

    capturable = True

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


# -- sequences ---------------------------------------------------------------------------------------------------------


class SequenceView:
    """Returns a sequence of steps from (or shortly before) each sampled one, [T, B, …]."""

    def __init__(self, length: int, *, burn_in: int = 0) -> None:
        """Read `burn_in` steps to warm up the memory, then `length` steps to learn from."""
        if length < 1 or burn_in < 0:
            raise ValueError(f"wanted length >= 1 and burn_in >= 0, found {length} and {burn_in}")
        self.length, self.burn_in = length, burn_in

    def __call__(self, read: ReplayReader, index: Tensor) -> dict[str, Any]:
        """Return all columns with `obs_next` [T, B, …], `resets`, `valid`, `learn` bool [T, B], and `state` [B, …]."""
        start, found = self._starts(read, index)
        num_steps = self.burn_in + self.length
        offset = torch.arange(num_steps, device=index.device).unsqueeze(1)
        rows = read.shifted(start, offset)
        flat = rows.flatten()
        data = _shaped(read.rows(flat), num_steps, index.shape[0])
        there = (read.position(start) + offset < read.size_of(start)) & found
        ended = data["terminated"] | data["truncated"]
        resets = torch.cat([self._begins(read, start).unsqueeze(0), ended[:-1]])
        valid = data["valid"] & there
        state = {} if read.states is None else read.states.gather(start)
        return {
            **data,
            "resets": resets & there,
            "valid": valid,
            "learn": valid & (offset >= self.burn_in),
            "state": state,
        }

    def _starts(self, read: ReplayReader, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows to start from, where memory is kept, and whether there is such a row for each sample."""
        if read.states is None or read.states.every == 1:
            return index, torch.ones_like(index, dtype=torch.bool)
        every = read.states.every
        back = read.shifted(index, -(index // read.num_envs % every))
        # the memory from before the oldest steps may be gone with the step it belonged to; the next one is there
        gone = read.position(back) > read.position(index)
        ahead = read.shifted(back, every)
        wrapped = ahead // read.num_envs % every != 0
        ahead = torch.where(wrapped, index % read.num_envs, ahead)
        start = torch.where(gone, ahead, back)
        return start, read.alive(start)

    def _begins(self, read: ReplayReader, start: Tensor) -> Tensor:
        """Return where an episode begins with the first row itself; at the oldest row the past is not known."""
        before = read.shifted(start, -1)
        return read.done(before) & (read.position(start) > 0)


def _shaped(rows: dict[str, Any], num_steps: int, count: int) -> dict[str, Any]:
    return {
        name: _shaped(value, num_steps, count) if isinstance(value, dict) else value.unflatten(0, (num_steps, count))
        for name, value in rows.items()
    }


# -- windows -----------------------------------------------------------------------------------------------------------


class StepWindow(NamedTuple):
    """The n-step windows of B rows."""

    rows: Tensor
    """int64 [n, B]: the rows from each one on, whether they belong to the window or not."""
    going: Tensor
    """bool [n, B]: which of them belong to it; the first always does."""
    num_steps: Tensor
    """int64 [B]."""
    last: Tensor
    """int64 [B]: the row of the last step that belongs to it."""
    ends: Tensor
    """bool [B, 3]: (terminated, truncated, valid) of that step."""


class Cut(NamedTuple):
    """Where windows end, when some of them end early or with an episode."""

    going: NDArray[np.bool_]
    """[n, B]."""
    num_steps: NDArray[np.int64]
    words: NDArray[np.uint32]
    """The flags of the last steps; see rows.py."""


class ArrayWindow(NamedTuple):
    """Windows as arrays."""

    rows: NDArray[np.int64]
    last: NDArray[np.int64]
    cut: Cut | None
    """None where all windows have n valid steps, and no episode ends in them."""


def window(read: ReplayReader, index: Tensor, n: int) -> StepWindow:
    """Find how far windows of up to n steps go."""
    ahead = torch.arange(n, device=index.device).unsqueeze(1)
    rows = read.shifted(index, ahead)
    flags = read.flags(rows.flatten()).view(n, -1, 3)
    ended = flags[:-1, :, 0] | flags[:-1, :, 1]
    goes_on = (read.position(index) + ahead[1:] < read.size_of(index)) & flags[1:, :, 2] & ~ended
    going = torch.cat([torch.ones_like(rows[:1], dtype=torch.bool), goes_on])
    going = going.to(torch.uint8).cummin(0).values.bool()
    num_steps = going.sum(0)
    ends = flags.gather(0, (num_steps - 1).view(1, -1, 1).expand(1, -1, 3)).squeeze(0)
    return StepWindow(rows, going, num_steps, read.shifted(index, num_steps - 1), ends)


def array_window(read: ReplayReader, start: NDArray[np.int64], n: int) -> ArrayWindow:
    """Do the same with numpy, where `read.fast`."""
    envs = read.num_envs
    rows = start + _ahead(n, envs)
    newest = (read.cursor.total - 1) % read.cursor.rows * envs
    round_the_end = np.maximum.reduce(rows[-1]) >= read.num_rows
    if round_the_end:
        rows %= read.num_rows
    words = read.steps.words_at(rows)
    if not (round_the_end and newest < n * envs):  # such windows are found by looking at each of their steps
        # rows before this one are huge as unsigned numbers
        near = (start - (newest - (n - 2) * envs)).view(np.uint64) < (n - 1) * envs
        seen = words if read.steps.lone_flags else words & SEEN
        if not np.count_nonzero(near) and np.count_nonzero(seen == VALID) == words.size:
            return ArrayWindow(rows, rows[-1], None)
    return _cut_short(rows, words, newest, envs)


def _cut_short(rows: NDArray[np.int64], words: NDArray[np.uint32], newest: int, envs: int) -> ArrayWindow:
    """Find where each window ends: some end early."""
    n, count = rows.shape
    # a window extends to step k unless the step before it ended an episode or is the newest, or step k is invalid
    going = np.ones((n, count), np.bool_)
    goes_on = going[1:]
    np.equal(words[:-1] & ENDS, 0, out=goes_on)
    goes_on &= (words[1:] & VALID) != 0
    goes_on &= (rows[:-1] - newest).view(np.uint64) >= envs  # rows before the newest are huge as unsigned numbers
    num_steps = np.ones(count, np.int64)
    for k in range(1, n):  # numpy's accumulate takes ten times as long
        going[k] &= going[k - 1]
        num_steps += going[k]
    place = (num_steps - 1) * count
    place += np.arange(count)
    return ArrayWindow(rows, rows.ravel().take(place), Cut(going, num_steps, words.ravel().take(place)))


@lru_cache(maxsize=16)
def _ahead(n: int, envs: int) -> NDArray[np.int64]:
    """Return how many rows on the steps of a window are, int64 [n, 1]; read only."""
    ahead = np.arange(0, n * envs, envs)[:, None]
    ahead.flags.writeable = False
    return ahead


# -- hindsight ---------------------------------------------------------------------------------------------------------


GoalReward = Callable[[Tensor, Tensor, dict[str, Any]], Tensor]
"""reward(achieved, desired, info) -> [B]: `achieved` is what the step led to."""

STRATEGIES = ("future", "final", "episode")


class Hindsight:
    """Returns steps with the goals of a share of them replaced; the replay must keep `episodes=True`."""

    def __init__(
        self,
        reward: GoalReward,
        *,
        gamma: float,
        n: int = 1,
        strategy: str = "future",
        ratio: float = 0.8,
        achieved: str = "achieved_goal",
        desired: str = "desired_goal",
        seed: int = 0,
    ) -> None:
        """Replace the goal of a share `ratio` of the samples; 4 relabelled for each original is 0.8.

        Targets are `rew + discount * V(obs_next)`, as those of `NStep(n, gamma=gamma)`.
        """
        if n < 1 or not 0.0 <= gamma <= 1.0:
            raise ValueError(f"n is at least 1 and gamma between 0 and 1, found {n} and {gamma}")
        if strategy not in STRATEGIES:
            raise ValueError(unknown("strategy", strategy, STRATEGIES, where="Hindsight"))
        if not 0.0 <= ratio <= 1.0:
            raise ValueError(f"ratio is between 0 and 1, found {ratio}")
        self.reward, self.strategy, self.ratio = reward, strategy, ratio
        self.gamma, self.n = gamma, n
        self.achieved, self.desired, self.seed = achieved, desired, seed
        self.draw = 0
        """The number of the next draw; the whole state."""
        self._draws: Draws | None = None

    def __call__(self, read: ReplayReader, index: Tensor) -> dict[str, Any]:
        """Return what `NStep` would for these steps; `relabelled` bool [B] marks those with a replaced goal."""
        if self._draws is None or self._draws.device != read.device:
            self._draws = Draws("hindsight", seed=self.seed, device=read.device)
        numbers = self._draws.at(self.draw, 2 * index.shape[0]).view(2, -1)
        self.draw += 1
        found = window(read, index, self.n)
        data = read.rows(index, found.last)
        self._require(data["obs"])
        goal = read.obs_next(self._goal_rows(read, index, numbers[1]))[self.achieved]
        chosen = numbers[0] < self.ratio
        reward = self._rewards(read, found.rows, goal, chosen)
        powers = torch.pow(self.gamma, torch.arange(self.n + 1, dtype=torch.float64, device=index.device))
        powers = powers.to(reward.dtype)
        return {
            **data,
            "obs": {**data["obs"], self.desired: _where(chosen, goal, data["obs"][self.desired])},
            "obs_next": {**data["obs_next"], self.desired: _where(chosen, goal, data["obs_next"][self.desired])},
            "rew": torch.where(found.going, reward * powers[:-1, None], 0.0).sum(0),
            "terminated": found.ends[:, 0],
            "truncated": found.ends[:, 1],
            "discount": powers[found.num_steps].masked_fill(found.ends[:, 0], 0.0),
            "num_steps": found.num_steps,
            "relabelled": chosen,
        }

    def _rewards(self, read: ReplayReader, rows: Tensor, goal: Tensor, chosen: Tensor) -> Tensor:
        """Return the rewards of all steps of all windows [n, B] under the goals of their samples."""
        steps = read.rows(rows.flatten())
        achieved = steps["obs_next"][self.achieved]
        given = self.reward(achieved, goal.repeat(self.n, *[1] * (goal.dim() - 1)), steps["info"])
        stored = steps["rew"]
        return torch.where(chosen.repeat(self.n), given.to(stored.dtype), stored).view(self.n, -1)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the next draw."""
        return {"draw": self.draw, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the number of the next draw."""
        self.draw, self.seed, self._draws = int(state["draw"]), int(state["seed"]), None

    def _goal_rows(self, read: ReplayReader, index: Tensor, numbers: Tensor) -> Tensor:
        """Return the rows of which the achieved state becomes the goal."""
        if read.episodes is None:
            raise ValueError("Hindsight needs the bounds of episodes; make the replay with episodes=True")
        cursor = read.cursor
        oldest = torch.from_numpy(np.asarray(cursor.first_alive)).to(index.device)[index % read.num_envs]
        number = oldest + read.position(index)
        first, last = read.episodes.bounds(index)
        if self.strategy == "final":
            target = last
        elif self.strategy == "future":
            target = number + (numbers * (last - number + 1)).long()
        else:
            first = torch.maximum(first, oldest)
            target = first + (numbers * (last - first + 1)).long()
        return read.shifted(index, target - number)

    def _require(self, obs: dict[str, Any]) -> None:
        for name in (self.achieved, self.desired):
            if name not in obs:
                raise KeyError(unknown("component", name, obs, where="the observation"))


def _where(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (yes.ndim - 1)), yes, no)
