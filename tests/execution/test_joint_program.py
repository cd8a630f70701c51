"""Forward and backward as one graph: the eager numbers and gradients, and a refusal of whatever cannot be one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import update_cases
from torch import Tensor, fx, nn
from update_cases import CASES

from striderl.execution.background import ProgramRequest, Switch
from striderl.execution.joint_program import JointPrograms, PooledPrograms
from striderl.execution.modes import Eager, Evaluated, evaluated
from striderl.execution.traced import CHECK_EVERY, MOST, RefusedError
from striderl.execution.updater import ParameterGroup
from striderl.ops.losses import normalised, valid_mean
from striderl.ops.moments import pooled, sum_of_all


def as_it_is(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Run the graph operation by operation: what is tested here is the graph, not the compiler."""
    return graph


class Learner:
    """Two groups of parameters, one of which a loss does not reach, a knob and a buffer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net, self.other = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), nn.Linear(2, 2)
        self.groups = {"net": ParameterGroup(self.net.parameters()), "other": ParameterGroup(self.other.parameters())}
        self.knob, self.seen = torch.tensor(0.5), torch.zeros(())
        self.programs = JointPrograms(self.groups, as_it_is)

    def losses(self, minibatch: dict[str, Any]) -> Any:
        value = self.net(minibatch["obs"]["x"]).squeeze(-1)
        error = value - minibatch["target"]
        if minibatch["weight"] is not None:
            error = error * minibatch["weight"]
        return {"fit": (self.knob, error.square().mean()), "size": (0.1, value.abs().mean())}, {"mean": value.mean()}


def minibatch(size: int = 5, weighted: bool = False) -> dict[str, Any]:
    random = torch.Generator().manual_seed(size)
    weight = torch.rand(size, generator=random) if weighted else None
    x, target = torch.randn(size, 3, generator=random), torch.randn(size, generator=random)
    return {"obs": {"x": x}, "target": target, "weight": weight}


def check_as_eager(learner: Learner, given: dict[str, Any]) -> None:
    found = learner.programs.run(learner.losses, given)
    wanted = evaluated(learner.losses, given)
    grads = torch.autograd.grad(wanted.total, list(learner.net.parameters()))
    assert found.names == wanted.names == ("fit", "size", "mean")
    torch.testing.assert_close(found.numbers, wanted.numbers)
    whole = torch.cat([grad.reshape(-1) for grad in grads])
    torch.testing.assert_close(learner.groups["net"].flat.grad, whole)
    assert not learner.groups["other"].flat.grad.any()


def test_numbers_and_gradients_are_those_of_the_function() -> None:
    learner = Learner()
    learner.groups["other"].flat.grad.fill_(3.0)  # of an earlier step: must not stay
    check_as_eager(learner, minibatch())


def test_a_parameter_that_is_frozen_later_has_no_gradient() -> None:
    learner = Learner()
    check_as_eager(learner, minibatch())
    learner.net[0].weight.requires_grad_(False)
    learner.programs.run(learner.losses, minibatch())
    assert not learner.net[0].weight.grad.any() and learner.net[2].weight.grad.any()
    learner.net[0].weight.requires_grad_(True)
    check_as_eager(learner, minibatch())


def test_tensors_are_read_where_they_lie() -> None:
    learner = Learner()
    check_as_eager(learner, minibatch())
    learner.knob.fill_(2.0)
    learner.groups["net"].flat.flat.mul_(1.5)  # as an optimiser does
    check_as_eager(learner, minibatch())


@pytest.mark.slow
def test_another_layout_is_another_program() -> None:
    learner = Learner()
    check_as_eager(learner, minibatch(5))
    check_as_eager(learner, minibatch(7))
    check_as_eager(learner, minibatch(5, weighted=True))
    strided = minibatch(5)
    strided["obs"]["x"] = strided["obs"]["x"].t().contiguous().t()
    check_as_eager(learner, strided)
    with pytest.raises(RefusedError, match=f"more than {MOST} layouts"):
        for size in range(10, 20):
            learner.programs.run(learner.losses, minibatch(size))


def test_a_function_that_changes_something_is_refused() -> None:
    learner = Learner()

    def counting(given: dict[str, Any]) -> Any:
        learner.seen.add_(1.0)
        return learner.losses(given)

    with pytest.raises(RefusedError, match="changes one of its inputs"):
        learner.programs.run(counting, minibatch())


def test_a_function_that_asks_for_a_value_is_refused() -> None:
    learner = Learner()

    def asking(given: dict[str, Any]) -> Any:
        given = {**given, "target": given["target"] * (2.0 if given["target"].max().item() > 0.0 else 1.0)}
        return learner.losses(given)

    def asking_elsewhere(given: dict[str, Any]) -> Any:
        losses, numbers = learner.losses(given)
        return {"fit": (float(learner.knob), losses["fit"][1])}, numbers

    for function in (asking, asking_elsewhere):
        with pytest.raises(RefusedError, match="asks for the value of a tensor"):
            learner.programs.run(function, minibatch())


@pytest.mark.slow
def test_a_program_that_does_not_agree_is_refused() -> None:
    learner = Learner()

    def wrong(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
        return lambda *given: [each * 1.01 for each in graph(*given)]

    with pytest.raises(RefusedError, match="does not give"):
        JointPrograms(learner.groups, wrong).run(learner.losses, minibatch())


def test_a_value_that_is_no_tensor_must_not_change() -> None:
    learner = Learner()
    scale = [1.0]

    def scaled(given: dict[str, Any]) -> Any:
        return learner.losses({**given, "target": scale[0] * given["target"]})

    given = minibatch()
    learner.programs.run(scaled, given)
    scale[0] = 2.0
    with pytest.raises(RefusedError, match="no tensor changed"):
        for _ in range(CHECK_EVERY):
            learner.programs.run(scaled, given)


def test_one_tensor_in_two_places_is_two_inputs() -> None:
    learner = Learner()

    def losses(given: dict[str, Any]) -> Any:
        return {"fit": (1.0, (learner.net(given["a"]) * given["b"]).square().mean())}, {}

    a, b = torch.rand(4, 3), torch.rand(4, 3)
    learner.programs.run(losses, {"a": a, "b": a})
    found = learner.programs.run(losses, {"a": a, "b": b})
    torch.testing.assert_close(found.numbers, evaluated(losses, {"a": a, "b": b}).numbers)


def test_a_minibatch_that_is_not_finite_is_no_reason_to_refuse() -> None:
    learner = Learner()

    def both(given: dict[str, Any]) -> Any:
        losses, numbers = learner.losses(given)
        return losses, {**numbers, "size": given["target"].abs().mean()}

    given = minibatch()
    given["obs"]["x"][0, 0] = torch.nan
    found = learner.programs.run(both, given)
    assert found.numbers.isnan().tolist() == [True, False, True]  # a statistic replaces a loss of its name


class Jointly(Eager):
    """A mode that runs every function as a joint program."""

    def __init__(self, groups: dict[str, ParameterGroup]) -> None:
        self.programs = JointPrograms(groups, as_it_is)

    def run(self, function: Any, minibatch: Any, backward: Any) -> Evaluated:
        return self.programs.run(function, minibatch)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case != "lstm"])  # its splits depend on values
def test_an_update_of_joint_steps_is_the_eager_update(case: str) -> None:
    (eager, rollout), (joint, same) = update_cases.make(case, "eager"), update_cases.make(case, "eager")
    joint.updater.mode = Jointly(joint.updater.groups)
    wanted = eager.update(rollout, torch.Generator().manual_seed(5))
    found = joint.update(same, torch.Generator().manual_seed(5))
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-6, atol=1e-6, msg=lambda t, n=name: f"{n}: {t}")
    for name, group in eager.updater.groups.items():
        torch.testing.assert_close(joint.updater.groups[name].flat.flat, group.flat.flat, rtol=0.0, atol=1e-6)


# -- in several processes ----------------------------------------------------------------------------------------------


class Messages:
    """Sums over processes with the same numbers in each of two, and keeps the sizes of the messages."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.sizes.append(x.numel())
        return 2 * x


