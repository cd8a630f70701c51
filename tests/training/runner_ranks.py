"""One of two processes that train together with a runner; run as `python runner_ranks.py FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.envs.classic_control.pendulum import Pendulum
from striderl.policies.policy import PolicyConfig
from striderl.policies.stages import NormalizeObs
from striderl.training.experiment.runner_config import RunnerConfig
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)  # without a seed in the config, each process draws its own
    stages = (NormalizeObs(),)
    config = RunnerConfig(
        policy=PolicyConfig(actor=stages, critic=stages, actor_hidden_dims=(8,), critic_hidden_dims=(8,)),
        algorithm=PPOConfig(num_learning_epochs=2, num_mini_batches=2, schedule="adaptive"),
        num_steps_per_env=6,
    )
    runner = OnPolicyRunner(Pendulum(4, first_env_index=4 * rank), config, folder / f"log_{rank}")
    runner.learn(3)
    said = {
        "weights": dict(runner.alg.policy.state_dict()),
        "rate": runner.alg.updater.groups["policy"].learning_rate,
        "ranks": (runner.is_distributed, runner.gpu_world_size, runner.gpu_global_rank),
    }
    torch.save(said, folder / f"said_{rank}.pt")
    runner.ranks.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
