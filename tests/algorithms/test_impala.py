"""IMPALA: targets and losses by hand, its two forms, stale rollouts, small tasks learned, accepted by the trainer."""

from __future__ import annotations

import math

import pytest
import torch
from once_rollouts import (
    gradient_with_poison,
    greedy_returns,
    learn,
    one_env,
    prepared,
    small_policy,
    valued_by_obs,
    values_of,
)
from ppo_rollouts import endings, scripted

from striderl.algorithms.on_policy.a2c import A2C, A2CConfig
from striderl.algorithms.on_policy.impala import IMPALA, IMPALAConfig
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data import tree
from striderl.envs.classic_control import Pendulum
from striderl.envs.toy import Bandit, BanditConfig, ProbeConfig, Terminator, TimeLimit
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer

NAN = float("nan")
FORMS = [{}, {"clip": 0.2}]


def gradient_of(algorithm, rollout):
    losses, stats = algorithm.losses(rollout)
    total = torch.stack([weight * loss for weight, loss in losses.values()]).sum()
    grads = torch.autograd.grad(total, list(algorithm.policy.parameters()), allow_unused=True)
    return losses, stats, torch.cat([grad.flatten() for grad in grads if grad is not None])


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "lstm"])
@pytest.mark.parametrize("settings", FORMS, ids=["plain gradient", "clipped"])
def test_on_fresh_rollouts_the_gradient_is_that_of_a2c(settings, kind):
    env = scripted(*endings(12, 3))
    stages = () if kind == "plain" else (Remember(type="lstm", hidden_size=6),)
    policy = small_policy(env, stages=stages)
    both = {"gamma": 0.9, "entropy_coef": 0.02, "value_loss_coef": 0.7}
    impala, a2c = IMPALA(policy, IMPALAConfig(**both, **settings)), A2C(policy, A2CConfig(**both))
    _, stats, found = gradient_of(impala, prepared(impala, env, 12))
    _, _, wanted = gradient_of(a2c, prepared(a2c, env, 12))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert float(stats["ratio_mean"]) == pytest.approx(1.0, abs=1e-5)


# V(s0) = 10, V(s1) = 20, V(s2) = 30, V(s3) = 40; rewards 1, 2, 3; gamma 0.5; ratios 2, 1/2, 2 → rho 1, 1/2, 1
# one-step errors 1 + 10 - 10, 2 + 15 - 20, 3 + 20 - 30 = 1, -3, -7
BY_HAND = [
    # v2 = 30 - 7 = 23; v1 = 20 - 1.5 + 0.25·(-7) = 16.75; v0 = 10 + 1 + 0.5·(-3.25) = 9.375
    # A2 = -7; A1 = 2 + 0.5·23 - 20 = -6.5; A0 = 1 + 0.5·16.75 - 10 = -0.625
    ([0, 0, 0], [0, 0, 0], [9.375, 16.75, 23.0], [-0.625, -6.5, -7.0]),
    # a fall in step 1: error 2 - 20 = -18, v1 = 20 - 9 = 11, v0 = 10 + 1 + 0.5·(-9) = 6.5
    ([0, 1, 0], [0, 0, 0], [6.5, 11.0, 23.0], [1 + 5.5 - 10, -18.0, -7.0]),
    # the clock in step 1 with V(final) = 8: error 2 + 4 - 20 = -14, v1 = 20 - 7 = 13, v0 = 11 - 3.5 = 7.5
    ([0, 0, 0], [0, 1, 0], [7.5, 13.0, 23.0], [1 + 6.5 - 10, -14.0, -7.0]),
]


@pytest.mark.parametrize(("terminated", "truncated", "returns", "advantage"), BY_HAND)
def test_a_stale_rollout_by_hand(terminated, truncated, returns, advantage):
    env = one_env([10, 20, 30, 40], [1, 2, 3], terminated, truncated, finals=[7, 8, 9])
    impala = IMPALA(valued_by_obs(env), IMPALAConfig(gamma=0.5, value_loss_coef=1.0))
    ratio = torch.tensor([[2.0], [0.5], [2.0]])
    rollout = prepared(impala, env, 3)
    log_prob = rollout.log_prob
    losses, stats = impala.losses(rollout._replace(log_prob=log_prob - ratio.log()))  # μ = π / ratio
    # the value loss is the mean squared distance of V to v
    wanted = sum((value - target) ** 2 for value, target in zip([10, 20, 30], returns)) / 3
    assert losses["value_loss"][1].item() == pytest.approx(wanted, rel=1e-5)
    # policy loss: -mean(log π · rho · A)
    weighted = (log_prob[:, 0] * torch.tensor([1.0, 0.5, 1.0]) * torch.tensor(advantage)).mean()
    assert losses["policy_loss"][1].item() == pytest.approx(-weighted.item(), rel=1e-5)
    assert float(stats["ratio_mean"]) == pytest.approx(1.5) and float(stats["ratio_clipped"]) == pytest.approx(2 / 3)
    # the surrogate of the same advantages: min(ratio · A, clip(ratio, 0.8, 1.2) · A); all A are below 0
    clipped = IMPALA(impala.policy, IMPALAConfig(gamma=0.5, clip=0.2))
    losses, _ = clipped.losses(rollout._replace(log_prob=log_prob - ratio.log()))
    surrogate = sum(max(r, min(max(r, 0.8), 1.2)) * a for r, a in zip([2.0, 0.5, 2.0], advantage)) / 3
    assert losses["policy_loss"][1].item() == pytest.approx(-surrogate, rel=1e-5)


