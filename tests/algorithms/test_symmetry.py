"""Symmetry: tables, mirrored samples, the mirror loss, and what memory may know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ppo_rollouts import gradients
from term_rollouts import (
    ESTIMATE,
    MEMORY,
    MIRROR,
    MIRROR_ACT,
    learn,
    make_env,
    make_parts,
    make_policy,
    make_symmetry,
    no_terms,
    order,
    touched,
)

from striderl.algorithms.terms.symmetry import MirrorTable, Symmetry
from striderl.data import tree
from striderl.envs.classic_control import CartPole
from striderl.policies.policy import PolicyOutput


def same(x: Any) -> Any:
    return x


def first_minibatch(parts: Any) -> dict[str, Any]:
    return next(iter(parts.ppo.minibatches(parts.collect(), order())))


# -- tables ------------------------------------------------------------------------------------------------------------


def test_a_table_moves_and_turns():
    table = MirrorTable([1, 0, 2], [1, 1, -1])
    assert table(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[2.0, 1.0, -3.0]]
    assert table(table(torch.tensor([1.0, 2.0, 3.0]))).tolist() == [1.0, 2.0, 3.0]


def test_a_mask_stays_a_mask():
    found = MirrorTable([1, 0])(torch.tensor([True, False]))
    assert found.dtype == torch.bool and found.tolist() == [False, True]


@pytest.mark.parametrize(
    ("index", "sign", "words"),
    [
        ([1, 2, 0], None, "does not come back"),
        ([1, 0], [1, -1], "does not come back"),
        ([0, 0], None, "every entry once"),
        ([0, 1], [1], "for each of 2"),
        ([0, 1], [1, 0.5], r"\+1 or -1"),
    ],
)
def test_tables_that_are_no_mirror_are_refused(index, sign, words):
    with pytest.raises(ValueError, match=words):
        MirrorTable(index, sign)


# -- mirrored samples --------------------------------------------------------------------------------------------------


def test_mirrored_samples_come_behind_the_others():
    env = make_env()
    parts = make_parts(env, make_policy(env))
    minibatch = first_minibatch(parts)
    twice = make_symmetry().extend(minibatch)
    half = len(minibatch["valid"])
    assert torch.equal(twice["obs"]["joints"][:half], minibatch["obs"]["joints"])
    assert torch.equal(
        twice["obs"]["joints"][half:], minibatch["obs"]["joints"][:, [1, 0, 2]] * torch.tensor([1, 1, -1])
    )
    assert torch.equal(twice["act"][half:], minibatch["act"][:, [1, 0]])
    assert torch.equal(twice["returns"], minibatch["returns"].repeat(2))
    assert torch.equal(twice["log_prob"], minibatch["log_prob"].repeat(2))
    assert twice["valid"].all() and twice["collected"].tolist() == [True] * half + [False] * half


def test_a_mirror_that_changes_nothing_changes_no_loss():
    env = make_env()
    policy = make_policy(env, (MEMORY,), (MEMORY,))
    parts = make_parts(env, policy, num_mini_batches=1)
    mirror = Symmetry(mirror_obs=dict, mirror_act=same, mirror_loss_weight=1.0)
    doubled = make_parts(env, policy, lambda env: [mirror], num_mini_batches=1)
    minibatch = first_minibatch(parts)
    losses, gradient = gradients(parts.ppo, minibatch)
    found, found_gradient = gradients(doubled.ppo, minibatch)
    assert found.pop("mirror_loss") == pytest.approx(0.0, abs=1e-10)
    assert found == pytest.approx(losses, abs=1e-6)
    torch.testing.assert_close(found_gradient, gradient, rtol=1e-4, atol=1e-6)


def test_augmented_losses_are_those_of_both_halves():
    env = make_env()
    policy = make_policy(env)
    plain = make_parts(env, policy, num_mini_batches=1)
    augmented = make_parts(env, policy, lambda env: [make_symmetry()], num_mini_batches=1)
    minibatch = first_minibatch(plain)
    mirrored = {
        **minibatch,
        "obs": {name: MIRROR[name](value) for name, value in minibatch["obs"].items()},
        "act": MIRROR_ACT(minibatch["act"]),
    }
    here, there = plain.ppo.compute_losses(minibatch), plain.ppo.compute_losses(mirrored)
    both, _, stats = augmented.ppo.compute_losses(minibatch)
    for name, (_, loss) in both.items():
        assert loss.item() == pytest.approx((here[0][name][1] + there[0][name][1]).item() / 2, abs=1e-6)
    assert both["surrogate_loss"][1].item() != pytest.approx(here[0]["surrogate_loss"][1].item(), abs=1e-4)
    # what is compared with the rollout counts only what was in it
    assert stats["ratio_error"].item() < 1e-5 < there[2]["ratio_error"].item()
    assert stats["kl"].item() == pytest.approx(here[2]["kl"].item(), abs=1e-6)


def test_the_mirror_loss_alone_leaves_the_other_losses_alone():
    env = make_env()
    policy = make_policy(env, (ESTIMATE, MEMORY), (MEMORY,))
    plain = make_parts(env, policy)
    mirror = make_parts(env, policy, lambda env: [make_symmetry(augment=False, mirror_loss_weight=1.0)])
    minibatch = first_minibatch(plain)
    losses, _, stats = plain.ppo.compute_losses(minibatch)
    found, _, found_stats = mirror.ppo.compute_losses(minibatch)
    assert found.keys() - losses.keys() == {"mirror_loss"} and found["mirror_loss"][1].item() > 0.0
    for name, (_, loss) in losses.items():
        assert found[name][1].item() == pytest.approx(loss.item(), abs=1e-6)
    for name, value in stats.items():
        added = found["mirror_loss"][1].item() if name == "total_loss" else 0.0
        assert found_stats[name].item() == pytest.approx(value.item() + added, abs=1e-5)


# -- the mirror loss ---------------------------------------------------------------------------------------------------


def test_the_mirror_loss_by_hand():
    # π(s) = (1, 2), mirrored (2, 1); π(s*) = (3, 5): errors 1 and 16, mean 8.5; the second sample does not count
    mode = torch.tensor([[1.0, 2.0], [9.0, 9.0], [3.0, 5.0], [0.0, 0.0]], requires_grad=True)
    out = PolicyOutput(SimpleNamespace(mode=lambda: mode), torch.zeros(()), {}, {})  # type: ignore[arg-type]
    minibatch = {"mirrored": torch.tensor([False, False, True, False])}
    weight, loss = make_symmetry(mirror_loss_weight=0.3).losses(minibatch, out)["mirror_loss"]
    assert (weight, loss.item()) == (0.3, 8.5)
    loss.backward()
    # d/dx of ((3 - 2)² + (5 - 1)²) / 2 is (1, 4); the target gets nothing
    assert mode.grad.tolist() == [[0, 0], [0, 0], [1, 4], [0, 0]]


def test_its_gradient_reaches_the_actor_only():
    env = make_env()
    policy = make_policy(env, (MEMORY,), (MEMORY,))
    parts = make_parts(env, policy, lambda env: [make_symmetry(mirror_loss_weight=1.0)])
    losses, _, _ = parts.ppo.compute_losses(first_minibatch(parts))
    names = touched(losses["mirror_loss"][1], dict(policy.named_parameters()))
    assert {name.split(".")[0] for name in names} == {"actor", "actor_body", "head"}
    assert not any("std" in name for name in names)


@pytest.mark.slow
def test_the_policy_becomes_symmetric():
    env = make_env(32, 4)
    term = make_symmetry(augment=False, mirror_loss_weight=10.0)
    settings = {"learning_rate": 1e-2, "schedule": "fixed", "num_learning_epochs": 40}
    parts = make_parts(env, make_policy(env), lambda env: [term], num_steps=32, **settings)
    prepared = parts.collect()
    first = parts.ppo.update(prepared, order())["mirror_loss"]
    assert parts.ppo.update(prepared, order())["mirror_loss"].item() < 0.2 * first.item()


@pytest.mark.parametrize("recurrent", [False, True])
def test_weights_of_zero_change_nothing(recurrent):
    stages = (MEMORY,) if recurrent else ()
    results = []
    for terms in (
        no_terms,
        lambda env: [make_symmetry(augment=False, mirror_loss_weight=0.0)],
        lambda env: [make_symmetry(augment=False, mirror_loss_weight=1.0)],
    ):
        env = make_env()
        results.append(learn(make_parts(env, make_policy(env, stages, stages), terms))[1])
    without, zero, one = results
    assert all(torch.equal(without[name], zero[name]) for name in without)
    assert not all(torch.equal(without[name], one[name]) for name in without)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_what_memory_cannot_know_does_not_count():
    # env 0 begins an episode at step 2, env 1 never, env 2 had an empty memory
    resets = torch.tensor([[0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]]).bool()
    minibatch = {
        "valid": torch.ones(4, 3, dtype=torch.bool),
        "resets": resets,
        "state": {"hidden": torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])},
        "obs": {"joints": torch.zeros(4, 3, 3), "command": torch.zeros(4, 3, 2)},
        "act": torch.zeros(4, 3, 2),
    }
    twice = make_symmetry().extend(minibatch)
    assert twice["valid"].shape == (4, 6) and twice["valid"][:, :3].all()
    assert twice["valid"][:, 3:].int().tolist() == [[0, 0, 1], [0, 0, 1], [1, 0, 1], [1, 0, 1]]
    assert twice["state"]["hidden"][3:].tolist() == [[0.0, 0.0]] * 3


def test_mirrored_sequences_are_those_of_a_mirrored_world():
    env = make_env(16, 4, rate=0.15, seed=2)
    policy = make_policy(env, (MEMORY,), (MEMORY,))
    parts = make_parts(env, policy, num_mini_batches=1)
    parts.collect()  # so that the next one does not begin with an empty memory
    minibatch = first_minibatch(parts)
    assert all(bool((leaf != 0).any()) for leaf in minibatch["state"].values())
    twice = make_symmetry().extend(minibatch)
    envs = minibatch["valid"].shape[1]
    with torch.no_grad():
        out = policy(twice["obs"], twice["state"], twice["memo"], twice["resets"], twice["readable"])
    compared = 0
    for env_index in range(envs):
        began = minibatch["resets"][:, env_index].nonzero().flatten().tolist()
        assert twice["valid"][:, envs + env_index].any() == bool(began)
        if not began:
            continue
        where = (slice(began[0], None), slice(env_index, env_index + 1))
        obs = {name: MIRROR[name](value[where]) for name, value in minibatch["obs"].items()}
        with torch.no_grad():
            alone = policy(obs, policy.initial_state(1), {}, minibatch["resets"][where])
        mode = out.distribution.mode()[began[0] :, envs + env_index : envs + env_index + 1]
        torch.testing.assert_close(mode, alone.distribution.mode(), rtol=1e-5, atol=1e-6)
        compared += 1
    assert compared >= 2


# -- choices, and what is refused --------------------------------------------------------------------------------------


def test_choices_can_be_mirrored_too():
    env = CartPole(4)
    mirror = Symmetry(mirror_obs=lambda obs: tree.map(torch.neg, dict(obs)), mirror_act=lambda act: 1 - act)
    numbers, _ = learn(make_parts(env, make_policy(env), lambda env: [mirror]))
    assert float(numbers["first_ratio_error"]) < 1e-5 and "mirror_loss" not in numbers


def test_choices_have_no_mirror_loss():
    env = CartPole(4)
    mirror = Symmetry(mirror_obs=dict, mirror_act=same, mirror_loss_weight=1.0)
    with pytest.raises(ValueError, match="cannot compare choices"):
        make_parts(env, make_policy(env), lambda env: [mirror])


@pytest.mark.parametrize(
    ("obs", "act", "error", "words"),
    [
        ({"joints": MIRROR["joints"]}, MIRROR_ACT, KeyError, "command"),
        ({**MIRROR, "comand": same}, MIRROR_ACT, KeyError, "Did you mean 'command'"),
        ({**MIRROR, "command": MirrorTable([0])}, MIRROR_ACT, ValueError, "is for 1 entries"),
        (MIRROR, MirrorTable([0, 1, 2]), ValueError, "the action has shape"),
    ],
)
def test_mirrors_that_do_not_fit_are_refused(obs, act, error, words):
    env = make_env()
    with pytest.raises(error, match=words):
        make_parts(env, make_policy(env), lambda env: [Symmetry(mirror_obs=obs, mirror_act=act)])


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="not negative"):
        make_symmetry(mirror_loss_weight=-1.0)
    with pytest.raises(TypeError, match="augment"):
        make_symmetry(augment="yes")
