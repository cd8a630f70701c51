"""Learning rates by iteration: those of torch's schedulers, in closed form."""

from __future__ import annotations

import pytest
import torch

from striderl.ops.schedules import RULES, learning_rate_rule

CASES = [
    ("LinearLR", {}),
    ("LinearLR", {"start_factor": 1.0, "end_factor": 0.0, "total_iters": 20}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("CosineAnnealingLR", {"T_max": 10}),
    ("CosineAnnealingLR", {"T_max": 7, "eta_min": 1e-4}),
    ("StepLR", {"step_size": 3}),
    ("StepLR", {"step_size": 4, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [2, 5, 5, 11], "gamma": 0.3}),
    ("ConstantLR", {}),
    ("ConstantLR", {"factor": 0.5, "total_iters": 8}),
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_rates_are_those_of_torch(name, settings):
    first = 2e-3
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=first)
    scheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, **settings)
    rule = learning_rate_rule(name, first, settings)
    for iteration in range(25):
        found = rule(torch.tensor(iteration))
        assert found.dtype == torch.float32 and found.shape == ()
        assert float(found) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-6, abs=1e-10), iteration
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("short", "long", "settings"),
    [
        ("linear", "LinearLR", {"total_iters": 4}),
        ("exponential", "ExponentialLR", {"gamma": 0.5}),
        ("cosine", "CosineAnnealingLR", {"T_max": 4}),
        ("step", "StepLR", {"step_size": 2}),
        ("multistep", "MultiStepLR", {"milestones": [1, 3]}),
    ],
)
def test_short_names_mean_the_same(short, long, settings):
    for iteration in map(torch.tensor, range(6)):
        assert learning_rate_rule(short, 0.1, settings)(iteration) == learning_rate_rule(long, 0.1, settings)(iteration)


def test_by_hand():
    # 1 · (0.25 + 0.75 t / 3): 0.25, 0.5, 0.75, 1, 1
    rule = learning_rate_rule("linear", 1.0, {"start_factor": 0.25, "total_iters": 3})
    assert [float(rule(torch.tensor(t))) for t in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    rule = learning_rate_rule("constant", 0.5, {})
    assert [float(rule(torch.tensor(t))) for t in (0, 7)] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("CosineLR", {}, "no learning-rate schedule 'CosineLR'.*Did you mean"),
        ("StepLR", {"step": 3}, "the schedule 'StepLR' has no setting 'step'.*Did you mean 'step_size'"),
        ("StepLR", {"gamma": 0.1}, r"the schedule 'StepLR' wants \['step_size'\] too"),
        ("StepLR", {"step_size": 0}, "step_size is positive, found 0"),
        ("CosineAnnealingLR", {"T_max": 0}, "T_max is positive"),
        ("LinearLR", {"start_factor": 0.0}, "factors are between 0 and 1"),
        ("ConstantLR", {"factor": 2.0}, "factor is between 0 and 1"),
        ("constant", {"gamma": 1.0}, "no setting 'gamma'"),
    ],
)
def test_mistakes_are_named(name, settings, message):
    with pytest.raises(ValueError, match=message):
        learning_rate_rule(name, 1e-3, settings)


def test_every_rule_is_tested():
    assert {name for name, _ in CASES} == {name for name in RULES if name.endswith("LR")}
