"""What PPO and its terms compute of a minibatch can be traced once and replayed for ever."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from ppo_rollouts import build, whole_minibatch
from term_rollouts import ADAPT, ESTIMATE, MEMORY, make_env, make_parts, make_policy, make_rnd, make_symmetry, no_terms

from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.terms.estimation import Estimation
from striderl.algorithms.terms.term import Term
from striderl.envs.classic_control import CartPole
from striderl.envs.vec_env import VecEnv
from striderl.execution.capture import CaptureError, check_capture

ROUNDING = 1e-5
STEPS = 3
"""A memory is traced step by step, and its third step is like all that follow."""


def minibatches(parts: Any) -> list[dict[str, Any]]:
    """Two of the same shapes with different samples."""
    return [whole_minibatch(parts.ppo, parts.collect()) for _ in range(2)]


def captured(ppo: PPO, parts: Any) -> None:
    def numbers(minibatch: dict[str, Any]) -> Any:
        losses, inter_vars, stats = ppo.compute_losses(minibatch)
        return {name: weight * loss for name, (weight, loss) in losses.items()}, inter_vars["ratio"], stats

    one, two = minibatches(parts)
    report = check_capture(numbers, [one], fresh_inputs=[two], atol=ROUNDING, rtol=ROUNDING, name="compute_losses")
    assert report.num_nodes > 50 and report.backward


EVERY = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
STAGES: dict[str, tuple[Any, ...]] = {"plain": (), "gru": (MEMORY,)}
SETTINGS: dict[str, dict[str, bool]] = {
    "usual": {},
    "normalised": {"normalize_values": True, "normalize_advantage_per_mini_batch": True},
    "bfloat16": {"use_mixed_precision": True},
}


def cases_of_ppo() -> list[Any]:
    """Every setting, with memory and without; all pairs under the deep profile."""
    few = [("usual", "gru"), ("normalised", "plain"), ("bfloat16", "plain")]
    pairs = [(setting, stage) for setting in SETTINGS for stage in STAGES] if EVERY else few
    return [pytest.param(STAGES[stage], SETTINGS[setting], id=f"{setting}-{stage}") for setting, stage in pairs]


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "settings"), cases_of_ppo())
def test_the_losses_of_ppo(stages, settings):
    env = make_env(16, 4)
    parts = make_parts(env, make_policy(env, stages, stages), no_terms, num_steps=STEPS, **settings)
    captured(parts.ppo, parts)


@pytest.mark.slow
def test_the_losses_of_ppo_with_choices():
    parts = build(CartPole(4), 8)
    captured(parts.ppo, parts)


def all_terms(env: VecEnv) -> Sequence[Term]:
    return [Estimation(), make_rnd(env), make_symmetry(mirror_loss_weight=0.2)]


TERMS = {
    "estimation": ((ESTIMATE,), lambda env: [Estimation()]),
    "adaptor": ((ADAPT,), lambda env: [Estimation(stage="Adapt", loss="huber_loss")]),
    "rnd": ((), lambda env: [make_rnd(env)]),
    "symmetry": ((), lambda env: [make_symmetry(mirror_loss_weight=0.2)]),
    "symmetry with memory": ((MEMORY,), lambda env: [make_symmetry(augment=False, mirror_loss_weight=0.2)]),
    "all": ((ESTIMATE, MEMORY), all_terms),
}
IN_ALL = ("estimation", "rnd", "symmetry")
"""Terms that "all" has with the same settings; alone under the deep profile."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TERMS if EVERY or name not in IN_ALL])
def test_terms_are_what_they_say(name):
    stages, terms = TERMS[name]
    env = make_env(16, 4)
    parts = make_parts(env, make_policy(env, stages, (MEMORY,) if MEMORY in stages else ()), terms, num_steps=STEPS)
    assert all(term.capturable for term in parts.ppo.terms)
    captured(parts.ppo, parts)


class Reader(Term):
    """A term that asks the device for a number."""

    name = "reader"

    def losses(self, minibatch: Any, out: Any) -> dict[str, tuple[float, torch.Tensor]]:
        weight = 1.0 if out.value.mean().item() > 0.0 else 2.0
        return {"reader_loss": (weight, out.value.square().mean())}


def test_a_term_that_reads_from_the_device_is_found():
    env = make_env(16, 4)
    parts = make_parts(env, make_policy(env), lambda env: [Reader()])
    assert not Reader.capturable
    with pytest.raises(CaptureError, match="item"):
        captured(parts.ppo, parts)
