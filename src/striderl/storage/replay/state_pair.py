"""Pairs of a state and the one after it in a ring, for discriminators.

insert [n, D] ──▶ │ s s' │ s s' │ s s' │ … buffer_size rows; more than that, and the newest stay
feed_forward_generator(num_mini_batch, mini_batch_size) ──▶ (states, next_states), drawn with replacement
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.storage.replay.samplers import Draws


class StatePairBuffer:
    """A ring of (state, next state) on one device."""

    def __init__(self, obs_dim: int, buffer_size: int, device: torch.device | str = "cpu", *, seed: int = 0) -> None:
        """Allocate `buffer_size` pairs of vectors of `obs_dim` numbers."""
        if obs_dim < 1 or buffer_size < 1:
            raise ValueError(f"obs_dim and buffer_size are at least 1, found {obs_dim} and {buffer_size}")
        self.device = torch.device(device)
        self.states = torch.zeros(buffer_size, obs_dim, device=self.device)
        self.next_states = torch.zeros(buffer_size, obs_dim, device=self.device)
        self.buffer_size = buffer_size
        self.step = 0
        """The index of the next pair."""
        self.num_samples = 0
        """Number of pairs stored."""
        self._seed, self._draw = seed, 0
        self._draws = Draws("state pairs", seed=seed, device=self.device)

    def __len__(self) -> int:
        return self.num_samples

    def insert(self, states: Tensor, next_states: Tensor) -> None:
        """Append pairs, [n, obs_dim] each; of more pairs than there is room for, the newest stay."""
        wanted = self.states.shape[1]
        if states.ndim != 2 or states.shape[1] != wanted or next_states.shape != states.shape:
            shapes = f"{list(states.shape)} and {list(next_states.shape)}"
            raise ValueError(f"insert wants two tensors [n, {wanted}], found {shapes}")
        count = states.shape[0]
        kept = min(count, self.buffer_size)
        start = (self.step + count - kept) % self.buffer_size
        first = min(kept, self.buffer_size - start)
        for target, source in ((self.states, states), (self.next_states, next_states)):
            source = source.detach()[count - kept :]
            target[start : start + first] = source[:first]
            target[: kept - first] = source[first:]
        self.step = (self.step + count) % self.buffer_size
        self.num_samples = min(self.num_samples + count, self.buffer_size)

    def feed_forward_generator(self, num_mini_batch: int, mini_batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (states, next_states) [mini_batch_size, obs_dim], drawn with replacement."""
        if not self.num_samples:
            raise ValueError("the buffer is empty: insert pairs before drawing from it")
        for _ in range(num_mini_batch):
            numbers = self._draws.at(self._draw, mini_batch_size)
            self._draw += 1
            index = (numbers * self.num_samples).long()
            yield self.states.index_select(0, index), self.next_states.index_select(0, index)

    def state_dict(self) -> dict[str, Any]:
        """Return everything exact resume needs."""
        return {
            "states": self.states[: self.num_samples].clone(),
            "next_states": self.next_states[: self.num_samples].clone(),
            "buffer_size": self.buffer_size,
            "step": self.step,
            "draw": self._draw,
            "seed": self._seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another buffer of the same size."""
        rows = state["states"].shape[0]
        if state["buffer_size"] != self.buffer_size or state["states"].shape[1:] != self.states.shape[1:]:
            raise ValueError(
                f"the saved buffer has {state['buffer_size']} rows of {list(state['states'].shape[1:])}, "
                f"this one {self.buffer_size} of {list(self.states.shape[1:])}"
            )
        self.states[:rows] = state["states"].to(self.device)
        self.next_states[:rows] = state["next_states"].to(self.device)
        self.num_samples, self.step, self._draw = rows, int(state["step"]), int(state["draw"])
        self._seed = int(state["seed"])
        self._draws = Draws("state pairs", seed=self._seed, device=self.device)
