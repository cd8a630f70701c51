"""Mode 'graphed': whole gradient steps as CUDA graphs equal eager ones; elsewhere it says why it is eager."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.terms.rnd import RandomNetworkDistillation, RNDConfig
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.envs.classic_control.cartpole import CartPole
from striderl.envs.classic_control.pendulum import Pendulum
from striderl.envs.on_device import OnDevice
from striderl.execution import modes
from striderl.execution.background import FallbackError, Switch, built_with
from striderl.execution.modes import Eager, ExecutionConfig, Graphed, mode_of
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.policies.value_functions import QFunction, QFunctionConfig
from striderl.training.experiment.assembly import learner_switch, plan_switch
from striderl.training.plans import OffPolicyPlan, OnPolicyPlan
from striderl.training.trainer import Trainer

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_the_mode_follows_the_device(caplog):
    assert type(mode_of("auto", "cpu")) is Eager and type(mode_of("eager", "cuda")) is Eager
    assert type(mode_of("auto", "cuda")) is Graphed and type(mode_of("graphed", "cuda")) is Graphed
    with caplog.at_level(logging.INFO):
        for name in ("auto", "graphed"):
            shared = mode_of(name, "cuda", alone=False)
            assert isinstance(shared, Eager) and type(shared.collection) is Graphed and not shared.records
        assert mode_of("auto", "cuda").collection.records and not mode_of("auto", "cpu").collection.records
    lines = [each for each in caplog.records if "collection is captured, and updates are eager" in each.message]
    assert [each.levelno for each in lines] == [logging.INFO, logging.WARNING]  # 'auto' takes what works
    with caplog.at_level(logging.INFO):
        assert type(mode_of("auto", "cpu")) is Eager
    assert "gradient steps are eager: the parameters are on cpu (mode='auto'" in caplog.text
    with caplog.at_level(logging.WARNING):
        assert type(mode_of("graphed", "cpu")) is Eager
    assert "the parameters are on cpu. Move them there (--device cuda), or choose 'compiled' or 'auto'" in caplog.text
    with pytest.raises(FallbackError, match="records CUDA graphs, and the parameters are on cpu"):
        mode_of(ExecutionConfig(mode="graphed", strict=True), "cpu")


def test_a_run_is_captured_as_written_first_and_compiled_after_the_switch(monkeypatch):
    monkeypatch.setattr(modes, "has_triton", lambda: True)
    monkeypatch.setattr(modes, "_compiled", lambda program, backend, merged=False: lambda *inputs: "compiled")
    switch = Switch(2, beside=False)
    with built_with(switch):
        mode, explicit = mode_of("auto", "cuda"), mode_of("graphed", "cuda")
    assert explicit.compiles and not mode.compiles and mode.fuses
    function = mode.fuse(lambda value: value)
    monkeypatch.setattr(mode.graphs, "make", lambda inputs, prepare, body, in_place=False: Recorded(body(inputs)))
    for iteration, wanted in ((0, "as written"), (1, "as written"), (2, "compiled"), (3, "compiled")):
        switch.before_iteration(iteration)
        assert function("as written") == wanted
        assert mode.play("key", "as written", function, function) == wanted  # what was captured before is not replayed


class Recorded:
    """Stands in for a captured graph."""

    def __init__(self, outputs):
        self.outputs = outputs

    def play(self, values):
        pass


def test_a_gpu_run_is_compiled_only_where_that_gains_time():
    class Learner:
        num_updates_per_rollout = 20
        config = PPOConfig()

    plan = OnPolicyPlan(num_steps_per_env=24)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert learner_switch("auto", cpu) is not None and learner_switch("auto", cpu, num_ranks=2) is None
    assert learner_switch("auto", cuda, num_ranks=2) is not None
    assert learner_switch("graphed", cuda) is None and learner_switch("eager", cpu) is None
    for iterations, compiles in ((300, False), (10_000, True), (None, True)):
        switch = learner_switch(ExecutionConfig(mode="auto"), cuda)
        assert switch is not None
        plan_switch(switch, plan, 4096, Learner(), iterations, cuda)
        assert bool(switch.given_up) == (not compiles) and switch.at is not None and 100 < switch.at < 500


def ppo_trainer(mode, kind, switch=None):
    env = OnDevice(Pendulum(12), "cuda")
    torch.manual_seed(0)
    stages = (NormalizeObs(), Remember(type="lstm", hidden_size=16)) if kind == "lstm" else (NormalizeObs(),)
    settings = PolicyConfig(actor=stages, critic=stages, actor_hidden_dims=(32,), critic_hidden_dims=(32,))
    policy = Policy(env.obs_spec, env.action_spec, settings).to("cuda")
    terms = [RandomNetworkDistillation(env.obs_spec, 12, RNDConfig(num_outputs=8), "cuda")] if kind == "rnd" else []
    config = PPOConfig(num_learning_epochs=3, num_mini_batches=4, schedule="adaptive", entropy_coef=0.01)
    plan = OnPolicyPlan(num_steps_per_env=7, total_iterations=3)
    with built_with(switch):
        algorithm = PPO(policy, config, terms, mode=mode)
    return Trainer(algorithm, Collector(env, PolicyActor(policy)), plan, switch=switch)


def replay_trainer(mode, kind, switch=None):
    plan = OffPolicyPlan(num_steps_per_env=8, batch_size=32, learning_starts=40, buffer_size=200, total_iterations=3)
    torch.manual_seed(0)
    if kind == "dqn":
        env = OnDevice(CartPole(3), "cuda")
        policy = q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(32,))).to("cuda")
        with built_with(switch):
            algorithm = DQN(policy, replace(DQNConfig(), mode=mode, prioritized=True, target_every=4))
    else:
        env = OnDevice(Pendulum(3), "cuda")
        actor = ActorConfig(hidden_dims=(32,), head="squashed_gaussian")
        policy = ActorPolicy(env.obs_spec, env.action_spec, actor).to("cuda")
        critic = QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=(32,))).to("cuda")
        with built_with(switch):
            algorithm = SAC(policy, critic, replace(SACConfig(), mode=mode))
    with built_with(switch):
        return Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=0)), plan, switch=switch)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=ON_GPU) for kind in ("mlp", "lstm", "rnd", "dqn", "sac")])
def test_graphed_training_equals_eager_training(kind):
    make = replay_trainer if kind in ("dqn", "sac") else ppo_trainer
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False  # eager and recorded code may choose other kernels
    try:
        results = {}
        for mode in ("eager", "graphed", "auto"):
            switch = Switch(2, beside=False) if mode == "auto" else None  # compiled in the last iteration
            trainer = make(mode, kind, switch)
            records = list(trainer)
            assert switch is None or switch.on
            results[mode] = (dict(trainer.algorithm.policy.state_dict()), dict(records[-1].metrics))
    finally:
        torch.backends.cudnn.allow_tf32 = before
    weights, numbers = results["eager"]
    for mode in ("graphed", "auto"):
        other_weights, other_numbers = results[mode]
        for name, value in weights.items():
            torch.testing.assert_close(other_weights[name], value, rtol=1e-4, atol=1e-5, msg=f"{mode} {name}")
        assert numbers.keys() == other_numbers.keys()
        for name, value in numbers.items():
            assert other_numbers[name] == pytest.approx(value, rel=1e-3, abs=1e-4), (mode, name)
