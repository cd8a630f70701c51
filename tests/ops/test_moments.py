"""Moments: hand numbers, exact pooling of any split, masks, bad samples, and data far from zero."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from striderl.ops.moments import Moments, batch_moments, combine, pool


def test_hand_numbers():
    # 1, 2, 3, 6: mean 3, squared deviations 4 + 1 + 0 + 9 = 14
    moments, ignored = batch_moments(torch.tensor([1.0, 2.0, 3.0, 6.0]), ())
    assert (moments.num_samples, moments.mean, moments.m2, ignored) == (4, 3, 14, 0)
    # {1, 2}: mean 1.5, m2 0.5; {3, 6}: mean 4.5, m2 4.5; together 0.5 + 4.5 + 3^2 * 2 * 2 / 4 = 14
    one, _ = batch_moments(torch.tensor([1.0, 2.0]), ())
    other, _ = batch_moments(torch.tensor([3.0, 6.0]), ())
    both = combine(one, other)
    assert (both.num_samples, both.mean, both.m2) == (4, 3, 14)


def test_masked_and_bad_samples_do_not_enter():
    x = torch.tensor([[[1.0, 10.0], [5.0, torch.nan]], [[3.0, 30.0], [torch.inf, 7.0]]])
    valid = torch.tensor([[True, True], [True, False]])
    moments, ignored = batch_moments(x, (2,), valid)
    # left: (1, 10) and (3, 30); the NaN sample is counted, the invalid one is not even that
    assert moments.num_samples == 2
    assert moments.mean.tolist() == [2, 20]
    assert moments.m2.tolist() == [2, 200]
    assert ignored == 1


def test_nothing_valid_changes_nothing():
    seen, _ = batch_moments(torch.tensor([1.0, 5.0]), ())
    nothing, _ = batch_moments(torch.full((3,), torch.nan), ())
    assert all(torch.equal(a, b) for a, b in zip(combine(seen, nothing), seen))
    assert all(torch.equal(a, b) for a, b in zip(combine(nothing, seen), seen))


def test_far_from_zero():
    # a variance of 1 on a mean of 1e9: sums of squares in float64 would lose it
    x = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1e9
    total = Moments(*(torch.zeros((), dtype=torch.float64) for _ in range(3)))
    for piece in x.split(7):
        total = combine(total, batch_moments(piece, ())[0])
    assert (total.m2 / total.num_samples).item() == pytest.approx(x.var(correction=0).item(), rel=1e-6)


@pytest.mark.slow
@given(st.lists(st.lists(st.floats(-100, 100, width=32), max_size=6), min_size=1, max_size=5))
def test_any_split_is_one_set(pieces):
    rows = [torch.tensor(piece, dtype=torch.float64).view(-1, 1) for piece in pieces]
    each = [batch_moments(piece, (1,))[0] for piece in rows]
    whole, _ = batch_moments(torch.cat(rows), (1,))
    merged = each[0]
    for moments in each[1:]:
        merged = combine(merged, moments)
    for left, right in zip(merged, whole):
        assert torch.allclose(left, right, rtol=1e-12, atol=1e-9)
    # and as if every piece were on a process of its own: all_reduce sums what the others would contribute
    for rank in range(len(each)):
        pooled = pool(each[rank], _all_reduce_like(each))
        for left, right in zip(pooled, whole):
            assert torch.allclose(left, right, rtol=1e-12, atol=1e-9)


def _all_reduce_like(each: list[Moments]):
    """Play all processes: the first call sums (count, count * mean), the second the deviations from the pooled mean."""
    calls = []

    def all_reduce(_: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        if len(calls) == 1:
            parts = [torch.cat([one.num_samples.reshape(1), (one.num_samples * one.mean).flatten()]) for one in each]
            all_reduce.totals = sum(parts)
            return all_reduce.totals
        mean = all_reduce.totals[1:] / all_reduce.totals[0].clamp(min=1e-300)
        return sum(one.m2 + one.num_samples * (one.mean - mean).square() for one in each)

    return all_reduce


def test_wrong_shapes_say_so():
    with pytest.raises(ValueError, match=r"end in shape \(3,\), found \(4, 2\)"):
        batch_moments(torch.zeros(4, 2), (3,))
    with pytest.raises(ValueError, match=r"valid must have shape \(4,\)"):
        batch_moments(torch.zeros(4, 2), (2,), torch.ones(4, 2))
