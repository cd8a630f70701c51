"""Names: suggestions in error messages, and the names that parts are saved under."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


def suggestion(name: str, choices: Iterable[str]) -> str:
    """Return "Did you mean 'x'? " for the nearest choice, or an empty string when nothing is near."""
    by_lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"Did you mean {by_lower[near[0]]!r}? " if near else ""


def unknown(kind: str, name: str, choices: Iterable[str], *, where: str) -> str:
    """Compose the message for a name that is not among the choices."""
    choices = list(choices)
    listed = ", ".join(repr(choice) for choice in choices) if choices else "nothing"
    return f"{where} has no {kind} {name!r}. {suggestion(name, choices)}Available: {listed}."


def missing_extra(package: str, extra: str, *, purpose: str) -> str:
    """Compose the message for an optional package that is not installed, with the command that installs it."""
    clone = Path(__file__).resolve().parents[3]
    install = f"-e '{clone}[{extra}]'" if (clone / "pyproject.toml").is_file() else f"'striderl[{extra}]'"
    return f"{purpose} needs the package '{package}', which is not installed. Run: pip install {install}"


def saved_name(part: object) -> str:
    """Return the name under which the state of a part is saved: the `SAVED_NAME` of its class, else the class name.

    A name on disk is data. A class of this library sets `SAVED_NAME`, so that renaming the class leaves checkpoints and
    random streams as they are. A subclass does not inherit it: its state is another one.
    """
    return str(vars(type(part)).get("SAVED_NAME", type(part).__name__))


class AssertedValueError(ValueError, AssertionError):
    """A value that cannot be used, where programs written for Tianshou expect an AssertionError."""


class AssertedTypeError(TypeError, AssertionError):
    """A type that cannot be used, where programs written for Tianshou expect an AssertionError."""
