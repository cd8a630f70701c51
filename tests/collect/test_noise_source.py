"""Noise by steps: the same numbers, however many blocks are drawn at a time."""

from __future__ import annotations

import pytest
import torch

from striderl.collect import group as noise_source
from striderl.collect.group import NoiseSource
from striderl.data.noise import NoiseSpec, draw_all

SPECS = {"coin": NoiseSpec(shape=(), kind="uniform"), "kick": NoiseSpec(shape=(3,), kind="normal")}


def source(env_index: list[int], block: int = 4) -> NoiseSource:
    return NoiseSource(SPECS, seed=7, env_index=torch.tensor(env_index), block=block)


def test_step_k_sees_what_its_block_gives() -> None:
    drawn = source([2, 5])
    assert drawn.blocks_ahead > 1
    for step in (0, 1, 3, 4, 7, 8, 300, 2, 1001):
        block = draw_all(SPECS, seed=7, iteration=step // 4, env_index=torch.tensor([2, 5]), num_steps=4)
        for name, numbers in drawn.at(step).items():
            assert torch.equal(numbers, block[name][step % 4]), (step, name)


@pytest.mark.parametrize("many", [1, 64, 100_000])
def test_how_far_ahead_it_draws_does_not_matter(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [source([0, 1, 2]).at(step) for step in range(0, 40, 3)]
    monkeypatch.setattr(noise_source, "_MANY", many)
    drawn = source([0, 1, 2])
    assert drawn.blocks_ahead == {1: 1, 64: 1, 100_000: 16}[many]  # a block has 4 · 3 · 4 = 48 numbers
    for step, numbers in zip(range(0, 40, 3), wanted):
        assert all(torch.equal(drawn.at(step)[name], numbers[name]) for name in numbers)


def test_a_thousand_envs_draw_one_block() -> None:
    assert source(list(range(1000))).blocks_ahead == 1
