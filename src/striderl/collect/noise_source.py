"""Random numbers for one group of envs, one step at a time, drawn in blocks.

Step k of an env always sees the same numbers, whatever the group, the schedule or the length of the calls: the block
number takes the place of the iteration in the key, and the position in the block that of the step.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from striderl.data.noise import NoiseSpec, draw_all
from striderl.execution.modes import Mode


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
        """Draw `block` steps at a time; a mode that records plays the draw back."""
        self.specs = dict(specs)
        self.seed = seed
        self.env_index = env_index
        self.block = block
        self._number = -1
        self._drawn: list[dict[str, Tensor]] = []
        self._draw = self._block if mode is None else mode.wrap(self._block)

    def at(self, step: int) -> dict[str, Tensor]:
        """Return the numbers of one step, [N, …] by name."""
        if not self.specs:
            return {}
        number, position = divmod(step, self.block)
        if number != self._number:
            self._number = number
            drawn = self._draw(torch.full((), number, dtype=torch.int64, device=self.env_index.device))
            steps = zip(*(value.unbind(0) for value in drawn.values()))
            self._drawn = [dict(zip(drawn, step)) for step in steps]
        return self._drawn[position]

    @torch.no_grad()
    def _block(self, number: Tensor) -> dict[str, Tensor]:
        return draw_all(self.specs, seed=self.seed, iteration=number, env_index=self.env_index, num_steps=self.block)
