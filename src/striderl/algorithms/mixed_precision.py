"""Run a policy in bfloat16, and give what it says in float32.

    obs ─▶ layers in bfloat16 (autocast) ─▶ distribution's parameters, values ─▶ float32 ─▶ log-probs, KL, losses

bfloat16 has 8 bits: a mean or a value is off by up to 0.4 %. Parameters, gradients and moments stay float32, so small
steps add up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from striderl.policies.policy import Policy, PolicyOutput


def run_in_bfloat16(policy: Policy, device_type: str, run: Callable[[], PolicyOutput]) -> PolicyOutput:
    """Return what `run` says with matrix products in bfloat16; every number of the result is float32 again."""
    with torch.autocast(device_type, dtype=torch.bfloat16):
        output = run()
    parameters = {name: _full(value) for name, value in output.distribution.params().items()}
    return PolicyOutput(
        policy.head.from_params(parameters),
        _full(output.value),
        {name: _full(value) for name, value in output.state.items()},
        {name: _full(value) for name, value in output.aux.items()},
    )


def _full(value: Tensor) -> Any:
    return value.float() if value.dtype == torch.bfloat16 else value
