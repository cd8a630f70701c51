"""Nested arrays and what they are made of: Batch, namedarraytuple, tree, specs, arenas, noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.data.actions import ActionSpec as ActionSpec
    from striderl.data.actions import BoxSpec as BoxSpec
    from striderl.data.actions import DictActionSpec as DictActionSpec
    from striderl.data.actions import DiscreteSpec as DiscreteSpec
    from striderl.data.actions import MultiDiscreteSpec as MultiDiscreteSpec
    from striderl.data.actions import action_spec_from_space as action_spec_from_space
    from striderl.data.arena import Arena as Arena
    from striderl.data.arena import Placement as Placement
    from striderl.data.batch import Batch as Batch
    from striderl.data.buffers import buffer_from_example as buffer_from_example
    from striderl.data.buffers import torchify_buffer as torchify_buffer
    from striderl.data.named_tuples import NamedArrayTupleSchema as NamedArrayTupleSchema
    from striderl.data.named_tuples import NamedTuple as NamedTuple
    from striderl.data.named_tuples import namedarraytuple as namedarraytuple
    from striderl.data.noise import NoiseSpec as NoiseSpec
    from striderl.data.noise import draw as draw
    from striderl.data.specs import ComponentSpec as ComponentSpec
    from striderl.data.specs import ObsSpec as ObsSpec
    from striderl.data.specs import TensorSpec as TensorSpec

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "actions": [
            "ActionSpec",
            "BoxSpec",
            "DictActionSpec",
            "DiscreteSpec",
            "MultiDiscreteSpec",
            "action_spec_from_space",
        ],
        "arena": ["Arena", "Placement"],
        "batch": ["Batch"],
        "buffers": ["buffer_from_example", "torchify_buffer"],
        "named_tuples": ["NamedArrayTupleSchema", "NamedTuple", "namedarraytuple"],
        "noise": ["NoiseSpec", "draw"],
        "specs": ["ComponentSpec", "ObsSpec", "TensorSpec"],
    },
    unlisted={
        "buffers": ["buffer_func", "buffer_method", "buffer_to", "get_leading_dims", "numpify_buffer"],
        "memory": ["SharedBlock", "shared_array"],
        "named_tuples": [
            "NamedArrayTuple",
            "NamedArrayTupleSchema_like",
            "NamedTupleSchema",
            "is_namedarraytuple",
            "is_namedarraytuple_class",
            "is_namedtuple",
            "namedarraytuple_like",
        ],
        "noise": ["draw_all"],
    },
)
