"""Gaussian and squashed Gaussian: hand numbers, torch.distributions as reference, quadrature, gradients, saturation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributions as reference

from striderl.data import tree
from striderl.data.noise import draw
from striderl.networks.distributions.gaussian import DiagonalGaussian, SquashedGaussian

LOW, HIGH = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 4.0])
numbers = st.floats(-3.0, 3.0, width=32)
spreads = st.floats(0.05, 3.0)


def noise_for(distribution, count: int) -> torch.Tensor:
    spec = distribution.noise_spec()
    return draw(spec, "action", seed=1, iteration=2, env_index=torch.arange(count), num_steps=1)[0]


def test_hand_worked_numbers():
    # N(1, 2) at 5: z = 2, so -2 - log 2 - 0.918939 = -3.612086; N(0, 1) at 0: -0.918939; together -4.531025
    distribution = DiagonalGaussian(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 1.0]))
    assert distribution.log_prob(torch.tensor([5.0, 0.0])).item() == pytest.approx(-4.531025, abs=1e-5)
    # entropy: log 2 + 2 * 1.418939 = 3.531025
    assert distribution.entropy().item() == pytest.approx(3.531025, abs=1e-5)
    # KL to N(0, 1)^2: (4 - 1 + 1) / 2 - log 2 = 1.306853
    other = DiagonalGaussian(torch.zeros(2), torch.ones(2))
    assert distribution.kl(other).item() == pytest.approx(1.306853, abs=1e-5)
    assert distribution.sample(torch.tensor([1.0, -1.0])).tolist() == [3.0, -1.0]
    assert distribution.mode().tolist() == [1.0, 0.0]


@given(numbers, spreads, numbers, spreads, numbers)
def test_against_torch(mean, std, other_mean, other_std, value):
    ours = DiagonalGaussian(torch.tensor([mean]), torch.tensor([std]))
    other = DiagonalGaussian(torch.tensor([other_mean]), torch.tensor([other_std]))
    theirs, their_other = reference.Normal(ours.mean, ours.std), reference.Normal(other.mean, other.std)
    action = torch.tensor([value])
    assert torch.allclose(ours.log_prob(action), theirs.log_prob(action).sum(-1), rtol=1e-4, atol=1e-4)
    assert torch.allclose(ours.entropy(), theirs.entropy().sum(-1), atol=1e-5)
    assert torch.allclose(ours.kl(other), reference.kl_divergence(theirs, their_other).sum(-1), rtol=1e-4, atol=1e-4)
    assert ours.kl(other) >= -1e-6
    assert ours.kl(ours) == 0.0


@pytest.mark.parametrize("event", [(), (3,), (2, 3)])
@pytest.mark.parametrize("leading", [(), (5,), (4, 5)])
def test_shapes_of_steps_sequences_and_events(event, leading):
    mean = torch.randn((*leading, *event))
    plain = DiagonalGaussian(mean, mean.exp(), len(event))
    squashed = SquashedGaussian(mean, mean.exp(), torch.tensor(-2.0), torch.tensor(3.0), len(event))
    for distribution in (plain, squashed):
        assert distribution.noise_spec().shape == event
        action = distribution.sample(torch.randn((*leading, *event)))
        assert action.shape == mean.shape == distribution.mode().shape
        for result in (distribution.log_prob(action), distribution.entropy(), distribution.kl(distribution)):
            assert result.shape == leading


def test_sampling_has_the_right_moments():
    mean, std = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    distribution = DiagonalGaussian(mean.expand(20000, 2), std.expand(20000, 2))
    action = distribution.sample(noise_for(distribution, 20000))
    # standard errors are std / sqrt(20000) = 0.004 and 0.021
    assert action.mean(0).tolist() == pytest.approx([1.0, -2.0], abs=0.07)
    assert action.std(0).tolist() == pytest.approx([0.5, 3.0], rel=0.03)


def test_squashed_hand_worked_number():
    # u = 0: tanh'(0) = 1, half range 2, so log N(0; 0, 1) - log 2 = -0.918939 - 0.693147 = -1.612086
    distribution = SquashedGaussian(torch.zeros(1), torch.ones(1), torch.tensor(0.0), torch.tensor(4.0))
    assert distribution.log_prob(torch.tensor([2.0])).item() == pytest.approx(-1.612086, abs=1e-5)
    assert distribution.mode().tolist() == [2.0]


@given(numbers, spreads, st.floats(-0.95, 0.95))
def test_squashed_against_torch(mean, std, scaled):
    ours = SquashedGaussian(torch.full((2,), mean), torch.full((2,), std), LOW, HIGH)
    theirs = reference.TransformedDistribution(
        reference.Normal(ours.mean.double(), ours.std.double()),
        [reference.TanhTransform(), reference.AffineTransform((LOW + HIGH).double() / 2, (HIGH - LOW).double() / 2)],
    )
    action = LOW + (HIGH - LOW) * (scaled + 1.0) / 2.0
    wanted = theirs.log_prob(action.double()).sum(-1).float()
    assert torch.allclose(ours.log_prob(action), wanted, rtol=2e-3, atol=2e-3)


@given(numbers, spreads)
def test_squashed_density_integrates_to_one(mean, std):
    actions = torch.linspace(-1.0, 1.0, 20001, dtype=torch.float64)[1:-1].unsqueeze(-1)
    distribution = SquashedGaussian(
        torch.tensor([mean], dtype=torch.float64),
        torch.tensor([std], dtype=torch.float64),
        torch.tensor(-1.0, dtype=torch.float64),
        torch.tensor(1.0, dtype=torch.float64),
    )
    total = torch.trapezoid(distribution.log_prob(actions).exp(), actions.squeeze(-1))
    # what lies outside the grid: |u| > atanh(1 - 1e-4) = 4.95
    standard = reference.Normal(torch.tensor(mean), torch.tensor(std))
    outside = standard.cdf(torch.tensor(-4.95)) + 1 - standard.cdf(torch.tensor(4.95))
    assert total.item() + outside.item() == pytest.approx(1.0, abs=2e-2)


@given(numbers, spreads, numbers)
def test_saturated_samples_keep_their_exact_log_prob(mean, std, noise):
    distribution = SquashedGaussian(torch.tensor([mean]), torch.tensor([std]), torch.tensor(-1.0), torch.tensor(1.0))
    action, log_prob = distribution.sample_with_log_prob(torch.tensor([noise]))
    value = (distribution.mean + distribution.std * noise).double()
    # in float64 the plain formula still has digits: log N(u) - log(1 - tanh(u)^2)
    wanted = reference.Normal(distribution.mean.double(), distribution.std.double()).log_prob(value)
    wanted = wanted - 2.0 * (math.log(2.0) - value - torch.nn.functional.softplus(-2.0 * value))
    assert torch.allclose(log_prob.double(), wanted.sum(-1), atol=1e-3)
    assert torch.equal(action, distribution.sample(torch.tensor([noise])))
    assert (action.abs() <= 1.0).all()


@given(numbers, st.floats(0.01, 5.0), st.floats(-30, 30))
def test_rounding_never_leaves_the_bounds(low, width, mean):
    lower, upper = torch.tensor(low), torch.tensor(low + width)
    distribution = SquashedGaussian(torch.tensor([mean]), torch.ones(1), lower, upper)
    assert lower <= distribution.mode() <= upper


def test_actions_on_the_bounds_are_finite():
    distribution = SquashedGaussian(torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True), LOW, HIGH)
    log_prob = distribution.log_prob(torch.stack([LOW, HIGH]))
    assert log_prob.isfinite().all()
    log_prob.sum().backward()
    assert distribution.mean.grad.isfinite().all()


@pytest.mark.parametrize("std", [0.05, 0.3, 1.0, 3.0, 5.0])
@pytest.mark.parametrize("mean", [0.0, 0.7, -2.5, 6.0])
def test_squashed_entropy_against_fine_quadrature(mean, std):
    distribution = SquashedGaussian(torch.tensor([mean]), torch.tensor([std]), torch.tensor(-1.0), torch.tensor(3.0))
    z = torch.linspace(-9.0, 9.0, 20001, dtype=torch.float64)
    weight = torch.softmax(-0.5 * z.square(), 0)
    value = mean + std * z
    slope = 2.0 * (math.log(2.0) - value - torch.nn.functional.softplus(-2.0 * value)) + math.log(2.0)
    wanted = math.log(std) + 0.5 * math.log(2 * math.pi * math.e) + (weight * slope).sum().item()
    assert distribution.entropy().item() == pytest.approx(wanted, abs=1e-4)


def test_squashed_entropy_and_kl_against_samples():
    one = SquashedGaussian(torch.tensor([0.4, -0.6]), torch.tensor([0.8, 0.5]), LOW, HIGH)
    other = SquashedGaussian(torch.tensor([0.0, -0.2]), torch.tensor([1.0, 0.7]), LOW, HIGH)
    count = 40000
    many = SquashedGaussian(one.mean.expand(count, 2), one.std.expand(count, 2), LOW, HIGH)
    action, log_prob = many.sample_with_log_prob(noise_for(many, count))
    assert -log_prob.mean().item() == pytest.approx(one.entropy().item(), abs=0.03)
    assert (log_prob - other.log_prob(action)).mean().item() == pytest.approx(one.kl(other).item(), abs=0.03)
    assert one.kl(one) == 0.0


def test_reparameterised_gradients():
    # d mean(sample) / d mean = 1 and / d std = noise for the plain one
    mean, std = torch.zeros(1, requires_grad=True), torch.ones(1, requires_grad=True)
    DiagonalGaussian(mean, std).sample(torch.tensor([1.7])).sum().backward()
    assert (mean.grad.item(), std.grad.item()) == pytest.approx((1.0, 1.7))
    # and for the squashed one the slope 1 - tanh(0.5)^2 = 0.786448
    mean = torch.zeros(1, requires_grad=True)
    squashed = SquashedGaussian(mean, torch.ones(1), torch.tensor(-1.0), torch.tensor(1.0))
    squashed.sample(torch.tensor([0.5])).sum().backward()
    assert mean.grad.item() == pytest.approx(0.786448, abs=1e-5)
    assert squashed.reparameterised


def test_params_store_and_rebuild():
    plain = DiagonalGaussian(torch.randn(4, 3), torch.rand(4, 3) + 0.1)
    squashed = SquashedGaussian(torch.randn(4, 2), torch.rand(4, 2) + 0.1, LOW, HIGH)
    for distribution in (plain, squashed):
        rebuilt = distribution.from_params(distribution.params())
        assert (rebuilt.kl(distribution) == 0).all()
        rows = tree.index(distribution, torch.tensor([2, 0]))
        assert type(rows) is type(distribution)
        assert torch.equal(rows.mean, distribution.mean[[2, 0]])
