"""Defects of older libraries that no other test of ours would notice; `docs/defects.md` lists all of them."""

from __future__ import annotations

import ast
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent / "training"))
from two_stage_cases import Follow, config, record

from striderl.algorithms.on_policy import appo as atppo
from striderl.algorithms.on_policy.a2c import A2C
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.on_policy.reinforce import REINFORCE
from striderl.algorithms.terms.motion_prior import MotionPrior, MotionPriorConfig
from striderl.data import tree
from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec
from striderl.data.arena import Placement
from striderl.data.specs import ObsSpec
from striderl.data.transition import transition_columns
from striderl.envs.classic_control.pendulum import Pendulum
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs
from striderl.storage.rollout_presets import AmpRolloutStorage
from striderl.training.experiment.runner_config import RunnerConfig
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner
from striderl.training.rsl_rl.two_stage_runner import TwoStageRunner

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def make_runner(*, normalise: bool = True, **ppo: Any) -> OnPolicyRunner:
    stages = (NormalizeObs(),) if normalise else ()
    policy = PolicyConfig(actor=stages, critic=stages, actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    algorithm = PPOConfig(**{"num_learning_epochs": 1, "num_mini_batches": 4, **ppo})
    return OnPolicyRunner(Pendulum(4), RunnerConfig(policy=policy, algorithm=algorithm, num_steps_per_env=4, seed=5))


# -- going on from a checkpoint ----------------------------------------------------------------------------------------


def test_defect_3_the_first_kl_step_after_loading_starts_from_the_saved_rate():
    # such a small KL is overshot by every minibatch but the first of an update: three times 1.5 in each iteration
    one, other = (make_runner(schedule="adaptive", desired_kl=1e-9, learning_rate=1e-3) for _ in range(2))
    one.learn(1)
    other.alg.load_state_dict(one.alg.state_dict())
    assert float(other.alg.updater.groups["policy"].learning_rate) == pytest.approx(1e-3 / 1.5**3)
    other.learn(1)
    assert float(other.alg.updater.groups["policy"].learning_rate) == pytest.approx(1e-3 / 1.5**6)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_defect_4_a_normaliser_on_one_side_only_is_an_error_or_named(tmp_path, caplog, saved, own):
    one, other = make_runner(normalise=saved), make_runner(normalise=own)
    one.learn(1)
    one.save(tmp_path / "model")
    before = tree.copy(dict(other.alg.policy.state_dict()))
    if saved == own:
        other.load(tmp_path / "model")
        assert tree.equal(dict(one.alg.policy.state_dict()), dict(other.alg.policy.state_dict()))
        return
    for settings in ({}, {"load_optimizer": False}):
        with pytest.raises((RuntimeError, ValueError), match="NormalizeObs"):
            other.load(tmp_path / "model", **settings)
    assert not caplog.messages
    with caplog.at_level(logging.WARNING):
        other.load(tmp_path / "model", strict=False)
    after = other.alg.policy.state_dict()
    assert torch.equal(after["actor_body.model.0.weight"], one.alg.policy.state_dict()["actor_body.model.0.weight"])
    assert not torch.equal(after["actor_body.model.0.weight"], before["actor_body.model.0.weight"])
    said = "has no place for" if saved else "keeps its own"
    assert any(said in message and "NormalizeObs" in message for message in caplog.messages)


def test_defect_36_the_first_observation_is_normalised_like_all_others():
    trained, fresh = make_runner(), make_runner()
    trained.learn(2)
    fresh.alg.load_state_dict(trained.alg.state_dict())
    obs = critic_obs = None
    for _ in range(4):
        obs, critic_obs, *_ = fresh.rollout_step(obs, critic_obs)
    data, policy = fresh.storage.data, fresh.alg.policy
    shown = data["obs"]["obs"]
    # raw in the storage, from the first row on: (cos, sin, speed)
    assert torch.allclose(shown[..., :2].square().sum(-1), torch.ones(4, 4))
    dist, _, _ = policy.act({"obs": shown.flatten(0, 1)}, {}, {})
    assert torch.allclose(data["policy"]["dist"]["mean"].flatten(0, 1), dist.mode(), atol=1e-6)
    mean = policy.state_dict()["actor.stages.0_NormalizeObs.normalizers.of_obs.statistics.mean"]
    assert float(mean.abs().max()) > 0.01, "the normaliser does make a difference"


def test_defect_37_the_env_begins_with_empty_memories(tmp_path):
    record(tmp_path / "demos", 8)
    recurrent = {"class_name": "ActorCriticRecurrent", "rnn_type": "gru", "rnn_hidden_size": 8}
    runner = TwoStageRunner(Follow(4), config(tmp_path / "demos", policy=recurrent, pretrain_iterations=-1))
    runner.learn(1)
    left = runner.trainer.collector.current_state
    memories = [name for name, value in left.items() if value.is_floating_point()]
    assert memories and all(bool(left[name].any()) for name in memories), "the recording left something behind"
    runner.hand_over()
    runner.trainer.collector.ready()
    begun = runner.trainer.collector.current_state
    assert not any(bool(begun[name].any()) for name in memories)


# -- parts that do not fit, and settings -------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", [PPO, A2C, REINFORCE])
@pytest.mark.parametrize("mixed", [False, True])
def test_defect_6_a_policy_without_entropy_is_refused(learner, mixed):
    box = BoxSpec(shape=(2,))
    action = DictActionSpec({"move": box, "mode": DiscreteSpec(n=3)}) if mixed else box
    policy = Policy(ObsSpec.from_flat(3), action, PolicyConfig(head="deterministic"))
    with pytest.raises(ValueError, match="neither log-probabilities nor entropy"):
        learner(policy)


def test_defect_16_a_storage_for_motions_lies_where_it_is_told():
    columns = transition_columns(ObsSpec.from_flat(3), BoxSpec(shape=(2,)), {}, {})
    storage = AmpRolloutStorage(columns, 2, 3, amp_obs_dim=4, placement=Placement(device="meta"))
    assert {"ref_obs", "ref_motion", "action_labels"} <= storage.data.keys()
    assert {value.device.type for _, value in tree.items(storage.data)} == {"meta"}


def test_defect_20_the_discriminator_has_an_optimiser_of_its_own():
    settings = MotionPriorConfig(learning_rate=3e-4, weight_decay=0.5, max_grad_norm=0.25, hidden_dims=(4,), frames=1)
    spec = ObsSpec.from_segments({"motion": 2})
    policy = Policy(spec, BoxSpec(shape=(2,)), PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=(4,)))
    ppo = PPO(
        policy, PPOConfig(learning_rate=1e-3, max_grad_norm=1.0), terms=[MotionPrior(spec, torch.randn(8, 2), settings)]
    )
    found = {name: group.config for name, group in ppo.updater.groups.items()}
    assert found.keys() == {"policy", "discriminator"}
    own, theirs = found["policy"], found["discriminator"]
    assert (theirs.learning_rate, theirs.weight_decay, theirs.max_grad_norm) == (3e-4, 0.5, 0.25)
    assert (own.learning_rate, own.weight_decay, own.max_grad_norm) == (1e-3, 0.0, 1.0)


