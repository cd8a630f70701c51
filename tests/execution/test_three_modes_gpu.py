"""On a GPU, eager, compiled and recorded runs learn the same, and recordings are really what is played.

Everything is compared after three iterations: networks, targets, terms, moments and counts of the optimisers. Float32
without TF32; what differs is the order in which kernels add up, which Adam makes larger: its first steps are as long
for a gradient of 1e-8 as for one of 1. Compiled code is given ten times the tolerance of what is recorded as written.
"""

from __future__ import annotations

import logging

import pytest
import torch
from three_modes import ENVS, OFF_POLICY, ON_POLICY, learned, off_policy_trainer, on_policy_trainer

from striderl.collect.graphed_rollout import GraphedRollout
from striderl.execution.modes import Compiled, ExecutionConfig, Graphed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
AS_WRITTEN, COMPILED = (1e-4, 1e-5), (1e-3, 1e-4)
"""Relative and absolute tolerances."""


@pytest.fixture(autouse=True)
def full_precision():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.fixture
def not_fused(monkeypatch):
    """Record as it is written, for learners whose mode is a name."""
    monkeypatch.setattr("striderl.execution.modes.has_triton", lambda: False)


def assert_close(found, wanted, tolerance):
    rtol, atol = tolerance
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        assert torch.isfinite(value.double()).all(), path
        torch.testing.assert_close(
            found[path], value, rtol=rtol, atol=atol, msg=lambda text, path=path: f"{path}: {text}"
        )


def assert_same_numbers(found, wanted, tolerance):
    for name, value in wanted.metrics.items():
        if name.startswith("train/") and "grad_norm" not in name:
            assert found.metrics[name] == pytest.approx(value, rel=20 * tolerance[0], abs=20 * tolerance[1]), name


def assert_nobody_fell_back(caplog):
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert not [text for text in said if "eagerly" in text or "recorded" in text or "compiling" in text], said


def assert_recorded(trainer, *, strict=True):
    """The steps of the envs came from recordings: those for how the actor acts now are made."""
    collector = trainer.collector
    assert isinstance(collector.mode, Graphed) and collector.mode.records
    steps = collector.graphed.rollout
    assert isinstance(steps, GraphedRollout) and steps.is_prepared and not collector.graphed.given_up


_eager = {}


def eager_run(kind):
    """What an eager run on the GPU learns; one for all modes that are compared with it."""
    if kind not in _eager:
        if kind in ON_POLICY:
            trainer = on_policy_trainer(kind, ExecutionConfig(mode="eager"), "cuda")
        else:
            trainer = off_policy_trainer(kind, "eager", "cuda")
        records = list(trainer)
        _eager[kind] = (learned(trainer), records[-1])
    return _eager[kind]


# -- fresh rollouts ----------------------------------------------------------------------------------------------------


def recorded_on_policy(kind, *, fuse):
    trainer = on_policy_trainer(kind, ExecutionConfig(mode="graphed", fuse=fuse, strict=True), "cuda")
    records = list(trainer)
    assert_recorded(trainer)
    mode = trainer.algorithm.updater.mode
    assert mode.graphs.graphs_by_key, "gradient steps were recorded"
    if fuse:
        assert mode.fallback == ""
    return trainer, records[-1]


@pytest.mark.parametrize("kind", ON_POLICY)
def test_recorded_rollouts_and_updates_equal_eager_ones(kind, caplog):
    wanted, numbers = eager_run(kind)
    trainer, record = recorded_on_policy(kind, fuse=False)
    assert_close(learned(trainer), wanted, AS_WRITTEN)
    assert_same_numbers(record, numbers, AS_WRITTEN)
    assert_nobody_fell_back(caplog)


@pytest.mark.parametrize("kind", ["mlp", "amp", "tppo"])
def test_fused_and_recorded_equals_eager(kind, caplog):
    wanted, numbers = eager_run(kind)
    trainer, record = recorded_on_policy(kind, fuse=True)
    assert_close(learned(trainer), wanted, COMPILED)
    assert_same_numbers(record, numbers, COMPILED)
    assert_nobody_fell_back(caplog)


