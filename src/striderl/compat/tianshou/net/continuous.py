"""Heads for continuous actions with the constructors of `tianshou.utils.net.continuous`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from striderl.compat.tianshou.arrays import to_torch, to_torch_as
from striderl.compat.tianshou.net.common import Shape, run_lstm, size_of


class Actor(nn.Module):
    """One action in [-max_action, max_action]."""

    def __init__(
        self,
        preprocess_net: nn.Module,
        action_shape: Shape,
        max_action: float = 1.0,
        device: Any = "cpu",
        hidden_layer_size: int = 128,
    ) -> None:
        """Put one layer over the features of `preprocess_net`."""
        super().__init__()
        self.preprocess, self.device, self._max = preprocess_net, device, max_action
        self.last = nn.Linear(hidden_layer_size, size_of(action_shape))

    def forward(self, s: Any, state: Any = None, info: Any = None) -> tuple[Tensor, Any]:
        """Return (actions [B, n], state)."""
        features, state = self.preprocess(s, state)
        return self._max * torch.tanh(self.last(features)), state


class Critic(nn.Module):
    """Q of an observation and an action, or the value of an observation alone."""

    def __init__(self, preprocess_net: nn.Module, device: Any = "cpu", hidden_layer_size: int = 128) -> None:
        """Put one layer over the features of `preprocess_net`."""
        super().__init__()
        self.preprocess, self.device = preprocess_net, device
        self.last = nn.Linear(hidden_layer_size, 1)

    def forward(self, s: Any, a: Any = None, info: Any = None) -> Tensor:
        """Return values [B, 1]."""
        s = to_torch(s, device=self.device, dtype=torch.float32).flatten(1)
        if a is not None:
            s = torch.cat([s, to_torch_as(a, s).flatten(1)], dim=1)
        features, _ = self.preprocess(s)
        value: Tensor = self.last(features)
        return value


def gaussian(mu: nn.Linear, sigma: Tensor, features: Tensor, bound: float | None) -> tuple[Tensor, Tensor]:
    """Return (mean, deviation), [B, n] each: the mean within ±bound, the deviation the same for all observations."""
    mean: Tensor = mu(features)
    mean = mean if bound is None else bound * torch.tanh(mean)
    return mean, sigma[:, 0].exp().expand_as(mean)


class ActorProb(nn.Module):
    """Mean and deviation of a normal distribution of actions."""

    def __init__(
        self,
        preprocess_net: nn.Module,
        action_shape: Shape,
        max_action: float = 1.0,
        device: Any = "cpu",
        unbounded: bool = False,
        hidden_layer_size: int = 128,
    ) -> None:
        """Put the output over the features of `preprocess_net`."""
        super().__init__()
        self.preprocess, self.device = preprocess_net, device
        self.mu = nn.Linear(hidden_layer_size, size_of(action_shape))
        self.sigma = nn.Parameter(torch.zeros(size_of(action_shape), 1))
        self._bound = None if unbounded else max_action

    def forward(self, s: Any, state: Any = None, info: Any = None) -> tuple[tuple[Tensor, Tensor], Any]:
        """Return ((mean, deviation), state)."""
        features, state = self.preprocess(s, state)
        return gaussian(self.mu, self.sigma, features, self._bound), state


class RecurrentActorProb(nn.Module):
    """`ActorProb` over an LSTM of `layer_num` layers."""

    def __init__(
        self,
        layer_num: int,
        state_shape: Shape,
        action_shape: Shape,
        max_action: float = 1.0,
        device: Any = "cpu",
        unbounded: bool = False,
        hidden_layer_size: int = 128,
    ) -> None:
        """Build the layers."""
        super().__init__()
        self.device = device
        self.nn = nn.LSTM(size_of(state_shape), hidden_layer_size, num_layers=layer_num, batch_first=True)
        self.mu = nn.Linear(hidden_layer_size, size_of(action_shape))
        self.sigma = nn.Parameter(torch.zeros(size_of(action_shape), 1))
        self._bound = None if unbounded else max_action

    def forward(self, s: Any, state: Any = None, info: Any = None) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
        """Return ((mean, deviation), memory); `s` is a step [B, …] or a stack of steps [B, T, …]."""
        s = to_torch(s, device=self.device, dtype=torch.float32)
        features, memory = run_lstm(self.nn, s.unsqueeze(-2) if s.dim() == 2 else s, state)
        return gaussian(self.mu, self.sigma, features, self._bound), memory


class RecurrentCritic(nn.Module):
    """`Critic` over an LSTM of `layer_num` layers, for stacks of steps [B, T, …]."""

    def __init__(
        self,
        layer_num: int,
        state_shape: Shape,
        action_shape: Shape = (0,),
        device: Any = "cpu",
        hidden_layer_size: int = 128,
    ) -> None:
        """Build the layers."""
        super().__init__()
        self.state_shape, self.action_shape, self.device = state_shape, action_shape, device
        self.nn = nn.LSTM(size_of(state_shape), hidden_layer_size, num_layers=layer_num, batch_first=True)
        self.fc2 = nn.Linear(hidden_layer_size + size_of(action_shape), 1)

    def forward(self, s: Any, a: Any = None, info: Any = None) -> Tensor:
        """Return values [B, 1]."""
        s = to_torch(s, device=self.device, dtype=torch.float32)
        if s.dim() != 3:
            raise ValueError(f"RecurrentCritic wants stacks of steps [B, T, …], found {list(s.shape)}; set stack_num")
        features, _ = run_lstm(self.nn, s, None)
        if a is not None:
            features = torch.cat([features, to_torch_as(a, features)], dim=1)
        value: Tensor = self.fc2(features)
        return value
