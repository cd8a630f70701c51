"""The temperature α of maximum-entropy learners, and how it follows a wanted entropy.

loss = log α · mean_B (entropy of the policy - wanted entropy)        too little entropy: α grows
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from striderl.algorithms.on_policy_targets import Losses


class Temperature(nn.Module):
    """α > 0, learned as its logarithm."""

    def __init__(self, value: float) -> None:
        """Begin with this α."""
        super().__init__()
        if value <= 0.0:
            raise ValueError(f"a temperature is positive, found {value}")
        self.log_value = nn.Parameter(torch.tensor(value).log())

    def value(self) -> Tensor:
        """Return α."""
        return self.log_value.exp()

    def losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return log α times 'entropy_gap', which is how much more entropy there is than wanted."""
        return {"temperature_loss": (1.0, self.log_value * minibatch["entropy_gap"])}, {}
