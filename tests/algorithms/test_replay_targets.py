"""Targets and losses of learners from replay, by hand: networks are replaced by tables of numbers."""

from __future__ import annotations

import math

import pytest
import torch

from striderl.algorithms.actor_critic.critic_kinds import (
    CategoricalReturns,
    ClippedMeans,
    SubsetMeans,
    TruncatedQuantiles,
)
from striderl.algorithms.actor_critic.sac_discrete import soft_value
from striderl.algorithms.value_based.distributional import Atoms, Quantiles
from striderl.algorithms.value_based.dqn import Means
from striderl.networks.distributions.categorical import FORBIDDEN, masked_log_probs
from striderl.networks.distributions.deterministic import QValues
from striderl.networks.ensemble import BatchRenorm, EnsembleMoments, batch_moments
from striderl.networks.heads.value import ReturnDistribution
from striderl.ops.td import huber, rescaled, unscaled

REWARD = torch.tensor([1.0, 1.0])
DISCOUNT = torch.tensor([0.5, 0.0])  # the second sample terminated
MINIBATCH = {"rew": REWARD, "discount": DISCOUNT}


def seen(distribution):
    return lambda extra=None: distribution


def test_dqn_takes_the_best_value_or_that_of_the_choice():
    values = QValues(torch.tensor([[2.0, 6.0], [2.0, 6.0]]))
    assert Means().targets(seen(values), None, MINIBATCH).tolist() == [4.0, 1.0]
    assert Means().targets(seen(values), torch.tensor([0, 0]), MINIBATCH).tolist() == [2.0, 1.0]


def test_dqn_never_takes_a_forbidden_choice():
    mask = torch.tensor([[True, False], [True, False]])
    values = QValues.from_values(torch.tensor([[2.0, 6.0], [2.0, 6.0]]), mask)
    assert Means().targets(seen(values), None, MINIBATCH).tolist() == [2.0, 1.0]
    assert values.values.argmax(dim=-1).tolist() == [0, 0]  # double DQN's choice


def test_dqn_loss_is_half_the_square_and_then_linear():
    # Q = 1 and 4 for the actions taken, targets 0.5 and 1: 0.5 · 0.25 and 3 - 0.5
    values = QValues(torch.tensor([[1.0, 9.0], [9.0, 4.0]]))
    judged = Means().judge(seen(values), {"act": torch.tensor([0, 1]), "target": torch.tensor([0.5, 1.0])})
    assert judged.loss.tolist() == [0.125, 2.5] and judged.error.tolist() == [0.5, 3.0]
    assert huber(torch.tensor([-2.0, 0.5]), 0.5).tolist() == [0.875, 0.125]


def test_rescaling_is_undone_exactly_enough():
    # h(3) = sqrt(4) - 1 + 0.003; h(-8) = -(3 - 1) - 0.008
    assert rescaled(torch.tensor([3.0, -8.0, 0.0])).tolist() == pytest.approx([1.003, -2.008, 0.0])
    numbers = torch.tensor([-1e4, -50.0, -1e-3, 0.0, 0.3, 7.0, 1e4])
    assert torch.allclose(unscaled(rescaled(numbers)), numbers, rtol=1e-4, atol=1e-6)
    # y = h(1 + 0.5 · h⁻¹(h(6))) = h(4) = sqrt(5) - 1 + 0.004
    values = QValues(rescaled(torch.tensor([[2.0, 6.0], [2.0, 6.0]])))
    target = Means(rescale=True).targets(seen(values), None, MINIBATCH)
    assert target.tolist() == pytest.approx([math.sqrt(5.0) - 1.0 + 0.004, math.sqrt(2.0) - 1.0 + 0.001], rel=1e-5)


def test_c51_moves_and_shares_out():
    # atoms 0 1 2, surely 1 for the best choice: 1 + 0.5 · 1 = 1.5 is half 1 and half 2; terminated: surely 1
    spread = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]).expand(2, 2, 3).clamp(min=1e-12).log()
    values = ReturnDistribution(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), spread)
    target = Atoms(low=0.0, high=2.0, num_atoms=3).targets(seen(values), None, MINIBATCH)
    assert torch.allclose(target, torch.tensor([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]]), atol=1e-6)


def test_qr_dqn_moves_every_quantile():
    spread = torch.tensor([[[0.0, 0.0], [2.0, 4.0]]]).expand(2, 2, 2)
    values = ReturnDistribution(spread.mean(dim=-1), spread)
    target = Quantiles(num_quantiles=2).targets(seen(values), None, MINIBATCH)
    assert target.tolist() == [[2.0, 3.0], [1.0, 1.0]]


# -- critics of real-valued actions ------------------------------------------------------------------------------------

MEMBERS = torch.tensor([[4.0, 4.0], [2.0, 2.0], [8.0, 8.0]])
COST = torch.tensor([1.0, 1.0])  # α log π


def test_the_least_critic_less_the_cost():
    # 1 + 0.5 · (2 - 1)
    assert ClippedMeans().bootstrap(MEMBERS, REWARD, DISCOUNT, COST, {}).tolist() == [1.5, 1.0]
    assert ClippedMeans().bootstrap(MEMBERS, REWARD, DISCOUNT, None, {}).tolist() == [2.0, 1.0]
    # squared errors to 3, summed over members: 1 + 1 + 25
    assert ClippedMeans().loss(MEMBERS, torch.tensor([3.0, 3.0])).tolist() == [27.0, 27.0]


