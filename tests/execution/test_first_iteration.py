"""On a GPU a run's iteration 0 is as written and later ones are CUDA graphs, whenever it was stopped and resumed.

Graphs are replaced by functions that read static inputs and are called anew at each replay, so that all of it runs on
the CPU. Real graphs: `test_the_first_iteration_on_a_gpu_is_as_written` below, and test_graphed_mode.py.
"""

from __future__ import annotations

import logging

import pytest
import torch

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect import graphed_rollout
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.schedules import WorkerSettings
from striderl.data import tree
from striderl.envs.classic_control.pendulum import Pendulum
from striderl.envs.on_device import OnDevice
from striderl.execution import modes
from striderl.execution.background import Switch, built_with
from striderl.execution.graphed import StaticInputs
from striderl.execution.modes import EagerUpdates, ExecutionConfig, Graphed, mode_of
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs
from striderl.training.experiment import assembly
from striderl.training.experiment.run_config import EnvSettings, RunConfig
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer

SETTINGS = PolicyConfig(
    actor=(NormalizeObs(),), critic=(NormalizeObs(),), actor_hidden_dims=(16,), critic_hidden_dims=(16,)
)


class Replayed:
    """Stands in for a captured graph: runs the body on static inputs at each replay."""

    def __init__(self, inputs, prepare, body, in_place=False):
        self._static, self._body = StaticInputs(inputs), body
        self._grad, self._in_place, self.outputs = torch.is_grad_enabled(), in_place, None

    def play(self, values):
        self._static.fill(values)
        with torch.set_grad_enabled(self._grad):
            outputs = self._body(self._static.values)
        if self.outputs is None or not self._in_place:
            self.outputs = outputs
        for _, (place, value) in tree.zipped(self.outputs, outputs) if self._in_place else ():
            place.copy_(value)


class Counting(Graphed):
    """Counts what is captured and what is replayed."""

    def __init__(self, switch=None):
        super().__init__(strict=True, fused=False, switch=switch)
        self.num_made = 0
        self.graphs.make = self._make

    def _make(self, inputs, prepare, body, in_place=False):
        self.num_made += 1
        return Replayed(inputs, prepare, body, in_place)


@pytest.fixture
def anywhere(monkeypatch):
    """Let steps of envs on the CPU be captured."""
    monkeypatch.setattr(graphed_rollout, "_refusal", lambda group: "")


def make_trainer(mode=None, switch=None, *, reduce=None, device="cpu", seed=0):
    env = Pendulum(4) if device == "cpu" else OnDevice(Pendulum(4), device)
    torch.manual_seed(seed)
    policy = Policy(env.obs_spec, env.action_spec, SETTINGS).to(device)
    config = PPOConfig(num_learning_epochs=2, num_mini_batches=2, schedule="adaptive")
    with built_with(switch):
        algorithm = PPO(policy, config, mode=mode if isinstance(mode, ExecutionConfig) else "eager", reduce=reduce)
    if isinstance(mode, modes.Mode):
        algorithm.updater.mode = mode
    plan = OnPolicyPlan(num_steps_per_env=6, total_iterations=4)
    return Trainer(algorithm, Collector(env, PolicyActor(policy), CollectorConfig(noise_block=5)), plan, switch=switch)


def weights(trainer):
    return tree.copy(trainer.algorithm.state_dict())


def test_iteration_0_is_as_written_and_the_others_are_captured_with_the_same_bits(anywhere):
    at_once, switch = Counting(), Switch(99)
    later = Counting(switch)
    one, other = make_trainer(at_once), make_trainer(later, switch)
    counts = [(at_once.num_made, later.num_made) for _ in zip(one, other, strict=True)]
    # three of the rollout (act, settle and act, settle), noise, statistics, targets, updates
    assert [count for count, _ in counts] == [7, 7, 7, 7]
    assert [count for _, count in counts] == [0, 7, 7, 7]
    assert tree.equal(weights(one), weights(other))
    assert other.collector.graphed.rollout is not None


@pytest.mark.parametrize("num_phases", [1, 3, 5, 6, 7])
def test_a_resumed_run_captures_by_the_number_of_its_iteration(num_phases, anywhere):
    whole = make_trainer(Counting(begun := Switch(99)), begun)
    list(whole)
    stopped = make_trainer(Counting(before := Switch(99)), before)
    for _ in range(num_phases):  # an iteration: collect, prepare, update, absorb, consume
        stopped.advance()
    mode = Counting(switch := Switch(99))
    resumed = make_trainer(mode, switch, seed=7)
    resumed.load_state_dict(stopped.state_dict())
    assert mode.captures == (num_phases > 3)
    if resumed.phase == "consume":
        resumed.advance()
    resumed.advance()
    assert bool(mode.num_made) == (num_phases > 3)  # collected, prepared or updated by a graph, or as written
    list(resumed)
    assert tree.equal(weights(resumed), weights(whole))


def test_without_a_switch_the_first_iteration_is_captured():
    assert Graphed().captures and Graphed(switch=None).compiles
    switch = Switch(0, beside=False)
    mode = Graphed(switch=switch)
    switch.before_iteration(0)
    assert switch.on and not mode.captures and not mode.compiles  # compiled in iteration 0 it would take a minute
    switch.before_iteration(1)
    assert mode.captures and mode.compiles


