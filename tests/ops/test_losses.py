"""Policy-gradient losses: hand-worked numbers."""

from __future__ import annotations

import math

import pytest
import torch

from striderl.ops import losses
from striderl.ops.losses import (
    adapted_learning_rate,
    clipped_surrogate,
    explained_variance,
    mean_std,
    normalised,
    valid_mean,
    value_loss,
)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_valid_mean_leaves_samples_out():
    valid = torch.tensor([True, False, True])
    assert float(valid_mean(numbers(1, math.nan, 3), valid)) == 2
    assert float(valid_mean(numbers(1, 2), torch.tensor([False, False]))) == 0
    x = numbers(1.0, math.nan, 3.0).requires_grad_()
    valid_mean(x.square(), valid).backward()
    assert x.grad.tolist()[::2] == [1, 3]


def test_normalised_uses_valid_statistics():
    # of (1, 3): mean 2, std 1
    x = normalised(numbers(1, 100, 3), torch.tensor([True, False, True]), eps=0.0)
    assert x.tolist() == [-1, 0, 1]


def test_surrogate_by_hand():
    # ratios 1.5 and 0.5, clip 0.2. A = +1: min(1.5, 1.2) = 1.2; A = -1: min(-0.5, -0.8) = -0.8; mean 0.2
    log_prob = numbers(math.log(1.5), math.log(0.5))
    loss, ratio = clipped_surrogate(log_prob, numbers(0, 0), numbers(1, -1), 0.2, None)
    assert float(loss) == pytest.approx(-0.2) and ratio.tolist() == pytest.approx([1.5, 0.5])


def test_clipped_samples_have_no_gradient():
    log_prob = numbers(math.log(1.5), math.log(1.1)).requires_grad_()
    clipped_surrogate(log_prob, numbers(0, 0), numbers(1, 1), 0.2, None)[0].backward()
    assert log_prob.grad.tolist() == pytest.approx([0, -0.55])


def test_value_loss_by_hand():
    # value 2, old value 0, return 3: error 1; clipped to 0.2: (0.2 - 3)² = 7.84, the larger
    assert float(value_loss(numbers(2), numbers(0), numbers(3), 0.2, None)) == pytest.approx(7.84)
    assert float(value_loss(numbers(2), numbers(0), numbers(3), None, None)) == 1


def test_explained_variance():
    returns = numbers(1, 2, 3)
    assert float(explained_variance(returns, returns, None)) == 1
    assert float(explained_variance(numbers(2, 2, 2), returns, None)) == pytest.approx(0.0, abs=1e-12)
    assert float(explained_variance(numbers(3, 2, 1), returns, None)) == pytest.approx(-3)


def test_returns_that_are_all_alike_leave_nothing_to_explain():
    assert float(explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0]), None)) == 0.0


@pytest.mark.parametrize(
    ("kl", "rate", "wanted"),
    [
        (0.03, 1.5e-3, 1e-3),  # more than twice 0.01
        (0.004, 1e-3, 1.5e-3),  # less than half
        (0.0, 1e-3, 1e-3),  # exactly zero: nothing was learned yet
        (0.015, 1e-3, 1e-3),
        (0.5, 1.2e-5, 1e-5),
        (1e-4, 9e-3, 1e-2),
        (math.nan, 1e-3, 1e-3),
    ],
)
def test_learning_rate_rule(kl, rate, wanted):
    found = adapted_learning_rate(torch.tensor(rate), torch.tensor(kl), 0.01)
    assert float(found) == pytest.approx(wanted)


def test_several_values_are_taken_one_by_one():
    returns = torch.tensor([[1.0, 1.0], [2.0, 5.0], [3.0, 3.0], [9.0, 9.0]])
    value = torch.tensor([[1.0, 3.0], [2.0, 3.0], [3.0, 3.0], [0.0, 0.0]])
    valid = torch.tensor([True, True, True, False])
    assert explained_variance(value, returns, valid).tolist() == pytest.approx([1.0, 0.0])
    # 1, 2, 3 has std sqrt(2/3), and 1, 5, 3 twice that
    side = 1.0 / math.sqrt(2.0 / 3.0)
    found = normalised(returns, valid)
    assert found[:, 0].tolist() == pytest.approx([-side, 0.0, side, 0.0], abs=1e-6)
    assert found[:, 1].tolist() == pytest.approx([-side, side, 0.0, 0.0], abs=1e-6)


def test_the_mean_std_counts_valid_samples_of_every_part():
    valid = torch.tensor([True, False])
    bad = float("nan")
    assert mean_std({"mean": torch.zeros(2, 2), "std": torch.tensor([[1.0, 3.0], [bad, bad]])}, valid)["std"] == 2.0
    parts = {"arm/std": torch.tensor([[1.0, 3.0], [9.0, 9.0]]), "leg/std": torch.tensor([[5.0], [9.0]])}
    assert mean_std(parts, valid)["std"] == 3.0
    assert mean_std({"log_probs": torch.zeros(2, 2)}, valid) == {}


@pytest.mark.parametrize("size", [256, 32])
def test_reductions_in_blocks_are_the_same(size, monkeypatch):
    monkeypatch.setattr(losses, "_in_blocks", lambda x: x.reshape(-1, size))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 256, generator=generator, dtype=torch.float64)
    valid = torch.rand(24, 256, generator=generator) > 0.3
    assert float(losses.valid_mean(x, valid)) == pytest.approx(float(x[valid].mean()), rel=1e-12)
    assert float(losses.valid_mean(x, None)) == pytest.approx(float(x.mean()), rel=1e-12)
    assert losses.largest_of(x) == x.max()


def test_there_are_no_blocks_outside_of_code_compiled_for_a_gpu():
    assert losses._in_blocks(torch.zeros(8192)) is None
