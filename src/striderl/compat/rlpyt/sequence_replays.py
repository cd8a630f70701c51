"""rlpyt's replay buffers of sequences: rings [T, B] with recurrent states, for R2D1.

sample_batch(batch_B) ─▶ SequencesFromReplay    sequences [batch_T, batch_B] that start where a state is stored
    all_observation, all_action, all_reward     batch_T + n rows; actions and rewards begin one row before
    return_, done, done_n                       batch_T rows
    init_rnn_state                              [batch_B, N, H]; None where no states are stored
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.compat.rlpyt.replays import (
    AsyncReplayBufferMixin,
    NStepReturnBuffer,
    Priorities,
    PrioritizedReplay,
    importance_weights,
)
from striderl.compat.rlpyt.tensors import extract_sequences
from striderl.data.buffers import buffer_from_example, buffer_func, buffer_to, torchify_buffer
from striderl.data.named_tuples import NamedArrayTupleSchema, namedarraytuple

_TIMEOUT = ["timeout", "timeout_n"]
_SEQ = ["all_observation", "all_action", "all_reward", "return_", "done", "done_n", "init_rnn_state"]
SequencesFromReplay = namedarraytuple("SequencesFromReplay", _SEQ)
SequencesFromReplayPri = namedarraytuple("SequencesFromReplayPri", [*_SEQ, "is_weights"])
SequencesFromReplayTl = namedarraytuple("SequencesFromReplayTl", [*_SEQ, *_TIMEOUT])
SequencesFromReplayTlPri = namedarraytuple("SequencesFromReplayTlPri", [*_SEQ, *_TIMEOUT, "is_weights"])


class SequenceNStepReturnBuffer(NStepReturnBuffer):
    """The ring for sequences, which start where a recurrent state is stored: every `rnn_state_interval` rows."""

    def __init__(
        self,
        example: Any,
        size: float,
        B: int,
        rnn_state_interval: int,
        batch_T: int | None = None,
        discount: float = 1,
        n_step_return: int = 1,
    ) -> None:
        """Draw sequences of `batch_T` rows; an interval of 0 stores no states, and 1 all of them."""
        self.rnn_state_interval, self.batch_T = rnn_state_interval, batch_T
        self.interval = max(1, rnn_state_interval)
        rows = self.interval * math.ceil(math.ceil(size / B) / self.interval)
        super().__init__(example, rows * B, B, discount, n_step_return)

    def _allocate(self, device: torch.device) -> None:
        whole = self.example
        if self.rnn_state_interval:
            example = buffer_from_example(whole.prev_rnn_state, (self.T // self.interval, self.B))
            self.samples_prev_rnn_state = buffer_to(torchify_buffer(example), device)
        self.example = _without_state(whole)
        super()._allocate(device)

    def append_samples(self, samples: Any) -> tuple[int, Tensor]:
        """Write samples [t, B], and the states of the rows where sequences start."""
        num_rows, rows = super().append_samples(_without_state(samples))
        if self.rnn_state_interval:
            kept = (rows % self.interval == 0).nonzero().flatten()
            states = buffer_func(samples.prev_rnn_state, lambda column: torch.as_tensor(column)[kept])
            self.samples_prev_rnn_state[rows[kept] // self.interval] = states
        return num_rows, rows

    def extract_batch(self, T_idxs: Tensor, B_idxs: Tensor, T: int) -> Any:  # type: ignore[override]
        """Return sequences that start in these rows, with the steps that their targets want."""
        s, long = self.samples, T + self.n_step_return
        starts, envs = T_idxs.cpu().numpy(), B_idxs.cpu().numpy()
        new = s.done[T_idxs - 1, B_idxs].bool()

        def previous(column: Tensor) -> Tensor:
            """Return the rows from one before the start on; that one is null where an episode starts."""
            value: Tensor = extract_sequences(column, starts - 1, envs, long)
            value[0] = value[0].masked_fill(new.view(-1, *[1] * (value.dim() - 2)), 0)
            return value

        fields = {
            "all_observation": self.extract_observation(T_idxs, B_idxs, long),
            "all_action": previous(s.action),
            "all_reward": previous(s.reward),
            "return_": extract_sequences(self._return, starts, envs, T),
            "done": extract_sequences(s.done, starts, envs, T),
            "done_n": extract_sequences(self._done_n, starts, envs, T),
            "init_rnn_state": self._states(T_idxs, B_idxs),
        }
        if self._timeout_n is None:
            return SequencesFromReplay(**fields)
        timeout = extract_sequences(s.timeout, starts, envs, T)
        timeout_n = extract_sequences(self._timeout_n, starts, envs, T)
        return SequencesFromReplayTl(**fields, timeout=timeout, timeout_n=timeout_n)

    def extract_observation(self, T_idxs: Tensor, B_idxs: Tensor, T: int) -> Any:  # type: ignore[override]
        """Return the observations of `T` rows from each of these on, [T, batch, …]."""
        rows = (T_idxs + torch.arange(T, device=T_idxs.device).unsqueeze(1)) % self.T
        found = super().extract_observation(rows.flatten(), B_idxs.expand(T, -1).flatten())
        return buffer_func(found, lambda column: column.reshape(T, len(T_idxs), *column.shape[1:]))

    def _states(self, T_idxs: Tensor, B_idxs: Tensor) -> Any:
        if not self.rnn_state_interval:
            return None
        return self.samples_prev_rnn_state[T_idxs // self.interval, B_idxs]

    def _starts(self, length: int) -> Tensor:
        """Return the rows in which a sequence of this length may start."""
        first, count = self._choices(length - 1)
        rows = (first + np.arange(count)) % self.T
        rows = rows[rows % self.interval == 0]
        if not len(rows):
            raise ValueError(
                f"no sequence of {length} rows can be drawn yet: states are stored every {self.interval} rows; raise "
                "min_steps_learn, or the size of the replay"
            )
        return torch.from_numpy(rows)


class UniformSequenceReplay:
    """Draws every sequence with the same probability: `class Mine(UniformSequenceReplay, MySequenceBuffer)`."""

    B: int
    batch_T: int | None  # noqa: N815  (rlpyt's name)
    samples: Any
    extract_batch: Any
    _starts: Any

    def set_batch_T(self, batch_T: int) -> None:  # noqa: N802
        """Set the length of sequences."""
        self.batch_T = batch_T

    def sample_batch(self, batch_B: int, batch_T: int | None = None) -> Any:
        """Draw sequences [batch_T, batch_B]."""
        length = batch_T or self.batch_T
        if length is None:
            raise ValueError("sample_batch wants batch_T, here or when the buffer is made")
        return self.extract_batch(*self.sample_idxs(batch_B, length), length)

    def sample_idxs(self, batch_B: int, batch_T: int) -> tuple[Tensor, Tensor]:
        """Return the rows in which sequences start, and their envs."""
        starts, device = self._starts(batch_T), self.samples.reward.device
        T_idxs = starts[torch.randint(len(starts), (batch_B,))]
        return T_idxs.to(device), torch.randint(self.B, (batch_B,)).to(device)


class PrioritizedSequenceReplay(PrioritizedReplay):
    """Draws sequences in proportion to priority ** alpha; a priority belongs to the row in which a sequence starts."""

    batch_T: int  # noqa: N815  (rlpyt's name)
    interval: int

    def __init__(
        self, *args: Any, input_priorities: bool = False, input_priority_shift: int = 0, **kwargs: Any
    ) -> None:
        """With `input_priorities` samples come with them, for the starts `input_priority_shift` intervals before."""
        super().__init__(*args, **kwargs)
        if self.batch_T is None:
            raise ValueError("a replay of sequences with priorities wants batch_T, their length")
        self.input_priorities, self.input_priority_shift = input_priorities, input_priority_shift
        self.priorities = Priorities(self.T // self.interval, self.B, self.alpha, self.default_priority)

    def append_samples(self, samples: Any) -> tuple[int, Tensor]:
        """Write samples; their priorities hold for the starts `input_priority_shift` intervals before."""
        given, samples = (samples.priorities, samples.samples) if "priorities" in samples._fields else (None, samples)
        num_rows, rows = super().append_samples(samples)
        if given is not None:
            starts = rows[rows % self.interval == 0].cpu() // self.interval
            given = torch.as_tensor(given)
            given = given[(rows % self.interval == 0).cpu()] if given.dim() == 2 else given
            self.priorities.write((starts - self.input_priority_shift) % self.priorities.rows, given)
        return num_rows, rows

    def _starts_of(self, rows: Tensor) -> Tensor:
        """Return the starts of sequences among rows, by their numbers."""
        return rows[rows % self.interval == 0] // self.interval

    def sample_batch(self, batch_B: int) -> Any:
        """Draw sequences [batch_T, batch_B], with importance weights."""
        starts, envs, values = self.priorities.sample(batch_B, self.unique)
        device = self.samples.reward.device
        batch = self.extract_batch((starts * self.interval).to(device), envs.to(device), self.batch_T)
        kind = SequencesFromReplayPri if self._timeout_n is None else SequencesFromReplayTlPri
        return kind(*batch, is_weights=importance_weights(values, self.beta, device))


class UniformSequenceReplayBuffer(UniformSequenceReplay, SequenceNStepReturnBuffer):
    """The ring, of which every sequence is drawn with the same probability."""


class PrioritizedSequenceReplayBuffer(PrioritizedSequenceReplay, SequenceNStepReturnBuffer):
    """The ring, of which sequences are drawn in proportion to priority ** alpha."""


class AsyncUniformSequenceReplayBuffer(AsyncReplayBufferMixin, UniformSequenceReplayBuffer):
    """The same for `AsyncRl`."""


class AsyncPrioritizedSequenceReplayBuffer(AsyncReplayBufferMixin, PrioritizedSequenceReplayBuffer):
    """The same for `AsyncRl`."""


# every ring stores stacks of frames once; rlpyt has classes for it
SequenceNStepFrameBuffer = SequenceNStepReturnBuffer
UniformSequenceReplayFrameBuffer = UniformSequenceReplayBuffer
PrioritizedSequenceReplayFrameBuffer = PrioritizedSequenceReplayBuffer
AsyncUniformSequenceReplayFrameBuffer = AsyncUniformSequenceReplayBuffer
AsyncPrioritizedSequenceReplayFrameBuffer = AsyncPrioritizedSequenceReplayBuffer


def _without_state(samples: Any) -> Any:
    """Return samples without their recurrent states, which are stored apart."""
    fields = [name for name in samples._fields if name != "prev_rnn_state"]
    values = dict(zip(samples._fields, tuple(samples)))
    return NamedArrayTupleSchema("SamplesToBuffer", fields)(*(values[name] for name in fields))
