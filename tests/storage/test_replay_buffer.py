"""`ReplayBuffer` against a list of steps, and against the arrays printed in the description of its ancestor."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from striderl.data import tree
from striderl.data.batch import Batch
from striderl.storage.replay_buffer.buffer import ReplayBuffer
from striderl.storage.replay_buffer.kinds import ListReplayBuffer, PrioritizedReplayBuffer, VectorReplayBuffer

ENDS = st.sampled_from([(False, False), (False, False), (False, False), (True, False), (False, True)])


def count_up(buffer: Any, count: int, first: int = 0) -> Any:
    for i in range(first, first + count):
        buffer.add(obs=i, act=i, rew=i, done=i, obs_next=i + 1, info={})
    return buffer


def by_fives(count: int) -> ReplayBuffer:
    buffer = ReplayBuffer(size=9, stack_num=4, ignore_obs_next=True)
    for i in range(count):
        buffer.add(obs={"id": i}, act=i, rew=i, done=i % 5 == 0, obs_next={"id": i + 1})
    return buffer


def can_be_sampled(buffer: ReplayBuffer) -> bool:
    """Return whether any step can be drawn; frames of a stack at the beginning of an episode cannot."""
    try:
        pickle.loads(pickle.dumps(buffer)).sample(1)  # a copy: the draws of the buffer itself stay
    except ValueError:
        return False
    return True


# -- the printed arrays ------------------------------------------------------------------------------------------------


def test_the_first_example() -> None:
    buf = count_up(ReplayBuffer(size=20), 3)
    assert buf.obs.tolist() == [0, 1, 2, *[0] * 17]
    assert len(buf) == 3
    stored = pickle.dumps(buf)
    buf2 = count_up(ReplayBuffer(size=10), 15)
    assert len(buf2) == 10
    assert buf2.obs.tolist() == [10, 11, 12, 13, 14, 5, 6, 7, 8, 9]
    assert buf.update(buf2).tolist() == list(range(3, 13))
    assert buf.obs.tolist() == [0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0, 0, 0, 0, 0, 0, 0]
    batch_data, indice = buf.sample(batch_size=4)
    assert (batch_data.obs == buf[indice].obs).all()
    assert len(buf) == 13
    assert len(pickle.loads(stored)) == 3


def test_frames_of_stored_next_observations_come_from_their_own_column() -> None:
    # obs 0 1 2 3 and obs_next 10 11 12 13, which is no chain: obs gives the first frame alone
    buffer = ReplayBuffer(size=4, stack_num=3)
    for i in range(4):
        buffer.add(obs=i, act=0, rew=0.0, done=False, obs_next=10 + i)
    assert buffer[:].obs_next.tolist() == [[0, 0, 10], [0, 10, 11], [10, 11, 12], [11, 12, 13]]
    assert buffer[1].obs_next.tolist() == [0, 10, 11]


def test_the_stacked_example() -> None:
    buf = by_fives(16)
    assert not buf.stores_obs_next
    assert buf.obs.id.tolist() == [9, 10, 11, 12, 13, 14, 15, 7, 8]
    assert buf.done.tolist() == [False, True, False, False, False, False, True, False, False]
    index = np.arange(len(buf))
    expected = [
        [7, 7, 8, 9], [7, 8, 9, 10], [11, 11, 11, 11], [11, 11, 11, 12], [11, 11, 12, 13], [11, 12, 13, 14],
        [12, 13, 14, 15], [7, 7, 7, 7], [7, 7, 7, 8],
    ]  # fmt: skip
    assert buf.get(index, "obs").id.tolist() == expected
    assert buf[index].obs.id.tolist() == expected
    assert buf[:].obs_next.id.tolist() == [
        [7, 8, 9, 10], [7, 8, 9, 10], [11, 11, 11, 12], [11, 11, 12, 13], [11, 12, 13, 14], [12, 13, 14, 15],
        [12, 13, 14, 15], [7, 7, 7, 8], [7, 7, 8, 9],
    ]  # fmt: skip


def test_the_seam_of_a_full_and_of_a_young_ring() -> None:
    # one more step than the example: 16 is the newest, unfinished, and lies right before 8, the oldest
    stacked = by_fives(17).get(np.arange(9), "obs").id.tolist()
    assert stacked[0] == [8, 8, 8, 9]
    assert stacked[1] == [8, 8, 9, 10]
    assert stacked[-2:] == [[16, 16, 16, 16], [8, 8, 8, 8]]
    young = ReplayBuffer(size=9, stack_num=4)
    for i in range(5):
        young.add(obs=i, act=0, rew=0.0, done=False, obs_next=i + 1)
    assert young.get(np.arange(5), "obs")[0].tolist() == [0, 0, 0, 0]


def test_sample_avail_wants_whole_stacks() -> None:
    buf = ReplayBuffer(9, stack_num=4, sample_avail=True)
    for i in range(16):
        buf.add(obs=i % 4 + 1, act=1, rew=0.0, done=i % 4 == 3)
    assert buf.sample(0)[1].tolist() == [2, 6]
    assert set(buf.sample(50)[1].tolist()) == {2, 6}


# -- against a list ----------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    return {
        "size": draw(st.integers(1, 6)),
        "stack_num": draw(st.integers(1, 4)),
        "ignore_obs_next": draw(st.booleans()),
        "ends": draw(st.lists(ENDS, min_size=1, max_size=16)),
        "torch": draw(st.booleans()),
    }


def value_of(number: float, use_torch: bool) -> Any:
    return {"x": torch.tensor([number]) if use_torch else np.array([number]), "y": int(number)}


def fill(buffer: ReplayBuffer, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Add steps; observation t is 10 t, what really follows is 10 t + 10, or 10 t + 5 where an episode ended."""
    steps = []
    for t, (terminated, truncated) in enumerate(case["ends"]):
        following = 10.0 * t + (5.0 if terminated or truncated else 10.0)
        steps.append({"obs": 10.0 * t, "next": following, "term": terminated, "trunc": truncated})
        buffer.add(
            obs=value_of(10.0 * t, case["torch"]), act=t, rew=t / 2, terminated=terminated, truncated=truncated,
            obs_next=value_of(following, case["torch"]), info={"t": t},
        )  # fmt: skip
    return steps


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(cases())
def test_everything_is_as_in_a_list(case: dict[str, Any]) -> None:
    size, k = case["size"], case["stack_num"]
    buf = ReplayBuffer(size, stack_num=k, ignore_obs_next=case["ignore_obs_next"])
    steps = fill(buf, case)
    alive = list(range(max(0, len(steps) - size), len(steps)))
    index = np.array([t % size for t in alive])
    assert len(buf) == len(alive)
    batch = buf[index]
    assert batch.act.tolist() == alive
    for i, t in enumerate(alive):
        start = t
        while start > alive[0] and not (steps[start - 1]["term"] or steps[start - 1]["trunc"]):
            start -= 1
        frames = [steps[max(start, q)]["obs"] for q in range(t - k + 1, t + 1)]
        done = steps[t]["term"] or steps[t]["trunc"]
        assert np.ravel(batch.obs.x[i]).tolist() == frames
        assert np.ravel(batch.obs.y[i]).tolist() == frames
        known = not case["ignore_obs_next"] or not (steps[t]["term"] or (not done and t == alive[-1]))
        following = [*frames[1:], steps[t]["next"]] if known else frames
        assert np.ravel(batch.obs_next.x[i]).tolist() == following, t
        assert bool(batch.done[i]) == done
        assert (bool(batch.terminated[i]), bool(batch.truncated[i])) == (steps[t]["term"], steps[t]["trunc"])
        assert buf.prev(int(index[i])) == (t if t == start else t - 1) % size
        assert buf.next(int(index[i])) == (t if done or t == alive[-1] else t + 1) % size
        one = buf[int(index[i])]
        assert np.ravel(one.obs.x).tolist() == frames
        assert np.ravel(one.obs_next.x).tolist() == following
    last_open = not (steps[-1]["term"] or steps[-1]["trunc"])
    assert buf.unfinished_index().tolist() == ([alive[-1] % size] if last_open else [])
    hidden = {alive[-1]} if case["ignore_obs_next"] and last_open else set()
    seen = [t for t in alive if t not in hidden]
    assert buf.sample(0)[1].tolist() == [t % size for t in seen]
    if seen:
        drawn, places = buf.sample(20)
        assert set(drawn.act.tolist()) <= set(seen)
        assert tree.equal(drawn, buf[places])
    else:
        with pytest.raises(ValueError, match="nothing to sample"):
            buf.sample(1)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(cases())
