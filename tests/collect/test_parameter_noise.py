"""Noise in the weights: it is there, it adapts, it resumes; and noise of a different strength in every env."""

from __future__ import annotations

import pytest
import torch

from striderl.algorithms.actor_critic.td3 import TD3, TD3Config
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.collect.actors.behaviours import Greedy, SpreadNoise
from striderl.collect.actors.parameter_noise import ParameterNoiseActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.actions import BoxSpec
from striderl.envs.classic_control.cartpole import CartPole
from striderl.envs.classic_control.pendulum import Pendulum
from striderl.networks.distributions.deterministic import Deterministic
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.stages import Remember
from striderl.policies.value_functions import QFunction, QFunctionConfig
from striderl.training.plans import OffPolicyPlan
from striderl.training.trainer import Trainer


def make_policy(env, weights=0):
    torch.manual_seed(weights)
    return ActorPolicy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(8,), head="deterministic"))


def distance_after(num_draws, *, distance, init_std):
    """Draw policies one after the other, each looked at in 20 steps, and return where the strength went."""
    env = Pendulum(8)
    policy = make_policy(env)
    actor = ParameterNoiseActor(policy, Greedy(), distance=distance, init_std=init_std, factor=1.2, every=100)
    obs = env.reset(0)
    for draw in range(num_draws):
        actor.at(100 * draw)
        for _ in range(3):
            actor.act(obs, {}, {})
    return actor.std.item()


def test_the_strength_grows_when_the_policies_are_too_near_and_shrinks_when_too_far():
    # 1.2 to the power of the draws after the first: each adapts once
    assert distance_after(4, distance=100.0, init_std=0.01) == pytest.approx(0.01 * 1.2**3)
    assert distance_after(4, distance=1e-6, init_std=0.01) == pytest.approx(0.01 / 1.2**3)


def test_actions_are_those_of_other_weights_and_stay_until_the_next_draw():
    env = Pendulum(4)
    policy = make_policy(env)
    actor = ParameterNoiseActor(policy, Greedy(), every=100)
    obs = env.reset(0)
    plain = policy.act(obs, {}, {})[0].mode()
    actor.at(0)
    one = actor.act(obs, {}, {}).actions
    actor.at(99)
    assert torch.equal(one, actor.act(obs, {}, {}).actions) and not torch.equal(one, plain)
    actor.at(100)
    assert not torch.equal(one, actor.act(obs, {}, {}).actions)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["td3", "dqn"])
def test_a_run_goes_on_bit_for_bit(kind):
    def trainer(weights):
        torch.manual_seed(weights)
        plan = OffPolicyPlan(
            num_steps_per_env=10, batch_size=8, learning_starts=20, buffer_size=200, total_iterations=4
        )
        if kind == "td3":
            env = Pendulum(2)
            policy = make_policy(env, weights)
            actor = ParameterNoiseActor(policy, Greedy(), every=30, seed=1)
            critic = QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=(8,)))
            algorithm = TD3(policy, critic, TD3Config(), actor=actor)
        else:
            env = CartPole(2)
            policy = q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(8,)))
            actor = ParameterNoiseActor(policy, Greedy(), every=30, seed=1)
            algorithm = DQN(policy, DQNConfig(), actor=actor)
        return Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=0)), plan), actor

    whole, strength = trainer(0)
    list(whole)
    first, _ = trainer(0)
    next(first), next(first)
    second, other = trainer(9)
    second.load_state_dict(first.state_dict())
    list(second)
    for name, value in whole.algorithm.policy.state_dict().items():
        assert torch.equal(value, second.algorithm.policy.state_dict()[name]), name
    assert strength.std.item() == other.std.item() != pytest.approx(0.1)


def test_what_cannot_be_is_refused():
    env = Pendulum(1)
    config = ActorConfig(hidden_dims=(8,), head="deterministic", stages=(Remember(hidden_size=4),))
    with pytest.raises(ValueError, match="without memory"):
        ParameterNoiseActor(ActorPolicy(env.obs_spec, env.action_spec, config), Greedy())
    with pytest.raises(ValueError, match="factor > 1"):
        ParameterNoiseActor(make_policy(env), Greedy(), factor=1.0)


def test_spread_noise_is_timid_in_the_first_env_and_bold_in_the_last():
    behaviour = SpreadNoise(BoxSpec(shape=(1,), low=-2.0, high=2.0), low=0.0, high=0.5)
    state = behaviour.initial_state(3, torch.device("cpu"))
    noise = {"exploration": torch.ones(3, 1)}
    actions, after = behaviour({}, state, Deterministic(torch.zeros(3, 1)), noise)
    # half the range is 2: 0, 0.25 · 2, 0.5 · 2
    assert actions.flatten().tolist() == pytest.approx([0.0, 0.5, 1.0])
    assert after is state
    actions, _ = behaviour({}, state, Deterministic(torch.ones(3, 1)), {"exploration": 9.0 * noise["exploration"]})
    assert actions.flatten().tolist() == [1.0, 2.0, 2.0]
