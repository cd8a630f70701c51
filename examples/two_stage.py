"""Two stages on the quadruped: what an expert showed is cloned, then PPO goes on; beside it, PPO from scratch.

    expert         PPO, 3M env steps   (or the folder of a run: --expert) ──▶ demos/, episodes without a fall
    cloned         reads demos/; takes no step in the env                        TwoStageRunner, stage one
    fine-tuned     goes on by PPO, 300,000 env steps                             TwoStageRunner, stage two
    from scratch   PPO with the same settings and seed, 300,000 env steps        OnPolicyRunner
                   … and as many steps more as were recorded, as if the recording had been its own

python examples/two_stage.py [--expert RUN] [--steps 300000] [--seeds 0 1] [--folder runs/two_stage] [--record]

The expert acts by samples, and the clone maximises their likelihood: so it has the spread of the expert's actions as
well as their mean, and PPO can go on exploring from there. What is in the folder already is not made again.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from striderl.checkpoint import CheckpointStore
from striderl.collect import GreedyActor
from striderl.envs import VecEnv, make
from striderl.policies import NormalizeObs, Policy, PolicyConfig
from striderl.recipes.quadruped import quadruped_ppo
from striderl.recording.demonstrations import DemonstrationSaver
from striderl.training import EvaluationResult, evaluate
from striderl.training.experiment.loading import LoadedRun, load_run
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import EvaluationSettings, RunConfig
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.experiment.runner_config import PretrainSettings, RunnerConfig
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner
from striderl.training.rsl_rl.two_stage_runner import TwoStageRunner

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "examples_two_stage.json"


# -- the expert --------------------------------------------------------------------------------------------------------


def expert_of(arguments: argparse.Namespace) -> LoadedRun:
    """Return the expert: the run that was named, or one that is trained here; a run that was stopped goes on."""
    if arguments.expert is not None:
        return load_run(arguments.expert, "last")
    config, path = expert_config(arguments), arguments.folder / "expert"
    folder, is_new = RunFolder(path), not path.exists()
    saved = CheckpointStore(folder.checkpoints).steps()
    if not saved or saved[-1] < config.plan.total_steps:
        if is_new:
            path.mkdir(parents=True)
            folder.write_config(config)
            folder.write_versions()
        run = Run(config, folder)
        if not is_new:
            run.restore()
        run.drive()
    return load_run(path, "last")


def expert_config(arguments: argparse.Namespace) -> RunConfig[Any, Any]:
    """Return the expert's run: the recipe, or a second of it."""
    config = quadruped_ppo()
    settings: dict[str, Any] = {"num_threads": arguments.num_threads}
    if not arguments.quick:
        return replace(config, env=replace(config.env, settings=settings), num_threads=arguments.num_threads)
    return replace(
        config,
        env=replace(config.env, num_envs=8, settings={**settings, "max_episode_length": 12}),
        policy=replace(config.policy, actor_hidden_dims=(8,), critic_hidden_dims=(8,)),
        collector=replace(config.collector, decorrelation_steps=0),
        plan=replace(config.plan, num_steps_per_env=8, total_steps=128),
        evaluation=EvaluationSettings(every=0, num_episodes=2, num_envs=2, at_end=False),
        num_threads=1,
    )


def task(expert: LoadedRun, arguments: argparse.Namespace, num_envs: int) -> VecEnv:
    """Build the task that the expert was trained for."""
    settings = {**expert.config.env.settings, "num_threads": arguments.num_threads}
    env = make(expert.config.env.task, num_envs=num_envs, settings=settings)
    expert.check_env(env)
    return env


