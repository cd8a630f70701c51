"""Early checks of user code, before a run: config fields, overridden methods.

`check_field_types` compares the fields of a config with their annotations when it is made. `refuse_overrides` is for
public classes of which a subclass may override some methods, and where an override of the others would have no effect.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import types
import typing
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

from striderl.data.naming import unknown

ConfigT = TypeVar("ConfigT")

MAY_BE_INFINITE: Mapping[str, Any] = {"may_be_infinite": True}
"""The metadata of a field for which infinity is allowed, such as a range that is open at one end."""


def suggests_fields(config: type[ConfigT]) -> type[ConfigT]:
    """Make a keyword-only dataclass name the field that was probably meant when it is given one that it has not."""
    names = tuple(field.name for field in dataclasses.fields(config) if field.init)  # type: ignore[arg-type]
    plain = config.__init__

    @functools.wraps(plain)
    def explained(self: ConfigT, **settings: Any) -> None:
        for name in settings:
            if name not in names:
                raise TypeError(unknown("field", name, names, where=config.__name__))
        plain(self, **settings)

    config.__init__ = explained  # type: ignore[assignment]
    return config


def check_num_threads(count: int) -> None:
    """Raise ValueError for a number of threads that no machine of this kind can start; 0 leaves the choice open."""
    cores = os.cpu_count() or 1
    most = max(512, 16 * cores)  # a config that was written on a larger machine is still read
    if not 0 <= count <= most:
        raise ValueError(f"num_threads is 0 to {most} on this machine with {cores} cores, found {count}")


def check_field_types(config: Any) -> None:
    """Raise TypeError naming the first field of a dataclass whose value is not of the annotated type.

    A number that is not finite raises ValueError. Whole numbers pass for real ones; True and False are not numbers.
    Annotations other than a plain type, a tuple, a mapping or a choice between those are not checked.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not _fits(value, hints[field.name]):
            raise TypeError(
                f"{type(config).__name__}.{field.name}: wanted {_say(hints[field.name])}, "
                f"found {type(value).__name__} {value!r}"
            )
    check_finite(config)


def check_finite(config: Any, where: str = "") -> None:
    """Raise ValueError naming the first setting of a config, or of one inside it, that is NaN or infinite."""
    where = where or type(config).__name__
    for field in dataclasses.fields(config):
        infinite = bool(field.metadata.get("may_be_infinite", False))
        _check_finite(getattr(config, field.name), f"{where}.{field.name}", infinite)


def _check_finite(value: Any, where: str, infinite: bool) -> None:
    if isinstance(value, float) and (math.isnan(value) or (math.isinf(value) and not infinite)):
        raise ValueError(f"{where}: wanted a {'number' if infinite else 'finite number'}, found {value}")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        check_finite(value, where)
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            _check_finite(item, f"{where}.{number}", infinite)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _check_finite(item, f"{where}.{name}", infinite)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, choice) for choice in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and _tuple_fits(value, arguments)
    if hint is None or hint is type(None):
        return value is None
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    if hint in (bool, str, tuple, dict):
        return isinstance(value, hint)
    return isinstance(value, Mapping) if origin in (Mapping, dict) else True


def _tuple_fits(value: tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return all(_fits(item, arguments[0]) for item in value)
    return len(value) == len(arguments) and all(_fits(item, hint) for item, hint in zip(value, arguments))


def _say(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


# -- overrides ---------------------------------------------------------------------------------------------------------


_PACKAGE = __name__.partition(".")[0]


def refuse_overrides(subclass: type, refused: Mapping[str, str]) -> None:
    """Raise TypeError where a user's subclass defines something that nothing reads; `refused`: name → reason and way.

    Classes of this library may: they are written together with their callers.
    """
    if subclass.__module__.partition(".")[0] == _PACKAGE:
        return
    for name, reason in refused.items():
        if name in subclass.__dict__:
            raise TypeError(f"{subclass.__name__}.{name} would have no effect: {reason}")


def overridden(instance: Any, base: type, *names: str) -> bool:
    """Return whether one of these methods is not that of `base`: of a user's subclass, or set on the instance."""
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
