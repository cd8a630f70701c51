"""Load some parts of a policy and leave the others, by name: encoders of another run, everything but the head.

part_names(policy)
    'actor/Encode/scan', 'actor/Remember', 'actor/body', 'actor/head', 'critic/Encode/scan', 'critic/body', …
load_parts(policy, weights, take=["actor/Encode"])               the actor's encoders, nothing else
load_parts(policy, weights, keep=["actor/Encode/scan"])          everything, but that encoder stays fresh
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from striderl.data.naming import unknown
from striderl.policies.parameter_layout import places
from striderl.policies.policy import Policy
from striderl.policies.run_reader import WEIGHTS
from striderl.policies.transfer.load import TransferError, TransferReport, WeightDifference, shape_text, write

LISTS = ("actor", "critic")
"""The lists with encoders that can be replaced."""


def part_names(policy: Policy) -> tuple[str, ...]:
    """Return the names of all parts that have weights, in order."""
    return tuple(dict.fromkeys(place.part for place in places(policy).values()))


def load_parts(
    policy: Policy, state_dict: Mapping[str, Tensor], *, take: Sequence[str] | None = None, keep: Sequence[str] = ()
) -> TransferReport:
    """Load the parts named in `take` (all when None) except those in `keep`; a name stands for what lies below it too.

    The parts that are loaded must be equal in both policies; anything else raises a table and changes nothing.
    """
    where, own = places(policy), policy.state_dict()
    names = part_names(policy)
    for wanted in [*(take or ()), *keep]:
        if not any(_below(part, [wanted]) for part in names):
            raise KeyError(unknown("part", wanted, names, where="the policy"))
    chosen = [
        name
        for name, place in where.items()
        if (take is None or _below(place.part, take)) and not _below(place.part, keep)
    ]
    differences = [
        WeightDifference(name, _shape_in(state_dict, name), shape_text(own[name]))
        for name in chosen
        if name not in state_dict or state_dict[name].shape != own[name].shape
    ]
    if differences:
        raise TransferError(differences)
    write(policy, {name: state_dict[name] for name in chosen})
    return TransferReport(
        copied=tuple(chosen),
        kept=tuple(name for name in own if name not in chosen),
        unused=tuple(name for name in state_dict if name not in chosen),
    )


def replace_encoder0(source_state_dict: Mapping[str, Any], algo_state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source's checkpoint with the actor's first encoder as `algo_state_dict` has it: untrained.

    Both are checkpoints {'model_state_dict': weights, 'iter': …, 'infos': …}. All other weights, those of the critic's
    encoders too, are the source's. Optimisers are left out, because they belong to the old encoder. Neither is changed.
    """
    for what, checkpoint in (("source_state_dict", source_state_dict), ("algo_state_dict", algo_state_dict)):
        if WEIGHTS not in checkpoint:
            raise KeyError(f"{what} is a checkpoint with the entry {WEIGHTS!r}, found {sorted(checkpoint)}")
    source, own = source_state_dict[WEIGHTS], algo_state_dict[WEIGHTS]
    fresh = _first_encoder(own)
    differences = [
        WeightDifference(name, _shape_in(source, name), shape_text(value))
        for name, value in own.items()
        if not name.startswith(fresh) and (name not in source or source[name].shape != value.shape)
    ]
    if differences:
        raise TransferError(differences)
    weights = {name: own[name] if name.startswith(fresh) else source[name] for name in own}
    others = {key: value for key, value in source_state_dict.items() if key in ("iter", "infos")}
    return {WEIGHTS: weights, **others}


_ENCODER = re.compile(r"((?:trunk|actor)\.stages\.\d+_Encode\.encoders\.[^.]+\.|encoders\.0\.)")


def _first_encoder(names: Iterable[str]) -> str:
    """Return how the names of the actor's first encoder begin."""
    names = list(names)
    for name in names:
        match = _ENCODER.match(name)
        if match:
            return match[1]
    raise KeyError(f"algo_state_dict has no encoder in its actor; it has {', '.join(names)}")


def _below(part: str, wanted: Iterable[str]) -> bool:
    return any(part == name or part.startswith(f"{name}/") for name in wanted)


def _shape_in(state_dict: Mapping[str, Tensor], name: str) -> str:
    return shape_text(state_dict[name]) if name in state_dict else "missing"