def record(expert: LoadedRun, arguments: argparse.Namespace) -> dict[str, Any]:
    """Record the expert until there is enough, without the episodes in which it fell; say what there is."""
    path = arguments.folder / "recorded.json"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    with task(expert, arguments, 8 if arguments.quick else 128) as env:
        saver = DemonstrationSaver(
            env,
            expert.policy,
            arguments.folder / "demos",
            min_timesteps=96 if arguments.quick else arguments.recorded_steps,
            min_episodes=1,
            success_traj_only=True,
            demo_by_sample=True,
            seed=2000,
        )
        progress = saver.collect_and_save(config={"task": expert.config.env.task, "expert_steps": expert.step})
    found = {"steps": progress.total_timesteps, "episodes": progress.total_trajectories, "left_out": progress.left_out}
    print(f"recorded {found['steps']} steps in {found['episodes']} episodes; {found['left_out']} with a fall left out")
    path.write_text(json.dumps(found), encoding="utf-8")
    return found


# -- those who learn ---------------------------------------------------------------------------------------------------


def learner_config(arguments: argparse.Namespace, seed: int) -> RunnerConfig:
    """Return what both learners have in common: the settings with which the expert was trained."""
    config = quadruped_ppo()
    sizes = (8,) if arguments.quick else config.policy.actor_hidden_dims
    return RunnerConfig(
        policy=PolicyConfig(
            actor_obs=("policy",),
            critic_obs=("policy", "critic"),
            actor=(NormalizeObs(),),
            critic=(NormalizeObs(),),
            actor_hidden_dims=sizes,
            critic_hidden_dims=sizes,
            activation=config.policy.activation,
            head_settings={"init_std": config.policy.init_std},
        ),
        algorithm=config.algorithm,
        num_steps_per_env=8 if arguments.quick else config.plan.num_steps_per_env,
        save_interval=25,
        logger="none",
        seed=seed,
    )


def with_recordings(config: RunnerConfig, arguments: argparse.Namespace) -> RunnerConfig:
    """Return the config with a first stage."""
    pretrain = PretrainSettings(
        iterations=2 if arguments.quick else arguments.clone_iterations,
        dataset={
            "data_dir": str(arguments.folder / "demos"),
            "dataset_loops": 0,
            "random_shuffle_traj_order": True,
            # so that a rollout has all ages of an episode in it
            "starting_frame_range": (0, 4 if arguments.quick else 800),
        },
        target="max_log_prob",
    )
    return replace(config, pretrain=pretrain, runner_class_name="TwoStageRunner")


def advance(runner: OnPolicyRunner, iterations: int, first: int) -> Policy:
    """Go on to so many iterations, from the newest checkpoint that is not beyond them; `first` is PPO's first one."""
    assert runner.log_dir is not None
    saved = [int(path.stem.partition("_")[2]) + 1 for path in runner.log_dir.glob("model_*.pt")]
    newest = max((number for number in saved if number <= iterations), default=0)
    if newest > runner.current_learning_iteration:
        runner.load(runner.log_dir / f"model_{newest - 1}.pt")  # numbered as rsl_rl does, from 0
    if runner.current_learning_iteration < iterations:
        is_fresh = runner.current_learning_iteration == first
        runner.learn(iterations - runner.current_learning_iteration, init_at_random_ep_len=is_fresh)
    return runner.alg.policy.eval()


