"""`ParameterGroup`: parameters in one block of memory, with their optimiser.

    policy parameters   [ W1 | b1 | W2 | b2 | … ]   one block of memory per group; the module's parameters are views
    gradients           [ gW1 | gb1 | …          ]   likewise: one norm, one clip, one fused optimiser call

A small network has dozens of tensors, and an optimiser that visits each spends most of its time on the way. A gradient
that is not finite changes nothing: parameters, moments and step count stay what they were, bit for bit, and the skip is
counted. The learning rate is a tensor, so a rule may change it without a device sync.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown

OPTIMIZERS = ("Adam", "AdamW", "SGD", "RMSprop")

_ONE, _LITTLE = np.float32(1.0), np.float32(1e-6)
_SQUARE_OVERFLOWS = 2.0**128 - 2.0**103
"""From here on a float32 is infinite; the square of one is exact in Python's arithmetic."""


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """How one group of parameters is optimised."""

    optimizer: str = "Adam"
    """'Adam', 'AdamW', 'SGD' or 'RMSprop'."""
    learning_rate: float = 1e-3
    """The first learning rate."""
    max_grad_norm: float = 1.0
    """The gradient is clipped to this norm; 0 means never."""
    weight_decay: float = 0.0
    """Decay of the parameters, as the optimiser understands it."""
    eps: float = 1e-8
    """Adam's epsilon."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's betas: decay rates of its two moments."""

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(unknown("optimizer", self.optimizer, OPTIMIZERS, where="GroupConfig"))
        check_field_types(self)
        if self.learning_rate < 0.0 or self.max_grad_norm < 0.0 or self.weight_decay < 0.0:
            raise ValueError(f"learning_rate, max_grad_norm and weight_decay are not negative, found {self}")
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas are in [0, 1), found {self.betas}")
        if self.betas != GroupConfig.betas and self.optimizer not in ("Adam", "AdamW"):
            raise ValueError(f"betas have no effect on {self.optimizer}; they are Adam's and AdamW's")


class FlatParameters:
    """Parameters and their gradients laid out in one block each; the module's own tensors become views."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Move the parameters into one block; references to them stay valid."""
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if not self.parameters:
            raise ValueError("a group of parameters to optimise is empty")
        kinds = sorted({f"{parameter.dtype} on {parameter.device}" for parameter in self.parameters})
        if len(kinds) > 1:
            raise ValueError(f"the parameters of one group share a dtype and a device, found {', '.join(kinds)}")
        self.flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        self.grad = torch.zeros_like(self.flat)
        sizes = [parameter.numel() for parameter in self.parameters]
        pieces = zip(self.parameters, self.flat.split_with_sizes(sizes), self.grad.split_with_sizes(sizes))
        self._views = [(values.view_as(each), grads.view_as(each)) for each, values, grads in pieces]
        for parameter, (values, grads) in zip(self.parameters, self._views):
            parameter.data, parameter.grad = values, grads

    @property
    def is_attached(self) -> bool:
        """Whether the first parameter and its gradient are in the block: where one has left, all have."""
        if not self.parameters:
            return True
        parameter, (values, grads) = self.parameters[0], self._views[0]
        return parameter.grad is grads and parameter.data_ptr() == values.data_ptr()

    def attach(self) -> None:
        """Restore gradients that `zero_grad` dropped, and raise when parameters have left the block.

        Either would silently stop learning: gradients would go where no optimiser reads them.
        """
        for parameter, (values, grads) in zip(self.parameters, self._views):
            if parameter.grad is not grads:
                parameter.grad = grads
            if parameter.data_ptr() != values.data_ptr():
                raise RuntimeError(
                    f"a parameter {list(parameter.shape)} was moved after its optimiser was made (by .to(), .double(), "
                    "an assignment to .data, a copy, or another algorithm on the same module); move or copy the module "
                    "first, then build the algorithm"
                )


