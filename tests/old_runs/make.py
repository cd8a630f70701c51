"""Make a set of small run folders that later versions must load and resume, or go on with one.

    python tests/old_runs/make.py make FOLDER        a new set; FOLDER must not exist
    python tests/old_runs/make.py go_on FOLDER       go on with all runs in a copy of a set; prints what they end with

    FOLDER/
      ppo_gru/            stopped before an update: a rollout, memories and env state are in the checkpoint
      dqn_prioritized/    stopped between two iterations, with priorities and pending n-step windows
      sac/  rnd/  td3_bc/ dataset/
      runner_legged_gym/  runner_mjlab/  runner_amp/  runner_two_stage/      what `runner.save` leaves
      trajectories/       recorded by a TrajectoryWriter
      expected.json       what each of them has after going on to its end

`v1` was made at version 0.1.0.dev0 (commit 40dd979). `test_old_runs.py` goes on with it, with the arithmetic of the
fingerprints; a new set is made in the same way. The end of `ppo_gru` is newer: windows of a GRU are summed in another
order since they have a backward pass of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import runner_configs
import test_amp_runner
import torch
import two_stage_cases
from fingerprint import digest
from rsl_rl_fakes import GroupsFake, LeggedGymFake
from run_cases import folder_at, tiny

from striderl.algorithms.terms.rnd import RNDConfig
from striderl.collect.actors.base import RandomActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.datasets.offline import save_dataset
from striderl.envs.classic_control import Pendulum
from striderl.policies.settings import PolicySettings
from striderl.recipes.table import recipe
from striderl.storage.replay.replay import Replay
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import RunConfig, read_run_config
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.rsl_rl.on_policy_runner import AmpPolicyRunner, OnPolicyRunner
from striderl.training.rsl_rl.two_stage_runner import TwoStageRunner

ITERATIONS, STOPPED_AT = 10, 6


def policy_digest(policy: Any) -> str:
    return digest(policy.state_dict())


def configs() -> dict[str, tuple[RunConfig, str]]:
    """Return a config for each run, and the phase before which it stops."""
    small = PolicySettings(kind="gru", memory_size=8, actor_hidden_dims=(16,), critic_hidden_dims=(16,))
    novelty = RNDConfig(predictor_hidden_dims=(8,), target_hidden_dims=(8,), num_outputs=3)
    return {
        "ppo_gru": (tiny("cartpole", ITERATIONS, policy=small, mode="eager"), "update"),
        "dqn_prioritized": (tiny("dqn", ITERATIONS, mode="eager"), "interact"),
        "sac": (tiny("sac", ITERATIONS, mode="eager"), "interact"),
        "rnd": (tiny("rnd", ITERATIONS, terms={"rnd": novelty}, mode="eager"), "prepare"),
    }


def offline_config() -> RunConfig:
    config = recipe("pendulum", "td3_bc")
    tiny_one = tiny("sac", ITERATIONS)
    return replace(
        config,
        dataset="dataset",
        policy=replace(config.policy, actor_hidden_dims=(16,), critic_hidden_dims=(16,)),
        plan=replace(config.plan, batch_size=16, num_updates_per_iteration=6, total_iterations=ITERATIONS),
        evaluation=tiny_one.evaluation,
        stop=tiny_one.stop,
        checkpoints=tiny_one.checkpoints,
        logging=tiny_one.logging,
        mode="eager",
    )


def save_in_the_middle(name: str, config: RunConfig, phase: str) -> str:
    """Stop in the seventh iteration, save, and return the weights at the end of the run when it goes on."""
    run = Run(config, folder_at(Path(name), config))
    seen = []
    while run.trainer.iteration < STOPPED_AT:
        run.trainer.advance()
    while run.trainer.phase != phase and len(seen) < 50:
        seen.append(run.trainer.phase)
        run.trainer.advance()
    assert run.trainer.phase == phase, f"{name}: no phase {phase!r} among {sorted(set(seen))}"
    assert run.save()
    run.close()
    return finish(name, Path("finished") / name)


def finish(source: str, copy: Path) -> str:
    """Go on in a copy of the folder to the end, and return the digest of the policy."""
    shutil.copytree(source, copy)
    run = Run(read_run_config(copy), RunFolder(copy))
    assert run.restore()
    outcome = run.drive()
    assert outcome.exit_code == 0 and run.trainer.iteration == ITERATIONS, (outcome, run.trainer.iteration)
    return policy_digest(run.learner.policy)


def runners() -> dict[str, Any]:
    demos = Path("trajectories")
    amp = test_amp_runner.config(algorithm={"motion_prior": {"replay_size": 64}})
    return {
        "runner_legged_gym": lambda: OnPolicyRunner(LeggedGymFake(num_envs=4), runner_configs.legged_gym()),
        "runner_mjlab": lambda: OnPolicyRunner(
            GroupsFake(num_envs=4, acting_group="actor"), runner_configs.mjlab("actor")
        ),
        "runner_amp": lambda: AmpPolicyRunner(test_amp_runner.StRlEnv(), amp),
        "runner_two_stage": lambda: TwoStageRunner(
            two_stage_cases.Follow(8), two_stage_cases.config(demos, pretrain_iterations=4)
        ),
    }


def save_runner(name: str, build: Any) -> dict[str, Any]:
    runner = build()
    runner.learn(STOPPED_AT)
    Path(name).mkdir()
    runner.save(f"{name}/model_{STOPPED_AT}")
    return runner_state(runner)


def runner_state(runner: Any) -> dict[str, Any]:
    return {"weights": policy_digest(runner.alg.policy), "iteration": runner.current_learning_iteration}


def load_runner(name: str, build: Any) -> dict[str, Any]:
    """Load into a new runner, and learn a little: what was saved must fit."""
    runner = build()
    runner.load(f"{name}/model_{STOPPED_AT}")
    found = runner_state(runner)
    runner.learn(1)
    assert runner.current_learning_iteration == STOPPED_AT + 1
    return found


def record_dataset(folder: Path) -> None:
    """Save 256 random steps of the pendulum."""
    env = Pendulum(4)
    collector = Collector(env, RandomActor(env.action_spec), CollectorConfig(seed=3))
    replay = Replay(collector.columns(), 256, env.num_envs)
    collector.collect(n_step=256, storage=replay)
    save_dataset(folder, replay, env.obs_spec, env.action_spec, about={"kind": "random"})


def make() -> dict[str, Any]:
    """Make the set in this folder."""
    expected: dict[str, Any] = {}
    for name, (config, phase) in configs().items():
        expected[name] = {"weights": save_in_the_middle(name, config, phase)}
    record_dataset(Path("dataset"))
    expected["td3_bc"] = {"weights": save_in_the_middle("td3_bc", offline_config(), "learn")}
    two_stage_cases.record(Path("trajectories"), 24)
    for name, build in runners().items():
        expected[name] = save_runner(name, build)
    shutil.rmtree("finished")
    Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    return expected


def go_on() -> dict[str, Any]:
    """Go on with every run of the set in this folder."""
    names = [path.name for path in sorted(Path().iterdir()) if (path / "config.json").exists()]
    found: dict[str, Any] = {name: {"weights": finish(name, Path("finished") / name)} for name in names}
    return found | {name: load_runner(name, build) for name, build in runners().items()}


def main(task: str, folder: str) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    if task == "make":
        Path(folder).mkdir(parents=True)
    os.chdir(folder)
    print(json.dumps({"make": make, "go_on": go_on}[task]()))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