def test_numpy_and_torch_hold_the_same(case: dict[str, Any]) -> None:
    def filled(use_torch: bool) -> ReplayBuffer:
        buffer = ReplayBuffer(case["size"], case["stack_num"], case["ignore_obs_next"])
        fill(buffer, {**case, "torch": use_torch})
        return buffer

    one, two = filled(False), filled(True)
    index = np.arange(len(one))
    assert isinstance(two[index].obs.x, torch.Tensor)
    assert one[index].obs.x.tolist() == two[index].obs.x.tolist()
    assert one[index].obs_next.x.tolist() == two[index].obs_next.x.tolist()
    assert two.next(torch.from_numpy(index)).tolist() == one.next(index).tolist()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), cases(), st.data())
def test_a_vector_buffer_is_as_many_buffers(num: int, case: dict[str, Any], data: Any) -> None:
    size, k = case["size"], case["stack_num"]
    vector = VectorReplayBuffer(size * num, num, k, case["ignore_obs_next"])
    singles = [ReplayBuffer(size, k, case["ignore_obs_next"]) for _ in range(num)]
    for t in range(len(case["ends"])):
        ids = sorted(data.draw(st.sets(st.integers(0, num - 1), min_size=1)))
        ends = [data.draw(ENDS) for _ in ids]
        xs = [t + 100.0 * e for e in ids]
        rows = [{"obs": {"x": np.array([x])}, "act": t, "rew": 1.0, "obs_next": {"x": np.array([x + 1.0])}} for x in xs]
        flags = [{"terminated": a, "truncated": b} for a, b in ends]
        vector.add(Batch.stack([Batch({**row, **flag}) for row, flag in zip(rows, flags)]), ids)
        for e, row, flag in zip(ids, rows, flags):
            singles[e].add(**row, **flag)
    order = []
    for e, single in enumerate(singles):
        if not len(single):
            continue
        index = np.arange(len(single))
        assert tree.equal(vector[index + e * size], single[index])
        assert (vector.prev(index + e * size) - e * size).tolist() == single.prev(index).tolist()
        assert (vector.next(index + e * size) - e * size).tolist() == single.next(index).tolist()
        order += (single.sample(0)[1] + e * size).tolist()
    assert vector.sample(0)[1].tolist() == order
    assert len(vector) == sum(map(len, singles))


