"""Trajectory infos: what they count, and how they are led through batches."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from striderl.collect.samplers.traj_info import TrajectorySteps, TrajectoryTracker, TrajInfo, TrajInfoFactory
from striderl.data.named_tuples import namedarraytuple

EnvInfo = namedarraytuple("EnvInfo", ["score"])


class ScoreInfo(TrajInfo):
    """Adds up a number of the env's, and remembers where it ended."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.GameScore = 0.0
        self._last_action = None

    def step(self, observation, action, reward, done, agent_info, env_info):
        super().step(observation, action, reward, done, agent_info, env_info)
        self.GameScore += float(env_info.score)
        self._last_action = int(action)

    def terminate(self, observation):
        self.EndedAt = float(observation)
        return self


class SameInfo(TrajInfo):
    """Counts as its parent does, but by a `step` of its own."""

    def step(self, *arguments):
        super().step(*arguments)


def steps_of(reward, ended=None, *, valid=None, counted=None, done=None):
    reward = np.asarray(reward, np.float32)
    no, yes = np.zeros(reward.shape, bool), np.ones(reward.shape, bool)
    ended = no if ended is None else np.asarray(ended, bool)
    return TrajectorySteps(
        observation=np.arange(reward.size, dtype=np.float32).reshape(reward.shape),
        action=np.arange(reward.size).reshape(reward.shape) + 100,
        reward=reward,
        done=ended if done is None else np.asarray(done, bool),
        ended=ended,
        valid=yes if valid is None else np.asarray(valid, bool),
        counted=yes if counted is None else np.asarray(counted, bool),
        agent_info=None,
        env_info=EnvInfo(10.0 * np.ones(reward.shape)),
        final=lambda step, env: 1000.0 + 10 * step + env,
    )


# -- one info ----------------------------------------------------------------------------------------------------------


def test_fields_by_hand():
    info = TrajInfoFactory(TrajInfo, {"discount": 0.5})()
    for reward in (1.0, 0.0, 2.0):
        info.step(None, None, reward, False, None, None)
    # 1 + 0.5 * 0 + 0.25 * 2 = 1.5
    assert (info.Length, info.Return, info.NonzeroRewards, info.DiscountedReturn) == (3, 3.0, 2, 1.5)
    assert info.terminate(None) is info


def test_without_a_discount_both_returns_are_the_same():
    info = TrajInfo()
    for reward in (1.0, -3.0):
        info.step(None, None, reward, False, None, None)
    assert info.Return == info.DiscountedReturn == -2.0


def test_attributes_are_entries_and_underscores_are_not_logged():
    info = TrajInfo(Level=3)
    info.Length = 7
    info["Return"] = 2.5
    assert info["Length"] == 7 and info.Return == 2.5 and info.Level == 3
    assert set(info.logged()) == {"Length", "Return", "NonzeroRewards", "DiscountedReturn", "Level"}
    assert "_cur_discount" in info


def test_settings_stay_with_the_object():
    info = TrajInfoFactory(TrajInfo, {"discount": 0.9})()
    assert info._discount == 0.9 and TrajInfo._discount == 1.0 and TrajInfo()._discount == 1.0
    assert "_discount" not in info.logged()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda info: pickle.loads(pickle.dumps(info))])
def test_copies_are_whole_and_independent(duplicate):
    info = TrajInfoFactory(ScoreInfo, {"discount": 0.5})()
    info.step(None, 4, 1.0, False, None, EnvInfo(2.0))
    twin = duplicate(info)
    assert type(twin) is ScoreInfo and dict(twin) == dict(info) and twin._discount == 0.5
    twin.step(None, 5, 1.0, False, None, EnvInfo(2.0))
    assert (twin.Length, twin["Length"], twin.GameScore) == (2, 2, 4.0)
    assert (info.Length, info["Length"], info.GameScore) == (1, 1, 2.0)


