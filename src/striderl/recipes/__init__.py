"""Settings that learn: one file per family of tasks, functions that return a full config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.recipes.table import recipe as recipe

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "table": ["recipe"],
    },
    unlisted={
        "table": ["RECIPES"],
    },
)