def test_uniform_draws_hit_every_env() -> None:
    vector = VectorReplayBuffer(8, 2)
    row = {"obs": np.zeros(1), "act": np.zeros(1), "rew": np.zeros(1), "done": np.zeros(1), "obs_next": np.zeros(1)}
    for ids in ([0], [0], [0], [1]):
        vector.add(Batch(row), ids)
    counts = np.bincount(vector.sample(40_000)[1], minlength=8)
    assert counts.sum() == counts[[0, 1, 2, 4]].sum()
    assert (abs(counts[[0, 1, 2, 4]] - 10_000) < 500).all()


# -- other ways in and out ---------------------------------------------------------------------------------------------


def test_a_list_moves_over_and_the_newest_stay() -> None:
    steps = ListReplayBuffer()
    for i in range(3):
        steps.add(obs=i, act=i, rew=i, done=False, obs_next=i + 1)
    assert steps.obs == [0, 1, 2]
    assert steps[1].act == 1
    with pytest.raises(NotImplementedError, match="update"):
        steps.sample(1)
    buf = ReplayBuffer(size=2)
    assert buf.update(steps).tolist() == [1, 0]
    assert buf.obs.tolist() == [2, 1]
    buf.add(obs=9, act=0, rew=0.0, done=True, obs_next=10)
    assert buf.obs.tolist() == [2, 9]
    steps.reset()
    assert len(steps) == 0


