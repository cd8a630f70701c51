"""Compile beside training: functions run as they are written until a fixed iteration, compiled from then on.

    iteration      0        1        2  …                            k
    functions      as written ───────────────────────────────────────┤ compiled programs
    this process            trace ──graph──▶ cache or worker          │ load (milliseconds), compare, switch
    worker process                           export, AOTInductor ─▶ file

A compiled program differs from the function as written by rounding, so the iteration of the switch decides the bits of
a run. By default it follows from the config alone: a program that is not ready by then is waited for, and one that was
compiled by an earlier run is not used before. The set of programs and whether the switch is over are part of the
trainer's state, so a resumed run goes on with the same functions.

Programs are cached in `$XDG_CACHE_HOME/striderl/programs` (`~/.cache` where the variable is not set), under a digest of
the graph, the layout of its inputs, torch, the CPU and the number of threads. The worker is a process of its own, with
one thread and a lower priority; it ends with this process. Without a compiler, or when compiling fails, functions stay
as they are written, and one line in the log names the reason.

On a GPU there is no worker. Iteration 0 runs as written, so that it is over soon; from iteration 1 on functions are
captured as CUDA graphs as they are written, which takes a second or two, and at the switch they are compiled and
captured again, which takes 20 to 40 seconds once. `modes.Graphed` reads `Switch.captures` and `Switch.on`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from striderl.execution.interrupts import check_interrupt

_log = logging.getLogger(__name__)

Compiled = Callable[[list[Tensor]], Sequence[Tensor]]
"""A loaded program: inputs → outputs."""

MOST_PROGRAMS = 12
"""A run whose functions want more programs than this is not switched: its inputs have a new layout each time."""
TOO_SHORT = "the run is too short to gain from compiling"
"""Why a short run is not switched; one that is resumed with more steps may be."""
_PAUSE = 0.05


class FallbackError(RuntimeError):
    """Something runs slower than was asked for, and `strict` forbids it; the message names the reason and the fix."""


def fall_back(what: str, reason: object, fix: str, *, strict: bool) -> None:
    """Warn once that something runs slower than it should, with the reason and the fix; raise it where strict."""
    text = f"{what}: {str(reason).partition(chr(10))[0]}. {fix}"
    if strict:
        raise FallbackError(text) from (reason if isinstance(reason, Exception) else None)
    _log.warning("%s; with strict=True it raises instead", text)


class Switch:
    """Decides when the functions of a run change to compiled programs, and has them compiled until then."""

    def __init__(
        self,
        at: int | None,
        folder: Path | None = None,
        everywhere: Callable[[bool], bool] | None = None,
        *,
        beside: bool = True,
    ) -> None:
        """Switch before iteration `at`, or with None as soon as all programs are ready; `folder` is that of programs.

        Nothing is traced in the first iteration, and nothing is started before something was traced. Of processes that
        learn together `everywhere` returns whether all of them say yes: they switch together, or not at all.
        beside: programs are compiled beside training, from functions that are traced for it; on a GPU they are not.
        """
        self.at = at
        self.chosen = ""
        """The setting that decides; a resumed run with another one decides anew."""
        self._everywhere = everywhere or (lambda flag: flag)
        self._beside = beside
        self.strict = False
        """Raise where a function cannot be compiled."""
        self.on = False
        """Whether compiled programs are in use."""
        self.captures = False
        """Whether CUDA graphs are captured: not before iteration 1, which follows from its number alone."""
        self.given_up = ""
        """Why there will be no switch; empty while there may be one."""
        self.keys: set[str] = set()
        """The graphs that are compiled at the switch."""
        self._iteration = 0
        self._tracing = False
        self._too_many = False
        self._requests: dict[str, ProgramRequest] = {}
        self._folder = folder
        self._worker: CompileWorker | None = None

    @property
    def idle(self) -> bool:
        """Whether functions run as written and none is traced."""
        return bool(self.given_up) or not (self.on or (self._tracing and not self._too_many))

    def request(self, graph: fx.GraphModule, inputs: Sequence[Tensor]) -> ProgramRequest:
        """Ask for a program of a traced graph, for inputs like these."""
        key = graph_key(graph, inputs)
        if not self.on:
            self.keys.add(key)
            self._too_many = self._too_many or len(self.keys) > MOST_PROGRAMS
        if key not in self._requests:
            self._requests[key] = ProgramRequest(self, key)
            if key in self.keys and not self._too_many:
                self._requests[key].start(graph, inputs)
        return self._requests[key]

    def before_iteration(self, iteration: int) -> None:
        """Trace after the first iteration, and switch when it is time; called between two iterations."""
        self.set_iteration(iteration)
        if self.on or self.given_up:
            return
        if self._beside and not self._everywhere(not self._too_many):
            self._give_up(f"its functions have inputs in more than {MOST_PROGRAMS} layouts")
            return
        if self._is_due(iteration):
            for each in self._requests.values():
                each.wait()
            self.on = True
            _log.info("from iteration %d on, functions are compiled", iteration)
        self._tracing = iteration >= 1

    def _is_due(self, iteration: int) -> bool:
        if not self._beside:
            return self.at is not None and iteration >= self.at
        if self.at is None:
            return self._everywhere(bool(self._requests) and all(each.is_done for each in self._requests.values()))
        return iteration >= self.at and self._everywhere(bool(self.keys))  # what was not traced cannot be compiled

    def set_iteration(self, iteration: int) -> None:
        """Set the number of the iteration under way, also of a run that is resumed in the middle of one."""
        self._iteration, self.captures = iteration, iteration >= 1

    def worker(self) -> CompileWorker:
        """Return the process that compiles; it is started when it is first needed."""
        if self._worker is None:
            self._worker = CompileWorker()
        return self._worker

    @property
    def folder(self) -> Path:
        """The folder of compiled programs."""
        if self._folder is None:
            self._folder = cache_folder()
        return self._folder

    def _give_up(self, reason: str) -> None:
        self.given_up = reason
        fall_back(
            "the run stays eager", reason, "Keep minibatches at one size, or choose mode='eager'", strict=self.strict
        )

    def state_dict(self) -> dict[str, Any]:
        """Return when the switch comes or whether it is over, and what is compiled."""
        keys = sorted(self.keys)
        return {"at": self.at, "on": self.on, "given_up": self.given_up, "keys": keys, "chosen": self.chosen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the programs of a saved run; one whose settings were changed decides anew, from here on."""
        longer = state["given_up"] == TOO_SHORT and not self.given_up
        if state.get("chosen", self.chosen) != self.chosen or longer:
            if self.chosen == "auto" and self.at is not None:
                self.at += self._iteration
            return
        self.at = None if state["at"] is None else int(state["at"])
        self.on, self.given_up = bool(state["on"]), str(state["given_up"])
        self.keys = {str(key) for key in state["keys"]}
        self._requests.clear()

    def close(self) -> None:
        """End the worker; calling it twice is fine."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


class ProgramRequest:
    """One graph on its way to a compiled program."""

    def __init__(self, switch: Switch, key: str) -> None:
        """Request nothing yet."""
        self._switch, self._key = switch, key
        self._path: Path | None = None
        self._error: Path | None = None
        self._program: Compiled | None = None
        self._failed = False

    @property
    def is_wanted(self) -> bool:
        """Whether the program is one of those that are used after the switch."""
        return self._key in self._switch.keys

    def start(self, graph: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
        """Look for the program among those of earlier runs, or have it compiled."""
        self._path = self._switch.folder / f"{program_key(self._key)}.pt2"
        if not self._path.exists():
            try:
                self._error = self._switch.worker().compile(graph, inputs, self._path)
            except Exception as error:  # noqa: BLE001  a graph that cannot be sent, or a process that cannot be started
                self._fail(error)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to wait for."""
        if self._failed or self._path is None or self._path.exists():
            return True
        return self._error is not None and (self._error.exists() or not self._switch.worker().alive)

    def wait(self) -> None:
        """Wait for the compiler; an interrupt ends it."""
        while not self.is_done:
            check_interrupt()
            time.sleep(_PAUSE)

    def program(self) -> Compiled | None:
        """Return the program after the switch; None before it, and where there is none."""
        if not self._switch.on or self._failed or self._key not in self._switch.keys:
            return None
        if self._program is None:
            self.wait()
            self._program = self._loaded()
        return self._program

    def _loaded(self) -> Compiled | None:
        assert self._path is not None
        if not self._path.exists():
            reason = self._error.read_text() if self._error is not None and self._error.exists() else ""
            self._fail(reason or "the compiler's process has ended")
            return None
        try:
            return load_program(self._path)
        except Exception as error:  # noqa: BLE001  a damaged file raises many kinds
            self._path.unlink(missing_ok=True)
            self._fail(error)
            return None

    def _fail(self, reason: object) -> None:
        self._failed = True
        fall_back(
            "a function stays as it is written, several times slower, compiling it failed",
            reason,
            "Mend what it names (a C++ compiler such as g++ is needed), or choose switch_at='never'",
            strict=self._switch.strict,
        )


