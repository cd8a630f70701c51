"""Methods of public classes that a subclass may override, and those where an override would have no effect.

class Runner:
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, {"rollout_step": "learn() steps the trainer; hand a Consumer to it"})

class Mine(Runner):
    def rollout_step(self): ...          TypeError: Mine.rollout_step would have no effect: learn() steps the trainer; …

A method that is not refused is called by the loops of this library, or by the user alone. The same holds for
attributes: what was handed on when an object was made cannot be set any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_PACKAGE = __name__.partition(".")[0]


def refuse_overrides(subclass: type, refused: Mapping[str, str]) -> None:
    """Raise TypeError where a user's subclass defines something that nothing reads; `refused`: name → reason and way.

    Classes of this library may: they are written together with what calls them.
    """
    if subclass.__module__.partition(".")[0] == _PACKAGE:
        return
    for name, reason in refused.items():
        if name in subclass.__dict__:
            raise TypeError(f"{subclass.__name__}.{name} would have no effect: {reason}")


def overridden(instance: Any, base: type, *names: str) -> bool:
    """Tell whether one of these methods is not that of `base`: of a user's subclass, or set on the instance itself."""
    return any(
        name in getattr(instance, "__dict__", {}) or getattr(type(instance), name, None) is not getattr(base, name)
        for name in names
    )


def refuse_assignment(
    owner: Any, name: str, *, parts: Collection[str] = (), settings: Collection[str] = (), way: str = ""
) -> None:
    """Raise AttributeError for an attribute that nothing would read: a setting, or a part that is there already."""
    if name in settings or (name in parts and name in owner.__dict__):
        kind = type(owner).__name__
        way = way or (f"build {kind} with other settings" if name in settings else f"build another {kind}")
        raise AttributeError(f"setting {kind}.{name} would have no effect: it is fixed when the object is made; {way}")
