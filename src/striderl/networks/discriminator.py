"""The discriminator of adversarial motion priors (Peng et al. 2021): scores how similar a motion is to the expert's.

    motion features [.., F] ─▶ (Linear ─▶ ReLU) x n ─▶ Linear ─▶ D [..]        trained towards +1 expert, -1 policy

    style reward = coef * max(0, 1 - (D - 1)^2 / 4)        1 for the expert's score, 0 from the policy's on
    mixed reward = (1 - w) * style + w * task              w = task_reward_lerp; with w = 0 the task is ignored

It is a module of its own, with its own optimiser, learning rate and checkpoint section, and no part of any policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class AMPDiscriminator(nn.Module):
    """A ReLU network from motion features to one score.

    Shape: [..., input_dim] -> [...].
    """

    def __init__(
        self,
        input_dim: int,
        style_reward_coef: float,
        hidden_dims: Sequence[int],
        task_reward_lerp: float = 0.0,
        discriminator_grad_pen: float = 5.0,
    ) -> None:
        """Build it; `task_reward_lerp` is the weight of the task in the mixed reward, from 0 to 1."""
        super().__init__()
        sizes = [int(input_dim), *(int(size) for size in hidden_dims)]
        if min(sizes) < 1 or len(sizes) < 2:
            raise ValueError(f"AMPDiscriminator wants at least one hidden layer and one unit in each, found {sizes}")
        if not 0.0 <= task_reward_lerp <= 1.0:
            raise ValueError(
                f"task_reward_lerp is a weight from 0 (style only) to 1 (task only), found {task_reward_lerp}"
            )
        if discriminator_grad_pen < 0.0:
            raise ValueError(f"discriminator_grad_pen must not be negative, found {discriminator_grad_pen}")
        self.trunk = nn.ModuleList(nn.Linear(width, size) for width, size in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], 1)
        self.input_dim = sizes[0]
        self.style_reward_coef, self.task_reward_lerp = style_reward_coef, task_reward_lerp
        self.grad_pen = discriminator_grad_pen

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores [...] of motion features [..., input_dim]."""
        for layer in self.trunk:
            x = functional.relu(layer(x))
        score: Tensor = self.head(x)
        return score.squeeze(-1)

    def compute_grad_pen(self, expert: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return lambda * E ||dD/dx||^2 over expert features [..., input_dim], where `valid` [...] is true."""
        x = expert.detach()
        if valid is not None:
            x = torch.where(valid.unsqueeze(-1), x, 0.0)
        squared = self.slope(x).square().sum(-1)
        if valid is None:
            return self.grad_pen * squared.mean()
        return self.grad_pen * torch.where(valid, squared, 0.0).sum() / valid.sum().clamp(min=1)

    def slope(self, x: Tensor) -> Tensor:
        """Return dD/dx [..., input_dim] at features of that shape; its gradient reaches the weights.

        A ReLU network is linear around every x, so its gradient is a product of weights with the rows of inactive units
        left out. Written out, it needs no second backward pass and can be captured.
        """
        alive: list[Tensor] = []
        for layer in self.trunk:
            before: Tensor = layer(x)
            alive.append(before > 0.0)
            x = functional.relu(before)
        gradient = self.head.weight.expand(*x.shape[:-1], -1)
        for layer, active in zip(reversed(self.trunk), reversed(alive)):
            assert isinstance(layer, nn.Linear)
            gradient = torch.where(active, gradient, 0.0) @ layer.weight
        return gradient

    @torch.no_grad()
    def predict_style_reward(self, obs: Tensor, task_reward: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return (style, task, mixed) rewards [...] for motion features [..., input_dim]; no gradient flows."""
        style = self.style_reward_coef * (1.0 - 0.25 * (self(obs) - 1.0).square()).clamp(min=0.0)
        if task_reward is None:
            if self.task_reward_lerp > 0.0:
                raise ValueError(
                    f"task_reward_lerp is {self.task_reward_lerp}, so the mixed reward wants the task's; "
                    "give task_reward, or set task_reward_lerp to 0"
                )
            task_reward = torch.zeros_like(style)
        if task_reward.shape != style.shape:
            raise ValueError(f"task_reward has shape {tuple(task_reward.shape)}, the scores have {tuple(style.shape)}")
        return style, task_reward, torch.lerp(style, task_reward, self.task_reward_lerp)
