"""`ActingPart`: what a term adds to the acting of a policy: other actions for some envs, columns, a memory of its own.

policy ─▶ distribution ─▶ sample ─▶ part ─▶ part ─▶ the actions that are executed, and whose log-prob is stored
                                     │ columns 'distill/label' …   memory 'distill/…', fresh where an episode ended
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from striderl.collect.actors import Noise, Obs
from striderl.data.arena import Columns
from striderl.data.noise import NoiseSpec
from striderl.networks.distributions.base import Distribution


class Played(NamedTuple):
    """What a part made of the actions of N envs."""

    actions: Any
    """What is executed; the given object itself where nothing is replaced."""
    state: dict[str, Tensor]
    """The part's memory after this step, [N, …] each."""
    columns: dict[str, Any]
    """What is stored with the step, in the layout of `ActingPart.columns`."""


class ActingPart(Protocol):
    """Stands between the policy's sample and the env; like an actor, it is a pure function with declared randomness."""

    @property
    def name(self) -> str:
        """Under which its columns, its noise and its memory are kept."""
        ...

    def columns(self) -> Columns:
        """Return what it stores with each step."""
        ...

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the random numbers wanted for each env and step."""
        ...

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return its memory at the start of an episode."""
        ...

    def __call__(
        self, obs: Obs, state: Mapping[str, Tensor], actions: Any, distribution: Distribution[Any], noise: Noise
    ) -> Played:
        """Replace actions, or leave them as they are; the arguments are not changed."""
        ...
