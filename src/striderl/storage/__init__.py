"""Experience in memory: time-major rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.storage.minibatches import get_minibatch_from_indices as get_minibatch_from_indices
    from striderl.storage.minibatches import get_statistics as get_statistics
    from striderl.storage.minibatches import mini_batch_generator as mini_batch_generator
    from striderl.storage.minibatches import recurrent_mini_batch_generator as recurrent_mini_batch_generator
    from striderl.storage.queue_rollout import QueueRolloutStorage as QueueRolloutStorage
    from striderl.storage.rollout import FinalPool as FinalPool
    from striderl.storage.rollout import RolloutStorage as RolloutStorage
    from striderl.storage.rollout_presets import ActionLabelRollout as ActionLabelRollout
    from striderl.storage.rollout_presets import AmpRolloutStorage as AmpRolloutStorage
    from striderl.storage.rollout_presets import SarsaRolloutStorage as SarsaRolloutStorage
    from striderl.storage.transition_record import TransitionRecord as TransitionRecord

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "minibatches": [
            "get_minibatch_from_indices",
            "get_statistics",
            "mini_batch_generator",
            "recurrent_mini_batch_generator",
        ],
        "queue_rollout": [
            "QueueRolloutStorage",
        ],
        "rollout": [
            "FinalPool",
            "RolloutStorage",
        ],
        "rollout_presets": [
            "ActionLabelRollout",
            "AmpRolloutStorage",
            "SarsaRolloutStorage",
        ],
        "transition_record": [
            "TransitionRecord",
        ],
    },
)
