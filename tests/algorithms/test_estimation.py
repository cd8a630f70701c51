"""Estimation: the numbers of the loss, whom its gradient reaches, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ppo_rollouts import ACTION
from term_rollouts import ADAPT, ESTIMATE, MEMORY, learn, make_env, make_parts, make_policy, order, touched
from torch.nn import functional

from striderl.algorithms.terms.estimation import LOSSES, Estimation
from striderl.envs.toy import Script, Scripted
from striderl.policies.estimate import Estimate
from striderl.policies.policy import PolicyOutput


def said(estimate: Any, target: Any, path: str = "actor/0_Estimate") -> PolicyOutput:
    """What a policy says whose stage predicts this."""
    aux = {f"{path}/estimate": torch.as_tensor(estimate), f"{path}/target": torch.as_tensor(target)}
    return PolicyOutput(None, torch.zeros(()), {}, aux)  # type: ignore[arg-type]


def loss_of(term: Estimation, out: PolicyOutput, valid: Any) -> tuple[float, float]:
    ((weight, loss),) = term.losses({"valid": torch.as_tensor(valid)}, out).values()
    return float(weight), float(loss)


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_loss_is_a_sum_over_features_and_a_mean_over_valid_samples():
    # sample 0: 1² + 2² = 5; sample 1: 0² + 3² = 9; sample 2 does not count; mean 7
    out = said([[1.0, 2.0], [0.0, 3.0], [9.0, 9.0]], [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert loss_of(Estimation(weight=0.5), out, [True, True, False]) == (0.5, 7.0)


def test_a_sequence_gives_the_same_number():
    out = said([[[1.0, 2.0]], [[0.0, 3.0]]], [[[0.0, 0.0]], [[0.0, 0.0]]])
    assert loss_of(Estimation(), out, [[True], [True]]) == (1.0, 7.0)


def test_arguments_of_the_loss_are_used():
    # smooth L1 with beta 2: |d| = 1 < 2 gives 1² / (2 · 2) = 0.25, |d| = 3 gives 3 - 1 = 2
    out = said([[1.0, 3.0]], [[0.0, 0.0]])
    assert loss_of(Estimation(loss="smooth_l1_loss", loss_kwargs={"beta": 2.0}), out, [True]) == (1.0, 2.25)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_of_the_table_is_that_of_torch(name):
    generator = torch.Generator().manual_seed(0)
    estimate, target = torch.rand(4, 3, generator=generator), torch.rand(4, 3, generator=generator)
    function = {key: getattr(functional, key) for key in LOSSES}[name]
    expected = function(estimate, target, reduction="none").reshape(4, -1).sum(dim=1).mean()
    found = loss_of(Estimation(loss=name), said(estimate, target), [True] * 4)[1]
    assert found == pytest.approx(float(expected), rel=1e-6)


def test_nan_in_samples_that_do_not_count_leaves_the_gradient_finite():
    weights = torch.ones(2, requires_grad=True)
    estimate = torch.tensor([[1.0, 2.0], [0.0, 1e30]]) * weights
    out = said(estimate, [[0.0, 0.0], [float("nan"), 0.0]])
    ((_, loss),) = Estimation().losses({"valid": torch.tensor([True, False])}, out).values()
    loss.backward()
    assert weights.grad.tolist() == [2.0, 8.0]  # d/dw (w·e)² = 2 w e²


# -- in a policy -------------------------------------------------------------------------------------------------------


def gradient_names(term: Estimation, actor: tuple[Any, ...], **config: Any) -> set[str]:
    env = make_env()
    policy = make_policy(env, actor, **config)
    parts = make_parts(env, policy, lambda env: [term])
    minibatch = next(iter(parts.ppo.minibatches(parts.collect(), order())))
    losses, _, _ = parts.ppo.compute_losses(minibatch)
    return touched(losses[term.name][1], dict(policy.named_parameters()))


def test_the_gradient_reaches_the_estimator_and_nothing_else():
    names = gradient_names(Estimation(), (ESTIMATE, MEMORY))
    assert names == {
        f"actor.stages.0_Estimate.network.model.{layer}" for layer in ("0.weight", "0.bias", "2.weight", "2.bias")
    }


def test_an_estimator_on_the_actors_memory_trains_that_memory_too():
    stage = Estimate(target_components=("command",), use_actor_rnn=True, hidden_sizes=())
    names = gradient_names(Estimation(), (MEMORY, stage))
    assert {name.split(".")[2] for name in names} == {"0_Remember", "1_Estimate"}
    assert not any(name.startswith(("critic", "head", "actor_body", "value_head")) for name in names)


def test_a_second_one_trains_the_adaptor():
    both = (ADAPT, Estimate(obs_components=("joints",), target_components=("command",), hidden_sizes=()))
    config = {"actor_obs": ("joints",), "critic_obs": ("joints", "command")}
    assert {name.split(".")[2] for name in gradient_names(Estimation(stage="Adapt"), both, **config)} == {"0_Adapt"}
    assert {name.split(".")[2] for name in gradient_names(Estimation(), both, **config)} == {"1_Estimate"}
    env = make_env()
    parts = make_parts(env, make_policy(env, both, **config), lambda env: [Estimation(), Estimation(stage="Adapt")])
    numbers, _ = learn(parts)
    assert numbers["estimator_loss"] > 0 and numbers["adaptor_loss"] > 0


def test_one_stage_can_be_named():
    assert {name.split(".")[2] for name in gradient_names(Estimation(stage="actor/0_Estimate"), (ESTIMATE,))} == {
        "0_Estimate"
    }


@pytest.mark.slow
def test_the_estimator_learns():
    # the command is twice the first two joints, which a linear estimator can find
    joints = torch.randn(65, 4, 3, generator=order())
    never = torch.zeros(64, 4, dtype=torch.bool)
    script = Script(
        obs={"joints": joints, "command": 2.0 * joints[..., :2]},
        reward=never.float(),
        terminated=never,
        truncated=never,
    )
    env = Scripted(script, action_spec=ACTION)
    stage = Estimate(obs_components=("joints",), target_components=("command",), hidden_sizes=())
    settings = {"learning_rate": 1e-2, "num_learning_epochs": 100, "schedule": "fixed"}
    parts = make_parts(env, make_policy(env, (stage,)), lambda env: [Estimation()], num_steps=64, **settings)
    prepared = parts.collect()
    first = float(parts.ppo.update(prepared, order())["estimator_loss"])
    assert float(parts.ppo.update(prepared, order())["estimator_loss"]) < 0.1 * first


def test_a_weight_of_zero_changes_nothing():
    results = []
    for terms in ([], [Estimation(weight=0.0)], [Estimation(weight=1.0)]):
        env = make_env()
        results.append(learn(make_parts(env, make_policy(env, (ESTIMATE, MEMORY)), lambda env, terms=terms: terms))[1])
    without, zero, one = results
    assert all(torch.equal(without[name], zero[name]) for name in without)
    assert not all(torch.equal(without[name], one[name]) for name in without)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "mse_los"}, "Did you mean 'mse_loss'"),
        ({"loss_kwargs": {"reduction": "sum"}}, "leave 'reduction' out"),
        ({"weight": -1.0}, "not negative"),
        ({"weight": float("nan")}, "finite"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Estimation(**settings)


def test_unknown_arguments_of_the_loss_are_refused():
    with pytest.raises(TypeError, match="beta"):
        Estimation(loss_kwargs={"beta": 1.0})
    with pytest.raises(TypeError, match="weight"):
        Estimation(weight="1")


def test_a_policy_without_the_stage_is_refused():
    env = make_env()
    with pytest.raises(ValueError, match="finds no such stage"):
        make_parts(env, make_policy(env), lambda env: [Estimation()])
    with pytest.raises(ValueError, match="actor/0_Estimate"):
        make_parts(env, make_policy(env, (ESTIMATE,)), lambda env: [Estimation(stage="Adapt")])


def test_a_missing_truth_is_named():
    out = said([[1.0]], [[1.0]])
    del out.aux["actor/0_Estimate/target"]
    with pytest.raises(KeyError, match="no true value"):
        Estimation().losses({"valid": torch.tensor([True])}, out)
