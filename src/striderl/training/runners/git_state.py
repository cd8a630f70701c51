"""The state of the code a run was started from: commit, what differs from it, and which files git does not know."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterable
from pathlib import Path

from striderl.checkpoint.safe_files import write_text

_log = logging.getLogger(__name__)

_SECONDS = 30


def repository_of(path: str | Path) -> Path | None:
    """Return the top folder of the git repository that a file or folder is in, or None."""
    path = Path(path).resolve()
    folder = path if path.is_dir() else path.parent
    found = _git(folder, "rev-parse", "--show-toplevel")
    return None if found is None else Path(found.strip())


def store_code_state(log_dir: str | Path, repositories: Iterable[str | Path]) -> list[Path]:
    """Write log_dir/git/<name>.diff for every repository and return these files.

    Each begins with the commit and the status, then follows the difference to the commit, which `git apply` takes.
    """
    written: list[Path] = []
    folder = Path(log_dir) / "git"
    for given in dict.fromkeys(Path(each) for each in repositories):
        top = repository_of(given)
        commit = None if top is None else _git(top, "rev-parse", "HEAD")
        if top is None or commit is None:
            _log.warning("%s is in no git repository with a commit; its code is not stored with the run", given)
            continue
        status, difference = _git(top, "status", "--porcelain") or "", _git(top, "diff", "--binary", "HEAD") or ""
        head = [f"# commit {commit.strip()}", *(f"# {line}" for line in status.splitlines())]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{top.name}.diff"
        number = 2
        while path in written:  # two repositories of the same name
            path, number = folder / f"{top.name}_{number}.diff", number + 1
        write_text(path, "\n".join([*head, difference]))
        written.append(path)
    return written


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git answers, or None when it refuses or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.warning("git could not be asked: %s", error)
        return None
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else None
