"""A Ray cluster of several nodes, in a process of its own: kills, a joining node, bad input. Prints JSON.

Everything that real Ray has to show is here, so that it is started once; `test_ray_workers.py` reads the result.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch

import striderl

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import worker_kills

from striderl.cli.train_flags import overridden
from striderl.data import tree
from striderl.recipes.table import recipe
from striderl.training.experiment import remote_collector
from striderl.training.experiment.worker_fleet import Fleet, WorkersError

WORKERS = ["--workers", "ray", "--num-workers"]
HEAVY = """
import os
open(os.environ["STRIDERL_TEST_DATASET"]).close()
from striderl.envs.tasks import make
def heavy_env(num_envs, **settings):
    return make("cartpole", num_envs=num_envs)
"""


def killed(nodes: worker_kills.Nodes, root: Path) -> dict:
    """Kill a node, then workers, in a synchronous run; once more with the planted bug."""
    words = ["--seed", "0", *WORKERS, "2"]
    wanted = worker_kills.trained(root, "quiet", words, "synchronous", 2, None)
    counts = worker_kills.Counts()
    killer = worker_kills.Killer(nodes, counts, random.Random(0), node_share=1.0)
    found = worker_kills.trained(root, "killed", words, "synchronous", 1, killer)
    plant = worker_kills.Killer(nodes, worker_kills.Counts(), random.Random(0), node_share=0.0)
    remote_collector.Fleet = worker_kills.ForgetfulFleet
    forgot = worker_kills.trained(root, "planted", words, "synchronous", 2, plant)
    remote_collector.Fleet = Fleet
    return {
        "nodes": counts.nodes,
        "joined": counts.joined,
        "replaced": counts.replaced,
        "workers": plant.counts.workers,
        "same": tree.equal(found, wanted),
        "planted_same": tree.equal(forgot, wanted),
    }


def refused(task: str) -> str:
    """Return the error of workers on every node."""
    config = overridden(recipe("cartpole", "ppo"), [*worker_kills.SETTINGS, *WORKERS, "3"], prog="test")
    try:
        fleet = Fleet(replace(config, env=replace(config.env, task=task)))
    except WorkersError as error:
        return str(error)
    try:
        fleet.check_all()
    except WorkersError as error:
        return str(error)
    finally:
        fleet.close()
    return "no error"


def full() -> str:
    """Return the error of weights that do not fit into the object store; the disk counts as full."""
    config = overridden(recipe("cartpole", "ppo"), [*worker_kills.SETTINGS, *WORKERS, "1"], prog="test")
    fleet = Fleet(config)
    try:
        kept = [fleet.publish(SimpleNamespace(policy=torch.nn.Linear(4000, 4000))) for _ in range(4)]
    except WorkersError as error:
        return str(error)
    finally:
        fleet.close()
    return f"no error, {len(kept)} kept"


def main() -> None:
    """Run everything and print it."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        (root / "heavy_parts.py").write_text(HEAVY)
        (root / "dataset").write_text("")
        shutil.copytree(Path(striderl.__file__).parent, root / "other" / "striderl")
        (root / "other" / "striderl" / "__init__.py").open("a").write("\n# another version\n")
        os.environ["STRIDERL_TEST_DATASET"] = str(root / "dataset")
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), before])
        # a disk that is more than 1 % full counts as full: nothing can be moved out of the object store
        nodes = worker_kills.Nodes(2, cores=1, local_fs_capacity_threshold=0.01, local_fs_monitor_interval_ms=100)
        try:
            found = {**killed(nodes, root), "full": full()}
            path = os.pathsep.join([str(root / "other"), os.environ["PYTHONPATH"]])
            lacking = {"STRIDERL_TEST_DATASET": str(root / "nowhere"), "PYTHONPATH": path}
            nodes.join(env_vars=lacking)
            found["dataset"] = refused("heavy_parts:heavy_env")
            found["imported_here"] = "heavy_parts" in sys.modules
            found["code"] = refused("cartpole")
        finally:
            nodes.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
