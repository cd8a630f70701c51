"""Random numbers for one group of envs, one step at a time, drawn in blocks.

Step k of an env always sees the same numbers, whatever the group, the schedule or the length of the calls: the block
number takes the place of the iteration in the key, and the position in the block that of the step.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from striderl.data.noise import NoiseSpec, draw_all


class NoiseSource:
    """Draws what an actor wants for envs with these global indices."""

    def __init__(self, specs: Mapping[str, NoiseSpec], *, seed: int, env_index: Tensor, block: int = 64) -> None:
        """Draw `block` steps at a time."""
        self.specs = dict(specs)
        self.seed = seed
        self.env_index = env_index
        self.block = block
        self._number = -1
        self._drawn: list[dict[str, Tensor]] = []

    def at(self, step: int) -> dict[str, Tensor]:
        """Return the numbers of one step, [N, …] by name."""
        if not self.specs:
            return {}
        number, position = divmod(step, self.block)
        if number != self._number:
            self._number = number
            with torch.no_grad():
                drawn = draw_all(
                    self.specs, seed=self.seed, iteration=number, env_index=self.env_index, num_steps=self.block
                )
            steps = zip(*(value.unbind(0) for value in drawn.values()))
            self._drawn = [dict(zip(drawn, step)) for step in steps]
        return self._drawn[position]
