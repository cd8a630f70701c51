"""Taking a dict of settings apart, key by key, so that no key is ever overlooked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from striderl.data.naming import suggestion


class Keys:
    """One dict of a config; what nobody asked for is named at the end."""

    def __init__(self, given: Any, where: str) -> None:
        """Take a copy; anything but a mapping with text keys is an error that names the place."""
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
            raise TypeError(f"{where}: wanted a dict of settings, found {type(given).__name__} {given!r}")
        self.where = where
        self._left = dict(given)
        self._known: list[str] = []

    def __contains__(self, name: str) -> bool:
        return self._left.get(name) is not None

    def peek(self, name: str) -> Any:
        """Return a setting without crossing it off; None when it is not there."""
        return self._left.get(name)

    def take(self, name: str, default: Any = None) -> Any:
        """Return a setting and cross it off; None, which exporters of configs write for 'not set', is the default."""
        self._known.append(name)
        value = self._left.pop(name, None)
        return default if value is None else value

    def take_all(self, names: Collection[str]) -> dict[str, Any]:
        """Return those of several settings that are set."""
        found = {name: self.take(name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def part(self, name: str) -> Keys:
        """Return a dict inside, empty when it is not there."""
        return Keys(self.take(name, {}), f"{self.where}[{name!r}]")

    def rest(self) -> dict[str, Any]:
        """Return everything that is left and set, for somebody else to check."""
        found = {name: value for name, value in self._left.items() if value is not None}
        self._left = {}
        return found

    def finish(self, irrelevant: Collection[str] = ()) -> tuple[str, ...]:
        """Return the settings that are known to have no meaning here; any other that is left raises."""
        listed = tuple(name for name in self._left if name in irrelevant)
        for name, value in self._left.items():
            if name in irrelevant or value is None:
                continue
            known = sorted({*self._known, *irrelevant})
            raise KeyError(
                f"{self.where} has a setting {name!r} that no generation knows. {suggestion(name, known)}"
                f"Known: {', '.join(known)}."
            )
        return listed


def as_tuple(value: Any, where: str) -> tuple[Any, ...]:
    """Return a list or tuple as a tuple; one number or name stands for itself."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return (value,)
    raise TypeError(f"{where}: wanted a list, found {type(value).__name__} {value!r}")


def bare_class_name(name: Any, where: str) -> str:
    """Return 'PPO' for 'PPO', 'rsl_rl.algorithms.PPO' and 'rsl_rl.algorithms:PPO'."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"{where}: wanted the name of a class, found {name!r}")
    return name.rpartition(":")[2].rpartition(".")[2]
