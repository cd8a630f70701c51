"""A ring of experience on tensors, and everything that reads and writes it.

replay ─▶ writer ─▶ rows ◀─ reader ◀─ views                   what a step is shown as
            │        │        └─ samplers ─ sum_tree          which steps
            └─ ring ─┘                                        where a step is
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.storage.replay.replay import Replay as Replay
    from striderl.storage.replay.replay import ReplaySample as ReplaySample
    from striderl.storage.replay.replay import View as View

__getattr__, __dir__, __all__ = lazy(__name__, {"replay": ["Replay", "ReplaySample", "View"]})
