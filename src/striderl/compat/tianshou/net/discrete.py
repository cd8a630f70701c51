"""Heads for choices, and the network of the Atari DQN, with the constructors of `tianshou.utils.net.discrete`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from striderl.compat.tianshou.arrays import to_torch
from striderl.compat.tianshou.net.common import Shape, size_of


class Actor(nn.Module):
    """Probabilities of the choices, or logits with softmax_output=False."""

    def __init__(
        self, preprocess_net: nn.Module, action_shape: Shape, hidden_layer_size: int = 128, softmax_output: bool = True
    ) -> None:
        """Put one layer over the features of `preprocess_net`."""
        super().__init__()
        self.preprocess, self.softmax_output = preprocess_net, softmax_output
        self.last = nn.Linear(hidden_layer_size, size_of(action_shape))

    def forward(self, s: Any, state: Any = None, info: Any = None) -> tuple[Tensor, Any]:
        """Return (probabilities or logits [B, n], state)."""
        features, state = self.preprocess(s, state)
        logits = self.last(features)
        return (logits.softmax(dim=-1) if self.softmax_output else logits), state


class Critic(nn.Module):
    """The value of an observation, or `last_size` values."""

    def __init__(self, preprocess_net: nn.Module, hidden_layer_size: int = 128, last_size: int = 1) -> None:
        """Put one layer over the features of `preprocess_net`."""
        super().__init__()
        self.preprocess = preprocess_net
        self.last = nn.Linear(hidden_layer_size, last_size)

    def forward(self, s: Any, state: Any = None, **kwargs: Any) -> Tensor:
        """Return values [B, last_size]."""
        features, _ = self.preprocess(s, state=state)
        value: Tensor = self.last(features)
        return value


class DQN(nn.Module):
    """Three convolutions and two linear layers, for images [B, c, h, w]."""

    def __init__(self, c: int, h: int, w: int, action_shape: Shape, device: Any = "cpu") -> None:
        """Build the layers; `device` is where inputs go."""
        super().__init__()
        self.device = device
        convolutions = nn.Sequential(
            nn.Conv2d(c, 32, kernel_size=8, stride=4),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, kernel_size=3, stride=1),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        with torch.no_grad():
            features = convolutions(torch.zeros(1, c, h, w)).shape[1]
        head = [nn.Linear(features, 512), nn.ReLU(inplace=True), nn.Linear(512, size_of(action_shape))]
        self.net = nn.Sequential(*convolutions, *head)

    def forward(self, x: Any, state: Any = None, info: Any = None) -> tuple[Tensor, Any]:
        """Return (Q-values [B, n], state)."""
        return self.net(to_torch(x, device=self.device, dtype=torch.float32)), state
