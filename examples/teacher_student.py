"""A teacher that sees everything, and blind students with a memory that learn from it, on rough ground.

    teacher           PPO; its actor sees the true velocity, the ground, friction, payload and contact forces
    student, TPPO     PPO and imitation; its actor feels joints, gyroscope and gravity alone, and remembers with a GRU
    student, DAgger   imitation alone, by two processes that meet on the disk:
                        recorder   the newest student acts, the teacher labels ──▶ demos/
                        trainer    reads demos/, learns ──▶ dagger/model_20.pt, … ──▶ the recorder's student

python examples/teacher_student.py [--steps 600000] [--seed 0] [--folder runs/teacher_student] [--record]

What is in the folder already is taken as it is, and a run that was stopped goes on. The same from the command line:
striderl train quadruped_blind --algorithm tppo --teacher.run runs/teacher_student/teacher
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
from striderl.checkpoint import CheckpointStore
from striderl.collect import GreedyActor
from striderl.envs import VecEnv, make
from striderl.policies import NormalizeObs, Policy, PolicyConfig, Remember
from striderl.policies.settings import PolicySettings
from striderl.recipes.quadruped import quadruped_blind_tppo, quadruped_teacher
from striderl.recording.dagger import DaggerSaver
from striderl.training import EvaluationResult, evaluate, load_teacher
from striderl.training.demonstrations import RunStudents
from striderl.training.experiment.loading import load_run
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import EvaluationSettings, RunConfig, TeacherRun
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.experiment.runner_config import PretrainSettings, RunnerConfig, TeacherSettings
from striderl.training.rsl_rl.two_stage_runner import TwoStageRunner

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "examples_teacher_student.json"


def configs(arguments: argparse.Namespace) -> dict[str, RunConfig[Any, Any]]:
    """Return the two runs, teacher first."""
    teacher, student = quadruped_teacher(), quadruped_blind_tppo()
    teacher = replace(teacher, plan=replace(teacher.plan, total_steps=arguments.teacher_steps))
    student = replace(
        student,
        plan=replace(student.plan, total_steps=arguments.steps),
        teacher=TeacherRun(run=str(arguments.folder / "teacher"), checkpoint="last"),
    )
    found: dict[str, RunConfig[Any, Any]] = {"teacher": teacher, "student": student}
    return {name: small(config) if arguments.quick else settled(config, arguments) for name, config in found.items()}


def settled(config: RunConfig[Any, Any], arguments: argparse.Namespace) -> RunConfig[Any, Any]:
    """Return a run with what the command line says about all of them."""
    settings = {**config.env.settings, "num_threads": arguments.num_threads}
    return replace(
        config,
        env=replace(config.env, settings=settings),
        seed=arguments.seed,
        num_threads=arguments.num_threads,
    )


def small(config: RunConfig[Any, Any]) -> RunConfig[Any, Any]:
    """Return a run of a second, which shows that everything fits together and learns nothing."""
    policy: PolicySettings = replace(config.policy, actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    return replace(
        config,
        env=replace(config.env, num_envs=8, settings={**config.env.settings, "max_episode_length": 12}),
        policy=policy,
        collector=replace(config.collector, decorrelation_steps=0),
        plan=replace(config.plan, num_steps_per_env=8, total_steps=128),
        evaluation=EvaluationSettings(every=0, num_episodes=2, num_envs=2, at_end=False),
        num_threads=1,
    )


def train(config: RunConfig[Any, Any], path: Path) -> Path:
    """Train the run of this folder to its end: a new one, or one that was stopped."""
    folder, is_new = RunFolder(path), not path.exists()
    saved = CheckpointStore(folder.checkpoints).steps()
    if saved and saved[-1] >= config.plan.total_steps:
        return path
    if is_new:
        path.mkdir(parents=True)
        folder.write_config(config)
        folder.write_versions()
    run = Run(config, folder)
    if not is_new:
        run.restore()
    run.drive()
    return path


# -- DAgger, by two processes -----------------------------------------------------------------------------------------


def dagger_config(arguments: argparse.Namespace) -> RunnerConfig:
    """Return how the trainer learns: from recordings that are still being made, and from nothing else."""
    size = 8 if arguments.quick else 128
    return RunnerConfig(
        policy=PolicyConfig(
            actor_obs=("policy",),
            critic_obs=("policy",),
            actor=(NormalizeObs(), Remember(type="gru", hidden_size=size)),
            actor_hidden_dims=(size, size),
            critic_hidden_dims=(8,),
            head_settings={"init_std": 0.3},
        ),
        algorithm=PPOConfig(num_learning_epochs=2, num_mini_batches=4, learning_rate=1e-3, max_grad_norm=1.0),
        teacher=TeacherSettings(teacher=None, config=TPPOConfig(using_ppo=False, distill_target="real")),
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
        save_interval=1 if arguments.quick else 20,
        logger="none",
        seed=arguments.seed,
        runner_class_name="TwoStageRunner",
    )


def blind_env(arguments: argparse.Namespace, settings: dict[str, Any]) -> VecEnv:
    """Build the students' task."""
    return make("quadruped_blind", num_envs=8 if arguments.quick else 128, settings=settings)


