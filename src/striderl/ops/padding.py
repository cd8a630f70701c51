"""Cut a rollout at episode ends, pad the pieces to one length, and put them back together.

`dones[t, n]` says that step t was the last of its trajectory; the last row of a rollout always ends one. Trajectories
are ordered env by env. With T = 4 steps, 2 envs and env 0 done at t = 1:

    x [T, N]            padded [T, 3]          masks [T, 3]
      a e                 a c e                  1 1 1
      b f    ── split ─▶  b d f     and          1 1 1
      c g                 0 0 g                  0 0 1
      d h    ◀─ unpad ──  0 0 h                  0 0 1

The padded length is always T, so that unpadding needs nothing but the masks, and the padding is zero, never left-over
memory. Row 0 holds the first step of every trajectory: splitting stored recurrent states and taking row 0 gives each
trajectory's initial state. How many trajectories there are depends on the data, so this costs a host synchronisation:
it is the reference. `trajectory_slots` is the static-shape form for graphs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from striderl.data import tree


def split_and_pad_trajectories(x: Any, dones: Tensor) -> tuple[Any, Tensor]:
    """Split [T, N, …] leaves at `dones` [T, N] (any dtype) into ([T, n_traj, …] leaves, masks [T, n_traj])."""
    if dones.dim() != 2:
        raise ValueError(f"dones must have shape [T, N], found {tuple(dones.shape)}")
    masks = _trajectory_masks(dones)

    def split(path: str, leaf: Any) -> Tensor:
        found = _as_tensor(path, leaf)
        if tuple(found.shape[:2]) != tuple(dones.shape):
            raise ValueError(
                f"{path or 'x'} has shape {tuple(found.shape)}; its first two sizes must be "
                f"those of dones, {tuple(dones.shape)}"
            )
        env_major = found.transpose(0, 1).flatten(0, 1)
        padded = found.new_zeros(masks.shape[1], masks.shape[0], *found.shape[2:])
        return padded.index_put((masks.t(),), env_major).transpose(0, 1)

    return tree.map_with_path(split, x), masks


def unpad_trajectories(padded: Any, masks: Tensor) -> Any:
    """Invert the split: [T, n_traj, …] leaves become [T, N, …]; the trajectories of whole envs must be given."""
    num_steps = masks.shape[0]
    keep = masks.bool().t()

    def join(path: str, leaf: Any) -> Tensor:
        found = _as_tensor(path, leaf)
        if tuple(found.shape[:2]) != tuple(masks.shape):
            raise ValueError(
                f"{path or 'padded'} has shape {tuple(found.shape)}; its first two sizes must be "
                f"those of the masks, {tuple(masks.shape)}"
            )
        steps = found.transpose(0, 1)[keep]
        if steps.shape[0] % num_steps:
            raise ValueError(
                f"the masks cover {steps.shape[0]} steps, which is no multiple of T = {num_steps}; "
                "give all trajectories of every env that takes part"
            )
        return steps.reshape(-1, num_steps, *found.shape[2:]).transpose(0, 1)

    return tree.map_with_path(join, padded)


def _trajectory_masks(dones: Tensor) -> Tensor:
    """Return [T, n_traj], true for the steps that each trajectory has."""
    num_steps = dones.shape[0]
    ends = dones.bool().clone()
    ends[-1] = True
    positions = ends.t().flatten().nonzero().flatten()
    before = torch.cat([positions.new_full((1,), -1), positions[:-1]])
    lengths = positions - before
    return torch.arange(num_steps, device=dones.device).unsqueeze(1) < lengths.unsqueeze(0)


def _as_tensor(path: str, leaf: Any) -> Tensor:
    if not isinstance(leaf, Tensor):
        raise TypeError(f"{path or 'x'} is a {type(leaf).__name__}; wanted a tensor (striderl.data.tree.to_torch)")
    return leaf
