"""Old calling styles as thin facades over the core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.compat.ppo import PPO as PPO

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "ppo": [
            "PPO",
        ],
    },
)