def test_defect_23_unless_told_otherwise_the_task_is_paid_beside_style():
    settings = MotionPriorConfig()
    assert (settings.task_weight, settings.style_weight) == (0.5, 0.5)
    only_style = settings.weighed(task_reward_lerp=0.0, style_reward_coef=2.0)
    assert (only_style.task_weight, only_style.style_weight) == (0.0, 2.0)


def test_defect_25_the_t_of_atppo_is_for_teacher_too():
    assert "adversarial teacher PPO" in (atppo.__doc__ or "")
    assert "teacher" in (atppo.ATPPO.__doc__ or "") and "teacher" in (atppo.ATPPOConfig.__doc__ or "")


# -- mistakes that can be seen in the source ---------------------------------------------------------------------------


def places(is_wrong: Callable[[ast.AST], bool], hint: str) -> list[str]:
    """Where the library does something wrong; files are parsed where the text says that it may be so."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"  # type: ignore[attr-defined]
        for path in SOURCES
        if re.search(hint, text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if is_wrong(node)
    ]


def is_raised_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Raise) and isinstance(node.exc, (ast.JoinedStr, ast.Constant))


def is_bare_except(node: ast.AST) -> bool:
    return isinstance(node, ast.ExceptHandler) and node.type is None


def is_squeeze_of_everything(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "squeeze":
        return False
    of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
    return len(node.args) + len(node.keywords) == int(of_torch)


def is_made_up_name(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or len(node.args) < 2:
        return False
    return node.func.id in ("getattr", "setattr", "hasattr") and isinstance(node.args[1], (ast.JoinedStr, ast.BinOp))


MISTAKES: dict[str, tuple[str, Callable[[ast.AST], bool], str]] = {
    "raised text": (r"raise \(?[frb]*[\"']", is_raised_text, "raise (f'no {x}')"),
    "bare except": (r"except\s*:", is_bare_except, "try:\n    pass\nexcept:\n    pass"),
    "squeeze": (r"\bsqueeze\(\)|torch\.squeeze\(", is_squeeze_of_everything, "torch.squeeze(x)"),
    "made-up name": (r"attr\([^\"\n]*(, f\"|\+|%)", is_made_up_name, "getattr(self, key + '_coef', 1.0)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_defects_1_6_9_and_14_are_nowhere_in_the_source(mistake):
    hint, is_wrong, example = MISTAKES[mistake]
    assert re.search(hint, example) and any(map(is_wrong, ast.walk(ast.parse(example)))), "the test can fail"
    assert places(is_wrong, hint) == []


def test_defect_7_old_misspellings_are_aliases_at_most():
    wrong = re.compile(r"reccurent|writter|trianing|grad_len")
    aliases = {
        "    reccurent_mini_batch_generator = recurrent_mini_batch_generator",
        "    init_writter = init_writer",
    }
    found = {line for path in SOURCES for line in path.read_text().splitlines() if wrong.search(line)}
    assert found == aliases


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_defect_41_pages_are_readable_and_say_things_once(page):
    text = page.read_bytes().decode("utf-8")
    # what UTF-8 becomes when it is read as Latin-1 or cp1252, and what is left when it cannot be read at all
    second = "\u0080-\u00bf\u0152-\u017e\u02c6\u02dc\u2013-\u203a\u20ac\u2122"
    assert not re.findall(f"[\u00c2\u00c3\u00e2\u00f0][{second}]|\ufffd", text)
    blocks = Counter(re.findall(r"```\w*\n(.*?)```", text, re.S))
    # a line or two of a command may well be wanted again
    assert [block for block, count in blocks.items() if count > 1 and block.count("\n") > 2] == []


def rows_of_the_page() -> dict[int, list[str]]:
    """Number → the cells behind it; a number that comes twice is an error."""
    found: dict[int, list[str]] = {}
    for line in (ROOT / "docs" / "defects.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("|") and cells[0].isdecimal():
            assert int(cells[0]) not in found, f"{cells[0]} comes twice"
            found[int(cells[0])] = cells[1:]
    return found


@pytest.mark.slow
def test_every_defect_has_its_row_and_every_test_that_is_named_exists():
    rows = rows_of_the_page()
    assert list(rows) == list(range(1, 42))
    defined: dict[str, set[str]] = {}
    for number, cells in rows.items():
        assert len(cells) == 3 and all(cells), f"row {number} wants what happened, what holds here, where it is shown"
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", cells[2])
        assert named or len(cells[2].split()) >= 6, f"row {number} names neither a test nor a reason"
        assert cells[2].count("::") == len(named), f"row {number} names something that is no test"
        for path, name in named:
            if path not in defined:
                body = ast.parse((ROOT / path).read_text()).body
                defined[path] = {node.name for node in body if isinstance(node, ast.FunctionDef)}
            assert name.startswith("test_") and name in defined[path], f"row {number}: {path} has no {name}"
