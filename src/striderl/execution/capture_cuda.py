"""Capture a part as a CUDA graph and replay it on inputs it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from striderl.data import tree
from striderl.execution.capture_watch import CaptureError, user_place


def replay_as_cuda_graph(part: str, function: Callable[..., Any], static: tuple[Any, ...], fresh: Any) -> Any:
    """Capture `function(*static)`, write the fresh inputs into the static ones, replay and return the outputs.

    A graph reads the addresses it was captured with, so `static` is written to; the outputs are copies.
    """
    current = torch.cuda.current_stream()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(2):  # libraries allocate their workspaces in the first runs, which a capture may not
            function(*static)
    current.wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = function(*static)
    except RuntimeError as error:
        reason = f"refuses: {str(error).splitlines()[0]}"
        raise CaptureError(part, "the CUDA graph", reason, user_place()) from error
    with torch.no_grad():
        for _, (place, value) in tree.zipped(static, fresh):
            if isinstance(place, Tensor):
                place.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    return tree.map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, outputs)
