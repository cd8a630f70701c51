"""Catch a falling ball from images with rlpyt's Atari agent and DQN: convolutions, double Q-learning, a replay.

A ball falls through seven rows; 1 for catching it, -1 for missing it. About ten seconds on one core.

python examples/rlpyt_images.py [--run-id 0] [--steps 6000]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from striderl.compat.rlpyt import (
    DQN,
    AtariDqnAgent,
    Env,
    EnvInfo,
    EnvStep,
    IntBox,
    MinibatchRlEval,
    SerialSampler,
)

ROWS, COLUMNS = 7, 5


class Catch(Env):
    """Images uint8 [1, 7, 5]; the actions move the paddle left, not at all, or right."""

    _observation_space, _action_space = IntBox(0, 256, (1, ROWS, COLUMNS), "uint8"), IntBox(0, 3)
    horizon = ROWS - 1  # type: ignore[assignment]

    def _image(self) -> Any:
        image = np.zeros((1, ROWS, COLUMNS), np.uint8)
        image[0, self.row, self.column] = image[0, -1, self.paddle] = 255
        return image

    def reset(self) -> Any:
        """Let a ball fall from any column."""
        self.row, self.column, self.paddle = 0, np.random.randint(COLUMNS), COLUMNS // 2
        return self._image()

    def step(self, action: Any) -> EnvStep:
        """Move the paddle, and the ball by one row."""
        self.paddle = int(np.clip(self.paddle + int(action) - 1, 0, COLUMNS - 1))
        self.row += 1
        last = self.row == self.horizon
        reward = (1.0 if self.paddle == self.column else -1.0) if last else 0.0
        return EnvStep(self._image(), reward, last, EnvInfo())


def build_and_train(run_ID: int = 0, n_steps: int = 6000) -> float:
    """Return the best average return of an evaluation."""
    torch.set_num_threads(1)
    sampler = SerialSampler(
        EnvCls=Catch,
        env_kwargs={},
        batch_T=4,
        batch_B=8,
        max_decorrelation_steps=0,
        eval_n_envs=8,
        eval_max_trajectories=40,
    )
    algo = DQN(
        discount=0.9,
        batch_size=32,
        min_steps_learn=2e2,
        replay_size=5e3,
        replay_ratio=8,
        learning_rate=2e-3,
        target_update_interval=50,
        double_dqn=True,
        eps_steps=3e3,
    )
    layers = dict(channels=[8], kernel_sizes=[3], strides=[1], paddings=[1], fc_sizes=32)
    runner = MinibatchRlEval(
        algo=algo,
        agent=AtariDqnAgent(model_kwargs=layers, eps_final=0.1),
        sampler=sampler,
        n_steps=n_steps,
        seed=run_ID,
        log_interval_steps=1500,
    )
    runner.train()
    return max(row["ReturnAverage"] for row in runner.diagnostics)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-id", type=int, default=0, help="number of the run, and its seed")
    parser.add_argument("--steps", type=int, default=6000, help="env steps")
    arguments = parser.parse_args()
    print(f"best evaluated return {build_and_train(arguments.run_id, arguments.steps):.2f}")
