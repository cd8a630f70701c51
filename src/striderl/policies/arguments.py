"""Arguments by name: an unknown one raises with the closest known name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any, ParamSpec

from striderl.data.naming import unknown

Parameters = ParamSpec("Parameters")


ALIASES = {"privileged_obs_segments": "critic_obs_segments"}
"""Older names of arguments; a constructor that has the newer one, and not the older, takes either."""


def as_names(names: Any, what: str) -> tuple[str, ...]:
    """Return names as a tuple; a text is one name, and anything that is not made of texts raises."""
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what} wants a sequence of names such as ('joints', 'command'), found {names!r}")
    return tuple(names)


def require_known(given: Iterable[str], known: Collection[str], *, where: str) -> None:
    """Raise TypeError for the first name that is unknown."""
    for name in given:
        if name not in known:
            raise TypeError(unknown("argument", name, known, where=where))


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names that a function, or the constructor of a class, takes."""
    called = function.__init__ if inspect.isclass(function) else function
    return tuple(name for name in inspect.signature(called).parameters if name != "self")


def explicit(init: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Make a constructor raise for an unknown argument with its known ones, instead of Python's bare TypeError."""
    names = argument_names(init)

    @functools.wraps(init)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        _rename(kwargs, names)
        require_known(kwargs, names, where=type(args[0]).__name__)
        init(*args, **kwargs)

    return checked


def missing_arguments(function: Callable[..., Any], given: Collection[str]) -> list[str]:
    """Return the arguments without a default that are not given."""
    called = function.__init__ if inspect.isclass(function) else function
    wanted = [name for name, part in inspect.signature(called).parameters.items() if part.default is part.empty]
    return [name for name in wanted if name != "self" and name not in given]


def _rename(given: dict[str, Any], names: Collection[str]) -> None:
    """Rename arguments with an older name."""
    for old, new in ALIASES.items():
        if old in given and old not in names and new in names:
            value = given.pop(old)
            if value is not None and given.get(new) is not None:
                raise ValueError(f"{new} and {old} are two names of one thing; give one of them")
            if value is not None:
                given[new] = value