@pytest.mark.parametrize("kind", ["mlp", "discrete"])
def test_compiled_equals_eager(kind, caplog):
    wanted, numbers = eager_run(kind)
    trainer = on_policy_trainer(kind, ExecutionConfig(mode="compiled", strict=True), "cuda")
    record = list(trainer)[-1]
    mode = trainer.algorithm.updater.mode
    assert type(mode) is Compiled and not mode.fallback and mode.programs
    assert_close(learned(trainer), wanted, COMPILED)
    assert_same_numbers(record, numbers, COMPILED)
    assert_nobody_fell_back(caplog)


# -- replay ------------------------------------------------------------------------------------------------------------


def recorded_off_policy(kind, mode="graphed"):
    trainer = off_policy_trainer(kind, mode, "cuda")
    records = list(trainer)
    assert_recorded(trainer)
    recorded = trainer.loop.learner.recorded
    # a kind of step with the actor (or with a move of the target), and one without
    assert recorded is not None and recorded.num_recordings == (1 if kind == "fast_sac" else 2)
    return trainer, records[-1]


@pytest.mark.parametrize("kind", OFF_POLICY)
def test_whole_recorded_steps_equal_eager_ones(kind, caplog, not_fused):
    wanted, numbers = eager_run(kind)
    trainer, record = recorded_off_policy(kind)
    assert trainer.algorithm.num_updates == 72
    assert_close(learned(trainer), wanted, AS_WRITTEN)
    assert_same_numbers(record, numbers, AS_WRITTEN)
    assert_nobody_fell_back(caplog)


@pytest.mark.parametrize("kind", ["dqn", "fast_td3"])
def test_whole_steps_fused_and_recorded_equal_eager_ones(kind, caplog):
    wanted, numbers = eager_run(kind)
    trainer, record = recorded_off_policy(kind, "auto")
    assert_close(learned(trainer), wanted, COMPILED)
    assert_same_numbers(record, numbers, COMPILED)
    assert_nobody_fell_back(caplog)


def test_compiled_off_policy_equals_eager(caplog):
    wanted, _ = eager_run("sac")
    trainer = off_policy_trainer("sac", "compiled", "cuda")
    list(trainer)
    for updater in (trainer.algorithm.critic_updater, trainer.algorithm.actor_updater):
        assert type(updater.mode) is Compiled and not updater.mode.fallback and updater.mode.programs
    assert_close(learned(trainer), wanted, COMPILED)
    assert_nobody_fell_back(caplog)


def test_whole_steps_never_wait_for_the_device(not_fused):
    trainer = off_policy_trainer("td3", "graphed", "cuda")
    next(trainer), next(trainer)
    learner, number = trainer.loop.learner, trainer.num_updates
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(80):  # blocks of noise and of picks run out on the way
            learner.step(number + step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert learner.played and len(trainer.loop.storage) == 12 * ENVS


def test_a_recorded_run_goes_on_bit_for_bit(not_fused):
    def made():
        return off_policy_trainer("td3", "graphed", "cuda", iterations=4)

    whole, first, second = made(), made(), made()
    list(whole)
    next(first), next(first)
    second.load_state_dict(first.state_dict())
    list(second)
    found, wanted = learned(second), learned(whole)
    assert all(torch.equal(found[path], value) for path, value in wanted.items())


def test_an_eager_run_goes_on_recorded(not_fused):
    wanted, _ = eager_run("td3")
    first, second = (off_policy_trainer("td3", mode, "cuda") for mode in ("eager", "graphed"))
    next(first)
    second.load_state_dict(first.state_dict())
    list(second)
    assert second.loop.learner.recorded.num_recordings == 2
    assert_close(learned(second), wanted, AS_WRITTEN)


def test_prioritized_steps_are_recorded_in_parts(caplog, not_fused):
    from dataclasses import replace

    from striderl.algorithms.value_based.dqn import DQN
    from striderl.collect.collector import Collector
    from striderl.training.trainer import Trainer

    trainer = off_policy_trainer("dqn", "graphed", "cuda")
    algorithm = DQN(trainer.algorithm.policy, replace(trainer.algorithm.config, prioritized=True))
    with caplog.at_level(logging.INFO):
        trainer = Trainer(algorithm, Collector(trainer.collector.env, algorithm.actor()), trainer.plan)
        list(trainer)
    assert trainer.loop.learner.recorded is None and algorithm.updater.mode.graphs.graphs_by_key
    assert "Prioritized picks by what earlier steps have said" in caplog.text
