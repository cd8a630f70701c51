"""Which of several processes this one is, as torchrun tells it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from striderl.training.callbacks.callback import Callback
from striderl.training.callbacks.ranks import together
from striderl.training.distributed import Learner, Ranks, setup


def join_ranks(device: torch.device) -> Ranks:
    """Use the process group that is there, or make the one that torchrun's variables describe; alone without them."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device)
    return setup(device=device.type)


def rank_callbacks(ranks: Ranks, algorithm: Learner) -> Sequence[Callback]:
    """Return what keeps several processes together; nothing for one."""
    return together(ranks, algorithm, [])
