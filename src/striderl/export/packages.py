"""The packages that export needs and the core does not."""

from __future__ import annotations

import importlib
from typing import Any

from striderl.data.naming import missing_extra


def require_package(name: str, *, purpose: str) -> Any:
    """Return an optional package, or raise ImportError naming the extra that brings it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(missing_extra(name, "export", purpose=purpose)) from error
