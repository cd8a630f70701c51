"""Temporal-difference targets: hand-worked numbers, and nothing leaks from where nothing may."""

from __future__ import annotations

import math

import torch

from striderl.ops.td import huber, td_target, weighted_mean


def test_target_by_hand():
    # a step that goes on: 1 + 0.9 · 10 = 10; one that terminated: 1; one at the time limit bootstraps like the first
    target = td_target(torch.ones(3), torch.tensor([0.9, 0.0, 0.9]), torch.tensor([10.0, 10.0, 20.0]))
    assert torch.allclose(target, torch.tensor([10.0, 1.0, 19.0]))


def test_a_terminated_step_ignores_even_an_infinite_value():
    target = td_target(torch.ones(2), torch.zeros(2), torch.tensor([math.inf, math.nan]))
    assert target.tolist() == [1.0, 1.0]


def test_weighted_mean_counts_valid_samples_and_sums_members():
    # two members: per sample 1 + 3 = 4, 2 + 2 = 4 and NaN; weights 1, 0.5; mean of 4 and 2 is 3
    error = torch.tensor([[1.0, 2.0, math.nan], [3.0, 2.0, math.nan]])
    valid = torch.tensor([True, True, False])
    assert weighted_mean(error, valid, torch.tensor([1.0, 0.5, 1.0])).item() == 3.0
    assert weighted_mean(error, valid).item() == 4.0


def test_huber_is_quadratic_near_and_linear_far():
    # 0.5² / 2 = 0.125 within 1; 1 · (3 - 1/2) = 2.5 beyond; delta 2: 2 · (3 - 1) = 4
    assert torch.allclose(huber(torch.tensor([0.5, -0.5, 3.0, -3.0])), torch.tensor([0.125, 0.125, 2.5, 2.5]))
    assert huber(torch.tensor(3.0), delta=2.0).item() == 4.0


def test_huber_agrees_with_torch():
    x = torch.linspace(-4, 4, 33)
    for delta in (0.3, 1.0, 2.5):
        expected = torch.nn.functional.huber_loss(x, torch.zeros_like(x), reduction="none", delta=delta)
        assert torch.allclose(huber(x, delta), expected, atol=1e-6)
