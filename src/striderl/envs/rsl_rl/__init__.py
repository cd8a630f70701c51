"""Environments written for any generation of rsl_rl, as a `VecEnv`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.envs.rsl_rl.env import RslRlEnv as RslRlEnv

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "env": [
            "RslRlEnv",
        ],
    },
)
