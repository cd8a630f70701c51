"""Every head with its distribution traces into one graph and gives what eager gives; no global setting is touched."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
import torch
from head_cases import every_head, noise, observation

import striderl.networks.mlp
from striderl.networks.conv import Conv2dHeadModel
from striderl.networks.heads.gaussian import GaussianHead
from striderl.networks.heads.value import ValueHead
from striderl.networks.memory import Memory
from striderl.networks.mlp import MlpModel
from striderl.networks.normalizers import EmpiricalNormalization


def use(head, features, obs, drawn, stored):
    """Ask a head and its distribution everything a rollout and an update ask."""
    distribution = head(features, obs)
    action, exact = distribution.sample_with_log_prob(drawn)
    old = head.from_params(stored)
    return (
        action,
        exact,
        distribution.mode(),
        distribution.log_prob(action),
        distribution.entropy(),
        old.kl(distribution),
        distribution.params(),
        distribution,
    )


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(every_head())))
def test_heads_trace_whole_and_equal_eager(index):
    head = every_head()[index]
    features, obs = torch.randn(6, 5), observation(6)
    stored = {name: value.detach() for name, value in head(torch.randn(6, 5), obs).params().items()}
    drawn = noise(head, 6)
    torch.compiler.reset()
    compiled = torch.compile(use, fullgraph=True, backend="eager")
    for _ in range(2):
        wanted, found = use(head, features, obs, drawn, stored), compiled(head, features, obs, drawn, stored)
        assert type(found[-1]) is type(wanted[-1])
        for one, other in zip(_flat(found[:-1]), _flat(wanted[:-1])):
            assert torch.allclose(one, other, atol=1e-6, equal_nan=True)
        features = torch.randn(6, 5)


def _flat(values):
    for value in values:
        yield from value.values() if isinstance(value, dict) else [value]


class Stack(torch.nn.Module):
    """A policy in small: normaliser, CNN, memory, MLP, head and value."""

    def __init__(self) -> None:
        super().__init__()
        self.normalizer = EmpiricalNormalization(3)
        self.encoder = Conv2dHeadModel((1, 8, 8), [4], [3], [2], [6], normlayer="layer")
        self.memory = Memory(9, "gru", 1, 8)
        self.trunk = MlpModel(8, [8], nonlinearity="elu")
        self.head = GaussianHead(8, 2, min_std=0.1)
        self.value = ValueHead(8)

    def forward(self, joints, image, state, reset, drawn):
        features = torch.cat([self.normalizer(joints), self.encoder(image)], -1)
        features, state = self.memory.step(features, state, reset)
        features = self.trunk(features)
        distribution = self.head(features)
        action = distribution.sample(drawn)
        return action, distribution.log_prob(action), self.value(features), state


def _inputs():
    return (
        torch.randn(5, 3),
        torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8),
        {"hidden": torch.randn(5, 1, 8)},
        torch.rand(5) < 0.5,
        torch.randn(5, 2),
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_policy_like_stack_is_one_graph(backend):
    torch.manual_seed(0)
    stack = Stack()
    compiled = torch.compile(stack, fullgraph=True, backend=backend)
    for _ in range(2):
        inputs = _inputs()
        wanted, found = stack(*inputs), compiled(*inputs)
        for one, other in zip(found[:3], wanted[:3]):
            assert torch.allclose(one, other, atol=1e-6)
        assert torch.allclose(found[3]["hidden"], wanted[3]["hidden"], atol=1e-6)
        (found[1].sum() + found[2].sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in stack.parameters())


@pytest.mark.slow
def test_the_stack_compiles_to_native_code():
    torch.manual_seed(0)
    stack = Stack()
    inputs = _inputs()
    with torch.no_grad():
        found = torch.compile(stack, fullgraph=True)(*inputs)
        wanted = stack(*inputs)
    for one, other in zip(found[:3], wanted[:3]):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_importing_changes_no_torch_setting():
    code = """
import torch

def settings():
    return (
        torch.distributions.Distribution._validate_args, torch.get_default_dtype(), torch.is_grad_enabled(),
        torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
    )

before = settings()
import striderl.networks.heads, striderl.networks.heads.value, striderl.networks.memory, striderl.networks.conv
import striderl.networks.normalizers, striderl.networks.normalizers
from striderl.networks.heads.gaussian import GaussianHead
GaussianHead(3, 2)(torch.zeros(1, 3)).log_prob(torch.zeros(1, 2))
assert settings() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=280)


def test_no_network_uses_torch_distributions():
    folder = pathlib.Path(striderl.networks.mlp.__file__).parent
    users = [path.name for path in folder.glob("*.py") if "torch.distributions" in path.read_text()]
    assert users == []