def test_what_is_merged_does_not_continue_what_was_there() -> None:
    one = count_up(ReplayBuffer(size=8, stack_num=2), 1)  # step 0, unfinished
    other = ReplayBuffer(size=4)
    other.add(obs=50, act=0, rew=0.0, done=False, obs_next=51)
    one.update(other)
    one.add(obs=70, act=0, rew=0.0, done=False, obs_next=71)
    assert one.get(np.arange(3), "obs").tolist() == [[0, 0], [50, 50], [70, 70]]
    assert one.next(np.arange(3)).tolist() == [0, 1, 2]


def test_truncated_ends_keep_their_final_observation_when_merged() -> None:
    source = ReplayBuffer(size=4, ignore_obs_next=True)
    source.add(obs=1, act=0, rew=0.0, truncated=True, terminated=False, obs_next=99)
    target = ReplayBuffer(size=4, ignore_obs_next=True)
    target.update(source)
    target.add(obs=2, act=0, rew=0.0, done=False)
    assert int(target[0].obs_next) == 99


def test_only_the_last_frame_is_stored() -> None:
    buf = ReplayBuffer(size=5, stack_num=3, save_only_last_obs=True, ignore_obs_next=True)
    for i in range(4):
        frames = np.array([[i - 2.0], [i - 1.0], [i]])
        buf.add(obs=frames, act=0, rew=0.0, done=False, obs_next=frames + 1.0)
    assert buf.obs.shape == (5, 1)
    assert buf[3].obs.ravel().tolist() == [1.0, 2.0, 3.0]


def test_keys_of_info_may_come_and_go() -> None:
    buf = ReplayBuffer(size=3)
    buf.add(obs=0, act=0, rew=0.0, done=False, obs_next=1)
    buf.add(obs=1, act=0, rew=0.0, done=False, obs_next=2, info={"k": 5, "word": "ab"}, policy={"lp": -1.0})
    buf.add(obs=2, act=0, rew=0.0, done=False, obs_next=3, info={})
    assert buf.info.k.tolist() == [0, 5, 0]
    assert buf.info.word.tolist() == [None, "ab", None]
    assert buf.policy.lp.tolist() == [0.0, -1.0, 0.0]


@pytest.mark.parametrize("kind", [lambda: ReplayBuffer(4), lambda: PrioritizedReplayBuffer(4, 0.6, 0.4)])
def test_none_in_a_step_is_kept_or_refused_and_never_zero(kind: Any) -> None:
    buf = kind()
    step = {"obs": 0, "act": 0, "rew": 0.0, "done": False, "obs_next": 0}
    for info in ({"p": None, "n": {"q": 1}}, {"p": 1, "n": {"q": 2}}, {}, {"p": None}):
        buf.add(**step, info=info)
    assert buf[np.arange(4)].info.p.tolist() == [None, 1, None, None]
    assert buf.info.n.q.tolist() == [1, 2, 0, 0]  # missing
    for info, text in (
        ({"n": {"q": None}}, r"'info.n.q' is stored as int64"),
        ({"n": None}, r"'info.n' is stored as parts"),
    ):
        with pytest.raises(TypeError, match=text + ".* cannot hold None; leave the key out"):
            buf.add(**step, info=info)
    with pytest.raises(TypeError, match=r"'policy.x' is stored as float64"):
        other = kind()
        other.add(**step, policy={"x": 0.5})
        other.add(**step, policy={"x": None})
    assert len(buf) == 4 and buf.info.n.q.tolist() == [1, 2, 0, 0]


