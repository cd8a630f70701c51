"""Kill workers and nodes of a Ray cluster at random while runs train; count, and compare with runs nothing happened to.

    python tools/worker_kills.py --kills 100                        needs: pip install 'striderl[ray]'
    python tools/worker_kills.py --kills 6 --runs 1 --planted       with a planted bug, which must be found

The cluster is `ray.cluster_utils.Cluster`: a head without cores, where the learner is, and nodes of two cores, all of
them processes of this machine. In random iterations the process of a random worker or the raylet of a random node gets
SIGKILL, before, in or after a rollout; a new node joins for each that is lost. The runs take turns:

    synchronous     ppo     the learned weights equal those of the same run without kills, bit for bit
    asynchronous    impala  every batch arrives, no rollout is older than the limit, no update is skipped
    replay          dqn     every step is in the replay, in the columns of its worker

A run that ends early, hangs, or breaks one of these is lost. With --planted a new worker forgets the state of the dead
one, which the comparison of bits must find.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
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
    *("--env.num-envs", "6", "--plan.num-steps-per-env", "16", "--stop.metric", "", "--logging.console", "off"),
    *("--evaluation.num-episodes", "2", "--evaluation.every", "20", "--checkpoints.every", "20"),
]
SCHEDULES = {
    "synchronous": ("ppo", []),
    "asynchronous": ("impala", ["--workers.schedule", "asynchronous"]),
    "replay": (
        "dqn",
        [
            *("--workers.schedule", "asynchronous", "--plan.train-every", "16", "--plan.learning-starts", "192"),
            *("--plan.buffer-size", "60000", "--plan.batch-size", "32"),
        ],
    ),
}
MAX_STALENESS = 8


class ForgetfulFleet(Fleet):
    """The planted bug: a worker that is replaced does not get the state of the dead one."""

    def _replace_or_raise(self, number: int, error: Exception) -> None:
        self._states[number] = None
        super()._replace_or_raise(number, error)


class Nodes:
    """A Ray cluster on this machine: a head without cores for the learner, and nodes that are killed and join."""

    def __init__(self, count: int, *, cores: int = 2, memory: int = 100_000_000, **settings: Any) -> None:
        """Start the head, with these settings of Ray's, and nodes with so many bytes to store objects; connect."""
        import ray
        from ray.cluster_utils import Cluster

        self.ray, self.cores, self.memory, self.num_joined = ray, cores, memory, 0
        # jsonschema, which Ray imports, would import this for two seconds in every process, where it is installed
        self._light = tempfile.TemporaryDirectory(prefix="striderl-ray-")
        Path(self._light.name, "rfc3987_syntax.py").write_text("raise ImportError\n")
        self._path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([self._light.name, self._path or ""]).rstrip(os.pathsep)
        self.cluster = Cluster(shutdown_at_exit=False)  # else a node cannot be added from a thread
        quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}  # to notice a dead node
        self._add(num_cpus=0, include_dashboard=False, _system_config={**quick, **settings})
        self.alive = [self._add() for _ in range(count)]
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")

    def _add(self, **other: Any) -> Any:
        """Add a node; again where its parts did not start within Ray's 15 seconds, as on busy cores."""
        settings = {"num_cpus": self.cores, "object_store_memory": self.memory, **other}
        for _ in range(4):
            try:
                return self.cluster.add_node(**settings)
            except Exception as error:  # noqa: BLE001 - Ray raises a plain one
                failure = error
        raise failure

    def join(self, **other: Any) -> Any:
        """Add a node to the cluster."""
        node = self._add(**other)
        self.alive.append(node)
        self.num_joined += 1
        return node

    def kill(self, node: Any) -> None:
        """Kill a node's raylet; its workers end with it."""
        self.alive.remove(node)
        os.kill(raylet(node), signal.SIGKILL)

    def close(self) -> None:
        """End everything that was started here."""
        self.ray.shutdown()
        self.cluster.shutdown()
        self._light.cleanup()
        if self._path is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = self._path


def raylet(node: Any) -> int:
    """Return the process id of a node's raylet."""
    return int(node.all_processes["raylet"][0].process.pid)


