"""Small parts that several learners from replay share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from striderl.data import tree
from striderl.data.noise import NoiseSpec
from striderl.execution.updater import GroupConfig, ParameterGroup, Updater
from striderl.policies.acting import Acting
from striderl.storage.pickers import Picker, Prioritized, Uniform


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Let gradients pass through the modules, but not into them."""
    parameters = [each for module in modules for each in module.parameters() if each.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def sample_noise_spec(policy: Acting) -> NoiseSpec:
    """Return the noise of one sample of a policy whose action is one tensor."""
    spec = policy.head.noise_spec()
    if not isinstance(spec, NoiseSpec):
        raise TypeError("this learner wants an action that is one tensor, not a dict of them")
    return spec


def module_updater(name: str, module: nn.Module, learning_rate: float, max_grad_norm: float, mode: str) -> Updater:
    """Return an updater with one group: all parameters of a module, under Adam."""
    group = GroupConfig(learning_rate=learning_rate, max_grad_norm=max_grad_norm)
    return Updater({name: ParameterGroup(module.parameters(), group)}, mode=mode)


def picker_for(seed: int, prioritized: bool, *, alpha: float = 0.6, beta: float = 0.4) -> Picker:
    """Return prioritized or uniform picking."""
    return Prioritized(seed=seed, alpha=alpha, beta=beta) if prioritized else Uniform(seed=seed)


def save_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the states of parts by name."""
    return {name: tree.copy(dict(part.state_dict())) for name, part in parts.items()}


def load_parts(parts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Give every part the state that the one of its name had."""
    for name, part in parts.items():
        part.load_state_dict(state[name])


def like(per_sample: Tensor, value: Tensor) -> Tensor:
    """Return numbers [B] so that they broadcast over values [B] or [B, M]."""
    return per_sample if value.dim() == per_sample.dim() else per_sample.unsqueeze(-1)
