"""Train CartPole in several processes that learn as one; rank 0 evaluates, prints and saves.

torchrun --nproc-per-node 2 examples/train_distributed.py [--steps 100000] [--save policy.pt]
python examples/train_distributed.py                      # the same in one process
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from striderl.algorithms import PPO, PPOConfig
from striderl.collect import Collector, CollectorConfig, GreedyActor, PolicyActor
from striderl.envs.classic_control.cartpole import CartPole
from striderl.policies import Policy, PolicyConfig
from striderl.training import OnPolicyPlan, Trainer
from striderl.training.callbacks import Evaluate, Stop, Threshold
from striderl.training.callbacks.ranks import KeepTogether, PoolEpisodes
from striderl.training.distributed import Ranks, setup


def train(ranks: Ranks, num_envs: int, steps: int, seed: int, save: Path | None) -> None:
    """Learn with this process's share of the envs."""
    torch.manual_seed(seed)  # the same first policy everywhere; `share` makes sure
    count, first = ranks.shard(num_envs)
    env = CartPole(count, first_env_index=first)
    sizes = PolicyConfig(actor_hidden_dims=(64, 64), critic_hidden_dims=(64, 64), activation="tanh")
    policy = Policy(env.obs_spec, env.action_spec, sizes)
    config = PPOConfig(
        num_learning_epochs=4,
        num_mini_batches=4,
        learning_rate=2.5e-3,
        gamma=0.98,
        lam=0.8,
        value_loss_coef=1.0,
        max_grad_norm=0.5,
        use_clipped_value_loss=True,
        entropy_coef=0.01,
        schedule="adaptive",
    )
    algorithm = PPO(policy, config, reduce=ranks.reduce)
    ranks.share(algorithm)
    evaluation = Evaluate(CartPole(10), GreedyActor(policy), every=10, n_episode=20, seed=100)
    watching = [evaluation, Stop(Threshold("evaluate/return_mean", 475.0))] if ranks.is_main else []
    trainer = Trainer(
        algorithm,
        Collector(env, PolicyActor(policy), CollectorConfig(seed=seed)),
        OnPolicyPlan(num_steps_per_env=128, total_steps=steps // ranks.world_size),
        callbacks=[PoolEpisodes(ranks), *watching, KeepTogether(ranks, algorithm)],
        seed=seed,
    )
    for record in trainer:
        if ranks.is_main and "evaluate/return_mean" in record.metrics:
            done = record.env_steps * ranks.world_size
            print(f"{done:7d} steps   greedy return {record.metrics['evaluate/return_mean']:6.1f}", flush=True)
    if ranks.is_main and save is not None:
        torch.save(policy.state_dict(), save)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=8, help="envs of all processes together")
    parser.add_argument("--steps", type=int, default=100_000, help="env steps of all processes together, at most")
    parser.add_argument("--seed", type=int, default=0, help="seed of the policy, the envs and the order of minibatches")
    parser.add_argument("--save", type=Path, help="write the policy's weights to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with setup(device="cpu", timeout=120.0) as joined:
        train(joined, arguments.num_envs, arguments.steps, arguments.seed, arguments.save)
