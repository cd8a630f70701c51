"""Experience that was recorded before: filled replays, and their folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.datasets.offline import all_steps as all_steps
    from striderl.datasets.offline import dataset_about as dataset_about
    from striderl.datasets.offline import load_dataset as load_dataset
    from striderl.datasets.offline import replay_of as replay_of
    from striderl.datasets.offline import save_dataset as save_dataset

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "offline": [
            "all_steps",
            "dataset_about",
            "load_dataset",
            "replay_of",
            "save_dataset",
        ],
    },
)
