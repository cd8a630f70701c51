"""The discriminator with its normaliser and the policy samples that it remembers: everything that is saved.

raw features ─▶ normalise, zeros where they do not count ─▶ network ─▶ score
earlier          ring of raw policy features, the newest `replay_size` of them
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from striderl.algorithms.terms.adversarial_config import AdversarialConfig
from striderl.networks.discriminator import AMPDiscriminator
from striderl.networks.mlp import MlpModel
from striderl.networks.normalizers import Normalizer
from striderl.ops.imitation import distance_from_slope, squared_slope


class Judge(nn.Module):
    """The discriminator, its normaliser and earlier policy samples: everything that is saved."""

    def __init__(self, size: int, config: AdversarialConfig, network: nn.Module | None) -> None:
        super().__init__()
        self.network = network or MlpModel(size, config.hidden_dims, 1, config.activation)
        self.normalizer = Normalizer(size)
        rows = config.replay_size
        self.earlier: Tensor
        self.earlier_ended: Tensor
        self.num_earlier: Tensor
        self.num_absorbed: Tensor
        self.register_buffer("earlier", torch.zeros(rows, size))
        self.register_buffer("earlier_ended", torch.zeros(rows, dtype=torch.bool))
        self.register_buffer("num_earlier", torch.zeros((), dtype=torch.int64))
        self.register_buffer("num_absorbed", torch.zeros((), dtype=torch.int64))

    def seen(self, raw: Tensor, counts: Tensor) -> Tensor:
        """Return normalised features [..., F]; zeros where they do not count, which may hold NaN."""
        seen: Tensor = self.normalizer(torch.where(counts.unsqueeze(-1), raw, 0.0))
        return torch.where(counts.unsqueeze(-1), seen, 0.0)

    def score(self, seen: Tensor) -> Tensor:
        """Return scores [...] of normalised features [..., F]."""
        score: Tensor = self.network(seen)
        return score.squeeze(-1) if score.dim() == seen.dim() else score

    def slope_penalty(self, at: Tensor, wanted: float) -> Tensor:
        """Return (|d score/dx| - wanted)² at normalised features [B, F]; its gradient reaches the network."""
        if isinstance(self.network, AMPDiscriminator):
            return distance_from_slope(self.network.slope(at.detach()), wanted)  # written out: no second backward pass
        return squared_slope(self.score, at, wanted)

    def keep(self, rows: Tensor, ended: Tensor, counts: Tensor) -> None:
        """Write rows [n, F] that count over the oldest; static shapes, so that no value has to come to the host."""
        size = self.earlier.shape[0]
        rows, ended, counts = rows[-size:], ended[-size:], counts[-size:]
        place = self.num_earlier + counts.cumsum(0) - 1
        # a row that does not count is written to a place behind the ring, which is cut off
        index = torch.where(counts, place % size, size)
        self.earlier.copy_(torch.cat([self.earlier, rows[:1]]).index_copy(0, index, rows)[:size])
        self.earlier_ended.copy_(torch.cat([self.earlier_ended, ended[:1]]).index_copy(0, index, ended)[:size])
        self.num_earlier += counts.sum()

    def draw_earlier(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (rows [B, F], ended [B], counts [B]) for uniform numbers [B]; none count while there are none."""
        there = self.num_earlier.clamp(max=self.earlier.shape[0])
        index = (numbers * there).long()
        counts = (there > 0).expand(len(numbers))
        return self.earlier.index_select(0, index), self.earlier_ended.index_select(0, index), counts
