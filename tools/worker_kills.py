"""Kill Ray workers at random while runs train, count what was done, and compare with runs that nothing happened to.

    python tools/worker_kills.py --runs 3 --kills 4                 needs: pip install 'striderl[ray]'
    python tools/worker_kills.py --plant                            with a planted bug, which must be found

A thread kills the process of a random worker (SIGKILL) in random iterations of a run with the synchronous schedule. The
run must end, every kill must be followed by a replacement, and the learned weights must equal those of the same run
without kills, bit for bit. With --plant a replaced worker forgets its state.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from striderl.checkpoint.store import CheckpointStore
from striderl.cli.train_flags import overridden
from striderl.data import tree
from striderl.recipes.table import recipe
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_folder import new_run_folder
from striderl.training.experiment.worker_fleet import Fleet

SETTINGS = [
    *("--env.num-envs", "4", "--plan.num-steps-per-env", "16", "--plan.total-steps", "1280", "--stop.metric", ""),
    *("--evaluation.num-episodes", "2", "--evaluation.every", "10", "--logging.console", "off"),
]


class ForgetfulFleet(Fleet):
    """The planted bug: a worker that is replaced does not get the state of the dead one."""

    def _replace_or_raise(self, number: int, error: Exception) -> None:
        self._states[number] = None
        super()._replace_or_raise(number, error)


def trained(root: Path, name: str, words: list[str], kills: dict[int, int]) -> tuple[Any, int, int]:
    """Train; kill a worker in each of these iterations. Returns the learned state, kills and replacements."""
    config = overridden(recipe("cartpole", "ppo"), [*SETTINGS, *words], prog="worker_kills")
    folder = new_run_folder(config, root, name)
    run, done, chance = Run(config, folder), 0, random.Random(name)
    while not run.trainer.finished:
        iteration = run.trainer.iteration + 1
        if run.trainer.phase == "collect" and iteration in kills:
            pid = int(run.env.fleet.workers[kills[iteration]]["pid"])  # type: ignore[attr-defined]
            # now and then between two rollouts, now and then in one
            timer = threading.Timer(chance.choice((0.0, 0.005, 0.02)), os.kill, (pid, signal.SIGKILL))
            timer.start()
            run.trainer.advance()
            timer.join()
            done += 1
        else:
            run.trainer.advance()
    replaced = run.env.fleet.num_replaced if config.workers.kind else 0  # type: ignore[attr-defined]
    run.drive()
    return CheckpointStore(folder.checkpoints).load("last").state["algorithm"], done, replaced


def main() -> int:
    """Run the campaign; the exit code is 0 when everything held, or with --plant when the bug was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="how many runs")
    parser.add_argument("--kills", type=int, default=4, help="how many workers are killed in each")
    parser.add_argument("--workers", type=int, default=2, help="how many workers a run has")
    parser.add_argument("--plant", action="store_true", help="plant a bug, which must be found")
    options = parser.parse_args()

    import ray

    if options.plant:
        from striderl.training.experiment import remote_collector as collector

        collector.Fleet = ForgetfulFleet  # type: ignore[misc]
    ray.init(num_cpus=options.workers, include_dashboard=False, log_to_driver=False)
    num_kills = num_replaced = num_different = 0
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(options.runs):
            chance = random.Random(number)
            when = chance.sample(range(2, 20), options.kills)  # the last kills are seen by later rollouts
            kills = {iteration: chance.randrange(options.workers) for iteration in when}
            words = ["--seed", str(number), "--workers", "ray", "--num-workers", str(options.workers)]
            wanted, _, _ = trained(Path(scratch), f"quiet_{number}", words, {})
            found, done, replaced = trained(Path(scratch), f"killed_{number}", words, kills)
            same = tree.equal(found, wanted)
            num_kills, num_replaced, num_different = (
                num_kills + done,
                num_replaced + replaced,
                num_different + (not same),
            )
            print(f"run {number}: {done} kills, {replaced} replaced, {'the same bits' if same else 'OTHER weights'}")
    ray.shutdown()
    print(f"{num_kills} kills, {num_replaced} replacements, {num_different} of {options.runs} runs differ")
    held = num_different == 0 and num_kills == num_replaced == options.runs * options.kills
    if options.plant:
        print("the planted bug was found" if num_different else "the planted bug was NOT found")
        return 0 if num_different else 1
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
