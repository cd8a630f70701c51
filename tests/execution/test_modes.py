"""Compiled steps are the eager ones to rounding; when compiling fails, there is one warning and the same results."""

from __future__ import annotations

import ast
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import update_cases
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._inductor import config as inductor
from update_cases import CASES

from striderl.collect import graphed_rollout
from striderl.collect.graphed_rollout import GraphedCollector
from striderl.execution import background, modes
from striderl.execution.background import ProgramRequest, Switch, built_with
from striderl.execution.modes import Compiled, Eager, ExecutionConfig, Graphed, Switching, mode_of
from striderl.execution.traced import PureFunction
from striderl.execution.updater import GroupConfig, ParameterGroup, Updater
from striderl.networks.memory import Memory
from striderl.training import graphed_updates

STRICT = ExecutionConfig(mode="compiled", strict=True)
# generating and compiling C++ takes most of a minute on a busy core, so most cases are traced forward and backward only
NATIVE = ("mlp", "terms") if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else ("mlp",)
BACKENDS = [*((case, "aot_eager") for case in CASES), *((case, "inductor") for case in NATIVE)]


def order() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "backend"), BACKENDS)
def test_a_compiled_step_is_the_eager_step(case, backend):
    (eager, rollout), (compiled, same) = update_cases.make(case, "eager"), update_cases.make(case, STRICT)
    compiled.updater.mode = Compiled(strict=True, backend=backend)
    wanted = eager.update(rollout, order())
    with inductor.patch(compile_threads=1):
        found = compiled.update(same, order())
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-6, atol=1e-6, msg=lambda t, n=name: f"{n}: {t}")
    for name, group in eager.updater.groups.items():
        torch.testing.assert_close(compiled.updater.groups[name].flat.flat, group.flat.flat, rtol=0.0, atol=1e-6)


@pytest.mark.slow
def test_minibatches_of_two_sizes_are_compiled_once():
    # 20 samples in 3 minibatches are 7, 7 and 6; the last is filled up, in two epochs
    counter = CompileCounter()
    eager, rollout = update_cases.make("mlp", "eager", num_mini_batches=3, num_learning_epochs=2)
    counted, same = update_cases.make("mlp", "compiled", num_mini_batches=3, num_learning_epochs=2)
    counted.updater.mode = Compiled(strict=True, backend=counter)
    wanted, found = eager.update(rollout, order()), counted.update(same, order())
    counted.update(same, order())
    assert counter.frame_count == 1
    torch.testing.assert_close(counted.updater.groups["policy"].num_skipped, eager.updater.groups["policy"].num_skipped)
    # a filled row changes nothing but the order in which sums are rounded
    for name in ("value_loss", "surrogate_loss", "kl", "entropy"):
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-6)


# -- a small function, for what does not depend on the algorithm -------------------------------------------------------


def small(mode: str | Eager | Compiled) -> tuple[nn.Linear, Updater]:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    updater = Updater({"policy": ParameterGroup(net.parameters(), GroupConfig(learning_rate=0.1))})
    updater.mode = mode_of(mode) if isinstance(mode, str) else mode
    return net, updater


def aot() -> Compiled:
    """Traced forward and backward without the C++ compiler: quick."""
    return Compiled(strict=True, backend="aot_eager")


@pytest.mark.parametrize("mode", [Eager, aot])
def test_numbers_are_losses_statistics_and_norms(mode):
    net, updater = small(mode())

    def function(x):
        loss = net(x).square().mean()
        return {"loss": (2.0, loss), "entropy": (0.5, -loss)}, {"entropy": loss.detach(), "size": x.sum()}

    x = torch.ones(4, 3)
    numbers = updater.step(function, x)
    with torch.no_grad():
        torch.manual_seed(0)
        first = nn.Linear(3, 1)(x).square().mean()
    # the loss is reported without its weight, and a statistic takes the place of a loss with its name
    assert {name: round(float(value), 5) for name, value in numbers.items() if name != "grad_norm"} == {
        "loss": round(float(first), 5),
        "entropy": round(float(first), 5),
        "size": 12.0,
    }
    assert all(value.shape == () and not value.requires_grad for value in numbers.values())


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Eager, aot])
def test_a_broken_gradient_is_skipped_in_every_mode(mode):
    net, updater = small(mode())

    def function(x):
        return {"loss": (1.0, net(x).mean())}, {}

    updater.step(function, torch.ones(4, 3))
    before, state = updater.groups["policy"].flat.flat.clone(), updater.state_dict()["policy"]
    numbers = updater.step(function, torch.full((4, 3), torch.inf))
    after = updater.state_dict()["policy"]
    assert not numbers["grad_norm"].isfinite()
    assert torch.equal(updater.groups["policy"].flat.flat, before)
    assert all(torch.equal(after[key], state[key]) for key in ("first", "second", "count"))
    assert int(after["num_skipped"]) == 1


