"""Minibatches of rows and of sequences: every sample exactly once per epoch, nothing mixed up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from storage_steps import columns, fill, step

from striderl.ops.trajectories import unpad_trajectories
from striderl.storage.minibatches import (
    get_minibatch_from_indices,
    get_statistics,
    mini_batch_generator,
    recurrent_mini_batch_generator,
)
from striderl.storage.rollout import RolloutStorage
from striderl.storage.rollout_presets import QueueRolloutStorage

NAN = float("nan")


def order(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def filled(num_steps: int, num_envs: int, **flags) -> RolloutStorage:
    return fill(RolloutStorage(columns(), num_steps, num_envs), num_steps, **flags)


def table(draw, num_steps: int, num_envs: int) -> torch.Tensor:
    flags = st.lists(st.integers(0, 3), min_size=num_steps * num_envs, max_size=num_steps * num_envs)
    return torch.tensor(draw(flags)).view(num_steps, num_envs)


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(sizes=st.tuples(st.integers(1, 6), st.integers(1, 5)), epochs=st.integers(1, 3), data=st.data())
def test_every_sample_is_used_once_per_epoch(sizes, epochs, data):
    num_steps, num_envs = sizes
    count = data.draw(st.integers(1, num_steps * num_envs))
    storage = filled(num_steps, num_envs)
    minibatches = list(mini_batch_generator(storage, count, epochs, order()))
    assert len(minibatches) == epochs * count
    everything = sorted(10.0 * t + n for t in range(num_steps) for n in range(num_envs))
    for epoch in range(epochs):
        part = minibatches[epoch * count : (epoch + 1) * count]
        sizes_found = [len(minibatch.rew) for minibatch in part]
        assert max(sizes_found) - min(sizes_found) <= 1
        assert sorted(torch.cat([minibatch.rew for minibatch in part]).tolist()) == everything
        for minibatch in part:
            # the columns of a sample stay together
            assert torch.equal(minibatch.rew, minibatch.obs.obs[:, 1])
            assert torch.equal(minibatch.rew, minibatch.act[:, 0])


def test_each_epoch_has_an_order_of_its_own_and_the_generator_decides_it():
    storage = filled(5, 4)

    def orders(seed: int) -> list[tuple[float, ...]]:
        return [tuple(minibatch.rew.tolist()) for minibatch in mini_batch_generator(storage, 1, 3, order(seed))]

    assert len(set(orders(0))) == 3
    assert orders(0) == orders(0) != orders(1)


def test_targets_come_along():
    storage = filled(3, 4)
    reward = storage.data["rew"]
    targets = {"returns": 2.0 * reward, "more": {"scores": reward[..., None].expand(-1, -1, 2)}}
    for minibatch in mini_batch_generator(storage, 3, 1, order(), targets=targets):
        assert torch.equal(minibatch.returns, 2.0 * minibatch.rew)
        assert torch.equal(minibatch.more.scores[:, 1], minibatch.rew)


def test_a_rollout_that_is_not_full_gives_what_it_has():
    storage = fill(RolloutStorage(columns(), 5, 2), 2)
    found = torch.cat([minibatch.rew for minibatch in mini_batch_generator(storage, 2, 1, order())])
    assert sorted(found.tolist()) == [0.0, 1.0, 10.0, 11.0]


def test_a_ring_gives_its_newest_rows():
    storage = QueueRolloutStorage(columns(), 2, 2, buffer_dilation_ratio=1.5)
    for rollout in range(2):
        storage.clear()
        fill(storage, 2, first=2 * rollout)
    found = torch.cat([minibatch.rew for minibatch in mini_batch_generator(storage, 2, 1, order())])
    assert sorted(found.tolist()) == [10.0, 11.0, 20.0, 21.0, 30.0, 31.0]


def test_impossible_counts_are_refused():
    storage = filled(3, 2)
    with pytest.raises(ValueError, match="7 minibatches cannot be made of 6 samples; ask for 6 or fewer"):
        next(mini_batch_generator(storage, 7, 1, order()))
    with pytest.raises(ValueError, match="3 minibatches cannot be made of 2 envs"):
        next(recurrent_mini_batch_generator(storage, 3, 1, order()))
    with pytest.raises(ValueError, match="at least 1, found 0 and 1"):
        next(mini_batch_generator(storage, 0, 1, order()))
    with pytest.raises(ValueError, match=r"targets \['rew'\] have the names of stored columns"):
        next(mini_batch_generator(storage, 1, 1, order(), targets={"rew": storage.data["rew"]}))
    with pytest.raises(ValueError, match=r"target 'returns' wants shape \[3, 2, …\], found \[2, 3\]"):
        next(mini_batch_generator(storage, 1, 1, order(), targets={"returns": torch.zeros(2, 3)}))
    storage.clear()
    storage.add(step(0, range(1)), slice(0, 1))
    with pytest.raises(ValueError, match="different numbers of steps"):
        next(mini_batch_generator(storage, 1, 1, order()))


# -- sequences ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(sizes=st.tuples(st.integers(1, 6), st.integers(1, 5)), data=st.data())
def test_no_env_is_left_out_and_padding_can_be_undone(sizes, data):
    num_steps, num_envs = sizes
    codes = table(data.draw, num_steps, num_envs)
    storage = filled(num_steps, num_envs, terminated=codes == 1, truncated=codes == 2, valid=codes != 3)
    count = data.draw(st.integers(1, num_envs))
    memory = {"h": torch.arange(float(num_envs))[:, None]}
    minibatches = list(recurrent_mini_batch_generator(storage, count, 2, order(), initial_state=memory))
    assert len(minibatches) == 2 * count
    for epoch in range(2):
        part = minibatches[epoch * count : (epoch + 1) * count]
        envs = torch.cat([minibatch.steps.rew[0] for minibatch in part])
        assert sorted(envs.tolist()) == list(range(num_envs))
    for minibatch in minibatches:
        numbers = minibatch.steps.rew[0].long()
        assert torch.equal(minibatch.state["h"][:, 0].long(), numbers)
        assert torch.equal(minibatch.dones, ((codes == 1) | (codes == 2))[:, numbers])
        assert torch.equal(minibatch.valid, (codes != 3)[:, numbers])
        assert not minibatch.resets[0].any() and torch.equal(minibatch.resets[1:], minibatch.dones[:-1])
        padded, masks = minibatch.padded()
        assert torch.equal(unpad_trajectories(padded, masks).rew, minibatch.steps.rew)


def test_sequences_by_hand():
    # T = 4, 2 envs, env 0 done at t = 1: the picture of striderl.ops.trajectories
    terminated = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]]).bool()
    minibatch = get_minibatch_from_indices(filled(4, 2, terminated=terminated), slice(None), slice(None))
    assert minibatch.resets.int().tolist() == [[0, 0], [0, 0], [1, 0], [0, 0]]
    padded, masks = minibatch.padded()
    assert padded.rew.tolist() == [[0, 20, 1], [10, 30, 11], [0, 0, 21], [0, 0, 31]]
    assert masks.int().tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 1]]


def test_a_window_knows_what_ended_just_before_it():
    terminated = torch.tensor([[0, 0, 0], [1, 0, 1], [0, 0, 0], [0, 0, 0]]).bool()
    storage = filled(4, 3, terminated=terminated)
    targets = {"returns": -storage.data["rew"]}
    minibatch = get_minibatch_from_indices(storage, slice(2, 4), torch.tensor([2, 1]), targets=targets)
    assert minibatch.steps.rew.tolist() == [[22.0, 21.0], [32.0, 31.0]]
    assert torch.equal(minibatch.steps.returns, -minibatch.steps.rew)
    assert minibatch.resets.int().tolist() == [[1, 0], [0, 0]]
    assert minibatch.state == {}
    with pytest.raises(ValueError, match="steps in a row; T_slice has step 2"):
        get_minibatch_from_indices(storage, slice(0, 4, 2), slice(None))


def test_a_ring_must_be_untied_before_sequences_are_taken():
    storage = QueueRolloutStorage(columns(), 2, 2, buffer_dilation_ratio=1.5)
    for rollout in range(2):
        storage.clear()
        fill(storage, 2, first=2 * rollout)
    with pytest.raises(ValueError, match=r"call untie_buffer_loop\(\)"):
        next(recurrent_mini_batch_generator(storage, 1, 1, order()))
    storage.untie_buffer_loop()
    minibatch = get_minibatch_from_indices(storage, slice(None), slice(0, 1))
    assert minibatch.steps.rew[:, 0].tolist() == [10.0, 20.0, 30.0]


# -- statistics --------------------------------------------------------------------------------------------------------


def test_statistics_by_hand():
    # env 0 ends at t = 1 (pieces of 2 and 2 steps), env 1 never (one of 4): 8 steps in 3 pieces; rewards 0 … 31
    terminated = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]]).bool()
    storage = filled(4, 2, terminated=terminated)
    found = get_statistics(storage)
    assert found.mean_trajectory_length.item() == pytest.approx(8 / 3)
    assert found.mean_reward.item() == pytest.approx((0 + 10 + 20 + 30 + 1 + 11 + 21 + 31) / 8)
    assert torch.equal(storage.data["terminated"], terminated), "looking changes nothing"


def test_statistics_count_valid_samples_only():
    # env 0: its second piece does not count at all; env 1: its first step does not, and its reward is not a number
    terminated = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]]).bool()
    valid = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 1]]).bool()
    storage = filled(4, 2, terminated=terminated, valid=valid)
    storage.data["rew"][0, 1] = NAN
    found = get_statistics(storage)
    assert found.mean_trajectory_length.item() == pytest.approx((2 + 3) / 2)
    assert found.mean_reward.item() == pytest.approx((0 + 10 + 11 + 21 + 31) / 5)


@pytest.mark.slow
@given(sizes=st.tuples(st.integers(1, 7), st.integers(1, 4)), data=st.data())
def test_mean_length_agrees_with_counting(sizes, data):
    num_steps, num_envs = sizes
    codes = table(data.draw, num_steps, num_envs)
    storage = filled(num_steps, num_envs, truncated=codes == 1, valid=codes != 2)
    lengths = []
    for env in range(num_envs):
        length = 0
        for t in range(num_steps):
            length += int(codes[t, env] != 2)
            if codes[t, env] == 1 or t == num_steps - 1:
                lengths.append(length)
                length = 0
    counted = [length for length in lengths if length]
    expected = sum(counted) / len(counted) if counted else 0.0
    assert get_statistics(storage).mean_trajectory_length.item() == pytest.approx(expected)