def gradients_of(total: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    """Return the gradient of a number for each parameter; None for one that is frozen or has no part in it."""
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    found = iter(torch.autograd.grad(total, wanted, allow_unused=True))
    return [next(found) if parameter.requires_grad else None for parameter in parameters]


class ParameterGroup:
    """One group: its flat parameters, its optimiser, its learning rate as a tensor."""

    def __init__(self, parameters: Iterable[nn.Parameter], config: GroupConfig | None = None) -> None:
        self.config = config = config or GroupConfig()
        self.flat = FlatParameters(parameters)
        device = self.flat.flat.device
        self.learning_rate = torch.tensor(config.learning_rate, dtype=torch.float32, device=device)
        self.num_skipped = torch.zeros((), dtype=torch.int64, device=device)
        """Number of steps skipped because the gradient was not finite."""
        self._first = torch.zeros_like(self.flat.flat)
        self.second_moment = torch.zeros_like(self.flat.flat)
        self._count = torch.zeros((), dtype=torch.float32, device=device)
        # on the CPU checking the norm costs less than the work that it saves; on a GPU it would need a sync
        self.looks = (
            config.optimizer in ("Adam", "AdamW") and device.type == "cpu" and self.flat.flat.dtype is torch.float32
        )
        self._written_out = False

    def write_out(self) -> None:
        """Take steps of Adam as plain arithmetic, to be compiled: on a GPU torch's own is slow.

        Torch's fused Adam is made for many tensors and gives one of a few hundred thousand numbers to six processors.
        """
        self._written_out = self.config.optimizer in ("Adam", "AdamW")

    def changing(self) -> tuple[Tensor, ...]:
        """Return every tensor that a step changes, where it lies."""
        flat = self.flat
        return flat.flat, flat.grad, self._first, self.second_moment, self._count, self.num_skipped, self.learning_rate

    def _adam_in_place(
        self,
        flat: Tensor,
        grad: Tensor,
        first: Tensor,
        second: Tensor,
        count: Tensor,
        num_skipped: Tensor,
        rate: Tensor,
    ) -> Tensor:
        """Do what `step` does with Adam, as plain arithmetic on one block."""
        config = self.config
        norm: Tensor = torch.linalg.vector_norm(grad)
        fine = torch.isfinite(norm.square())
        if config.max_grad_norm > 0:
            grad = grad * (config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        steps = count + fine
        moved = flat
        if config.weight_decay and config.optimizer == "Adam":
            grad = grad + config.weight_decay * flat
        elif config.weight_decay:
            moved = flat - rate * config.weight_decay * flat
        beta1, beta2 = config.betas
        mean = first + (1.0 - beta1) * (grad - first)
        square = beta2 * second + (1.0 - beta2) * grad * grad
        # one step at least: before the first, both corrections would be divisions by zero
        age = steps.clamp(min=1.0)
        scale = square.sqrt() / (1.0 - beta2**age).sqrt() + config.eps
        moved = moved - rate / (1.0 - beta1**age) * mean / scale
        for place, value in ((flat, moved), (first, mean), (second, square)):
            place.copy_(torch.where(fine, value, place))
        count.copy_(steps)
        num_skipped.copy_(num_skipped + ~fine)
        return norm

    def zero_grad(self) -> None:
        """Clear the last gradient."""
        self.flat.grad.zero_()

    def set_grad(self, found: Sequence[Tensor | None]) -> None:
        """Set the gradients of the parameters, in their order; None where nothing depends on one."""
        pieces = zip(found, self.flat.parameters)
        whole = [torch.zeros_like(each).view(-1) if grad is None else grad.reshape(-1) for grad, each in pieces]
        torch.cat(whole, out=self.flat.grad)

    def step(self) -> Tensor:
        """Clip, take one step unless the gradient is not finite, and return its norm before clipping.

        A parameter that was frozen since the group was made stays where it is; its moments decay towards zero.
        """
        frozen = [parameter for parameter in self.flat.parameters if not parameter.requires_grad]
        if not frozen:
            return self._step()
        before = [parameter.detach().clone() for parameter in frozen]
        norm = self._step()
        for parameter, value in zip(frozen, before):
            parameter.detach().copy_(value)
        return norm

    def _step(self) -> Tensor:
        """Take a step of all parameters."""
        if self._written_out:
            return self._adam_in_place(*self.changing())
        grad = self.flat.grad
        norm: Tensor = torch.linalg.vector_norm(grad)
        if self.looks:
            self._step_looking(grad, norm)
            return norm
        # squared, as the optimiser will: the norm of a single number does not overflow, its second moment would
        broken = ~torch.isfinite(norm.square())
        if self.config.max_grad_norm > 0:
            grad.mul_(self._clipping(norm))
        self.num_skipped += broken
        self._optimise(grad, broken)
        return norm

    def _clipping(self, norm: Tensor) -> Tensor:
        """Return what a gradient of this norm is multiplied with."""
        return (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)

    def _step_looking(self, grad: Tensor, norm: Tensor) -> None:
        """Do what `step` does, to the bit, with a check of the norm instead of a dozen operations on single numbers."""
        length = norm.item()
        if is_broken(length):
            self.num_skipped += 1
            return
        if self.config.max_grad_norm > 0:
            # in float32, step by step as `_clipping` does it; a factor of 1 changes nothing
            factor = float(_ONE / (np.float32(length) + _LITTLE) * np.float32(self.config.max_grad_norm))
            if factor < 1.0:
                grad.mul_(factor)
        self._adam(grad, self._count.add_(1.0), None)

    def _adam(self, grad: Tensor, count: Tensor, found_inf: Tensor | None) -> None:
        config = self.config
        fused = torch._fused_adam_ if config.optimizer == "Adam" else torch._fused_adamw_
        fused(
            [self.flat.flat],
            [grad],
            [self._first],
            [self.second_moment],
            [],
            [count],
            lr=self.learning_rate,
            beta1=config.betas[0],
            beta2=config.betas[1],
            weight_decay=config.weight_decay,
            eps=config.eps,
            amsgrad=False,
            maximize=False,
            found_inf=found_inf,
        )

    def _optimise(self, grad: Tensor, broken: Tensor) -> None:
        config, flat = self.config, self.flat.flat
        if config.optimizer in ("Adam", "AdamW"):
            self._adam(grad, self._count.add_(~broken), broken.float())
            return
        decayed = grad + config.weight_decay * flat
        if config.optimizer == "RMSprop":
            second = 0.99 * self.second_moment + 0.01 * decayed.square()
            decayed = decayed / (second.sqrt() + config.eps)
            self.second_moment.copy_(torch.where(broken, self.second_moment, second))
        flat.copy_(torch.where(broken, flat, flat - self.learning_rate * decayed))
        self._count.add_(~broken)

    def state_dict(self) -> dict[str, Tensor]:
        """Return moments, step count, learning rate and the count of skipped steps."""
        return {
            "first": self._first.clone(),
            "second": self.second_moment.clone(),
            "count": self._count.clone(),
            "learning_rate": self.learning_rate.clone(),
            "num_skipped": self.num_skipped.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore saved moments."""
        if state["first"].shape != self._first.shape:
            raise ValueError(
                f"the saved optimiser has {state['first'].numel()} parameters, this group {self._first.numel()}"
            )
        self._first.copy_(state["first"])
        self.second_moment.copy_(state["second"])
        self._count.copy_(state["count"])
        self.learning_rate.copy_(state["learning_rate"])
        self.num_skipped.copy_(state["num_skipped"])


def is_broken(length: float) -> bool:
    """Return whether a gradient of this length must not be used; squared, as the optimiser will, it is not finite."""
    return not length * length < _SQUARE_OVERFLOWS
