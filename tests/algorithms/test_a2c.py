"""A2C: losses and targets by hand, values in closed form, small tasks learned, accepted by the trainer."""

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

from striderl.algorithms.on_policy.a2c import A2C, A2CConfig
from striderl.algorithms.on_policy_targets import run_whole
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data import tree
from striderl.envs.classic_control import Pendulum
from striderl.envs.toy import Bandit, BanditConfig, Chain, ChainConfig, ProbeConfig, Terminator, TimeLimit
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer

NAN = float("nan")


# -- losses ------------------------------------------------------------------------------------------------------------


def test_losses_by_hand():
    # log π = -log 2 for both actions, so -mean(log π · A) = log 2 · mean(1, 3) = 2 log 2
    # V = 0.5 everywhere: value loss = mean((0.5 - 1)², (0.5 - 2)²) = (0.25 + 2.25) / 2 = 1.25; entropy = log 2
    a2c = A2C(even_policy(0.5), A2CConfig(value_loss_coef=0.25, entropy_coef=0.1))
    losses, stats = a2c.losses(hand_made([0, 1], [1.0, 3.0], [1.0, 2.0], [True, True]))
    assert {name: weight for name, (weight, _) in losses.items()} == {
        "policy_loss": 1.0, "value_loss": 0.25, "entropy": 0.1,
    }  # fmt: skip
    assert losses["policy_loss"][1].item() == pytest.approx(2 * math.log(2))
    assert losses["value_loss"][1].item() == pytest.approx(1.25)
    assert losses["entropy"][1].item() == pytest.approx(-math.log(2))
    # returns - values are 0.5 and 1.5: variance 0.25, like that of the returns, so nothing is explained
    assert float(stats["explained_variance"]) == pytest.approx(0.0)


def test_samples_that_do_not_count_leave_losses_alone():
    a2c = A2C(even_policy(0.5))
    two = a2c.losses(hand_made([0, 1], [1.0, 3.0], [1.0, 2.0], [True, True]))[0]
    three = a2c.losses(hand_made([0, 1, 1], [1.0, 3.0, 100.0], [1.0, 2.0, 100.0], [True, True, False]))[0]
    assert {name: loss.item() for name, (_, loss) in three.items()} == pytest.approx(
        {name: loss.item() for name, (_, loss) in two.items()}
    )


def test_one_step_of_plain_gradient_descent_by_hand():
    # logits 0: d log π(0) / d logit_0 = 1 - 1/2, d log π(1) / d logit_0 = -1/2; with A = (1, 3) the mean gain has the
    # slope (0.5 · 1 - 0.5 · 3) / 2 = -0.5 along logit_0 and +0.5 along logit_1; the bias moves by the learning rate
    policy = even_policy()
    config = A2CConfig(
        value_loss_coef=0.0, entropy_coef=0.0, learning_rate=0.1, max_grad_norm=0.0, optimizer_class_name="SGD"
    )
    a2c = A2C(policy, config)
    stats = a2c.update(hand_made([0, 1], [1.0, 3.0], [0.0, 0.0], [True, True]), torch.Generator())
    obs = {"obs": torch.ones(1, 1)}
    with torch.no_grad():
        log_prob = policy(obs, {}, {}).distribution.log_prob(torch.tensor([1]))
    # the one input is 1, so weight and bias move alike: logits ∓0.1, and log π(1) = -log(1 + exp(-0.2))
    assert float(log_prob) == pytest.approx(-math.log1p(math.exp(-0.2)), abs=1e-6)
    assert "value_loss" not in stats and float(stats["grad_norm"]) == pytest.approx(1.0)


# -- targets -----------------------------------------------------------------------------------------------------------

# V(s0) = 10, V(s1) = 20, V(s2) = 30, V(s3) = 40; rewards 1, 2, 3; gamma 0.5
BY_HAND = [
    # lambda 1, no end: R2 = 3 + 20 = 23, R1 = 2 + 11.5 = 13.5, R0 = 1 + 6.75 = 7.75
    ({}, [0, 0, 0], [0, 0, 0], [7.75, 13.5, 23.0]),
    ({"lam": 0.0}, [0, 0, 0], [0, 0, 0], [1 + 10, 2 + 15, 3 + 20]),
    ({"num_return_steps": 1}, [0, 0, 0], [0, 0, 0], [1 + 10, 2 + 15, 3 + 20]),
    # two steps: R0 = 1 + 1 + 0.25 · 30, R1 = 2 + 1.5 + 0.25 · 40, and the last sees one step
    ({"num_return_steps": 2}, [0, 0, 0], [0, 0, 0], [9.5, 13.5, 23.0]),
    # a fall in the second step: R1 = 2, R0 = 1 + 1
    ({}, [0, 1, 0], [0, 0, 0], [2.0, 2.0, 23.0]),
    ({"num_return_steps": 3}, [0, 1, 0], [0, 0, 0], [2.0, 2.0, 23.0]),
    # the clock in the second step, where the final observation is worth 8: R1 = 2 + 4, R0 = 1 + 3
    ({}, [0, 0, 0], [0, 1, 0], [4.0, 6.0, 23.0]),
    ({"num_return_steps": 3}, [0, 0, 0], [0, 1, 0], [4.0, 6.0, 23.0]),
]


