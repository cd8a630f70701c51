"""Disturb training runs in every way that the project promises to withstand, print what was done and how it ended.

    python tools/run_faults.py                      everything (about ten minutes on two cores)
    python tools/run_faults.py --small              a tenth of it
    python tools/run_faults.py --only kill poison   some rows
    python tools/run_faults.py --plant-bug noise    shows that the harness notices a broken library (exits 1)

    row        faults                                                     promise
    kill       kill -9 at random moments, a third of them aimed at saves  resumed to the same bits, no save is lost
    signals    SIGTERM and SIGINT in every phase, some of them twice      saved and out within ten seconds, exit code
                                                                          128 + signal, resumed to the same bits
    sizes      a limit on the size of files in the middle of a run        training goes on, one warning per cause,
    disks      small file systems                                         the last good checkpoint loads
    read-only  the run's folder becomes read-only, or is deleted          the same; a deleted folder is made again
    poison     NaN, Inf and 1e30 in observations, final observations,     weights, optimisers, normalisers equal those
               rewards, gradients, parameters and moments                 of a run without that sample; counted, named

Runs: PPO on CartPole, PPO with LSTM, normaliser and RND on Pendulum, DQN with prioritised replay on CartPole, SAC on
Pendulum (poison only). Random faults come from --seed. Exits 1 when a promise is broken or a row injected nothing. What
this cannot show: power failures, network file systems, GPUs, several processes that learn together.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

HARNESS = Path(__file__).resolve().parent.parent / "tests" / "training"
sys.path.insert(0, str(HARNESS))

import torch  # noqa: E402
from killed_runs import BUGS, Reference, kill_runs, signal_runs  # noqa: E402
from lost_disks import deleted, limit_sizes, mounts_refused, read_only, small_disks  # noqa: E402
from poison import KINDS, PLACES, cases, denormal  # noqa: E402

PPO_PHASES = ["start-up", "warmup", "collect", "prepare", "update", "absorb", "consume", "evaluate", "save"]
REPLAY_PHASES = ["start-up", "warmup", "interact", "consume", "evaluate", "save"]
RUNS = {"cartpole": PPO_PHASES, "pendulum_lstm": PPO_PHASES, "dqn": REPLAY_PHASES}


@dataclass
class Row:
    """What one row of the table did."""

    faults: int = 0
    broken: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, faults: int, broken: list[str], notes: dict[str, int] | None = None) -> None:
        """Count what a part of the row did."""
        self.faults += faults
        self.broken += broken
        self.notes.update(notes or {})


def kill_row(folder: Path, scale: float, seed: int, aimed: float = 1 / 3) -> Row:
    """Kill 100 processes, over three kinds of runs."""
    row = Row()
    for number, kind in enumerate(RUNS):
        reference = Reference(kind, folder)
        row.add(*kill_runs(reference, max(3, round((34, 33, 33)[number] * scale)), seed + number, aimed_share=aimed))
    return row


def signal_row(folder: Path, scale: float, seed: int) -> Row:
    """Send 100 signals in every phase and ten double ones."""
    row = Row()
    for number, (kind, phases) in enumerate(RUNS.items()):
        reference = Reference(kind, folder)
        for turn in range(max(1, round(4 * scale))):
            row.add(*signal_runs(reference, phases, seed + 100 * number + turn))
        row.add(*signal_runs(reference, phases[2:6], seed + number, double=True))
    return row


def size_row(folder: Path, scale: float, seed: int) -> Row:
    """Limit the size of files to 40 sizes."""
    return Row(*limit_sizes(folder, max(4, round(40 * scale))))


def disk_row(folder: Path, scale: float, seed: int) -> Row:
    """Train on 20 small file systems."""
    reason = mounts_refused()
    if reason:
        return Row(notes=Counter({f"not run: {reason}": 1}))
    return Row(*small_disks(folder, max(3, round(20 * scale))))


def read_only_row(folder: Path, scale: float, seed: int) -> Row:
    """Take the folder away at different times."""
    row, reason = Row(), mounts_refused()
    for at in range(1, max(2, round(7 * scale)) + 1):
        places = [folder / f"deleted_{at}", folder / f"read_only_{at}"]
        for place in places:
            place.mkdir()
        row.add(1, deleted(places[0], at), {"deleted": 1})
        if not reason:
            row.add(1, read_only(places[1], at), {"read-only": 1})
    if reason:
        row.notes[f"read-only not run: {reason}"] = 1
    return row


def poison_row(folder: Path, scale: float, seed: int) -> Row:
    """Inject at least 500 bad numbers, and some that are tiny but good."""
    row = Row()
    for name, results in cases(seed, round(520 * scale)):
        for wrong in results:
            row.add(1, [wrong] if wrong else [], {name.split()[0]: 1})
    for kind in KINDS[: max(1, round(4 * scale))]:
        for place in PLACES[:3]:
            wrong = denormal(kind, place, seed % 4, 9)
            row.add(1, [wrong] if wrong else [], {"denormal": 1})
    return row


ROWS: dict[str, Callable[[Path, float, int], Row]] = {
    "kill": kill_row,
    "signals": signal_row,
    "sizes": size_row,
    "disks": disk_row,
    "read-only": read_only_row,
    "poison": poison_row,
}


def main() -> int:
    """Run the rows and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="run a tenth")
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument("--only", nargs="*", default=[], help=f"names of rows: {' '.join(ROWS)}")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--plant-bug", choices=tuple(BUGS), default="", help="break the library on purpose")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.only if name not in ROWS]
    if unknown:
        parser.error(f"no rows {unknown}; there are {', '.join(ROWS)}")
    torch.set_num_threads(1)  # a process with threads cannot be forked
    logging.disable(logging.WARNING)
    table, scale = dict(ROWS), 0.1 if arguments.small else 1.0
    if arguments.plant_bug:
        scale = 0.1
        table = {"kill": lambda folder, scale, seed: kill_row(folder, scale, seed, aimed=1.0)}
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    results, failed = [], False
    print(f"seed {arguments.seed}\n{'row':<11}{'faults':>7}{'broken':>8}{'seconds':>9}  where")
    for name, run in table.items():
        if arguments.only and name not in arguments.only:
            continue
        start = time.perf_counter()
        with (
            tempfile.TemporaryDirectory(dir=memory, prefix="striderl_faults_") as folder,
            BUGS[arguments.plant_bug]() if arguments.plant_bug else nullcontext(),
        ):
            row = run(Path(folder), scale, arguments.seed)
        seconds = time.perf_counter() - start
        not_run = any(note.startswith("not run") for note in row.notes)
        failed |= bool(row.broken) or (not row.faults and not not_run)
        where = ", ".join(f"{note} {count}" for note, count in sorted(row.notes.items()))
        print(f"{name:<11}{row.faults:>7}{len(row.broken):>8}{seconds:>9.0f}  {where}", flush=True)
        for line in row.broken[:3]:
            print(f"    BROKEN {line[:300]}")
        results.append({"row": name, "faults": row.faults, "broken": row.broken, "where": dict(row.notes)})
    total = sum(len(result["broken"]) for result in results)
    print(f"{sum(result['faults'] for result in results)} faults, {total} broken promises")
    if arguments.json:
        arguments.json.write_text(json.dumps({"seed": arguments.seed, "rows": results}, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
