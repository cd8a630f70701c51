"""Train CartPole with PPO and stop when it is solved: about ten seconds on one core.

python examples/train_cartpole.py [--seed 0] [--steps 100000]
"""

from __future__ import annotations

import argparse

import torch

from striderl.algorithms import PPO, PPOConfig
from striderl.collect import Collector, CollectorConfig, GreedyActor, PolicyActor
from striderl.envs import make
from striderl.policies import Policy, PolicyConfig
from striderl.training import OnPolicyPlan, Trainer
from striderl.training.callbacks import Evaluate, Stop, Threshold


def train(seed: int, steps: int) -> float:
    """Return the mean return of the greedy policy at the end."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    env = make("cartpole", num_envs=8)
    policy = Policy(
        env.obs_spec,
        env.action_spec,
        PolicyConfig(actor_hidden_dims=(64, 64), critic_hidden_dims=(64, 64), activation="tanh"),
    )
    algorithm = PPO(
        policy,
        PPOConfig(
            num_learning_epochs=4,
            num_mini_batches=4,
            learning_rate=2.5e-3,
            gamma=0.98,
            lam=0.8,
            value_loss_coef=1.0,
            max_grad_norm=0.5,
            use_clipped_value_loss=True,
        ),
    )
    evaluation = Evaluate(make("cartpole", num_envs=10), GreedyActor(policy), every=10, n_episode=20, seed=100)
    trainer = Trainer(
        algorithm,
        Collector(env, PolicyActor(policy), CollectorConfig(seed=seed)),
        OnPolicyPlan(num_steps_per_env=128, total_steps=steps),
        callbacks=[evaluation, Stop(Threshold("evaluate/return_mean", 475.0))],
        seed=seed,
    )
    for record in trainer:
        if "evaluate/return_mean" in record.metrics:
            print(
                f"{record.env_steps:7d} steps   greedy return {record.metrics['evaluate/return_mean']:6.1f}", flush=True
            )
    assert evaluation.result is not None
    return evaluation.result.mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the policy, the envs and the order of minibatches")
    parser.add_argument("--steps", type=int, default=100_000, help="env steps at most")
    arguments = parser.parse_args()
    print(f"final greedy return {train(arguments.seed, arguments.steps):.1f}")
