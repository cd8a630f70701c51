"""IQL: losses by hand, expectiles in closed form, and that it finds the better of the actions in the data."""

from __future__ import annotations

import math

import pytest
import torch
from offline_sets import BOX, dataset, greedy, learner, rare_best, steps_of, train

from striderl.algorithms.offline.iql import IQL, IQLConfig
from striderl.data.specs import ObsSpec
from striderl.ops.td import advantage_weight, expectile
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.value_functions import QFunction, QFunctionConfig, ValueFunction


def test_expectiles_by_hand():
    difference = torch.tensor([2.0, -2.0, 0.0])
    torch.testing.assert_close(expectile(difference, 0.7), torch.tensor([0.7 * 4.0, 0.3 * 4.0, 0.0]))
    # halves at 0 and at 1: 0.9 · (1 - m) = 0.1 · m, so the 0.9-expectile is 0.9
    grid = torch.linspace(0.0, 1.0, 1001)
    loss = expectile(torch.tensor([[0.0], [1.0]]) - grid, 0.9).mean(dim=0)
    assert float(grid[loss.argmin()]) == pytest.approx(0.9)


def test_weights_by_hand():
    found = advantage_weight(torch.tensor([0.5, -1.0, 1000.0]), 2.0)
    torch.testing.assert_close(found, torch.tensor([math.e, math.exp(-2.0), 100.0]))


def by_hand(**config):
    """V = s, Q_0 = a, Q_1 = 3."""
    spec = ObsSpec.from_flat(1)
    policy = ActorPolicy(spec, BOX, ActorConfig(hidden_dims=()))
    critic = QFunction(spec, BOX, QFunctionConfig(hidden_dims=()))
    value = ValueFunction(spec, QFunctionConfig(hidden_dims=()))
    with torch.no_grad():
        (layer,) = critic.members.model
        layer.weight.copy_(torch.tensor([[[0.0], [1.0]], [[0.0], [0.0]]]))
        layer.bias.copy_(torch.tensor([[[0.0]], [[3.0]]]))
        value.head.layer.weight.fill_(1.0)
        value.head.layer.bias.zero_()
    return IQL(policy, critic, value, IQLConfig(**config))


def test_the_losses_by_hand():
    algorithm = by_hand(expectile=0.8, temperature=2.0)
    minibatch = {
        "obs": {"obs": torch.tensor([[0.5], [0.5]])},
        "act": torch.tensor([[1.0], [0.0]]),
        "valid": torch.ones(2, dtype=torch.bool),
        "weight": None,
        "q_value": torch.tensor([1.0, 0.0]),
        "advantage": torch.tensor([0.5, -0.5]),
        "target": torch.tensor([2.0, 1.0]),
    }
    losses, numbers = algorithm.value_losses(minibatch)
    # Q - V = ±0.5: (0.8 · 0.25 + 0.2 · 0.25) / 2
    assert float(losses["value_loss"][1]) == pytest.approx(0.125) and float(numbers["value"]) == 0.5
    losses, _ = algorithm.critic_losses(minibatch)
    # (1 - 2)² + (3 - 2)² and (0 - 1)² + (3 - 1)²
    assert float(losses["critic_loss"][1]) == pytest.approx((2.0 + 5.0) / 2.0)
    losses, _ = algorithm.actor_losses(minibatch)
    distribution = algorithm.policy.act(minibatch["obs"], {}, {})[0]
    likely = distribution.log_prob(minibatch["act"])
    wanted = -(math.exp(1.0) * likely[0] + math.exp(-1.0) * likely[1]) / 2.0
    torch.testing.assert_close(losses["actor_loss"][1], wanted)


def test_a_step_asks_the_right_networks_in_the_right_order():
    # rate 0 leaves all as they are; the target is r + discount · V(s'), the least of the targets is compared with V
    algorithm = by_hand(learning_rate=0.0, gamma=0.9, expectile=0.5)
    sample = {
        "obs": {"obs": torch.tensor([[0.5]])},
        "obs_next": {"obs": torch.tensor([[4.0]])},
        "act": torch.tensor([[1.0]]),
        "rew": torch.tensor([2.0]),
        "discount": torch.tensor([0.9]),
        "valid": torch.tensor([True]),
    }
    numbers = algorithm.update(sample, None, {})
    assert float(numbers["advantage"]) == pytest.approx(1.0 - 0.5)
    assert float(numbers["value_loss"]) == pytest.approx(0.5 * 0.25)
    # y = 2 + 0.9 · 4 = 5.6: (1 - 5.6)² + (3 - 5.6)²
    assert float(numbers["critic_loss"]) == pytest.approx(4.6**2 + 2.6**2, rel=1e-5)
    ended = algorithm.update({**sample, "discount": torch.tensor([0.0])}, None, {})
    assert float(ended["critic_loss"]) == pytest.approx((1.0 - 2.0) ** 2 + (3.0 - 2.0) ** 2, rel=1e-5)


@pytest.mark.slow
def test_it_finds_what_is_rare_but_better():
    algorithm = learner("iql", expectile=0.9, temperature=10.0)
    train(algorithm, dataset(algorithm, rare_best()), 400)
    assert float(greedy(algorithm, {"obs": torch.ones(1, 1)})) > 0.3


@pytest.mark.slow
def test_it_finds_the_choice_that_is_rare_but_better():
    act = (torch.arange(200) % 10 == 0).long()
    algorithm = learner("iql choices", expectile=0.9, temperature=10.0)
    train(algorithm, dataset(algorithm, steps_of(torch.ones(200, 1), act, act.float())), 250)
    assert int(greedy(algorithm, {"obs": torch.ones(1, 1)})) == 1


@pytest.mark.slow
def test_at_temperature_zero_it_is_cloning():
    algorithm = learner("iql", temperature=0.0, rate=1e-2)
    train(algorithm, dataset(algorithm, rare_best()), 250)
    assert float(greedy(algorithm, {"obs": torch.ones(1, 1)})) == pytest.approx(-0.4, abs=0.07)


@pytest.mark.slow
def test_the_value_is_the_expectile_of_the_data():
    # ends at once, pays 0 or 1 with even odds whatever is done: Q = 1/2, while returns 0 and 1 of two actions give 0.9
    algorithm = learner("iql", expectile=0.9, rate=1e-2, tau=0.5)
    act = torch.where(torch.arange(200) % 2 == 0, 0.5, -0.5).unsqueeze(1)
    train(algorithm, dataset(algorithm, steps_of(torch.ones(200, 1), act, (act[:, 0] > 0).float())), 300)
    with torch.no_grad():
        assert float(algorithm.value({"obs": torch.ones(1, 1)})) == pytest.approx(0.9, abs=0.05)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="expectile is in"):
        IQLConfig(expectile=1.0)
    with pytest.raises(ValueError, match="no likelihood"):
        spec = ObsSpec.from_flat(1)
        policy = ActorPolicy(spec, BOX, ActorConfig(head="deterministic"))
        IQL(policy, QFunction(spec, BOX), ValueFunction(spec))
