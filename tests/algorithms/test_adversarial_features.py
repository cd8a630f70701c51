"""What a discriminator looks at: pairs that never cross an end, masks, and the expert's side."""

from __future__ import annotations

import math

import pytest
import torch
from adversarial_cases import ACT, OBS, linear_term, minibatch_of, rollout

from striderl.algorithms.terms.adversarial import AdversarialConfig, AdversarialReward
from striderl.algorithms.terms.discriminator import (
    InfoVector,
    StateAction,
    StatePair,
    minibatch_steps,
    rollout_steps,
)
from striderl.algorithms.terms.expert import (
    ExpertRows,
    expert_rows,
    fingerprint,
    order_fingerprint,
    places,
    uniform_numbers,
)
from striderl.algorithms.terms.term import Read
from striderl.data.actions import DiscreteSpec
from striderl.data.specs import TensorSpec
from striderl.datasets.offline import replay_of

# -- what is looked at -------------------------------------------------------------------------------------------------


def test_state_and_action_side_by_side():
    steps = rollout_steps(rollout([[[1.0]], [[2.0]]], act=[[[5.0]], [[6.0]]]), {"obs": torch.zeros(1, 1)})
    assert StateAction(OBS, ACT)(steps).tolist() == [[[1.0, 5.0]], [[2.0, 6.0]]]
    choices = StateAction(OBS, DiscreteSpec(n=3))
    assert choices.size == 4
    assert choices(steps._replace(act=torch.tensor([[2], [0]]))).tolist() == [[[1.0, 0, 0, 1]], [[2.0, 1, 0, 0]]]


def test_pairs_never_cross_an_end():
    # env 0 terminates after step 1, env 1 is truncated after step 0, and its step 2 does not count
    columns = rollout(
        [[[1.0], [10.0]], [[2.0], [20.0]], [[3.0], [30.0]]],
        terminated=[[False, False], [True, False], [False, False]],
        truncated=[[False, True], [False, False], [False, False]],
        valid=[[True, True], [True, True], [True, False]],
    )
    steps = rollout_steps(columns, {"obs": torch.tensor([[4.0], [40.0]])})
    pairs = StatePair(OBS)(steps)
    assert steps.follows.tolist() == [[True, False], [False, False], [True, True]]
    assert pairs[0, 0].tolist() == [1.0, 2.0] and pairs[2, 0].tolist() == [3.0, 4.0]
    assert not bool(rollout_steps(columns).follows[2].any())


def test_an_end_whose_next_state_is_not_stored_is_rewarded_like_the_step_before():
    # pairs are scored by s': 2, then the end after step 1 has no s'; step 2 begins anew and leads to 4
    term = linear_term(0.0, 1.0, features=StatePair(OBS), reward="difference", replay_size=8)
    columns = rollout([[[1.0]], [[2.0]], [[3.0]]], truncated=[[False], [True], [False]])
    found = term.reward(Read(columns, {"obs": torch.tensor([[4.0]])}))["style_reward"]
    torch.testing.assert_close(found, torch.tensor([[2.0], [2.0], [4.0]]))
    first = rollout([[[1.0]], [[3.0]]], truncated=[[True], [False]])
    found = term.reward(Read(first, {"obs": torch.tensor([[4.0]])}))["style_reward"]
    torch.testing.assert_close(found, torch.tensor([[0.0], [4.0]]))


def test_a_replay_knows_what_followed_an_end():
    rows = {**rollout([[[1.0]]], terminated=[[True]]), "obs_next": {"obs": torch.tensor([[[7.0]]])}}
    term = linear_term(0.0, 1.0, features=StatePair(OBS), reward="difference")
    found = term.reward(Read(rows, {"obs": torch.tensor([[7.0]])}))["style_reward"]
    torch.testing.assert_close(found, torch.tensor([[7.0]]))


def test_info_columns_are_read_by_name():
    features = InfoVector({"frames": TensorSpec(shape=(2, 2)), "speed": TensorSpec()})
    assert features.size == 5 and set(features.columns()) == {"frames", "speed"}
    info = {"frames": torch.arange(8.0).view(1, 2, 2, 2), "speed": torch.tensor([[8.0, 9.0]])}
    steps = rollout_steps({**rollout([[[0.0], [0.0]]]), "info": info}, {"obs": torch.zeros(2, 1)})
    assert features(steps).tolist() == [[[0.0, 1.0, 2.0, 3.0, 8.0], [4.0, 5.0, 6.0, 7.0, 9.0]]]


def test_samples_over_several_steps_are_read_by_their_first():
    minibatch = {
        "obs": {"obs": torch.tensor([[1.0]])},
        "act": torch.zeros(1, 1),
        "valid": torch.ones(1, dtype=torch.bool),
        "obs_next": {"obs": torch.tensor([[4.0]])},
        "terminated": torch.tensor([True]),
        "num_steps": torch.tensor([3]),
    }
    assert not bool(minibatch_steps(minibatch).follows.any())
    minibatch["single"] = {"obs_next": {"obs": torch.tensor([[2.0]])}, "terminated": torch.tensor([False])}
    steps = minibatch_steps(minibatch)
    assert StatePair(OBS)(steps).tolist() == [[1.0, 2.0]] and not bool(steps.terminated) and bool(steps.follows)


