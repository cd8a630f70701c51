"""Random numbers for one group of envs, one step at a time, drawn in blocks.

Step k of an env always sees the same numbers, whatever the group, the schedule or the length of the calls: the block
number takes the place of the iteration in the key, and the position in the block that of the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from striderl.data.noise import NoiseSpec, draw_all
from striderl.execution.modes import Mode

_MANY, _MOST_AHEAD = 8192, 16
"""How many numbers, and how many blocks, are drawn at a time at most."""


class NoiseSource:
    """Draws what an actor wants for envs with these global indices."""

    def __init__(
        self,
        specs: Mapping[str, NoiseSpec],
        *,
        seed: int,
        env_index: Tensor,
        block: int = 64,
        mode: Mode | None = None,
    ) -> None:
        """Draw `block` steps at a time, of few envs on the CPU several blocks; a mode that records plays it back."""
        self.specs = dict(specs)
        self.seed = seed
        self.env_index = env_index
        self.block = block
        self._records = mode is not None and mode.records
        self._ahead = 1 if self._records or env_index.device.type != "cpu" else self._num_blocks()
        self._first = -1
        self._drawn: list[dict[str, Tensor]] = []
        self._draw = self._block if mode is None else mode.wrap(self._block)

    def _num_blocks(self) -> int:
        """Return how many blocks are drawn at a time: operations on few numbers cost the same as on some thousands."""
        numbers = sum(math.prod(spec.shape) for spec in self.specs.values()) * len(self.env_index) * self.block
        return max(1, min(_MOST_AHEAD, _MANY // max(1, numbers)))

    def at(self, step: int) -> dict[str, Tensor]:
        """Return the numbers of one step, [N, …] by name."""
        if not self.specs:
            return {}
        number, position = divmod(step, self.block * self._ahead)
        if number != self._first:
            drawn = self._draw(self._numbers(number * self._ahead))
            steps = zip(*(value.unbind(0) for value in drawn.values()))
            self._drawn = [dict(zip(drawn, step)) for step in steps]
            self._first = number  # last: an interrupt may come in between
        return self._drawn[position]

    def _numbers(self, first: int) -> range | Tensor:
        """Return the blocks from this one on; a recording reads the number of its one where it lies."""
        if self._records:
            return torch.full((), first, dtype=torch.int64, device=self.env_index.device)
        return range(first, first + self._ahead)

    @torch.no_grad()
    def _block(self, number: range | Tensor) -> dict[str, Tensor]:
        return draw_all(self.specs, seed=self.seed, iteration=number, env_index=self.env_index, num_steps=self.block)
