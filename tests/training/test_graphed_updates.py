"""Whole gradient steps as recordings: here the recordings are tapes of torch operations, on the CPU.

What is checked is what does not need a GPU: that a recorded step samples and draws what a step taken by itself does,
decides alike, reads nothing on the host, counts alike, and may change places with it. Real recordings:
test_three_modes_gpu.py.
"""

from __future__ import annotations

import pytest
import torch
from taped_recording import TapedRecording

from striderl.algorithms.actor_critic.crossq import CrossQ, CrossQConfig
from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.actor_critic.td3 import TD3, TD3Config
from striderl.algorithms.reward_terms import SingleStep
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data import tree
from striderl.envs.classic_control.cartpole import CartPole
from striderl.envs.classic_control.pendulum import Pendulum
from striderl.execution.background import Switch
from striderl.execution.capture_watch import CaptureWatch
from striderl.execution.graphed import Graphs, together
from striderl.execution.modes import Graphed
from striderl.execution.parameter_groups import ParameterGroup
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.stages import NormalizeObs
from striderl.policies.value_functions import QFunction, QFunctionConfig
from striderl.storage.replay.device import DeviceSampler
from striderl.storage.replay.samplers import Prioritized
from striderl.storage.replay.views import FrameStack, NStep, OneStep, SequenceView
from striderl.training.graphed_updates import GraphedUpdates, refusal
from striderl.training.plans import OffPolicyPlan
from striderl.training.trainer import Trainer

PLAN = OffPolicyPlan(
    num_steps_per_env=8,
    train_every=2,
    num_updates_per_round=3,  # no multiple of actor_every: rounds begin with either kind of step
    batch_size=24,
    learning_starts=20,
    buffer_size=60,  # 20 steps of 3 envs: the ring goes round in the third iteration
    total_iterations=4,
)


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch):
    """Ask tensors nothing, as on a GPU: neither whether all samples count, nor how long a gradient is."""
    monkeypatch.setattr("striderl.algorithms.replay_parts.all_true", lambda valid: False)
    made = ParameterGroup.__init__

    def made_without_looking(group, *inputs):
        made(group, *inputs)
        group.looks = False

    monkeypatch.setattr(ParameterGroup, "__init__", made_without_looking)


def taped_mode(switch=None):
    mode = Graphed(fused=False, switch=switch)
    mode.graphs.make = TapedRecording
    return mode


def make_trainer(kind, *, recorded, seed=0, weights=0):
    env = CartPole(3) if kind == "dqn" else Pendulum(3)
    torch.manual_seed(weights)
    stages = (NormalizeObs(),)
    if kind == "dqn":
        policy = q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(8,), stages=stages))
        algorithm = DQN(policy, DQNConfig(n_step=2, target_every=5))
    else:
        head = "deterministic" if kind == "td3" else "squashed_gaussian"
        policy = ActorPolicy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(8,), stages=stages, head=head))
        settings = QFunctionConfig(hidden_dims=(8,), stages=stages, batch_renorm=kind == "crossq")
        critic = QFunction(env.obs_spec, env.action_spec, settings)
        learners = {"sac": (SAC, SACConfig()), "td3": (TD3, TD3Config()), "crossq": (CrossQ, CrossQConfig())}
        learner, config = learners[kind]
        algorithm = learner(policy, critic, config)
    trainer = Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=seed)), PLAN, seed=seed)
    if recorded:
        trainer.loop.mode = taped_mode()
        trainer.loop.learner = trainer.loop.new_learner()
        assert isinstance(trainer.loop.learner.recorded, GraphedUpdates)
    return trainer


def assert_same_state(one, two):
    for path, (mine, other) in tree.zipped(one.algorithm.state_dict(), two.algorithm.state_dict()):
        assert torch.equal(mine, other) if isinstance(mine, torch.Tensor) else mine == other, path
    assert one.loop.storage.sampler.state_dict() == two.loop.storage.sampler.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "num_kinds"), [("dqn", 2), ("sac", 1), ("td3", 2), ("crossq", 2)])
def test_recorded_steps_do_what_steps_taken_one_by_one_do(kind, num_kinds):
    plain, recorded = make_trainer(kind, recorded=False), make_trainer(kind, recorded=True)
    for one, two in zip(plain, recorded, strict=True):
        assert one.num_updates == two.num_updates and one.metrics.keys() == two.metrics.keys()
        for name, value in one.metrics.items():
            if name.startswith("train/"):
                assert two.metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    assert_same_state(plain, recorded)
    assert recorded.loop.learner.recorded.num_recordings == num_kinds


@pytest.mark.slow
@pytest.mark.parametrize("first_recorded", [False, True])
def test_a_run_goes_on_the_same_from_recorded_steps_to_others_and_back(first_recorded):
    whole, first = make_trainer("td3", recorded=False), make_trainer("td3", recorded=first_recorded)
    list(whole)
    next(first), next(first)
    second = make_trainer("td3", recorded=not first_recorded, seed=5, weights=9)
    second.load_state_dict(first.state_dict())
    list(second)
    assert_same_state(whole, second)


