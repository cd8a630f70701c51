"""The rows that a block of envs writes: who has ended is told for one step, and for the rows that were stepped."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from striderl.envs.workers.block import EnvBlock
from striderl.envs.workers.layout import make_layout


class Endless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(1, np.float32), 1.0, False, False, {}


def bound_block(num_envs: int) -> EnvBlock:
    block = EnvBlock([Endless] * num_envs, 0, [0, 0])
    layout = make_layout(
        block.description, num_envs=num_envs, num_slots=1, info_keys={}, mask="", mask_size=0, keep_float64=False
    )
    block.bind(layout, layout.buffers(np.zeros(layout.num_bytes, np.uint8)))
    block.reset(0, 0, num_envs, seeded=True)
    return block


def test_marks_of_an_end_last_for_one_step_of_their_rows():
    block = bound_block(4)
    buffers = block.buffers
    # a worker that was restarted finds the marks that the trainer has made in the rows of the step that was lost
    buffers.truncated[:] = True
    block.step(0, 0, 4)
    assert not buffers.truncated.any()
    block.rows.raise_flags(1, True, False)
    block.rows.raise_flags(3, False, True)
    block.step(0, 0, 2)  # the other half is not stepped and keeps its mark
    assert buffers.terminated.tolist() == [False] * 4 and buffers.truncated.tolist() == [False, False, False, True]
    block.step(0, 2, 4)
    assert not buffers.truncated.any()
    assert buffers.num_steps.tolist() == [2, 2, 2, 2] == buffers.episode_length.tolist()
    block.close(pass_on_interrupt=True)
