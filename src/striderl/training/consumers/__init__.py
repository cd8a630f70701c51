"""What is done with the records of a run: log, evaluate, stop, save, show progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.training.consumers.evaluate import Evaluate as Evaluate
    from striderl.training.consumers.log import Log as Log
    from striderl.training.consumers.progress import Progress as Progress
    from striderl.training.consumers.progress import ProgressReport as ProgressReport
    from striderl.training.consumers.save import Save as Save
    from striderl.training.consumers.stop import Stop as Stop
    from striderl.training.consumers.stop_rules import Budget as Budget
    from striderl.training.consumers.stop_rules import Plateau as Plateau
    from striderl.training.consumers.stop_rules import Prune as Prune
    from striderl.training.consumers.stop_rules import Threshold as Threshold
    from striderl.training.consumers.video import Video as Video

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "evaluate": [
            "Evaluate",
        ],
        "log": [
            "Log",
        ],
        "progress": [
            "Progress",
            "ProgressReport",
        ],
        "save": [
            "Save",
        ],
        "stop": [
            "Stop",
        ],
        "stop_rules": [
            "Budget",
            "Plateau",
            "Prune",
            "Threshold",
        ],
        "video": [
            "Video",
        ],
    },
)