@dataclass
class Counts:
    """What happened, over all runs."""

    workers: int = 0
    """Workers that were killed by themselves."""
    nodes: int = 0
    """Nodes that were killed."""
    joined: int = 0
    """Nodes that joined after the start."""
    replaced: int = 0
    """Workers that were started in the place of dead ones."""
    runs: int = 0
    """Runs that were trained."""
    lost: list[str] = field(default_factory=list)
    """What went wrong in the runs that did not end as they must."""
    compared: int = 0
    """Runs whose weights were compared with a run without kills."""
    different: int = 0
    """Those of them that differ."""


class Killer:
    """Kills at random while a run advances."""

    def __init__(self, nodes: Nodes, counts: Counts, chance: random.Random, node_share: float) -> None:
        """Kill nodes in this share of all kills, workers otherwise."""
        self.nodes, self.counts, self.chance, self.node_share = nodes, counts, chance, node_share
        self._joining = ThreadPoolExecutor(1)
        self._joins: list[Future[Any]] = []

    def strike(self, fleet: Any) -> threading.Timer | None:
        """Kill a worker or a node soon; returns the timer, or None where everything is being replaced already."""
        pids = {int(worker["pid"]) for worker in fleet.workers if "pid" in worker}
        living = [pid for pid in sorted(pids) if alive(pid)]
        if not living:
            return None
        delay = self.chance.choice((0.0, 0.005, 0.02, 0.1))
        whole = [node for node in self.nodes.alive if len(self.nodes.alive) > 1]
        if whole and self.chance.random() < self.node_share:
            node = self.chance.choice(whole)
            self.counts.nodes += 1
            self._joins.append(self._joining.submit(self.nodes.join))
            timer = threading.Timer(delay, self.nodes.kill, (node,))
        else:
            pid = self.chance.choice(living)
            self.counts.workers += 1
            timer = threading.Timer(delay, os.kill, (pid, signal.SIGKILL))
        timer.start()
        return timer

    def settle(self) -> None:
        """Wait for the nodes that join."""
        for each in self._joins:
            each.result()
        self.counts.joined += len(self._joins)
        self._joins = []


def alive(pid: int) -> bool:
    """Return whether there is such a process that has not ended."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def trained(root: Path, name: str, words: list[str], schedule: str, kills: int, killer: Killer | None) -> Any:
    """Train, with so many kills at random iterations; returns the saved state. Raises where the run breaks a rule."""
    algorithm, own = SCHEDULES[schedule]
    total = 96 * max(12, 3 * kills)
    words = [*SETTINGS, *own, *words, "--plan.total-steps", str(total), "--workers.max-staleness", str(MAX_STALENESS)]
    config = overridden(recipe("cartpole", algorithm), words, prog="worker_kills")
    folder = new_run_folder(config, root, name)
    run = Run(config, folder)
    fleet, trainer = run.env.fleet, run.trainer  # type: ignore[attr-defined]
    due = sorted(killer.chance.uniform(0.05, 0.9) * total for _ in range(kills)) if killer is not None else []
    try:
        while not trainer.finished:
            timer = None
            if killer is not None and due and trainer.phase == trainer.loop.phases[0] and trainer.env_steps >= due[0]:
                timer = killer.strike(fleet)
                due = due[1:] if timer is not None else due
            trainer.advance()
            if timer is not None:
                timer.join()
    finally:
        if killer is not None:
            killer.settle()
            killer.counts.replaced += fleet.num_replaced
    outcome = run.drive()
    state = CheckpointStore(folder.checkpoints).load("last").state
    check(outcome, state, total, folder.path / "metrics.jsonl", schedule)
    return state["algorithm"]


def check(outcome: Any, state: Any, total: int, log: Path, schedule: str) -> None:
    """Raise unless the run ended, with all of its steps and no update left out."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    if outcome.exit_code != 0:
        raise RuntimeError(f"ended with {outcome.exit_code}: {outcome.reason}")
    if state["env_steps"] != total or rows[-1]["step"] != total:
        raise RuntimeError(f"{state['env_steps']} steps of {total}")
    steps = [row["step"] for row in rows]
    if steps != sorted(set(steps)):
        raise RuntimeError("a row of the log is there twice")
    if any(row.get("faults/skipped_updates", 0) for row in rows):
        raise RuntimeError("an update was skipped")
    if max(row.get("collect/staleness_max", 0) for row in rows) > MAX_STALENESS:
        raise RuntimeError("a rollout was older than the limit")
    if schedule == "replay" and int(state["replay"]["totals"].sum()) != total:
        raise RuntimeError(f"{int(state['replay']['totals'].sum())} steps in the replay of {total}")


