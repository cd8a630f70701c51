"""Steps whose numbers say where they come from: number 10 · t + n for step t of env n."""

from __future__ import annotations

from typing import Any

import torch

from striderl.data.actions import BoxSpec
from striderl.data.arena import Columns
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.data.transition import Transition, transition_columns

OBS = ObsSpec.from_flat(2)
INFO = {"ref_motion": TensorSpec(shape=(2, 2)), "ref_obs": TensorSpec(shape=(2, 2))}


def columns(*, info: bool = False) -> Columns:
    return transition_columns(OBS, BoxSpec(shape=(1,), low=-1.0, high=1.0), INFO if info else {}, {})


def step(
    t: int,
    envs: range,
    *,
    terminated: Any = False,
    truncated: Any = False,
    valid: Any = True,
    finals: bool = True,
    info: bool = False,
) -> Transition:
    """Step t of these envs: reward, action and both numbers of the observation are 10 · t + n."""
    number = torch.tensor([10.0 * t + n for n in envs])
    pair = number[:, None].expand(-1, 2)

    def flags(value: Any) -> torch.Tensor:
        return torch.as_tensor(value).expand(len(envs)).clone()

    frames = pair[:, :, None].expand(-1, 2, 2)
    return Transition(
        obs={"obs": pair},
        act=number[:, None],
        rew=number,
        terminated=flags(terminated),
        truncated=flags(truncated),
        valid=flags(valid),
        info={"ref_motion": -frames, "ref_obs": frames} if info else {},
        policy={},
        next_obs={"obs": pair + 10.0},
        final_obs={"obs": pair + 1000.0} if finals else None,
    )


def fill(storage: Any, count: int, *, first: int = 0, **flags: Any) -> Any:
    """Add steps first, first + 1, … of all envs; a flag may be a table [count][N]."""
    for t in range(count):
        row = {name: value[t] if not isinstance(value, bool) else value for name, value in flags.items()}
        storage.add(step(first + t, range(storage.num_envs), **row))
    return storage
