"""The updater: the same steps as torch's optimisers, one block of memory, and nothing broken by a broken gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from striderl.execution.modes import Losses
from striderl.execution.updater import GroupConfig, ParameterGroup, Updater


def small_net(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x).square().mean() + net(x)[:, 0].exp().mean()


def updater_of(net: nn.Module, **settings) -> tuple[Updater, ParameterGroup]:
    group = ParameterGroup(net.parameters(), GroupConfig(**settings))
    return Updater({"net": group}), group


def step(updater: Updater, losses: Losses) -> dict[str, torch.Tensor]:
    return updater.step(lambda _: (losses, {}), None)


TORCH = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": torch.optim.SGD,
    "RMSprop": torch.optim.RMSprop,
}


RMSPROP_32 = ("RMSprop", torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "dtype"),
    # RMSprop divides by the size of the gradient, which makes rounding of tiny ones visible: float64 only
    [(name, dtype) for name in TORCH for dtype in (torch.float32, torch.float64) if (name, dtype) != RMSPROP_32],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_twenty_steps_equal_those_of_torch(name, dtype, weight_decay, seed):
    ours = small_net(seed, dtype)
    theirs = copy.deepcopy(ours)
    rate = 2.0**-7  # exact in float32, in which the learning rate is kept
    updater, _ = updater_of(ours, optimizer=name, learning_rate=rate, max_grad_norm=0.5, weight_decay=weight_decay)
    optimizer = TORCH[name](theirs.parameters(), lr=rate, weight_decay=weight_decay)
    data = torch.Generator().manual_seed(seed)
    for _ in range(20):
        x = torch.randn(32, 5, generator=data, dtype=torch.float64).to(dtype)
        norm = step(updater, {"loss": (1.0, loss_of(ours, x))})["net_grad_norm"]
        optimizer.zero_grad()
        loss_of(theirs, x).backward()
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimizer.step()
        torch.testing.assert_close(norm, expected, rtol=1e-5, atol=1e-6)
    # after 20 steps of 0.008 a wrong rule would be off by hundredths
    for one, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-6)


def test_a_changed_learning_rate_is_used():
    net = small_net()
    updater, group = updater_of(net, optimizer="SGD", learning_rate=1.0, max_grad_norm=0.0)
    before = group.flat.flat.clone()
    x = torch.randn(8, 5)
    group.learning_rate.fill_(0.0)
    step(updater, {"loss": (1.0, loss_of(net, x))})
    assert torch.equal(group.flat.flat, before)
    group.learning_rate.fill_(0.25)
    step(updater, {"loss": (1.0, loss_of(net, x))})
    torch.testing.assert_close(group.flat.flat, before - 0.25 * group.flat.grad)


def test_parameters_and_gradients_are_views_of_one_block():
    net = small_net()
    values = [parameter.detach().clone() for parameter in net.parameters()]
    updater, group = updater_of(net)
    flat, grad = group.flat.flat, group.flat.grad
    assert flat.numel() == sum(value.numel() for value in values)
    start = 0
    for parameter, value in zip(net.parameters(), values):
        assert torch.equal(parameter, value)
        assert parameter.data_ptr() == flat[start:].data_ptr()
        assert parameter.grad.data_ptr() == grad[start:].data_ptr()
        start += parameter.numel()
    step(updater, {"loss": (1.0, loss_of(net, torch.randn(4, 5)))})
    # still there after a step, and writing the block writes the module
    assert next(net.parameters()).data_ptr() == flat.data_ptr()
    flat.zero_()
    assert all(not parameter.any() for parameter in net.parameters())


def test_frozen_parameters_stay_out():
    net = small_net()
    net[0].weight.requires_grad_(False)
    _, group = updater_of(net)
    assert group.flat.flat.numel() == sum(parameter.numel() for parameter in net.parameters()) - 80


def test_loading_a_module_keeps_the_views():
    net, other = small_net(0), small_net(1)
    _, group = updater_of(net)
    net.load_state_dict(other.state_dict())
    expected = torch.cat([parameter.detach().flatten() for parameter in other.parameters()])
    assert torch.equal(group.flat.flat, expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", list(TORCH))
def test_a_gradient_that_is_not_finite_changes_nothing(name, bad):
    net = small_net()
    updater, group = updater_of(net, optimizer=name, weight_decay=0.1)
    x = torch.randn(8, 5)
    for _ in range(3):
        step(updater, {"loss": (1.0, loss_of(net, x))})
    before, parameters = group.state_dict(), group.flat.flat.clone()
    norms = step(updater, {"fine": (1.0, loss_of(net, x)), "broken": (1.0, net[2].bias[0] * bad)})
    assert not norms["net_grad_norm"].isfinite()
    after = group.state_dict()
    assert torch.equal(group.flat.flat, parameters)
    assert all(torch.equal(after[key], before[key]) for key in ("first", "second", "count", "learning_rate"))
    assert int(before["num_skipped"]) == 0 and int(after["num_skipped"]) == 1
    # and the next step goes on as if the broken one had not been
    twin = small_net()
    twin_updater, _ = updater_of(twin, optimizer=name, weight_decay=0.1)
    for _ in range(4):
        step(twin_updater, {"loss": (1.0, loss_of(twin, x))})
    step(updater, {"loss": (1.0, loss_of(net, x))})
    assert all(torch.equal(one, other) for one, other in zip(net.parameters(), twin.parameters()))


def test_clipping_by_hand():
    # gradient (3, 4) has norm 5; with a limit of 2.5 half of it is left, and SGD with rate 0.1 moves by -(0.15, 0.2)
    weight = nn.Parameter(torch.tensor([1.0, 1.0]))
    group = ParameterGroup([weight], GroupConfig(optimizer="SGD", learning_rate=0.1, max_grad_norm=2.5))
    norms = step(Updater({"w": group}), {"loss": (1.0, (weight * torch.tensor([3.0, 4.0])).sum())})
    assert norms["w_grad_norm"].item() == pytest.approx(5.0)
    assert weight.tolist() == pytest.approx([0.85, 0.8], abs=1e-6)


@pytest.mark.parametrize("limit", [0.0, 5.1])
def test_short_gradients_are_left_alone(limit):
    weight = nn.Parameter(torch.tensor([1.0, 1.0]))
    group = ParameterGroup([weight], GroupConfig(optimizer="SGD", learning_rate=0.1, max_grad_norm=limit))
    step(Updater({"w": group}), {"loss": (1.0, (weight * torch.tensor([3.0, 4.0])).sum())})
    assert weight.tolist() == pytest.approx([0.7, 0.6], abs=1e-7)


def test_weights_of_losses_are_applied():
    # d/dw (2 * w + 0.5 * 4 w) = 4, with a weight given as a tensor and one as a number
    weight = nn.Parameter(torch.tensor([0.0]))
    group = ParameterGroup([weight], GroupConfig(optimizer="SGD", learning_rate=1.0, max_grad_norm=0.0))
    step(Updater({"w": group}), {"a": (torch.tensor(2.0), weight.sum()), "b": (0.5, 4.0 * weight.sum())})
    assert weight.item() == pytest.approx(-4.0)


def test_groups_have_their_own_rate_and_clip():
    one, two = nn.Parameter(torch.tensor([0.0])), nn.Parameter(torch.tensor([0.0]))
    updater = Updater(
        {
            "one": ParameterGroup([one], GroupConfig(optimizer="SGD", learning_rate=1.0, max_grad_norm=1.0)),
            "two": ParameterGroup([two], GroupConfig(optimizer="SGD", learning_rate=0.5, max_grad_norm=0.0)),
        }
    )
    norms = step(updater, {"loss": (1.0, 8.0 * one.sum() + 8.0 * two.sum())})
    assert norms["one_grad_norm"].item() == 8.0 and norms["two_grad_norm"].item() == 8.0
    assert one.item() == pytest.approx(-1.0, abs=1e-6) and two.item() == pytest.approx(-4.0)


@pytest.mark.parametrize("name", list(TORCH))
def test_saved_state_goes_on_bit_for_bit(name):
    first, second = small_net(0), small_net(1)
    one, _ = updater_of(first, optimizer=name)
    x = torch.randn(3, 8, 5)
    for each in x:
        step(one, {"loss": (1.0, loss_of(first, each))})
    one.groups["net"].learning_rate.fill_(0.02)
    saved = one.state_dict()
    kept = copy.deepcopy(saved)
    two, _ = updater_of(second, optimizer=name)
    two.load_state_dict(saved)
    second.load_state_dict(first.state_dict())
    for each in x:
        step(one, {"loss": (1.0, loss_of(first, each))})
        step(two, {"loss": (1.0, loss_of(second, each))})
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
    # a saved state is a copy: going on did not change it
    assert all(torch.equal(saved["net"][key], kept["net"][key]) for key in kept["net"])


def test_a_state_that_does_not_fit_is_refused():
    updater, _ = updater_of(small_net())
    other, _ = updater_of(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="the saved optimiser has 6 parameters, this group 239"):
        updater.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=r"saved groups \['critic'\] are not this updater's \['net'\]"):
        updater.load_state_dict({"critic": other.state_dict()["net"]})


# -- what would go wrong in silence ------------------------------------------------------------------------------------


def test_gradients_that_were_let_go_are_taken_back():
    net, twin = small_net(), small_net()
    updater, _ = updater_of(net)
    twin_updater, _ = updater_of(twin)
    x = torch.randn(8, 5)
    net.zero_grad(set_to_none=True)
    for _ in range(2):
        updater.attach()
        step(updater, {"loss": (1.0, loss_of(net, x))})
        step(twin_updater, {"loss": (1.0, loss_of(twin, x))})
    assert all(torch.equal(one, other) for one, other in zip(net.parameters(), twin.parameters()))


def test_a_module_that_was_moved_is_noticed():
    net = small_net()
    updater, _ = updater_of(net)
    net.double()
    with pytest.raises(RuntimeError, match="was moved after its optimiser was made"):
        updater.attach()


def test_bad_groups_are_refused():
    net = small_net()
    with pytest.raises(ValueError, match="empty"):
        ParameterGroup([])
    with pytest.raises(ValueError, match=r"share a dtype.*float32 on cpu, torch.float64 on cpu"):
        ParameterGroup([*net.parameters(), nn.Parameter(torch.zeros(2, dtype=torch.float64))])
    with pytest.raises(ValueError, match=r"is in both groups 'one' and 'two'"):
        Updater({"one": ParameterGroup(net.parameters()), "two": ParameterGroup(net[0].parameters())})
    with pytest.raises(ValueError, match="Did you mean 'Adam'"):
        GroupConfig(optimizer="adam")
    with pytest.raises(TypeError, match=r"GroupConfig.learning_rate: wanted float, found str '1e-3'"):
        GroupConfig(learning_rate="1e-3")


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize("optimizer", TORCH)
def test_a_parameter_frozen_in_the_middle_of_a_run_stays_where_it_is(optimizer: str, written_out: bool) -> None:
    net = small_net()
    updater, group = updater_of(net, optimizer=optimizer, learning_rate=0.01, weight_decay=0.1)
    if written_out:
        group.write_out()
    for number in range(6):
        frozen = 2 <= number < 4
        net[0].weight.requires_grad_(not frozen)
        first, last = net[0].weight.detach().clone(), net[4].weight.detach().clone()
        step(updater, {"loss": (1.0, loss_of(net, torch.randn(8, 5)))})
        assert torch.equal(net[0].weight, first) == frozen and not torch.equal(net[4].weight, last)


def test_two_threads_agree_with_one_to_rounding_and_repeat_to_the_bit():
    """Products and nonlinearities of these sizes are shared among threads; sums of samples may round otherwise."""

    def trained(num_threads: int) -> torch.Tensor:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(48, 128), nn.ELU(), nn.Linear(128, 128), nn.ELU(), nn.Linear(128, 3))
        updater, group = updater_of(net)
        x = torch.randn(1536, 48)
        torch.set_num_threads(num_threads)
        for _ in range(4):
            updater.step(lambda given: ({"loss": (1.0, loss_of(net, given))}, {}), x)
        return group.flat.flat.clone()

    before = torch.get_num_threads()
    try:
        one, two, again = trained(1), trained(2), trained(2)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(two, again)
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)
