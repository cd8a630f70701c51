"""Experience in memory: time-major rollouts, and replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.storage.minibatches import get_minibatch_from_indices as get_minibatch_from_indices
    from striderl.storage.minibatches import get_statistics as get_statistics
    from striderl.storage.minibatches import mini_batch_generator as mini_batch_generator
    from striderl.storage.minibatches import recurrent_mini_batch_generator as recurrent_mini_batch_generator
    from striderl.storage.replay.reader import ReplayReader as ReplayReader
    from striderl.storage.replay.replay import Replay as Replay
    from striderl.storage.replay.samplers import Prioritized as Prioritized
    from striderl.storage.replay.samplers import Sampler as Sampler
    from striderl.storage.replay.samplers import Uniform as Uniform
    from striderl.storage.replay.state_pair import StatePairBuffer as StatePairBuffer
    from striderl.storage.replay.sum_tree import SumTree as SumTree
    from striderl.storage.replay.views import FrameStack as FrameStack
    from striderl.storage.replay.views import Hindsight as Hindsight
    from striderl.storage.replay.views import NStep as NStep
    from striderl.storage.replay.views import OneStep as OneStep
    from striderl.storage.replay.views import SequenceView as SequenceView
    from striderl.storage.replay_buffer.buffer import ReplayBuffer as ReplayBuffer
    from striderl.storage.replay_buffer.kinds import ListReplayBuffer as ListReplayBuffer
    from striderl.storage.replay_buffer.kinds import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from striderl.storage.replay_buffer.kinds import VectorReplayBuffer as VectorReplayBuffer
    from striderl.storage.rollout import RolloutStorage as RolloutStorage
    from striderl.storage.rollout_presets import ActionLabelRollout as ActionLabelRollout
    from striderl.storage.rollout_presets import AmpRolloutStorage as AmpRolloutStorage
    from striderl.storage.rollout_presets import QueueRolloutStorage as QueueRolloutStorage
    from striderl.storage.rollout_presets import SarsaRolloutStorage as SarsaRolloutStorage

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "minibatches": [
            "get_minibatch_from_indices",
            "get_statistics",
            "mini_batch_generator",
            "recurrent_mini_batch_generator",
        ],
        "replay.reader": ["ReplayReader"],
        "replay.replay": ["Replay"],
        "replay.samplers": ["Prioritized", "Sampler", "Uniform"],
        "replay.state_pair": ["StatePairBuffer"],
        "replay.sum_tree": ["SumTree"],
        "replay.views": ["FrameStack", "Hindsight", "NStep", "OneStep", "SequenceView"],
        "replay_buffer.buffer": ["ReplayBuffer"],
        "replay_buffer.kinds": ["ListReplayBuffer", "PrioritizedReplayBuffer", "VectorReplayBuffer"],
        "rollout": ["RolloutStorage"],
        "rollout_presets": ["ActionLabelRollout", "AmpRolloutStorage", "QueueRolloutStorage", "SarsaRolloutStorage"],
    },
    unlisted={
        "replay.replay": ["ReplaySample", "View"],
        "replay.samplers": ["SampleHandle"],
        "rollout": ["FinalPool"],
        "transition_record": ["TransitionRecord"],
    },
)
