"""The numpy way through returns, taken for plain numbers on the CPU, gives what the torch way gives."""

from __future__ import annotations

import pytest
import torch

from striderl.ops.returns import backward_scan, gae


def followed(x: torch.Tensor) -> torch.Tensor:
    """The same numbers with a gradient, which go the torch way."""
    return x.clone().requires_grad_()


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (7, 5), (33, 2), (128, 64), (24, 500), (6, 400, 2)])
def test_both_ways_scan_alike(shape):
    generator = torch.Generator().manual_seed(1)
    first = torch.randn(*shape, generator=generator, dtype=torch.float64)
    carry = torch.rand(*shape, generator=generator, dtype=torch.float64).round(decimals=1)
    before = first.clone(), carry.clone()
    found = backward_scan(first, carry)
    torch.testing.assert_close(found, backward_scan(followed(first), carry).detach(), rtol=1e-12, atol=1e-12)
    assert torch.equal(first, before[0]) and torch.equal(carry, before[1])
    assert found.data_ptr() != first.data_ptr()


@pytest.mark.parametrize("values", [0, 3])
@pytest.mark.parametrize("with_valid", [False, True])
def test_both_ways_give_the_same_advantages(values, with_valid):
    generator = torch.Generator().manual_seed(2)
    lead, more = (40, 6), (values,) if values else ()
    reward = torch.randn(*lead, *((1,) if values else ()), generator=generator, dtype=torch.float64)
    value, following = (torch.randn(*lead, *more, generator=generator, dtype=torch.float64) for _ in range(2))
    terminated, truncated, valid = (torch.rand(*lead, generator=generator) < p for p in (0.1, 0.1, 0.9))
    counted = valid if with_valid else None
    plain = gae(reward, value, following, terminated, truncated, gamma=0.9, lam=0.8, valid=counted)
    other = gae(reward, followed(value), following, terminated, truncated, gamma=0.9, lam=0.8, valid=counted)
    for one, two in zip(plain, other):
        torch.testing.assert_close(one, two.detach(), rtol=1e-12, atol=1e-12)


def test_a_bad_number_in_an_invalid_sample_stays_there():
    # two steps; the second is not valid and full of NaN: delta0 = 1 + 0.5·3 - 2 = 0.5, and nothing comes from step 1
    reward, value = torch.tensor([[1.0], [torch.nan]]), torch.tensor([[2.0], [torch.nan]])
    nowhere = torch.zeros(2, 1, dtype=torch.bool)
    valid = torch.tensor([[True], [False]])
    _, advantage = gae(reward, value, torch.tensor([[3.0], [4.0]]), nowhere, nowhere, gamma=0.5, lam=0.5, valid=valid)
    assert advantage.flatten().tolist() == [0.5, 0.0]