def test_none_in_steps_of_several_envs_and_of_a_list() -> None:
    buf = VectorReplayBuffer(4, 2)
    rows = {"obs": [0, 0], "act": [0, 0], "rew": [0.0, 0.0], "done": [False, False], "obs_next": [0, 0]}
    buf.add({**rows, "info": [{"p": None}, {"p": 1}]})
    buf.add({**rows, "info": {"p": None}})
    assert buf.info.p.tolist() == [None, None, 1, None]
    steps = ListReplayBuffer()
    for info in ({"p": None}, {"p": 2}):
        steps.add(obs=0, act=0, rew=0.0, done=False, obs_next=0, info=info)
    moved = ReplayBuffer(4)
    moved.update(steps)
    assert moved.info.p.tolist() == [None, 2, None, None]
    numbers = ReplayBuffer(4)
    numbers.add(obs=0, act=0, rew=0.0, done=False, obs_next=0, info={"p": 5})
    with pytest.raises(TypeError, match=r"'info.p' holds int64 and cannot hold object"):
        numbers.update(steps)
    assert len(numbers) == 1


def test_wrong_steps_raise_and_change_nothing() -> None:
    buf = ReplayBuffer(size=4)
    buf.add(obs={"a": np.zeros(2)}, act=0, rew=1, done=False, obs_next={"a": np.ones(2)}, info={"k": 1})
    before, size = pickle.dumps(buf), len(buf)
    good: dict[str, Any] = {
        "obs": {"a": np.zeros(2)}, "act": 0, "rew": 1, "done": False, "obs_next": {"a": np.ones(2)}, "info": {"k": 1}
    }  # fmt: skip
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"obs": {"a": np.zeros(3)}}, ValueError, "'obs.a' is stored with shape"),
        ({"act": 0.7}, TypeError, "'act' holds int64"),
        ({"obs": {}}, KeyError, "obs.a"),
        ({"obs_next": None}, ValueError, "obs_next"),
        ({"info": {"k": 0.5}}, TypeError, "'info.k'"),
        ({"info": {"new": 3, "k": 0.5}}, TypeError, "'info.k'"),
        ({"done": None}, ValueError, "'done'"),
        ({"rew": "much"}, TypeError, "'rew'"),
        ({"obs": 3}, ValueError, "'obs' has parts"),
    ]
    for change, kind, text in wrong:
        with pytest.raises(kind, match=text):
            buf.add(**{**good, **change})
    assert pickle.dumps(buf) == before
    assert len(buf) == size


def test_errors_say_what_is_wrong() -> None:
    buf = ReplayBuffer(size=4, ignore_obs_next=True)
    with pytest.raises(ValueError, match="empty"):
        buf.sample(2)
    with pytest.raises(ValueError, match="wants obs_next"):
        buf.add(obs=0, act=0, rew=0.0, terminated=False, truncated=True)
    buf.add(obs=0, act=0, rew=0.0, done=True)
    with pytest.raises(IndexError, match="holds no step"):
        buf[2]
    with pytest.raises(AttributeError, match="PrioritizedReplayBuffer"):
        buf.update_weight([0], [1.0])  # hasattr(buf, "update_weight") tells the two apart
    with pytest.raises(AttributeError, match=r"no key 'acts'\. Did you mean 'act'"):
        _ = buf.acts
    with pytest.raises(ValueError, match="size of at least 1"):
        ReplayBuffer(size=0)


def test_done_alone_means_terminated_and_is_a_flag() -> None:
    buf = count_up(ReplayBuffer(size=4), 4)
    assert buf.done.dtype == np.bool_
    assert buf.terminated.tolist() == [False, True, True, True]
    assert buf.truncated.tolist() == [False] * 4
    buf.add(obs=0, act=0, rew=0, done=True, truncated=True, obs_next=0)
    assert (bool(buf.terminated[0]), bool(buf.truncated[0])) == (False, True)


LATE = {"TimeLimit.truncated": True}


