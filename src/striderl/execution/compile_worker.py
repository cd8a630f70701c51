"""The process that compiles graphs for `background.py`: `python -m striderl.execution.compile_worker`.

stdin   request file <tab> program file        one line per graph; the end of the input ends the process
request pickle: graph, layouts of its inputs, number of threads
program an AOTInductor package, renamed into place when it is complete; `<request>.error` where that fails

Processes that train side by side, ranks or seeds, want the same programs. One worker compiles each, the others wait for
it: a lock beside the file is held meanwhile, which the system lets go of when its worker ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

_PRIORITY = 5
"""Nicer than the trainer; at 19 a worker would starve on a busy machine."""
_MOST_FILES = 256
"""How many programs are kept."""


def compile_graph(request: Path, path: Path) -> None:
    """Compile one request into a file."""
    import torch
    import torch._higher_order_ops.triton_kernel_wrap  # graphs name it, and do not import it

    graph, layouts, num_threads = pickle.loads(request.read_bytes())  # noqa: S301  written by the trainer, in its own folder
    torch.set_num_threads(num_threads)  # programs have the number of their threads in them
    inputs = [example(*layout) for layout in layouts]
    with torch.no_grad():
        program: Any = torch.export.export(graph, tuple(inputs), strict=False)
        options = {"cpp.vec_isa_ok": True, "size_asserts": False, "alignment_asserts": False}
        unfinished = path.with_name(f"{path.stem}.{os.getpid()}.pt2")
        try:
            torch._inductor.aoti_compile_and_package(program, package_path=str(unfinished), inductor_configs=options)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    drop_oldest(path.parent)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Keep other workers from compiling the same program; yields whether it is still to be compiled."""
    lock = path.with_suffix(".lock")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield not path.exists()
        finally:
            lock.unlink(missing_ok=True)


def example(shape: tuple[int, ...], stride: tuple[int, ...], dtype: Any) -> Any:
    """Return a tensor of this layout."""
    import torch

    return torch.empty_strided(shape, stride, dtype=dtype).zero_()


def drop_oldest(folder: Path) -> None:
    """Delete programs beyond the limit, the oldest first."""
    files = sorted(folder.glob("*.pt2"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[_MOST_FILES:]:
        file.unlink(missing_ok=True)


def main() -> None:
    """Compile what comes in, until the input ends."""
    os.nice(_PRIORITY)
    requests: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            requests.put(line.rstrip("\n"))
        os.killpg(os.getpgrp(), signal.SIGKILL)  # the trainer is gone: no compiler outlives it

    threading.Thread(target=read, daemon=True).start()
    while True:
        request, _, path = requests.get().partition("\t")
        try:
            with alone(Path(path)) as missing:
                if missing:
                    compile_graph(Path(request), Path(path))
        except BaseException as error:  # noqa: BLE001  whatever it is, the trainer logs it and goes on
            problem = Path(request).with_suffix(".unfinished")
            problem.write_text(f"{type(error).__name__}: {error}")
            problem.replace(Path(request).with_suffix(".error"))


if __name__ == "__main__":
    main()
