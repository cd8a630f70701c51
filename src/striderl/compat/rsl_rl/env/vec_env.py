"""`VecEnv`: what a runner wants of an env; any object with these attributes will do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor


class VecEnv(ABC):
    """N envs that are stepped together, with observation groups in a TensorDict."""

    num_envs: int
    """N."""
    num_actions: int
    """The size of an action."""
    max_episode_length: int | Tensor
    """The longest episode, in steps; [N] where it differs."""
    episode_length_buf: Tensor
    """[N]: the age of each episode, in steps; a runner may set it."""
    device: torch.device | str
    """Where the tensors are."""
    cfg: Any
    """The env's own config, which is logged."""

    @abstractmethod
    def get_observations(self) -> Any:
        """Return the present observations: a TensorDict of groups [N, …]."""
        raise NotImplementedError

    @abstractmethod
    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, dict[str, Any]]:
        """Apply actions [N, A]: (observations, rewards [N], dones [N], extras).

        extras: 'time_outs' [N] where the clock ended an episode; 'log' or 'episode', numbers by name.
        """
        raise NotImplementedError
