"""A quadruped that walks like a clip: PPO with an adversarial motion prior, beside PPO without one.

    clips of a trot, 2 Hz, a foot stands for 0.6 of a stride ──▶ AMPLoader ──┐
                                                                             ├─▶ discriminator ──▶ style
    where the robot's feet are, two frames at a time ────────────────────────┘                       │
    reward = the task's (follow the commanded speed) + style_weight · style ◀────────────────────────┘

Both learn the same task from the same seed with as many steps. Then both walk greedily at one speed, and stride
frequency and duty factor, measured from the contacts of their feet, are compared with the clip's.

python examples/motion_prior.py [--steps 1600000] [--seed 0] [--folder runs/motion_prior] [--video] [--record]

What is in the folder already is not trained again, and a training that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from striderl.algorithms import APPO, PPO, APPOConfig, MotionPriorConfig, PPOConfig
from striderl.checkpoint import CheckpointStore
from striderl.collect import Collector, CollectorConfig, GreedyActor
from striderl.datasets import AMPLoader, Gait, clip_contacts, measure_gait
from striderl.envs import VecEnv, make
from striderl.envs.quadruped.commands import CommandConfig
from striderl.envs.quadruped.trot import TrotConfig
from striderl.policies import NormalizeObs, Policy, PolicyConfig
from striderl.recording import quadruped_loader_config, quadruped_recorder_config, record_motion, trot_clip, trot_clips
from striderl.training import OnPolicyPlan, Trainer, evaluate
from striderl.training.callbacks import Save
from striderl.training.video import record_video

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "examples_motion_prior.json"
FIELDS = ("feet",)
"""What the discriminator sees, two frames of it: where the feet are. It sees no trunk, which the clips hold perfectly
level, and no joint velocities, in which a policy that explores trembles: either would give every robot away at once."""
SPEEDS = (0.3, 0.8)
"""Which speeds ahead are asked for, m/s; the clips have them all."""
CLIPS = CommandConfig(forward=SPEEDS, sideways=(-0.3, 0.3), turning=(-0.8, 0.8))
"""Velocities of the clips. They go aside and turn too, which the task does not ask for: legs that only swing ahead keep
their hips perfectly still, and that would give every robot away as well."""
MEASURED_SPEED = 0.6
"""At which speed the gaits are compared, m/s."""
TREMBLING = 0.006
"""How much noise the clips' feet get, m: about as much as the feet of a policy that explores tremble. Without it the
discriminator learns to see the noise, and pays a robot that stands still more than one that tries to walk."""
LOGGED = ("accuracy", "expert_score", "policy_score", "gradient_penalty", "loss")
"""Numbers of the discriminator that are kept."""


def commands(low: float, high: float) -> CommandConfig:
    """Ask for speeds ahead, and for nothing else."""
    return CommandConfig(forward=(low, high), sideways=(0.0, 0.0), turning=(0.0, 0.0), standing=0.0)


def task(arguments: argparse.Namespace, num_envs: int, speeds: tuple[float, float] = SPEEDS) -> VecEnv:
    """Build the task for these speeds; it is the same for both."""
    settings = {
        "commands": commands(*speeds),
        "motion_fields": FIELDS,
        "num_threads": arguments.num_threads,
        "max_episode_length": 12 if arguments.quick else 1000,
    }
    return make("quadruped", num_envs=num_envs, settings=settings)


def algorithm_of(name: str, policy: Policy, step_dt: float, arguments: argparse.Namespace) -> PPO:
    """Return PPO, with the prior for 'AMP'."""
    ppo = PPOConfig(
        num_learning_epochs=5,
        num_mini_batches=4,
        gamma=0.99,
        entropy_coef=0.002,
        schedule="adaptive",
        desired_kl=0.01,
        learning_rate=1e-3,
        value_loss_coef=1.0,
        max_grad_norm=1.0,
        use_clipped_value_loss=True,
    )
    if name == "PPO":
        return PPO(policy, ppo)
    clips = trot_clips(CLIPS, count=2 if arguments.quick else 32)
    preload = 1000 if arguments.quick else 100_000
    loader = AMPLoader(clips, quadruped_loader_config(step_dt, fields=FIELDS, num_preload_transitions=preload))
    prior = MotionPriorConfig(
        task_weight=1.0,
        # the task's rewards are per second, times step_dt; so is the style's
        style_weight=arguments.style_weight * step_dt,
        hidden_dims=(256, 128),
        gradient_penalty=10.0,
    )
    motions = loader.transitions + TREMBLING * torch.randn(loader.transitions.shape)
    return APPO(policy, motions, APPOConfig(ppo=ppo, prior=prior))


def build(name: str, arguments: argparse.Namespace) -> Trainer:
    """Put env, policy, algorithm and trainer together, and go on from what is in the folder."""
    torch.manual_seed(arguments.seed)
    env = task(arguments, 8 if arguments.quick else 256)
    policy = Policy(
        env.obs_spec,
        env.action_spec,
        PolicyConfig(
            actor=(NormalizeObs(),),
            critic=(NormalizeObs(),),
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
            head_settings={"init_std": 0.5},
        ),
    )
    algorithm = algorithm_of(name, policy, env.step_dt, arguments)
    store = CheckpointStore(arguments.folder / name.lower(), keep_last=1)

    def keep(state: dict[str, Any], name: str) -> None:
        store.save(state, step=state["env_steps"])

    trainer = Trainer(
        algorithm,
        Collector(
            env,
            algorithm.actor(),
            CollectorConfig(seed=arguments.seed, decorrelation_steps=0 if arguments.quick else 999),
        ),
        OnPolicyPlan(num_steps_per_env=24, total_steps=8 * 24 * 2 if arguments.quick else arguments.steps),
        callbacks=[Save(keep, every=50)],
        seed=arguments.seed,
    )
    if store.steps():
        trainer.load_state_dict(store.load("last").state)
    return trainer


def train(name: str, arguments: argparse.Namespace) -> tuple[Policy, list[dict[str, float]]]:
    """Train to the end; return the policy and what was logged on the way, which is in the folder as well."""
    trainer = build(name, arguments)
    path = arguments.folder / f"{name.lower()}_progress.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # what a training did after its last checkpoint, it does again
    progress = [row for row in read(path) if row["steps"] <= trainer.env_steps]
    for record in trainer:
        if record.iteration % (1 if arguments.quick else 10) == 0 or trainer.finished:
            numbers = record.metrics
            error = float(trainer.collector.env.metrics()["tracking_error"].mean())
            row = {"steps": record.env_steps, "tracking_error": error}
            if "collect/return_mean" in numbers:
                row["return"] = numbers["collect/return_mean"]
            if name == "AMP":
                row["style_reward"] = numbers["train/style_reward"]
                row |= {key: numbers[f"train/discriminator_{key}"] for key in LOGGED}
            row = {key: round(value, 4) for key, value in row.items()}
            progress.append(row)
            path.write_text(json.dumps(progress), encoding="utf-8")
            print(name, *(f"{key} {value}" for key, value in row.items()), sep="  ", flush=True)
    trainer.collector.env.close()
    policy: Policy = trainer.algorithm.policy.eval()
    return policy, progress


def read(path: Path) -> list[dict[str, float]]:
    """Return what was logged so far."""
    found: list[dict[str, float]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return found


def gait_of(policy: Policy, arguments: argparse.Namespace) -> Gait:
    """Walk greedily at one speed and measure the gait from contacts, without the first second of each episode."""
    with task(arguments, 2 if arguments.quick else 32, (MEASURED_SPEED, MEASURED_SPEED)) as env:
        recorder = quadruped_recorder_config(
            fields=FIELDS,
            skip_seconds=0.0 if arguments.quick else 1.0,
            min_seconds=0.0 if arguments.quick else 2.0,
            seed=1000,
        )
        clips = record_motion(env, GreedyActor(policy), 10 if arguments.quick else 550, recorder)
        return measure_gait([clip_contacts(clip) for clip in clips], env.step_dt, shortest=0.05)


def line(name: str, gait: Gait) -> dict[str, Any]:
    """Return one line of the table."""
    return {
        "motion": name,
        "frequency": round(gait.mean_frequency, 3),
        "duty_factor": round(gait.mean_duty_factor, 3),
        "phase": [round(float(phase), 2) for phase in gait.phase],
        "strides": int(gait.num_strides.sum()),
    }


def play(policy: Policy, arguments: argparse.Namespace) -> dict[str, Any]:
    """Play whole episodes of the task that was learned, greedily; rewards are the task's alone."""
    episodes = 2 if arguments.quick else 64
    with task(arguments, episodes) as env:
        result = evaluate(env, GreedyActor(policy), episodes, seed=1000)
    errors = result.metrics["tracking_error"]
    return {
        "return": round(result.mean, 2),
        "interval": [round(end, 2) for end in result.interval],
        "tracking_error": round(sum(errors) / len(errors), 3),
        "length": round(sum(result.lengths) / len(result.lengths), 1),
    }


