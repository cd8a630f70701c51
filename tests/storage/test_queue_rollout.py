"""`QueueRolloutStorage`: it grows, becomes a ring, and can be put back into order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from storage_steps import columns, fill, step

from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data import tree
from striderl.envs.classic_control import Pendulum
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.rollout_presets import QueueRolloutStorage


def times(storage: QueueRolloutStorage) -> list[int]:
    """Which step lies in each row, for env 0."""
    return (storage.data["rew"][:, 0] / 10).long().tolist()


def test_the_table_at_the_top_of_the_module():
    # T = 2, at most int(2.5 · 2) = 5 rows; steps are counted from 1
    storage = QueueRolloutStorage(columns(), 2, 3, buffer_dilation_ratio=2.5)
    seen = []
    for rollout in range(4):
        fill(storage, 2, first=1 + 2 * rollout)
        assert storage.full
        seen.append((times(storage), storage.cursor, storage.num_rows))
        storage.clear()
        assert not storage.full
    assert seen == [
        ([1, 2], 0, 2),
        ([1, 2, 3, 4], 0, 4),
        ([6, 2, 3, 4, 5], 1, 5),
        ([6, 7, 8, 4, 5], 3, 5),
    ]
    assert len(storage) == 15


def test_untying_rotates_and_sets_the_cursor_to_zero():
    storage = QueueRolloutStorage(columns(), 2, 3, buffer_dilation_ratio=2.5)
    for rollout in range(3):
        fill(storage, 2, first=1 + 2 * rollout)
        storage.clear()
    assert not storage.in_order
    storage.untie_buffer_loop()
    assert storage.in_order and storage.cursor == 0
    assert times(storage) == [2, 3, 4, 5, 6]
    # every column of every env has moved along
    assert storage.data["obs"]["obs"][:, 2, 1].tolist() == [22.0, 32.0, 42.0, 52.0, 62.0]
    storage.untie_buffer_loop()
    assert times(storage) == [2, 3, 4, 5, 6], "untying twice changes nothing"
    fill(storage, 2, first=7)
    assert times(storage) == [7, 8, 4, 5, 6], "the oldest are overwritten"


def test_untying_while_there_is_room_keeps_the_next_row():
    storage = QueueRolloutStorage(columns(), 2, 1, buffer_dilation_ratio=3.0)
    fill(storage, 2, first=1)
    storage.clear()
    storage.untie_buffer_loop()
    assert storage.cursor == 2
    fill(storage, 1, first=3)
    assert times(storage) == [1, 2, 3]


@pytest.mark.slow
@given(
    num_steps=st.integers(1, 5),
    ratio=st.floats(1.0, 4.0),
    rollouts=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12),
)
def test_it_holds_the_newest_steps_in_order(num_steps, ratio, rollouts):
    storage = QueueRolloutStorage(columns(), num_steps, 2, buffer_dilation_ratio=ratio)
    most = int(ratio * num_steps)
    written = 0
    for count, untie in rollouts:
        count = min(count, num_steps)
        fill(storage, count, first=written)
        written += count
        expected = list(range(max(0, written - most), written))
        assert sorted(times(storage)) == expected
        assert len(expected) <= storage.num_rows <= most
        if untie:
            storage.untie_buffer_loop()
            assert storage.in_order
        if storage.in_order:
            assert times(storage) == expected
        before = storage.num_rows
        storage.clear()
        assert storage.num_rows == min(before + num_steps, most)
    assert len(storage) == 2 * min(written, most)


def test_envs_may_come_one_after_the_other():
    storage = QueueRolloutStorage(columns(), 2, 3)
    storage.add(step(0, range(2)), slice(0, 2))
    with pytest.raises(ValueError, match=r"different numbers of steps: \[0, 1\]"):
        storage.batch()
    storage.add(step(0, range(2, 3)), slice(2, 3))
    assert storage.batch().rew.tolist() == [[0.0, 1.0, 2.0]]


def test_a_full_rollout_wants_to_be_cleared():
    storage = fill(QueueRolloutStorage(columns(), 2, 1, buffer_dilation_ratio=2.0), 2)
    with pytest.raises(IndexError, match="the rollout is full: 2 steps are there for env 0"):
        fill(storage, 1)


def test_less_than_one_rollout_is_refused():
    with pytest.raises(ValueError, match=r"at least 1, one rollout; found 0.5"):
        QueueRolloutStorage(columns(), 4, 1, buffer_dilation_ratio=0.5)


def test_a_collector_fills_it():
    env = Pendulum(3)
    torch.manual_seed(0)
    config = PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=(4,))
    collector = Collector(env, PolicyActor(Policy(env.obs_spec, env.action_spec, config)))
    storage = QueueRolloutStorage(collector.columns(), 4, 3, buffer_dilation_ratio=2.0)
    for _ in range(3):
        storage.clear()
        collector.collect(n_step=12, storage=storage)
    assert storage.full and len(storage) == 24


def test_minibatches_are_cut_from_the_ring():
    storage = QueueRolloutStorage(columns(), 2, 2, buffer_dilation_ratio=1.5)
    for rollout in range(2):
        storage.clear()
        for t in range(2):
            storage.add_transitions(step(2 * rollout + t, range(2)))
    # steps 1, 2 and 3 of envs 0 and 1 are left; their numbers are 10 · t + n
    for _ in range(2):
        found = torch.cat([minibatch.rew for minibatch in storage.mini_batch_generator(2, 1)])
        assert sorted(found.tolist()) == [10.0, 11.0, 20.0, 21.0, 30.0, 31.0]
    assert float(storage.get_statistics().mean_reward) == 20.5
    with pytest.raises(ValueError, match=r"call untie_buffer_loop\(\)"):
        next(storage.recurrent_mini_batch_generator(1, 1))
    storage.untie_buffer_loop()
    seen = [part.steps.rew[:, 0].tolist() for part in storage.reccurent_mini_batch_generator(2, 1)]
    assert sorted(seen) == [[10.0, 20.0, 30.0], [11.0, 21.0, 31.0]]
    assert storage.get_minibatch_from_indices(slice(1, 3), slice(0, 1)).steps.rew[:, 0].tolist() == [20.0, 30.0]


def test_saved_and_loaded_it_goes_on_the_same():
    def ring() -> QueueRolloutStorage:
        return QueueRolloutStorage(columns(), 2, 2, buffer_dilation_ratio=1.5)

    storage = ring()
    for rollout in range(2):
        storage.clear()
        fill(storage, 2, first=2 * rollout)
    saved = storage.state_dict()
    kept = tree.copy(saved)
    other = ring()
    other.load_state_dict(saved)
    for each in (storage, other):
        each.clear()
        fill(each, 2, first=4)
        each.untie_buffer_loop()
    assert tree.equal(storage.state_dict(), other.state_dict())
    assert tree.equal(saved, kept), "what was saved is a copy"
