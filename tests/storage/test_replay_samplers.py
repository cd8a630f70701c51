"""Priorities: frequencies, weights, tickets, and a tree against plain sums."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_model import COLUMNS, ModelReplay, play

from striderl.storage.replay.replay import Replay
from striderl.storage.replay.samplers import Draws, Prioritized
from striderl.storage.replay.sum_tree import SumTree

STEP: Any = (None, [((False, False), True)])


def chi_square_bound(freedom: int) -> float:
    """The 0.9999 quantile, by the cube approximation of Wilson and Hilferty."""
    return freedom * (1.0 - 2.0 / (9.0 * freedom) + 3.719 * (2.0 / (9.0 * freedom)) ** 0.5) ** 3


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**31), st.integers(1, 6), st.sampled_from([(4, 8), (2, 1), (16, 4096)]))
def test_the_tree_draws_what_a_running_sum_draws(count: int, seed: int, writes: int, shape: tuple[int, int]) -> None:
    """With trees of one level to twelve; a write is a handful of rows, or a range of them."""
    generator = torch.Generator().manual_seed(seed)
    tree, plain = SumTree(count, shape=shape), torch.zeros(count, dtype=torch.float64)
    tree.fill(0, 1, 0.5)
    plain[0] = 0.5
    for _ in range(writes):
        index = torch.randint(0, count, (20,), generator=generator).unique()
        values = torch.rand(len(index), generator=generator, dtype=torch.float64)
        values[::3] = 0.0
        tree.put(index, values)
        plain[index] = values
        first = seed % count
        tree.fill(first, min(3, count - first), 0.25)
        plain[first : first + 3] = 0.25
        numbers = torch.rand(50, generator=generator, dtype=torch.float64)
        if plain.sum() == 0.0:
            continue
        picked, value = tree.sample_index(numbers)
        assert torch.equal(value, plain[picked])
        assert bool((value > 0.0).all())
        running = plain.cumsum(0)
        target = numbers * tree.total()
        # the same leaf as a search in the running sum, up to rounding of the sums
        assert bool((running[picked] >= target * (1.0 - 1e-12)).all())
        assert bool((running[picked] - plain[picked] <= target * (1.0 + 1e-12)).all())


def test_the_largest_draw_still_finds_a_leaf() -> None:
    tree = SumTree(5000)
    tree.put(torch.tensor([17, 3000]), torch.tensor([0.1, 0.3], dtype=torch.float64))
    last = torch.tensor([np.nextafter(1.0, 0.0), 0.0])
    assert tree.sample_index(last.double())[0].tolist() == [3000, 17]


@pytest.mark.parametrize("count", [1, 7, 1_000_000])
def test_frequencies_are_p_to_the_alpha(count: int) -> None:
    """Chi-square over ten classes of priorities, 400,000 draws."""
    replay = Replay(COLUMNS, count, 1, sampler=Prioritized(seed=5, alpha=0.7))
    sampler = replay.sampler
    assert isinstance(sampler, Prioritized)
    replay.cursor.set(np.array([count]), np.array([0]))
    error = torch.arange(count, dtype=torch.float64) % 10 + 1.0
    sampler.update(torch.arange(count), None, error)
    classes = torch.arange(count) % 10
    weight = (error + sampler.epsilon) ** 0.7
    expected = torch.zeros(10, dtype=torch.float64).index_add_(0, classes, weight)
    expected = expected / expected.sum() * 400_000
    found = torch.zeros(10, dtype=torch.float64)
    for _ in range(40):
        found += torch.bincount(sampler.sample_index(replay.read, 10_000).index % 10, minlength=10)
    used = expected > 0.0
    assert found[~used].sum() == 0.0
    statistic = ((found - expected)[used] ** 2 / expected[used]).sum()
    assert statistic <= (chi_square_bound(int(used.sum()) - 1) if used.sum() > 1 else 0.0)


def test_within_a_class_all_rows_are_found() -> None:
    replay = Replay(COLUMNS, 1000, 1, sampler=Prioritized(seed=0))
    model = ModelReplay(1, 1000)
    play(replay, model, [STEP] * 1000)
    found = torch.bincount(replay.sample(100_000).index, minlength=1001)[:1000].double()
    assert ((found - 100.0) ** 2 / 100.0).sum() < chi_square_bound(999)


def test_weights_undo_the_preference() -> None:
    # errors 1 and 4, alpha 0.5: priorities 1 and 2; the rarer step has weight 1, the other (2/1)^-beta = 2^-0.5
    replay, model = Replay(COLUMNS, 2, 1, sampler=Prioritized(alpha=0.5, beta=0.5, epsilon=1e-12)), ModelReplay(1, 2)
    play(replay, model, [STEP] * 2)
    replay.sampler.update(torch.tensor([0, 1]), None, torch.tensor([1.0, -4.0]))
    sample = replay.sample(64)
    assert sample.weight is not None
    assert set(sample.index.tolist()) == {0, 1}
    expected = torch.where(sample.index == 0, 1.0, 2.0**-0.5)
    assert torch.allclose(sample.weight, expected)


def test_beta_goes_to_one() -> None:
    replay, model = Replay(COLUMNS, 4, 1, sampler=Prioritized(beta=0.4, beta_steps=3)), ModelReplay(1, 4)
    play(replay, model, [STEP] * 4)
    found = []
    for _ in range(4):
        replay.sample(2)
        found.append(replay.sampler.beta)
    assert found == pytest.approx([0.6, 0.8, 1.0, 1.0])


def test_new_steps_get_the_largest_priority_and_invalid_ones_none() -> None:
    replay, model = Replay(COLUMNS, 6, 2, sampler=Prioritized(alpha=1.0, epsilon=1e-9)), ModelReplay(2, 3)
    play(replay, model, [(None, [((False, False), True)] * 2)])
    replay.sampler.update(torch.tensor([0]), None, torch.tensor([7.0]))
    play(replay, model, [(None, [((False, False), True), ((False, True), False)])])
    assert replay.sampler.tree.leaves[:6].tolist() == pytest.approx([7.0, 1.0, 7.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("uneven", [False, True])
def test_a_ticket_leaves_overwritten_rows_alone(num_envs: int, uneven: bool) -> None:
    # capacity 3 in a ring of 4: after 2 more steps, the steps at places 0 and 1 of the first three are gone
    replay = Replay(COLUMNS, 3 * num_envs, num_envs, sampler=Prioritized(alpha=1.0, epsilon=1e-9))
    model = ModelReplay(num_envs, 3)
    flags = [((False, False), True)] * num_envs
    if uneven and num_envs > 1:
        play(replay, model, [(slice(0, 1), flags[:1])])
    play(replay, model, [(None, flags)] * 3)
    index = replay.read.chronological()
    handle = replay.handle_of(index)
    numbers = replay.read.columns(index)["info"]["tag"].tolist()
    for added in range(6):
        alive = replay.still_there(handle)
        now = replay.read.columns(index)["info"]["tag"].tolist()
        expected = [
            before == after and before >= len(model.steps[int(row) % num_envs]) - 3
            for before, after, row in zip(numbers, now, index)
        ]
        assert (alive is None and all(expected)) or alive.tolist() == expected, added
        leaves = replay.sampler.tree.leaves.clone()
        replay.update_priorities(handle, torch.full((len(index),), 0.25))
        changed = replay.sampler.tree.leaves[index] != leaves[index]
        assert not bool((changed & ~torch.tensor(expected)).any())
        play(replay, model, [(None, flags)])


def test_draws_depend_on_seed_name_and_number_only() -> None:
    draws = Draws("one", seed=3)
    later = draws.at(200, 64).clone()
    assert torch.equal(Draws("one", seed=3).at(200, 64), later)
    assert torch.equal(torch.from_numpy(np.array(draws.host(200, 64))), later)
    assert not torch.equal(Draws("two", seed=3).at(200, 64), later)
    assert not torch.equal(Draws("one", seed=4).at(200, 64), later)
    assert not torch.equal(draws.at(201, 64), later)


@pytest.mark.parametrize("shape", [(16, 4096), (8, 100), (32, 32768)])
def test_both_ways_down_the_tree_find_the_same_leaf(shape: tuple[int, int]) -> None:
    tree = SumTree(40_000, shape=shape)
    generator = torch.Generator().manual_seed(0)
    tree.put(torch.arange(40_000), torch.rand(40_000, generator=generator, dtype=torch.float64))
    numbers = torch.rand(5000, generator=generator, dtype=torch.float64)
    on_cpu = tree.sample_index(numbers)
    tree.arrays = None
    anywhere = tree.sample_index(numbers)
    assert torch.equal(on_cpu[0], anywhere[0])
    assert torch.equal(on_cpu[1], anywhere[1])


def test_sums_do_not_depend_on_how_the_leaves_came_in() -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(20_000, generator=generator, dtype=torch.float64)
    whole, bit_by_bit = SumTree(20_000), SumTree(20_000)
    whole.load(values)
    for rows in torch.randperm(20_000, generator=generator).split(700):
        bit_by_bit.put(rows, values[rows])
        bit_by_bit.total()
    copied = pickle.loads(pickle.dumps(bit_by_bit))
    assert whole.total() == bit_by_bit.total() == copied.total()
    numbers = torch.rand(256, generator=generator, dtype=torch.float64)
    assert torch.equal(whole.sample_index(numbers)[0], bit_by_bit.sample_index(numbers)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_errors_of_any_precision_become_priorities(dtype: torch.dtype) -> None:
    # alpha 1, so a priority is |error| + 1e-9: 2 and 0.5, exact in every precision; the largest so far was 1
    replay, model = Replay(COLUMNS, 2, 1, sampler=Prioritized(alpha=1.0, epsilon=1e-9)), ModelReplay(1, 2)
    play(replay, model, [STEP] * 2)
    replay.update_priorities(replay.handle_of(torch.tensor([0, 1])), torch.tensor([-2.0, 0.5], dtype=dtype))
    assert replay.sampler.tree.leaves[:2].tolist() == pytest.approx([2.0, 0.5])
    assert replay.sampler.state_dict()["largest"] == pytest.approx(2.0)


def test_when_no_step_counts_there_is_nothing_to_pick() -> None:
    replay, model = Replay(COLUMNS, 2, 1, sampler=Prioritized()), ModelReplay(1, 2)
    play(replay, model, [(None, [((False, False), False)])])
    with pytest.raises(ValueError, match="no step of the replay counts"):
        replay.sample(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_an_error_that_is_not_finite_is_refused_and_changes_nothing(bad: float, dtype: torch.dtype) -> None:
    replay, model = Replay(COLUMNS, 2, 1, sampler=Prioritized()), ModelReplay(1, 2)
    play(replay, model, [STEP] * 2)
    before = replay.sampler.tree.leaves.clone()
    with pytest.raises(ValueError, match="errors that become priorities must be finite"):
        replay.update_priorities(replay.handle_of(torch.tensor([0, 1])), torch.tensor([1.0, bad], dtype=dtype))
    assert torch.equal(replay.sampler.tree.leaves, before) and replay.sampler.state_dict()["largest"] == 1.0


@pytest.mark.parametrize("name", ["alpha", "beta", "epsilon"])
def test_a_priority_setting_that_is_no_number_is_refused(name):
    with pytest.raises(ValueError, match=r"wanted alpha >= 0.*found .*nan"):
        Prioritized(**{name: float("nan")})
