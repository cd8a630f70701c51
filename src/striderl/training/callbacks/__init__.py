"""Callbacks of the training loop: log, evaluate, stop, save, film, show progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.training.callbacks.evaluate import Evaluate as Evaluate
    from striderl.training.callbacks.log import Log as Log
    from striderl.training.callbacks.progress import Progress as Progress
    from striderl.training.callbacks.save import Save as Save
    from striderl.training.callbacks.stop import Budget as Budget
    from striderl.training.callbacks.stop import Plateau as Plateau
    from striderl.training.callbacks.stop import Prune as Prune
    from striderl.training.callbacks.stop import Stop as Stop
    from striderl.training.callbacks.stop import Threshold as Threshold
    from striderl.training.callbacks.video import Video as Video

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "evaluate": ["Evaluate"],
        "log": ["Log"],
        "progress": ["Progress"],
        "save": ["Save"],
        "stop": ["Budget", "Plateau", "Prune", "Stop", "Threshold"],
        "video": ["Video"],
    },
    unlisted={
        "progress": ["ProgressReport"],
    },
)
