"""Run all faults against the checkpoint store, print what was injected and how it ended.

    python tools/checkpoint_faults.py                        everything (about two minutes)
    python tools/checkpoint_faults.py --json faults.json     and the numbers as JSON
    python tools/checkpoint_faults.py --plant-bug checksum   shows that the harness notices a broken store (exits 1)

    row                  faults                                               promise
    bit flips …          flips, cuts, zeroed pages, files of another one      found and named; the previous one is used
    failing operations   the nth operation of a save or load fails, every n   the newest whole one loads, no leftovers
    crash states         power lost at any operation, unsynced writes gone    what was acknowledged loads
    file size limits …   RLIMIT_FSIZE, small and read-only file systems       told, nothing lost, no leftovers
    hostile files        pickles, forged headers, links, pipes, bombs         refused within 5 s and 1 GiB, nothing runs
    layout mutations     swapped, renamed, rescaled observations and actions  refused by name

Random faults come from --seed. Exits 1 when a promise is broken or a row injected nothing. What this cannot show: a
disk that lies about a sync, and network file systems.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

HARNESS = Path(__file__).resolve().parent.parent / "tests" / "checkpoint"
sys.path.insert(0, str(HARNESS))

from crash_replay import ForgetfulOps, RecordingOps, replay  # noqa: E402
from damage import cut_files, flip_bits, swap_members, zero_pages  # noqa: E402
from failing_ops import fail_every_operation, fail_every_read  # noqa: E402
from full_disk import limit_file_sizes, mounts_refused  # noqa: E402
from hostile_campaign import read_corpus  # noqa: E402
from layout_mutations import mutate_layouts  # noqa: E402
from store_cases import Campaign  # noqa: E402

from striderl.checkpoint import folder as reader  # noqa: E402


def small_file_systems(folder: Path) -> Campaign:
    """Run the mounts in a namespace of their own; where they are not allowed, say why and count nothing."""
    campaign = Campaign("small and read-only file systems")
    reason = mounts_refused()
    if reason:
        campaign.notes[f"not run: {reason}"] = 1
        return campaign
    folder.mkdir(parents=True)
    command = ["unshare", "-m", sys.executable, str(HARNESS / "full_disk.py"), str(folder)]
    environment = {**os.environ, "TMPDIR": "/tmp"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    campaign.faults = 22
    if done.returncode:
        campaign.bad.append(done.stdout[-500:] + done.stderr[-500:])
    return campaign


def rows(seed: int, ops_class: type[RecordingOps]) -> dict[str, Callable[[Path], Campaign]]:
    """Return the rows of the table, each a function of an empty folder."""
    return {
        "flips": lambda folder: flip_bits(folder, 6000, seed=seed),
        "cuts": lambda folder: cut_files(folder, 1000, seed=seed),
        "pages": lambda folder: zero_pages(folder, 100),
        "swaps": swap_members,
        "save": fail_every_operation,
        "load": fail_every_read,
        "crashes": lambda folder: replay(folder, 4000, ops_class=ops_class, seed=seed),
        "sizes": lambda folder: limit_file_sizes(folder, 200),
        "mounts": small_file_systems,
        "hostile": lambda folder: read_corpus(folder)[0],
        "layouts": lambda folder: mutate_layouts(),
    }


def main() -> int:
    """Run the rows and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument(
        "--only", nargs="*", default=[], help="names of rows: flips cuts pages swaps save load crashes …"
    )
    parser.add_argument("--plant-bug", choices=("checksum", "sync"), default="", help="break the store on purpose")
    arguments = parser.parse_args()
    table = rows(arguments.seed, ForgetfulOps if arguments.plant_bug == "sync" else RecordingOps)
    unknown = [name for name in arguments.only if name not in table]
    if unknown:
        parser.error(f"no rows {unknown}; there are {', '.join(table)}")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    results, broken = [], 0
    print(f"seed {arguments.seed}\n{'row':<34}{'faults':>8}{'broken':>8}{'seconds':>9}  how it ended")
    with ExitStack() as stack:
        if arguments.plant_bug == "checksum":
            stack.enter_context(mock.patch.object(reader, "_check_member", lambda file, path, member: None))
        for name, run in table.items():
            if arguments.only and name not in arguments.only:
                continue
            with tempfile.TemporaryDirectory(dir=memory, prefix="striderl_faults_") as folder:
                start = time.perf_counter()
                campaign = run(Path(folder) / "run")
                seconds = time.perf_counter() - start
            skipped = any(note.startswith("not run") for note in campaign.notes)
            broken += bool(campaign.bad) or (campaign.faults == 0 and not skipped)
            ended = ", ".join(f"{what} {count}" for what, count in sorted(campaign.notes.items()))
            print(f"{campaign.name:<34}{campaign.faults:>8}{len(campaign.bad):>8}{seconds:>9.1f}  {ended}", flush=True)
            for line in campaign.bad[:3]:
                print(f"    {line[:300]}")
            results.append(
                {
                    "row": campaign.name,
                    "faults": campaign.faults,
                    "broken": len(campaign.bad),
                    "seconds": round(seconds, 1),
                    "ended": campaign.notes,
                }
            )
    print(f"{sum(row['faults'] for row in results)} faults, {sum(row['broken'] for row in results)} broken promises")
    if arguments.json:
        arguments.json.write_text(json.dumps({"seed": arguments.seed, "rows": results}, indent=2) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