@pytest.mark.parametrize("mode", [Eager, aot])
def test_the_rule_moves_the_rate_of_the_same_step(mode):
    net, updater = small(mode())
    start = updater.groups["policy"].flat.flat.clone()

    def function(x):
        return {"loss": (1.0, net(x).mean())}, {"kl": x.mean()}

    def rule(numbers, groups):
        groups["policy"].learning_rate.mul_(torch.where(numbers["kl"] > 0.5, 0.0, 1.0))

    updater.step(function, torch.ones(4, 3), rule)
    assert torch.equal(updater.groups["policy"].flat.flat, start)
    assert float(updater.groups["policy"].learning_rate) == 0.0


def test_several_steps_are_averaged():
    net, updater = small("eager")
    # x is 1, 2, 6: the mean is 3, and the first is kept by itself
    progress = updater.run(
        lambda x: ({"loss": (1.0, net(x).mean())}, {"x": x.mean()}), [torch.full((2, 3), v) for v in (1.0, 2.0, 6.0)]
    )
    assert progress.num_steps == 3
    assert float(progress.mean["x"]) == pytest.approx(3.0) and float(progress.first["x"]) == 1.0
    with pytest.raises(ValueError, match="no minibatches"):
        updater.run(lambda x: ({}, {}), [])


def _refuse(*_: object) -> None:
    raise RuntimeError("no compiler today")


def test_a_failing_compiler_is_one_warning(caplog):
    (net, updater), (twin, eager) = small(Compiled(backend=_refuse)), small("eager")

    def function(x):
        return {"loss": (1.0, net(x).square().mean())}, {}

    def same(x):
        return {"loss": (1.0, twin(x).square().mean())}, {}

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            updater.step(function, torch.ones(4, 3))
            eager.step(same, torch.ones(4, 3))
    assert [record.levelname for record in caplog.records if "compiling failed" in record.message] == ["WARNING"]
    assert "no compiler today" in updater.mode.fallback
    assert torch.equal(updater.groups["policy"].flat.flat, eager.groups["policy"].flat.flat)
    _, strict = small(Compiled(strict=True, backend=_refuse))
    with pytest.raises(Exception, match="no compiler today"):
        strict.step(function, torch.ones(4, 3))


# -- fallbacks ---------------------------------------------------------------------------------------------------------


def _refused_capture(mode: Graphed) -> Graphed:
    mode.graphs.make = lambda *_, **__: (_ for _ in ()).throw(RuntimeError("not permitted"))
    return mode


def _switched(strict: bool) -> Switching:
    mode = Switching(Switch(1), strict)
    mode.switch.on = True
    return mode


def losses_by_compiler(strict, monkeypatch):
    net, updater = small(Compiled(strict, backend=_refuse))
    updater.step(lambda x: ({"loss": (1.0, net(x).mean())}, {}), torch.ones(4, 3))


def losses_beside_training(strict, monkeypatch):
    net, switch = nn.Linear(3, 1), Switch(1)
    switch.on = True
    with built_with(switch):
        mode = ExecutionConfig(mode="auto", strict=strict)
        updater = Updater({"policy": ParameterGroup(net.parameters())}, mode=mode)
    updater.step(lambda x: ({"loss": (1.0, net(x.add_(1.0)).mean())}, {}), torch.ones(4, 3))


def acting(strict, monkeypatch):
    PureFunction("acting", lambda x: x * float(x.max()), strict=strict)((), torch.ones(2))


def captured_step(strict, monkeypatch):
    _refused_capture(Graphed(strict, fused=False)).wrap(lambda x: x)(torch.ones(2))


def compiled_before_capture(strict, monkeypatch):
    monkeypatch.setattr(modes, "_compiled", lambda *_, **__: _refuse)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    Graphed(strict).fuse(lambda x: x)(torch.ones(2))


def graphs_on_a_cpu(strict, monkeypatch):
    mode_of(ExecutionConfig(mode="graphed", strict=strict), "cpu")


def graphs_in_ranks(strict, monkeypatch):
    mode_of(ExecutionConfig(mode="graphed", strict=strict), "cuda", alone=False)


