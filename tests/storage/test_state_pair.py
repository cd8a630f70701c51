"""The ring of state pairs against a list."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from striderl.storage.replay.state_pair import StatePairBuffer


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_the_newest_pairs_stay_where_a_ring_puts_them(size: int, counts: list[int]) -> None:
    buffer, rows, number = StatePairBuffer(2, size, "cpu"), [0.0] * size, 0
    for count in counts:
        values = torch.arange(number, number + count, dtype=torch.float32)
        for value in values.tolist():
            rows[number % size] = value
            number += 1
        pair = values[:, None].expand(-1, 2)
        buffer.insert(pair, pair + 0.5)
    kept = min(number, size)
    assert buffer.num_samples == len(buffer) == kept
    assert buffer.step == number % size
    assert buffer.states[:kept, 0].tolist() == rows[:kept]
    assert buffer.next_states[:kept, 1].tolist() == [row + 0.5 for row in rows[:kept]]


def test_minibatches_are_pairs_and_continue_after_loading() -> None:
    buffer = StatePairBuffer(1, 10, "cpu", seed=2)
    values = torch.arange(7.0)[:, None]
    buffer.insert(values, -values)
    batches = list(buffer.feed_forward_generator(3, 5))
    assert len(batches) == 3
    for states, following in batches:
        assert states.shape == (5, 1)
        assert torch.equal(following, -states)
    assert torch.cat([states for states, _ in buffer.feed_forward_generator(20, 5)]).unique().tolist() == list(range(7))
    other = StatePairBuffer(1, 10)
    other.load_state_dict(buffer.state_dict())
    for one, two in zip(buffer.feed_forward_generator(2, 4), other.feed_forward_generator(2, 4)):
        assert torch.equal(one[0], two[0])


def test_errors() -> None:
    buffer = StatePairBuffer(2, 3)
    with pytest.raises(ValueError, match="empty"):
        next(buffer.feed_forward_generator(1, 1))
    with pytest.raises(ValueError, match=r"\[n, 2\]"):
        buffer.insert(torch.zeros(1, 3), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="rows of"):
        buffer.load_state_dict(StatePairBuffer(3, 3).state_dict())
