"""What actors, evaluation and replay learners ask of a policy that acts: `Policy` and `ActorPolicy` both give it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from striderl.data.actions import ActionSpec
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.distributions.base import Distribution
from striderl.networks.heads.base import Head


class Acting(Protocol):
    """Turns observations into distributions of actions, with memory going in and out."""

    obs_spec: ObsSpec
    """Everything the env gives."""
    action_spec: ActionSpec
    """What the env takes."""
    head: Head[Any]
    """Makes the distribution."""

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return what one env's memory is made of."""
        ...

    def noise(self) -> dict[str, NoiseSpec]:
        """Return the random numbers that the stages want for each env and step."""
        ...

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> dict[str, Tensor]:
        """Return the memory at the start of an episode."""
        ...

    def decide(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn the noise of one step into the stages' decisions."""
        ...

    def settled(self, like: Tensor) -> dict[str, Tensor]:
        """Return the stages' decisions in deterministic inference."""
        ...

    def act(
        self,
        obs: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        stage_draws: Mapping[str, Tensor],
        resets: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Distribution[Any], dict[str, Tensor], dict[str, Tensor]]:
        """Return (distribution, state, aux) for one step [B, …] or a sequence [T, B, …]."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Return what is learned."""
        ...
