"""Envs in worker processes: nothing hangs, nothing leaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.envs.workers.errors import EnvCloseWarning as EnvCloseWarning
    from striderl.envs.workers.errors import EnvError as EnvError
    from striderl.envs.workers.errors import EnvRaised as EnvRaised
    from striderl.envs.workers.errors import EnvTimeout as EnvTimeout
    from striderl.envs.workers.errors import EnvWorkerDied as EnvWorkerDied
    from striderl.envs.workers.pool import WorkerConfig as WorkerConfig

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "errors": ["EnvCloseWarning", "EnvError", "EnvRaised", "EnvTimeout", "EnvWorkerDied"],
        "pool": ["WorkerConfig"],
    },
    unlisted={
        "pool": ["WorkerPool"],
    },
)
