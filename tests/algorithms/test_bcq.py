"""BCQ for choices: which are likely enough, losses by hand, and that it does not believe in what nobody did."""

from __future__ import annotations

import math

import pytest
import torch
from offline_sets import dataset, greedy, learner, q_values, steps_of, train

from striderl.algorithms.offline.bcq import Imitated, ImitatedQHead
from striderl.collect.actors.base import RandomActor
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.actions import DiscreteSpec
from striderl.envs.toy import Grid, GridConfig
from striderl.storage.replay.replay import Replay
from striderl.training.evaluation import evaluate

ONE = torch.ones(1, 1)


def head(values, probabilities, threshold=0.3, mask=""):
    """Q-values and likelihoods that are the same everywhere."""
    made = ImitatedQHead(1, len(values), threshold=threshold, mask=mask)
    with torch.no_grad():
        made.value_layer.weight.zero_()
        made.imitation_layer.weight.zero_()
        made.value_layer.bias.copy_(torch.tensor(values))
        made.imitation_layer.bias.copy_(torch.tensor(probabilities).log())
    return made


@pytest.mark.parametrize(("threshold", "wanted"), [(0.0, 0), (0.19, 0), (0.21, 1), (0.3, 1), (0.81, 2), (1.0, 2)])
def test_only_what_is_likely_next_to_the_likeliest_is_chosen(threshold, wanted):
    # 0.1, 0.4, 0.5: next to the likeliest 0.2, 0.8, 1
    assert int(head([5.0, 2.0, 1.0], [0.1, 0.4, 0.5], threshold)(ONE).mode()) == wanted


def test_masks_come_before_likelihoods():
    made = head([5.0, 2.0, 1.0, 9.0], [0.1, 0.3, 0.1, 0.5], mask="mask")
    allowed = torch.tensor([[True, False, True, False]])
    # the two that are left are as likely as each other
    found = made(ONE, {"mask": allowed})
    assert int(found.mode()) == 0
    torch.testing.assert_close(found.log_probs[0, [0, 2]].exp(), torch.tensor([0.5, 0.5]))
    assert int(made(ONE, {"mask": torch.tensor([[False, False, True, True]])}).mode()) == 3


def test_unlikely_choices_have_a_value_all_the_same():
    found = head([5.0, 2.0, 1.0], [0.1, 0.4, 0.5])(ONE)
    assert found.value_of(torch.tensor([0])).item() == 5.0


def test_the_loss_by_hand():
    made = head([5.0, 2.0, 1.0], [0.1, 0.4, 0.5])
    kind = Imitated(logit_penalty=0.5)
    given = {"act": torch.tensor([0]), "target": torch.tensor([4.5])}
    judged = kind.judge(lambda extra=None: made(ONE), given)
    size = sum(math.log(p) ** 2 for p in (0.1, 0.4, 0.5)) / 3
    assert float(judged.loss.detach()) == pytest.approx(0.125 - math.log(0.1) + 0.5 * size, rel=1e-5)
    assert float(judged.error) == 0.5 and float(judged.value) == 5.0


def test_targets_value_the_best_likely_choice_by_hand():
    kind, slow = Imitated(), head([5.0, 2.0, 1.0], [0.1, 0.4, 0.5])
    given = {"rew": torch.tensor([1.0]), "discount": torch.tensor([0.9])}
    # the target's own choice is 1; a choice of the learning network is valued as it is
    torch.testing.assert_close(kind.targets(lambda extra=None: slow(ONE), None, given), torch.tensor([1.0 + 0.9 * 2.0]))
    chosen = kind.targets(lambda extra=None: slow(ONE), torch.tensor([2]), given)
    torch.testing.assert_close(chosen, torch.tensor([1.9]))


@pytest.mark.slow
def test_it_finds_what_is_rare_but_better():
    # 0: 6 of 10 earn 0; 1: 3 of 10 earn 0.5; 2: 1 of 10 earns 1
    act = torch.tensor([0] * 6 + [1] * 3 + [2]).repeat(20)
    reward = torch.tensor([0.0, 0.5, 1.0])[act]
    for threshold, wanted in ((0.1, 2), (0.3, 1), (0.9, 0)):
        algorithm = learner("bcq", action_spec=DiscreteSpec(n=3), threshold=threshold, rate=1e-2, logit_penalty=1e-3)
        train(algorithm, dataset(algorithm, steps_of(torch.ones(200, 1), act, reward)), 200)
        assert int(greedy(algorithm, {"obs": ONE})) == wanted


@pytest.mark.slow
def test_values_do_not_follow_choices_that_nobody_made():
    # choice 1 was never made, so nothing says what it is worth; DQN would bootstrap from whatever it says
    algorithm = learner("bcq", hidden=())
    with torch.no_grad():
        algorithm.policy.head.value_layer.bias.copy_(torch.tensor([0.0, 50.0]))
    algorithm.target.follow(1.0)
    steps = steps_of(torch.ones(64, 1), torch.zeros(64, dtype=torch.int64), torch.ones(64), terminated=False)
    replay = dataset(algorithm, steps)
    train(algorithm, replay, 750)
    # 1 / (1 - 0.5); the bootstrap of the first steps, before the likelihoods are known, is forgotten again
    assert float(q_values(algorithm, ONE, torch.tensor([0]))) == pytest.approx(2.0, abs=0.1)
    assert int(greedy(algorithm, {"obs": ONE})) == 0


@pytest.mark.slow
def test_a_grid_is_crossed_by_the_shortest_path_from_random_moves():
    config = GridConfig(rows=("S..", ".#.", "..G"))
    env = Grid(1, config=config)
    algorithm = learner(
        "bcq", obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(32,), gamma=0.9, threshold=0.1, tau=0.2
    )
    collector = Collector(env, RandomActor(env.action_spec), CollectorConfig(seed=0))
    replay = Replay(collector.columns(), 2000, 1, picker=algorithm.picker(0), view=algorithm.view())
    collector.collect(n_step=2000, storage=replay)
    train(algorithm, replay, 400)
    result = evaluate(Grid(4, config=config), GreedyActor(algorithm.policy), 8, seed=1)
    assert result.mean == pytest.approx(env.optimal_return())


def test_a_threshold_out_of_range_is_refused():
    with pytest.raises(ValueError, match="threshold is between 0 and 1"):
        ImitatedQHead(1, 2, threshold=1.5)