def record_labels(arguments: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Record, with the newest student, until there is enough or this process is ended: what is written is whole."""
    torch.set_num_threads(1)
    with blind_env(arguments, settings) as env:
        saver = DaggerSaver(
            env,
            load_teacher(arguments.folder / "teacher", "last"),
            arguments.folder / "demos",
            rollout_storage_length=8 if arguments.quick else 24,
            min_timesteps=400_000,
            min_episodes=1,
            training_policy_logdir=arguments.folder / "dagger",
            load_student=RunStudents(env, train_cfg=dagger_config(arguments)),
            teacher_act_prob=0.1,
            action_sample_std=0.2,
            seed=arguments.seed,
            max_trajectory_length=8 if arguments.quick else 96,
        )
        saver.collect_and_save()


def train_by_dagger(arguments: argparse.Namespace, settings: dict[str, Any]) -> Policy:
    """Learn in this process from what another one records, and return the student."""
    recorder = multiprocessing.get_context("spawn").Process(target=record_labels, args=(arguments, settings))
    runner = TwoStageRunner(blind_env(arguments, settings), dagger_config(arguments), arguments.folder / "dagger")
    saved = sorted((arguments.folder / "dagger").glob("model_*.pt"), key=lambda path: int(path.stem.partition("_")[2]))
    if saved and saved[-1].name != "model_0.pt":
        runner.load(saved[-1])
    left = (2 if arguments.quick else arguments.dagger_iterations) - runner.current_learning_iteration
    if left > 0:
        recorder.start()
        try:
            runner.learn(left)
        finally:
            recorder.terminate()
            recorder.join()
    runner.close()
    return runner.alg.policy.eval()


# -- playing -----------------------------------------------------------------------------------------------------------


def play(policy: Any, config: RunConfig[Any, Any], episodes: int) -> EvaluationResult:
    """Play whole episodes of the students' task greedily; the seed is no run's."""
    with make("quadruped_blind", num_envs=min(episodes, 64), settings=config.env.settings) as env:
        return evaluate(env, GreedyActor(policy), episodes, seed=1000)


def line(name: str, result: EvaluationResult, teacher: EvaluationResult) -> dict[str, Any]:
    """Return one line of the table."""
    errors = result.metrics["tracking_error"]
    return {
        "policy": name,
        "return": round(result.mean, 2),
        "interval": [round(end, 2) for end in result.interval],
        "tracking_error": round(sum(errors) / len(errors), 3),
        "length": round(sum(result.lengths) / len(result.lengths), 1),
        "ratio": round(result.mean / teacher.mean, 3),
        "episodes": len(result.returns),
    }


def show(table: list[dict[str, Any]]) -> None:
    """Print the table."""
    print(f"{'policy':<22} {'return':>7} {'95 %':>16} {'error m/s':>10} {'length':>7} {'of teacher':>11}")
    for row in table:
        low, high = row["interval"]
        print(
            f"{row['policy']:<22} {row['return']:>7.2f} {low:>7.2f} to {high:>5.2f} {row['tracking_error']:>10.3f} "
            f"{row['length']:>7.1f} {row['ratio']:>11.2f}"
        )


def main() -> None:
    """Train teacher and students, play them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600_000, help="env steps of the student")
    parser.add_argument("--teacher-steps", type=int, default=1_500_000, help="env steps of the teacher")
    parser.add_argument("--dagger-iterations", type=int, default=200, help="iterations of DAgger; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything that learns")
    parser.add_argument("--episodes", type=int, default=64, help="episodes that each of them plays in the end")
    parser.add_argument("--num-threads", type=int, default=0, help="threads of simulation and torch; 0: their choice")
    parser.add_argument("--folder", type=Path, default=Path("runs/teacher_student"), help="where the runs are")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--record", action="store_true", help=f"write the table to {RESULTS.name}")
    arguments = parser.parse_args()
    runs = configs(arguments)
    for name, config in runs.items():
        train(config, arguments.folder / name)
    policies: dict[str, Any] = {
        "teacher, PPO": load_run(arguments.folder / "teacher", "last").policy,
        "student, TPPO": load_run(arguments.folder / "student", "last").policy,
    }
    if arguments.dagger_iterations:
        policies["student, DAgger"] = train_by_dagger(arguments, dict(runs["student"].env.settings))
    episodes = 8 if arguments.quick else arguments.episodes
    results = {name: play(policy, runs["student"], episodes) for name, policy in policies.items()}
    table = [line(name, result, results["teacher, PPO"]) for name, result in results.items()]
    show(table)
    if arguments.record:
        content = {
            "command": "python examples/teacher_student.py --record",
            "seed": arguments.seed,
            "steps": {name: load_run(arguments.folder / name, "last").step for name in runs},
            "dagger_iterations": arguments.dagger_iterations,
            "table": table,
        }
        RESULTS.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