def test_values_are_those_of_the_present_critic_and_not_the_stored_ones():
    env = one_env([10, 20, 30, 40], [1, 2, 3], [0, 0, 0], [0, 0, 0], finals=[7, 8, 9])
    impala = IMPALA(valued_by_obs(env), IMPALAConfig(gamma=0.5, value_loss_coef=1.0))
    fresh = impala.losses(prepared(impala, env, 3))[0]["value_loss"][1].item()

    def forget(storage):
        storage.data["policy"]["value"].fill_(-100.0)

    stale = impala.losses(prepared(impala, env, 3, forget))[0]["value_loss"][1].item()
    assert stale == pytest.approx(fresh)


def test_each_epoch_has_targets_of_its_own():
    env = Pendulum(4)
    one, two = (
        IMPALA(small_policy(env), IMPALAConfig(num_learning_epochs=count, learning_rate=0.05)) for count in (1, 2)
    )
    assert (one.num_updates_per_rollout, two.num_updates_per_rollout) == (1, 2)
    rollouts = [prepared(each, env, 8) for each in (one, two)]
    one.update(rollouts[0], torch.Generator())
    one.update(rollouts[0], torch.Generator())
    stats = two.update(rollouts[1], torch.Generator())
    assert tree.equal(one.state_dict()["policy"], two.state_dict()["policy"])
    assert float(stats["ratio_mean"]) != 1.0, "the second step corrects for the first"


def test_several_values_add_their_advantages_up():
    env = Pendulum(2)
    torch.manual_seed(0)
    config = PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=(4,), num_values=3)
    impala = IMPALA(Policy(env.obs_spec, env.action_spec, config), IMPALAConfig(normalize_advantage=True))
    assert float(impala.update(prepared(impala, env, 6), torch.Generator())["grad_norm"]) > 0


# -- bad numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [NAN, math.inf, 1e30])
@pytest.mark.parametrize("settings", FORMS, ids=["plain gradient", "clipped"])
@pytest.mark.parametrize("stages", [(), (Remember(type="lstm", hidden_size=6),)], ids=["plain", "lstm"])
def test_nothing_in_an_invalid_sample_reaches_the_gradient(stages, settings, poison):
    impala = IMPALA(small_policy(scripted(*endings(6, 3)), stages=stages), IMPALAConfig(**settings))
    losses, gradient = gradient_with_poison(impala, None)
    assert gradient.isfinite().all() and gradient.abs().sum() > 0
    poisoned_losses, poisoned = gradient_with_poison(impala, poison)
    assert poisoned_losses == pytest.approx(losses, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(poisoned, gradient, rtol=1e-5, atol=1e-6)


# -- learning ----------------------------------------------------------------------------------------------------------

FAST = {"learning_rate": 0.02, "optimizer_class_name": "Adam", "max_grad_norm": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"clip": 0.2, "num_learning_epochs": 3}], ids=["plain", "clipped"])
def test_a_bandit_is_learned(settings):
    env = Bandit(32, config=BanditConfig(num_arms=3, contextual=True))
    impala = IMPALA(small_policy(env), IMPALAConfig(**FAST, **settings))
    learn(impala, env, iterations=50, num_steps=2)
    assert greedy_returns(impala.policy, env) == [1.0] * 32


@pytest.mark.slow
def test_time_outs_are_worth_what_would_have_followed_and_ends_nothing():
    # reward 1 for ever, cut every 5 steps: V = 1 / (1 - 0.9) = 10; taking the cut for an end would give 4.1 at most
    config = IMPALAConfig(gamma=0.9, **{**FAST, "learning_rate": 0.1})
    env = TimeLimit(8, config=ProbeConfig(num_steps=5))
    impala = IMPALA(small_policy(env), config)
    learn(impala, env, iterations=125, num_steps=10)
    assert values_of(impala.policy, torch.ones(1, 1)).item() == pytest.approx(env.value(0.9), rel=0.02)
    env = Terminator(8, config=ProbeConfig(num_steps=5))
    impala = IMPALA(small_policy(env), config)
    learn(impala, env, iterations=150, num_steps=10)
    torch.testing.assert_close(values_of(impala.policy, torch.eye(5)), env.value(0.9), rtol=0.03, atol=0.03)


# -- with the trainer --------------------------------------------------------------------------------------------------


def test_the_trainer_runs_and_resumes_it():
    def trainer() -> Trainer:
        env = Pendulum(4)
        policy = small_policy(env, stages=(NormalizeObs(),))
        config = IMPALAConfig(num_learning_epochs=2, clip=0.2)
        plan = OnPolicyPlan(num_steps_per_env=5, total_iterations=6)
        return Trainer(IMPALA(policy, config), Collector(env, PolicyActor(policy)), plan)

    one, other = trainer(), trainer()
    records = list(one)
    assert len(records) == 6 and records[-1].num_updates == 12
    for _ in range(3):
        next(other)
    resumed = trainer()
    resumed.load_state_dict(other.state_dict())
    assert len(list(resumed)) == 3
    assert tree.equal(resumed.algorithm.state_dict(), one.algorithm.state_dict())


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"gamma": 1.5}, ValueError, "between 0 and 1"),
        ({"learning_rate": 0.0}, ValueError, "positive"),
        ({"c_bar": 2.0}, ValueError, "at most rho_bar, found 2.0 and 1.0"),
        ({"clip": 0.0}, ValueError, "clip is between 0 and 1, or None"),
        ({"num_learning_epochs": 0}, ValueError, "at least 1"),
        ({"clip_param": 0.2}, TypeError, "clip"),
    ],
)
def test_bad_settings_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        IMPALAConfig(**settings)