@pytest.mark.parametrize(
    "kind", [lambda: ReplayBuffer(4), lambda: ListReplayBuffer(), lambda: ReplayBuffer(4, ignore_obs_next=True)]
)
def test_the_time_limit_of_gym_is_no_termination(kind: Any) -> None:
    buf = kind()
    for info in ({}, LATE, {"TimeLimit.truncated": False}):
        buf.add(obs=0, act=0, rew=1.0, done=True, obs_next=1, info=info)
    buf.add(Batch(obs=0, act=0, rew=1.0, done=True, obs_next=1, info=Batch(LATE)))
    assert [bool(each) for each in buf.terminated[:4]] == [True, False, True, False]
    assert [bool(each) for each in buf.truncated[:4]] == [False, True, False, True]
    with pytest.raises(ValueError, match="with done=False"):
        buf.add(obs=0, act=0, rew=1.0, done=False, obs_next=1, info=LATE)
    assert len(buf) == 4


@pytest.mark.parametrize("info", [[{}, LATE], np.array([{}, LATE], dtype=object), {"TimeLimit.truncated": [0, 1]}])
def test_the_time_limit_of_one_env_of_several(info: Any) -> None:
    buf = VectorReplayBuffer(4, 2)
    buf.add({"obs": [0, 0], "act": [0, 0], "rew": [1.0, 1.0], "done": [True, True], "obs_next": [1, 1], "info": info})
    batch, _ = buf.sample(0)
    assert batch.terminated.tolist() == [True, False] and batch.truncated.tolist() == [False, True]


def test_reset_keeps_the_memory() -> None:
    buf = count_up(ReplayBuffer(size=4), 3)
    column = buf.obs
    buf.reset()
    assert len(buf) == 0
    assert buf.obs is column
    assert count_up(buf, 1)[0].obs == 0


# -- saving ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(case=cases(), prioritized=st.booleans())
def test_a_file_brings_everything_back(case: dict[str, Any], prioritized: bool, tmp_path_factory: Any) -> None:
    def empty() -> ReplayBuffer:
        if prioritized:
            return PrioritizedReplayBuffer(case["size"], 0.6, 0.4, case["stack_num"], case["ignore_obs_next"])
        return ReplayBuffer(case["size"], case["stack_num"], case["ignore_obs_next"])

    path = tmp_path_factory.mktemp("buffer") / "buffer.zip"
    buf, other = empty(), empty()
    fill(buf, case)
    if can_be_sampled(buf):
        _, index = buf.sample(4)
        if prioritized:
            buf.update_weight(index, np.arange(4.0))
    buf.save(path)
    other.restore(path)
    for copy in (other, pickle.loads(pickle.dumps(buf))):
        everything = np.arange(len(buf))
        assert tree.equal(copy[everything], buf[everything])
        if can_be_sampled(buf):
            state = pickle.dumps(buf)
            assert copy.sample(6)[1].tolist() == pickle.loads(state).sample(6)[1].tolist()


