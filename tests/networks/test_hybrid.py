"""Hybrid, deterministic and greedy distributions."""

from __future__ import annotations

import pytest
import torch

from striderl.data import tree
from striderl.data.noise import draw
from striderl.networks.distributions.base import Hybrid
from striderl.networks.distributions.categorical import FORBIDDEN, Categorical
from striderl.networks.distributions.deterministic import Deterministic, QValues
from striderl.networks.distributions.gaussian import DiagonalGaussian, SquashedGaussian


def make() -> Hybrid:
    torch.manual_seed(0)
    return Hybrid(
        {
            "steer": SquashedGaussian(torch.randn(4, 2), torch.ones(4, 2), torch.tensor(-1.0), torch.tensor(1.0)),
            "gear": Categorical.from_logits(torch.randn(4, 3)),
        }
    )


def test_hybrid_is_the_sum_of_its_parts():
    distribution, other = make(), make()
    noise = {"steer": torch.randn(4, 2), "gear": torch.randn(4, 3)}
    action = distribution.sample(noise)
    assert list(action) == ["steer", "gear"]
    steer, gear = distribution.parts["steer"], distribution.parts["gear"]
    wanted = steer.log_prob(action["steer"]) + gear.log_prob(action["gear"])
    assert torch.allclose(distribution.log_prob(action), wanted)
    assert torch.allclose(distribution.entropy(), steer.entropy() + gear.entropy())
    assert (distribution.kl(other) == 0).all()
    assert distribution.mode()["gear"].shape == (4,)
    assert not distribution.reparameterised
    same, log_prob = distribution.sample_with_log_prob(noise)
    assert torch.equal(same["gear"], action["gear"])
    assert torch.allclose(log_prob, distribution.log_prob(action), atol=1e-3)


def test_hybrid_params_are_flat_and_rebuild():
    distribution = make()
    params = distribution.params()
    assert list(params) == ["steer/mean", "steer/std", "gear/log_probs"]
    assert (distribution.from_params(params).kl(distribution) == 0).all()
    assert tree.index(distribution, 1).parts["gear"].log_probs.shape == (3,)
    specs = distribution.noise_spec()
    assert (specs["steer"].kind, specs["gear"].kind) == ("normal", "gumbel")


def test_deterministic():
    one = Deterministic(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    other = Deterministic(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    nothing = draw(one.noise_spec(), "a", seed=0, iteration=0, env_index=torch.arange(2), num_steps=1)[0]
    assert nothing.shape == (2, 0)
    assert one.sample(nothing) is one.mode() is one.value
    assert one.log_prob(one.value).tolist() == one.entropy().tolist() == [0.0, 0.0]
    assert one.kl(one).tolist() == [0.0, 0.0]
    assert one.kl(other).tolist() == [0.0, float("inf")]
    assert one.reparameterised
    assert torch.equal(one.from_params(other.params()).value, other.value)


def test_q_values_are_greedy_over_the_allowed():
    values = torch.tensor([[1.0, 5.0, 3.0], [torch.nan, -2.0, -1.0]])
    mask = torch.tensor([[True, False, True], [False, True, True]])
    distribution = QValues.from_values(values, mask)
    assert distribution.mode().tolist() == [2, 2]
    assert distribution.values[0, 1] == FORBIDDEN
    assert distribution.value_of(torch.tensor([0, 1])).tolist() == [1.0, -2.0]
    assert QValues.from_values(values[:1]).sample(torch.zeros(1, 0)).tolist() == [1]
    assert QValues.from_values(values[:1], torch.zeros(1, 3)).mode().tolist() == [1]
    other = QValues.from_values(torch.zeros(2, 3), mask)
    assert distribution.kl(other).tolist() == [float("inf"), float("inf")]
    assert distribution.kl(distribution).tolist() == [0.0, 0.0]
    assert distribution.log_prob(torch.tensor([0, 1])).shape == (2,) == distribution.entropy().shape
    assert torch.equal(distribution.from_params(other.params()).values, other.values)


def test_distributions_cannot_be_changed():
    distribution = DiagonalGaussian(torch.zeros(2), torch.ones(2))
    with pytest.raises(AttributeError):
        distribution.mean = torch.ones(2)
