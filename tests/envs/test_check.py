"""The checker finds each way of breaking the contract, says where, and leaves good envs in peace."""

from __future__ import annotations

import re

import pytest
import torch
from contract_breakers import (
    BREAKERS,
    FixedStartAsFinalObs,
    OneEnvHasOneSeed,
    OneStreamForAll,
    ShapeChangesLater,
    TakesTooFewActions,
    TwoEnvsShareAStream,
    Wanderer,
)

from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.envs import toy
from striderl.envs.check import check_vec_env
from striderl.envs.check.probe import sample_actions
from striderl.envs.classic_control import CLASSIC_TASKS
from striderl.envs.vec_env import ContractError, StateUnsupportedError

GOOD = {
    **{task: (lambda make=make: make(3)) for task, make in CLASSIC_TASKS.items()},
    "Wanderer": Wanderer,
    "one env": lambda: Wanderer(1),
    "Bandit": lambda: toy.Bandit(4),
    "Bandit, contextual": lambda: toy.Bandit(4, config=toy.BanditConfig(contextual=True)),
    "ContinuousBandit": lambda: toy.ContinuousBandit(4, config=toy.ContinuousBanditConfig(contextual=True)),
    "HybridActions": lambda: toy.HybridActions(4),
    "HybridActions, masked": lambda: toy.HybridActions(4, config=toy.HybridActionsConfig(masked=True)),
    "Chain": lambda: toy.Chain(4),
    "Chain, endless": lambda: toy.Chain(4, config=toy.ChainConfig(terminates=False, max_episode_length=9)),
    "Grid": lambda: toy.Grid(4),
    "MemoryCue": lambda: toy.MemoryCue(4),
    "RepeatObs": lambda: toy.RepeatObs(4),
    "TimeLimit": lambda: toy.TimeLimit(4),
    "Terminator": lambda: toy.Terminator(4),
    "Counting": lambda: toy.Counting(4),
}
DETERMINISTIC = {"Bandit", "Chain", "Chain, endless", "Grid", "TimeLimit", "Terminator"}


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_good_envs_pass(name: str) -> None:
    report = check_vec_env(GOOD[name](), num_steps=40, close=True)
    assert report.ok
    assert bool(report.warnings) == (name in DETERMINISTIC), str(report)
    assert {"seeds", "reset_envs", "saved state", "episode lengths", "close"} <= set(report.checked)


def steps_for(kind: type) -> int:
    """As many steps as the fault takes to show: some show in the 50th after a reset only."""
    return 60 if kind.__name__.endswith("Later") else 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", BREAKERS, ids=lambda kind: kind.__name__)
def test_each_fault_is_named(kind: type) -> None:
    fault = kind.fault
    with pytest.raises(ContractError) as caught:
        check_vec_env(kind(), num_steps=steps_for(kind), close=True)
    message = str(caught.value)
    assert message.startswith(f"{kind.__name__}: {fault.field}")
    assert fault.words in message
    if fault.env >= 0:
        assert f"env {fault.env}" in message
    if fault.step == 0:
        assert "at reset" in message
    if fault.step > 0:
        assert re.search(rf"at step {fault.step}\b", message)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BREAKERS, ids=lambda kind: kind.__name__)
def test_collecting_names_the_same_fault_and_never_raises(kind: type) -> None:
    report = check_vec_env(kind(), num_steps=steps_for(kind), collect=True, close=True)
    assert not report.ok
    first = report.violations[0]
    assert first.field == kind.fault.field
    assert kind.fault.words in str(first)
    if kind.fault.env >= 0:
        assert first.env == kind.fault.env
    if kind.fault.step >= 0:
        assert first.step == kind.fault.step
    assert f"breaks the contract in {len(report.violations)} places" in str(report)


def test_there_are_many_breakers() -> None:
    assert len(BREAKERS) >= 45


def test_several_faults_are_all_collected_once() -> None:
    class Twice(Wanderer):
        def spoil(self, step):
            return step._replace(reward=step.reward[:, None], terminated=step.terminated.long())

    report = check_vec_env(Twice(), num_steps=30, collect=True)
    assert sorted(violation.field for violation in report.violations) == ["reward", "terminated"]
    assert any("the rest of" in reason for reason in report.skipped)


