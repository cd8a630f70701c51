"""The observation and action layout of a policy as plain data, and a readable comparison of two layouts.

    {"observations": [{"name": "joints", "shape": [12], "dtype": "float32", "group": "policy", "scale": 1.0,
                       "history": 1, "low": null, "high": null, "normalized": true}, …],
     "actions": [{"name": "", "kind": "box", "shape": [12], "low": -1.0, "high": 1.0, "names": ["FL_hip", …]}]}

Two components of the same width must not change places unnoticed, so everything is an ordered list, and differences
have names: "observation 'joints' is at position 1, was at position 0".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from striderl.checkpoint.errors import CheckpointCorrupt, LayoutMismatch
from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.naming import suggestion, unknown
from striderl.data.specs import ObsSpec

Bounds = tuple[float | Sequence[float], float | Sequence[float]]
"""Low and high, one number for all entries or one per entry."""

_SECTIONS = {"observations": "observation", "actions": "action"}


def describe(
    obs: ObsSpec,
    action: ActionSpec,
    *,
    history: int | Mapping[str, int] = 1,
    normalized: Iterable[str] = (),
    bounds: Mapping[str, Bounds] | None = None,
    action_scale: float | Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return the layout of observations and actions as plain data, to be saved with a checkpoint.

    `history` is how many steps a component stacks, `normalized` names the components (or groups) that pass a
    normaliser, `bounds` gives limits of components, and `action_scale` is what the env multiplies actions by.
    """
    known = [*obs, *obs.groups]
    normalized, lengths = set(normalized), history if isinstance(history, Mapping) else {}
    for name in [*normalized, *lengths, *(bounds or {})]:
        if name not in known:
            raise KeyError(unknown("component or group", name, known, where="the observation"))
    observations = []
    for name, part in obs.items():
        low, high = (bounds or {}).get(name, (None, None))
        length = history if isinstance(history, int) else lengths.get(name, lengths.get(part.group, 1))
        observations.append(
            {
                "name": name,
                "shape": list(part.shape),
                "dtype": part.dtype,
                "group": part.group,
                "scale": float(part.scale),
                "history": int(length),
                "low": _numbers(low),
                "high": _numbers(high),
                "normalized": name in normalized or part.group in normalized,
            }
        )
    parts = action.parts.items() if isinstance(action, DictActionSpec) else [("", action)]
    actions = [{"name": name, **_action(part), "scale": _numbers(action_scale)} for name, part in parts]
    return {"observations": observations, "actions": actions}


def compare(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return every difference between two layouts as a sentence; an empty list when they are equal."""
    lines: list[str] = []
    for section, word in _SECTIONS.items():
        was, now = _by_name(saved, section), _by_name(current, section)
        lines += _renames(was, now, word)
        lines += _moves(was, now, section, word)
        for name in was:
            if name in now:
                lines += _fields(was[name], now[name], f"{word} {name!r}" if name else word)
    extra = sorted({*saved, *current} - set(_SECTIONS))
    lines += [
        f"{key} is {current.get(key)!r}, was {saved.get(key)!r}" for key in extra if saved.get(key) != current.get(key)
    ]
    return lines


def check_layout(saved: Mapping[str, Any] | None, current: Mapping[str, Any], *, where: str = "the checkpoint") -> None:
    """Raise LayoutMismatch with all differences unless a checkpoint was made for this layout."""
    if saved is None:
        raise LayoutMismatch(["it carries no layout, so nothing says what its inputs were"], where=where)
    try:
        differences = compare(saved, current)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(where, f"its layout is not one that describe() made ({error})") from None
    if differences:
        raise LayoutMismatch(differences, where=where)


def _action(spec: BoxSpec | DiscreteSpec | MultiDiscreteSpec) -> dict[str, Any]:
    if isinstance(spec, BoxSpec):
        return {
            "kind": "box",
            "shape": list(spec.shape),
            "low": _numbers(spec.low),
            "high": _numbers(spec.high),
            "names": list(spec.names),
        }
    if isinstance(spec, DiscreteSpec):
        return {"kind": "discrete", "n": int(spec.n), "mask": spec.mask}
    return {"kind": "multi_discrete", "nvec": [int(n) for n in spec.nvec], "mask": spec.mask}


def _numbers(value: float | Sequence[float] | None) -> float | list[float] | None:
    if value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value)
    numbers = [float(number) for number in value]
    # equal entries read better as one, and (1, 1) means the same as 1
    return numbers[0] if numbers and all(number == numbers[0] for number in numbers) else numbers


def _by_name(layout: Mapping[str, Any], section: str) -> dict[str, Mapping[str, Any]]:
    return {entry["name"]: entry for entry in layout.get(section, [])}


def _renames(was: Mapping[str, Any], now: Mapping[str, Any], word: str) -> list[str]:
    gone = [f"{word} {name!r} is missing. {suggestion(name, now)}".rstrip() for name in was if name not in now]
    new = [f"{word} {name!r} is new. {suggestion(name, was)}".rstrip() for name in now if name not in was]
    return gone + new


def _moves(was: Mapping[str, Any], now: Mapping[str, Any], section: str, word: str) -> list[str]:
    """Return entries that changed their place; with new and missing ones, only the order of the others counts."""
    before, after = [name for name in was if name in now], [name for name in now if name in was]
    if before == after:
        return []
    if len(before) < max(len(was), len(now)):
        return [f"the order of the {section} that both have is {after}, was {before}"]
    return [
        f"{word} {name!r} is at position {after.index(name)}, was at position {position}"
        for position, name in enumerate(before)
        if after[position] != name
    ]


def _fields(was: Mapping[str, Any], now: Mapping[str, Any], what: str) -> list[str]:
    lines = []
    for field in dict.fromkeys([*was, *now]):
        before, after = was.get(field), now.get(field)
        if before == after:
            continue
        if field == "normalized":
            lines.append(f"{what} {'is' if after else 'is not'} normalised, {'was' if before else 'was not'}")
        elif field == "names" and sorted(before or []) == sorted(after or []):
            lines.append(f"{what}: the entries are in another order: {after}, were {before}")
        else:
            lines.append(f"{what}: {field} is {after!r}, was {before!r}")
    return lines