@pytest.mark.parametrize(("settings", "terminated", "truncated", "expected"), BY_HAND)
def test_targets_by_hand(settings, terminated, truncated, expected):
    env = one_env([10, 20, 30, 40], [1, 2, 3], terminated, truncated, finals=[7, 8, 9])
    targets = prepared(A2C(valued_by_obs(env), A2CConfig(gamma=0.5, **settings)), env, 3)
    assert targets.returns[:, 0].tolist() == expected
    assert targets.advantage[:, 0].tolist() == [found - value for found, value in zip(expected, [10, 20, 30])]


@pytest.mark.parametrize("settings", [{}, {"num_return_steps": 3}])
def test_without_final_observations_the_value_of_the_step_is_the_best_guess(settings):
    # the clock in the second step: R1 = 2 + 0.5 · V(s1) = 12, R0 = 1 + 6
    env = one_env([10, 20, 30, 40], [1, 2, 3], [0, 0, 0], [0, 1, 0])
    targets = prepared(A2C(valued_by_obs(env), A2CConfig(gamma=0.5, **settings)), env, 3)
    assert targets.returns[:, 0].tolist() == [7.0, 12.0, 23.0]


@pytest.mark.parametrize("settings", [{}, {"num_return_steps": 3}])
def test_targets_do_not_look_into_invalid_samples(settings):
    # the second step does not count: the first trusts V(s1) = 20 and so R0 = 1 + 10; R2 = 3 + 20
    env = one_env([10, 20, 30, 40], [1, 2, 3], [0, 0, 0], [0, 0, 0], finals=[7, 8, 9], valid=[1, 0, 1])
    targets = prepared(A2C(valued_by_obs(env), A2CConfig(gamma=0.5, **settings)), env, 3)
    assert targets.returns[:, 0].tolist() == [11.0, 0.0, 23.0]
    assert targets.advantage[:, 0].tolist() == [1.0, 0.0, -7.0]


def test_normalised_advantages():
    env = one_env([10, 20, 30, 40], [1, 2, 3], [0, 0, 0], [0, 0, 0], finals=[7, 8, 9])
    config = A2CConfig(gamma=0.5, lam=0.0, normalize_advantage=True)
    # advantages 1, -3, -7: mean -3, standard deviation sqrt(32 / 3)
    step = 4 / math.sqrt(32 / 3)
    targets = prepared(A2C(valued_by_obs(env), config), env, 3)
    assert targets.advantage[:, 0].tolist() == pytest.approx([step, 0.0, -step], abs=1e-6)


@pytest.mark.parametrize("settings", [{"lam": 0.9}, {"num_return_steps": 2}])
def test_several_values_add_their_advantages_up(settings):
    env = Pendulum(2)
    torch.manual_seed(0)
    config = PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=(4,), num_values=3)
    a2c = A2C(Policy(env.obs_spec, env.action_spec, config), A2CConfig(**settings))
    targets = prepared(a2c, env, 6)
    assert targets.returns.shape == (6, 2, 3) and targets.advantage.shape == (6, 2)
    each = targets.returns - targets.columns["policy"]["value"]
    torch.testing.assert_close(targets.advantage, each.sum(dim=-1), rtol=1e-4, atol=1e-4)
    assert float(a2c.update(targets, torch.Generator())["grad_norm"]) > 0


