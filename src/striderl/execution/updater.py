"""`Updater`: runs gradient steps on flat parameters, safely.

    policy parameters   [ W1 | b1 | W2 | b2 | … ]   one block of memory per group; the module's parameters are views
    gradients           [ gW1 | gb1 | …          ]   likewise: one norm, one clip, one fused optimiser call

A small network has dozens of tensors, and an optimiser that visits each spends most of its time on the way. A gradient
that is not finite changes nothing: parameters, moments and step count stay what they were, bit for bit, and the skip is
counted. The learning rate is a tensor, so a rule may move it without asking the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from striderl.data.naming import unknown

OPTIMIZERS = ("Adam", "AdamW", "SGD", "RMSprop")


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """How one group of parameters is optimised."""

    optimizer: str = "Adam"
    """'Adam', 'AdamW', 'SGD' or 'RMSprop'."""
    learning_rate: float = 1e-3
    """The first learning rate."""
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this norm; 0 means never."""
    weight_decay: float = 0.0
    """Decay of the parameters, as the optimiser understands it."""
    eps: float = 1e-8
    """Adam's epsilon."""

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(unknown("optimizer", self.optimizer, OPTIMIZERS, where="GroupConfig"))


class FlatParameters:
    """Parameters and their gradients laid out in one block each; the module's own tensors become views."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Move the parameters; whoever held them sees the same values."""
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if not self.parameters:
            raise ValueError("a group of parameters to optimise is empty")
        self.flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        self.grad = torch.zeros_like(self.flat)
        start = 0
        for parameter in self.parameters:
            stop = start + parameter.numel()
            parameter.data = self.flat[start:stop].view_as(parameter)
            parameter.grad = self.grad[start:stop].view_as(parameter)
            start = stop


class ParameterGroup:
    """One group: its flat parameters, its optimiser, its learning rate as a tensor."""

    def __init__(self, parameters: Iterable[nn.Parameter], config: GroupConfig | None = None) -> None:
        self.config = config = config or GroupConfig()
        self.flat = FlatParameters(parameters)
        device = self.flat.flat.device
        self.learning_rate = torch.tensor(config.learning_rate, dtype=torch.float32, device=device)
        self.num_skipped = torch.zeros((), dtype=torch.int64, device=device)
        """How many steps were skipped because the gradient was not finite."""
        self._first = torch.zeros_like(self.flat.flat)
        self._second = torch.zeros_like(self.flat.flat)
        self._count = torch.zeros((), dtype=torch.float32, device=device)

    def zero_grad(self) -> None:
        """Forget the last gradient."""
        self.flat.grad.zero_()

    def step(self) -> Tensor:
        """Clip, take one step unless the gradient is not finite, and return its norm before clipping."""
        grad = self.flat.grad
        norm: Tensor = torch.linalg.vector_norm(grad)
        broken = ~torch.isfinite(norm)
        if self.config.max_grad_norm > 0:
            grad.mul_((self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self.num_skipped += broken
        self._optimise(grad, broken)
        return norm

    def _optimise(self, grad: Tensor, broken: Tensor) -> None:
        config, flat = self.config, self.flat.flat
        if config.optimizer in ("Adam", "AdamW"):
            fused = torch._fused_adam_ if config.optimizer == "Adam" else torch._fused_adamw_
            fused(
                [flat],
                [grad],
                [self._first],
                [self._second],
                [],
                [self._count.add_(~broken)],
                lr=self.learning_rate,
                beta1=0.9,
                beta2=0.999,
                weight_decay=config.weight_decay,
                eps=config.eps,
                amsgrad=False,
                maximize=False,
                found_inf=broken.float(),
            )
            return
        decayed = grad + config.weight_decay * flat
        if config.optimizer == "RMSprop":
            second = 0.99 * self._second + 0.01 * decayed.square()
            decayed = decayed / (second.sqrt() + config.eps)
            self._second.copy_(torch.where(broken, self._second, second))
        flat.copy_(torch.where(broken, flat, flat - self.learning_rate * decayed))
        self._count.add_(~broken)

    def state_dict(self) -> dict[str, Tensor]:
        """Return moments, step count, learning rate and the count of skipped steps."""
        return {
            "first": self._first.clone(),
            "second": self._second.clone(),
            "count": self._count.clone(),
            "learning_rate": self.learning_rate.clone(),
            "num_skipped": self.num_skipped.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with saved moments."""
        if state["first"].shape != self._first.shape:
            raise ValueError(
                f"the saved optimiser has {state['first'].numel()} parameters, this group {self._first.numel()}"
            )
        self._first.copy_(state["first"])
        self._second.copy_(state["second"])
        self._count.copy_(state["count"])
        self.learning_rate.copy_(state["learning_rate"])
        self.num_skipped.copy_(state["num_skipped"])


class Updater:
    """Takes gradient steps on several groups of parameters together."""

    def __init__(self, groups: Mapping[str, ParameterGroup]) -> None:
        self.groups = dict(groups)

    def step(self, losses: Mapping[str, tuple[float | Tensor, Tensor]]) -> dict[str, Tensor]:
        """Add the weighted losses up, go backward, step every group; return the norms of the gradients by group."""
        total = torch.stack([weight * loss for weight, loss in losses.values()]).sum()
        for group in self.groups.values():
            group.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        return {name: group.step() for name, group in self.groups.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every group."""
        return {name: group.state_dict() for name, group in self.groups.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the saved state of every group."""
        if state.keys() != self.groups.keys():
            raise ValueError(f"saved groups {sorted(state)} are not this updater's {sorted(self.groups)}")
        for name, group in self.groups.items():
            group.load_state_dict(state[name])