def show(table: list[dict[str, Any]]) -> None:
    """Print the table."""
    print(f"{'motion':<8} {'strides/s':>10} {'duty factor':>12} {'return':>8} {'error m/s':>10}   landing FL FR RL RR")
    for row in table:
        played = f"{row['return']:>8.2f} {row['tracking_error']:>10.3f}" if "return" in row else " " * 19
        print(f"{row['motion']:<8} {row['frequency']:>10.2f} {row['duty_factor']:>12.2f} {played}   {row['phase']}")


def main() -> None:
    """Train both, let them walk, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_600_000, help="env steps of each of the two")
    parser.add_argument("--style-weight", type=float, default=4.0, help="style reward per second, at most")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything that learns")
    parser.add_argument("--num-threads", type=int, default=0, help="threads of simulation and torch; 0: their choice")
    parser.add_argument("--folder", type=Path, default=Path("runs/motion_prior"), help="where checkpoints are")
    parser.add_argument("--video", action="store_true", help="film both, ten seconds each, into the folder")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--record", action="store_true", help=f"write the table to {RESULTS.name}")
    arguments = parser.parse_args()
    if arguments.num_threads:
        torch.set_num_threads(arguments.num_threads)
    clip = trot_clip(TrotConfig(forward=MEASURED_SPEED))
    table = [line("clip", measure_gait(clip_contacts(clip), clip.frame_duration))]
    progress = {}
    for name in ("AMP", "PPO"):
        policy, progress[name] = train(name, arguments)
        table.append({**line(name, gait_of(policy, arguments)), **play(policy, arguments)})
        if arguments.video:
            with task(arguments, 1, (MEASURED_SPEED, MEASURED_SPEED)) as env:
                record_video(env, GreedyActor(policy), arguments.folder / f"{name.lower()}.mp4", 500, seed=7)
    show(table)
    if arguments.record:
        content = {
            "command": "python examples/motion_prior.py --record",
            "seed": arguments.seed,
            "steps": {name: rows[-1]["steps"] for name, rows in progress.items()},
            "measured_speed": MEASURED_SPEED,
            "style_weight": arguments.style_weight,
            "table": table,
            "progress": progress,
        }
        RESULTS.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
