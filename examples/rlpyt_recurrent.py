"""Recall a cue after some steps with R2D1: an LSTM, sequences from a replay with priorities, ε-greedy actions.

The env shows the cue in its first step only and pays 1 for the action that names it in the last; 0.5 is chance. About
ten seconds on one core.

python examples/rlpyt_recurrent.py [--run-id 0] [--steps 6000]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from striderl.compat.rlpyt import (
    R2D1,
    CpuWaitResetCollector,
    Env,
    EnvInfo,
    EnvStep,
    FloatBox,
    IntBox,
    MinibatchRlEval,
    R2d1Agent,
    RnnState,
    SerialSampler,
    infer_leading_dims,
    restore_leading_dims,
)


class Recall(Env):
    """Four steps: the cue, two with nothing to see, and the one in which it is named."""

    _observation_space, _action_space = FloatBox(-1.0, 1.0, (2,)), IntBox(0, 2)
    horizon = 4  # type: ignore[assignment]

    def reset(self) -> Any:
        """Show a cue."""
        self.cue, self.time = np.random.randint(2), 0
        return np.array([2.0 * self.cue - 1.0, 0.0], np.float32)

    def step(self, action: Any) -> EnvStep:
        """Show the time; pay in the last step."""
        self.time += 1
        last = self.time == self.horizon
        return EnvStep(np.array([0.0, self.time / 4], np.float32), float(last and action == self.cue), last, EnvInfo())


class Model(nn.Module):
    """An LSTM over observation, previous action and previous reward, to Q-values."""

    def __init__(self, observation_shape: tuple[int, ...], output_size: int, lstm_size: int = 32) -> None:
        super().__init__()
        self.lstm = nn.LSTM(observation_shape[0] + output_size + 1, lstm_size)
        self.q = nn.Linear(lstm_size, output_size)

    def forward(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor, init_rnn_state: Any) -> Any:
        """Return q [..., n] and the next state."""
        lead_dim, T, B, _ = infer_leading_dims(observation, 1)
        parts = (observation.view(T, B, -1), prev_action.view(T, B, -1), prev_reward.view(T, B, 1))
        output, (h, c) = self.lstm(torch.cat(parts, dim=2), None if init_rnn_state is None else tuple(init_rnn_state))
        return restore_leading_dims(self.q(output.view(T * B, -1)), lead_dim, T, B), RnnState(h=h, c=c)


def build_and_train(run_ID: int = 0, n_steps: int = 6000) -> float:
    """Return the best average return of an evaluation."""
    torch.set_num_threads(1)
    sampler = SerialSampler(
        EnvCls=Recall,
        env_kwargs={},
        batch_T=4,
        batch_B=8,
        CollectorCls=CpuWaitResetCollector,
        max_decorrelation_steps=0,
        eval_n_envs=8,
        eval_max_trajectories=40,
    )
    algo = R2D1(
        batch_T=4,
        batch_B=32,
        warmup_T=0,
        store_rnn_state_interval=4,
        n_step_return=1,
        min_steps_learn=200,
        replay_size=4000,
        replay_ratio=16,
        learning_rate=2e-3,
        target_update_interval=20,
        eps_steps=4000,
    )
    runner = MinibatchRlEval(
        algo=algo,
        agent=R2d1Agent(ModelCls=Model, eps_final=0.1),
        sampler=sampler,
        n_steps=n_steps,
        seed=run_ID,
        log_interval_steps=2000,
    )
    runner.train()
    return max(row["ReturnAverage"] for row in runner.diagnostics)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-id", type=int, default=0, help="number of the run, and its seed")
    parser.add_argument("--steps", type=int, default=6000, help="env steps")
    arguments = parser.parse_args()
    print(f"best evaluated return {build_and_train(arguments.run_id, arguments.steps):.2f}")
