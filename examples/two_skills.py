"""Two skills of the parkour field, each trained in a run of its own, and a mutex that plays whichever is needed.

    walk    follows velocity commands on flat ground
    crawl   goes on from its policy on lanes of bars, ever lower
    jump    goes on from its policy on lanes of boxes, ever higher
    mutex   engaging_block says what comes next: [… crawl, jump …] ──▶ the policy of that run's folder acts

Then all of them run the mixed field, which has bars and boxes in every lane.

python examples/two_skills.py [--steps 500000] [--seed 0] [--folder runs/two_skills] [--record]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from striderl.checkpoint import CheckpointStore
from striderl.envs import make
from striderl.envs.quadruped.parkour import ParkourConfig
from striderl.policies import ActorCriticFieldMutex, Policy
from striderl.policies.transfer.load import load_misaligned_state_dict
from striderl.recipes import recipe
from striderl.recipes.quadruped import quadruped_ppo
from striderl.training.experiment.loading import load_run, load_sub_policy
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import EvaluationSettings, RunConfig
from striderl.training.experiment.run_folder import RunFolder

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "examples_two_skills.json"
SKILLS = ("crawl", "jump")
FIRST_ENTRY = 3
"""Where 'crawl' is in engaging_block; 'jump' comes next. Where neither is ahead, the first policy acts."""
TRAINED = {"crawl": (0.40, 0.30), "jump": (0.02, 0.10)}
"""What bars and boxes measure on the easiest and on the hardest level where a skill is trained, m."""
FIRST_LEVELS = {"crawl": 1, "jump": 4}
"""On how many of the six levels robots begin; who reaches the end of a lane goes on to the next level."""
MIXED = {"crawl": (0.34, 0.34), "jump": (0.06, 0.06)}
"""What they measure where everybody is tried out."""


def lanes(kinds: Sequence[str], sizes: dict[str, Any], levels: int) -> dict[str, Any]:
    """Return the settings of the task for lanes of these obstacles."""
    return {"lanes": {"kinds": tuple(kinds), "sizes": sizes, "levels": levels}, "observe_motion": False}


def configs(arguments: argparse.Namespace) -> dict[str, RunConfig[Any, Any]]:
    """Return the three runs; all have the same networks, but for what they observe."""
    walk, parkour = quadruped_ppo(), recipe("parkour", "ppo")
    found = {"walk": replace(walk, plan=replace(walk.plan, total_steps=arguments.walk_steps))}
    for skill in SKILLS:
        found[skill] = replace(
            parkour,
            env=replace(
                parkour.env,
                settings={**lanes([skill], {skill: TRAINED[skill]}, 6), "first_levels": FIRST_LEVELS[skill]},
            ),
            policy=walk.policy,
            plan=replace(parkour.plan, total_steps=arguments.steps),
        )
    return {name: small(config) if arguments.quick else settled(config, arguments) for name, config in found.items()}


def settled(config: RunConfig[Any, Any], arguments: argparse.Namespace) -> RunConfig[Any, Any]:
    """Return a run with what the command line says about all of them."""
    return replace(
        config,
        env=replace(config.env, settings={**config.env.settings, "num_threads": arguments.num_threads}),
        evaluation=EvaluationSettings(every=0, at_end=False),
        checkpoints=replace(config.checkpoints, every=50),
        seed=arguments.seed,
        num_threads=arguments.num_threads,
    )


def small(config: RunConfig[Any, Any]) -> RunConfig[Any, Any]:
    """Return a run of a second, which shows that everything fits together and learns nothing."""
    return replace(
        config,
        env=replace(config.env, num_envs=8, settings={**config.env.settings, "max_episode_length": 12}),
        collector=replace(config.collector, decorrelation_steps=0),
        plan=replace(config.plan, num_steps_per_env=8, total_steps=128),
        evaluation=EvaluationSettings(every=0, at_end=False),
        num_threads=1,
    )


def train(config: RunConfig[Any, Any], path: Path, start: Path | None = None) -> Path:
    """Train the run of this folder to its end: a new one, or one that was stopped.

    A new one may begin with the policy of another run: what that did not observe counts nothing at first.
    """
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
    elif start is not None:
        walker, student = load_run(start, "last").policy, run.learner.policy
        assert isinstance(walker, Policy) and isinstance(student, Policy), "PPO learns a Policy"
        load_misaligned_state_dict(student, walker.state_dict(), walker)
    run.drive()
    return path


@torch.no_grad()
def play(policy: Any, settings: dict[str, Any], num_envs: int, seed: int) -> dict[str, float]:
    """Play one episode in each env, greedily; return how many reached the end of their lane, and the mean return."""
    with make("parkour", num_envs=num_envs, settings=settings) as env:
        obs, state = env.reset(seed=seed), policy.initial_state(num_envs)
        running, total = torch.ones(num_envs, dtype=torch.bool), torch.zeros(num_envs)
        reached = torch.zeros(num_envs, dtype=torch.bool)
        while bool(running.any()):
            distribution, state, _ = policy.act(obs, state, policy.settled(torch.zeros(num_envs)))
            step = env.step(distribution.mode())
            total += torch.where(running, step.reward, 0.0)
            reached |= running & step.info["success"]
            running &= ~(step.terminated | step.truncated)
            obs = step.obs
    return {"success": round(float(reached.float().mean()), 3), "return": round(float(total.mean()), 2)}


def mutex(folders: Sequence[Path], settings: dict[str, Any]) -> Any:
    """Join the policies of two run folders; which one acts is read from what the env says about the next obstacle."""
    with make("parkour", num_envs=1, settings=settings) as env:
        model = ActorCriticFieldMutex(
            env.obs_spec,
            None,
            env.action_spec,
            sub_policy_paths=folders,
            load_sub_policy=load_sub_policy,
            env_action_scale=ParkourConfig().action_scale,
            selection_first_entry=FIRST_ENTRY,
        )
    return model.policy


def main() -> None:
    """Train walking and both skills, join these, and let everybody run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500_000, help="env steps of each of the two skills")
    parser.add_argument("--walk-steps", type=int, default=2_400_000, help="env steps of the run that both go on from")
    parser.add_argument("--seed", type=int, default=0, help="seed of the runs")
    parser.add_argument("--episodes", type=int, default=64, help="episodes that everybody plays on each field")
    parser.add_argument("--num-threads", type=int, default=0, help="threads of simulation and torch; 0: their choice")
    parser.add_argument("--folder", type=Path, default=Path("runs/two_skills"), help="where the runs are")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--record", action="store_true", help=f"write the table to {RESULTS.name}")
    arguments = parser.parse_args()
    runs = configs(arguments)
    walk = train(runs["walk"], arguments.folder / "walk")
    folders = [train(runs[skill], arguments.folder / skill, walk) for skill in SKILLS]
    fields = {"bars": lanes(["crawl"], MIXED, 1), "boxes": lanes(["jump"], MIXED, 1), "mixed": lanes(SKILLS, MIXED, 1)}
    if arguments.quick:
        fields = {name: {**settings, "max_episode_length": 5} for name, settings in fields.items()}
    policies: dict[str, Any] = {"walk alone": load_run(walk, "last").policy}
    policies |= {f"{skill} alone": load_run(folder, "last").policy for skill, folder in zip(SKILLS, folders)}
    policies["mutex of both"] = mutex(folders, fields["mixed"])
    table = []
    print(f"{'policy':<14}" + "".join(f" {name + ': success':>16} {'return':>7}" for name in fields))
    for name, policy in policies.items():
        row = {
            field: play(policy, settings, 8 if arguments.quick else arguments.episodes, seed=1000)
            for field, settings in fields.items()
        }
        table.append({"policy": name, **row})
        print(f"{name:<14}" + "".join(f" {found['success']:>16.2f} {found['return']:>7.2f}" for found in row.values()))
    if arguments.record:
        content = {
            "command": "python examples/two_skills.py --record",
            "seed": arguments.seed,
            "steps": {name: load_run(arguments.folder / name, "last").step for name in runs},
            "sizes": {"trained": TRAINED, "played": MIXED},
            "episodes": arguments.episodes,
            "table": table,
        }
        RESULTS.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
