"""The discriminator: rewards by hand, and a gradient penalty equal to the one autograd finds."""

from __future__ import annotations

import pytest
import torch

from striderl.networks.discriminator import AMPDiscriminator


def build(**settings) -> AMPDiscriminator:
    torch.manual_seed(0)
    return AMPDiscriminator(**{"input_dim": 6, "style_reward_coef": 2.0, "hidden_dims": [16, 8], **settings})


def scoring(score: float, **settings) -> AMPDiscriminator:
    """Return a discriminator that gives everything this score."""
    discriminator = build(**settings)
    with torch.no_grad():
        for parameter in discriminator.parameters():
            parameter.zero_()
        discriminator.head.bias.fill_(score)
    return discriminator


def test_architecture():
    discriminator = build()
    assert [tuple(p.shape) for p in discriminator.parameters() if p.dim() == 2] == [(16, 6), (8, 16), (1, 8)]
    assert discriminator(torch.randn(3, 4, 6)).shape == (3, 4)


@pytest.mark.parametrize(("score", "style"), [(1.0, 2.0), (0.0, 1.5), (-1.0, 0.0), (-3.0, 0.0), (2.0, 1.5)])
def test_style_reward_by_hand(score, style):
    # coef 2: 2 * max(0, 1 - (D - 1)^2 / 4), so D = 0 gives 2 * (1 - 1/4) = 1.5 and D = -1 gives 0
    found, task, mixed = scoring(score).predict_style_reward(torch.randn(5, 6))
    assert found.tolist() == pytest.approx([style] * 5)
    assert task.tolist() == [0.0] * 5 and torch.equal(mixed, found), "without a weight the task has no say"


def test_mixed_reward_by_hand():
    # style 1.5 and task 5, a quarter of the task: 0.75 * 1.5 + 0.25 * 5 = 2.375
    discriminator = scoring(0.0, task_reward_lerp=0.25)
    style, task, mixed = discriminator.predict_style_reward(torch.randn(3, 6), torch.full((3,), 5.0))
    assert style.tolist() == [1.5] * 3 and task.tolist() == [5.0] * 3
    assert mixed.tolist() == pytest.approx([2.375] * 3)
    with pytest.raises(ValueError, match="give task_reward, or set task_reward_lerp to 0"):
        discriminator.predict_style_reward(torch.randn(3, 6))
    with pytest.raises(ValueError, match=r"\(3, 1\), the scores have \(3,\)"):
        discriminator.predict_style_reward(torch.randn(3, 6), torch.zeros(3, 1))


def test_rewards_have_no_gradient():
    assert not any(reward.requires_grad for reward in build().predict_style_reward(torch.randn(3, 6)))


def test_gradient_penalty_by_hand():
    # one unit: D = 3 relu(2 x), so dD/dx = 6 for x > 0 and 0 for x < 0; lambda 5 and half of each: 5 * 36 / 2 = 90
    discriminator = AMPDiscriminator(1, 1.0, [1])
    with torch.no_grad():
        for parameter, value in zip(discriminator.parameters(), (2.0, 0.0, 3.0, 0.0)):
            parameter.fill_(value)
    assert discriminator.compute_grad_pen(torch.tensor([[1.0], [-1.0]])).item() == pytest.approx(90.0)


@pytest.mark.parametrize("hidden_dims", [[16], [16, 8], [12, 10, 8]])
def test_gradient_penalty_equals_autograds(hidden_dims):
    discriminator = build(hidden_dims=hidden_dims, discriminator_grad_pen=7.0).double()
    expert = torch.randn(40, 6, dtype=torch.float64)

    x = expert.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(discriminator(x).sum(), x, create_graph=True)
    wanted = 7.0 * gradient.square().sum(-1).mean()
    found = discriminator.compute_grad_pen(expert)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)

    parameters = list(discriminator.parameters())
    ours = torch.autograd.grad(found, parameters, allow_unused=True)
    theirs = torch.autograd.grad(wanted, parameters, allow_unused=True)
    for parameter, one, other in zip(parameters, ours, theirs):
        if parameter.dim() == 2:  # a bias moves no gradient of a piecewise linear function
            assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)
        else:
            assert one is None or (one == 0).all()
            assert other is None or (other == 0).all()


def test_invalid_samples_do_not_count():
    discriminator = build()
    expert = torch.randn(3, 4, 6)
    valid = torch.rand(3, 4) < 0.6
    dirty = torch.where(valid.unsqueeze(-1), expert, torch.nan)
    found = discriminator.compute_grad_pen(dirty, valid)
    assert found.item() == pytest.approx(discriminator.compute_grad_pen(expert[valid]).item(), rel=1e-5)
    found.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in discriminator.parameters())
    assert discriminator.compute_grad_pen(dirty, torch.zeros_like(valid)).item() == 0.0


def test_it_compiles_as_one_graph():
    discriminator = build()
    compiled = torch.compile(discriminator.compute_grad_pen, fullgraph=True, backend="eager")
    expert = torch.randn(5, 6)
    assert torch.allclose(compiled(expert), discriminator.compute_grad_pen(expert))


def test_training_tells_two_clouds_apart():
    torch.manual_seed(0)
    discriminator = build()
    optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-2)
    expert, policy = torch.randn(256, 6) + 1.5, torch.randn(256, 6)
    for _ in range(60):
        loss = 0.5 * ((discriminator(expert) - 1).square().mean() + (discriminator(policy) + 1).square().mean())
        loss = loss + 0.01 * discriminator.compute_grad_pen(expert)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = (discriminator(expert) > 0).float().mean() + (discriminator(policy) < 0).float().mean()
    assert right.item() / 2 > 0.95
    style = [discriminator.predict_style_reward(motions)[0].mean() for motions in (expert, policy)]
    assert style[0] > style[1] + 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_dims": []}, "at least one hidden layer"),
        ({"input_dim": 0}, "one unit in each"),
        ({"task_reward_lerp": 1.5}, "from 0 .style only. to 1"),
        ({"discriminator_grad_pen": -1.0}, "must not be negative"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        build(**settings)
