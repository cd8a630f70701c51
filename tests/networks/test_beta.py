"""Beta actions: torch.distributions as reference, exact sampling (Kolmogorov and Smirnov), edges and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributions as reference

from striderl.data.noise import draw
from striderl.networks.distributions.beta import NUM_PROPOSALS, BetaDistribution, log_gamma_sample

LOW, HIGH = torch.tensor(-2.0), torch.tensor(3.0)
shapes = st.floats(0.3, 60.0)


def make(alpha: float, beta: float, *leading: int) -> BetaDistribution:
    return BetaDistribution(torch.full((*leading, 1), alpha), torch.full((*leading, 1), beta), LOW, HIGH)


def noise_for(distribution: BetaDistribution, count: int) -> torch.Tensor:
    return draw(distribution.noise_spec(), "a", seed=3, iteration=0, env_index=torch.arange(count), num_steps=1)[0]


def test_hand_worked_numbers():
    # Beta(2, 2) has density 6 x (1 - x): at the middle 1.5; on a range of 5 it is 1.5 / 5 = 0.3
    distribution = make(2.0, 2.0)
    assert distribution.log_prob(torch.tensor([0.5])).item() == pytest.approx(math.log(0.3), abs=1e-5)
    # its peak is (2-1)/(2+2-2) = 1/2 of the way; Beta(2, 4): 1/4 of the way, mean 1/3
    assert distribution.mode().item() == pytest.approx(0.5)
    assert make(2.0, 4.0).mode().item() == pytest.approx(-2.0 + 5.0 / 4.0)
    assert make(2.0, 4.0).mean().item() == pytest.approx(-2.0 + 5.0 / 3.0)
    # Beta(1, 1) is uniform: entropy log 5; without a peak the mode is the middle
    assert make(1.0, 1.0).entropy().item() == pytest.approx(math.log(5.0), abs=1e-5)
    assert make(1.0, 1.0).mode().item() == pytest.approx(0.5)


@pytest.mark.slow
@given(shapes, shapes, shapes, shapes, st.floats(0.01, 0.99))
def test_against_torch(alpha, beta, other_alpha, other_beta, x):
    ours, other = make(alpha, beta), make(other_alpha, other_beta)
    theirs = reference.Beta(ours.alpha.double(), ours.beta.double())
    their_other = reference.Beta(other.alpha.double(), other.beta.double())
    wanted = theirs.log_prob(torch.tensor([x], dtype=torch.float64)).sum() - math.log(5.0)
    assert ours.log_prob(torch.tensor([-2.0 + 5.0 * x])).item() == pytest.approx(wanted.item(), rel=2e-3, abs=2e-3)
    assert ours.entropy().item() == pytest.approx(theirs.entropy().item() + math.log(5.0), rel=1e-4, abs=1e-4)
    kl = reference.kl_divergence(theirs, their_other).item()
    assert ours.kl(other).item() == pytest.approx(kl, rel=1e-4, abs=1e-4)
    assert ours.kl(ours) == 0.0


def cdf(alpha: float, beta: float, x: torch.Tensor) -> torch.Tensor:
    """Integrate the density in t = asin(sqrt(x)), where it is smooth even for shapes below 1."""
    t = torch.linspace(0.0, math.pi / 2, 40001, dtype=torch.float64)[1:-1]
    log_beta = math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta)
    density = (2 * (alpha - 0.5) * t.sin().log() + 2 * (beta - 0.5) * t.cos().log() - log_beta).exp() * 2
    mass = torch.cat([torch.zeros(1, dtype=torch.float64), torch.cumulative_trapezoid(density, t)])
    place = torch.searchsorted(t, x.double().sqrt().asin()).clamp(max=len(t) - 1)
    return mass[place]


@pytest.mark.parametrize(
    ("alpha", "beta"), [(1.0, 1.0), (1.3, 1.0), (2.0, 5.0), (30.0, 4.0), (200.0, 300.0), (0.7, 0.6), (0.5, 3.0)]
)
def test_samples_have_the_exact_distribution(alpha, beta):
    count = 40000
    distribution = make(alpha, beta, count)
    x = ((distribution.sample(noise_for(distribution, count)) - LOW) / (HIGH - LOW)).flatten().sort().values
    expected = cdf(alpha, beta, x)
    steps = torch.arange(1, count + 1, dtype=torch.float64) / count
    statistic = torch.maximum((steps - expected).abs().max(), (expected - steps + 1.0 / count).abs().max())
    # 1.63 / sqrt(n) is passed by 99 of 100 true samples
    assert statistic.item() < 1.63 / math.sqrt(count)


def test_sampling_would_notice_a_wrong_distribution():
    count = 40000
    distribution = make(2.0, 5.0, count)
    x = ((distribution.sample(noise_for(distribution, count)) - LOW) / (HIGH - LOW)).flatten().sort().values
    steps = torch.arange(1, count + 1, dtype=torch.float64) / count
    assert (steps - cdf(2.1, 5.0, x)).abs().max() > 1.63 / math.sqrt(count)


@pytest.mark.parametrize("shape", [1.0, 2.5, 40.0, 0.4])
def test_gamma_moments(shape):
    count = 60000
    noise = torch.randn(count, NUM_PROPOSALS + 1, 2, generator=torch.Generator().manual_seed(5))
    sample = log_gamma_sample(torch.full((count,), shape), noise).exp()
    # mean and variance of Gamma(shape, 1) are both `shape`
    assert sample.mean().item() == pytest.approx(shape, rel=0.03)
    assert sample.var().item() == pytest.approx(shape, rel=0.06)


def test_all_proposals_rejected_still_gives_a_number():
    # z = -50 makes every proposal impossible
    noise = torch.full((1, NUM_PROPOSALS + 1, 2), -50.0)
    assert log_gamma_sample(torch.tensor([1.0]), noise).isfinite().all()


@pytest.mark.slow
@given(shapes, shapes)
def test_bounds_are_inside_and_gradients_finite(alpha, beta):
    a, b = (torch.full((2, 1), value, requires_grad=True) for value in (alpha, beta))
    distribution = BetaDistribution(a, b, LOW, HIGH)
    action = distribution.sample(noise_for(distribution, 2))
    assert not action.requires_grad
    assert not distribution.reparameterised
    assert ((action > LOW) & (action < HIGH)).all()
    edges = torch.stack([LOW, HIGH]).view(2, 1)
    total = distribution.log_prob(edges) + distribution.entropy() + distribution.kl(make(2.0, 3.0, 2))
    assert total.isfinite().all()
    total.sum().backward()
    assert a.grad.isfinite().all()
    assert b.grad.isfinite().all()


def test_large_concentrations_keep_their_digits():
    # float32 lgamma(1e4) is 82099 with a last digit of 0.008: three of them would drown the result
    alpha, beta = 10000.0, 12000.0
    wanted = reference.Beta(torch.tensor(alpha).double(), torch.tensor(beta).double())
    x = alpha / (alpha + beta)
    log_prob = make(alpha, beta).log_prob(torch.tensor([-2.0 + 5.0 * x])).item()
    assert log_prob == pytest.approx(wanted.log_prob(torch.tensor(x).double()).item() - math.log(5.0), abs=5e-2)
    assert make(alpha, beta).entropy().item() == pytest.approx(wanted.entropy().item() + math.log(5.0), abs=1e-4)


@pytest.mark.parametrize("event", [(), (3,), (2, 3)])
def test_shapes(event):
    ones = torch.full((4, 5, *event), 2.0)
    distribution = BetaDistribution(ones, ones, LOW, HIGH, len(event))
    noise = torch.randn(4, 5, *distribution.noise_spec().shape)
    assert distribution.sample(noise).shape == ones.shape
    assert distribution.log_prob(distribution.mode()).shape == (4, 5)
    rebuilt = distribution.from_params(distribution.params())
    assert (rebuilt.kl(distribution) == 0).all()
