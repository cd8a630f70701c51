"""How slowly Adam's moments forget: the rule is torch's, wrong numbers are named, and CrossQ has its authors' own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from striderl.algorithms.actor_critic.crossq import CrossQConfig, crossq
from striderl.data.actions import BoxSpec
from striderl.data.specs import ObsSpec
from striderl.execution.parameter_groups import GroupConfig, ParameterGroup
from striderl.policies.actor_policy import ActorConfig
from striderl.policies.value_functions import QFunctionConfig


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_ten_steps_equal_those_of_torch(name):
    torch.manual_seed(0)
    ours = nn.Linear(3, 2, dtype=torch.float64)
    theirs = copy.deepcopy(ours)
    rate = 2.0**-7  # exact in float32, in which the learning rate is kept
    config = GroupConfig(optimizer=name, learning_rate=rate, max_grad_norm=0.0, betas=(0.5, 0.9))
    group = ParameterGroup(ours.parameters(), config)
    optimizer = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}[name](
        theirs.parameters(), lr=rate, betas=(0.5, 0.9), weight_decay=0.0
    )
    for _ in range(10):
        x = torch.randn(8, 3, dtype=torch.float64)
        group.set_grad(torch.autograd.grad(ours(x).square().sum(), list(ours.parameters())))
        group.step()
        optimizer.zero_grad()
        theirs(x).square().sum().backward()
        optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-9)


def test_wrong_betas_are_named():
    with pytest.raises(ValueError, match=r"betas are in \[0, 1\), found \(1.0, 0.9\)"):
        GroupConfig(betas=(1.0, 0.9))
    with pytest.raises(ValueError, match="betas have no effect on SGD"):
        GroupConfig(optimizer="SGD", betas=(0.5, 0.999))


def test_crossq_forgets_gradients_fast():
    parts = {
        "actor": ActorConfig(hidden_dims=(4,), head="squashed_gaussian"),
        "critic": QFunctionConfig(hidden_dims=(4,)),
    }
    specs = (ObsSpec.from_flat(2), BoxSpec(shape=(1,), low=-1.0, high=1.0))
    found = crossq(*specs, **parts)
    assert found.actor_updater.groups["actor"].config.betas == (0.5, 0.999)
    assert found.critic_updater.groups["critic"].config.betas == (0.5, 0.999)
    other = crossq(*specs, config=CrossQConfig(beta1=0.9), **parts)
    assert other.critic_updater.groups["critic"].config.betas == (0.9, 0.999)
