"""The mistakes of a first day: each is named at construction, with the way out."""

from __future__ import annotations

import logging

import pytest
import torch
from runner_configs import isaac_lab_two

from striderl.algorithms.on_policy.a2c import A2C
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.terms.rnd import RandomNetworkDistillation
from striderl.collect.collector import Collector
from striderl.envs.classic_control import CartPole, Pendulum
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.rollout_presets import QueueRolloutStorage
from striderl.training.plans import OffPolicyPlan, OnPolicyPlan
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner
from striderl.training.trainer import Trainer


@pytest.fixture
def env():
    return CartPole(4)


@pytest.fixture
def policy(env):
    torch.manual_seed(0)
    return Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(8,), critic_hidden_dims=(8,)))


@pytest.mark.parametrize(
    ("config", "wrong", "meant"),
    [
        (PPOConfig, "clip_parm", "clip_param"),
        (PolicyConfig, "actor_hiden_dims", "actor_hidden_dims"),
        (OnPolicyPlan, "num_step_per_env", "num_steps_per_env"),
        (OffPolicyPlan, "bach_size", "batch_size"),
    ],
)
def test_an_unknown_field_comes_with_a_suggestion(config, wrong, meant):
    with pytest.raises(TypeError, match=rf"{config.__name__} has no field '{wrong}'. Did you mean '{meant}'\?"):
        config(**{wrong: 1})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("entropy_coef", float("nan"), ": wanted a finite number, found nan"),
        ("learning_rate", float("inf"), ": wanted a finite number, found inf"),
        ("desired_kl", -0.1, " is finite and not negative"),
        ("max_grad_norm", -1.0, " is finite and not negative"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(name, value, message):
    with pytest.raises(ValueError, match=f"PPOConfig.{name}{message}"):
        PPOConfig(**{name: value})


def test_what_is_no_policy_or_config_is_named(policy):
    with pytest.raises(TypeError, match=r"PPO wants a PPOConfig, found dict; from a dict: PPOConfig\(\*\*settings\)"):
        PPO(policy, {"gamma": 0.9})
    with pytest.raises(TypeError, match=r"wants a striderl.policies.Policy, found NoneType; .* striderl.compat.PPO"):
        PPO(None)
    with pytest.raises(TypeError, match=r"A2C wants a striderl.policies.Policy, found str"):
        A2C("policy")


def test_one_term_without_a_list_is_named(policy, env):
    with pytest.raises(TypeError, match=r"terms wants a list, found one RandomNetworkDistillation"):
        PPO(policy, PPOConfig(), RandomNetworkDistillation(env.obs_spec, 4))


def test_a_term_for_another_number_of_envs_is_refused_before_anything_runs(policy, env):
    ppo = PPO(policy, PPOConfig(), [RandomNetworkDistillation(env.obs_spec, 5)])
    with pytest.raises(ValueError, match="was made for 5 envs, this rollout has 4"):
        Trainer(ppo, Collector(env, ppo.actor()), OnPolicyPlan(num_steps_per_env=4))


def test_a_misspelt_reward_is_refused_before_anything_runs_with_terms_too(env):
    torch.manual_seed(0)
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(num_values=2))
    config = PPOConfig(reward_groups={"task": ("env",), "new": ("rnd_rewrad",)})
    ppo = PPO(policy, config, [RandomNetworkDistillation(env.obs_spec, 4)])
    with pytest.raises(KeyError, match="Did you mean 'rnd_reward'"):
        Trainer(ppo, Collector(env, ppo.actor()), OnPolicyPlan(num_steps_per_env=4))


def test_a_queue_of_old_rollouts_is_no_storage_for_ppo(policy, env):
    ppo = PPO(policy)
    collector = Collector(env, ppo.actor())
    queue = QueueRolloutStorage(collector.columns(), 4, 4, buffer_dilation_ratio=2.0)
    with pytest.raises(ValueError, match="PPO learns from fresh rollouts; a QueueRolloutStorage keeps old ones"):
        Trainer(ppo, collector, OnPolicyPlan(num_steps_per_env=4), storage=queue)


def test_a_config_for_another_runner_is_said(caplog):
    with caplog.at_level(logging.WARNING):
        OnPolicyRunner(Pendulum(4), {**isaac_lab_two(), "class_name": "TwoStageRunner"})
    assert "train_cfg names the runner TwoStageRunner, this is OnPolicyRunner" in caplog.text