def load_program(path: Path) -> Compiled:
    """Load a compiled program."""
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    run: Compiled = loader.run
    return run


# -- names of programs -------------------------------------------------------------------------------------------------


def graph_key(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> str:
    """Return a digest of a graph and the layout of its inputs, the same in every process."""
    layouts = [(str(each.dtype), tuple(each.shape), tuple(each.stride())) for each in inputs]
    return hashlib.sha256(f"{graph.code}\n{layouts}".encode()).hexdigest()


def program_key(key: str) -> str:
    """Return a digest of a graph and of everything else that a compiled program depends on."""
    facts = (
        key,
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        platform.machine(),
        sys.version_info[:2],
        torch.get_num_threads(),
        _FORMAT,
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


_FORMAT = 1
"""Counts up when compiler options change."""


def cache_folder() -> Path:
    """Return the user's folder of programs, or a temporary one where others could write into it."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        path = (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "striderl" / "programs"
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = path.stat()
        if found.st_uid == os.geteuid() and not found.st_mode & 0o022 and os.access(path, os.W_OK):
            return path
        _log.warning("%s can be changed by other users; programs are not kept", path)
    except (OSError, RuntimeError) as error:
        _log.debug("programs are not kept: %s", error)
    return Path(tempfile.mkdtemp(prefix="striderl_programs_"))


# -- the process that compiles -----------------------------------------------------------------------------------------


class CompileWorker:
    """A process that turns graphs into files, one after the other; see `compile_worker.py`."""

    def __init__(self) -> None:
        """Start it."""
        self._folder = tempfile.TemporaryDirectory(prefix="striderl_compile_")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
        # the compiler names its files by what is in them, and packs them up: two workers with the same graph would have
        # the same files, and one may pack what the other has just opened to write
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(Path(self._folder.name) / "inductor")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "striderl.execution.compile_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,  # Ctrl-C is for the trainer; the worker's compilers end with its group
        )
        self._count = 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def compile(self, graph: fx.GraphModule, inputs: Sequence[Tensor], path: Path) -> Path:
        """Have a graph compiled into a file; return the file that an error would be written to."""
        self._count += 1
        request = Path(self._folder.name) / f"{self._count}.request"
        layouts = [(each.shape, each.stride(), each.dtype) for each in inputs]
        request.write_bytes(pickle.dumps((graph, layouts, torch.get_num_threads())))
        assert self._process.stdin is not None
        self._process.stdin.write(f"{request}\t{path}\n")
        self._process.stdin.flush()
        return request.with_suffix(".error")

    def close(self) -> None:
        """End the process and its compilers."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()  # the worker ends with its input
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


# -- the switch of the run that is being built -------------------------------------------------------------------------


_current: ContextVar[Switch | None] = ContextVar("striderl_switch", default=None)


def current_switch() -> Switch | None:
    """Return the switch of the run that is being built, if it has one."""
    return _current.get()


@contextlib.contextmanager
def built_with(switch: Switch | None) -> Iterator[None]:
    """Give a switch to the updaters and loops that are made in here with mode 'auto'."""
    token = _current.set(switch)
    try:
        yield
    finally:
        _current.reset(token)
