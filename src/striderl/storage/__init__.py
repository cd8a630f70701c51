"""Experience in memory: time-major rollouts, and replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.storage.minibatches import get_minibatch_from_indices as get_minibatch_from_indices
    from striderl.storage.minibatches import get_statistics as get_statistics
    from striderl.storage.minibatches import mini_batch_generator as mini_batch_generator
    from striderl.storage.minibatches import recurrent_mini_batch_generator as recurrent_mini_batch_generator
    from striderl.storage.pickers import Picker as Picker
    from striderl.storage.pickers import Prioritized as Prioritized
    from striderl.storage.pickers import Ticket as Ticket
    from striderl.storage.pickers import Uniform as Uniform
    from striderl.storage.queue_rollout import QueueRolloutStorage as QueueRolloutStorage
    from striderl.storage.replay import Replay as Replay
    from striderl.storage.replay import ReplaySample as ReplaySample
    from striderl.storage.replay import View as View
    from striderl.storage.replay_buffer import ReplayBuffer as ReplayBuffer
    from striderl.storage.replay_buffer_kinds import ListReplayBuffer as ListReplayBuffer
    from striderl.storage.replay_buffer_kinds import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from striderl.storage.replay_buffer_kinds import VectorReplayBuffer as VectorReplayBuffer
    from striderl.storage.replay_reader import ReplayReader as ReplayReader
    from striderl.storage.rollout import FinalPool as FinalPool
    from striderl.storage.rollout import RolloutStorage as RolloutStorage
    from striderl.storage.rollout_presets import ActionLabelRollout as ActionLabelRollout
    from striderl.storage.rollout_presets import AmpRolloutStorage as AmpRolloutStorage
    from striderl.storage.rollout_presets import SarsaRolloutStorage as SarsaRolloutStorage
    from striderl.storage.state_pair import StatePairBuffer as StatePairBuffer
    from striderl.storage.sum_tree import SumTree as SumTree
    from striderl.storage.transition_record import TransitionRecord as TransitionRecord
    from striderl.storage.views import FrameStack as FrameStack
    from striderl.storage.views import NStep as NStep
    from striderl.storage.views import OneStep as OneStep
    from striderl.storage.views_hindsight import Hindsight as Hindsight
    from striderl.storage.views_sequence import SequenceView as SequenceView

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "minibatches": [
            "get_minibatch_from_indices",
            "get_statistics",
            "mini_batch_generator",
            "recurrent_mini_batch_generator",
        ],
        "pickers": [
            "Picker",
            "Prioritized",
            "Ticket",
            "Uniform",
        ],
        "queue_rollout": [
            "QueueRolloutStorage",
        ],
        "replay": [
            "Replay",
            "ReplaySample",
            "View",
        ],
        "replay_buffer": [
            "ReplayBuffer",
        ],
        "replay_buffer_kinds": [
            "ListReplayBuffer",
            "PrioritizedReplayBuffer",
            "VectorReplayBuffer",
        ],
        "replay_reader": [
            "ReplayReader",
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
        "state_pair": [
            "StatePairBuffer",
        ],
        "sum_tree": [
            "SumTree",
        ],
        "transition_record": [
            "TransitionRecord",
        ],
        "views": [
            "FrameStack",
            "NStep",
            "OneStep",
        ],
        "views_hindsight": [
            "Hindsight",
        ],
        "views_sequence": [
            "SequenceView",
        ],
    },
)
