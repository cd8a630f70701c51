"""Any Gymnasium env, N copies of it, in process or in worker processes, as a `VecEnv`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.envs.gymnasium.env import GymnasiumEnv as GymnasiumEnv

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "env": [
            "GymnasiumEnv",
        ],
    },
)
