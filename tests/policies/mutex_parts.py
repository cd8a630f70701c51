"""Tiny policies whose actions can be computed by hand."""

from __future__ import annotations

import torch

from striderl.data.actions import BoxSpec
from striderl.data.specs import ObsSpec
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import Remember

SEGMENTS = {"proprioception": 4, "engaging_block": 4}
"""proprioception = [command, x, last action 0, last action 1]
engaging_block = [distance, policy 0, policy 1, height]"""

SPEC = ObsSpec.from_segments(SEGMENTS)
COMMAND, LAST_0, LAST_1 = 0, 2, 3


def constant(*values: float) -> Policy:
    """A policy that always plays these numbers."""
    return linear([[0.0] * 4 for _ in values], list(values))


def linear(weight: list[list[float]], bias: list[float]) -> Policy:
    """A policy that plays weight @ proprioception + bias."""
    config = PolicyConfig(
        actor_obs=("proprioception",), critic_obs=("proprioception",), actor_hidden_dims=(), critic_hidden_dims=()
    )
    policy = Policy(SPEC, BoxSpec(shape=(len(bias),)), config)
    with torch.no_grad():
        layer = policy.head.mean_layer.linear
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return policy


def reading(entry: int) -> Policy:
    """A policy that plays one entry of proprioception, twice."""
    row = [float(at == entry) for at in range(4)]
    return linear([row, row], [0.0, 0.0])


def recurrent(seed: int) -> Policy:
    """A small policy with a memory."""
    torch.manual_seed(seed)
    memory = Remember(type="gru", hidden_size=3)
    config = PolicyConfig(
        actor_obs=("proprioception",),
        actor=(memory,),
        critic=(memory,),
        actor_hidden_dims=(4,),
        critic_hidden_dims=(4,),
    )
    return Policy(SPEC, BoxSpec(shape=(2,)), config)


def observe(*chosen: int, height: float = 1.0, proprioception: list[float] | None = None) -> dict[str, torch.Tensor]:
    """Observations of envs in which these policies are chosen; -1 means that no obstacle is engaged."""
    block = torch.zeros(len(chosen), 4)
    for env, policy in enumerate(chosen):
        if policy >= 0:
            block[env, 1 + policy] = 1.0
    block[:, 3] = height
    seen = torch.tensor(proprioception or [0.1, 0.2, 0.3, 0.4]).repeat(len(chosen), 1)
    return {"proprioception": seen, "engaging_block": block}
