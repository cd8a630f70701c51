"""Run `striderl WORDS` as one of several processes of which rank 1 is killed once: killed_rank.py ONCE WORDS …

It dies after five iterations, without a farewell; the file ONCE shows that it has happened.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from striderl.cli.main import main
from striderl.training.callbacks.ranks import KeepTogether

together = KeepTogether.on_iteration


def on_iteration(self, record, run):
    once = Path(sys.argv[1])
    if record.iteration == 5 and os.environ["RANK"] == "1" and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return together(self, record, run)


if __name__ == "__main__":
    KeepTogether.on_iteration = on_iteration
    sys.exit(main(sys.argv[2:]))
