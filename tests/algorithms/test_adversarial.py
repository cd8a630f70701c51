"""The adversarial reward: numbers by hand, what the discriminator sees, and that nothing leaks to either side."""

from __future__ import annotations

import math

import pytest
import torch
from adversarial_cases import ACT, OBS, Linear, linear_term, make_term, minibatch_of, opposite_expert, rollout
from torch import nn

from striderl.algorithms.terms.adversarial import AdversarialConfig, AdversarialReward
from striderl.algorithms.terms.discriminator import (
    StateAction,
    StatePair,
)
from striderl.algorithms.terms.expert import ExpertRows
from striderl.algorithms.terms.term import Read
from striderl.data.specs import ObsSpec
from striderl.execution.capture import check_capture
from striderl.execution.modes import Compiled
from striderl.execution.updater import Updater
from striderl.ops.imitation import expert_loss, policy_loss, squared_slope, style_reward
from striderl.ops.moments import pooled

# -- numbers by hand ---------------------------------------------------------------------------------------------------


def test_losses_by_hand():
    score = torch.tensor([0.0, 1.0, -1.0])
    torch.testing.assert_close(expert_loss("least_squares", score), torch.tensor([0.5, 0.0, 2.0]))
    torch.testing.assert_close(policy_loss("least_squares", score), torch.tensor([0.5, 2.0, 0.0]))
    # D(0) = 1/2, D(1) = 0.7311
    torch.testing.assert_close(expert_loss("bce", score)[:2], torch.tensor([math.log(2.0), -math.log(0.7310586)]))
    torch.testing.assert_close(policy_loss("bce", score)[:2], torch.tensor([math.log(2.0), -math.log(1 - 0.7310586)]))
    torch.testing.assert_close(policy_loss("wasserstein", score), score)
    torch.testing.assert_close(expert_loss("wasserstein", score), -score)


def test_rewards_by_hand():
    score = torch.tensor([0.0, 2.0])
    sure = 1.0 / (1.0 + math.exp(-2.0))
    torch.testing.assert_close(style_reward("log_d", score), torch.tensor([math.log(0.5), math.log(sure)]))
    wanted = torch.tensor([math.log(2.0), -math.log(1.0 - sure)])
    torch.testing.assert_close(style_reward("minus_log_one_minus_d", score), wanted)
    torch.testing.assert_close(style_reward("difference", score), score)
    # 1 - 1/4 at 0; the best at 1; 0 from -1 on and from 3 on
    scores = torch.tensor([0.0, 1.0, -1.0, 3.0, -5.0])
    torch.testing.assert_close(style_reward("least_squares", scores), torch.tensor([0.75, 1.0, 0.0, 0.0, 0.0]))


def test_the_slope_is_that_of_the_score_and_its_gradient_reaches_the_weights():
    # score = w · x with w = (3, 4): slope 5 everywhere; d|w|²/dw = 2 w
    network = Linear(3.0, 4.0)
    slope = squared_slope(network, torch.randn(5, 2))
    torch.testing.assert_close(slope, torch.full((5,), 25.0))
    (grad,) = torch.autograd.grad(slope.mean(), network.weight)
    torch.testing.assert_close(grad, torch.tensor([6.0, 8.0]))
    # (5 - 1)² = 16, and 2 · 4 · w / 5
    slope = squared_slope(network, torch.randn(5, 2), wanted=1.0)
    torch.testing.assert_close(slope, torch.full((5,), 16.0))
    (grad,) = torch.autograd.grad(slope.mean(), network.weight)
    torch.testing.assert_close(grad, torch.tensor([4.8, 6.4]))


def test_the_penalty_counts_what_the_discriminator_sees():
    # features with a spread of 10 are divided by 10 before they are seen: in what is seen the slope is 1, not 1/10
    expert = ExpertRows(torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)) * 10.0)
    config = AdversarialConfig(gradient_penalty=1.0)
    term = AdversarialReward(StateAction(OBS, ACT), expert, config, network=Linear(1.0, 0.0))
    losses = term.losses(
        {"obs": {"obs": torch.randn(8, 1)}, "act": torch.randn(8, 1), "valid": torch.ones(8).bool()}, None
    )
    torch.testing.assert_close(losses["discriminator_gradient_penalty"][1], torch.tensor(1.0))


