"""A ring buffer of experience on tensors, with its readers and writers.

replay ─▶ writer ─▶ rows ◀─ reader ◀─ views                   what a step is shown as
            │        │        └─ samplers ─ sum_tree          which steps
            └─ ring ─┘                                        where a step is
"""

from __future__ import annotations

from striderl._lazy import lazy

__getattr__ = lazy(__name__, {"replay": ["Replay", "ReplaySample", "View"]})[0]
