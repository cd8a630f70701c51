"""Schedules and targets of distillation, in numbers that can be redone by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from teacher_cases import HiddenGoal, goal_teacher, student

from striderl.algorithms.terms.distill import DISTILL_TARGETS, Distill, DistillConfig
from striderl.networks.distributions.gaussian import DiagonalGaussian
from striderl.ops.imitation import TARGETS, before_tanh
from striderl.ops.ramps import TeacherSchedule
from striderl.policies.policy import PolicyOutput

# -- schedules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "scale", "iteration", "wanted"),
    [
        ("linear", 4.0, 0, 1.0),
        ("linear", 4.0, 1, 0.75),
        ("linear", 4.0, 9, 0.0),
        ("exp", 2.0, 3, 0.125),  # (1 - 1/2)³
        ("exp", 100.0, 100, 0.99**100),
        ("tanh", 10.0, 10, 0.5),
        ("tanh", 10.0, 0, 0.5 * (1.0 + math.tanh(1.0))),  # 0.88
        ("tanh", 10.0, 20, 0.5 * (1.0 - math.tanh(1.0))),  # 0.12
        (0.3, 10.0, 7, 0.3),
    ],
)
def test_the_schedules_by_hand(option, scale, iteration, wanted):
    schedule = TeacherSchedule(option, scale)
    assert float(schedule(iteration)) == pytest.approx(wanted, abs=1e-6)
    assert float(schedule(torch.tensor(iteration))) == pytest.approx(wanted, abs=1e-6)


def test_defect_15_the_tanh_schedule_takes_a_plain_number():
    assert float(TeacherSchedule("tanh", 100)(100)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("option", "scale", "words"),
    [
        ("lineer", 10.0, "Did you mean 'linear'"),
        ("linear", 0.0, "positive"),
        ("exp", 0.5, "at least 1"),
        (float("nan"), 10.0, "finite"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(option, scale, words):
    with pytest.raises(ValueError, match=words):
        TeacherSchedule(option, scale)


# -- targets -----------------------------------------------------------------------------------------------------------


def distill(target: str, **settings: Any) -> Distill:
    head = {"init_std": 0.3, "mu_activation": "tanh"}
    term = Distill(goal_teacher(), DistillConfig(target=target, **settings))
    term.check(student(HiddenGoal(2), "", head_settings=head))
    return term


def said(mean: Any, std: Any) -> PolicyOutput:
    distribution = DiagonalGaussian(torch.as_tensor(mean), torch.as_tensor(std))
    return PolicyOutput(distribution, torch.zeros(()), {}, {})


def loss_of(target: str, mean: Any, label: Any, *, std: float = 1.0, dist: Any = None, valid: Any = None) -> float:
    mean = torch.as_tensor(mean)
    stored = {"label": torch.as_tensor(label), "acted": torch.zeros(len(mean), dtype=torch.bool), "dist": dist}
    mask = torch.ones(len(mean), dtype=torch.bool) if valid is None else torch.tensor(valid)
    losses = distill(target).losses(
        {"valid": mask, "parts": {"distill": stored}}, said(mean, torch.full_like(mean, std))
    )
    weight, loss = losses["distillation_loss"]
    return float(weight) * float(loss)


def test_real_is_the_length_of_the_difference():
    # (3, 4) is 5 long, (0, 0) is 0 long; mean 2.5
    assert loss_of("real", [[0.0, 0.0], [1.0, 1.0]], [[3.0, 4.0], [1.0, 1.0]]) == pytest.approx(2.5)


def test_mse_sum_adds_the_squares():
    assert loss_of("mse_sum", [[0.0, 0.0]], [[3.0, 4.0]]) == pytest.approx(25.0)


def test_l1_adds_the_distances():
    assert loss_of("l1", [[0.0, 0.0]], [[3.0, -4.0]]) == pytest.approx(7.0)


def test_tanh_is_twice_the_cross_entropy():
    # p = 1/2 whatever the label: -log(1/2) in each entry
    assert loss_of("tanh", [[0.0, 0.0]], [[1.0, 0.5]]) == pytest.approx(2.0 * math.log(2.0))
    # a = 0.5: p = 3/4; y = 1: t = 1, -log(3/4); y = -1: t = 0, -log(1/4)
    wanted = -(math.log(0.75) + math.log(0.25))
    assert loss_of("tanh", [[0.5, 0.5]], [[1.0, -1.0]]) == pytest.approx(wanted)


def test_scaled_tanh_is_less_where_both_are_near():
    # as above 2 log 2, times the mean of |0.5| and |0|
    assert loss_of("scaled_tanh", [[0.0, 0.0]], [[0.5, 0.0]]) == pytest.approx(0.25 * 2.0 * math.log(2.0))


def test_max_log_prob_is_minus_the_density():
    # two standard normals at 1: 2 · (1/2 + log(2π)/2)
    assert loss_of("max_log_prob", [[0.0, 0.0]], [[1.0, 1.0]]) == pytest.approx(1.0 + math.log(2.0 * math.pi))


def test_kl_is_of_the_teacher_to_the_student():
    # one entry N(0, 1) to N(1, 2): log 2 + (1 + 1) / (2 · 4) - 1/2; the other N(1, 2) to itself: 0
    dist = {"mean": torch.tensor([[0.0, 1.0]]), "std": torch.tensor([[1.0, 2.0]])}
    wanted = math.log(2.0) + 0.25 - 0.5
    assert loss_of("kl", [[1.0, 1.0]], [[9.0, 9.0]], std=2.0, dist=dist) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("target", DISTILL_TARGETS)
def test_samples_that_do_not_count_leave_loss_and_gradient_alone(target):
    nan = float("nan")
    label = torch.tensor([[0.5, -0.5], [nan, 1e30]])
    dist = {"mean": torch.tensor([[0.5, -0.5], [nan, nan]]), "std": torch.tensor([[1.0, 1.0], [0.0, 0.0]])}
    mean = torch.tensor([[0.1, 0.2], [0.3, 0.4]], requires_grad=True)
    stored = {"label": label, "acted": torch.zeros(2, dtype=torch.bool), "dist": dist}
    minibatch = {"valid": torch.tensor([True, False]), "parts": {"distill": stored}}
    losses = distill(target).losses(minibatch, said(mean, torch.ones(2, 2)))
    losses["distillation_loss"][1].backward()
    assert bool(mean.grad.isfinite().all()) and bool((mean.grad[1] == 0).all()) and bool((mean.grad[0] != 0).any())


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_gradient_is_finite_where_student_and_teacher_agree_or_saturate(target):
    student_says = torch.tensor([[0.2, 1.0], [-1.0, 1.0]], requires_grad=True)
    TARGETS[target](student_says, torch.tensor([[0.2, 1.0], [1.0, 1.0]])).sum().backward()
    assert bool(student_says.grad.isfinite().all())


def test_before_tanh_undoes_the_tanh():
    # the parkour code has tan here: tan(0.46) = 0.495, atanh(0.4621) = 0.5
    assert before_tanh(torch.tensor(0.5).tanh()).item() == pytest.approx(0.5, abs=1e-6)
    assert math.isfinite(before_tanh(torch.tensor(1.0)).item())


def test_the_weight_follows_its_schedule():
    term = distill("real", weight="linear", update_times_scale=4.0)
    found = []
    for iteration in range(6):
        term.at(torch.tensor(iteration))
        found.append(float(term.numbers()["distillation_weight"]))
    assert found == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"target": "mse"}, "Did you mean 'mse_sum'"),
        ({"latent_target": "kl"}, "no latent target 'kl'"),
        ({"teacher_samples": "drop"}, "teacher_samples has no choice"),
        ({"teacher_act_prob": 1.5}, "between 0 and 1"),
        ({"teacher_act_prob": "cos"}, "no schedule 'cos'"),
        ({"weight": -1.0}, "not negative"),
        ({"latent_weight": -1.0}, "not negative"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        DistillConfig(**settings)
