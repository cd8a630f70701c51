"""Kill writers of trajectories with kill -9 at random moments and check that nothing that was written is lost.

    python tools/trajectory_faults.py                 100 kills (about ten seconds)
    python tools/trajectory_faults.py --kills 1000 --seed 3

All writers use one folder; each hands its bytes over a few at a time, so that most kills land inside of a trajectory.
After every kill a reader that was there before must find each trajectory that was announced, bit for bit, and must not
raise. Exits 1 when a promise is broken, or when no kill landed inside of a trajectory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

HARNESS = Path(__file__).resolve().parent.parent / "tests" / "datasets"
sys.path.insert(0, str(HARNESS))

from trajectory_cases import kill_many  # noqa: E402


def main() -> int:
    """Kill, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="how many writers are killed")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = kill_many(Path(folder), options.kills, options.seed)
    print(
        f"{report.kills} writers killed in {time.monotonic() - started:.0f} s, {report.torn} inside of a trajectory; "
        f"{report.written} trajectories written and read back bit for bit, {len(report.broken)} broken promises"
    )
    for line in report.broken:
        print(f"  {line}")
    return 1 if report.broken or not report.torn else 0


if __name__ == "__main__":
    sys.exit(main())
