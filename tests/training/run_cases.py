"""Tiny runs for the tests, and a program that drives one: python run_cases.py KIND FOLDER ITERATIONS [PHASE SIGNAL].

Several kinds, with commas between them, are driven one after the other, each in the folder of its name in FOLDER.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from striderl.algorithms.on_policy.ppo import PPOConfig
from striderl.algorithms.terms.rnd import RNDConfig
from striderl.checkpoint.store import CheckpointStore
from striderl.policies.settings import PolicySettings
from striderl.recipes.table import recipe
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_config import (
    CheckpointSettings,
    EvaluationSettings,
    LoggingSettings,
    RunConfig,
    StopSettings,
)
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.signals import StopSignals


def tiny(kind: str = "cartpole", iterations: int = 20, **changes: Any) -> RunConfig:
    """A run of a second: 'cartpole', 'pendulum_lstm' (with a normaliser), 'rnd', 'gymnasium', 'dqn', 'sac'."""
    if kind in ("dqn", "sac"):
        return replace(tiny_replay(kind, iterations), **changes)
    task = {"pendulum_lstm": "pendulum", "gymnasium": "gymnasium:CartPole-v1"}.get(kind, "cartpole")
    config = recipe(task, "ppo")
    policy = PolicySettings(normalize_obs=kind != "cartpole", actor_hidden_dims=(16,), critic_hidden_dims=(16,))
    if kind == "pendulum_lstm":
        policy = replace(policy, kind="lstm", memory_size=8)
    small = replace(
        config,
        env=replace(config.env, num_envs=4),
        policy=policy,
        algorithm=PPOConfig(num_learning_epochs=2, num_mini_batches=2, schedule="adaptive", entropy_coef=0.01),
        terms={"rnd": RNDConfig()} if kind == "rnd" else {},
        plan=replace(config.plan, num_steps_per_env=8, total_steps=0, total_iterations=iterations, warmup_steps=0),
        evaluation=EvaluationSettings(every=5, num_episodes=2, num_envs=2),
        stop=StopSettings(),
        checkpoints=CheckpointSettings(every=5, keep_last=2),
        logging=LoggingSettings(console="off"),
        num_threads=1,
    )
    return replace(small, **changes)


def tiny_replay(kind: str, iterations: int) -> RunConfig:
    config = recipe({"dqn": "cartpole", "sac": "pendulum"}[kind], kind)
    plan = replace(
        config.plan,
        num_steps_per_env=8,
        batch_size=8,
        learning_starts=16,
        buffer_size=200,
        total_steps=0,
        total_iterations=iterations,
    )
    return replace(
        config,
        env=replace(config.env, num_envs=4),
        policy=replace(config.policy, normalize_obs=True, actor_hidden_dims=(16,), critic_hidden_dims=(16,)),
        algorithm=replace(config.algorithm, prioritized=kind == "dqn", n_step=3),
        plan=plan,
        evaluation=EvaluationSettings(every=5, num_episodes=2, num_envs=2),
        stop=StopSettings(),
        checkpoints=CheckpointSettings(every=5, keep_last=2),
        logging=LoggingSettings(console="off"),
    )


def folder_at(path: Path, config: RunConfig) -> RunFolder:
    """The folder of a run, made with its config if it is not there."""
    folder = RunFolder(path)
    if not path.exists():
        path.mkdir(parents=True)
        folder.write_config(config)
        folder.write_versions()
    return folder


def final_state(path: Path) -> Any:
    """What the newest checkpoint holds, without what depends on the clock."""
    return without_times(CheckpointStore(RunFolder(path).checkpoints).load("last").state)


def without_times(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: without_times(value) for name, value in state.items() if not str(name).endswith("seconds")}
    if isinstance(state, list):
        return [without_times(value) for value in state]
    return state


class Strike:
    """Sends this process a signal when the trainer reaches a phase of an iteration."""

    def __init__(self, phase: str, number: int, iteration: int = 3) -> None:
        self.phase, self.number, self.iteration = phase, number, iteration

    def watch(self, run: Run) -> None:
        advance = run.trainer.advance

        def striking() -> str:
            if run.trainer.iteration == self.iteration and run.trainer.phase == self.phase:
                os.kill(os.getpid(), self.number)
                self.iteration = -1
            return advance()

        run.trainer.advance = striking  # type: ignore[method-assign]


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def take_signals() -> None:
    """Let signals end this process, whatever its parent ignores: nohup ignores SIGHUP, a shell's background SIGINT."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def taking_signals() -> Iterator[None]:
    """Take signals for a while."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    take_signals()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(kind: str, path: str, iterations: str, phase: str = "", number: str = "") -> int:
    config = tiny(kind, int(iterations))
    with taking_signals(), StopSignals() as signals:
        if phase == "start":
            os.kill(os.getpid(), int(number))
        run = Run(config, folder_at(Path(path), config), signals=signals)
        if phase == "save":
            keep = run.store.save

            def saving(*arguments: Any, **settings: Any) -> Any:
                os.kill(os.getpid(), int(number))
                run.store.save = keep  # type: ignore[method-assign]
                return keep(*arguments, **settings)

            run.store.save = saving  # type: ignore[method-assign]
        elif phase == "evaluate":
            play = run.evaluation.actor.actor.act

            def striking(*arguments: Any) -> Any:
                run.evaluation.actor.actor.act = play
                os.kill(os.getpid(), int(number))
                return play(*arguments)

            run.evaluation.actor.actor.act = striking
        elif phase and phase != "start":
            Strike(phase, int(number)).watch(run)
        run.restore()
        return run.drive().exit_code


if __name__ == "__main__":
    kinds, place, *others = sys.argv[1:]
    if "," in kinds:
        sys.exit(max(main(kind, f"{place}/{kind}", *others) for kind in kinds.split(",")))
    sys.exit(main(kinds, place, *others))
