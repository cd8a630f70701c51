"""The off-policy and offline training loops: what is counted, what is drawn, and that a run goes on bit for bit."""

from __future__ import annotations

import pytest
import torch

from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.actor_critic.td3 import TD3, TD3Config
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.noise import NoiseSpec
from striderl.envs.classic_control.cartpole import CartPole
from striderl.envs.classic_control.pendulum import Pendulum
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.policy import Policy
from striderl.policies.stages import NormalizeObs
from striderl.policies.value_functions import QFunction, QFunctionConfig
from striderl.training.plans import OfflinePlan, OffPolicyPlan
from striderl.training.protocols import UpdateNoise
from striderl.training.trainer import Trainer

PLAN = OffPolicyPlan(
    num_steps_per_env=6,
    train_every=2,
    num_updates_per_round=3,
    batch_size=16,
    learning_starts=20,
    buffer_size=64,
    total_iterations=4,
)
KINDS = ("dqn", "dqn prioritized", "sac", "td3")


def make_algorithm(kind, env, weights=0):
    torch.manual_seed(weights)
    stages = (NormalizeObs(),)
    if kind.startswith("dqn"):
        config = DQNConfig(prioritized=kind == "dqn prioritized", n_step=2, target_every=5)
        return DQN(q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(8,), stages=stages)), config)
    head = "squashed_gaussian" if kind == "sac" else "deterministic"
    policy = ActorPolicy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(8,), stages=stages, head=head))
    critic = QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=(8,), stages=stages))
    return SAC(policy, critic, SACConfig()) if kind == "sac" else TD3(policy, critic, TD3Config())


def make_trainer(kind="dqn", *, seed=0, weights=0, plan=PLAN):
    env = CartPole(3) if kind.startswith("dqn") else Pendulum(3)
    algorithm = make_algorithm(kind, env, weights)
    return Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=seed)), plan, seed=seed)


def weights_of(trainer):
    return {name: value.clone() for name, value in trainer.algorithm.policy.state_dict().items()}


def same(one, two):
    return all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_updates_are_counted(kind):
    trainer = make_trainer(kind)
    records = list(trainer)
    # warm-up: 20 steps become 21 with 3 envs; an iteration makes 6 · 3 steps in 3 rounds of 3 gradient steps
    assert [record.env_steps for record in records] == [39, 57, 75, 93]
    assert [record.num_updates for record in records] == [9, 18, 27, 36]
    assert all(record.num_steps == 18 for record in records)
    assert "td_error" not in {name.removeprefix("train/") for name in records[0].metrics}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_run_goes_on_bit_for_bit(kind):
    whole = make_trainer(kind)
    list(whole)
    first = make_trainer(kind)
    next(first), next(first)
    second = make_trainer(kind, seed=5, weights=9)  # everything that matters comes from the saved state
    second.load_state_dict(first.state_dict())
    list(second)
    assert same(weights_of(whole), weights_of(second))
    assert second.record == whole.record or second.record.metrics == whole.record.metrics


@pytest.mark.slow
def test_learning_changes_the_weights_and_seeds_differ():
    one, two = make_trainer("sac", seed=1), make_trainer("sac", seed=2)
    before = weights_of(one)
    list(one), list(two)
    assert not same(before, weights_of(one))
    assert not same(weights_of(one), weights_of(two))


def test_the_warm_up_acts_at_random_and_then_does_not():
    trainer = make_trainer("dqn")
    counts = []
    while trainer.phase == "warmup":
        trainer.advance()
        counts.append(trainer.env_steps)
        assert trainer.algorithm.actor().random
    assert counts == [18, 21]  # 20 steps become 21 with 3 envs, at most an iteration's 18 at a time
    trainer.advance()
    assert not trainer.algorithm.actor().random


def test_log_data_has_both_kinds():
    kinds = [log_data["log_type"] for log_data in make_trainer("dqn")()]
    assert kinds == ["collect", "train"] * 4


def test_offline_learns_from_a_filled_replay_alone():
    source = make_trainer("td3")
    list(source)
    replay = source.loop.storage
    plan = OfflinePlan(num_updates_per_iteration=5, batch_size=16, total_iterations=3)
    trainer = Trainer(make_algorithm("td3", Pendulum(3), weights=4), replay, plan)
    before = weights_of(trainer)
    records = list(trainer)
    assert [record.num_updates for record in records] == [5, 10, 15] and records[-1].env_steps == 0
    assert not same(before, weights_of(trainer))


@pytest.mark.slow
def test_offline_goes_on_bit_for_bit():
    source = make_trainer("td3")
    list(source)
    saved = source.loop.storage.state_dict()
    plan = OfflinePlan(num_updates_per_iteration=5, batch_size=16, total_iterations=4)

    def fresh(weights):
        replay = make_trainer("td3").loop.storage
        replay.load_state_dict(saved)
        return Trainer(make_algorithm("td3", Pendulum(3), weights=weights), replay, plan)

    whole, first, second = fresh(1), fresh(1), fresh(2)
    list(whole)
    next(first), next(first)
    second.load_state_dict(first.state_dict())
    list(second)
    assert same(weights_of(whole), weights_of(second))


def test_update_noise_depends_on_its_number_alone():
    specs = {"a": NoiseSpec(shape=(2,), kind="normal")}
    one = UpdateNoise(specs, 4, seed=3, device=torch.device("cpu"))
    two = UpdateNoise(specs, 4, seed=3, device=torch.device("cpu"))
    forward = [one.at(number)["a"].clone() for number in range(70)]
    assert all(torch.equal(two.at(number)["a"], forward[number]) for number in reversed(range(70)))
    assert len({tuple(values.flatten().tolist()) for values in forward}) == 70


def test_parts_that_do_not_fit_are_named():
    env = CartPole(2)
    policy = Policy(env.obs_spec, env.action_spec)
    dqn = make_algorithm("dqn", env)
    collector = Collector(env, dqn.actor())
    with pytest.raises(TypeError, match="such as DQN or SAC, with an OffPolicyPlan, found PPO"):
        Trainer(PPO(policy), collector, PLAN)
    with pytest.raises(TypeError, match="learns from a filled Replay, found Collector"):
        Trainer(dqn, collector, OfflinePlan())
    with pytest.raises(ValueError, match="num_steps_per_env=5 is not a multiple of train_every=2"):
        OffPolicyPlan(num_steps_per_env=5, train_every=2)
    with pytest.raises(ValueError, match="total_steps=8 are over before learning begins, after learning_starts=8"):
        OffPolicyPlan(total_steps=8, learning_starts=8)
    with pytest.raises(ValueError, match=r"OffPolicyPlan\.batch_size is at least 1, found 0"):
        OffPolicyPlan(batch_size=0)
    with pytest.raises(TypeError, match="DQN wants one discrete action, found BoxSpec"):
        q_policy(Pendulum(1).obs_spec, Pendulum(1).action_spec)
