"""rlpyt's replay buffers: rings [T, B] of samples, from which algorithms draw rows; sequences: `sequence_replays.py`.

    append_samples(SamplesToBuffer [t, B])          columns of the samples, at the cursor
    sample_batch(batch_B) ─▶ SamplesFromReplay      rows [batch_B]: agent_inputs, action, return_, done, done_n,
                                                    target_inputs, which lie n steps later

    ring, n = 2, cursor 5                           not drawn: the n steps before the cursor, whose targets are not
    row     0   1   2   3   4   5   6   7           there yet (3, 4), and the row at the cursor (5), whose previous
    drawn   ✓   ✓   ✓               ✓   ✓           action was overwritten. `sequences` of length L: also L rows before

`timeout` of the samples, where they have it, marks steps that nothing is learned from: the clock ended the episode, so
what followed is another one. `timeout_n` is true where such a step is among the n. Buffers are allocated where the
first samples are. Stacks of video frames are stored frame by frame, see `frames.py`. Random numbers are torch's global
ones. Priorities live in the `SumTree` of `striderl.storage`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.collect.samplers.samples import AgentInputs
from striderl.compat.rlpyt.frames import FrameStore, are_stacks
from striderl.compat.rlpyt.synchronize import RWLock
from striderl.compat.rlpyt.tensors import discount_return_n_step
from striderl.data import tree
from striderl.data.buffers import buffer_from_example, buffer_func, buffer_to, torchify_buffer
from striderl.data.named_tuples import namedarraytuple
from striderl.storage.replay.sum_tree import SumTree

__path__: list[str] = []  # rlpyt's modules replays.… are below, see compat/original_paths.py

_ROW = ["agent_inputs", "action", "return_", "done", "done_n", "target_inputs"]
_TIMEOUT = ["timeout", "timeout_n"]
SamplesFromReplay = namedarraytuple("SamplesFromReplay", _ROW)
SamplesFromReplayPri = namedarraytuple("SamplesFromReplayPri", [*_ROW, "is_weights"])
SamplesFromReplayTl = namedarraytuple("SamplesFromReplayTl", [*_ROW, *_TIMEOUT])
SamplesFromReplayTlPri = namedarraytuple("SamplesFromReplayTlPri", [*_ROW, *_TIMEOUT, "is_weights"])


class BaseReplayBuffer:
    """The methods that algorithms call."""

    async_: ClassVar[bool] = False
    """Whether a sampler may write while an algorithm draws."""

    def append_samples(self, samples: Any) -> Any:
        """Store samples, in the place of the oldest ones."""
        raise NotImplementedError

    def sample_batch(self, batch_B: int, batch_T: int | None = None) -> Any:
        """Draw a batch, of sequences where `batch_T` is given."""
        raise NotImplementedError


class NStepReturnBuffer(BaseReplayBuffer):
    """The ring, and n-step returns of what it holds; subclasses draw from it."""

    def __init__(self, example: Any, size: float, B: int, discount: float = 1, n_step_return: int = 1) -> None:
        """Make room for `size` samples, rounded up to whole rows, of the form of one example."""
        self.T, self.B = math.ceil(size / B), B
        if n_step_return + 2 > self.T:
            raise ValueError(
                f"a replay of {B} envs and {n_step_return}-step returns wants at least {(n_step_return + 2) * B} "
                f"samples, found size {size:g}"
            )
        self.size = self.T * B
        self.discount, self.n_step_return = discount, n_step_return
        self.example = example
        self.t = 0
        """The row that is written next."""
        self.full = False
        self.off_forward = 1
        """Rows from the cursor on that are not drawn in a full ring."""
        self.samples: Any = None
        self.frames: FrameStore | None = None

    def __len__(self) -> int:
        """Return how many samples are stored."""
        return self.size if self.full else self.t * self.B

    # -- writing -------------------------------------------------------------------------------------------------------

    def append_samples(self, samples: Any) -> tuple[int, Tensor]:
        """Write samples [t, B] at the cursor; return how many rows these are, and which."""
        leaves = tree.leaves(samples)
        first = torch.as_tensor(next(iter(leaves)))
        num_rows, num_envs = first.shape[:2]
        if num_envs != self.B:
            raise ValueError(f"the replay has columns for {self.B} envs, found samples of {num_envs}")
        if num_rows > self.T:
            raise ValueError(f"the replay has {self.T} rows, found samples of {num_rows} steps; give a larger size")
        if self.samples is None:
            self.frames = self._frame_store(samples, first.device)
            self._allocate(first.device)
        rows = (self.t + torch.arange(num_rows, device=first.device)) % self.T
        if self.frames is not None:
            self.frames.write(rows, samples.observation)
            samples = samples._replace(observation=None)
        self.samples[rows] = samples
        self.compute_returns(num_rows)
        self.full = self.full or self.t + num_rows >= self.T
        self.t = (self.t + num_rows) % self.T
        return num_rows, rows

    def _frame_store(self, samples: Any, device: torch.device) -> FrameStore | None:
        """Return where single frames are stored, when observations are stacks of them."""
        if not are_stacks(self.example, samples):
            return None
        shape = tuple(self.example.observation.shape)
        self.off_forward = max(1, shape[0] - 1)  # the frames before the oldest rows were overwritten
        return FrameStore(self.T, self.B, shape, device)

    def _allocate(self, device: torch.device) -> None:
        lead, example = (self.T, self.B), self.example
        example = example if self.frames is None else example._replace(observation=None)
        self.samples = buffer_to(torchify_buffer(buffer_from_example(example, lead)), device)
        self._return, self._done_n = self.samples.reward, self.samples.done
        self._timeout_n = self.samples.timeout if self.has_timeout else None
        if self.n_step_return > 1:
            self._return, self._done_n = self._return.clone(), self._done_n.clone()
            self._timeout_n = None if self._timeout_n is None else self._timeout_n.clone()

    @property
    def has_timeout(self) -> bool:
        """Whether samples mark the steps that nothing is learned from."""
        return getattr(self.example, "timeout", None) is not None

    def compute_returns(self, T: int) -> None:
        """Compute the returns of the rows for which a new row was the last of their n steps."""
        n = self.n_step_return
        if n == 1:
            return
        rows = (self.t - (n - 1) + torch.arange(T + n - 1, device=self._return.device)) % self.T
        reward, done = self.samples.reward[rows], self.samples.done[rows]
        return_, done_n = discount_return_n_step(reward, done, n, self.discount)
        into = rows[:T]
        self._return[into], self._done_n[into] = return_, done_n
        if self._timeout_n is not None:
            late, going = self.samples.timeout[rows].bool(), ~done.bool()
            found, alive = late[:T].clone(), torch.ones_like(late[:T])
            for step in range(1, n):
                alive = alive & going[step - 1 : step - 1 + T]
                found = found | (late[step : step + T] & alive)
            self._timeout_n[into] = found.to(self._timeout_n.dtype)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _choices(self, length: int = 0) -> tuple[int, int]:
        """Return the first row that may be drawn and how many follow it, for sequences of `length` rows."""
        blocked, off = self.n_step_return + length, self.off_forward
        first, count = (self.t + off, self.T - blocked - off) if self.full else (0, self.t - blocked)
        if count < 1:
            raise ValueError(
                f"nothing can be drawn yet: {len(self) // self.B} steps of each env are stored, and {blocked + 1} are "
                "wanted; raise min_steps_learn, or the size of the replay"
            )
        return first, count

    def extract_observation(self, T_idxs: Tensor, B_idxs: Tensor) -> Any:
        """Return the observations of rows and envs [batch]."""
        if self.frames is not None:
            return self.frames.read(T_idxs, B_idxs)
        return buffer_func(self.samples.observation, lambda column: column[T_idxs, B_idxs])

    def _inputs(self, T_idxs: Tensor, B_idxs: Tensor) -> Any:
        """Return what an agent gets in rows: no previous action and reward after the end of an episode."""
        s, before = self.samples, T_idxs - 1
        new = s.done[before, B_idxs].bool()

        def nulled(column: Tensor) -> Tensor:
            value = column[before, B_idxs]
            return value.masked_fill(new.view(-1, *[1] * (value.dim() - 1)), 0)

        return AgentInputs(self.extract_observation(T_idxs, B_idxs), nulled(s.action), nulled(s.reward))

    def extract_batch(self, T_idxs: Tensor, B_idxs: Tensor) -> Any:
        """Return the data of rows, and the inputs n steps later."""
        s = self.samples
        fields = {
            "agent_inputs": self._inputs(T_idxs, B_idxs),
            "action": s.action[T_idxs, B_idxs],
            "return_": self._return[T_idxs, B_idxs],
            "done": s.done[T_idxs, B_idxs],
            "done_n": self._done_n[T_idxs, B_idxs],
            "target_inputs": self._inputs((T_idxs + self.n_step_return) % self.T, B_idxs),
        }
        if self._timeout_n is None:
            return SamplesFromReplay(**fields)
        timeout_n = self._timeout_n[T_idxs, B_idxs]
        return SamplesFromReplayTl(**fields, timeout=s.timeout[T_idxs, B_idxs], timeout_n=timeout_n)


class UniformReplay:
    """Draws every sample with the same probability: `class Mine(UniformReplay, MyNStepReturnBuffer)`."""

    T: int
    B: int
    samples: Any
    extract_batch: Any
    _choices: Any

    def sample_batch(self, batch_B: int) -> Any:
        """Draw rows."""
        return self.extract_batch(*self.sample_idxs(batch_B))

    def sample_idxs(self, batch_B: int) -> tuple[Tensor, Tensor]:
        """Return the rows and envs that are drawn."""
        first, count = self._choices()
        T_idxs = (first + torch.randint(count, (batch_B,))) % self.T
        B_idxs = torch.randint(self.B, (batch_B,))
        return T_idxs.to(self.samples.reward.device), B_idxs.to(self.samples.reward.device)


class Priorities:
    """One number per row and env, of which those that may be drawn now are in a sum tree."""

    def __init__(self, rows: int, B: int, alpha: float, default: float) -> None:
        self.rows, self.B, self.alpha = rows, B, alpha
        self.values = torch.full((rows, B), default**alpha, dtype=torch.float64)
        self.tree = SumTree(rows * B)
        self.open = torch.zeros(rows, dtype=torch.bool)
        self.drawn: Tensor | None = None
        self.default = default

    def write(self, rows: Tensor, priorities: Any) -> None:
        """Set the priorities of rows, one number for all, or [B], or [rows, B]."""
        new = torch.as_tensor(self.default if priorities is None else priorities, dtype=torch.float64)
        self.values[rows] = (new.clamp(min=0) ** self.alpha).expand(len(rows), self.B)
        self._put(rows)

    def allow(self, open_rows: Tensor) -> None:
        """Let exactly these rows be drawn, bool [rows]."""
        changed = (open_rows != self.open).nonzero().flatten()
        self.open = open_rows
        self._put(changed)

    def _put(self, rows: Tensor) -> None:
        if len(rows):
            leaves = (rows[:, None] * self.B + torch.arange(self.B)).flatten()
            values = torch.where(self.open[rows][:, None], self.values[rows], 0.0)
            self.tree.put(leaves, values.flatten())

    def sample(self, count: int, unique: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, envs and the values by which they were drawn."""
        if self.tree.is_empty():
            raise ValueError("nothing can be drawn yet: no row with a priority is complete; raise min_steps_learn")
        leaves, values = self.tree.sample_index(torch.rand(count, dtype=torch.float64))
        if unique:
            leaves, values = self._distinct(leaves, values, count)
        self.drawn = leaves
        return leaves // self.B, leaves % self.B, values

    def _distinct(self, leaves: Tensor, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
        found = dict(zip(leaves.tolist(), values.tolist()))
        for _ in range(100):
            if len(found) >= count:
                break
            more, weights = self.tree.sample_index(torch.rand(count, dtype=torch.float64))
            found |= dict(zip(more.tolist(), weights.tolist()))
        else:
            raise ValueError(f"unique=True wants {count} different rows, {len(found)} can be drawn")
        chosen = list(found.items())[:count]
        return torch.tensor([leaf for leaf, _ in chosen]), torch.tensor([each for _, each in chosen])

    def update(self, priorities: Any) -> None:
        """Set the priorities of what was drawn last."""
        if self.drawn is None:
            raise RuntimeError("update_batch_priorities comes after sample_batch")
        new = torch.as_tensor(priorities).detach().cpu().double().clamp(min=0) ** self.alpha
        rows = self.drawn // self.B
        self.values.view(-1)[self.drawn] = new
        self.tree.put(self.drawn, torch.where(self.open[rows], new, 0.0))
        self.drawn = None


def importance_weights(priorities: Tensor, beta: float, device: torch.device) -> Tensor:
    """Return (1 / priority) ** beta, divided by the largest of the batch."""
    weights = (1.0 / (priorities + 1e-6)) ** beta
    return (weights / weights.max()).float().to(device)


class PrioritizedReplay:
    """Draws samples in proportion to priority ** alpha: `class Mine(PrioritizedReplay, MyNStepReturnBuffer)`."""

    T: int
    B: int
    t: int
    full: bool
    n_step_return: int
    off_forward: int
    batch_T: int | None = None  # noqa: N815  (rlpyt's name)
    samples: Any
    extract_batch: Any
    _timeout_n: Any

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.6,
        beta: float = 0.4,
        default_priority: float = 1,
        unique: bool = False,
        **kwargs: Any,
    ) -> None:
        """New samples have `default_priority`, or `samples.priorities` where these come with (priorities, samples)."""
        super().__init__(*args, **kwargs)
        self.alpha, self.beta, self.unique = alpha, beta, unique
        self.default_priority = default_priority
        self.priorities = Priorities(self.T, self.B, alpha, default_priority)

    def set_beta(self, beta: float) -> None:
        """Set how far importance weights make up for the priorities."""
        self.beta = beta

    def append_samples(self, samples: Any) -> tuple[int, Tensor]:
        """Write samples, with priorities where they have them."""
        priorities, samples = (
            (samples.priorities, samples.samples) if "priorities" in samples._fields else (None, samples)
        )
        num_rows, rows = super().append_samples(samples)  # type: ignore[misc]
        self.priorities.write(self._starts_of(rows.cpu()), priorities)
        length, off = self.n_step_return + (self.batch_T or 1) - 1, self.off_forward
        first, count = (self.t + off, self.T - length - off) if self.full else (0, self.t - length)
        open_rows = torch.zeros(self.priorities.rows, dtype=torch.bool)
        open_rows[self._starts_of((first + torch.arange(max(0, count))) % self.T)] = True
        self.priorities.allow(open_rows)
        return num_rows, rows

    def _starts_of(self, rows: Tensor) -> Tensor:
        """Return the entries of the priorities that belong to rows."""
        return rows

    def sample_batch(self, batch_B: int) -> Any:
        """Draw rows, with importance weights."""
        T_idxs, B_idxs, values = self.priorities.sample(batch_B, self.unique)
        device = self.samples.reward.device
        batch = self.extract_batch(T_idxs.to(device), B_idxs.to(device))
        kind = SamplesFromReplayPri if self._timeout_n is None else SamplesFromReplayTlPri
        return kind(*batch, is_weights=importance_weights(values, self.beta, device))

    def update_batch_priorities(self, priorities: Any) -> None:
        """Set the priorities of the last batch."""
        self.priorities.update(priorities)


