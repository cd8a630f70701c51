"""REINFORCE: returns by hand, what is left out without a baseline, values in closed form, small tasks learned."""

from __future__ import annotations

import math

import pytest
import torch
from once_rollouts import (
    even_policy,
    gradient_with_poison,
    greedy_returns,
    hand_made,
    learn,
    one_env,
    prepared,
    small_policy,
    valued_by_obs,
    values_of,
)
from ppo_rollouts import endings, scripted

from striderl.algorithms.on_policy.reinforce import REINFORCE, REINFORCEConfig, ends_within
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data import tree
from striderl.envs.classic_control import CartPole
from striderl.envs.toy import Bandit, BanditConfig, Chain, ChainConfig, ProbeConfig, Terminator, TimeLimit
from striderl.policies.stages import Remember
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer

NAN = float("nan")
RAW = {"normalize_advantage": False}
BARE = {"baseline": False, **RAW}


# -- losses ------------------------------------------------------------------------------------------------------------


def test_losses_by_hand():
    # log π = -log 2, so -mean(log π · A) over the two samples that count = log 2 · (4 - 1) / 2
    # V = 1: value loss = ((1 - 4)² + (1 - 0)²) / 2 = 5
    targets = hand_made([0, 1, 1], [4.0, -1.0, 9.0], [4.0, 0.0, 9.0], [True, True, False])
    losses, stats = REINFORCE(even_policy(1.0)).losses(targets)
    assert losses["policy_loss"][1].item() == pytest.approx(1.5 * math.log(2))
    assert losses["value_loss"][1].item() == pytest.approx(5.0)
    assert float(stats["used_fraction"]) == pytest.approx(2 / 3)
    losses, _ = REINFORCE(even_policy(1.0), REINFORCEConfig(**BARE)).losses(targets)
    assert sorted(losses) == ["entropy", "policy_loss"]


# -- returns -----------------------------------------------------------------------------------------------------------

# V(s0) = 10, V(s1) = 20, V(s2) = 30, V(s3) = 40, finals 7, 8, 9; rewards 1, 2, 3; gamma 0.5
BY_HAND = [
    # cut by the rollout's end: R2 = 3 + 20, R1 = 2 + 11.5, R0 = 1 + 6.75; without a baseline none is known
    ([0, 0, 0], [0, 0, 0], [7.75, 13.5, 23.0], [0, 0, 0]),
    # the episode terminates in the last step: R2 = 3, R1 = 2 + 1.5, R0 = 1 + 1.75
    ([0, 0, 1], [0, 0, 0], [2.75, 3.5, 3.0], [1, 1, 1]),
    # it terminates in the second step, and the next one is cut
    ([0, 1, 0], [0, 0, 0], [2.0, 2.0, 23.0], [1, 1, 0]),
    # the clock cuts the second step, where the final observation is worth 8; the next episode ends
    ([0, 0, 1], [0, 1, 0], [4.0, 6.0, 3.0], [0, 0, 1]),
    # a fall and the clock at once: a fall
    ([0, 1, 0], [0, 1, 0], [2.0, 2.0, 23.0], [1, 1, 0]),
]


@pytest.mark.parametrize(("terminated", "truncated", "expected", "known"), BY_HAND)
def test_returns_by_hand(terminated, truncated, expected, known):
    env = one_env([10, 20, 30, 40], [1, 2, 3], terminated, truncated, finals=[7, 8, 9])
    targets = prepared(REINFORCE(valued_by_obs(env), REINFORCEConfig(gamma=0.5, **RAW)), env, 3)
    assert targets.returns[:, 0].tolist() == expected
    assert targets.advantage[:, 0].tolist() == [found - value for found, value in zip(expected, [10, 20, 30])]
    assert targets.counts.all()
    bare = prepared(REINFORCE(valued_by_obs(env), REINFORCEConfig(gamma=0.5, **BARE)), env, 3)
    assert bare.counts[:, 0].tolist() == [bool(flag) for flag in known]
    # what counts is the return itself, and what does not count is zero
    assert bare.advantage[:, 0].tolist() == [found * flag for found, flag in zip(expected, known)]


def test_an_invalid_step_cuts_what_came_before():
    # the second step does not count; the episode ends in the third
    env = one_env([10, 20, 30, 40], [1, 2, 3], [0, 0, 1], [0, 0, 0], finals=[7, 8, 9], valid=[1, 0, 1])
    targets = prepared(REINFORCE(valued_by_obs(env), REINFORCEConfig(gamma=0.5, **RAW)), env, 3)
    assert targets.returns[:, 0].tolist() == [1 + 0.5 * 20, 0.0, 3.0]
    bare = prepared(REINFORCE(valued_by_obs(env), REINFORCEConfig(gamma=0.5, **BARE)), env, 3)
    assert bare.counts[:, 0].tolist() == [False, False, True]


def test_ends_within_agrees_with_looking_ahead():
    generator = torch.Generator().manual_seed(0)
    terminated = torch.rand(9, 40, generator=generator) < 0.15
    truncated = torch.rand(9, 40, generator=generator) < 0.15
    expected = torch.zeros_like(terminated)
    for env in range(40):
        for step in range(9):
            ahead = step
            while ahead < 8 and not (terminated[ahead, env] or truncated[ahead, env]):
                ahead += 1
            expected[step, env] = terminated[ahead, env]
    assert expected.any() and not expected.all()
    assert torch.equal(ends_within(terminated, truncated), expected)