def program_without_a_compiler(strict, monkeypatch):
    monkeypatch.setattr(background, "CompileWorker", _refuse)
    switch = _switched(strict).switch
    graph = torch.fx.symbolic_trace(nn.Identity())
    switch.keys.add(background.graph_key(graph, [torch.ones(2)]))
    switch.request(graph, [torch.ones(2)])


def too_many_layouts(strict, monkeypatch):
    monkeypatch.setattr(background, "MOST_PROGRAMS", 0)
    monkeypatch.setattr(ProgramRequest, "start", lambda *_: None)
    switch = Switching(Switch(5), strict).switch
    switch.request(torch.fx.symbolic_trace(nn.Identity()), [torch.ones(2)])
    switch.before_iteration(1)


def _explicit(strict: bool) -> Graphed:
    mode = mode_of(ExecutionConfig(mode="graphed", strict=strict, fuse=False), "cuda")
    assert isinstance(mode, Graphed) and mode.explicit
    return mode


def steps_of_envs(strict, monkeypatch):
    env = SimpleNamespace(device=torch.device("cpu"))
    group = SimpleNamespace(env=env, actor=None)
    assert not GraphedCollector().play(_explicit(strict), group, None, None, 1)


def capture_of_steps_of_envs(strict, monkeypatch):
    assert not GraphedCollector().prepared(SimpleNamespace(prepare=_refuse), strict=strict)


def whole_gradient_steps(strict, monkeypatch):
    monkeypatch.setattr(graphed_updates, "refusal", lambda *_: "the replay is on cpu")
    assert graphed_updates.recorded_updates(None, None, 1, None, _explicit(strict)) is None


FALLBACKS = (
    losses_by_compiler, losses_beside_training, acting, captured_step, compiled_before_capture, graphs_on_a_cpu,
    graphs_in_ranks, program_without_a_compiler, too_many_layouts, steps_of_envs, capture_of_steps_of_envs,
    whole_gradient_steps,
)  # fmt: skip


@pytest.mark.parametrize("fallback", FALLBACKS)
def test_every_fallback_to_something_slower_is_a_warning_with_the_fix_and_an_error_if_strict(
    fallback, monkeypatch, caplog
):
    fallback(False, monkeypatch)
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "strict=True" in record.message and any(
        word in record.message for word in ("Mend", "Write", "Move", "Keep", "Use", "Put", "Updates are fastest")
    )
    with pytest.raises(RuntimeError):
        fallback(True, monkeypatch)


def test_no_fallback_is_left_out():
    # each is a call of `fall_back` or a warning that names `strict`; one warning is about a folder, not about speed
    places = [*Path(modes.__file__).parent.glob("*.py"), Path(graphed_rollout.__file__), Path(graphed_updates.__file__)]
    calls = [
        ast.unparse(node)
        for path in places
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("_log.warning", "fall_back")
    ]
    assert [call for call in calls if "strict" not in call and "programs are not kept" not in call] == []
    assert len(calls) - 2 == len(FALLBACKS) + 1  # two are no fallbacks; the capture of an update is in test_recordings


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_memory_is_not_compiled_as_a_loop_over_cells(kind, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the compiler was called")

    monkeypatch.setattr(modes, "_compiled_losses", refuse)
    x, resets = torch.randn(5, 2, 3), torch.tensor([[False, True]] * 5)

    def stepped(mode):
        torch.manual_seed(0)
        memory = Memory(3, kind, 1, 4)
        updater = Updater({"memory": ParameterGroup(memory.parameters(), GroupConfig(learning_rate=0.1))}, mode=mode)

        def function(minibatch):
            outputs, _ = memory.sequence(minibatch["x"], memory.initial_state(2), minibatch["resets"])
            return {"loss": (1.0, outputs.square().mean())}, {}

        for _ in range(2):
            updater.step(function, {"x": x, "resets": resets})
        return updater.groups["memory"].flat.flat

    assert torch.equal(stepped(STRICT), stepped("eager"))


def test_an_error_of_the_function_is_raised_as_it_is():
    _, updater = small(Compiled(backend="aot_eager"))
    with pytest.raises(KeyError, match="advantage"):
        updater.step(lambda minibatch: minibatch["advantage"], {})


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match="Did you mean 'compiled'"):
        ExecutionConfig(mode="compild")
    with pytest.raises(ValueError, match="ExecutionConfig has no mode 'fast'"):
        Updater({}, mode="fast")
    assert isinstance(mode_of("eager"), Eager) and mode_of(STRICT).strict
