"""Run a program as ranks that share one start of the interpreter: `python forked_ranks.py COUNT PROGRAM.py ...`.

The program is imported here, with torch and all that it needs, and each rank is a fork that runs it as `__main__`. Two
seconds of imports are then paid once, not by every rank. Nothing of torch runs before the forks but the imports.
"""

import ctypes
import importlib
import os
import runpy
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    count, program = int(sys.argv[1]), Path(sys.argv[2])
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(program.parent))
    importlib.import_module(program.stem)
    ranks = []
    for rank in range(count):
        ranks.append(os.fork())
        if not ranks[-1]:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # ranks end with this process
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            runpy.run_path(str(program), run_name="__main__")
            sys.exit()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    sys.exit(f"the ranks ended with {codes}" if any(codes) else 0)
