"""A slow copy of a network: what bootstrapped targets are computed with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from striderl.data import tree

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class TargetNetwork(Generic[ModuleT]):
    """A copy that follows: all at once, or a little in every step."""

    def __init__(self, source: ModuleT) -> None:
        """Copy the network as it is; the copy has no gradients."""
        self.source = source
        self.network: ModuleT = copy.deepcopy(source).requires_grad_(False)
        self._pairs = (
            [parameter.data for parameter in self.network.parameters()],
            [parameter.data for parameter in source.parameters()],
        )
        self._buffers = list(zip(self.network.buffers(), source.buffers()))

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Move the copy by the fraction tau; 1 makes it equal. Statistics of normalisers are taken as they are."""
        mine, theirs = self._pairs
        if theirs and theirs[0].data_ptr() != next(self.source.parameters()).data_ptr():
            theirs[:] = [parameter.data for parameter in self.source.parameters()]  # an updater has laid them out anew
        if tau >= 1.0:
            torch._foreach_copy_(mine, theirs)
        else:
            torch._foreach_lerp_(mine, theirs, tau)
        for copied, original in self._buffers:
            copied.copy_(original)

    def state_dict(self) -> dict[str, Any]:
        """Return the copy's weights."""
        copied: dict[str, Any] = tree.copy(dict(self.network.state_dict()))
        return copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved weights."""
        self.network.load_state_dict(state)
