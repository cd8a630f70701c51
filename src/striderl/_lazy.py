"""Package `__init__`s that load nothing until a name is asked for.

An environment worker imports `striderl.envs.workers.child` and must be ready in a tenth of a second, so no package may
pull in torch on the way. Each `__init__` lists its public names once and hands them to `lazy`; type checkers read the
same names from the `TYPE_CHECKING` block above it, and a test keeps the two lists equal.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from striderl import _moved

NONE: Mapping[str, Sequence[str]] = {}


def lazy(
    package: str, modules: Mapping[str, Sequence[str]], *, unlisted: Mapping[str, Sequence[str]] = NONE
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package whose names live in the given modules.

    `unlisted` are names that the package offered once. They still work, with a warning that names their module.
    """
    home = {name: module for module, names in modules.items() for name in names}
    former = {name: module for module, names in unlisted.items() for name in names}
    public = sorted(home)

    def getattr_(name: str) -> Any:
        if name in home:
            return getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        if name in former:
            module = f"{package}.{former[name]}"
            text = f"{package} no longer offers {name}; import it from {module}, the old way will go in a later version"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module(module), name)
        if f"{package.partition('.')[2]}:{name}" in _moved.NAMES:
            return _moved.moved_name(package, name)
        from striderl.data.naming import suggestion  # `striderl.data` is itself made with this function

        raise AttributeError(
            f"module {package!r} has no attribute {name!r}. {suggestion(name, public)}It offers {', '.join(public)}"
        )

    return getattr_, lambda: public, public
