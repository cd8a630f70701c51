"""A student that sees through a depth camera, and learns from a teacher that knows the ground.

    teacher   height_scan ──encoder──▶ latent [32] ─┐                        (examples/teacher_student.py trains it)
                                                    │ made alike, as are the actions
    student   forward_depth ──conv──▶ latent [32] ──┴─▶ GRU ─▶ actions       VisualDeterministicRecurrent, DAgger

    recorder  the newest student acts, the teacher labels; pictures are compressed ──▶ demos/
    trainer   reads demos/, learns ──▶ student/model_20.pt, model_40.pt, … ──▶ the recorder's next student

python examples/visual_student.py [--iterations 220] [--seed 0] [--teacher runs/teacher_student/teacher] [--record]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from striderl.algorithms import PPOConfig, TPPOConfig
from striderl.collect import GreedyActor
from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.envs import VecEnv, make
from striderl.recipes.quadruped import quadruped_teacher
from striderl.recording.dagger import DaggerSaver
from striderl.training import evaluate, load_teacher
from striderl.training.demonstrations import RunStudents
from striderl.training.experiment.loading import load_run
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import EvaluationSettings
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.experiment.runner_config import PresetSettings, PretrainSettings, RunnerConfig, TeacherSettings
from striderl.training.rsl_rl.two_stage_runner import TwoStageRunner

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "examples_visual_student.json"
IMAGE, SCAN = "forward_depth", "height_scan"
CONVOLUTIONS = {"channels": (16, 32), "kernel_sizes": (5, 3), "strides": (2, 2)}
SAVE_EVERY = 20
"""Iterations after which the recorder gets another student."""
LATENT = 32
"""How long the latents of image and scan are; the teacher's recipe says the same."""


def make_env(arguments: argparse.Namespace, num_envs: int) -> VecEnv:
    """Build the task: the ground of the teacher's run, seen by a small camera ten times a second."""
    settings = {
        **quadruped_teacher().env.settings,
        "depth": {"size": (24, 32), "directions": 32, "samples": 31},
        "num_threads": arguments.num_threads,
    }
    if arguments.quick:
        settings["max_episode_length"] = 12
    return make("quadruped_depth", num_envs=num_envs, settings=settings)


def require_teacher(arguments: argparse.Namespace) -> None:
    """Train the teacher if there is none in its folder."""
    if arguments.teacher.exists():
        return
    config = replace(quadruped_teacher(), seed=arguments.seed)
    if arguments.quick:
        config = replace(
            config,
            env=replace(config.env, num_envs=8, settings={**config.env.settings, "max_episode_length": 12}),
            collector=replace(config.collector, decorrelation_steps=0),
            plan=replace(config.plan, num_steps_per_env=8, total_steps=128),
            evaluation=EvaluationSettings(every=0, at_end=False),
            num_threads=1,
        )
    arguments.teacher.mkdir(parents=True)
    folder = RunFolder(arguments.teacher)
    folder.write_config(config)
    folder.write_versions()
    Run(config, folder).drive()


# -- DAgger, by two processes ------------------------------------------------------------------------------------------


def student_config(arguments: argparse.Namespace, env: VecEnv) -> RunnerConfig:
    """Return the student and how it learns: actions and latents of the teacher, from recordings alone."""
    felt = tuple(name for name in env.obs_spec.select(["policy"]) if name != IMAGE)
    return RunnerConfig(
        policy=PresetSettings(
            class_name="VisualDeterministicRecurrent",
            settings={
                "actor_hidden_dims": (128, 128),
                "critic_hidden_dims": (8,),
                "rnn_type": "gru",
                "rnn_hidden_size": 128,
                "visual_component_name": IMAGE,
                "visual_kwargs": {
                    "channels": (16, 32),
                    "kernel_sizes": (5, 3),
                    "strides": (2, 2),
                    "hidden_sizes": (64,),
                },
                "visual_latent_size": LATENT,
            },
            normalize_actor_obs=True,
        ),
        obs_groups={"actor": ("policy",), "critic": (*felt, "critic")},
        algorithm=PPOConfig(num_learning_epochs=2, num_mini_batches=4, learning_rate=1e-3, max_grad_norm=1.0),
        teacher=TeacherSettings(
            teacher=load_teacher(arguments.teacher, "last"),
            config=TPPOConfig(
                using_ppo=False,
                distill_target="real",
                distill_latent_obs_component_mapping={IMAGE: SCAN},
                distill_latent_target="mse_sum",
                distill_latent_coef=0.1,
            ),
        ),
        pretrain=PretrainSettings(
            iterations=-1,
            dataset={
                "data_dir": str(arguments.folder / "demos"),
                "dataset_loops": 0,
                "random_shuffle_traj_order": True,
                "keep_latest_n_trajs": 2000,
                "wait_timeout": 300.0,
            },
        ),
        num_steps_per_env=8 if arguments.quick else 24,
        save_interval=1 if arguments.quick else SAVE_EVERY,
        logger="none",
        seed=arguments.seed,
        runner_class_name="TwoStageRunner",
    )


def num_envs_of(arguments: argparse.Namespace) -> int:
    """Return how many robots are recorded, and how many recordings are read at once."""
    return 8 if arguments.quick else 128


