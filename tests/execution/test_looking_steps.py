"""On the CPU a step looks at the norm of its gradient; what comes of it is, to the bit, what comes without a look."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from striderl.execution.parameter_groups import GroupConfig, ParameterGroup

HUGE = 3.0e38


def stepped(config: GroupConfig, grads: list[Tensor], *, looks: bool) -> tuple[ParameterGroup, list[float]]:
    group = ParameterGroup([nn.Parameter(torch.linspace(-1.0, 1.0, 7))], config)
    assert group.looks
    group.looks = looks
    norms = []
    for grad in grads:
        group.flat.grad.copy_(grad)
        norms.append(group.step().item())
    return group, norms


def directions(bound: float) -> list[Tensor]:
    """Gradients far from, and within rounding of, the bound at which clipping begins; and some that are broken."""
    generator = torch.Generator().manual_seed(1)
    plain = [torch.randn(7, generator=generator) * scale for scale in (1e-6, 0.1, 1.0, 30.0)]
    unit = plain[2] / plain[2].norm()
    close = [unit * (bound or 1.0) * (1.0 + step * 2.0**-24) for step in range(-40, 41, 4)]
    broken = [torch.full((7,), torch.nan), torch.full((7,), torch.inf), torch.full((7,), 1e19), torch.full((7,), HUGE)]
    return [*plain, *close, *broken, *plain]


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW"])
@pytest.mark.parametrize("bound", [0.0, 0.5, 0.7, 10.0])
def test_looking_changes_no_bit(optimizer: str, bound: float) -> None:
    config = GroupConfig(optimizer=optimizer, max_grad_norm=bound, weight_decay=0.01)
    grads = directions(bound)
    looking, norms = stepped(config, grads, looks=True)
    blind, expected = stepped(config, grads, looks=False)
    assert str(norms) == str(expected)  # as text: NaN is not equal to itself
    assert torch.equal(looking.flat.flat, blind.flat.flat) and looking.flat.flat.isfinite().all()
    for name, value in blind.state_dict().items():
        assert torch.equal(looking.state_dict()[name], value), name
    assert int(looking.num_skipped) == 4


def test_the_largest_square_that_is_finite_is_no_reason_to_skip() -> None:
    # float32 ends at 3.4028235e38; its root is 1.8446743e19, and the next number up has a square that is infinite
    largest = torch.tensor(2.0**64).nextafter(torch.tensor(0.0))
    group, _ = stepped(
        GroupConfig(max_grad_norm=0.0), [torch.zeros(7).index_fill(0, torch.tensor(3), largest)], looks=True
    )
    assert int(group.num_skipped) == 0
    group, _ = stepped(
        GroupConfig(max_grad_norm=0.0), [torch.zeros(7).index_fill(0, torch.tensor(3), 2.0**64)], looks=True
    )
    assert int(group.num_skipped) == 1


def test_other_dtypes_and_optimisers_do_not_look() -> None:
    assert not ParameterGroup([nn.Parameter(torch.ones(2, dtype=torch.float64))]).looks
    assert not ParameterGroup([nn.Parameter(torch.ones(2))], GroupConfig(optimizer="SGD")).looks
