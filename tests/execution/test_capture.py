"""check_capture accepts what can be replayed, refuses what cannot with the reason, and every part passes it."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch
from capture_parts import PARTS
from torch import Tensor, nn

from striderl.execution.capture import CaptureError, check_capture

CPU = torch.device("cpu")
X = torch.linspace(-1.0, 2.0, 12).view(4, 3)


# -- good functions ----------------------------------------------------------------------------------------------------


def test_a_pure_function_passes_and_is_described():
    report = check_capture(lambda x, y: (x * 2.0).sum(-1) + y, (X, torch.arange(4.0)), name="double")
    assert report.name == "double"
    # eager: mul, sum, add; traced: the same three
    assert (report.num_ops, report.num_nodes) == (3, 3)
    assert report.max_difference == 0.0
    assert not report.backward and not report.cuda_graph


def test_nested_inputs_and_outputs_and_none_are_walked():
    def part(inputs, nothing):
        assert nothing is None
        return {"both": (inputs["a"] + inputs["b"][0], inputs["b"][0])}

    assert check_capture(part, ({"a": X, "b": [X]}, None)).num_nodes == 1


def test_the_backward_pass_is_watched_too():
    class SyncInBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, grad):
            return grad * grad.sum().item()

    assert check_capture(nn.Linear(3, 2), (X,)).backward
    with pytest.raises(CaptureError, match=r"_local_scalar_dense.* reads values(.|\n)*in backward: return grad"):
        check_capture(lambda x: SyncInBackward.apply(x), (X.clone().requires_grad_(),))


def test_given_inputs_are_not_changed():
    before = X.clone()
    with pytest.raises(CaptureError):
        check_capture(lambda x: x.add_(1.0), (X,))
    assert torch.equal(X, before)


def test_allowed_near_misses():
    mask = X > 0
    check_capture(lambda x, m: torch.where(m, 0.0, x), (X, mask))
    check_capture(lambda x, m: x.masked_fill(m, 0.0), (X, mask))
    check_capture(lambda x, index: x[index], (X, torch.tensor([1, 0, 3, 2])))  # whole numbers give a fixed shape

    def number_into_a_copy(x):
        y = x.clone()
        y[:, 0] = 0.5
        return y

    check_capture(number_into_a_copy, (X,))
    check_capture(lambda x: x.to(torch.float64).to(x.device), (X,))


def test_a_constant_global_is_a_constant():
    check_capture(lambda x: x * SCALE, (X,))


SCALE = 3.0


# -- bad functions -----------------------------------------------------------------------------------------------------


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x
    return -x


def assigns_by_mask(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 0] = x[:1].expand(2, 3).reshape(-1)[:6]
    return y


COUNTER = 0


def counts(x: Tensor) -> Tensor:
    global COUNTER
    COUNTER += 1
    return x * COUNTER


HISTORY = [torch.zeros(4, 3)]


def adds_up(x: Tensor) -> Tensor:
    HISTORY[0] = HISTORY[0] + x
    return HISTORY[0]


def writes_to_a_view(x: Tensor) -> Tensor:
    column = x[:, :2]
    column.mul_(2.0)
    return column


class Keeps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.last = x * 2.0
        return x + 1.0


class Learns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


BAD = {
    "item": (lambda x: x * x.sum().item(), r"Tensor\.item\(\) reads values on the host"),
    "float": (lambda x: x * float(x.sum()), r"Tensor\.__float__\(\) reads values on the host"),
    "cpu": (lambda x: x.cpu() + 1, r"Tensor\.cpu\(\) reads values on the host"),
    "to cpu": (lambda x: x.to("cpu") + 1, r"Tensor\.to\('cpu'\) reads values on the host"),
    "numpy": (lambda x: torch.ones(3) * np.asarray(x)[0, 0], "reads values on the host"),
    "tolist": (lambda x: torch.full((3,), x.tolist()[0][0]), r"Tensor\.tolist\(\) reads values on the host"),
    "equal": (lambda x: x * torch.equal(x, x), r"aten\.equal\.default reads values on the host"),
    "branch": (
        branches,
        r"'if', 'and' or 'while' is a Python branch .*\n  at .*test_capture\.py:\d+ in branches: if x",
    ),
    "nonzero": (lambda x: x.nonzero(), r"aten\.nonzero\.default has a result whose shape depends on values"),
    "masked_select": (lambda x: x.masked_select(x > 0), r"masked_select\.default has a result whose shape depends"),
    "mask as index": (lambda x: x[x > 0], r"aten\.index\.Tensor has a result whose shape depends"),
    "unique": (lambda x: x.unique(), "has a result whose shape depends on values"),
    "assigns by mask": (assigns_by_mask, r"aten\.index_put_\.default has a result whose shape depends"),
    "in place": (lambda x: x.add_(1.0), r"aten\.add_\.Tensor changes input '0' in place"),
    "in place through a view": (writes_to_a_view, r"aten\.mul_\.Tensor changes input '0' in place"),
    "out": (lambda x: torch.add(x, 1.0, out=x), r"aten\.add\.out changes input '0' in place"),
    "global counter": (counts, r"COUNTER == \d.*changed between two calls"),
    "global tensor": (adds_up, "depends on something besides its inputs"),
    "keeps": (Keeps(), r"'Keeps\.last' is kept on a module between calls"),
    "learns": (Learns(), r"changes buffer 'norm\.num_batches_tracked' in place"),
    "randn": (lambda x: x + torch.randn(3), r"aten\.randn\.default draws random numbers inside; declare them as noise"),
    "dropout": (lambda x: nn.functional.dropout(x, 0.5), r"bernoulli_\.float draws random numbers inside"),
    "host data": (lambda x: x * torch.tensor([1.0, 2.0, 3.0]), r"torch\.tensor makes a tensor from host data"),
    "host array": (lambda x: x * torch.as_tensor(np.ones(3)), r"torch\.as_tensor makes a tensor from host data"),
    "list as index": (lambda x: x[:, [0, 2]], "makes a tensor from host data"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_captured_is_refused_with_the_reason(name):
    function, message = BAD[name]
    with pytest.raises(CaptureError, match=message) as caught:
        check_capture(function, (X,), name="the part")
    assert str(caught.value).startswith("the part: ")
    assert caught.value.part == "the part" and caught.value.op


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("clock", [random.random, time.perf_counter])
def test_python_randomness_and_clocks_are_refused(clock):
    with pytest.raises(CaptureError, match=r"cannot trace it whole|besides its inputs"):
        check_capture(lambda x: x + clock(), (X,))


def test_a_silent_write_is_seen_by_its_effect():
    # below Python nothing says that this kernel writes: torch.Tensor.set_ through numpy memory
    memory = np.zeros(3, np.float32)
    shared = torch.from_numpy(memory)

    @torch.library.custom_op("striderl_tests::silent_write", mutates_args=())
    def silent_write(x: Tensor) -> Tensor:
        memory[:] += 1.0
        return x.clone()

    silent_write.register_fake(lambda x: torch.empty_like(x))
    with pytest.raises(CaptureError, match=r"changes a tensor \[3\] that it was not given in place"):
        check_capture(lambda x: silent_write(x + shared), (X,))


def test_decisions_of_the_tracing_do_not_survive():
    # A part that asks whether it is being traced can do anything; the comparison with eager shows it.
    def two_faced(x):
        return x * 2.0 if torch.compiler.is_compiling() else x * 3.0

    # fresh inputs are the rows rolled by one times 3/4: the largest is 2 * 3/4 = 1.5, and 3 - 2 = 1 of it is missing
    with pytest.raises(CaptureError, match=r"output '' differs by 1\.5 in the traced program on fresh inputs"):
        check_capture(two_faced, (X,))
    report = check_capture(two_faced, (X,), atol=2.0)
    assert report.max_difference == pytest.approx(1.5)


def test_fresh_inputs_must_have_the_same_layout():
    with pytest.raises(ValueError, match=r"fresh input '0' is torch.float32 \[2, 3\], the example is .* \[4, 3\]"):
        check_capture(lambda x: x, (X,), fresh_inputs=(X[:2],))


def test_given_fresh_inputs_are_used():
    def two_faced_above_five(x):
        return torch.where(x > 5.0, x + 1.0 if torch.compiler.is_compiling() else x + 3.0, x)

    check_capture(two_faced_above_five, (X,))  # neither the example nor its rolled rows come above five
    with pytest.raises(CaptureError, match=r"differs by 2 in the traced program"):
        check_capture(two_faced_above_five, (X,), fresh_inputs=(X + 10.0,))


# -- every part --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PARTS))
def test_every_part_can_be_captured(name):
    part = PARTS[name](CPU)
    report = check_capture(part.function, part.inputs, atol=part.atol, name=name)
    assert report.max_difference <= part.atol
    assert report.num_ops > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(PARTS))
def test_every_part_runs_in_a_cuda_graph(name, monkeypatch):
    # cuDNN rounds to 10 bits by default, the cells that a traced memory runs do not: 2e-4 apart
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    part = PARTS[name](torch.device("cuda"))
    report = check_capture(part.function, part.inputs, atol=max(part.atol, 1e-5), rtol=1e-5, name=name)
    assert report.cuda_graph


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_transfer_is_refused_on_a_gpu():
    x = X.cuda()
    with pytest.raises(CaptureError, match="copies between host and device"):
        check_capture(lambda x: x + torch.ones(3).to(x.device), (x,))
