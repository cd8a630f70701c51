"""Sampling rows of a replay: uniformly, or in proportion to a priority.

Random numbers come from `Draws`: float64 in [0, 1) that depend on (seed, name, number of the draw, batch size) alone,
so there is one number to save, and a GPU uses the same numbers as a CPU. They are made on the host by numpy's Philox in
blocks and moved over a block at a time; no call waits for the device.

Several processes that learn together have a shard of the experience each, and sample their part of every batch from it:

    numbers of the draw   u0 u1 u2 u3 ┃ u4 u5 u6 u7      those of one process with the whole batch
    rank 0, envs 0 … 3    ▲▲▲▲▲▲▲▲▲▲▲ ┃                  rows of its own ring
    rank 1, envs 4 … 7                ┃ ▲▲▲▲▲▲▲▲▲▲▲
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data.noise import stream_id
from striderl.ops.moments import AllReduce
from striderl.storage.replay.reader import ReplayReader
from striderl.storage.replay.ring import RingCursor
from striderl.storage.replay.sum_tree import SumTree

_BLOCK = 16384
"""Approximate number of random numbers drawn at once."""
_FEWEST = 8
"""Least number of draws in a block, however large they are: a copy to a GPU costs the same each time."""


class Draws:
    """Uniform random numbers, indexed by the number of the draw."""

    def __init__(self, name: str, *, seed: int, device: torch.device | str = "cpu") -> None:
        """Make a stream; other names and seeds give other numbers."""
        if seed < 0:
            raise ValueError(f"a seed is not negative, found {seed}")
        self.seed, self.device = seed, torch.device(device)
        self._key = np.array([seed & (2**64 - 1), stream_id(name)], np.uint64)
        self._known: tuple[int, int] = (-1, -1)
        self._host: NDArray[np.float64] = np.zeros((0, 0))
        self._moved: Tensor = torch.zeros(0)

    def host(self, number: int, count: int) -> NDArray[np.float64]:
        """Return the numbers of one draw, float64 [count], as an array; read only."""
        row = self._load(number, count)
        numbers: NDArray[np.float64] = self._host[row]
        return numbers

    def at(self, number: int, count: int) -> Tensor:
        """Return the numbers of one draw on the device, float64 [count]; read only."""
        row = self._load(number, count)
        return self._moved[row]

    def block(self, number: int, count: int) -> tuple[Any, Tensor, int]:
        """Return the block of this draw: its key, its numbers float64 [K, count] on the device, and the row."""
        row = self._load(number, count)
        return (self.seed, *self._known), self._moved, row

    def _load(self, number: int, count: int) -> int:
        length = max(_FEWEST, _BLOCK // max(1, count))
        block, row = divmod(number, length)
        if self._known != (block, count):
            generator = np.random.Generator(np.random.Philox(key=self._key, counter=np.array([0, block, count, 0])))
            self._host = generator.random((length, count))
            self._moved = torch.from_numpy(self._host)
            if self.device.type != "cpu":
                self._moved = self._moved.pin_memory().to(self.device, non_blocking=True)
            self._known = (block, count)
        return row


class NothingValidError(ValueError):
    """There are steps in a replay, and none of them is valid."""


@dataclass(frozen=True, kw_only=True)
class BatchShare:
    """The part of every batch that one of several processes samples."""

    rank: int = 0
    """The number of the process."""
    num_ranks: int = 1
    """How many there are."""
    batch_size: int
    """Samples of a batch, over all processes."""
    reduce: AllReduce | None = None
    """Sums a tensor over the processes."""

    @property
    def count(self) -> int:
        """How many samples of a batch are this process's."""
        return self.batch_size // self.num_ranks

    @property
    def first(self) -> int:
        """The number of its first sample in the batch."""
        return self.rank * self.count

    def gathered(self, number: Tensor) -> Tensor:
        """Return a 0-d tensor of every process, [num_ranks]."""
        table = torch.zeros(self.num_ranks, dtype=torch.float64, device=number.device)
        table[self.rank] = number
        return table if self.reduce is None else self.reduce(table)


