"""Teach the built-in quadruped to follow velocity commands with PPO, on two CPU cores.

python examples/train_quadruped.py [--steps 1000000] [--seed 0] [--video walk.mp4]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from striderl.algorithms import PPO, PPOConfig
from striderl.collect import Collector, CollectorConfig, GreedyActor, PolicyActor
from striderl.envs import make
from striderl.policies import NormalizeObs, Policy, PolicyConfig
from striderl.training import OnPolicyPlan, Trainer, evaluate


def build(seed: int, num_envs: int, steps: int) -> Trainer:
    """Put env, policy, algorithm and trainer together."""
    torch.manual_seed(seed)
    env = make("quadruped", num_envs=num_envs)
    policy = Policy(
        env.obs_spec,
        env.action_spec,
        PolicyConfig(
            actor=(NormalizeObs(),),
            critic=(NormalizeObs(),),
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
            head_settings={"init_std": 1.0},
        ),
    )
    algorithm = PPO(
        policy,
        PPOConfig(
            num_learning_epochs=5,
            num_mini_batches=6,
            gamma=0.97,
            entropy_coef=0.005,
            learning_rate=5e-4,
            value_loss_coef=1.0,
            max_grad_norm=1.0,
        ),
    )
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=seed, decorrelation_steps=999))
    return Trainer(algorithm, collector, OnPolicyPlan(num_steps_per_env=24, total_steps=steps), seed=seed)


def film(policy: Policy, path: Path) -> None:
    """Write ten seconds of the greedy policy to a video."""
    import imageio.v2 as imageio

    with make("quadruped", num_envs=1) as env, imageio.get_writer(path, fps=25) as writer:
        actor = GreedyActor(policy)
        obs, state = env.reset(seed=7), actor.initial_state(1, env.device)
        with torch.no_grad():
            for step in range(500):
                acted = actor.act(obs, state, {})
                obs, state = env.step(acted.actions).obs, acted.state
                if step % 2 == 0:
                    writer.append_data(env.render())


def main() -> None:
    """Train, evaluate, film."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="env steps in all")
    parser.add_argument("--num-envs", type=int, default=128, help="robots that learn together")
    parser.add_argument("--episodes", type=int, default=64, help="episodes of the greedy policy at the end")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything")
    parser.add_argument("--video", type=Path, help="write ten seconds of the result to this file")
    arguments = parser.parse_args()
    started = time.perf_counter()
    trainer = build(arguments.seed, arguments.num_envs, arguments.steps)
    for record in trainer:
        if record.iteration % 25 == 0:
            error = float(trainer.collector.env.metrics()["tracking_error"].mean())
            reward = record.metrics.get("collect/return_mean", float("nan"))
            print(
                f"{record.env_steps:8d} steps  {time.perf_counter() - started:5.0f} s  "
                f"return {reward:7.2f}  tracking error {error:.3f} m/s",
                flush=True,
            )
    policy = trainer.algorithm.policy
    with make("quadruped", num_envs=arguments.episodes) as env:
        result = evaluate(env, GreedyActor(policy), arguments.episodes, seed=1)
    errors = result.metrics["tracking_error"]
    error = sum(errors) / len(errors)
    print(f"greedy: tracking error {error:.3f} m/s, return {result.mean:.2f} over {len(errors)} episodes")
    if arguments.video:
        film(policy, arguments.video)
        print(f"video: {arguments.video}")


if __name__ == "__main__":
    main()
