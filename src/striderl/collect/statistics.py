"""Episode statistics as tensors: updated every step without a device sync, read once per iteration.

    running [N]      return and length of the episode each env is in
    window  [K + 1]  the last K finished episodes, a ring; the last place takes what is not finished
    quiet            on the CPU: rewards of steps in which nothing ended, added up when they are read, in their order

Episodes that contain a sample which is not valid are not counted: their return is meaningless.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from striderl.execution.modes import Mode

Array = np.ndarray[Any, Any]

_MOST_QUIET = 4096
"""Number of quiet steps that are added up together."""


class Counts(NamedTuple):
    """The running counts; see the fields of `EpisodeStatistics`."""

    running_return: Tensor
    running_length: Tensor
    spoiled: Tensor
    returns: Tensor
    lengths: Tensor
    num_episodes: Tensor
    num_steps: Tensor


def counted(counts: Counts, reward: Tensor, done: Tensor, valid: Tensor, cut: Tensor) -> Counts:
    """Return the counts after one step, as a pure function of tensors without a device sync."""
    window = counts.returns.shape[0] - 1
    spoiled = counts.spoiled | ~valid | cut
    total = counts.running_return + torch.where(valid, reward, 0.0)
    length = counts.running_length + 1
    ended = done & ~spoiled
    place = torch.where(ended, (counts.num_episodes + ended.cumsum(0) - 1) % window, window)
    return Counts(
        running_return=torch.where(done, 0.0, total),
        running_length=torch.where(done, 0, length),
        spoiled=spoiled & ~done,
        returns=counts.returns.index_copy(0, place, total),
        lengths=counts.lengths.index_copy(0, place, length),
        num_episodes=counts.num_episodes + ended.sum(),
        num_steps=counts.num_steps + valid.sum(),
    )


OF_EPISODES = ("return_mean", "return_std", "return_min", "return_max", "length_mean")
"""The metrics that are undefined before the first episode has finished."""
_OF_WINDOW = ("episodes", "steps", *OF_EPISODES)


class EpisodeStatistics:
    """Returns and lengths of finished episodes, and the means of what the env logged."""

    def __init__(self, num_envs: int, device: torch.device, window: int = 100) -> None:
        """Keep the last `window` episodes."""
        self.window = window
        zeros = torch.zeros(num_envs, device=device)
        self._running_return, self._running_length = zeros.double(), zeros.long()
        self.spoiled = zeros.bool()
        self.returns = torch.zeros(window + 1, dtype=torch.float64, device=device)
        self.lengths = torch.zeros(window + 1, dtype=torch.int64, device=device)
        self.num_episodes = torch.zeros((), dtype=torch.int64, device=device)
        """Number of finished episodes so far."""
        self._num_steps = torch.zeros((), dtype=torch.int64, device=device)
        self.quiet_rewards: dict[tuple[int, int], list[Array]] = {}
        """Rewards of quiet steps that are not added up yet, by the rows of their envs."""
        self._logged: dict[str, tuple[Tensor, int]] = {}
        self._device = device
        self.on_cpu = device.type == "cpu"
        """Whether values are read on the host, which costs a sync elsewhere."""

    @property
    def running_return(self) -> Tensor:
        """The return so far of the episode that each env is in, float64 [N]."""
        self._add_up()
        return self._running_return

    @property
    def running_length(self) -> Tensor:
        """The length so far of the episode that each env is in, int64 [N]."""
        self._add_up()
        return self._running_length

    @property
    def num_steps(self) -> Tensor:
        """Number of valid steps so far."""
        self._add_up()
        return self._num_steps

    def update(self, rows: slice, reward: Tensor, done: Tensor, valid: Tensor, cut: Tensor) -> None:
        """Update with one step of some envs; an episode that was `cut` is not counted, although it ended."""
        if self.on_cpu:
            self._update_arrays(rows, reward.detach().numpy(), done.numpy(), valid.numpy(), cut.numpy())
            return
        before = self.counts()
        mine = before._replace(
            running_return=before.running_return[rows],
            running_length=before.running_length[rows],
            spoiled=before.spoiled[rows],
        )
        after = counted(mine, reward, done, valid, cut)
        for name in ("running_return", "running_length", "spoiled"):
            getattr(before, name)[rows] = getattr(after, name)
        for one, other in zip(before[3:], after[3:]):
            one.copy_(other)

    def counts(self) -> Counts:
        """Return the tensors that are updated in every step: the ones of this object, not copies."""
        return Counts(
            self.running_return,
            self.running_length,
            self.spoiled,
            self.returns,
            self.lengths,
            self.num_episodes,
            self.num_steps,
        )

    def update_quiet(self, rows: slice, reward: Tensor) -> None:
        """Update with one step on the CPU in which no episode ended and every sample is valid, as in most steps."""
        waiting = self.quiet_rewards.setdefault((rows.start, rows.stop), [])
        waiting.append(reward.detach().numpy().copy())  # the env may write its next rewards to the same place
        if len(waiting) * (rows.stop - rows.start) >= _MOST_QUIET:
            self._add_up()

    def _add_up(self) -> None:
        """Add up the quiet steps that wait: one after the other, so that it does not matter when."""
        for (start, stop), rewards in self.quiet_rewards.items():
            total = self._running_return.numpy()[start:stop]
            total[:] = np.add.accumulate([total, *rewards], axis=0)[-1]
            self._running_length.numpy()[start:stop] += len(rewards)
            self._num_steps += len(rewards) * (stop - start)
        self.quiet_rewards.clear()

    def _update_arrays(self, rows: slice, reward: Array, done: Array, valid: Array, cut: Array) -> None:
        """Do what `update` does on the CPU, where few envs cost less in numpy and only those that ended are visited."""
        total, length = self.running_return.numpy()[rows], self.running_length.numpy()[rows]
        spoiled = self.spoiled.numpy()[rows]
        np.add(total, reward, out=total, where=valid)
        length += 1
        np.logical_or(spoiled, cut, out=spoiled)
        np.logical_or(spoiled, ~valid, out=spoiled)
        self._num_steps += int(np.count_nonzero(valid))
        ended = done.nonzero()[0]
        counted = ended[~spoiled[ended]]
        if counted.size:
            first = int(self.num_episodes)
            place = np.arange(first, first + counted.size) % self.window
            self.returns.numpy()[place] = total[counted]
            self.lengths.numpy()[place] = length[counted]
            self.num_episodes += counted.size
        total[ended], length[ended], spoiled[ended] = 0.0, 0, False

    def restart(self, mask: Tensor) -> None:
        """Drop the episodes in progress in these envs, bool [N]: they were abandoned."""
        self.running_return.masked_fill_(mask, 0.0)
        self.running_length.masked_fill_(mask, 0)
        self.spoiled.masked_fill_(mask, False)

    def log(self, values: dict[str, Any]) -> None:
        """Add metrics logged by the env; they are averaged until the next `read`."""
        for name, value in values.items():
            total, count = self._logged.get(name, (0.0, 0))
            number = value.detach().float().mean() if isinstance(value, Tensor) else float(value)
            self._logged[name] = (total + number, count + 1)  # type: ignore[assignment]

    def read(self) -> dict[str, float]:
        """Return the means as numbers, without those over no episode; syncs with the device."""
        tensors = self.tensors()
        numbers = dict(zip(tensors, torch.stack(list(tensors.values())).tolist()))
        return numbers if numbers["episodes"] else {name: numbers[name] for name in numbers if name not in OF_EPISODES}

    def tensors(self, mode: Mode | None = None) -> dict[str, Tensor]:
        """Return the means as 0-d float64 tensors, so that they can be read together with other metrics.

        Those named in `OF_EPISODES` are NaN while no episode has finished. A graphed mode replays a captured graph.
        """
        if mode is not None and mode.records:
            numbers = mode.play(self._of_window, {}, self._of_window, self._of_window)
        else:
            numbers = self._of_window()
        result = dict(zip(_OF_WINDOW, numbers.unbind()))
        for name, (total, number) in self._logged.items():
            result[name] = torch.as_tensor(total, dtype=torch.float64, device=self._device) / number
        self._logged = {}
        return result

    def _of_window(self, nothing: object = None) -> Tensor:
        """Return the numbers named in `_OF_WINDOW`, float64."""
        count = self.num_episodes.clamp(max=self.window)
        finished = torch.arange(self.window, device=self._device) < count
        returns, lengths = self.returns[:-1], self.lengths[:-1]
        mean = torch.where(finished, returns, 0.0).sum() / count
        return torch.stack(
            [
                self.num_episodes.double(),
                self.num_steps.double(),
                mean,
                (torch.where(finished, returns - mean, 0.0).square().sum() / count).sqrt(),
                torch.where(finished, returns, torch.inf).min(),
                torch.where(finished, returns, -torch.inf).max(),
                torch.where(finished, lengths, 0).sum().double() / count,
            ]
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything exact resume needs."""
        names = ("running_return", "running_length", "spoiled", "returns", "lengths", "num_episodes", "num_steps")
        state: dict[str, Any] = {name: getattr(self, name).clone() for name in names}
        state["logged"] = {
            name: [float(total), count, isinstance(total, Tensor)] for name, (total, count) in self._logged.items()
        }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        for name in ("running_return", "running_length", "spoiled", "returns", "lengths", "num_episodes", "num_steps"):
            getattr(self, name).copy_(state[name])
        self._logged = {}
        for name, (total, count, *on_device) in state["logged"].items():
            kept = torch.tensor(total, device=self._device) if on_device != [False] else total
            self._logged[name] = (kept, int(count))
