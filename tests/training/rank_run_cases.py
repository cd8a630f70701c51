"""Whole runs in two processes, one after the other in one pair of them: `python rank_run_cases.py FOLDER` in each.

FOLDER/KIND/whole   never stopped                    FOLDER/KIND/cut      stopped by a signal, and resumed
FOLDER/KIND/one     begun by one process before      FOLDER/KIND/short    to be resumed by one process afterwards
FOLDER/compiled     PPO whose functions are programs of torch's compiler from its second iteration on
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from run_cases import tiny

from striderl.collect.collector import Collector, CollectorConfig
from striderl.datasets.offline import save_dataset
from striderl.envs.tasks import make
from striderl.recipes.table import recipe
from striderl.training.callbacks.callback import NOTHING, Reaction
from striderl.training.distributed import Ranks, setup
from striderl.training.experiment.assembly import build_algorithm
from striderl.training.experiment.run import Run, RunOutcome
from striderl.training.experiment.run_config import RunConfig
from striderl.training.experiment.run_folder import RunFolder, new_run_folder
from striderl.training.protocols import replay_for
from striderl.training.signals import StopSignals

KINDS = ("dqn", "sac", "iql")
"""Prioritized replay, uniform replay, a dataset; all with normalisers."""
SHORT, LONG = 4, 7
"""Iterations of a run that another number of processes resumes, and of a whole one."""


def config_of(kind: str, folder: Path, iterations: int) -> RunConfig[Any, Any]:
    if kind != "iql":
        return tiny(kind, iterations)
    settings = tiny("sac", iterations)
    config = recipe("pendulum", "iql")
    return replace(
        config,
        dataset=str(folder / "data"),
        policy=replace(config.policy, normalize_obs=True, actor_hidden_dims=(16,), critic_hidden_dims=(16,)),
        plan=replace(config.plan, num_updates_per_iteration=4, batch_size=8, total_iterations=iterations),
        **{name: getattr(settings, name) for name in ("evaluation", "stop", "checkpoints", "logging")},
    )


def make_dataset(folder: Path) -> None:
    """Save 40 steps of two envs that act at random."""
    config, env = tiny("sac"), make("pendulum", num_envs=2)
    algorithm = build_algorithm(config, env, Ranks())
    collector = Collector(env, algorithm.actor(), CollectorConfig(seed=0))
    algorithm.explore(0, random=True)
    replay = replay_for(collector, algorithm, 80, 0)
    collector.collect(n_step=80, storage=replay)
    save_dataset(folder / "data", replay, env.obs_spec, env.action_spec)
    env.close()


class StopAt:
    """Stops a run as a signal to rank 0 would, after some iterations."""

    SAVED_NAME = "StopAt"

    def __init__(self, iteration: int, signals: StopSignals) -> None:
        self.iteration, self.signals = iteration, signals

    def on_iteration(self, record: Any, run: Any) -> Reaction:
        if record.iteration == self.iteration:
            self.signals.received = signal.SIGTERM
        return NOTHING

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def driven(
    config: RunConfig[Any, Any], path: Path, ranks: Ranks, *, stop_at: int = 0, resume: bool = False
) -> RunOutcome:
    """Begin or resume a run and train it."""
    if not resume:
        ranks.from_main(lambda: str(new_run_folder(config, path.parents[1], path.name).path.rename(path)))
    signals = StopSignals()
    watchers = [StopAt(stop_at, signals)] if stop_at else []
    run = Run(config, RunFolder(path), signals=signals, watchers=watchers, ranks=ranks)
    if resume:
        assert run.restore()
    return run.drive()


if __name__ == "__main__":
    here = Path(sys.argv[1])
    with setup(device="cpu", timeout=300.0) as joined:
        group: Any = dist.group.WORLD
        for kind in KINDS:
            (here / kind).mkdir(exist_ok=True)
            long, short = (config_of(kind, here, iterations) for iterations in (LONG, SHORT))
            assert driven(long, here / kind / "whole", joined).exit_code == 0
            assert driven(long, here / kind / "cut", joined, stop_at=3).exit_code == 143
            assert driven(long, here / kind / "cut", joined, resume=True).exit_code == 0
            assert driven(short, here / kind / "short", joined).exit_code == 0
            assert driven(long, here / kind / "one", joined, resume=True).exit_code == 0
        compiled = tiny("cartpole", 6, mode="auto", switch_at="2")
        (here / "compiled").mkdir(exist_ok=True)
        assert driven(compiled, here / "compiled" / "whole", joined).exit_code == 0
        assert driven(compiled, here / "compiled" / "cut", joined, stop_at=4).exit_code == 143
        assert driven(compiled, here / "compiled" / "cut", joined, resume=True).exit_code == 0
    # torch's tracer must not keep the process group: its threads would abort an interpreter that ends
    assert sys.getrefcount(group) == 2, sys.getrefcount(group)