class AsyncReplayBufferMixin:
    """Lets a sampler write while an algorithm draws, one at a time: `class Mine(AsyncReplayBufferMixin, MyBuffer)`."""

    async_: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the lock; the arguments are the buffer's."""
        super().__init__(*args, **kwargs)
        self.rw_lock = RWLock()

    def append_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Store samples while nobody draws."""
        with self.rw_lock.write_lock:
            return super().append_samples(*args, **kwargs)  # type: ignore[misc]

    def sample_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Draw while nobody writes."""
        with self.rw_lock:
            return super().sample_batch(*args, **kwargs)  # type: ignore[misc]

    def update_batch_priorities(self, *args: Any, **kwargs: Any) -> Any:
        """Set the priorities of the last batch while nobody writes or draws."""
        with self.rw_lock.write_lock:
            return super().update_batch_priorities(*args, **kwargs)  # type: ignore[misc]


class UniformReplayBuffer(UniformReplay, NStepReturnBuffer):
    """The ring, of which every sample is drawn with the same probability."""


class PrioritizedReplayBuffer(PrioritizedReplay, NStepReturnBuffer):
    """The ring, of which samples are drawn in proportion to priority ** alpha."""


class AsyncUniformReplayBuffer(AsyncReplayBufferMixin, UniformReplayBuffer):
    """The same for `AsyncRl`."""


class AsyncPrioritizedReplayBuffer(AsyncReplayBufferMixin, PrioritizedReplayBuffer):
    """The same for `AsyncRl`."""


# every ring takes what marks time limits, and stores stacks of frames once; rlpyt has classes for both
BaseNStepReturnBuffer = NStepTimeLimitBuffer = NStepFrameBuffer = NStepReturnBuffer
TlUniformReplayBuffer = UniformReplayFrameBuffer = UniformReplayBuffer
TlPrioritizedReplayBuffer = PrioritizedReplayFrameBuffer = PrioritizedReplayBuffer
AsyncTlUniformReplayBuffer = AsyncUniformReplayFrameBuffer = AsyncUniformReplayBuffer
AsyncTlPrioritizedReplayBuffer = AsyncPrioritizedReplayFrameBuffer = AsyncPrioritizedReplayBuffer
