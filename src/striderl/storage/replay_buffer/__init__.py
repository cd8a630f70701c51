"""`ReplayBuffer`: steps of any nested data in a ring, indexed like an array, in the words of Tianshou."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.storage.replay_buffer.buffer import ReplayBuffer as ReplayBuffer
    from striderl.storage.replay_buffer.kinds import ListReplayBuffer as ListReplayBuffer
    from striderl.storage.replay_buffer.kinds import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from striderl.storage.replay_buffer.kinds import VectorReplayBuffer as VectorReplayBuffer

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {"buffer": ["ReplayBuffer"], "kinds": ["ListReplayBuffer", "PrioritizedReplayBuffer", "VectorReplayBuffer"]},
)
