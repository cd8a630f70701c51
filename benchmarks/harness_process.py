"""One contender, one process: so that no library changes a global setting under another's feet.

    harness                               contender's own interpreter
       │  ── {"prepare": [table, row]} ──▶   import the library, build what the row needs, warm up
       │  ◀── {"status": "ready"} ────────
       │  ── {"sample": true} ───────────▶   time one block
       │  ◀── {"cpu": …, "wall": …} ──────      (other contenders have their turn, then again)

All contenders live at the same time and are asked in turn, a few milliseconds each, so that whatever else the machine
does hits all of them alike; those that are not asked wait and use no CPU. A child ends when its input does.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import select
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import IO, Any

from harness_clock import Sample, peak_memory, reset_peak_memory

Prepare = Callable[[str, str, str], AbstractContextManager[Callable[[], Sample]]]
"""(contender, table, row) -> a context that yields a sampler and cleans up afterwards."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""One thread for torch and for the linear algebra under numpy; envs have a setting of their own."""


class UnavailableError(Exception):
    """A contender cannot do a row; the message says why and is printed in the table in place of a number."""


class ContenderFailedError(Exception):
    """A contender's process ended, raised or did not answer."""


# -- in the harness ----------------------------------------------------------------------------------------------------


class ContenderProcess:
    """The harness's end: a fresh interpreter that serves one contender."""

    def __init__(self, command: Sequence[str], deadline: float) -> None:
        self._deadline = deadline
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, **ONE_THREAD},
        )
        hello = self._receive()
        self.versions: dict[str, str] = hello["versions"]
        self.missing: list[str] = hello["missing"]
        """Packages that the contender needs and its interpreter does not have."""

    def prepare(self, table: str, row: str) -> str:
        """Get ready for a row; return '' when ready, else why the row cannot be done."""
        self._send({"prepare": [table, row]})
        return str(self._receive()["reason"])

    def sample(self) -> Sample:
        """Time one block of the prepared row."""
        self._send({"sample": True})
        answer = self._receive()
        return Sample(**answer)

    def close(self) -> None:
        """End the process; it closes its envs first."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._said.close()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContenderFailedError(f"its process has ended\n{self._last_words()}") from None

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], self._deadline)
        if not ready:
            raise ContenderFailedError(f"no answer within {self._deadline:.0f} s\n{self._last_words()}")
        line = self._process.stdout.readline()
        if not line:
            raise ContenderFailedError(f"its process has ended\n{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderFailedError(answer["error"])
        return answer

    def _last_words(self) -> str:
        """Return the end of what the process printed."""
        self._said.seek(0)
        return self._said.read().decode(errors="replace")[-4000:]


# -- in the contender's process ----------------------------------------------------------------------------------------


def serve(contender: str, needs: Sequence[str], also_report: Sequence[str], prepare: Prepare) -> None:
    """Answer the harness until it closes the line."""
    answers = _take_over_stdout()
    installed = {name: _version(name) for name in dict.fromkeys([*needs, *also_report])}
    hello = {
        "versions": {name: version for name, version in installed.items() if version},
        "missing": [name for name in needs if not installed[name]],
    }
    _answer(answers, hello)
    with ExitStack() as open_row:
        take: Callable[[], Sample] | None = None
        counted = False
        for message in _messages():
            try:
                if "prepare" in message:
                    open_row.close()
                    counted = reset_peak_memory()
                    table, row = message["prepare"]
                    take = open_row.enter_context(prepare(contender, table, row))
                    _answer(answers, {"reason": ""})
                else:
                    assert take is not None, "asked for a sample before a row was prepared"
                    _answer(answers, take()._replace(peak=peak_memory() if counted else 0.0)._asdict())
            except UnavailableError as unavailable:
                _answer(answers, {"reason": str(unavailable)})
            except Exception:  # noqa: BLE001  (whatever a library raises spoils one row, not the others)
                _answer(answers, {"error": traceback.format_exc()})


def _take_over_stdout() -> IO[bytes]:
    """Keep the line to the harness for ourselves; what libraries print goes to stderr."""
    sys.stdout.flush()
    line = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return line


def _messages() -> Iterator[dict[str, Any]]:
    for line in sys.stdin.buffer:
        yield json.loads(line)


def _answer(line: IO[bytes], message: dict[str, Any]) -> None:
    line.write(json.dumps(message).encode() + b"\n")
    line.flush()


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