@pytest.mark.slow
def test_iteration_0_is_as_written_and_later_ones_are_recorded():
    plain, recorded = make_trainer("td3", recorded=False), make_trainer("td3", recorded=False)
    recorded.switch = Switch(99)
    recorded.loop.mode = taped_mode(recorded.switch)
    recorded.loop.learner = recorded.loop.new_learner()
    learner = recorded.loop.learner
    counts = [learner.recorded.num_recordings for _ in zip(plain, recorded, strict=True)]
    assert counts == [0, 2, 2, 2]
    assert_same_state(plain, recorded)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dqn", "sac", "td3", "crossq"])
def test_a_parameter_that_is_frozen_later_stays_where_it_is(kind):
    plain, recorded = make_trainer(kind, recorded=False), make_trainer(kind, recorded=True)
    for trainer in (plain, recorded):
        next(trainer), next(trainer), next(trainer)
        first = next(trainer.algorithm.policy.parameters())
        before = first.detach().clone()
        first.requires_grad_(False)
        next(trainer)
        assert torch.equal(first, before)
    assert_same_state(plain, recorded)


@pytest.mark.slow
def test_a_step_that_cannot_be_recorded_is_taken_by_itself_and_said_once(caplog):
    plain, failing = make_trainer("sac", recorded=False), make_trainer("sac", recorded=True)

    def refuse(inputs, prepare, body):
        prepare(inputs)
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    failing.loop.mode.graphs.make = refuse
    list(plain), list(failing)
    assert_same_state(plain, failing)
    said = [record for record in caplog.records if "cannot be recorded" in record.message]
    assert [record.getMessage() for record in said] == [
        "whole gradient steps cannot be recorded, so their parts are: "
        "operation not permitted when stream is capturing. Mend what it names; with strict=True it raises instead"
    ]


@pytest.mark.slow
def test_a_learner_that_decides_by_a_count_of_its_own_is_not_recorded(caplog):
    class Stubborn(SAC):
        own = 0

        def update(self, sample, weight, noise):
            self.own += 1
            return super().update(sample, weight, noise)

        def graph_key(self):
            return self.own % 5

    trainer = make_trainer("sac", recorded=True)
    trainer.algorithm.__class__ = Stubborn
    list(trainer)
    assert trainer.loop.learner.recorded.num_recordings == 0
    assert "what Stubborn decides follows from more than its number of updates" in caplog.text


VIEWS = [None, OneStep(), SingleStep(0.9), NStep(3, gamma=0.9), FrameStack(2)]


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: type(view).__name__)
def test_sampling_on_the_device_gives_the_samples_of_the_replay(view):
    one, two = (make_trainer("td3", recorded=False).loop for _ in range(2))
    for loop in (one, two):
        loop.storage.view = view
    sampler = DeviceSampler(two.storage, batch_size=5000)  # blocks of 8 draws: refilled on the way
    for at in range(20):
        for loop in (one, two):  # 2 steps at a time: 40 of the 20 that there is room for
            loop.algorithm.explore(0, random=True)
            loop.collector.collect(n_step=6, storage=loop.storage)
        wanted = one.storage.sample(5000)
        if at % 5 == 3:  # in between one is sampled by the host
            found = two.storage.sample(5000)
            data, index = found.data, found.index
        else:
            sampler.ready()
            with CaptureWatch("sampling", {}).running(), torch.no_grad():
                data, index = sampler.sample()
            sampler.advance()
            sampler.advanced()
        assert torch.equal(index, wanted.index)
        for path, (mine, other) in tree.zipped(data, wanted.data):
            assert torch.equal(mine, other) if path != "rew" else torch.allclose(mine, other, rtol=1e-6), path
    assert two.storage.sampler.state_dict() == one.storage.sampler.state_dict()


def test_refusals_name_what_is_in_the_way():
    loop = make_trainer("sac", recorded=False).loop
    assert refusal(loop.algorithm, loop.storage) == ""
    loop.storage.view = NStep(3, gamma=0.9, reward=lambda rows: rows["rew"])
    assert "a function of somebody's own gives the rewards" in refusal(loop.algorithm, loop.storage)
    loop.storage.view = SequenceView(3)
    assert refusal(loop.algorithm, loop.storage) == "SequenceView reads more than steps"
    loop.storage.sampler = Prioritized()
    assert refusal(loop.algorithm, loop.storage) == "Prioritized picks by what earlier steps have said"


def test_what_would_be_recorded_by_itself_is_run_inside_of_a_larger_recording():
    def never(inputs):
        raise AssertionError("nothing is warmed up or recorded by itself")

    weight = torch.ones(2, requires_grad=True)
    with torch.no_grad(), together():
        found = Graphs().play("step", {"x": torch.full((2,), 3.0)}, never, lambda inputs: weight * inputs["x"])
    assert found.tolist() == [3.0, 3.0] and found.requires_grad, "gradient steps need gradients, whoever is around"