@dataclass(frozen=True, slots=True)
class SampleHandle:
    """Identifies the sampled steps, so that rows overwritten since then are detected."""

    index: Tensor
    """int64 [B]."""
    number: Tensor | None
    """The number of each step in its env, int64 [B]; None when all envs were equally far."""
    total: int
    """How many steps an env had written, when all were equally far."""


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The rows that a sampler chose."""

    index: Tensor
    """int64 [B]."""
    weight: Tensor | None
    """float32 [B], or None where all steps are as likely as each other."""


class Sampler(Protocol):
    """Samples rows; is updated with new steps and with TD errors."""

    def attach(self, cursor: RingCursor, device: torch.device) -> None:
        """Prepare for a ring; called once."""
        ...

    def written(self, read: ReplayReader, first: int, count: int, valid: Any) -> None:
        """Update for new rows first … first + count - 1; `valid` is True, or bool [count]."""
        ...

    def opened(self, first: int, count: int) -> None:
        """Update for rows that hold no step any more."""
        ...

    def sample_index(self, read: ReplayReader, count: int) -> SampledRows:
        """Sample rows with replacement."""
        ...

    def update(self, index: Tensor, alive: Tensor | None, error: Tensor) -> None:
        """Update the priorities of rows from their errors; where `alive` is false the row holds another step by now."""
        ...

    @property
    def capturable(self) -> bool:
        """Whether its draws follow from the number of the sample alone, so that a CUDA graph can hold them."""
        ...

    @property
    def largest(self) -> Tensor | None:
        """The largest priority so far; None where there are no priorities."""
        ...

    def limit(self, largest: Tensor) -> None:
        """Clip priorities to this one."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything exact resume needs."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        ...

    def keep(self, alive: Tensor) -> None:
        """Drop the rows where `alive` [number of rows] is false; the random stream continues."""
        ...


class Uniform:
    """Samples every stored step with the same probability."""

    capturable = True
    largest: Tensor | None = None

    def __init__(self, *, seed: int = 0) -> None:
        """Use a random stream of its own."""
        self.seed = seed
        self.share: BatchShare | None = None
        """The part of every batch that is sampled here; None for all of it."""
        self._draw = 0
        self._draws = Draws("replay uniform", seed=seed)

    def attach(self, cursor: RingCursor, device: torch.device) -> None:
        """Draw for the device of the ring."""
        self._draws = Draws("replay uniform", seed=self.seed, device=device)

    def written(self, read: ReplayReader, first: int, count: int, valid: Any) -> None:
        """Do nothing: all stored steps are equally likely."""

    def opened(self, first: int, count: int) -> None:
        """Do nothing: rows without a step are never sampled."""

    def sample_index(self, read: ReplayReader, count: int) -> SampledRows:
        """Sample rows with replacement."""
        whole, part = _part(self.share, count)
        numbers = self._draws.host(self._draw, whole) if read.on_cpu else self._draws.at(self._draw, whole)
        self._draw += 1
        return SampledRows(read.row_of(numbers[part]), None)

    def block(self, count: int) -> tuple[Any, Tensor, int]:
        """Return the block of numbers that has the next draw, see `Draws.block`: for sampling on the device."""
        return self._draws.block(self._draw, count)

    def skip(self) -> None:
        """Advance to the next draw: the device has made this one."""
        self._draw += 1

    def update(self, index: Tensor, alive: Tensor | None, error: Tensor) -> None:
        """Raise: there is nothing to update."""
        raise TypeError("this replay picks uniformly and has no priorities; give it sampler=Prioritized(…)")

    def limit(self, largest: Tensor) -> None:
        """Do nothing: there are no priorities."""

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the next draw."""
        return {"kind": "uniform", "seed": self.seed, "draw": self._draw}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the number of the next draw."""
        _check_kind(state, "uniform")
        self._draw, self.seed = int(state["draw"]), int(state["seed"])
        self._draws = Draws("replay uniform", seed=self.seed, device=self._draws.device)

    def keep(self, alive: Tensor) -> None:
        """Do nothing: no state per row."""