@pytest.mark.parametrize(("features", "config"), [(StatePair(OBS), {}), (StateAction(OBS, ACT), {"absorbing": True})])
def test_what_a_minibatch_of_a_rollout_does_not_say_is_asked_for(features, config):
    term = AdversarialReward(features, ExpertRows(torch.zeros(2, features.size)), AdversarialConfig(**config))
    with pytest.raises(ValueError, match="under 'labels'"):
        term.losses({"obs": {"obs": torch.ones(2, 1)}, "act": torch.ones(2, 1), "valid": torch.ones(2).bool()}, None)


# -- the expert's side -------------------------------------------------------------------------------------------------


def test_rows_are_drawn_by_weight_and_their_moments_are_those_of_draws():
    expert = ExpertRows(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([1.0, 3.0, 0.0]))
    drawn = expert.draw(uniform_numbers(7, torch.tensor(3), 8000, 0))
    assert set(drawn.flatten().tolist()) == {0.0, 1.0}
    assert float(drawn.mean()) == pytest.approx(0.75, abs=0.02)
    assert float(expert.mean) == 0.75 and float(expert.var) == pytest.approx(0.1875)
    assert expert.draw(torch.tensor([0.999999999999], dtype=torch.float64)).item() == 1.0


def test_numbers_depend_on_their_place_alone():
    one, two = (uniform_numbers(1, torch.tensor(number), 500, 1) for number in (5, 6))
    assert torch.equal(one, uniform_numbers(1, torch.tensor(5), 500, 1)) and not torch.equal(one, two)
    assert not torch.equal(one, uniform_numbers(2, torch.tensor(5), 500, 1))
    assert float(one.min()) >= 0.0 and float(one.max()) < 1.0 and float(one.mean()) == pytest.approx(0.5, abs=0.05)


def test_a_fingerprint_sees_values_and_order_but_not_what_does_not_count():
    rows = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    one = fingerprint(minibatch_of(rows))
    assert torch.equal(one, fingerprint(minibatch_of(rows.clone())))
    changed = rows.clone()
    changed[3, 1] += 1e-6
    swapped = rows[torch.tensor([1, 0, 2, 3, 4, 5])]
    assert len({int(one), int(fingerprint(minibatch_of(changed))), int(fingerprint(minibatch_of(swapped)))}) == 3
    spoiled = rows.clone()
    spoiled[2] = math.nan
    masked = [
        {**minibatch_of(each), "valid": torch.tensor([True, True, False, True, True, True])} for each in (rows, spoiled)
    ]
    assert torch.equal(fingerprint(masked[0]), fingerprint(masked[1]))


def test_the_order_of_steps_decides_draws_and_what_fills_a_minibatch_up_does_not():
    place = places(torch.zeros(3, 2))
    assert place.tolist() == [[1, 2], [3, 4], [5, 6]]
    some = place.flatten()[torch.tensor([3, 0, 5])]
    one = order_fingerprint(some)
    assert torch.equal(one, order_fingerprint(torch.cat([some, torch.zeros(2, dtype=torch.int64)])))
    assert not torch.equal(one, order_fingerprint(some.flip(0)))


def test_a_dataset_becomes_rows_without_what_does_not_count():
    steps = {
        "obs": {"obs": torch.tensor([[[1.0], [2.0], [3.0]]])},
        "act": torch.tensor([[[4.0], [5.0], [6.0]]]) / 10.0,
        "rew": torch.zeros(1, 3),
        "terminated": torch.tensor([[True, False, True]]),
        "valid": torch.tensor([[True, True, False]]),
        "obs_next": {"obs": torch.tensor([[[7.0], [8.0], [9.0]]])},
    }
    replay = replay_of(steps, OBS, ACT)
    rows = expert_rows(replay, StatePair(OBS))
    assert rows.features.tolist() == [[1.0, 7.0], [2.0, 8.0]] and rows.num_ends == 1
    torch.testing.assert_close(expert_rows(replay, StateAction(OBS, ACT)).features[0], torch.tensor([1.0, 0.4]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ExpertRows(torch.zeros(0, 2)), "at least one row"),
        (lambda: ExpertRows(torch.tensor([[math.nan]])), "not finite"),
        (lambda: ExpertRows(torch.zeros(2, 1), torch.zeros(2)), "not all 0"),
        (lambda: AdversarialReward(StateAction(OBS, ACT), ExpertRows(torch.zeros(2, 3))), "3 features, the policy's"),
        (lambda: AdversarialConfig(loss="bec"), "Did you mean 'bce'"),
        (lambda: AdversarialConfig(absorbing=True, gamma=1.0), "gamma below 1"),
    ],
)
def test_what_does_not_fit_is_said(make, words):
    with pytest.raises(ValueError, match=words):
        make()
