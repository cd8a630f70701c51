"""Functions of nested tensors as programs: the same results, and the function itself where there can be none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch._inductor
from torch import Tensor, fx

from striderl.execution.traced import MOST, PureFunction, inductor


def as_it_is(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Run the graph operation by operation: what is tested here is the graph, not the compiler."""
    return graph


class Said(NamedTuple):
    best: Tensor
    state: Any
    columns: dict[str, Any]


class Chooser:
    """Chooses between two numbers, scaled by a knob that is changed in place, and counts how often Python ran it."""

    def __init__(self, backend: Any = as_it_is) -> None:
        self.knob, self.num_runs, self.greedy = torch.tensor(2.0), 0, True
        self.compiled = PureFunction("choosing", self.choose, backend)

    def choose(self, obs: dict[str, Tensor], state: Any, unread: Tensor) -> Said:
        self.num_runs += 1
        scaled = obs["x"] * self.knob
        best = scaled.argmax(-1) if self.greedy else scaled.argmin(-1)
        return Said(best, state, {"scaled": scaled, "obs": obs["x"], "none": {}, "name": "chooser"})

    def check(self, *inputs: Any, key: Any = True) -> None:
        found, wanted = self.compiled(key, *inputs), self.choose(*inputs)
        assert isinstance(found, Said) and found.columns.keys() == wanted.columns.keys()
        assert found.best.tolist() == wanted.best.tolist() and found.best.dtype == torch.int64
        assert torch.equal(found.columns["scaled"], wanted.columns["scaled"])
        assert torch.equal(found.columns["obs"], wanted.columns["obs"])
        assert found.columns["none"] == {} and found.columns["name"] == "chooser"


def given(size: int = 3) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(size)
    return {"x": torch.randn(size, 2, generator=generator)}, (), torch.zeros(size)


def test_a_program_gives_what_the_function_gives() -> None:
    chooser = Chooser()
    chooser.check(*given())
    before = chooser.num_runs
    chooser.knob.fill_(-3.0)  # a tensor is read where it lies
    found = chooser.compiled(True, *given())
    assert chooser.num_runs == before and not chooser.compiled.refusal
    assert torch.equal(found.columns["scaled"], given()[0]["x"] * -3.0)


def test_layouts_and_decisions_have_programs_of_their_own() -> None:
    chooser = Chooser()
    for size in (3, 5, 3):
        chooser.check(*given(size))
    chooser.greedy = False
    chooser.check(*given(), key=False)
    chooser.greedy = True
    chooser.check(*given(), key=True)
    assert not chooser.compiled.refusal


def test_memory_goes_through() -> None:
    def walk(state: dict[str, Tensor], kick: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return {"place": state["place"] + kick, "home": state["home"]}, kick

    walking = PureFunction("walking", walk, as_it_is)
    state = {"place": torch.zeros(2), "home": torch.ones(2)}
    for _ in range(3):
        state, _ = walking((), state, torch.tensor([1.0, -2.0]))
    assert state["place"].tolist() == [3.0, -6.0] and state["home"].tolist() == [1.0, 1.0]


def check_refused(function: Any, reason: str, caplog: pytest.LogCaptureFixture, *inputs: Any) -> None:
    caplog.set_level("INFO")
    compiled = PureFunction("the work", function, as_it_is)
    for _ in range(2):
        torch.testing.assert_close(compiled((), *inputs), function(*inputs))
    assert reason in compiled.refusal
    assert [record.message.count("the work is not compiled") for record in caplog.records] == [1]


def test_what_cannot_be_a_program_runs_as_it_is_written(caplog: pytest.LogCaptureFixture) -> None:
    check_refused(lambda x: x * (2.0 if x.max().item() > 0.0 else 1.0), "asks for the value", caplog, torch.ones(2))


@pytest.mark.parametrize(
    "changing",
    [
        lambda x: x.clamp_(max=0.5),
        lambda x: x[:1].clamp_(max=0.5),
        lambda x: x.unbind()[1].view(1).clamp_(max=0.5),
        lambda x: x.detach().clamp_(max=0.5),
    ],
)
def test_a_function_that_changes_its_input_runs_as_it_is_written(
    changing: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    check_refused(changing, "changes one of its inputs", caplog, torch.ones(2))


def test_a_function_may_change_what_it_has_made() -> None:
    function = PureFunction("choosing", lambda x: x.clone().view(-1)[:2].add_(x[:1].mul(2.0)), as_it_is)
    x = torch.arange(4.0)
    for _ in range(2):
        assert function((), x).tolist() == [0.0, 1.0] and not function.refusal
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_too_many_layouts_are_not_compiled() -> None:
    chooser = Chooser()
    for size in range(1, MOST + 2):
        chooser.check(*given(size))
    assert f"more than {MOST} layouts" in chooser.compiled.refusal


def test_a_decision_that_was_not_told_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    chooser = Chooser()
    chooser.check(*given())
    chooser.greedy = False  # the key stays the same
    for _ in range(3):  # the 2nd run is compared, and the 4th
        found = chooser.compiled(True, *given())
    assert "does not give" in chooser.compiled.refusal
    assert [record.levelname for record in caplog.records if "does not give" in record.getMessage()] == ["WARNING"]
    assert torch.equal(found.best, chooser.choose(*given()).best)


def test_python_calls_the_kernels_where_nothing_else_can(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    def compile(graph: fx.GraphModule, inputs: list[Tensor], options: dict[str, Any]) -> Any:
        tried.append(options.get("cpp_wrapper", False))
        if tried[-1]:
            raise RuntimeError("no such operation in C++")
        return graph

    monkeypatch.setattr(torch._inductor, "compile", compile)
    chooser = Chooser(inductor)
    chooser.check(*given())
    assert tried == [True, False] and not chooser.compiled.refusal