def compare(expert: LoadedRun, recorded_steps: int, arguments: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Train both learners with one seed, and return their lines of the table."""
    num_envs = 8 if arguments.quick else expert.config.env.num_envs
    config = learner_config(arguments, seed)
    per_iteration = num_envs * config.num_steps_per_env
    iterations = math.ceil((2 * per_iteration if arguments.quick else arguments.steps) / per_iteration)
    more = math.ceil(recorded_steps / per_iteration)

    def played(name: str, policy: Policy, recorded: int, count: int) -> dict[str, Any]:
        row = line(name, seed, recorded, count * per_iteration, play(policy, expert, arguments))
        show([row])
        return row

    with_first_stage = with_recordings(config, arguments)
    assert with_first_stage.pretrain is not None
    first = with_first_stage.pretrain.iterations
    runner = TwoStageRunner(task(expert, arguments, num_envs), with_first_stage, arguments.folder / f"two_stage_{seed}")
    table = [played("cloned", advance(runner, first, first), recorded_steps, 0)]
    table.append(played("fine-tuned", advance(runner, first + iterations, first), recorded_steps, iterations))
    runner.close()

    scratch = OnPolicyRunner(task(expert, arguments, num_envs), config, arguments.folder / f"scratch_{seed}")
    table.append(played("from scratch", advance(scratch, iterations, 0), 0, iterations))
    table.append(played("from scratch, longer", advance(scratch, iterations + more, 0), 0, iterations + more))
    scratch.close()
    return table


# -- playing -----------------------------------------------------------------------------------------------------------


def play(policy: Any, expert: LoadedRun, arguments: argparse.Namespace) -> EvaluationResult:
    """Play whole episodes greedily; the seed is no learner's."""
    episodes = 4 if arguments.quick else arguments.episodes
    with task(expert, arguments, min(episodes, 64)) as env:
        return evaluate(env, GreedyActor(policy), episodes, seed=1000)


def line(name: str, seed: int, recorded: int, env_steps: int, result: EvaluationResult) -> dict[str, Any]:
    """Return one line of the table."""
    errors = result.metrics["tracking_error"]
    return {
        "policy": name,
        "seed": seed,
        "recorded_steps": recorded,
        "env_steps": env_steps,
        "return": round(result.mean, 2),
        "interval": [round(end, 2) for end in result.interval],
        "tracking_error": round(sum(errors) / len(errors), 3),
        "length": round(sum(result.lengths) / len(result.lengths), 1),
        "episodes": len(result.returns),
    }


def show(table: list[dict[str, Any]], *, head: bool = False) -> None:
    """Print lines of the table."""
    if head:
        print(f"{'policy':<22} {'seed':>4} {'recorded':>9} {'env steps':>10} {'return':>7} {'95 %':>16} ", end="")
        print(f"{'error m/s':>10} {'length':>7}")
    for row in table:
        low, high = row["interval"]
        print(
            f"{row['policy']:<22} {row['seed']:>4} {row['recorded_steps']:>9} {row['env_steps']:>10} "
            f"{row['return']:>7.2f} {low:>7.2f} to {high:>5.2f} {row['tracking_error']:>10.3f} {row['length']:>7.1f}",
            flush=True,
        )


def main() -> None:
    """Record the expert, train both learners with each seed, play them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--expert", type=Path, help="the folder of a trained run; without it one is trained here")
    parser.add_argument("--recorded-steps", type=int, default=100_000, help="at least so many steps are recorded")
    parser.add_argument("--clone-iterations", type=int, default=80, help="iterations of stage one")
    parser.add_argument("--steps", type=int, default=300_000, help="env steps of fine-tuning, and of PPO from scratch")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of those who learn; one pair for each")
    parser.add_argument("--episodes", type=int, default=64, help="episodes that each of them plays in the end")
    parser.add_argument("--num-threads", type=int, default=0, help="threads of simulation and torch; 0: their choice")
    parser.add_argument("--folder", type=Path, default=Path("runs/two_stage"), help="where everything is")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--record", action="store_true", help=f"write the table to {RESULTS.name}")
    arguments = parser.parse_args()
    if arguments.num_threads:
        torch.set_num_threads(arguments.num_threads)
    expert = expert_of(arguments)
    recorded = record(expert, arguments)
    table = [line("expert", expert.config.seed, 0, expert.step, play(expert.policy, expert, arguments))]
    show(table, head=True)
    for seed in arguments.seeds:
        table += compare(expert, recorded["steps"], arguments, seed)
        if arguments.record:
            content = {
                "command": f"python examples/two_stage.py {'--expert RUN ' if arguments.expert else ''}--record",
                "expert": {"task": expert.config.env.task, "seed": expert.config.seed, "env_steps": expert.step},
                "recorded": recorded,
                "clone_iterations": arguments.clone_iterations,
                "table": table,
            }
            RESULTS.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