def record_labels(arguments: argparse.Namespace) -> None:
    """Record, with the newest student, until there is enough or this process is ended: what is written is whole."""
    torch.set_num_threads(1)
    with make_env(arguments, num_envs_of(arguments)) as env:
        saver = DaggerSaver(
            env,
            load_teacher(arguments.teacher, "last"),
            arguments.folder / "demos",
            rollout_storage_length=8 if arguments.quick else 24,
            min_timesteps=400_000,
            min_episodes=1,
            obs_disassemble_mapping={IMAGE: "zlib"},
            training_policy_logdir=arguments.folder / "student",
            load_student=RunStudents(env, train_cfg=student_config(arguments, env)),
            teacher_act_prob=0.1,
            action_sample_std=0.2,
            seed=arguments.seed,
            max_trajectory_length=8 if arguments.quick else 96,
        )
        saver.collect_and_save()


def train(arguments: argparse.Namespace) -> tuple[Any, list[float]]:
    """Learn in this process from what another one records; return the student and how its latents' loss went."""
    env = make_env(arguments, num_envs_of(arguments))
    runner = TwoStageRunner(env, student_config(arguments, env), arguments.folder / "student")
    saved = sorted((arguments.folder / "student").glob("model_*.pt"), key=lambda path: int(path.stem.partition("_")[2]))
    if saved and saved[-1].name != "model_0.pt":
        runner.load(saved[-1])
    recorder = multiprocessing.get_context("spawn").Process(target=record_labels, args=(arguments,))
    recorder.start()
    latent: list[float] = []
    iterations = 2 if arguments.quick else arguments.iterations
    try:
        while runner.current_learning_iteration < iterations:
            runner.learn(min(SAVE_EVERY, iterations - runner.current_learning_iteration))
            record = runner.trainer.record
            assert record is not None, "at least one iteration was learned"
            numbers = record.metrics
            latent.append(numbers[f"train/distill_latent_{IMAGE}"])
            print(
                f"iteration {record.iteration:4d}  action loss {numbers['train/distillation_loss']:.3f}  "
                f"latent loss {latent[-1]:.3f}",
                flush=True,
            )
    finally:
        recorder.terminate()
        recorder.join()
        runner.close()
    return runner.alg.policy.eval(), latent


def recorded(folder: Path) -> dict[str, float]:
    """Return how much was recorded, and how large its pictures are on the disk beside what they would be."""
    store = TrajectoryStore(folder)
    store.refresh()
    pixels = store.obs_spec[IMAGE].size
    others = sum(part.size for name, part in store.obs_spec.items() if name != IMAGE)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return {
        "trajectories": len(store),
        "steps": store.num_steps,
        "bytes_per_step": round(size / max(store.num_steps, 1)),
        "bytes_per_step_of_float_pictures": 4 * (pixels + others),
    }


# -- playing -----------------------------------------------------------------------------------------------------------


def play(arguments: argparse.Namespace, policy: Any) -> dict[str, Any]:
    """Play whole episodes greedily; the seed is no run's."""
    episodes = 8 if arguments.quick else arguments.episodes
    with make_env(arguments, min(episodes, 64)) as env:
        result = evaluate(env, GreedyActor(policy), episodes, seed=1000)
    errors = result.metrics["tracking_error"]
    return {
        "return": round(result.mean, 2),
        "interval": [round(end, 2) for end in result.interval],
        "tracking_error": round(sum(errors) / len(errors), 3),
        "episodes": len(result.returns),
    }


def main() -> None:
    """Distil, play both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=220, help="of the trainer, 3072 recorded steps each")
    parser.add_argument("--seed", type=int, default=0, help="seed of the student, and of a teacher that is not there")
    parser.add_argument("--episodes", type=int, default=32, help="episodes that each of them plays in the end")
    parser.add_argument("--num-threads", type=int, default=0, help="threads of simulation and torch; 0: their choice")
    parser.add_argument("--teacher", type=Path, default=Path("runs/teacher_student/teacher"), help="the teacher's run")
    parser.add_argument("--folder", type=Path, default=Path("runs/visual_student"), help="recordings and student")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--record", action="store_true", help=f"write the table to {RESULTS.name}")
    arguments = parser.parse_args()
    if arguments.num_threads:
        torch.set_num_threads(arguments.num_threads)
    require_teacher(arguments)
    student, latent = train(arguments)
    disk = recorded(arguments.folder / "demos")
    teacher = load_run(arguments.teacher, "last").policy
    rows = {"teacher": play(arguments, teacher), "visual student": play(arguments, student)}
    print(
        f"recorded {disk['steps']} steps, {disk['bytes_per_step']} bytes each "
        f"({disk['bytes_per_step_of_float_pictures']} with all numbers as float32)"
    )
    print(f"{'policy':<16} {'return':>7} {'95 %':>16} {'error m/s':>10} {'of teacher':>11}")
    for name, row in rows.items():
        row["ratio"] = round(row["return"] / rows["teacher"]["return"], 3)
        low, high = row["interval"]
        print(
            f"{name:<16} {row['return']:>7.2f} {low:>7.2f} to {high:>5.2f} {row['tracking_error']:>10.3f} "
            f"{row['ratio']:>11.2f}"
        )
    if arguments.record:
        content = {
            "command": "python examples/visual_student.py --record",
            "seed": arguments.seed,
            "iterations": arguments.iterations,
            "recorded": disk,
            "latent_loss": round(latent[-1], 4) if latent else None,
            "table": rows,
        }
        RESULTS.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
