"""Distributional losses: hand-worked numbers and brute force."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from striderl.ops import td as distributional
from striderl.ops.td import project_categorical, quantile_huber


@pytest.mark.parametrize(("batch", "num_atoms"), [(40, 2), (700, 101), (90, 301)])
def test_large_batches_are_projected_by_sums_with_the_same_result(batch, num_atoms, monkeypatch):
    generator = torch.Generator().manual_seed(batch)
    atoms = torch.linspace(-25.0, 25.0, num_atoms)
    probs = torch.randn(batch, num_atoms, generator=generator).mul(3.0).softmax(dim=-1)
    reward = 20.0 * torch.randn(batch, generator=generator)  # many fall beyond the ends
    discount = torch.tensor([0.0, 0.5, 0.97, 1.0])[torch.arange(batch) % 4]
    monkeypatch.setattr(distributional, "_AT_ONCE", 2**40)
    wanted = project_categorical(reward, discount, probs, atoms)
    monkeypatch.setattr(distributional, "_AT_ONCE", 0)
    found = project_categorical(reward, discount, probs, atoms)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(batch), rtol=1e-6, atol=1e-6)
    assert bool((found >= 0.0).all())


def test_projection_by_hand():
    # atoms 0, 1, 2; all mass on 1; 0.5 + 0.5 · 1 = 1 stays on 1; 0.25 + 1 = 1.25 is shared 3/4 and 1/4
    atoms = torch.tensor([0.0, 1.0, 2.0])
    probs = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    found = project_categorical(torch.tensor([0.5, 0.25, 9.0]), torch.tensor([0.5, 1.0, 1.0]), probs, atoms)
    assert torch.allclose(found, torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.75, 0.25], [0.0, 0.0, 1.0]]))


def test_a_terminated_step_puts_all_mass_on_the_reward():
    atoms = torch.linspace(-1, 1, 5)
    found = project_categorical(torch.tensor([0.5]), torch.tensor([0.0]), torch.full((1, 5), 0.2), atoms)
    assert torch.allclose(found, torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]]))


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 9), st.integers(0, 2**31 - 1))
def test_projection_keeps_mass_and_mean(num_atoms, seed):
    generator = torch.Generator().manual_seed(seed)
    atoms = torch.linspace(-3.0, 5.0, num_atoms, dtype=torch.float64)
    probs = torch.rand(4, num_atoms, generator=generator, dtype=torch.float64).softmax(-1)
    reward = torch.rand(4, generator=generator, dtype=torch.float64) - 0.5
    discount = 0.3 * torch.rand(4, generator=generator, dtype=torch.float64)  # what is moved stays inside the range
    found = project_categorical(reward, discount, probs, atoms)
    assert torch.allclose(found.sum(-1), torch.ones(4, dtype=torch.float64))
    assert torch.allclose((found * atoms).sum(-1), reward + discount * (probs * atoms).sum(-1))


def test_quantile_loss_by_hand():
    # prediction 0 at fraction 0.25 against samples 2 and -2 (kappa 1): huber 1.5 each;
    # weights 0.25 for the one above, 0.75 for the one below: (0.375 + 1.125) / 2 = 0.75
    loss = quantile_huber(torch.zeros(1, 1), torch.tensor([[2.0, -2.0]]), torch.tensor([0.25]))
    assert torch.allclose(loss, torch.tensor([0.75]))


def test_quantile_loss_is_least_at_the_quantile():
    # of the samples 0 … 99, the 20 % quantile is about 20: no other prediction does better
    samples = torch.arange(100.0).unsqueeze(0)
    guesses = torch.arange(100.0)
    losses = [float(quantile_huber(guess.view(1, 1), samples, torch.tensor([0.2]), kappa=1e-3)) for guess in guesses]
    assert abs(losses.index(min(losses)) - 20) <= 1


def test_quantile_loss_is_a_sum_over_predictions_of_means_over_targets():
    torch.manual_seed(0)
    predicted, target, fraction = torch.randn(3, 4), torch.randn(3, 5), torch.rand(3, 4)
    expected = torch.zeros(3)
    for b in range(3):
        for i in range(4):
            for j in range(5):
                d = target[b, j] - predicted[b, i]
                h = 0.5 * d**2 if abs(d) <= 1.0 else abs(d) - 0.5
                expected[b] += abs(fraction[b, i] - float(d < 0)) * h / 5
    assert torch.allclose(quantile_huber(predicted, target, fraction), expected, atol=1e-6)