# -- many of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [TrajInfo, SameInfo])
def test_tracker_by_hand(kind):
    tracker = TrajectoryTracker(kind, 2)
    completed = tracker.advance(steps_of([[1, 5], [2, 6], [3, 7]], [[0, 0], [1, 1], [0, 0]]))
    assert [(env, info.Length, info.Return) for env, info in completed] == [(0, 2, 3.0), (1, 2, 11.0)]
    assert [info.Return for info in tracker.infos] == [3.0, 7.0]  # under way
    completed = tracker.advance(steps_of([[4, 8]], [[0, 1]]))
    assert [(env, info.Length, info.Return) for env, info in completed] == [(1, 2, 15.0)]
    assert tracker.infos[0].Length == 2 and tracker.infos[1].Length == 0


def test_a_subclass_sees_everything():
    tracker = TrajectoryTracker(ScoreInfo, 2)
    assert tracker.wants_finals and not TrajectoryTracker(TrajInfo, 2).wants_finals
    ((env, info),) = tracker.advance(steps_of([[1, 1], [1, 1]], [[0, 0], [0, 1]]))
    assert (env, info.GameScore, info._last_action, info.EndedAt) == (1, 20.0, 103, 1011.0)
    assert {"GameScore", "EndedAt"} < set(info.logged()) and "_last_action" not in info.logged()


@pytest.mark.parametrize("kind", [TrajInfo, SameInfo])
def test_a_trajectory_with_a_sample_that_is_not_valid_is_dropped(kind):
    tracker = TrajectoryTracker(kind, 2)
    valid = [[1, 1], [0, 1], [1, 1], [1, 1]]
    ended = [[0, 0], [0, 0], [1, 1], [1, 0]]
    completed = tracker.advance(steps_of(np.ones((4, 2)), ended, valid=valid))
    assert [(env, info.Length) for env, info in completed] == [(1, 3), (0, 1)]


@pytest.mark.parametrize("kind", [TrajInfo, SameInfo])
def test_steps_that_do_not_count_are_passed_over(kind):
    tracker = TrajectoryTracker(kind, 1)
    steps = steps_of([[1], [1], [1]], [[1], [1], [1]], counted=[[1], [0], [0]], valid=[[1], [0], [0]])
    assert [info.Length for _, info in tracker.advance(steps)] == [1]
    assert [info.Length for _, info in tracker.advance(steps_of([[1], [1]], [[0], [1]]))] == [2]


def test_a_lost_life_does_not_end_the_trajectory():
    tracker = TrajectoryTracker(TrajInfo, 1)
    completed = tracker.advance(steps_of(np.ones((5, 1)), [[0], [0], [0], [1], [0]], done=[[0], [1], [0], [1], [0]]))
    assert [info.Length for _, info in completed] == [4]


def test_restart_and_resume():
    tracker = TrajectoryTracker(TrajInfo, 2)
    tracker.advance(steps_of([[1, 1]]))
    tracker.restart([1])
    assert [info.Length for info in tracker.infos] == [1, 0]
    own = [TrajInfo(), TrajInfo()]
    tracker.resume(own)
    tracker.advance(steps_of([[1, 1]]))
    assert [info.Length for info in own] == [1, 1]  # these very objects were led on
    with pytest.raises(ValueError, match="wanted 2 trajectory infos"):
        tracker.resume(own[:1])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data(), num_envs=st.integers(1, 4), lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_all_at_once_is_one_by_one(data, num_envs, lengths):
    """Same infos, same order, same bits, over several batches with ends, invalid samples and gaps."""
    make = TrajInfoFactory(TrajInfo, {"discount": 0.97}), TrajInfoFactory(SameInfo, {"discount": 0.97})
    together, single = (TrajectoryTracker(factory, num_envs) for factory in make)
    for length in lengths:
        shape = (length, num_envs)

        def table(odds, shape=shape):
            numbers = data.draw(
                st.lists(st.integers(0, odds), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
            )
            return np.array(numbers).reshape(shape)

        reward = (table(9) - 4).astype(np.float32) * np.float32(0.3)
        steps = steps_of(reward, table(3) == 0, valid=table(7) > 0, counted=table(5) > 0)
        found, wanted = together.advance(steps), single.advance(steps)
        assert [(env, dict(info)) for env, info in found] == [(env, dict(info)) for env, info in wanted]
        assert [dict(info) for info in together.infos] == [dict(info) for info in single.infos]