def test_redq_draws_members():
    noise = {"members": torch.tensor([[0.9, 0.1, 0.5], [0.0, 0.0, 0.0]])}  # the first and the third: least 4
    assert SubsetMeans(2).bootstrap(MEMBERS, REWARD, DISCOUNT, COST, noise).tolist() == [2.5, 1.0]
    assert SubsetMeans(2).for_actor(MEMBERS).tolist() == pytest.approx([14.0 / 3.0] * 2)


def test_tqc_leaves_the_largest_out():
    # 1 5 and 3 9 sorted: 1 3 5 9; one of each member left out: 1 3; 1 + 0.5 · (· - 1)
    members = torch.tensor([[[1.0, 5.0]], [[9.0, 3.0]]])
    found = TruncatedQuantiles(1).bootstrap(members, REWARD[:1], DISCOUNT[:1], COST[:1], {})
    assert found.tolist() == [[1.0, 2.0]]


def test_categorical_critics_move_the_distribution_of_the_more_careful_one():
    kind = CategoricalReturns(low=0.0, high=2.0, num_atoms=3)
    sure = 50.0 * torch.eye(3)
    members = torch.stack([sure[2:3], sure[1:2]])  # surely 2, surely 1: the second counts
    assert kind.means(members).tolist() == [[2.0], [1.0]] and kind.for_actor(members).tolist() == [1.0]
    # 1 + 0.5 · (1 - 1) = 1; without the cost 1.5
    with_cost = kind.bootstrap(members, REWARD[:1], DISCOUNT[:1], COST[:1], {})
    without = kind.bootstrap(members, REWARD[:1], DISCOUNT[:1], None, {})
    assert torch.allclose(with_cost, torch.tensor([[0.0, 1.0, 0.0]]), atol=1e-6)
    assert torch.allclose(without, torch.tensor([[0.0, 0.5, 0.5]]), atol=1e-6)
    assert kind.target_mean(without).item() == pytest.approx(1.5)
    even = torch.zeros(2, 1, 3)  # cross-entropy of thirds, two members
    assert kind.loss(even, without).item() == pytest.approx(2.0 * math.log(3.0))


def test_a_kind_refuses_a_critic_of_another_form():
    with pytest.raises(ValueError, match="3 atoms, the Q-function num_outputs=1"):
        CategoricalReturns(low=0.0, high=1.0, num_atoms=3).check(2, 1)
    with pytest.raises(ValueError, match="one value per member"):
        ClippedMeans().check(2, 5)


def test_discrete_sac_takes_the_expectation_over_allowed_choices():
    # two allowed of three, each 1/2: 0.5 · (4 + 2) + 0.1 · log 2; the forbidden one has Q = 100
    log_probs = masked_log_probs(torch.zeros(1, 3), torch.tensor([[True, True, False]]))
    assert log_probs[0, 2] == FORBIDDEN
    log_probs.requires_grad_()
    value = soft_value(log_probs, torch.tensor([[4.0, 2.0, 100.0]]), torch.tensor(0.1))
    assert value.item() == pytest.approx(3.0 + 0.1 * math.log(2.0))
    value.sum().backward()
    assert torch.isfinite(log_probs.grad).all() and log_probs.grad[0, 2] == 0.0


# -- batch renormalisation ---------------------------------------------------------------------------------------------


def test_renormalisation_by_hand():
    norm = BatchRenorm(1, 1, warmup=0, eps=0.0, r_max=3.0, d_max=5.0)
    norm.mean.fill_(1.0), norm.variance.fill_(4.0)
    # batch 2, 6: mean 4, std 2; r = 2 / 2 = 1, d = (4 - 1) / 2 = 1.5: -1 + 1.5 and 1 + 1.5, as with running moments
    x = torch.tensor([[[2.0], [6.0]]])
    found, moments = norm.train_step(x, None)
    assert found.flatten().tolist() == pytest.approx([0.5, 2.5])
    assert norm(x).flatten().tolist() == pytest.approx([0.5, 2.5])
    assert moments.mean.item() == 4.0 and moments.variance.item() == 4.0
    assert norm.mean.item() == 1.0, "a forward pass changes nothing"


def test_the_warm_up_is_batch_normalisation():
    norm = BatchRenorm(1, 1, warmup=10, eps=0.0)
    norm.mean.fill_(100.0)
    found, _ = norm.train_step(torch.tensor([[[2.0], [6.0]]]), None)
    assert found.flatten().tolist() == pytest.approx([-1.0, 1.0])


def test_running_moments_forget_their_start_and_refuse_what_is_not_finite():
    norm = BatchRenorm(1, 1, momentum=0.9)
    norm.update_normalization(EnsembleMoments(torch.tensor([[6.0]]), torch.tensor([[2.0]])))
    assert norm.mean.item() == 6.0 and norm.variance.item() == 2.0
    norm.update_normalization(EnsembleMoments(torch.tensor([[2.0]]), torch.tensor([[2.0]])))
    assert norm.mean.item() == pytest.approx(4.0)
    norm.update_normalization(EnsembleMoments(torch.tensor([[float("nan")]]), torch.tensor([[2.0]])))
    assert norm.mean.item() == pytest.approx(4.0) and norm.count.item() == 2


def test_moments_leave_out_what_does_not_count():
    x = torch.tensor([[[2.0], [6.0], [1000.0]]])
    found = batch_moments(x, torch.tensor([True, True, False]))
    assert found.mean.item() == pytest.approx(4.0) and found.variance.item() == pytest.approx(4.0)