class Switched(Switch):
    """After the switch, without a compiler: parts run as they were traced."""

    def __init__(self) -> None:
        super().__init__(0)
        self.on = True
        self.requested: list[fx.GraphModule] = []

    def request(self, graph: fx.GraphModule, inputs: Sequence[Tensor]) -> ProgramRequest:
        self.requested.append(graph)
        self.keys.add("any")
        return NoProgram(self, "any")


class NoProgram(ProgramRequest):
    def program(self) -> None:
        return None


def pooled_run(function: Any, learner: Learner, given: Any) -> tuple[Any, list[int], Evaluated, list[int], Switched]:
    """Run a function in parts and as written; return both results with the sizes of their messages."""
    switch, one, other = Switched(), Messages(), Messages()
    programs = PooledPrograms(learner.groups, one, switch)
    with pooled(one):
        programs.run(function, given)  # compared with the function as written
        one.sizes.clear()
        programs.run(function, given)
        first = len(one.sizes)  # and once more: the second run is compared too
        one.sizes.clear()
        found = programs.run(function, given)
    with pooled(other):
        wanted = evaluated(function, given)
    assert first > len(one.sizes)
    return found, one.sizes, wanted, other.sizes, switch


def test_independent_sums_over_processes_are_one_message() -> None:
    learner = Learner()

    def losses(given: dict[str, Any]) -> Any:
        value = learner.net(given["obs"]["x"]).squeeze(-1)
        fit, size = valid_mean((value - given["target"]).square(), None), valid_mean(value.abs(), value > 0.0)
        return {"fit": (1.0, fit), "size": (0.1, size)}, {"mean": valid_mean(value, None)}

    given = minibatch()
    found, sizes, wanted, as_it_was, switch = pooled_run(losses, learner, given)
    grads = torch.autograd.grad(wanted.total, list(learner.net.parameters()))
    torch.testing.assert_close(found.numbers, wanted.numbers)
    torch.testing.assert_close(learner.groups["net"].flat.grad, torch.cat([grad.reshape(-1) for grad in grads]))
    assert as_it_was == [2, 2, 2] and sizes == [3, 6]  # agreement, then three sums with their counts in one message
    assert len(switch.requested) == 2  # before the message and after it


