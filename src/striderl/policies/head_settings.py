"""From a name and settings in a config to a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec
from striderl.data.naming import unknown
from striderl.networks.heads.base import Head
from striderl.networks.heads.gaussian import GaussianHead, SquashedGaussianHead
from striderl.networks.heads.table import BetaHead, DeterministicHead, head_for
from striderl.policies.arguments import argument_names

HEADS: dict[str, type[Head[Any]]] = {
    "gaussian": GaussianHead,
    "squashed_gaussian": SquashedGaussianHead,
    "beta": BetaHead,
    "deterministic": DeterministicHead,
}
"""Heads of real-valued actions by name."""
BOUNDED = ("squashed_gaussian", "beta")
"""Heads that want the bounds of the action spec."""


def build_head(action_spec: ActionSpec, input_size: int, name: str, settings: Mapping[str, Any]) -> Head[Any]:
    """Build the head that a config describes; discrete actions have one head and take no settings."""
    if name not in HEADS:
        raise ValueError(unknown("head", name, HEADS, where="the policy config"))
    allowed = [key for key in argument_names(HEADS[name]) if key not in ("input_size", "action_size")]
    for key in settings:
        if key not in allowed:
            raise ValueError(unknown("setting", key, allowed, where=f"the {name} head"))
    parts = action_spec.parts.values() if isinstance(action_spec, DictActionSpec) else [action_spec]
    if not any(isinstance(part, BoxSpec) for part in parts):
        if settings:
            raise ValueError(f"head_settings {dict(settings)} have no effect: the action has no real-valued part")
        if name != "gaussian":  # the default, which nobody chose
            raise ValueError(f"head={name!r} has no effect: the action has no real-valued part; leave head away")

    def box(size: int, spec: BoxSpec) -> Head[Any]:
        return HEADS[name](size, spec.shape, **{**_bounds(name, spec), **settings})

    return head_for(action_spec, input_size, box=box)


def _bounds(name: str, spec: BoxSpec) -> dict[str, tuple[float, ...]]:
    """Return low and high for heads that stretch to them; a deterministic action is bounded where its spec is."""
    low, high = spec.bounds()
    finite = bool(np.isfinite(low).all() and np.isfinite(high).all())
    if name in BOUNDED or (name == "deterministic" and finite):
        return {"low": tuple(low.reshape(-1).tolist()), "high": tuple(high.reshape(-1).tolist())}
    return {}
