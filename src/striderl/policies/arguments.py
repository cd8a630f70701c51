"""Arguments by name: an unknown one raises and says what was probably meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any, ParamSpec

from striderl.data.naming import unknown

Parameters = ParamSpec("Parameters")


def require_known(given: Iterable[str], known: Collection[str], *, where: str) -> None:
    """Raise TypeError for the first name that is not known."""
    for name in given:
        if name not in known:
            raise TypeError(unknown("argument", name, known, where=where))


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names that a function, or the constructor of a class, takes."""
    called = function.__init__ if inspect.isclass(function) else function
    return tuple(name for name in inspect.signature(called).parameters if name != "self")


def explicit(init: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Let a constructor answer an unknown argument with its known ones, instead of Python's bare TypeError."""
    names = argument_names(init)

    @functools.wraps(init)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        require_known(kwargs, names, where=type(args[0]).__name__)
        init(*args, **kwargs)

    return checked
