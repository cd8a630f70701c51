"""Orders drawn by our own kernel are permutations, and as good as random; they need a GPU, or Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="needs a CUDA device"),
]
WORD = 0xFFFFFFFF


def drawn(count, number, seed):
    from striderl.ops.kernels.columns import permutations

    return permutations(count, number, torch.tensor([seed], dtype=torch.int64, device=DEVICE)).cpu()


def mixed(x):
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & WORD
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & WORD
    return x ^ (x >> 16)


def by_hand(count, number, seed):
    """The same, one place after the other."""
    bits = max(2, (count - 1).bit_length())
    low_bits, high_bits = bits - bits // 2, bits // 2
    key = mixed(mixed((seed + number * 0x9E3779B9) & WORD) ^ ((seed >> 32) & WORD))
    rows = []
    for row in range(count):
        while True:
            low, high = row & ((1 << low_bits) - 1), row >> low_bits
            for turn in range(8):
                if turn % 2 == 0:
                    low ^= mixed((high + key + turn * 0x7F4A7C15) & WORD) & ((1 << low_bits) - 1)
                else:
                    high ^= mixed((low + key + turn * 0x7F4A7C15) & WORD) & ((1 << high_bits) - 1)
            row = high << low_bits | low
            if row < count:
                break
        rows.append(row)
    return rows


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 65, 1000, 1500])
def test_every_number_comes_once(count):
    for order in drawn(count, 3, seed=7):
        assert sorted(order.tolist()) == list(range(count))


@pytest.mark.parametrize("seed", [0, 5, 2**40 + 3, -1])
def test_it_is_what_the_docstring_says(seed):
    assert drawn(37, 2, seed).tolist() == [by_hand(37, 0, seed & (2**64 - 1)), by_hand(37, 1, seed & (2**64 - 1))]


def test_seeds_and_epochs_draw_different_orders():
    orders = torch.cat([drawn(200, 4, seed) for seed in (1, 2, 2**33)])
    assert len({tuple(order.tolist()) for order in orders}) == 12


@pytest.mark.parametrize("count", [5, 24])
def test_every_number_comes_to_every_place_equally_often(count):
    """Chi-square of (place, number) over many orders; its mean is (count - 1)^2, its variance twice that."""
    number = 4000 if DEVICE == "cuda" else 400
    orders = drawn(count, number, seed=3)
    seen = torch.zeros(count, count, dtype=torch.float64)
    for place in range(count):
        seen[place] = torch.bincount(orders[:, place], minlength=count).double()
    wanted = number / count
    chi_square = float(((seen - wanted) ** 2 / wanted).sum())
    freedom = (count - 1) ** 2
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


def test_neighbours_come_apart():
    """Of two rows that lie side by side, the places are as far apart as of any two: a third of the length."""
    count = 1500
    for order in drawn(count, 4, seed=11):
        place = order.argsort()
        apart = (place[1:] - place[:-1]).abs().double()
        assert abs(float(apart.mean()) - count / 3) < 5 * float(apart.std()) / count**0.5
