"""A recording on the CPU that forgets Python, as a CUDA graph does: a tape of torch operations at fixed addresses.

    body ─▶ operations with the tensors they read and wrote ─▶ taken back       nothing of the body is done
    play ─▶ the same operations on the same tensors                             Python is not asked again

What Python decides or counts while the body runs is frozen, so a step that is recorded as another kind than the one
that is played gives other numbers here, without a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Tape(TorchDispatchMode):
    """Notes operations, and what tensors from outside held before the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.data_dependent_output in func.tags:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        kwargs = kwargs or {}
        read = {_place(leaf): leaf for leaf in _tensors((args, kwargs))}
        for place, leaf in read.items():
            if place not in self._made and place not in self.before:
                # a view may show a part only, as one of several dtypes: the bytes of the whole memory are kept
                whole = torch.empty(0, dtype=torch.uint8).set_(leaf.untyped_storage())
                self.before[place] = (whole, whole.clone())
        result = func(*args, **kwargs)
        fresh = [(at, leaf) for at, leaf in enumerate(_tensors(result)) if _place(leaf) not in read]
        self._made |= {_place(leaf) for _, leaf in fresh}
        if fresh or func._schema.is_mutable:
            self.steps.append((func, args, kwargs, fresh))
        return result


class TapedRecording:
    """Warms up twice, tapes the body and takes it back, as `execution.graphed.Recording` does."""

    def __init__(self, inputs: Any, prepare: Any, body: Any) -> None:
        prepare(inputs), prepare(inputs)
        tape = _Tape()
        with tape:
            body(inputs)
        self.steps = tape.steps
        with torch.no_grad():
            for whole, value in tape.before.values():
                whole.copy_(value)

    @torch.no_grad()
    def play(self, values: list[Tensor]) -> None:
        assert values == []
        for func, args, kwargs, fresh in self.steps:
            found = _tensors(func(*args, **kwargs))
            for at, place in fresh:
                place.detach().copy_(found[at])


def _tensors(nested: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, Tensor)]


def _place(leaf: Tensor) -> int:
    return leaf.untyped_storage()._cdata