def test_task_and_style_have_named_weights():
    term = linear_term(1.0, 0.0, reward="difference", task_weight=0.25, style_weight=2.0)
    found = term.reward(Read(rollout([[[3.0]], [[-1.0]]], rew=[[4.0], [8.0]]), {"obs": torch.zeros(1, 1)}))
    # 4 · 0.25 + 2 · 3 and 8 · 0.25 - 2 · 1, once the env's own is added
    assert found["style_reward"].tolist() == [[6.0], [-2.0]]
    assert found["task_reward_correction"].tolist() == [[-3.0], [-6.0]]
    only_style = linear_term(1.0, 0.0, reward="difference").reward(
        Read(rollout([[[3.0]]], rew=[[1e8]]), {"obs": torch.zeros(1, 1)})
    )
    assert float(sum(only_style.values(), start=torch.tensor([[1e8]]))) == 3.0
    assert "task_reward_correction" not in linear_term(1.0, 0.0, task_weight=1.0).reward(
        Read(rollout([[[3.0]]]), {"obs": torch.zeros(1, 1)})
    )


def test_samples_that_do_not_count_have_no_reward_and_do_no_harm():
    term = linear_term(1.0, 0.0, reward="difference")
    columns = rollout([[[3.0], [math.nan]]], rew=[[1.0, math.nan]], valid=[[True, False]])
    found = term.reward(Read(columns, {"obs": torch.zeros(2, 1)}))
    assert found["style_reward"].tolist() == [[3.0, 0.0]]
    assert found["task_reward_correction"].tolist() == [[-1.0, 0.0]]
    before = term.judge.normalizer.statistics.mean.clone()
    term.update_normalization(columns)
    assert bool(term.judge.normalizer.statistics.mean.isfinite().all()) and not torch.equal(
        before, term.judge.normalizer.statistics.mean
    )


# -- absorbing states --------------------------------------------------------------------------------------------------


def test_ending_is_worth_the_absorbing_state_for_ever():
    # score = s + 3 · indicator: 2 in the step, 3 in the absorbing state: 2 + 0.9 / 0.1 · 3 = 29 where the task ended
    term = linear_term(1.0, 0.0, 3.0, reward="difference", absorbing=True, gamma=0.9, replay_size=4)
    columns = rollout([[[2.0], [2.0]]], terminated=[[True, False]], truncated=[[False, True]])
    found = term.reward(Read(columns, {"obs": torch.zeros(2, 1)}))["style_reward"]
    torch.testing.assert_close(found, torch.tensor([[29.0, 2.0]]))


def test_pairs_that_end_lead_into_the_absorbing_state():
    # score = s + 10 s' + 3 · indicator; the end: 2 + 0 + 3, and 9 · 3 after it
    term = linear_term(
        1.0, 10.0, 3.0, features=StatePair(OBS), reward="difference", absorbing=True, gamma=0.9, replay_size=4
    )
    columns = rollout([[[2.0]], [[0.5]]], terminated=[[True], [False]])
    found = term.reward(Read(columns, {"obs": torch.tensor([[0.25]])}))["style_reward"]
    torch.testing.assert_close(found, torch.tensor([[32.0], [3.0]]))