def test_damaged_files_are_refused_and_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    count_up(ReplayBuffer(size=6), 4).save(path)
    whole = path.read_bytes()
    buf = count_up(ReplayBuffer(size=6), 2)
    before = pickle.dumps(buf)
    broken = [whole[: len(whole) // 2], b"", b"hello", *[flip(whole, at) for at in range(70, len(whole), 211)]]
    refused = 0
    for content in broken:
        path.write_bytes(content)
        try:
            buf.restore(path)
        except ValueError as error:
            refused += 1
            assert str(path) in str(error)
            assert pickle.dumps(buf) == before
            assert len(buf) == 2
        else:  # a flipped bit in a part that is not read (an attribute of the zip) leaves the same steps
            assert buf.obs.tolist() == [0, 1, 2, 3, 0, 0]
            buf = count_up(ReplayBuffer(size=6), 2)
    assert refused > len(broken) // 2
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="maxsize"):
        ReplayBuffer(size=7).restore(path)
    with pytest.raises(FileNotFoundError):
        buf.restore(tmp_path / "nowhere")


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def test_python_objects_are_not_saved(tmp_path: Path) -> None:
    buf = ReplayBuffer(size=2)
    buf.add(obs=0, act=0, rew=0.0, done=False, obs_next=1, info={"word": "ab"})
    with pytest.raises(TypeError, match=r"'info\.word'"):
        buf.save(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_columns_in_files_hold_the_same(tmp_path: Path) -> None:
    mapped, plain = ReplayBuffer(size=5, folder=tmp_path), ReplayBuffer(size=5)
    for buffer in (mapped, plain):
        count_up(buffer, 8)
    assert isinstance(mapped.obs, np.memmap)
    assert mapped.obs.tolist() == plain.obs.tolist()
    assert mapped.sample(9)[1].tolist() == plain.sample(9)[1].tolist()


# -- priorities --------------------------------------------------------------------------------------------------------


def test_prioritized_frequencies_and_weights() -> None:
    buf = count_up(PrioritizedReplayBuffer(4, alpha=0.5, beta=1.0), 4)
    buf.update_weight(np.arange(4), np.array([1.0, 4.0, 9.0, 16.0]))  # to the power 0.5: 1, 2, 3, 4; together 10
    batch, index = buf.sample(50_000)
    counts = np.bincount(index, minlength=4)
    assert (((counts - [5000, 10_000, 15_000, 20_000]) ** 2) / [5000, 10_000, 15_000, 20_000]).sum() < 16.3
    assert np.allclose(batch.weight, np.array([1.0, 1 / 2, 1 / 3, 1 / 4])[index], rtol=1e-6)


def test_the_newest_unfinished_step_has_no_priority_while_its_next_is_unknown() -> None:
    buf = PrioritizedReplayBuffer(4, alpha=1.0, beta=1.0, ignore_obs_next=True)
    for i in range(3):
        buf.add(obs=i, act=i, rew=0.0, done=False)
    assert set(buf.sample(200)[1].tolist()) == {0, 1}
    buf.add(obs=3, act=3, rew=0.0, done=True)
    assert set(buf.sample(200)[1].tolist()) == {0, 1, 2, 3}


# -- cut ---------------------------------------------------------------------------------------------------------------


def test_what_comes_after_a_cut_does_not_follow() -> None:
    for ignore in (False, True):
        buf = ReplayBuffer(size=6, ignore_obs_next=ignore, stack_num=2)
        for number in (0, 1):
            buf.add(obs=float(number), act=0, rew=0.0, done=False, obs_next=float(number) + 1.0)
        buf.cut()
        buf.add(obs=5.0, act=0, rew=0.0, done=False, obs_next=6.0)
        assert buf.next(1) == 1 and buf.prev(2) == 2 and buf.unfinished_index().tolist() == [2]
        assert buf.get(2, "obs").tolist() == [5.0, 5.0]
        # where the next observation is not stored, nobody knows what followed step 1
        assert buf.sample_index(0).tolist() == ([0] if ignore else [0, 1, 2])


def test_a_cut_of_some_envs() -> None:
    buf = VectorReplayBuffer(8, 2)
    step = {"act": np.zeros(2), "rew": np.zeros(2), "done": np.zeros(2, bool)}
    for number in range(2):
        buf.add({"obs": np.full(2, float(number)), "obs_next": np.full(2, number + 1.0), **step})
    buf.cut([1])
    assert buf.unfinished_index().tolist() == [1]
    with pytest.raises(IndexError, match="numbered from 0 to 1, found \\[2\\]"):
        buf.cut([2])
    ReplayBuffer(3).cut()  # nothing is under way in an empty buffer


# -- whole episodes, last frames, other rewards ------------------------------------------------------------------------


KEYS = ("obs", "act", "rew", "done", "terminated", "truncated", "obs_next")


def rows(start: int, count: int, *, done: bool = True, late: bool = False) -> Batch:
    """Steps of one episode with observations start, start + 1 and so on."""
    obs = np.arange(start, start + count, dtype=np.float64)
    ends = np.zeros(count, np.bool_)
    ends[-1] = done
    flags = {"done": ends, "terminated": ends & (not late), "truncated": ends & late}
    return Batch(obs=obs, act=obs, rew=obs, **flags, obs_next=obs + 0.5, info=Batch(), policy=Batch())


@pytest.mark.parametrize("stored", [True, False])
def test_extend_is_add_step_by_step(stored: bool) -> None:
    one, two = (ReplayBuffer(7, ignore_obs_next=not stored) for _ in range(2))
    for part in (rows(0, 3), rows(10, 3, late=True), rows(20, 4), rows(30, 12)):
        index = one.extend(part)
        kept = [two.add(**{key: part[key][i] for key in KEYS}) for i in range(len(part.obs))]
        assert index.tolist() == kept[-7:]
        assert one[:] == two[:] and len(one) == len(two)
        order = one.sample_index(0)
        assert order.tolist() == two.sample_index(0).tolist()
        assert (
            one.next(order).tolist() == two.next(order).tolist()
            and one.prev(order).tolist() == two.prev(order).tolist()
        )


def test_extend_does_not_continue_what_was_under_way() -> None:
    buf = ReplayBuffer(20)
    buf.extend(rows(0, 2, done=False))
    buf.add(obs=5.0, act=5.0, rew=5.0, done=False, obs_next=6.0)
    buf.extend(rows(10, 2))
    assert [buf.next(i) for i in range(5)] == [1, 1, 2, 4, 4]
    with pytest.raises(TypeError, match="vector buffer"):
        VectorReplayBuffer(4, 2).extend(rows(0, 1))


def test_the_last_frame_is_stored_however_steps_come() -> None:
    frames = [np.full(2, i, np.float32) for i in range(3)]
    added, updated, extended = (ReplayBuffer(4, save_only_last_obs=True) for _ in range(3))
    added.add([None, None, frames[1]], 0, 1.0, True, [None, frames[2]])  # only the last one is looked at
    source = ListReplayBuffer()
    source.add(np.stack(frames[:2]), 0, 1.0, True, np.stack(frames[1:]))
    updated.update(source)
    part = Batch(obs=np.stack(frames[:2])[None], act=[0], rew=[1.0], done=[True], terminated=[True], truncated=[False])
    extended.extend(Batch(part, obs_next=np.stack(frames[1:])[None], info=Batch(), policy=Batch()))
    for buf in (added, updated, extended):
        assert buf.obs[0].tolist() == [1, 1] and buf.obs_next[0].tolist() == [2, 2]
    again = ReplayBuffer(4, save_only_last_obs=True)
    again.update(added)  # its observations are last frames already
    assert again.obs[0].tolist() == [1, 1]


def test_other_rewards_the_number_of_frames_and_the_size() -> None:
    buf = ReplayBuffer(4)
    buf.extend(rows(0, 3))
    view = buf.with_rew(np.full(4, 9.0))
    assert view[np.arange(3)].rew.tolist() == [9, 9, 9] and buf[np.arange(3)].rew.tolist() == [0, 1, 2]
    assert view.obs is buf.obs and len(view) == 3
    assert ReplayBuffer(1e5).maxsize == 100_000
    with pytest.raises(ValueError, match=r"a whole number of steps, found 2\.5"):
        ReplayBuffer(2.5)
    with pytest.raises(ValueError, match="a row for each of 4 places"):
        buf.with_rew(np.zeros(3))
    buf.stack_num = 2
    assert buf[2].obs.tolist() == [1, 2]
    with pytest.raises(AssertionError, match="stack_num is at least 1, found 0"):
        buf.stack_num = 0


def test_keys_with_dots_come_back_from_a_file(tmp_path: Path) -> None:
    buf = ReplayBuffer(4)
    info = {"TimeLimit.truncated": True, "100%": {"a.b%2E": 3}}
    buf.add(obs=1.0, act=0, rew=1.0, done=True, obs_next=2.0, info=info)
    buf.save(tmp_path / "buffer.zip")
    other = ReplayBuffer(4)
    other.restore(tmp_path / "buffer.zip")
    assert other[:] == buf[:] and other.info["100%"]["a.b%2E"][0] == 3
