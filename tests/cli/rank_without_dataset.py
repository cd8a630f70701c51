"""Run `striderl WORDS` as one of several processes; rank 1 finds no folder called 'gone', as on another node."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from striderl.cli.main import main

is_dir = Path.is_dir


def is_dir_here(self: Path, **options: bool) -> bool:
    return self.name != "gone" and is_dir(self, **options)


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        Path.is_dir = is_dir_here
    sys.exit(main(sys.argv[1:]))
