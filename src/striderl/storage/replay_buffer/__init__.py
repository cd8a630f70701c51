"""`ReplayBuffer`: steps of any nested data in a ring, indexed like an array, with Tianshou's interface."""

from __future__ import annotations

from striderl._lazy import lazy

__getattr__ = lazy(
    __name__,
    {"buffer": ["ReplayBuffer"], "kinds": ["ListReplayBuffer", "PrioritizedReplayBuffer", "VectorReplayBuffer"]},
)[0]