class Prioritized:
    """Samples step i with probability p_i^alpha / sum p^alpha (Schaul et al. 2016).

    New steps get the largest priority seen so far, so each is sampled soon. The weight (p_min / p_i)^(alpha · beta),
    with the smallest priority of the batch as p_min, corrects the bias at beta = 1; set `beta` between updates,
    or give `beta_steps` and it goes linearly from its first value to 1 over that many samples.

    Of several processes each samples an equal part of the batch from its own shard, so step i of shard r has the
    probability p_i^alpha / (num_ranks · sum of shard r); weights are computed from these, with the smallest of all
    processes. New steps get the largest priority that any of them has seen.
    """

    capturable = False

    def __init__(
        self, *, seed: int = 0, alpha: float = 0.6, beta: float = 0.4, beta_steps: int = 0, epsilon: float = 1e-6
    ) -> None:
        """`epsilon` is added to every error, so that no step is lost for good."""
        if not 0.0 <= alpha < math.inf or not 0.0 <= beta <= 1.0 or not 0.0 < epsilon < math.inf or beta_steps < 0:
            raise ValueError(
                f"wanted alpha >= 0, 0 <= beta <= 1, epsilon > 0, beta_steps >= 0; "
                f"found {alpha}, {beta}, {epsilon}, {beta_steps}"
            )
        self.seed, self.alpha, self.beta, self.beta_steps, self.epsilon = seed, alpha, beta, beta_steps, epsilon
        self._first_beta = beta
        self.share: BatchShare | None = None
        """The part of every batch that is sampled here; None for all of it."""
        self._draw = 0
        self._draws = Draws("replay prioritized", seed=seed)
        self.tree = SumTree(1)
        """The priorities to the power alpha, one leaf per row."""
        self._largest = torch.ones((), dtype=torch.float64)
        self._on_cpu = True

    def attach(self, cursor: RingCursor, device: torch.device) -> None:
        """Make a tree with a leaf for every row."""
        self._draws = Draws("replay prioritized", seed=self.seed, device=device)
        self.tree = SumTree(cursor.rows * cursor.num_envs, device=device)
        self._largest = torch.ones((), dtype=torch.float64, device=device)
        self._on_cpu = device.type == "cpu"

    def written(self, read: ReplayReader, first: int, count: int, valid: Any) -> None:
        """Give new steps the largest priority; invalid steps get none."""
        self.tree.fill(first, count, self._largest if valid is True else self._largest * valid)

    def opened(self, first: int, count: int) -> None:
        """Set the priorities to 0."""
        self.tree.fill(first, count, 0.0)

    def sample_index(self, read: ReplayReader, count: int) -> SampledRows:
        """Sample rows with replacement; steps without a priority are never sampled."""
        empty = read.on_cpu and self.tree.is_empty()
        if self.share is not None:  # all processes sample, or none of them
            empty = bool(self.share.gathered(torch.full((), float(empty), device=read.device)).max())
        if empty:
            raise NothingValidError(
                "no step of the replay counts (`valid` is false in all of them), so none can be picked"
            )
        whole, part = _part(self.share, count)
        if self._on_cpu:
            rows, array = self.tree.pick_on_cpu(self._draws.host(self._draw, whole)[part])
            array /= np.minimum.reduce(array) if self.share is None else self._least_likely(torch.from_numpy(array))
            index, weight = torch.from_numpy(rows), torch.from_numpy((array**-self.beta).astype(np.float32))
        else:
            index, priority = self.tree.sample_index(self._draws.at(self._draw, whole)[part])
            least = priority.min() if self.share is None else self._least_likely(priority)
            weight = (priority / least).pow_(-self.beta).float()
        self._draw += 1
        if self.beta_steps:
            done = min(1.0, self._draw / self.beta_steps)
            self.beta = self._first_beta + done * (1.0 - self._first_beta)
        return SampledRows(index, weight)

    def _least_likely(self, priority: Tensor) -> Any:
        """Return the priority that the least likely sample of all processes would have in this shard."""
        assert self.share is not None
        total = self.tree.total().to(torch.float64)
        least = self.share.gathered(priority.min() / total).min() * total
        return float(least) if self._on_cpu else least

    def update(self, index: Tensor, alive: Tensor | None, error: Tensor) -> None:
        """Set the priorities of these rows to |error| + epsilon; on the CPU, errors that are not finite raise."""
        self._update(index, alive, error)
        if self.share is not None:
            self._largest.copy_(self.share.gathered(self._largest).max())

    def _update(self, index: Tensor, alive: Tensor | None, error: Tensor) -> None:
        if self._on_cpu and alive is None and error.dtype is torch.float32:
            self._update_on_cpu(index, error)
            return
        priority = error.detach().abs().double().add_(self.epsilon).pow_(self.alpha)
        if alive is not None:
            known = self.tree.leaves.index_select(0, index)
            priority = torch.where(alive & (known > 0.0), priority, known)
        largest = priority.max()
        if self._on_cpu:
            _check_finite(float(largest))
        self._largest = torch.maximum(self._largest, largest)
        self.tree.put(index, priority)

    def _update_on_cpu(self, index: Tensor, error: Tensor) -> None:
        """Do the same with numpy, at half the cost per call."""
        priority = np.abs(error.detach().numpy(), dtype=np.float64)
        priority += self.epsilon
        priority **= self.alpha
        largest = float(np.maximum.reduce(priority))
        _check_finite(largest)
        if not largest <= float(self._largest):
            self._largest.fill_(largest)
        self.tree.put_on_cpu(index.numpy(), priority)

    @property
    def largest(self) -> Tensor:
        """The largest priority so far, to the power alpha, float64 []; a copy."""
        return self._largest.clone()

    def limit(self, largest: Tensor) -> None:
        """Clip priorities to this one, the largest seen so far included."""
        self._largest.copy_(largest)
        self.tree.load(self.tree.leaves.clamp(max=self._largest))

    def state_dict(self) -> dict[str, Any]:
        """Return the priorities and the number of the next draw."""
        return {
            "kind": "prioritized",
            "seed": self.seed,
            "draw": self._draw,
            "beta": self.beta,
            "first_beta": self._first_beta,
            "largest": float(self._largest),
            "leaves": self.tree.leaves.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        _check_kind(state, "prioritized")
        self.tree.load(state["leaves"])
        self._draw, self.seed, self.beta = int(state["draw"]), int(state["seed"]), float(state["beta"])
        self._first_beta = float(state["first_beta"])
        self._largest.fill_(float(state["largest"]))
        self._draws = Draws("replay prioritized", seed=self.seed, device=self._draws.device)

    def keep(self, alive: Tensor) -> None:
        """Set the priorities of all other rows to 0; the largest seen stays."""
        self.tree.load(self.tree.leaves * alive)


def _part(share: BatchShare | None, count: int) -> tuple[int, slice]:
    """Return how many numbers a draw has over all processes, and which of them are this one's."""
    return (count, slice(None)) if share is None else (share.batch_size, slice(share.first, share.first + count))


def _check_kind(state: Mapping[str, Any], kind: str) -> None:
    if state.get("kind") != kind:
        raise ValueError(f"the saved replay picked {state.get('kind')!r}, this one picks {kind!r}")


def _check_finite(largest: float) -> None:
    """Raise for a NaN or infinite priority: nothing else would ever be sampled again."""
    if not largest < math.inf:
        raise ValueError(f"errors that become priorities must be finite, found one that gives {largest}")