# -- memory, bad numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "lstm", "gru"])
def test_the_whole_rollout_repeats_what_was_seen(kind):
    env = scripted(*endings(12, 3))
    stages = (NormalizeObs(),) if kind == "plain" else (NormalizeObs(), Remember(type=kind, hidden_size=6))
    a2c = A2C(small_policy(env, stages=stages))
    targets = prepared(a2c, env, 12)
    output = run_whole(a2c.policy, targets)
    stored = targets.columns["policy"]
    torch.testing.assert_close(output.distribution.log_prob(targets.act), stored["log_prob"], rtol=0, atol=1e-5)
    torch.testing.assert_close(output.value, stored["value"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("poison", [NAN, math.inf, 1e30])
@pytest.mark.parametrize("settings", [{}, {"num_return_steps": 2}])
@pytest.mark.parametrize("stages", [(), (Remember(type="lstm", hidden_size=6),)], ids=["plain", "lstm"])
def test_nothing_in_an_invalid_sample_reaches_the_gradient(stages, settings, poison):
    a2c = A2C(small_policy(scripted(*endings(6, 3)), stages=stages), A2CConfig(**settings))
    losses, gradient = gradient_with_poison(a2c, None)
    assert gradient.isfinite().all() and gradient.abs().sum() > 0
    poisoned_losses, poisoned = gradient_with_poison(a2c, poison)
    if not stages:
        assert poisoned_losses == losses and torch.equal(poisoned, gradient)
    # a step that cannot be read is packed apart from its neighbours, which moves the last bits of a memory
    assert poisoned_losses == pytest.approx(losses, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(poisoned, gradient, rtol=1e-5, atol=1e-6)


def test_a_bad_reward_is_left_out():
    env = one_env([1, 2, 3, 4], [1, NAN, 3], [0, 0, 0], [0, 0, 0], finals=[7, 8, 9])
    a2c = A2C(valued_by_obs(env))
    targets = prepared(a2c, env, 3)
    assert targets.counts[:, 0].tolist() == [True, False, True]
    stats = a2c.update(targets, torch.Generator())
    assert all(math.isfinite(float(value)) for value in stats.values())
    assert int(stats["skipped_updates"]) == 0 and float(stats["grad_norm"]) > 0


# -- learning ----------------------------------------------------------------------------------------------------------

FAST = {"learning_rate": 0.02, "optimizer_class_name": "Adam", "max_grad_norm": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_bandit_is_learned(seed):
    env = Bandit(32, config=BanditConfig(num_arms=3, contextual=True))
    a2c = A2C(small_policy(env, seed), A2CConfig(**FAST))
    learn(a2c, env, iterations=50, num_steps=2)
    assert greedy_returns(a2c.policy, env) == [1.0] * 32


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"lam": 0.9}, {"num_return_steps": 5}])
def test_a_chain_is_walked(settings):
    env = Chain(16, config=ChainConfig(num_states=5, max_episode_length=30))
    a2c = A2C(small_policy(env), A2CConfig(gamma=0.8, **FAST, **settings))
    learn(a2c, env, iterations=50, num_steps=10)
    played = Collector(env, PolicyActor(a2c.policy)).collect(n_episode=16)
    assert greedy_returns(a2c.policy, env) == [1.0] * 16
    assert sum(played.lengths) / 16 < 7, "the shortest way has 4 steps; a random walk needs about 20"


@pytest.mark.slow
def test_time_outs_are_worth_what_would_have_followed():
    # reward 1 for ever, cut every 5 steps: V = 1 / (1 - 0.9) = 10; taking the cut for an end would give 4.1 at most
    env = TimeLimit(8, config=ProbeConfig(num_steps=5))
    a2c = A2C(small_policy(env), A2CConfig(gamma=0.9, **{**FAST, "learning_rate": 0.1}))
    learn(a2c, env, iterations=125, num_steps=10)
    assert values_of(a2c.policy, torch.ones(1, 1)).item() == pytest.approx(env.value(0.9), rel=0.02)
    # the fixed point: at the right value, every target is that value
    targets = prepared(a2c, env, 10)
    torch.testing.assert_close(targets.returns, torch.full_like(targets.returns, 10.0), rtol=0.02, atol=0.0)


@pytest.mark.slow
def test_ends_are_worth_nothing_more():
    env = Terminator(8, config=ProbeConfig(num_steps=5))
    a2c = A2C(small_policy(env), A2CConfig(gamma=0.9, **{**FAST, "learning_rate": 0.1}))
    learn(a2c, env, iterations=150, num_steps=10)
    torch.testing.assert_close(values_of(a2c.policy, torch.eye(5)), env.value(0.9), rtol=0.03, atol=0.03)


# -- with the trainer --------------------------------------------------------------------------------------------------


def test_the_trainer_runs_and_resumes_it():
    def trainer() -> Trainer:
        env = Pendulum(4)
        policy = small_policy(env, stages=(NormalizeObs(),))
        return Trainer(
            A2C(policy), Collector(env, PolicyActor(policy)), OnPolicyPlan(num_steps_per_env=5, total_iterations=6)
        )

    one, other = trainer(), trainer()
    records = list(one)
    assert len(records) == 6 and records[-1].num_updates == 6
    for _ in range(3):
        next(other)
    resumed = trainer()
    resumed.load_state_dict(other.state_dict())
    assert len(list(resumed)) == 3
    assert tree.equal(resumed.algorithm.state_dict(), one.algorithm.state_dict())


def test_saved_state_is_a_copy():
    env = Pendulum(2)
    a2c = A2C(small_policy(env))
    saved = a2c.state_dict()
    kept = tree.copy(saved)
    a2c.update(prepared(a2c, env, 4), torch.Generator())
    assert tree.equal(saved, kept) and not tree.equal(a2c.state_dict(), kept)
    a2c.load_state_dict(saved)
    assert tree.equal(a2c.state_dict(), kept)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"gamma": 1.5}, ValueError, "between 0 and 1"),
        ({"learning_rate": 0.0}, ValueError, "positive"),
        ({"num_return_steps": -1}, ValueError, "not negative"),
        ({"num_return_steps": 3, "lam": 0.9}, ValueError, "lam=0.9 has no effect"),
        ({"num_return_steps": 2.5}, TypeError, "wanted int, found float 2.5"),
    ],
)
def test_bad_settings_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        A2CConfig(**settings)


def test_looking_further_than_the_rollout_is_refused():
    a2c = A2C(even_policy(), A2CConfig(num_return_steps=6))
    a2c.check_rollout(6, 1)
    with pytest.raises(ValueError, match="num_return_steps=6 looks further than a rollout of 5 steps"):
        a2c.check_rollout(5, 1)
