"""docs/policies.md: its examples run, and its table names every class with the stages it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from policy_cases import CASES, build

from striderl.networks.mlp import MlpModel
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.mutex.classes import ActorCriticClimbMutex, ActorCriticFieldMutex, ActorCriticMutex
from striderl.policies.mutex.facade import StatefulMutex
from striderl.policies.presets.base import Actor, Critic

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_run(example):
    exec(compile(example, "docs/policies.md", "exec"), {})


@pytest.mark.parametrize("kind", list(CASES), ids=lambda kind: kind.__name__)
def test_the_table_tells_the_truth(kind):
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{kind.__name__}` |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    config = build(kind).policy.config
    for cell, recipes in zip(cells[1:4], (config.trunk, config.actor, config.critic)):
        assert re.findall(r"[A-Z]\w+", cell) == [type(recipe).__name__ for recipe in recipes]
    assert ("acts on its mean" in row) == config.deterministic


def _row(*names: str) -> list[str]:
    start = "| " + ", ".join(f"`{name}`" for name in names) + " |"
    (row,) = [line for line in PAGE.splitlines() if line.startswith(start)]
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_row_of_actor_and_critic():
    cells = _row("Actor", "Critic")
    actor, critic = Actor(5, 2), Critic(5)
    assert cells[2] == cells[3] == "MLP" and "without stages" in cells[4]
    assert isinstance(actor.body, MlpModel) and isinstance(critic.body, MlpModel)
    assert not isinstance(actor, StatefulPolicy) and not isinstance(critic, StatefulPolicy)
    for module, other in ((actor, Actor(5, 2)), (critic, Critic(5))):
        other.load_state_dict(module.state_dict())
        assert all(torch.equal(value, module.state_dict()[name]) for name, value in other.state_dict().items())
    assert torch.equal(actor(torch.ones(3, 5)).mode(), actor.head(actor.body(torch.ones(3, 5))).mode())


def test_the_row_of_the_mutex_classes():
    kinds = (ActorCriticMutex, ActorCriticFieldMutex, ActorCriticClimbMutex)
    assert "whole policies side by side" in _row(*(kind.__name__ for kind in kinds))[4]
    for kind in kinds:
        assert issubclass(kind, StatefulMutex) and not issubclass(kind, StatefulPolicy)


def test_every_method_that_the_page_names_is_there():
    (named,) = re.findall(r"is a `StatefulPolicy`: `(.*?)`,\s+and\s+`(.*?)`\s+like", PAGE, flags=re.DOTALL)
    for name in re.findall(r"\w+", named[0].replace("reset(dones)", "reset") + " " + named[1]):
        assert hasattr(StatefulPolicy, name), name
        assert hasattr(StatefulMutex, name), name
