"""`python -m striderl`: the same as the command `striderl`."""

from __future__ import annotations

import sys

from striderl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
