"""Checkpoints that are whole or invisible, checked before they are read, and read without running code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.checkpoint.errors import CheckpointCorrupt as CheckpointCorrupt
    from striderl.checkpoint.errors import CheckpointError as CheckpointError
    from striderl.checkpoint.errors import CheckpointMissing as CheckpointMissing
    from striderl.checkpoint.errors import CheckpointUnreadable as CheckpointUnreadable
    from striderl.checkpoint.errors import CheckpointVersion as CheckpointVersion
    from striderl.checkpoint.errors import LayoutMismatch as LayoutMismatch
    from striderl.checkpoint.foreign import read_rsl_rl as read_rsl_rl
    from striderl.checkpoint.layout import compare as compare
    from striderl.checkpoint.layout import describe as describe
    from striderl.checkpoint.state_tree import flatten as flatten
    from striderl.checkpoint.store import CheckpointStore as CheckpointStore

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "errors": [
            "CheckpointCorrupt",
            "CheckpointError",
            "CheckpointMissing",
            "CheckpointUnreadable",
            "CheckpointVersion",
            "LayoutMismatch",
        ],
        "foreign": ["read_rsl_rl"],
        "layout": ["compare", "describe"],
        "state_tree": ["flatten"],
        "store": ["CheckpointStore"],
    },
    unlisted={
        "foreign": ["ForeignNormalizer", "ForeignPolicy"],
        "layout": ["check_layout"],
        "state_tree": ["unflatten"],
        "store": ["Checkpoint"],
    },
)
