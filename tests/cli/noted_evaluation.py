"""Run `striderl WORDS` and make a file when its first evaluation has begun: noted_evaluation.py FILE WORDS …"""

from __future__ import annotations

import sys
from pathlib import Path

from striderl.cli.main import main
from striderl.training.callbacks.evaluate import Evaluate

play = Evaluate.play


if __name__ == "__main__":
    Evaluate.play = lambda *given, **named: Path(sys.argv[1]).touch() or play(*given, **named)
    sys.exit(main(sys.argv[2:]))
