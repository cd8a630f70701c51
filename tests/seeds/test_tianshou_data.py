"""Batch and buffers of Tianshou 0.3: every code block and sentence of the document's first half."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from striderl.compat.tianshou.data import Batch, ListReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer


@pytest.mark.described("tianshou", 14, "Batch organises and gives access to data like a dict and like an array.")
@pytest.mark.described("tianshou", 20, "A list becomes a numpy array on its way into a Batch.")
@pytest.mark.described(
    "tianshou",
    26,
    "Printing a Batch shows one key per line; a string stays a string and a mixed tuple becomes an object array.",
    difference="a number is a 0-d array and is printed as array(4), as every release since 0.2.5 does",
)
def test_the_first_block() -> None:
    data = Batch(a=4, b=[5, 5], c="2312312", d=("a", -2, -3))
    assert repr(data.b) == "array([5, 5])"
    data.b = np.array([3, 4, 5])
    assert data["b"] is data.b
    assert str(data) == (
        "Batch(\n    a: array(4),\n    b: array([3, 4, 5]),\n    c: '2312312',\n"
        "    d: array(['a', '-2', '-3'], dtype=object),\n)"
    )


@pytest.mark.described(
    "tianshou", 32, "data[:, 1] += 6 changes a column of every leaf, nested arrays and tensors alike."
)
def test_the_block_with_a_column() -> None:
    data = Batch(obs={"index": np.zeros((2, 3))}, act=torch.zeros((2, 2)))
    data[:, 1] += 6
    assert str(data[-1]) == (
        "Batch(\n    obs: Batch(\n             index: array([0., 6., 0.]),\n         ),\n    act: tensor([0., 6.]),\n)"
    )


@pytest.mark.described(
    "tianshou", 41, "Any key and value may be put into a Batch, and batches are added and multiplied."
)
@pytest.mark.described("tianshou", 41, "Batches are joined by cat and by stack.")
def test_any_key_arithmetic_cat_and_stack() -> None:
    one = Batch(anything=np.ones(2), tool=[str, len], deep={"er": np.zeros((2, 1))})
    assert one.tool[1] is len
    numbers = Batch(a=np.ones(2), deep={"er": np.zeros((2, 1))})
    changed = (numbers + 1) * 3 - 2
    assert changed.a.tolist() == [4, 4] and changed.deep.er.tolist() == [[1], [1]]
    assert Batch.cat([numbers, changed]).a.tolist() == [1, 1, 4, 4]
    assert Batch.stack([numbers, changed]).deep.er.shape == (2, 2, 1)
    numbers.cat_(changed)
    assert len(numbers) == 4


@pytest.mark.described("tianshou", 47, "A buffer keeps seven keys: obs, act, rew, done, obs_next, info and policy.")
@pytest.mark.described("tianshou", 49, "obs is the observation of step t.")
@pytest.mark.described("tianshou", 50, "act is the action of step t.")
@pytest.mark.described("tianshou", 51, "rew is the reward of step t.")
@pytest.mark.described(
    "tianshou",
    52,
    "done is whether the episode ended at step t.",
    difference="terminated and truncated are stored beside it, so that targets know a time limit from an end",
)
@pytest.mark.described("tianshou", 53, "obs_next is the observation of step t + 1.")
@pytest.mark.described("tianshou", 54, "info is what the env gives besides, the last value of env.step.")
@pytest.mark.described("tianshou", 55, "policy is what the policy computed at step t and wants stored.")
def test_seven_keys() -> None:
    buf = ReplayBuffer(size=4)
    buf.add(obs=[1.0, 2.0], act=1, rew=0.5, done=True, obs_next=[2.0, 3.0], info={"lives": 3}, policy={"logp": -0.7})
    batch = buf[np.array([0])]
    assert batch.obs.tolist() == [[1, 2]] and batch.act.tolist() == [1] and batch.rew.tolist() == [0.5]
    assert batch.done.tolist() == [True] and batch.obs_next.tolist() == [[2, 3]]
    assert batch.info.lives.tolist() == [3] and batch.policy.logp.tolist() == [-0.7]
    assert {"obs", "act", "rew", "done", "obs_next", "info", "policy"} <= set(batch.keys())


@pytest.mark.described(
    "tianshou",
    67,
    "buf.obs is the whole storage of 20 places, zeros where nothing was added.",
    difference="integers stay integers, as in 0.3.0; the document shows floats of an older release",
)
@pytest.mark.described("tianshou", 70, "len(buf) counts the steps that were added, 3 of 20.")
@pytest.mark.described("tianshou", 72, "A buffer is saved and loaded with pickle.")
@pytest.mark.described("tianshou", 78, "A full buffer keeps the last steps: 15 into 10 places leaves 10 … 14, 5 … 9.")
@pytest.mark.described(
    "tianshou",
    83,
    "buf.update(buf2) appends the steps of buf2 in the order of time.",
    difference="the call returns the indices of the new steps, as 0.4; the array that the document shows is buf.obs",
)
@pytest.mark.described(
    "tianshou", 88, "buf.sample(4) returns random steps and their indices; the steps are buf[indice]."
)
def test_the_block_of_buffers(tmp_path) -> None:
    buf = ReplayBuffer(size=20)
    for i in range(3):
        buf.add(obs=i, act=i, rew=i, done=i, obs_next=i + 1, info={})
    assert buf.obs.tolist() == [0, 1, 2] + [0] * 17
    assert len(buf) == 3
    with open(tmp_path / "buf.pkl", "wb") as file:
        pickle.dump(buf, file)
    buf2 = ReplayBuffer(size=10)
    for i in range(15):
        buf2.add(obs=i, act=i, rew=i, done=i, obs_next=i + 1, info={})
    assert len(buf2) == 10
    assert buf2.obs.tolist() == [10, 11, 12, 13, 14, 5, 6, 7, 8, 9]
    buf.update(buf2)
    assert buf.obs.tolist() == [0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14] + [0] * 7
    batch_data, indice = buf.sample(batch_size=4)
    assert (batch_data.obs == buf[indice].obs).tolist() == [True] * 4
    assert len(buf) == 13
    with open(tmp_path / "buf.pkl", "rb") as file:
        buf = pickle.load(file)
    assert len(buf) == 3


def stacking_buffer() -> ReplayBuffer:
    buf = ReplayBuffer(size=9, stack_num=4, ignore_obs_next=True)
    for i in range(16):
        done = i % 5 == 0
        buf.add(obs={"id": i}, act=i, rew=i, done=done, obs_next={"id": i + 1})
    return buf


@pytest.mark.described("tianshou", 97, "A buffer can leave next observations out to save memory.")
@pytest.mark.described("tianshou", 97, "A buffer stores any nested data that a Batch can hold.")
@pytest.mark.described(
    "tianshou",
    105,
    "Printing a buffer shows its columns, without obs_next, with empty info and policy.",
    difference="columns are in the order of a step with their own dtypes, as in 0.3.0, and the two flags are there",
)
def test_the_printed_buffer() -> None:
    assert str(stacking_buffer()).splitlines() == [
        "ReplayBuffer(",
        "    obs: Batch(",
        "             id: array([ 9, 10, 11, 12, 13, 14, 15,  7,  8]),",
        "         ),",
        "    act: array([ 9, 10, 11, 12, 13, 14, 15,  7,  8]),",
        "    rew: array([ 9., 10., 11., 12., 13., 14., 15.,  7.,  8.]),",
        "    done: array([False,  True, False, False, False, False,  True, False, False]),",
        "    terminated: array([False,  True, False, False, False, False,  True, False, False]),",
        "    truncated: array([False, False, False, False, False, False, False, False, False]),",
        "    info: Batch(),",
        "    policy: Batch(),",
        ")",
    ]


@pytest.mark.described("tianshou", 97, "Reading stacks the last stack_num frames of the same episode, for RNNs.")
@pytest.mark.described(
    "tianshou", 116, "buf.get(index, 'obs') gives the stacked frames; the first of an episode repeats."
)
@pytest.mark.described("tianshou", 127, "buf[index].obs gives the same stack.")
@pytest.mark.described("tianshou", 131, "buf[:].obs_next is found one place on, although it is not stored.")
def test_the_printed_stacks() -> None:
    buf = stacking_buffer()
    index = np.arange(len(buf))
    assert buf.get(index, "obs").id.tolist() == [
        [7, 7, 8, 9],
        [7, 8, 9, 10],
        [11, 11, 11, 11],
        [11, 11, 11, 12],
        [11, 11, 12, 13],
        [11, 12, 13, 14],
        [12, 13, 14, 15],
        [7, 7, 7, 7],
        [7, 7, 7, 8],
    ]
    assert np.allclose(buf.get(index, "obs")["id"], buf[index].obs.id)
    assert buf[:].obs_next.id.tolist() == [
        [7, 8, 9, 10],
        [7, 8, 9, 10],
        [11, 11, 11, 12],
        [11, 11, 12, 13],
        [11, 12, 13, 14],
        [12, 13, 14, 15],
        [12, 13, 14, 15],
        [7, 7, 7, 8],
        [7, 7, 8, 9],
    ]


@pytest.mark.described(
    "tianshou",
    97,
    "The newest step of an unfinished episode is not followed by the oldest one.",
    difference="0.3 splices the newest frame before the oldest; here frames of one episode alone are stacked",
)
def test_the_seam_of_the_ring() -> None:
    buf = stacking_buffer()
    buf.add(obs={"id": 16}, act=16, rew=16, done=False, obs_next={"id": 17})  # overwrites 7; 8 is the oldest now
    found = buf.get(np.arange(9), "obs").id.tolist()
    assert found[0] == [8, 8, 8, 9] and found[7] == [16, 16, 16, 16] and found[8] == [8, 8, 8, 8]


@pytest.mark.described("tianshou", 142, "ListReplayBuffer keeps steps in lists, without end.")
def test_list_buffers() -> None:
    buf = ListReplayBuffer()
    for i in range(30):
        buf.add(obs=i, act=0, rew=1.0, done=i == 29, obs_next=i + 1)
    assert len(buf) == 30 and buf.obs[29] == 29
    ring = ReplayBuffer(10)
    ring.update(buf)
    assert sorted(ring.obs.tolist()) == list(range(20, 30))
    with pytest.raises(NotImplementedError):
        buf.sample(1)


@pytest.mark.described("tianshou", 142, "PrioritizedReplayBuffer draws by priority, with weights for the loss.")
def test_prioritized_buffers() -> None:
    buf = PrioritizedReplayBuffer(8, alpha=0.5, beta=0.5)
    for i in range(4):
        buf.add(i, 0, 1.0, False, i + 1, {}, {}, weight=float(i) ** 2)
    np.testing.assert_allclose(buf.weight[:4], [0, 1, 2, 3], atol=1e-3)  # |w| to the power alpha
    batch, indice = buf.sample(400)
    counts = np.bincount(indice, minlength=4)
    assert counts[0] <= 2 and counts[3] > counts[1]
    np.testing.assert_allclose(batch.weight, (buf.weight[indice] / buf.weight[indice].min()) ** -0.5)
    buf.update_weight(indice, np.full(len(indice), -4.0))
    np.testing.assert_allclose(buf.weight[indice], 2.0)
    with pytest.raises(ValueError, match="finite"):
        buf.add(9, 0, 1.0, False, 10, weight=np.nan)
    assert len(buf) == 4
