"""TD3+BC: the actor's loss by hand, and that it finds the better of the actions in the data."""

from __future__ import annotations

import math

import pytest
import torch
from offline_sets import dataset, greedy, learner, rare_best, train

from striderl.algorithms.offline.td3_bc import TD3BC, TD3BCConfig
from striderl.data.actions import BoxSpec
from striderl.data.specs import ObsSpec
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.value_functions import QFunction, QFunctionConfig


def by_hand(bc_alpha=2.5, high=1.0):
    """A policy that always does half of the largest action, and critics Q_0 = s · a, Q_1 = 100."""
    spec = BoxSpec(shape=(1,), low=-high, high=high)
    policy = ActorPolicy(ObsSpec.from_flat(1), spec, ActorConfig(hidden_dims=(), head="deterministic"))
    critic = QFunction(ObsSpec.from_flat(1), spec, QFunctionConfig(hidden_dims=()))
    with torch.no_grad():
        policy.head.layer.linear.weight.zero_()
        policy.head.layer.linear.bias.fill_(math.atanh(0.5))
        (layer,) = critic.members.model
        layer.weight.copy_(torch.tensor([[[0.0], [2.0]], [[0.0], [0.0]]]))
        layer.bias.copy_(torch.tensor([[[0.0]], [[100.0]]]))
    return TD3BC(policy, critic, TD3BCConfig(bc_alpha=bc_alpha))


def minibatch(act, valid=None):
    count = len(act)
    valid = torch.ones(count, dtype=torch.bool) if valid is None else torch.tensor(valid)
    return {"obs": {"obs": torch.ones(count, 1)}, "act": torch.tensor(act), "valid": valid, "weight": None}


def test_the_value_is_brought_to_the_size_of_alpha():
    losses, _ = by_hand().actor_losses(minibatch([[0.1], [0.5]]))
    # Q = 2 · 0.5 = 1 twice, so -1 whatever its size; distances 0.4² and 0
    weight, loss = losses["actor_loss"]
    assert weight == 2.5 and float(loss) == pytest.approx(-1.0)
    assert float(losses["imitation_loss"][1]) == pytest.approx(0.08)


def test_lambda_is_not_differentiated_and_counts_valid_samples():
    algorithm = by_hand()
    losses, _ = algorithm.actor_losses(minibatch([[0.5], [0.5]], [True, False]))
    total = sum(weight * loss for weight, loss in losses.values())
    (grad,) = torch.autograd.grad(total, algorithm.policy.head.layer.linear.bias)
    # -2.5 / |Q| · dQ/da · da/db with |Q| = 1, dQ/da = 2, da/db = 1 - 0.25
    assert float(grad) == pytest.approx(-2.5 * 2.0 * 0.75)


def test_distances_are_in_units_of_half_the_range():
    losses, _ = by_hand(high=4.0).actor_losses(minibatch([[1.0]]))
    assert float(losses["imitation_loss"][1]) == pytest.approx((1.0 / 4.0) ** 2)


def test_targets_are_those_of_td3():
    algorithm = by_hand()
    given = {**minibatch([[0.0], [0.0]]), "obs_next": {"obs": torch.ones(2, 1)}, "rew": torch.tensor([1.0, 1.0])}
    given |= {"discount": torch.tensor([0.9, 0.0]), "noise": {"smoothing": torch.tensor([[10.0], [10.0]])}}
    # the noise is cut at 0.5, the action at 1: min(2, 100); the second sample has terminated
    torch.testing.assert_close(algorithm.targets(given), torch.tensor([1.0 + 0.9 * 2.0, 1.0]))


@pytest.mark.slow
def test_it_finds_what_is_rare_but_better():
    algorithm = learner("td3_bc", bc_alpha=2.5)
    train(algorithm, dataset(algorithm, rare_best()), 400)
    assert float(greedy(algorithm, {"obs": torch.ones(1, 1)})) > 0.3


@pytest.mark.slow
def test_without_the_value_it_is_cloning():
    algorithm = learner("td3_bc", bc_alpha=0.0)
    train(algorithm, dataset(algorithm, rare_best()), 300)
    assert float(greedy(algorithm, {"obs": torch.ones(1, 1)})) == pytest.approx(-0.4, abs=0.07)


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match="bc_alpha is not negative"):
        TD3BCConfig(bc_alpha=-1.0)