@pytest.mark.parametrize("poison", [NAN, math.inf, 1e30])
@pytest.mark.parametrize("settings", [{}, BARE], ids=["baseline", "bare"])
@pytest.mark.parametrize("stages", [(), (Remember(type="gru", hidden_size=6),)], ids=["plain", "gru"])
def test_nothing_in_an_invalid_sample_reaches_the_gradient(stages, settings, poison):
    algorithm = REINFORCE(small_policy(scripted(*endings(6, 3)), stages=stages), REINFORCEConfig(**settings))
    losses, gradient = gradient_with_poison(algorithm, None)
    assert gradient.isfinite().all() and gradient.abs().sum() > 0
    poisoned_losses, poisoned = gradient_with_poison(algorithm, poison)
    if not stages:
        assert poisoned_losses == losses and torch.equal(poisoned, gradient)
    # a step that cannot be read is packed apart from its neighbours, which moves the last bits of a memory
    assert poisoned_losses == pytest.approx(losses, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(poisoned, gradient, rtol=1e-5, atol=1e-6)


def test_without_a_baseline_the_critic_does_not_move_and_time_outs_teach_nothing():
    env = TimeLimit(4, config=ProbeConfig(num_steps=3))
    algorithm = REINFORCE(small_policy(env), REINFORCEConfig(**BARE))
    before = algorithm.state_dict()["policy"]
    stats = learn(algorithm, env, iterations=3, num_steps=6)
    assert float(stats["used_fraction"]) == 0.0
    assert tree.equal(algorithm.state_dict()["policy"], before)


# -- learning ----------------------------------------------------------------------------------------------------------

FAST = {"learning_rate": 0.02, "max_grad_norm": 0.0, **RAW}


@pytest.mark.slow
@pytest.mark.parametrize("baseline", [True, False])
def test_a_bandit_is_learned(baseline):
    env = Bandit(32, config=BanditConfig(num_arms=3, contextual=True))
    algorithm = REINFORCE(small_policy(env), REINFORCEConfig(baseline=baseline, **FAST))
    learn(algorithm, env, iterations=60, num_steps=2)
    assert greedy_returns(algorithm.policy, env) == [1.0] * 32


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {**BARE, "normalize_advantage": True}], ids=["baseline", "normalised"])
def test_a_chain_is_walked(settings):
    env = Chain(16, config=ChainConfig(num_states=5, max_episode_length=30))
    algorithm = REINFORCE(small_policy(env), REINFORCEConfig(gamma=0.8, **{**FAST, **settings}))
    learn(algorithm, env, iterations=50, num_steps=30)
    played = Collector(env, PolicyActor(algorithm.policy)).collect(n_episode=16)
    assert greedy_returns(algorithm.policy, env) == [1.0] * 16
    assert sum(played.lengths) / 16 < 7, "the shortest way has 4 steps; a random walk needs about 20"


@pytest.mark.slow
def test_time_outs_are_worth_what_would_have_followed():
    # reward 1 for ever, cut every 5 steps: V = 1 / (1 - 0.9) = 10; taking the cut for an end would give 4.1 at most
    env = TimeLimit(8, config=ProbeConfig(num_steps=5))
    algorithm = REINFORCE(small_policy(env), REINFORCEConfig(gamma=0.9, **{**FAST, "learning_rate": 0.1}))
    learn(algorithm, env, iterations=125, num_steps=10)
    assert values_of(algorithm.policy, torch.ones(1, 1)).item() == pytest.approx(env.value(0.9), rel=0.02)
    targets = prepared(algorithm, env, 10)
    torch.testing.assert_close(targets.returns, torch.full_like(targets.returns, 10.0), rtol=0.02, atol=0.0)


@pytest.mark.slow
def test_ends_are_worth_nothing_more():
    env = Terminator(8, config=ProbeConfig(num_steps=5))
    algorithm = REINFORCE(small_policy(env), REINFORCEConfig(gamma=0.9, **{**FAST, "learning_rate": 0.1}))
    learn(algorithm, env, iterations=150, num_steps=10)
    torch.testing.assert_close(values_of(algorithm.policy, torch.eye(5)), env.value(0.9), rtol=0.03, atol=0.03)


# -- with the trainer --------------------------------------------------------------------------------------------------


def test_the_trainer_runs_and_resumes_it_with_memory():
    def trainer() -> Trainer:
        env = CartPole(4)
        policy = small_policy(env, stages=(Remember(type="gru", hidden_size=4),))
        collector = Collector(env, PolicyActor(policy))
        return Trainer(REINFORCE(policy), collector, OnPolicyPlan(num_steps_per_env=8, total_iterations=4))

    one, other = trainer(), trainer()
    records = list(one)
    assert len(records) == 4 and records[-1].metrics["train/used_fraction"] == 1.0
    next(other)
    resumed = trainer()
    resumed.load_state_dict(other.state_dict())
    assert len(list(resumed)) == 3
    assert tree.equal(resumed.algorithm.state_dict(), one.algorithm.state_dict())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": -0.1}, "between 0 and 1"),
        ({"learning_rate": -1.0}, "positive"),
        ({"value_loss_coef": 0.0}, "positive value_loss_coef"),
        ({"baseline": False, "value_loss_coef": 0.5}, "has no effect without a baseline"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        REINFORCEConfig(**settings)
