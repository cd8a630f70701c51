"""What PPO makes of a rollout before it learns from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor


class RolloutBatch(NamedTuple):
    """A rollout with its targets, [T, N, …] each; numbers are zero in samples that are not valid."""

    columns: Mapping[str, Any]
    """What was stored."""
    act: Any
    """What was done: a tensor, or a dict of them."""
    log_prob: Tensor
    """Of the actions, when they were chosen."""
    value: Tensor
    """What the critic said when the actions were chosen, in its own units: how far it moves is counted from here."""
    returns: Tensor
    """What the critic should say; with `normalize_values` by the statistics it will be read with after the update."""
    raw_returns: Tensor
    """The returns in units of the reward, from which the normaliser of values learns."""
    advantage: Tensor
    """How much better the actions were than expected; normalised, or one per value where minibatches do that."""
    resets: Tensor
    """True where a new episode begins, before that step is consumed."""
    readable: Tensor
    """False where a sample is not valid and its observation is not finite: no network may read it."""
    info: dict[str, Tensor]
    """The info columns that terms asked for."""
    parts: dict[str, Any]
    """What the acting parts of terms stored, by term."""
    numbers: dict[str, Tensor]
    """What the terms want logged of this rollout, such as the mean of each reward they added."""
    initial_state: dict[str, Tensor]
    """The policy's memory before the first step, [N, …] each; empty when it has none."""
    labels: Mapping[str, Any] = {}
    """What terms made of the whole rollout for their losses, by term."""
