"""n-step, stacked frames, sequences and hindsight against loops over a list of steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_model import COLUMNS, ModelReplay, ModelStep, build, histories, locate, play, transition

from striderl.data.actions import BoxSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.data.transition import Transition, transition_columns
from striderl.storage.replay.replay import Replay
from striderl.storage.replay.views import FrameStack, Hindsight, NStep, SequenceView

STATE = {"h": TensorSpec(shape=(1,))}


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(histories(), st.integers(1, 4), st.booleans())
def test_n_step_is_the_loop_over_a_window(history: Any, n: int, relabel: bool) -> None:
    replay, model = build(history)

    def doubled(rows: dict[str, Any]) -> torch.Tensor:
        return 2.0 * rows["rew"]

    view = NStep(n, gamma=0.9, reward=doubled if relabel else None)
    index = replay.read.chronological()
    data = view(replay.read, index)
    for i, (env, p) in enumerate(locate(replay, model, index)):
        steps = model.alive(env)
        window = [steps[p]]
        while len(window) < n and not window[-1].done and p + len(window) < len(steps):
            if not steps[p + len(window)].valid:
                break
            window.append(steps[p + len(window)])
        total = sum(0.9**k * step.rew for k, step in enumerate(window)) * (2.0 if relabel else 1.0)
        last = window[-1]
        assert data["rew"][i].item() == pytest.approx(total, rel=1e-5)
        assert data["obs"]["a"][i].item() == steps[p].obs
        assert data["obs_next"]["a"][i].item() == last.obs_next
        assert data["discount"][i].item() == pytest.approx(0.0 if last.terminated else 0.9 ** len(window), rel=1e-6)
        assert (data["terminated"][i], data["truncated"][i]) == (last.terminated, last.truncated)
        assert data["num_steps"][i] == len(window)


def test_a_time_out_bootstraps_from_the_final_observation_and_a_fall_does_not() -> None:
    # two steps of reward 1 (4/7 each in the model's units); gamma 0.5
    replay, model = Replay(COLUMNS, 8, 2, view=NStep(3, gamma=0.5)), ModelReplay(2, 4)
    play(replay, model, [(None, [((False, False), True)] * 2), (None, [((False, True), True), ((True, False), True)])])
    data = replay.view(replay.read, torch.tensor([0, 1]))
    assert data["discount"].tolist() == [0.25, 0.0]
    assert data["obs_next"]["a"][0].item() == model.steps[0][1].final_obs


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(histories(), st.integers(1, 4))
def test_stacked_frames_are_those_an_env_would_stack(history: Any, k: int) -> None:
    replay, model = build(history)
    index = replay.read.chronological()
    data = FrameStack(k, components=["a"])(replay.read, index)
    for i, (env, p) in enumerate(locate(replay, model, index)):
        steps = model.alive(env)
        first = p
        while first > 0 and not steps[first - 1].done and steps[first - 1].valid:
            first -= 1
        frames = [steps[max(first, q)].obs for q in range(p - k + 1, p + 1)]
        assert data["obs"]["a"][i].flatten().tolist() == frames
        assert data["obs_next"]["a"][i].flatten().tolist() == [*frames[1:], steps[p].obs_next]
        assert data["obs"]["b"][i].shape == (2, 1)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(histories(), st.integers(1, 4), st.integers(0, 2), st.integers(1, 3))
def test_sequences_start_with_the_memory_that_was_there(history: Any, length: int, burn_in: int, every: int) -> None:
    replay, model = build(history, state=STATE, state_every=every)
    index = replay.read.chronological()
    data = SequenceView(length, burn_in=burn_in)(replay.read, index)
    rows = replay.cursor.rows
    assert data["valid"].shape == (burn_in + length, len(index))
    for i, (env, p) in enumerate(locate(replay, model, index)):
        steps = model.alive(env)
        number = steps[p].number
        start = number - number % rows % every
        if start < steps[0].number:
            # the next place that is a multiple of `every`, or place 0 where the ring goes round before it
            start += min(every, rows - start % rows)
        if start > steps[-1].number:
            assert not bool(data["valid"][:, i].any())
            continue
        before = model.steps[env][start - 1] if start else None
        memory = 0.0 if before is None or before.done else before.next_obs * 10.0
        assert data["state"]["h"][i].item() == memory
        for t in range(burn_in + length):
            there = start + t <= steps[-1].number
            step = model.steps[env][start + t] if there else None
            assert bool(data["valid"][t, i]) == (step is not None and step.valid)
            assert bool(data["learn"][t, i]) == (step is not None and step.valid and t >= burn_in)
            if step is None:
                continue
            assert data["obs"]["a"][t, i].item() == step.obs
            assert data["obs_next"]["a"][t, i].item() == step.obs_next
            known = start + t > steps[0].number
            assert bool(data["resets"][t, i]) == (known and model.steps[env][start + t - 1].done)


def test_a_replay_that_wants_memory_says_so_when_there_is_none() -> None:
    replay = Replay(COLUMNS, 2, 1, state=STATE)
    step = transition([ModelStep(0, 1.0, 2.0, 3.0, 4.0, False, False, True)])
    with pytest.raises(TypeError, match="has none"):
        replay.add(step._replace(next_state=()))
    assert len(replay) == 0


GOAL_COLUMNS = transition_columns(
    ObsSpec.from_segments({"achieved_goal": 1, "desired_goal": 1}), BoxSpec(shape=(1,), low=-1.0, high=1.0), {}, {}
)


def goal_replay(view: Hindsight, lengths: list[int], capacity: int = 20) -> Replay:
    """One env whose achieved goal counts up: step s has s, and what follows it has s + 1; desired is always -1."""
    replay = Replay(GOAL_COLUMNS, capacity, 1, view=view, episodes=True)
    ends = [sum(lengths[: i + 1]) - 1 for i in range(len(lengths))]
    for s in range(sum(lengths)):
        here, after = torch.tensor([[float(s)]]), torch.tensor([[s + 1.0]])
        desired = torch.tensor([[-1.0]])
        flag, no = torch.tensor([s in ends[:-1]]), torch.tensor([False])
        replay.add(
            Transition(
                {"achieved_goal": here, "desired_goal": desired}, torch.zeros(1, 1), torch.tensor([-5.0]), no, flag,
                ~no, {}, {}, {"achieved_goal": after, "desired_goal": desired},
                {"achieved_goal": after, "desired_goal": desired},
            )
        )  # fmt: skip
    return replay


def reached(achieved: torch.Tensor, desired: torch.Tensor, info: dict[str, Any]) -> torch.Tensor:
    return (achieved == desired).squeeze(-1).float() - 1.0


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("capacity", [20, 5])
def test_hindsight_goals_come_from_the_same_episode(strategy: str, capacity: int) -> None:
    # episodes of 3, 4 and 2 steps: numbers 0-2, 3-6, 7-8; the last is under way
    replay = goal_replay(Hindsight(reached, gamma=0.9, strategy=strategy, ratio=0.75), [3, 4, 2], capacity)
    bounds = {s: (first, last) for first, last in ((0, 2), (3, 6), (7, 8)) for s in range(first, last + 1)}
    seen: dict[int, set[int]] = {}
    for _ in range(40):
        sample = replay.sample(64)
        data = sample.data
        for i in range(64):
            number = int(data["obs"]["achieved_goal"][i])
            desired = float(data["obs"]["desired_goal"][i])
            assert data["obs_next"]["desired_goal"][i].item() == desired
            if not bool(data["relabelled"][i]):
                assert (desired, data["rew"][i].item()) == (-1.0, -5.0)
                continue
            seen.setdefault(number, set()).add(int(desired))
            assert data["rew"][i].item() == (0.0 if desired == number + 1 else -1.0)
    oldest = max(0, 9 - capacity)
    for number, goals in seen.items():
        first, last = bounds[number]
        first = max(first, oldest)
        expected = {"future": range(number, last + 1), "final": [last], "episode": range(first, last + 1)}[strategy]
        assert goals == {s + 1 for s in expected}
    assert set(seen) == set(range(oldest, 9))


def test_hindsight_never_changes_the_replay() -> None:
    replay = goal_replay(Hindsight(reached, gamma=0.9, ratio=1.0), [5])
    replay.sample(50)
    assert replay.read.obs(replay.read.chronological())["desired_goal"].unique().tolist() == [-1.0]


def test_hindsight_wants_episodes() -> None:
    replay = Replay(GOAL_COLUMNS, 4, 1, view=Hindsight(reached, gamma=0.9))
    step = goal_replay(Hindsight(reached, gamma=0.9), [1]).read
    replay.add(
        Transition(
            step.obs(torch.tensor([0])), torch.zeros(1, 1), torch.zeros(1), torch.tensor([False]),
            torch.tensor([False]), torch.tensor([True]), {}, {}, step.obs(torch.tensor([0])), None,
        )
    )  # fmt: skip
    with pytest.raises(ValueError, match="episodes=True"):
        replay.sample(2)


def test_hindsight_goes_on_after_loading() -> None:
    replay, other = (goal_replay(Hindsight(reached, gamma=0.9), [5, 3]) for _ in range(2))
    replay.sample(8)
    other.load_state_dict(replay.state_dict())
    assert torch.equal(replay.sample(8).data["obs"]["desired_goal"], other.sample(8).data["obs"]["desired_goal"])


def test_hindsight_over_several_steps_has_one_goal_per_window() -> None:
    # episodes of 4 and 3 steps; number s reaches s + 1, which pays 0 and everything else -1; gamma 0.5
    view = Hindsight(reached, gamma=0.5, n=3, strategy="final", ratio=1.0)
    data = goal_replay(view, [4, 3]).sample(64).data
    # 'final' is 4 in the first episode and 7 in the second, which is under way
    wanted = {0: -1.75, 1: -1.5, 2: -1.0, 3: 0.0, 4: -1.5, 5: -1.0, 6: 0.0}
    steps = {0: 3, 1: 3, 2: 2, 3: 1, 4: 3, 5: 2, 6: 1}
    for i in range(64):
        number = int(data["obs"]["achieved_goal"][i])
        goal = 4.0 if number < 4 else 7.0
        assert data["obs"]["desired_goal"][i].item() == data["obs_next"]["desired_goal"][i].item() == goal
        assert data["rew"][i].item() == wanted[number] and data["num_steps"][i].item() == steps[number]
        assert data["discount"][i].item() == 0.5 ** steps[number]  # only the clock ends these episodes
        assert data["obs_next"]["achieved_goal"][i].item() == number + steps[number]
    assert set(data["obs"]["achieved_goal"].flatten().tolist()) == set(range(7))


def test_hindsight_without_new_goals_is_n_step() -> None:
    view, plain = Hindsight(reached, gamma=0.5, n=2, ratio=0.0), NStep(2, gamma=0.5)
    read = goal_replay(view, [4, 3]).read
    one, two = view(read, read.chronological()), plain(read, read.chronological())
    for name in ("rew", "discount", "terminated", "truncated", "num_steps"):
        assert torch.equal(one[name], two[name]), name
    for part in ("obs", "obs_next"):
        assert all(torch.equal(value, two[part][name]) for name, value in one[part].items())


def test_hindsight_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="n is at least 1"):
        Hindsight(reached, gamma=0.9, n=0)


def test_further_flags_do_not_mix_with_those_of_a_step() -> None:
    # three steps, the second terminates; a flag of the env's own lies beside (terminated, truncated, valid)
    obs_spec = ObsSpec.from_flat(1)
    columns = transition_columns(obs_spec, BoxSpec(shape=(1,)), {"contact": TensorSpec(dtype="bool")}, {})
    replay = Replay(columns, 3, 1, view=NStep(2, gamma=0.5))
    no = torch.zeros(1, dtype=torch.bool)
    for t in range(3):
        obs = {"obs": torch.full((1, 1), float(t))}
        following = {"obs": torch.full((1, 1), t + 1.0)}
        contact = {"contact": torch.tensor([t != 1])}
        flags = {"terminated": torch.tensor([t == 1]), "truncated": no, "valid": ~no}
        replay.add(
            Transition(obs=obs, act=torch.zeros(1, 1), rew=torch.ones(1), info=contact, policy={}, next_obs=following,
                       final_obs=following, **flags)
        )  # fmt: skip
    data = replay.view(replay.read, torch.tensor([0, 1, 2]))
    assert data["info"]["contact"].tolist() == [True, False, True]
    assert data["num_steps"].tolist() == [2, 1, 1]
    assert data["rew"].tolist() == [1.5, 1.0, 1.0]
    assert data["discount"].tolist() == [0.0, 0.0, 0.5]
    assert data["obs_next"]["obs"].flatten().tolist() == [2.0, 2.0, 3.0]
