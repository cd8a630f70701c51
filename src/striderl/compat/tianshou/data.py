"""The names of `tianshou.data`: Batch, buffers, `Collector`, conversions."""

from striderl.compat.tianshou.arrays import SegmentTree, to_numpy, to_torch, to_torch_as
from striderl.compat.tianshou.collector import Collector
from striderl.data.batch import Batch
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.storage.replay_buffer.kinds import ListReplayBuffer, PrioritizedReplayBuffer, VectorReplayBuffer

__path__: list[str] = []  # Tianshou's modules data.… are below, see compat/original_paths.py

__all__ = [
    "Batch",
    "Collector",
    "ListReplayBuffer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "SegmentTree",
    "VectorReplayBuffer",
    "to_numpy",
    "to_torch",
    "to_torch_as",
]