def test_both_sides_know_the_absorbing_state_as_often_as_their_tasks_end():
    features = StateAction(OBS, ACT)
    expert = ExpertRows(torch.ones(30, 2), num_ends=10)
    term = AdversarialReward(features, expert, AdversarialConfig(absorbing=True))
    rows, _ = term.expert_side(minibatch_of(torch.randn(4, 2)), torch.tensor(3), 4000)
    absorbing = rows[:, -1] == 1.0
    assert float(absorbing.float().mean()) == pytest.approx(10 / 40, abs=0.03)
    assert rows[absorbing].unique(dim=0).tolist() == [[0.0, 0.0, 1.0]]
    assert rows[~absorbing].unique(dim=0).tolist() == [[1.0, 1.0, 0.0]]
    minibatch = {
        "obs": {"obs": torch.tensor([[1.0], [2.0]])},
        "act": torch.zeros(2, 1),
        "valid": torch.ones(2, dtype=torch.bool),
        "obs_next": {"obs": torch.zeros(2, 1)},
        "terminated": torch.tensor([False, True]),
    }
    policy, counts = term.policy_side(minibatch, torch.tensor(3))
    assert policy[counts].tolist() == [[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


# -- learning ----------------------------------------------------------------------------------------------------------


def sides(count=512, distance=4.0, seed=0):
    """Two clouds that differ by their mean only."""
    generator = torch.Generator().manual_seed(seed)
    policy, expert = torch.randn(2, count, 2, generator=generator)
    return policy, expert + torch.tensor([distance, 0.0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"loss": "bce"},
        {"loss": "least_squares", "reward": "least_squares", "gradient_penalty": 0.1},
        {"loss": "wasserstein", "penalty_at": "between", "wanted_slope": 1.0, "gradient_penalty": 10.0},
        {"loss": "bce", "replay_size": 512, "weight_decay": 1e-3, "max_grad_norm": 1.0},
    ],
    ids=["bce", "least_squares", "wasserstein", "bce from replay"],
)
def test_an_expert_that_differs_by_its_mean_only_is_told_apart(config):
    # both sides must pass one normaliser: whitened each by itself they would be the same
    policy, expert = sides()
    torch.manual_seed(0)
    settings = AdversarialConfig(hidden_dims=(16,), learning_rate=1e-2, **config)
    term = AdversarialReward(StateAction(OBS, ACT), ExpertRows(expert), settings)
    updater = Updater(term.groups)
    columns = rollout(policy[None, :, :1], act=policy[None, :, 1:])
    for _ in range(10):
        term.update_normalization(columns)
        for start in range(0, 512, 64):
            rows = policy[start : start + 64]
            numbers = updater.step(lambda given: (term.losses(given, None), {}), minibatch_of(rows))
    fresh_policy, fresh_expert = sides(seed=9)
    everything = torch.ones(512, dtype=torch.bool)
    with torch.no_grad():
        scores = [term.judge.score(term.judge.seen(rows, everything)) for rows in (fresh_policy, fresh_expert)]
    middle = 0.5 * (scores[0].mean() + scores[1].mean()) if config["loss"] == "wasserstein" else torch.tensor(0.0)
    right = 0.5 * float((scores[0] < middle).float().mean() + (scores[1] > middle).float().mean())
    assert right > 0.95  # 2 standard deviations each: the best possible is 0.977
    rewards = [style_reward(settings.reward, score).mean() for score in scores]
    assert rewards[1] > rewards[0] + 0.2 and "discriminator_grad_norm" in numbers


def test_the_normaliser_learns_once_from_both_sides_alike_and_never_when_read():
    policy, expert = sides(count=64)
    term = AdversarialReward(StateAction(OBS, ACT), ExpertRows(expert), AdversarialConfig(hidden_dims=(4,)))
    columns = rollout(policy[None, :, :1], act=policy[None, :, 1:])
    before = term.judge.normalizer.statistics.count.clone()
    term.reward(Read(columns, {"obs": torch.zeros(64, 1)}))
    term.losses(minibatch_of(policy), None)
    assert torch.equal(before, term.judge.normalizer.statistics.count)
    term.update_normalization(columns)
    assert float(term.judge.normalizer.statistics.count) == 1.0 + 64 + 64
    wanted = (64 * policy.double().mean(0) + 65 * expert.double().mean(0)) / 129
    torch.testing.assert_close(term.judge.normalizer.mean, wanted, atol=1e-6, rtol=1e-6)


def test_the_ring_of_earlier_samples_keeps_the_newest_that_count():
    term = linear_term(1.0, 0.0, replay_size=4)
    term.update_normalization(rollout([[[1.0]], [[2.0]], [[math.nan]]], valid=[[True], [True], [False]]))
    assert int(term.judge.num_earlier) == 2 and term.judge.earlier[:2, 0].tolist() == [1.0, 2.0]
    term.update_normalization(rollout([[[3.0]], [[4.0]], [[5.0]]]))
    assert sorted(term.judge.earlier[:, 0].tolist()) == [2.0, 3.0, 4.0, 5.0]
    term.update_normalization(rollout([[[6.0]]] * 9))
    assert term.judge.earlier[:, 0].tolist() == [6.0] * 4
    assert bool(term.judge.earlier.isfinite().all())


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_policy_samples_is_drawn_from_earlier_ones(share):
    term = linear_term(1.0, 0.0, replay_size=32, replay_share=share)
    now = minibatch_of(torch.full((4000, 2), 2.0))
    assert term.policy_side(now, torch.tensor(3))[0].unique().tolist() == [2.0], (
        "while there are none, those at hand are taken"
    )
    term.update_normalization(rollout(torch.full((4, 2, 1), 5.0)))
    rows, counts = term.policy_side(now, torch.tensor(3))
    assert bool(counts.all()) and float((rows[:, 0] == 5.0).float().mean()) == pytest.approx(share, abs=0.03)
    masked = {**now, "valid": torch.zeros(4000, dtype=torch.bool)}
    assert not bool(term.policy_side(masked, torch.tensor(3))[1].any())


def test_without_a_policy_sample_nothing_is_learned():
    term = make_term()
    losses = term.losses({**minibatch_of(torch.randn(8, 2)), "valid": torch.zeros(8, dtype=torch.bool)}, None)
    grads = torch.autograd.grad(sum(w * loss for w, loss in losses.values()), list(term.judge.network.parameters()))
    assert all(bool((grad == 0).all()) for grad in grads)


def test_neither_side_has_a_gradient_in_the_other():
    term = make_term()
    policy = nn.Linear(1, 1)
    obs = torch.randn(8, 1)
    act = policy(obs)
    losses = term.losses({"obs": {"obs": obs}, "act": act, "valid": torch.ones(8, dtype=torch.bool)}, None)
    grads = torch.autograd.grad(
        sum(w * loss for w, loss in losses.values()),
        [*policy.parameters(), *term.judge.network.parameters()],
        allow_unused=True,
        retain_graph=True,
    )
    assert grads[0] is None and grads[1] is None and all(grad is not None for grad in grads[2:])
    reward = term.reward(Read(rollout(obs[None], act=act.detach()[None]), {"obs": obs}))
    assert not any(value.requires_grad for value in reward.values())


@pytest.mark.slow
def test_the_losses_can_be_captured():
    term = make_term(replay_size=8, penalty_at="between")
    term.update_normalization(rollout(torch.randn(4, 2, 1), act=torch.randn(4, 2, 1)))
    one, two = (minibatch_of(torch.randn(16, 2)) for _ in range(2))

    def numbers(given):
        return {name: weight * loss for name, (weight, loss) in term.losses(given, None).items()}

    report = check_capture(numbers, [one], fresh_inputs=[two], atol=1e-5, rtol=1e-5, name="adversarial")
    assert report.backward


def test_saved_and_loaded_it_goes_on_bit_for_bit():
    def train(term, updater, first, last):
        for number in range(first, last):
            rows = torch.randn(16, 2, generator=torch.Generator().manual_seed(number))
            updater.step(lambda given: (term.losses(given, None), {}), minibatch_of(rows))
            term.update_normalization(rollout(rows[None, :, :1], act=rows[None, :, 1:]))

    term = make_term(replay_size=32)
    updater = Updater(term.groups)
    train(term, updater, 0, 3)
    saved = term.state_dict(), updater.state_dict()
    train(term, updater, 3, 6)
    other = make_term(replay_size=32)
    with torch.no_grad():
        for parameter in other.judge.parameters():
            parameter.add_(1.0)
    other_updater = Updater(other.groups)
    other.load_state_dict(saved[0])
    other_updater.load_state_dict(saved[1])
    train(other, other_updater, 3, 6)
    for name, value in term.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_the_expert_is_not_in_what_is_saved():
    assert not any(value.shape == opposite_expert().features.shape for value in make_term().state_dict().values())


def test_a_spec_with_several_components():
    spec = ObsSpec.from_segments({"speed": 2, "joints": 3})
    assert StatePair(spec, ["joints"]).size == 6 and StateAction(spec, ACT, ["speed", "joints"]).size == 6


@pytest.mark.slow
def test_a_compiled_step_is_the_eager_step():
    terms = make_term(replay_size=16), make_term(replay_size=16)
    updaters = [Updater(term.groups) for term in terms]
    updaters[1].mode = Compiled(strict=True, backend="aot_eager")
    # one function each: another one would be compiled anew
    functions = [lambda given, term=term: (term.losses(given, None), {}) for term in terms]
    seen = rollout(torch.randn(4, 2, 1), act=torch.randn(4, 2, 1))
    for number in range(2):
        rows = torch.randn(16, 2, generator=torch.Generator().manual_seed(number))
        for term in terms:
            term.update_normalization(seen)
        one, two = (updater.step(function, minibatch_of(rows)) for updater, function in zip(updaters, functions))
        for name, value in one.items():
            torch.testing.assert_close(two[name], value, atol=1e-5, rtol=1e-4)
    for name, value in terms[0].state_dict().items():
        torch.testing.assert_close(terms[1].state_dict()[name], value, atol=1e-5, rtol=1e-4)


def test_both_sides_weigh_the_same_with_several_processes():
    # two processes with the same three samples: six of the policy, and so six of the expert
    term = linear_term(1.0, 0.0)
    before = float(term.judge.normalizer.statistics.count)
    with pooled(lambda value: 2 * value):
        term.update_normalization(rollout([[[2.0], [2.0], [2.0], [9.0]]], valid=[[True, True, True, False]]))
    assert float(term.judge.normalizer.statistics.count) == before + 6.0 + 6.0
    assert float(term.judge.normalizer.mean[0]) == pytest.approx(2.0 * 6.0 / 13.0)
