"""Behaviour cloning: losses by hand, and that it copies the data's mix, good or bad."""

from __future__ import annotations

import math

import pytest
import torch
from offline_sets import BOX, dataset, greedy, learner, steps_of, train

from striderl.algorithms.offline.behaviour_cloning import BehaviourCloning, BehaviourCloningConfig
from striderl.data.actions import DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.stages import NormalizeObs
from striderl.training.protocols import UpdateNoise


def minibatch(obs, act, valid=None):
    obs = torch.tensor(obs).unsqueeze(-1)
    valid = torch.ones(len(obs), dtype=torch.bool) if valid is None else torch.tensor(valid)
    return {"obs": {"obs": obs}, "act": torch.tensor(act), "valid": valid, "weight": None}


def set_linear(layer, weight, bias):
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))


def test_the_squared_distance_by_hand():
    algorithm = learner("bc mse", hidden=())
    set_linear(algorithm.policy.head.mean_layer.linear, [[2.0]], [0.5])
    losses, _ = algorithm.losses(minibatch([1.0, -1.0, 9.0], [[2.0], [0.0], [9.0]], [True, True, False]))
    # modes 2.5 and -1.5: (0.25 + 2.25) / 2
    weight, loss = losses["imitation_loss"]
    assert weight == 1.0 and float(loss) == pytest.approx(1.25)


def test_the_likelihood_of_choices_by_hand():
    algorithm = learner("bc choices", hidden=(), action_spec=DiscreteSpec(n=2))
    set_linear(algorithm.policy.head.layer, [[0.0], [0.0]], [0.0, math.log(3.0)])
    losses, _ = algorithm.losses(minibatch([1.0, 1.0], [1, 0]))
    # probabilities 1/4 and 3/4
    assert float(losses["imitation_loss"][1]) == pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2)


def test_the_likelihood_of_numbers_by_hand():
    algorithm = learner("bc", hidden=())
    set_linear(algorithm.policy.head.mean_layer.linear, [[0.0]], [0.5])
    std = float(algorithm.policy.act({"obs": torch.ones(1, 1)}, {}, {})[0].params()["std"])
    losses, _ = algorithm.losses(minibatch([1.0], [[1.5]]))
    wanted = 0.5 / std**2 + math.log(std) + 0.5 * math.log(2.0 * math.pi)
    assert float(losses["imitation_loss"][1]) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_it_copies_the_mix_whatever_it_earned():
    # one in ten took the choice that pays
    algorithm = learner("bc choices", hidden=())
    act = (torch.arange(200) % 10 == 0).long()
    steps = steps_of(torch.ones(200, 1), act, act.float())
    train(algorithm, dataset(algorithm, steps), 400, batch_size=128)
    probabilities = algorithm.policy.act({"obs": torch.ones(1, 1)}, {}, {})[0].params()["log_probs"].exp()
    torch.testing.assert_close(probabilities, torch.tensor([[0.9, 0.1]]), atol=0.05, rtol=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bc", "bc mse"])
def test_it_copies_the_mean(name):
    algorithm = learner(name, hidden=(), rate=1e-2)
    act = torch.where(torch.arange(200) % 10 == 0, 0.5, -0.5).unsqueeze(1)
    train(algorithm, dataset(algorithm, steps_of(torch.ones(200, 1), act, act[:, 0])), 600, batch_size=128)
    assert float(greedy(algorithm, {"obs": torch.ones(1, 1)})) == pytest.approx(-0.4, abs=0.06)


def test_normalisers_learn_from_the_data():
    torch.manual_seed(0)
    policy = ActorPolicy(ObsSpec.from_flat(1), BOX, ActorConfig(hidden_dims=(4,), stages=(NormalizeObs(),)))
    algorithm = BehaviourCloning(policy, BehaviourCloningConfig(loss="mse"))
    steps = steps_of(torch.full((8, 1), 100.0), torch.zeros(8, 1), torch.zeros(8))
    sample = dataset(algorithm, steps).sample(8)
    algorithm.update(sample.data, None, UpdateNoise({}, 8, 0, torch.device("cpu")).at(0))
    algorithm.absorb(sample.data)
    saved = algorithm.state_dict()["policy"]
    assert any(value.numel() == 1 and float(value) == 100.0 for name, value in saved.items() if name.endswith("mean"))


def test_a_head_without_likelihood_is_refused():
    policy = ActorPolicy(ObsSpec.from_flat(1), BOX, ActorConfig(hidden_dims=(), head="deterministic"))
    with pytest.raises(ValueError, match="no likelihood"):
        BehaviourCloning(policy)
    BehaviourCloning(policy, BehaviourCloningConfig(loss="mse"))
    with pytest.raises(ValueError, match="Did you mean 'mse'"):
        BehaviourCloningConfig(loss="mes")
