"""`make demo`, until there is something to train: a look at everything that works, in under a minute.

It checks the built-in environments against the contract, collects experience in them with random actions, measures how
fast that goes, and renders a picture of the quadruped where a GL library is there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import striderl
from striderl.collect.actors import RandomActor
from striderl.collect.collector import Collector
from striderl.data.naming import missing_extra
from striderl.envs.check import check_vec_env
from striderl.envs.tasks import TASKS, make
from striderl.envs.vec_env import VecEnv
from striderl.storage.rollout import RolloutStorage

PICTURE = Path("runs") / "selfcheck" / "quadruped.png"


def main() -> int:
    """Check every built-in task and print what was seen; the exit status is the number of tasks that failed."""
    console = Console()
    console.print(f"striderl {striderl.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}\n")
    table = Table("task", "observation", "contract", "env steps/s (64 envs)")
    failed = 0
    for name in TASKS:
        contract, speed, spec = look_at(partial(make, name, num_envs=64))
        failed += contract != "holds"
        table.add_row(name, spec, contract, speed)
    console.print(table)
    console.print(picture())
    console.print("\nEverything works." if not failed else f"\n{failed} tasks failed.")
    return failed


def look_at(build: Callable[[], VecEnv]) -> tuple[str, str, str]:
    """Check one env, collect a little experience in it, and return three cells of the table."""
    with build() as env:
        report: Any = check_vec_env(env, num_steps=20, collect=True)
        spec = f"{env.obs_spec.size} numbers" + (f" in {len(env.obs_spec)} components" if len(env.obs_spec) > 1 else "")
        if not report.ok:
            return str(report), "", spec
    with build() as env:
        collector = Collector(env, RandomActor(env.action_spec))
        storage = RolloutStorage(collector.columns(), 20, env.num_envs)
        collector.reset()
        started = time.perf_counter()
        collector.collect(n_step=20 * env.num_envs, storage=storage)
        return "holds", f"{20 * env.num_envs / (time.perf_counter() - started):,.0f}", spec


def picture() -> str:
    """Render the quadruped to a file and say where it is, or why not."""
    try:
        with make("quadruped", num_envs=1) as env:
            env.reset(seed=0)
            for _ in range(20):
                env.step(torch.zeros(1, 12))
            write_picture(PICTURE, env.render())
    except (ImportError, RuntimeError, OSError) as error:
        return f"\nNo picture: {error}"
    return f"\nA picture of the quadruped: {PICTURE}"


def write_picture(path: Path, frame: Any) -> None:
    """Write a frame uint8 [height, width, 3] to an image file."""
    try:
        import imageio.v3 as imageio
    except ModuleNotFoundError as error:
        raise ImportError(missing_extra("imageio", "video", purpose="an image file")) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    imageio.imwrite(path, frame)


if __name__ == "__main__":
    sys.exit(main())
