"""A quadruped that must guess how fast it is: PPO with an estimator of the trunk's velocity.

    joints, gyroscope, gravity, last action ──GRU──▶ estimate of the velocity ──▶ actor
                                                       └ learned against the simulator's truth, beside PPO

The actor never reads the true velocity. After training, the greedy policy walks and the estimate is compared with the
truth; estimates that know nothing (zero, the mean velocity) and one that believes the command are beside it.

python examples/estimator.py [--steps 1000000] [--seed 0] [--folder runs/estimator] [--record]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms import Estimation, EstimatorPPO, PPOConfig
from striderl.checkpoint import CheckpointStore
from striderl.collect import Collector, CollectorConfig, GreedyActor
from striderl.envs import VecEnv, make
from striderl.policies import Estimate, NormalizeObs, Policy, PolicyConfig, Remember
from striderl.training import OnPolicyPlan, Trainer, evaluate
from striderl.training.callbacks import Save

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "examples_estimator.json"
VELOCITY = "base_lin_vel"
FELT = ("base_ang_vel", "projected_gravity", "joint_pos", "joint_vel", "last_action")
"""What the estimator reads; not the command, which says how fast the robot should be."""


def build(arguments: argparse.Namespace) -> Trainer:
    """Put env, policy, algorithm and trainer together."""
    torch.manual_seed(arguments.seed)
    settings = {"observe_motion": False, "num_threads": arguments.num_threads}
    env = make("quadruped", num_envs=8 if arguments.quick else 256, settings=settings)
    estimate = Estimate(
        obs_components=FELT,
        target_components=(VELOCITY,),
        memory=Remember(type="gru", hidden_size=64),
        hidden_sizes=(64,),
        replace_state_prob=1.0,
    )
    policy = Policy(
        env.obs_spec,
        env.action_spec,
        PolicyConfig(
            # the velocity itself stays in the env's units: the estimate has them too
            actor=(NormalizeObs(components=(*FELT, "command")), estimate),
            critic=(NormalizeObs(),),
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
            critic_obs=("policy", "critic"),
            head_settings={"init_std": 1.0},
        ),
    )
    algorithm = EstimatorPPO(
        policy,
        # the KL has the changes of the estimator in it, so the learning rate does not follow it
        PPOConfig(
            num_learning_epochs=5,
            num_mini_batches=4,
            gamma=0.99,
            entropy_coef=0.005,
            schedule="fixed",
            learning_rate=5e-4,
            value_loss_coef=1.0,
            max_grad_norm=1.0,
            use_clipped_value_loss=True,
        ),
        estimation=Estimation(loss="mse_loss", weight=1.0),
    )
    store = CheckpointStore(arguments.folder)

    def keep(state: dict[str, Any], name: str) -> None:
        store.save(state, step=state["env_steps"])

    ages = 0 if arguments.quick else 999
    trainer = Trainer(
        algorithm,
        Collector(env, algorithm.actor(), CollectorConfig(seed=arguments.seed, decorrelation_steps=ages)),
        OnPolicyPlan(num_steps_per_env=24, total_steps=8 * 24 * 2 if arguments.quick else arguments.steps),
        callbacks=[Save(keep, every=50)],
        seed=arguments.seed,
    )
    if store.steps():
        trainer.load_state_dict(store.load("last").state)
    return trainer


@torch.no_grad()
def walk(policy: Policy, env: VecEnv, num_steps: int, seed: int) -> dict[str, Tensor]:
    """Walk greedily and return truth, estimate and command of every step, [steps, envs, 3] in m/s."""
    scale = env.obs_spec[VELOCITY].scale
    obs, state = env.reset(seed=seed), policy.initial_state(env.num_envs)
    seen: dict[str, list[Tensor]] = {"truth": [], "estimate": [], "command": []}
    for _ in range(num_steps):
        distribution, state, aux = policy.act(obs, state, policy.settled(torch.zeros(env.num_envs)))
        seen["truth"].append(obs[VELOCITY] / scale)
        seen["estimate"].append(aux["actor/1_Estimate/estimate"] / scale)
        # a command has no speed upwards: its third number is a turning rate
        asked = obs["command"] / scale * torch.tensor([1.0, 1.0, 0.0])
        seen["command"].append(asked)
        step = env.step(distribution.mode())
        ended = step.terminated | step.truncated
        state = {
            name: torch.where(ended.view(-1, *[1] * (value.dim() - 1)), 0.0, value) for name, value in state.items()
        }
        obs = step.obs
    return {name: torch.stack(values) for name, values in seen.items()}


def errors(seen: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Return for each way to estimate the mean length of the error, and its root mean square along each axis, m/s."""
    truth = seen["truth"]
    ways = {
        "estimator": seen["estimate"],
        "zero": torch.zeros_like(truth),
        "mean velocity": truth.mean(dim=(0, 1)).expand_as(truth),
        "the command": seen["command"],
    }
    table = []
    for name, guess in ways.items():
        off = guess - truth
        axes = off.square().mean(dim=(0, 1)).sqrt()
        table.append(
            {
                "estimate": name,
                "error": round(float(off.norm(dim=-1).mean()), 4),
                **{axis: round(float(value), 4) for axis, value in zip(("forward", "left", "up"), axes)},
            }
        )
    return table


def main() -> None:
    """Train, walk, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="env steps in all")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything")
    parser.add_argument("--num-threads", type=int, default=0, help="threads of simulation and torch; 0: their choice")
    parser.add_argument("--folder", type=Path, default=Path("runs/estimator"), help="where checkpoints are")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--record", action="store_true", help=f"write the table to {RESULTS.name}")
    arguments = parser.parse_args()
    if arguments.num_threads:
        torch.set_num_threads(arguments.num_threads)
    trainer = build(arguments)
    for record in trainer:
        if record.iteration % 20 == 0:
            numbers = record.metrics
            print(
                f"{record.env_steps:8d} steps  return {numbers.get('collect/return_mean', float('nan')):7.2f}  "
                f"estimator loss {numbers['train/estimator_loss']:.3f}",
                flush=True,
            )
    policy = trainer.algorithm.policy.eval()
    settings = {"observe_motion": False, "num_threads": arguments.num_threads}
    with make("quadruped", num_envs=4 if arguments.quick else 32, settings=settings) as env:
        seen = walk(policy, env, 5 if arguments.quick else 500, seed=1000)
        result = None if arguments.quick else evaluate(env, GreedyActor(policy), 32, seed=1000)
    table = errors(seen)
    print(
        f"{'estimate':<14} {'mean error':>11} {'forward':>8} {'left':>8} {'up':>8}   m/s (per axis: root mean square)"
    )
    for row in table:
        print(
            f"{row['estimate']:<14} {row['error']:>11.3f} {row['forward']:>8.3f} {row['left']:>8.3f} {row['up']:>8.3f}"
        )
    if result is not None:
        tracking = result.metrics["tracking_error"]
        print(f"greedy return {result.mean:.2f}, tracking error {sum(tracking) / len(tracking):.3f} m/s, 32 episodes")
    if arguments.record:
        content = {
            "command": "python examples/estimator.py --record",
            "seed": arguments.seed,
            "steps": trainer.env_steps,
            "return": None if result is None else round(result.mean, 2),
            "table": table,
        }
        RESULTS.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
