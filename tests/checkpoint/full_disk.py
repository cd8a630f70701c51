"""Too little room: limits on the size of a file, small file systems, and read-only ones.

Run as a program inside `unshare -m` it mounts small file systems that nobody else sees.
"""

from __future__ import annotations

import logging
import resource
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from failing_ops import leftovers
from store_cases import Campaign, run_state, same

from striderl.checkpoint.errors import CheckpointError
from striderl.checkpoint.store import CheckpointStore


def limit_file_sizes(folder: Path, count: int) -> Campaign:
    """Save under `count` limits on the size of a file, each over a good checkpoint."""
    campaign = Campaign("file size limits")
    logging.getLogger("striderl.checkpoint").setLevel(logging.ERROR)
    store = CheckpointStore(folder, keep_last=1)
    store.save(run_state(1), step=1)
    largest = max(path.stat().st_size for path in folder.rglob("*.*") if path.is_file())
    for number in range(count):
        size = (number * largest) // count
        campaign.faults += 1
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            store.save(run_state(2), step=2, best=True)
            campaign.bad.append(f"limit {size}: saved {largest} bytes")
        except CheckpointError as error:
            campaign.note("refused")
            if "File too large" not in str(error):
                campaign.bad.append(f"limit {size}: {error}")
        except Exception as error:  # noqa: BLE001  (any other error is what this looks for)
            campaign.bad.append(f"limit {size}: {type(error).__name__}: {error}")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        found = store.load()
        if found.step != 1 or not same(found.state, run_state(1)):
            campaign.bad.append(f"limit {size}: the good checkpoint was lost")
        campaign.bad += [f"limit {size}: {line}" for line in leftovers(folder, store)]
    logging.getLogger("striderl.checkpoint").setLevel(logging.NOTSET)
    return campaign


def mounts_refused() -> str:
    """Return why no file system can be mounted here, or '' where it can."""
    if shutil.which("unshare") is None:
        return "there is no program 'unshare'"
    probe = "mount -t tmpfs -o size=64k tmpfs /mnt"
    done = subprocess.run(["unshare", "-m", "sh", "-c", probe], capture_output=True, text=True, timeout=100)
    return done.stderr.strip() if done.returncode else ""


def mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, timeout=100)


def fill_small_file_systems(folder: Path, count: int) -> Campaign:
    """Save until the disk is full, on file systems of different sizes; then make room and save again."""
    campaign = Campaign("small file systems")
    for number in range(count):
        # room for one or two checkpoints of about 1.1 MB, never for three
        size = 1400 + number * 60
        mount(folder, f"size={size}k")
        store = CheckpointStore(folder / "checkpoints", keep_last=3)
        saved = 0
        try:
            for step in range(1, 6):
                store.save(run_state(step, width=330), step=step)
                saved = step
            campaign.bad.append(f"{size}k: five checkpoints of over a megabyte fit")
        except CheckpointError as error:
            campaign.faults += 1
            campaign.note(f"full after {saved}")
            if "No space left" not in str(error):
                campaign.bad.append(f"{size}k: {error}")
        found = store.load()
        if found.step != saved or not same(found.state, run_state(saved, width=330)):
            campaign.bad.append(f"{size}k: step {saved} was saved, {found.step} is loaded")
        campaign.bad += [f"{size}k: {line}" for line in leftovers(store.directory, store)]
        subprocess.run(["umount", str(folder)], check=True, timeout=100)
    return campaign


def read_only(folder: Path) -> Campaign:
    """Save into a file system that has become read-only, and into an empty one."""
    campaign = Campaign("read-only")
    mount(folder, "size=4m")
    store = CheckpointStore(folder / "checkpoints")
    store.save(run_state(1), step=1)
    mount(folder, "remount,ro")
    for where in (store, CheckpointStore(folder / "new" / "checkpoints")):
        campaign.faults += 1
        try:
            where.save(run_state(2), step=2)
            campaign.bad.append("saved on a read-only file system")
        except CheckpointError as error:
            if "Read-only file system" not in str(error):
                campaign.bad.append(str(error))
    if not same(store.load().state, run_state(1)):
        campaign.bad.append("the checkpoint cannot be loaded from a read-only file system")
    subprocess.run(["umount", str(folder)], check=True, timeout=100)
    return campaign


if __name__ == "__main__":
    logging.getLogger("striderl.checkpoint").setLevel(logging.ERROR)
    place = Path(sys.argv[1]) / "mounted"
    place.mkdir()
    found = [fill_small_file_systems(place, 20), read_only(place)]
    for campaign in found:
        print(campaign, campaign.bad[:5])
    place.rmdir()
    sys.exit(any(campaign.bad for campaign in found))
