"""Train CartPole with a 2-step DQN as policy, buffer, collector and trainer function, then play an episode by hand.

    s = env.reset()                            the envs, inside the collector
    buffer = Buffer(size=10000)                VectorReplayBuffer(20_000, 8)
    agent = DQN()                              AlgorithmPolicy(dqn_from_model(Net(…)))
    for i in range(int(1e6)):                  offpolicy_trainer
        a = agent.compute_action(s)            act = policy(batch, …).act
        s_, r, d, _ = env.step(a)              collector.collect(…)
        buffer.store(s, a, s_, r, d)
        if i % 1000 == 0:                      policy.update(batch_size, buffer):
            b = buffer.get(size=64)                batch, indices = buffer.sample(batch_size)
            b_ret = compute_2_step_return(…)       policy.process_fn(batch, buffer, indices)
            agent.update(b, b_ret)                 policy.learn(batch)

The user writes the network; the rest is imported. About fifteen seconds on one core to a test return of 195 or more.

python examples/tianshou_style.py [--seed 0] [--epochs 20]
"""

from __future__ import annotations

import argparse

import gymnasium
import torch
from torch import Tensor, nn

from striderl.algorithms.value_based.dqn import DQNConfig
from striderl.compat.tianshou.algorithm_policy import AlgorithmPolicy
from striderl.compat.tianshou.collector import Collector
from striderl.compat.tianshou.trainers import offpolicy_trainer
from striderl.compat.user_models import dqn_from_model
from striderl.data import Batch
from striderl.data.actions import DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.ops.ramps import Ramp
from striderl.storage.replay_buffer.kinds import VectorReplayBuffer


class Net(nn.Module):
    """One Q-value per action."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(num_inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_actions)
        )

    def value(self, x: Tensor, a: Tensor | None = None) -> Tensor:
        """Return the Q-values [B, n]."""
        return self.layers(x)


def train(seed: int, epochs: int) -> float:
    """Return the best mean return of a test."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    env = gymnasium.make("CartPole-v1")
    obs_spec, action_spec = ObsSpec.from_space(env.observation_space), DiscreteSpec(n=int(env.action_space.n))
    config = DQNConfig(
        n_step=2,
        gamma=0.98,
        learning_rate=2e-3,
        target_every=200,
        epsilon=Ramp(start=1.0, end=0.1, num_steps=4000),
    )
    policy = AlgorithmPolicy(dqn_from_model(Net(4, 2), obs_spec, action_spec, config), seed=seed)
    buffer = VectorReplayBuffer(20_000, 8, seed=seed)
    train_collector = Collector(policy, [gymnasium.make("CartPole-v1") for _ in range(8)], buffer, seed=seed)
    test_collector = Collector(policy, [gymnasium.make("CartPole-v1") for _ in range(10)], seed=seed + 1)
    train_collector.collect(n_step=1000, random=True)
    result = offpolicy_trainer(
        policy,
        train_collector,
        test_collector,
        max_epoch=epochs,
        step_per_epoch=250,
        collect_per_step=8,
        episode_per_test=10,
        batch_size=128,
        update_per_step=2,
        stop_fn=lambda reward: reward >= 195,
        test_fn=lambda epoch, env_step: print(f"epoch {epoch:2d}   {env_step:6d} steps: test", flush=True),
    )
    print(f"best test return {result['best_reward']:.1f} after {result['train_step']} steps")
    play(policy, env, seed)
    return float(result["best_reward"])


def play(policy: AlgorithmPolicy, env: gymnasium.Env, seed: int) -> None:
    """Play one episode without a collector."""
    policy.eval()
    obs, _ = env.reset(seed=seed)
    total, done = 0.0, False
    while not done:
        act = policy(Batch(obs=[obs])).act[0]
        obs, reward, terminated, truncated, _ = env.step(act)
        total, done = total + float(reward), terminated or truncated
    print(f"an episode by hand: {total:.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the samples")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of 250 gradient steps at most")
    arguments = parser.parse_args()
    print(f"best greedy return {train(arguments.seed, arguments.epochs):.1f}")