def hangs(number: int, frame: Any) -> None:
    """Raise where a run has taken too long."""
    raise TimeoutError("the run hangs")


def campaign(options: argparse.Namespace, nodes: Nodes, root: Path) -> Counts:
    """Train the runs with kills; print a line for each."""
    counts, chance = Counts(), random.Random(options.seed)
    killer = Killer(nodes, counts, chance, options.node_share)
    for number in range(options.runs):
        schedule = options.schedules[number % len(options.schedules)]
        kills = options.kills // options.runs + (number < options.kills % options.runs)
        words = ["--seed", str(number), "--workers", "ray", "--num-workers", str(options.workers)]
        before, started = (counts.workers, counts.nodes, counts.replaced), time.monotonic()
        signal.alarm(options.limit)  # a run that hangs is lost
        counts.runs += 1
        verdict = "ended as it must"
        try:
            found = trained(root, f"killed_{number}", words, schedule, kills, killer)
            if schedule == "synchronous":
                signal.alarm(options.limit)
                wanted = trained(root, f"quiet_{number}", words, schedule, kills, None)
                same = tree.equal(found, wanted)
                counts.compared, counts.different = counts.compared + 1, counts.different + (not same)
                verdict = "the same bits as without kills" if same else "OTHER weights than without kills"
        except (RuntimeError, ValueError, OSError) as error:
            counts.lost.append(f"run {number}, {schedule}: {error}")
            verdict = f"LOST: {error}"
        signal.alarm(0)
        workers, gone, replaced = counts.workers - before[0], counts.nodes - before[1], counts.replaced - before[2]
        text = f"run {number}, {schedule}: {workers} workers and {gone} nodes killed, {replaced} workers replaced"
        print(f"{text}, {verdict}, {time.monotonic() - started:.0f} s", flush=True)
    return counts


def main() -> int:
    """Run the campaign; the exit code is 0 when everything held, or with --planted when the bug was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=12, help="how many workers and nodes are killed, over all runs")
    parser.add_argument("--runs", type=int, default=3, help="how many runs there are; they take turns in the schedules")
    parser.add_argument("--schedules", nargs="+", choices=tuple(SCHEDULES), default=list(SCHEDULES))
    parser.add_argument("--workers", type=int, default=3, help="how many workers a run has; divides 6")
    parser.add_argument("--nodes", type=int, default=3, help="how many nodes of two cores there are beside the head")
    parser.add_argument("--node-share", type=float, default=0.2, help="how many of the kills are of whole nodes")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    parser.add_argument("--limit", type=int, default=900, help="a run that takes more seconds hangs")
    parser.add_argument("--planted", action="store_true", help="plant a bug, which must be found")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    if options.planted:
        from striderl.training.experiment import remote_collector as collector

        collector.Fleet = ForgetfulFleet  # type: ignore[misc]
    signal.signal(signal.SIGALRM, hangs)
    started = time.monotonic()
    nodes = Nodes(options.nodes)
    print(f"{options.nodes} nodes and a head after {time.monotonic() - started:.0f} s", flush=True)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            counts = campaign(options, nodes, Path(scratch))
    finally:
        nodes.close()
    kills = counts.workers + counts.nodes
    text = f"{kills} kills ({counts.workers} workers, {counts.nodes} nodes), {counts.joined} nodes joined"
    print(f"{text}, {counts.replaced} workers replaced")
    print(f"{len(counts.lost)} of {counts.runs} runs lost, {counts.different} of {counts.compared} compared differ")
    if options.json:
        told = {"date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(), "command": " ".join(sys.argv)}
        options.json.write_text(json.dumps({**told, "seconds": time.monotonic() - started, **vars(counts)}, indent=1))
    if options.planted:
        print("the planted bug was found" if counts.different else "the planted bug was NOT found")
        return 0 if counts.different else 1
    held = not counts.lost and not counts.different and kills >= options.kills
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
