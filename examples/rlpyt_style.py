"""Train CartPole with `build_and_train`: sampler, algorithm, agent, runner, config, `runner.train()`.

The user writes the model; the rest is imported. About ten seconds on one core to an evaluated return of 195 or more;
the runner prints a table at every log.

python examples/rlpyt_style.py [--game cartpole] [--run-id 0] [--steps 12288]
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch import Tensor, nn

from striderl.compat.rlpyt import PPO, CategoricalPgAgent, MinibatchRlEval, SerialSampler, logger_context
from striderl.envs import make


class Model(nn.Module):
    """A policy and a value, with layers of their own."""

    def __init__(self, observation_shape: tuple[int, ...], output_size: int, hidden: int = 64) -> None:
        super().__init__()
        size = observation_shape[0]
        self.pi = nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, output_size))
        self.v = nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(
        self, observation: Tensor, prev_action: Tensor | None, prev_reward: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Return probabilities [B, n] and values [B]."""
        return torch.softmax(self.pi(observation), dim=-1), self.v(observation).squeeze(-1)


def build_and_train(
    game: str = "cartpole", run_ID: int = 0, cuda_idx: int | None = None, n_steps: int = 12_288, log_dir: str = "runs"
) -> float:
    """Return the best average return of an evaluation."""
    torch.manual_seed(run_ID)
    torch.set_num_threads(1)
    sampler = SerialSampler(
        EnvCls=make,
        env_kwargs={"task": game},
        batch_T=64,
        batch_B=8,
        max_decorrelation_steps=0,
        eval_n_envs=10,
        eval_max_trajectories=10,
    )
    algo = PPO(
        discount=0.98,
        gae_lambda=0.95,
        learning_rate=2.5e-3,
        epochs=10,
        minibatches=8,
        ratio_clip=0.2,
        clip_grad_norm=0.5,
        entropy_loss_coeff=0.0,
        linear_lr_schedule=False,
        normalize_advantage=True,
    )
    agent = CategoricalPgAgent(ModelCls=Model, model_kwargs={"hidden": 64})
    runner = MinibatchRlEval(
        algo=algo,
        agent=agent,
        sampler=sampler,
        n_steps=n_steps,
        seed=run_ID,
        log_interval_steps=2048,
        affinity={"cuda_idx": cuda_idx},
    )
    config = {"game": game, "n_steps": n_steps}
    with logger_context(log_dir, run_ID, "ppo_" + game, config, snapshot_mode="last"):
        runner.train()
    return max(row["ReturnAverage"] for row in runner.diagnostics)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="cartpole", help="name of the task")
    parser.add_argument("--run-id", type=int, default=0, help="number of the run, and its seed")
    parser.add_argument("--cuda-idx", type=int, default=None, help="GPU of the agent")
    parser.add_argument("--steps", type=int, default=12_288, help="env steps")
    parser.add_argument("--log-dir", default="", help="where runs are written; a folder that goes away by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.log_dir or scratch
        best = build_and_train(arguments.game, arguments.run_id, arguments.cuda_idx, arguments.steps, folder)
    print(f"best evaluated return {best:.1f}")
