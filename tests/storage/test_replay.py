"""The replay against a list of steps: rows, walking, saving, errors."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_model import COLUMNS, ModelReplay, ModelStep, build, histories, locate, play, transition

from striderl.data import tree
from striderl.data.arena import Placement
from striderl.data.specs import TensorSpec
from striderl.storage.replay.replay import Replay
from striderl.storage.replay.samplers import Prioritized, Uniform


def check_rows(replay: Replay, model: ModelReplay, index: torch.Tensor) -> None:
    rows = replay.read.rows(index)
    for i, (env, position) in enumerate(locate(replay, model, index)):
        step = model.alive(env)[position]
        assert rows["obs"]["a"][i].item() == step.obs
        assert rows["obs"]["b"][i].flatten().tolist() == [step.obs, -step.obs]
        assert rows["obs_next"]["a"][i].item() == step.obs_next
        assert rows["obs_next"]["b"][i].flatten().tolist() == [step.obs_next, -step.obs_next]
        assert rows["act"][i].item() == step.obs + 0.5
        assert rows["rew"][i].item() == pytest.approx(step.rew, rel=1e-6)
        assert (rows["terminated"][i], rows["truncated"][i], rows["valid"][i]) == (
            step.terminated,
            step.truncated,
            step.valid,
        )
        assert rows["info"]["tag"][i].item() == step.number


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(histories())
def test_rows_and_walkers_are_those_of_a_list(history: Any) -> None:
    replay, model = build(history)
    index = replay.read.chronological()
    expected = [(env, p) for env in range(model.num_envs) for p in range(len(model.alive(env)))]
    assert locate(replay, model, index) == expected
    assert len(replay) == len(expected)
    check_rows(replay, model, index)
    following = locate(replay, model, replay.read.next(index))
    earlier = locate(replay, model, replay.read.prev(index))
    for (env, p), on, back in zip(expected, following, earlier):
        steps = model.alive(env)
        stays = steps[p].done or p == len(steps) - 1
        assert on == (env, p if stays else p + 1)
        starts = p == 0 or steps[p - 1].done or not steps[p - 1].valid
        assert back == (env, p if starts else p - 1)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(histories())
def test_samples_are_rows_alive(history: Any) -> None:
    replay, model = build(history)
    sample = replay.sample(16)
    assert bool(replay.read.alive(sample.index).all())
    check_rows(replay, model, sample.index)
    assert tree.equal(replay.read.rows(sample.index), sample.data)


def test_a_replay_is_not_copied() -> None:
    # arrays that write into the memory of tensors would, in the copy, write into memory of their own
    replay = Replay(COLUMNS, 8, 1)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="load this one's state_dict"):
            copied(replay)


def test_uniform_picks_every_step_equally_often() -> None:
    # 2 envs with 2 and 4 steps alive: 6 rows, each with probability 1/6; 60,000 draws, 5 degrees of freedom
    replay, model = Replay(COLUMNS, 8, 2), ModelReplay(2, 4)
    one = [((False, False), True)]
    play(replay, model, [(None, one * 2), (None, one * 2), *[(slice(1, 2), one)] * 5])
    counts = torch.bincount(replay.sample(60_000).index, minlength=10)[replay.read.chronological()].double()
    assert counts.sum() == 60_000
    assert ((counts - 10_000.0) ** 2 / 10_000.0).sum() < 20.5  # chi-square, 0.999


def test_same_seed_same_rows_and_another_seed_others() -> None:
    def picks(seed: int) -> list[list[int]]:
        replay, model = Replay(COLUMNS, 50, 1, sampler=Uniform(seed=seed)), ModelReplay(1, 50)
        play(replay, model, [(None, [((False, False), True)])] * 40)
        return [replay.sample(32).index.tolist() for _ in range(3)]

    first = picks(3)
    assert first == picks(3)
    assert first != picks(4)
    assert first[0] != first[1]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(histories(), st.booleans())
def test_a_reloaded_replay_goes_on_bit_for_bit(history: Any, prioritized: bool) -> None:
    def options() -> dict[str, Any]:
        return {
            "sampler": Prioritized(seed=1) if prioritized else Uniform(seed=1),
            "episodes": True,
            "state": {"h": TensorSpec(shape=(1,))},
            "state_every": 2,
        }

    num_envs, capacity, _ = history
    replay, model = build(history, **options())
    if prioritized and not any(step.valid for env in range(num_envs) for step in model.alive(env)):
        return
    replay.sample(5)
    other = Replay(COLUMNS, capacity * num_envs, num_envs, **options())
    other.load_state_dict(replay.state_dict())
    for _ in range(2):
        one, two = replay.sample(7), other.sample(7)
        assert torch.equal(one.index, two.index)
        assert tree.equal(one.data, two.data)
        fresh = [ModelStep(0, 1.0, 2.0, 3.0, 4.0, False, True, True)] * num_envs
        replay.add(transition(fresh))
        other.add(transition(fresh))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(history=histories())
def test_files_hold_what_memory_holds(history: Any, tmp_path_factory: Any) -> None:
    num_envs, capacity, _ = history
    folder = tmp_path_factory.mktemp("replay")
    replay, model = build(history)
    mapped, _ = build(history, placement=Placement(folder=folder))
    for _ in range(2):
        assert tree.equal(replay.sample(9).data, mapped.sample(9).data)
    state = mapped.state_dict()
    again = Replay(COLUMNS, capacity * num_envs, num_envs, placement=Placement(folder=folder))
    again.load_state_dict(state)
    check_rows(again, model, again.read.chronological())
    assert torch.equal(again.sample(9).index, mapped.sample(9).index)


def test_files_written_after_the_save_drop_what_they_overwrote(tmp_path: Path) -> None:
    # capacity 4 in a ring of 5; saved after 6 steps (alive 2 … 5), then 2 more: steps 6 and 7 lie where 1 and 2 were,
    # and the open place 8 where 3 was. Alive after loading: 4 and 5.
    step = (None, [((False, False), True)])
    replay, model = Replay(COLUMNS, 4, 1, placement=Placement(folder=tmp_path)), ModelReplay(1, 4)
    play(replay, model, [step] * 6)
    state = replay.state_dict()
    play(replay, model, [step] * 2)
    again = Replay(COLUMNS, 4, 1, placement=Placement(folder=tmp_path))
    again.load_state_dict(state)
    assert again.read.columns(again.read.chronological())["info"]["tag"].tolist() == [4, 5]
    assert again.state_dict()["generation"] == 2


def test_files_of_another_run_are_refused(tmp_path: Path) -> None:
    step = (None, [((False, False), True)])
    replay, model = Replay(COLUMNS, 4, 1, placement=Placement(folder=tmp_path / "one")), ModelReplay(1, 4)
    play(replay, model, [step] * 3)
    other = Replay(COLUMNS, 4, 1, placement=Placement(folder=tmp_path / "two"))
    with pytest.raises(ValueError, match="belong to another run"):
        other.load_state_dict(replay.state_dict())


def test_cut_ends_the_episodes_under_way() -> None:
    replay, model = Replay(COLUMNS, 8, 2), ModelReplay(2, 4)
    play(replay, model, [(None, [((False, False), True), ((True, False), True)])])
    replay.cut()
    after = [model.steps[0][0].next_obs, model.steps[1][0].final_obs]
    # env 1 had ended by itself; its final observation stays
    replay.add(transition([ModelStep(1, 500.0, 501.0, 502.0, 0.0, False, False, True)] * 2))
    rows = replay.read.rows(torch.tensor([0, 1]))
    assert rows["obs_next"]["a"].flatten().tolist() == after
    assert rows["truncated"].tolist() == [True, False]
    assert replay.read.next(torch.tensor([0])).tolist() == [0]


def test_without_final_observations_a_truncated_step_does_not_count() -> None:
    replay = Replay(COLUMNS, 3, 3)
    steps = [ModelStep(0, 1.0, 2.0, 3.0, 0.0, *flags, True) for flags in ((True, False), (False, True), (False, False))]
    replay.add(transition(steps, finals=False))
    rows = replay.read.rows(torch.tensor([0, 1, 2]))
    assert rows["valid"].tolist() == [True, False, True]
    assert rows["obs_next"]["a"].flatten().tolist() == [1.0, 1.0, 2.0]


def test_a_step_that_does_not_fit_changes_nothing() -> None:
    replay, model = Replay(COLUMNS, 4, 2), ModelReplay(2, 2)
    play(replay, model, [(None, [((False, True), True)] * 2)] * 3)
    before = replay.state_dict()
    good = transition([ModelStep(0, 1.0, 2.0, 3.0, 4.0, True, False, True)] * 2)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (good._replace(act=torch.zeros(2, 3)), ValueError, "'act' wants shape"),
        (good._replace(rew=torch.zeros(2, dtype=torch.complex64)), TypeError, "'rew' holds"),
        (good._replace(info={}), KeyError, "tag"),
        (good._replace(info={"tag": torch.zeros(2)}), TypeError, "'info/tag' holds torch.int64"),
        (good._replace(next_obs={"a": good.obs["a"]}), KeyError, "'b'"),
        (good._replace(final_obs={"a": good.obs["a"], "b": torch.zeros(2, 5)}), ValueError, "'b' wants shape"),
        (good._replace(terminated=torch.zeros(2)), ValueError, "'terminated'.* want bool"),
    ]
    for bad, kind, text in wrong:
        with pytest.raises(kind, match=text):
            replay.add(bad)
    after = replay.state_dict()
    assert tree.equal({**before, "generation": 0}, {**after, "generation": 0})


def test_errors_say_what_to_do() -> None:
    replay = Replay(COLUMNS, 4, 2)
    with pytest.raises(ValueError, match="empty"):
        replay.sample(1)
    with pytest.raises(ValueError, match="capacity >= num_envs"):
        Replay(COLUMNS, 1, 2)
    replay.add(transition([ModelStep(0, 1.0, 2.0, 3.0, 4.0, False, False, True)] * 2))
    with pytest.raises(ValueError, match="at least 1"):
        replay.sample(0)
    with pytest.raises(TypeError, match="picks uniformly"):
        replay.update_priorities(replay.sample(2).handle, torch.zeros(2))
    with pytest.raises(ValueError, match="steps_per_env"):
        Replay(COLUMNS, 6, 2).load_state_dict(replay.state_dict())