def test_sums_that_need_each_other_are_messages_of_their_own() -> None:
    learner = Learner()

    def losses(given: dict[str, Any]) -> Any:
        x = given["obs"]["x"]
        mean = sum_of_all(x.sum(0)) / sum_of_all(x.new_full((), 5.0))  # gradients go through it to both processes
        spread = sum_of_all((x - mean).square().sum(0).view(3, 1)).t()
        value = normalised(learner.net(x / spread).squeeze(-1), None)
        value = torch.zeros_like(value).copy_(value) + learner.knob
        return {"fit": (learner.knob, valid_mean((value - given["target"]).square(), None))}, {"spread": spread.sum()}

    given = minibatch()
    found, sizes, wanted, as_it_was, _ = pooled_run(losses, learner, given)
    grads = torch.autograd.grad(wanted.total, list(learner.net.parameters()))
    torch.testing.assert_close(found.numbers, wanted.numbers)
    torch.testing.assert_close(learner.groups["net"].flat.grad, torch.cat([grad.reshape(-1) for grad in grads]))
    assert as_it_was == [3, 1, 3, 2, 2, 2] and sizes == [3, 4, 3, 2, 2, 2]


def test_processes_with_other_messages_run_the_function_as_it_is_written() -> None:
    learner, switch = Learner(), Switched()

    def other_process(x: Tensor) -> Tensor:
        return x + torch.tensor([1, 7, 49]) if x.dtype is torch.int64 else 2 * x

    def pooled_losses(given: dict[str, Any]) -> Any:
        return {"fit": (1.0, valid_mean(learner.net(given["obs"]["x"]), None))}, {}

    assert PooledPrograms(learner.groups, other_process, switch).run(pooled_losses, minibatch()) is None

    def looking(given: dict[str, Any]) -> Any:
        return {"fit": (float(learner.knob), valid_mean(learner.net(given["obs"]["x"]), None))}, {}

    def changing(given: dict[str, Any]) -> Any:
        value = torch.zeros(3).copy_(sum_of_all(given["obs"]["x"].sum(0)))  # made before the sum, changed after it
        return {"fit": (1.0, valid_mean(learner.net(value), None))}, {}

    for function, reason in ((looking, "asks for the value"), (changing, "computed before a sum over processes")):
        with pytest.raises(RefusedError, match=reason):  # in all processes together
            PooledPrograms(learner.groups, lambda x: 2 * x, switch).run(function, minibatch())
