"""The commit of the code that is running, for the description of a bundle."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def current_commit(folder: str | Path = ".") -> str:
    """Return the commit of the git checkout that a folder lies in; '' where there is none, or no git."""
    git = shutil.which("git")
    if git is None:
        return ""
    try:
        found = subprocess.run(
            [git, "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=10.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):  # a git that hangs or cannot start must not stop an export
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
