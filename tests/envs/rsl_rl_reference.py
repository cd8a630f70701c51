"""One player's view of the fake simulator, in plain Python: what the adapter must report for every generation."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from rsl_rl_fakes import FALL, GroupsFake, IsaacLabTwoFake, LeggedGymFake
from torch import Tensor

from striderl.envs.rsl_rl.env import RslRlEnv
from striderl.envs.vec_env import Step

NUM_STEPS = 14
KINDS = ("v1", "v2", "v3", "v4", "v3 TensorDict", "v4 TensorDict")


def make(kind: str, **options: Any) -> Any:
    generation, _, container = kind.partition(" ")
    if container:
        pytest.importorskip("tensordict", reason="the TensorDict form needs tensordict")
    if generation == "v1":
        return LeggedGymFake(**options)
    if generation == "v2":
        return IsaacLabTwoFake(**options)
    group = "policy" if generation == "v3" else "actor"
    return GroupsFake(acting_group=group, container=container or "dict", **options)


def some_actions(num_envs: int = 3, num_steps: int = NUM_STEPS) -> Tensor:
    # multiples of 1/8 between 0 and 1.25, so that episodes end by falls and by time-outs, and sums are exact
    time, env, joint = torch.meshgrid(torch.arange(num_steps), torch.arange(num_envs), torch.arange(2), indexing="ij")
    return ((time * 5 + env * 3 + joint * 7) % 11).float() / 8


def reference(actions: Tensor, offset: float = 0.0) -> list[dict[str, Any]]:
    """Play the simulator env by env with Python floats: what every generation must report."""
    num_steps, num_envs, _ = actions.shape
    x = [offset + i / 8 for i in range(num_envs)]
    length, episode = [0] * num_envs, [0] * num_envs
    steps = []
    for t in range(num_steps):
        row: dict[str, Any] = {
            name: [] for name in ("obs", "privileged", "final", "final_privileged", "reward", "fallen", "late")
        }
        for i in range(num_envs):
            push, last = actions[t, i].tolist()
            x[i], length[i] = x[i] + push, length[i] + 1
            row["reward"].append(x[i])
            row["fallen"].append(x[i] > FALL)
            row["late"].append(length[i] >= 4 + i)
            row["final"].append([x[i], last, float(length[i]), float(episode[i])])
            row["final_privileged"].append([2 * x[i], length[i] / 8, 7.0])
            if row["fallen"][-1] or row["late"][-1]:
                x[i], length[i], last = offset + i / 8, 0, 0.0
                episode[i] += 1
            row["obs"].append([x[i], last, float(length[i]), float(episode[i])])
            row["privileged"].append([2 * x[i], length[i] / 8, 7.0])
        row["length"] = list(length)
        steps.append(row)
    return steps


def rollout(env: RslRlEnv, actions: Tensor, seed: int | None = None) -> list[Step]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        env.reset(seed)
    return [env.step(action) for action in actions]


def two_parts(obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    acting, privileged = obs.values()
    return acting, privileged