def test_nothing_of_the_compiler_is_loaded_before_the_switch(monkeypatch):
    made = []
    monkeypatch.setattr(modes, "_compiled", lambda *_, **__: made.append(1) or (lambda x: x + 1))
    mode = Graphed(switch=(switch := Switch(2, beside=False)))
    function = mode.fuse(lambda x: x)
    for iteration, wanted in ((0, 0), (1, 0), (2, 1), (3, 1)):
        switch.before_iteration(iteration)
        assert function(0) == len(made) == wanted


# -- several processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_auto_captures_collection_in_ranks_without_a_warning(strict, caplog):
    switch = Switch(3)
    with caplog.at_level(logging.INFO), built_with(switch):
        mode = mode_of(ExecutionConfig(mode="auto", strict=strict), "cuda", alone=False)
    assert type(mode) is EagerUpdates and not mode.records
    assert type(mode.collection) is Graphed and mode.collection.switch is switch and not mode.collection.explicit
    (record,) = caplog.records
    assert record.levelno == logging.INFO and "collection is captured, and updates are eager" in record.message


def test_in_ranks_collection_comes_from_graphs_and_updates_are_eager(anywhere):
    collecting = Counting(switch := Switch(99))
    eager, shared = make_trainer(reduce=torch.clone), make_trainer(EagerUpdates(collecting), switch, reduce=torch.clone)
    counts = [collecting.num_made for _ in zip(eager, shared, strict=True)]
    assert counts == [0, 5, 5, 5]  # three of the rollout, noise, statistics
    assert tree.equal(weights(eager), weights(shared))


def test_a_run_has_a_switch_that_follows_from_the_config():
    def possible(device, **settings):
        env = EnvSettings(task="pendulum", num_envs=4)
        config = RunConfig(env=env, algorithm=PPOConfig(), plan=OnPolicyPlan(), device=device, **settings)
        return assembly.may_switch(config)

    assert possible("cuda") and possible("cuda", switch_at="9") and possible("cpu") and possible("cpu", switch_at="9")
    assert not possible("cuda", mode="graphed") and not possible("cpu", switch_at="never")
    workers = WorkerSettings(kind="ray", num_workers=2)
    assert possible("cuda", workers=workers) and not possible("cpu", workers=workers)


def test_never_keeps_functions_on_a_gpu_captured_as_written():
    env = EnvSettings(task="pendulum", num_envs=4)
    plan = OnPolicyPlan(total_iterations=100_000)  # long enough to gain from compiling
    config = RunConfig(env=env, algorithm=PPOConfig(), plan=plan, device="cuda", switch_at="never")
    assert assembly.may_switch(config)  # without a switch they would be compiled at once
    switch = Switch(None)
    assembly.set_switch(switch, config, None, 100_000)
    for iteration in (0, 1, 50_000):
        switch.before_iteration(iteration)
    assert switch.captures and not switch.on


def test_in_ranks_only_collection_gains_from_compiling():
    class Learner:
        num_updates_per_rollout = 20
        config = PPOConfig()

    found = []
    for num_ranks in (1, 2, 8):
        device = torch.device("cuda")
        switch = assembly.learner_switch("auto", device, num_ranks)
        assembly.plan_switch(switch, OnPolicyPlan(num_steps_per_env=24), 4096, Learner(), 10_000, device, num_ranks)
        found.append((switch.at, bool(switch.given_up)))
    # 24 steps gain 3.6 ms of an iteration, 20 updates 20 ms; 40 s are gained back after 1,695 or 11,112 iterations
    assert found == [(211, False), (1389, True), (1389, True)]


# -- real graphs -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_first_iteration_on_a_gpu_is_as_written():
    auto = ExecutionConfig(mode="auto", fuse=False, strict=True)
    switch = Switch(99)
    later, at_once = make_trainer(auto, switch, device="cuda"), make_trainer(auto, device="cuda")
    mode = later.algorithm.updater.mode
    next(later), next(at_once)
    assert not mode.graphs.graphs_by_key and later.collector.graphed.rollout is None
    assert tree.equal(weights(later), weights(at_once))
    state = later.state_dict()
    list(later), list(at_once)
    assert mode.graphs.graphs_by_key and later.collector.graphed.rollout.is_prepared
    assert tree.equal(weights(later), weights(at_once))
    resumed = make_trainer(auto, other := Switch(99), device="cuda", seed=7)
    resumed.load_state_dict(state)
    assert other.captures
    list(resumed)
    assert tree.equal(weights(resumed), weights(later))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_collection_with_shared_updates_equals_eager_on_a_gpu():
    trainers = {
        mode: make_trainer(ExecutionConfig(mode=mode, fuse=False), reduce=torch.clone, device="cuda")
        for mode in ("eager", "auto")
    }
    for trainer in trainers.values():
        list(trainer)
    assert type(trainers["auto"].algorithm.updater.mode) is EagerUpdates
    assert trainers["auto"].collector.graphed.rollout.is_prepared
    wanted = dict(tree.items(weights(trainers["eager"])))
    for path, value in tree.items(weights(trainers["auto"])):
        torch.testing.assert_close(
            value, wanted[path], rtol=1e-4, atol=1e-5, msg=lambda text, path=path: f"{path} {text}"
        )