def test_a_fault_beyond_the_last_step_is_not_seen() -> None:
    assert check_vec_env(ShapeChangesLater(), num_steps=20).ok  # it shows in the 50th step after a reset only


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OneStreamForAll, r"envs \[0, 1, 2, 3\] always start the same"),
        (TwoEnvsShareAStream, r"envs \[1, 3\] always start the same"),
        (OneEnvHasOneSeed, r"envs \[2\] start the same under seeds 0 and 1"),
        (TakesTooFewActions, "took actions for 3 of 4 envs"),
        (FixedStartAsFinalObs, r"final_obs \(env \d, at step \d+\)"),
    ],
)
def test_what_is_odd_is_a_warning(kind: type, words: str) -> None:
    report = check_vec_env(kind(), num_steps=60)
    assert report.ok
    assert any(re.search(words, warning) for warning in report.warnings), str(report)


def test_an_env_without_saved_state_is_allowed() -> None:
    class Stateless(Wanderer):
        def state_dict(self):
            raise StateUnsupportedError("Stateless cannot save its state")

    report = check_vec_env(Stateless(), num_steps=10)
    assert "saved state" not in report.checked
    assert any("cannot save its state" in reason for reason in report.skipped)


def test_the_env_is_left_open_and_freshly_reset() -> None:
    env, twin = Wanderer(), Wanderer()
    report = check_vec_env(env, num_steps=10, seed=5)
    assert any("close=True" in reason for reason in report.skipped)
    twin.reset(seed=5)
    action = torch.ones(4, 2)
    assert torch.equal(env.step(action).obs["place"], twin.step(action).obs["place"])


def test_num_steps_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        check_vec_env(Wanderer(), num_steps=0)


# -- random actions ----------------------------------------------------------------------------------------------------


def test_sampled_choices_respect_masks() -> None:
    mask = torch.tensor([[True, False, True], [False, True, False]]).repeat(200, 1)
    generator = torch.Generator().manual_seed(0)
    chosen = sample_actions(DiscreteSpec(n=3, mask="m"), {"m": mask}, generator)
    assert chosen.dtype == torch.int64
    assert mask.gather(1, chosen[:, None]).all()
    # the two allowed choices of even rows come about equally often: 100 of 200 each, three sigma are 21
    assert abs(int((chosen[0::2] == 0).sum()) - 100) < 21


def test_sampled_entries_respect_their_piece_of_the_mask() -> None:
    # entries of 2 and 3 choices: the first must be 1, the second 0 or 2
    mask = torch.tensor([[False, True, True, False, True]]).repeat(100, 1)
    chosen = sample_actions(MultiDiscreteSpec(nvec=(2, 3), mask="m"), {"m": mask}, torch.Generator().manual_seed(0))
    assert chosen.shape == (100, 2)
    assert chosen[:, 0].unique().tolist() == [1]
    assert chosen[:, 1].unique().tolist() == [0, 2]


def test_a_mask_that_allows_nothing_names_the_env() -> None:
    mask = torch.tensor([[True, True], [False, False]])
    with pytest.raises(ValueError, match="'m' allows no choice for action entry 0 in env 1"):
        sample_actions(DiscreteSpec(n=2, mask="m"), {"m": mask}, torch.Generator())


def test_sampled_numbers_follow_their_bounds() -> None:
    infinity = float("inf")
    spec = BoxSpec(shape=(4,), low=(-1.0, 2.0, -infinity, -infinity), high=(3.0, infinity, 5.0, infinity))
    numbers = sample_actions(spec, {"o": torch.zeros(4000, 1)}, torch.Generator().manual_seed(0))
    assert numbers.shape == (4000, 4)
    assert numbers.dtype == torch.float32
    assert numbers.isfinite().all()
    uniform, above, below, free = numbers.unbind(1)
    assert -1 <= uniform.min() < -0.9
    assert 2.9 < uniform.max() <= 3
    # means 1, 2 + 1, 5 - 1 and 0; their deviations are at most 1.2 / sqrt(4000) = 0.02
    assert [round(float(x.mean()), 0) for x in (uniform, above, below, free)] == [1.0, 3.0, 4.0, 0.0]
    assert above.min() >= 2
    assert below.max() <= 5


def test_sampled_dicts_have_all_parts_and_seeds_repeat() -> None:
    spec = DictActionSpec({"a": DiscreteSpec(n=5), "b": BoxSpec(shape=(2, 3), low=0.0, high=1.0)})
    obs = {"o": torch.zeros(7, 1)}
    one, two = (sample_actions(spec, obs, torch.Generator().manual_seed(3)) for _ in range(2))
    assert one["a"].shape == (7,)
    assert one["b"].shape == (7, 2, 3)
    assert all(torch.equal(one[name], two[name]) for name in spec.parts)
