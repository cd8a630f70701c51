"""The rows of the fault matrix: each injects one kind of fault and tallies how the back end took it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "envs"))

from faulty_envs import HANGS, RAISES, Fault, FaultyFactory

from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.workers.errors import EnvCloseWarning, EnvError, EnvRaised, EnvTimeout, EnvWorkerDied
from striderl.envs.workers.pool import WorkerConfig, WorkerPool

METHODS = ("fork", "forkserver", "spawn")
SEED = 77
NUM_ENVS = 4
CHOSEN = 2
TRIAL_LIMIT = 20.0
DEADLINE = 8.0
PATIENCE = 1.0
"""Every limit and every deadline below is multiplied by it; more than 1 on a machine that has other work."""
_PR_SET_CHILD_SUBREAPER = 36


class StuckError(Exception):
    """A trial did not come to an end; raised by the harness's own alarm."""


@dataclass
class Row:
    """The tally of one kind of fault."""

    name: str
    limit: float
    """Seconds after which a report counts as late."""
    faults: int = 0
    slowest: float = 0.0
    slowest_close: float = 0.0
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limit *= PATIENCE

    def check(self, promise: bool, what: str) -> None:
        """Note a broken promise."""
        if not promise:
            self.broken.append(what)

    def line(self) -> str:
        """Return the row of the table."""
        return (
            f"{self.name:<13} {self.faults:>6} {len(self.broken):>7} {self.slowest:>12.2f} {self.limit:>8.2f} "
            f"{self.slowest_close:>13.2f}"
        )


@contextmanager
def alarm(row: Row, what: str) -> Iterator[None]:
    """Bound a trial, so that a hang of the back end is a broken promise and not a hang of the harness."""

    def ring(*_: object) -> None:
        raise StuckError(what)

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, TRIAL_LIMIT * PATIENCE)
    try:
        yield
    except StuckError:
        row.check(False, f"{what}: hung for {TRIAL_LIMIT * PATIENCE} s")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)


def build(fault: Fault | None, method: str, **settings: object) -> GymnasiumEnv:
    """Build four envs in two workers, the third env faulty."""
    config = WorkerConfig(num_workers=2, start_method=method, **{"deadline": DEADLINE * PATIENCE, **settings})
    return GymnasiumEnv([FaultyFactory(index, CHOSEN, fault) for index in range(NUM_ENVS)], workers=config)


def close(env: GymnasiumEnv | None, row: Row, what: str) -> str:
    """Close twice, check the time and that no worker is left, and return the warning's text."""
    if env is None:
        return ""
    pool = env.backend
    pids = pool.pids if isinstance(pool, WorkerPool) else []
    before = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env.close()
        env.close()
    passed = time.monotonic() - before
    row.slowest_close = max(row.slowest_close, passed)
    row.check(passed <= 5.0 * PATIENCE, f"{what}: close took {passed:.1f} s")
    row.check(not [pid for pid in pids if is_running(pid)], f"{what}: a worker survived close")
    return "\n".join(str(entry.message) for entry in caught if entry.category is EnvCloseWarning)


def is_running(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def act(env: GymnasiumEnv, phase: str) -> list[torch.Tensor]:
    """Do what brings a fault of this phase about, and return the valid flags of the steps."""
    env.reset(SEED)
    flags = []
    for _ in range(6):
        if phase == "idle" and len(flags) == 3:
            time.sleep(0.3)
        flags.append(env.step(torch.zeros(NUM_ENVS, dtype=torch.int64)).info["valid"])
    if phase == "reset":
        env.reset_envs(torch.tensor([False, False, True, False]))
        flags.append(env.step(torch.zeros(NUM_ENVS, dtype=torch.int64)).info["valid"])
    if phase == "render":
        env.render(CHOSEN)
    if phase == "get_attr":
        env.get_attr("secret")
    return flags


# -- rows ----------------------------------------------------------------------------------------------------------


def deaths(cases: list[tuple[str, str, str]]) -> Row:
    """Kill workers; the error must name them."""
    row = Row("deaths", 2.0)
    for method, kind, phase in cases:
        what = f"death {method}/{kind}/{phase}"
        with tempfile.TemporaryDirectory() as folder, alarm(row, what):
            stamp, env, error = Path(folder) / "stamp", None, None
            try:
                env = build(Fault(kind=kind, phase=phase, stamp=str(stamp)), method)
                act(env, phase)
            except EnvError as found:
                error, arrived = found, time.monotonic()
            close(env, row, what)
            row.check(stamp.exists(), f"{what}: no fault happened")
            row.faults += stamp.exists()
            if phase == "close":
                row.check(error is None, f"{what}: {error}")
                continue
            row.check(isinstance(error, EnvWorkerDied), f"{what}: found {type(error).__name__}, wanted EnvWorkerDied")
            if error is None or not stamp.exists():
                continue
            late = arrived - float(stamp.read_text())
            # An idle worker can only be missed by the next call, which this harness makes 0.3 s later.
            row.slowest = max(row.slowest, late)
            row.check(late <= row.limit, f"{what}: named after {late:.1f} s")
            row.check(names_all(str(error), kind, phase), f"{what}: message {error}")
    return row


def names_all(message: str, kind: str, phase: str) -> bool:
    """Tell whether a message names env, signal or exit code, seed and step."""
    how = {"sigkill": "SIGKILL", "sigsegv": "SIGSEGV", "os_exit": "exited with code 7"}[kind]
    seed = "seed None" if phase == "init" else f"seed {SEED}"
    step = {"init": "step 0", "reset": "step 6", "step": "step 3", "idle": "step"}[phase]
    return all(part in message for part in (f"env{'s' * (phase == 'idle')} {CHOSEN}", how, seed, step))


def restarts(cases: list[tuple[str, str, str]]) -> Row:
    """Kill or hang workers that are to be restarted; the lost step must be marked, and only that one."""
    row = Row("restarts", 10.0)
    for method, kind, phase in cases:
        what = f"restart {method}/{kind}/{phase}"
        with tempfile.TemporaryDirectory() as folder, alarm(row, what):
            stamp, env = Path(folder) / "stamp", None
            before = time.monotonic()
            try:
                fault = Fault(kind=kind, phase=phase, stamp=str(stamp))
                settings = {"deadline": PATIENCE, "start_deadline": 4.0 * PATIENCE} if kind in HANGS else {}
                env = build(fault, method, on_failure="restart", **settings)
                flags = torch.stack(act(env, phase))
                row.check(env.restarts == 1, f"{what}: {env.restarts} restarts")
                lost = (~flags).sum(dim=0).tolist()
                wanted = [0, 0, 0, 0] if phase == "init" else [0, 0, 1, 1]
                row.check(lost == wanted, f"{what}: invalid rows {lost}, wanted {wanted}")
            except EnvError as error:
                row.check(False, f"{what}: {type(error).__name__}: {error}")
            row.slowest = max(row.slowest, time.monotonic() - before)
            row.faults += stamp.exists()
            close(env, row, what)
    return row


def hangs(cases: list[tuple[str, str, str]]) -> Row:
    """Block envs for ever; the deadline must end it. Two at a time, each in a process of its own, since both wait."""
    total = Row("hangs", 1.0 + 2.0)
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        for row in pool.map(hang, cases):
            total.faults += row.faults
            total.slowest = max(total.slowest, row.slowest)
            total.slowest_close = max(total.slowest_close, row.slowest_close)
            total.broken += row.broken
    return total


def hang(case: tuple[str, str, str]) -> Row:
    """Block an env for ever."""
    row, (method, kind, phase) = Row("hangs", 1.0 + 2.0), case
    what = f"hang {method}/{kind}/{phase}"
    with tempfile.TemporaryDirectory() as folder, alarm(row, what):
        stamp, env, error = Path(folder) / "stamp", None, None
        try:
            fault = Fault(kind=kind, phase=phase, stamp=str(stamp))
            env = build(fault, method, deadline=PATIENCE, start_deadline=4.0 * PATIENCE if phase == "init" else 60.0)
            act(env, phase)
        except EnvError as found:
            error, arrived = found, time.monotonic()
        close(env, row, what)
        row.faults += stamp.exists()
        row.check(isinstance(error, EnvTimeout), f"{what}: found {type(error).__name__}, wanted EnvTimeout")
        if error is None or not stamp.exists():
            return row
        late = arrived - float(stamp.read_text()) - (3.0 * PATIENCE if phase == "init" else 0.0)
        row.slowest = max(row.slowest, late)
        row.check(late <= row.limit, f"{what}: reported after {late:.1f} s")
        function = {
            "sleep": "hang_in_sleep",
            "gil": "hang_in_c_code",
            "lock": "hang_in_lock",
            "stop": "unavailable",
        }
        row.check(function[kind] in str(error), f"{what}: no stack in {error}")
        row.check(f"env {CHOSEN} " in str(error), f"{what}: env not named in {error}")
    return row


def exceptions(cases: list[tuple[str, str, str]]) -> Row:
    """Raise in env code; the text must arrive."""
    row = Row("exceptions", 5.0)
    names = dict(zip(RAISES, ("PlantedError", "KeyboardInterrupt", "SystemExit", "UnpicklableError", "PlantedError")))
    for method, kind, phase in cases:
        what = f"exception {method}/{kind}/{phase}"
        with tempfile.TemporaryDirectory() as folder, alarm(row, what):
            stamp, env, text = Path(folder) / "stamp", None, ""
            try:
                env = build(Fault(kind=kind, phase=phase, stamp=str(stamp)), method)
                act(env, phase)
            except EnvError as error:
                arrived, text = time.monotonic(), str(error)
                row.check(isinstance(error, EnvRaised), f"{what}: found {type(error).__name__}, wanted EnvRaised")
                late = arrived - float(stamp.read_text())
                row.slowest = max(row.slowest, late)
                row.check(late <= row.limit, f"{what}: reported after {late:.1f} s")
            text += close(env, row, what)
            row.faults += stamp.exists()
            row.check(names[kind] in text and "go_wrong" in text and "planted" in text, f"{what}: text {text[:200]!r}")
            row.check(len(text) < 100_000, f"{what}: a text of {len(text)} characters")
    return row


def slow_learner(num_trials: int) -> Row:
    """Take longer than the deadline between and within steps; nothing may be raised."""
    row = Row("slow learner", 0.0)
    for trial in range(num_trials):
        method, what = METHODS[trial % 3], f"slow learner {trial}"
        with alarm(row, what):
            env = build(None, method, deadline=0.5 * PATIENCE)
            try:
                env.reset(SEED)
                env.step_async(torch.zeros(NUM_ENVS, dtype=torch.int64))
                time.sleep(0.6 * PATIENCE)
                env.step_wait()
            except EnvError as error:
                row.check(False, f"{what}: {error}")
            row.faults += 1
            close(env, row, what)
    return row


STATES = ("starting", "starting", "stepping", "sleep", "gil", "stop", "closing")


def trainer_kills(cases: list[tuple[str, str]], dice: random.Random) -> Row:
    """Kill -9 the trainer; three seconds later nothing of it may be left."""
    row = Row("trainer kills", 3.0)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for method, state in cases:
        what = f"trainer kill {method}/{state}"
        with tempfile.TemporaryDirectory() as folder, alarm(row, what):
            signals, pid = start_trainer(method, state, folder)
            if state == "starting":
                time.sleep(dice.random() * 0.4)
            else:
                os.read(signals, 1)
                time.sleep(0.1 + 0.2 * dice.random())
            os.close(signals)
            files = named_files(descendants(os.getpid()), folder)
            os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            os.waitpid(pid, 0)
            row.faults += 1
            while (left := descendants(os.getpid())) and time.monotonic() < killed + row.limit:
                time.sleep(0.01)
            row.slowest = max(row.slowest, time.monotonic() - killed)
            row.check(not left, f"{what}: {len(left)} descendants left")
            row.check(not files, f"{what}: named shared memory or temporary files {files}")
            row.check(not os.listdir(folder), f"{what}: files left: {os.listdir(folder)}")
            for orphan in left:
                os.kill(orphan, signal.SIGKILL)
    return row


def start_trainer(method: str, state: str, folder: str) -> tuple[int, int]:
    """Fork a trainer with its own temporary directory; it says over a pipe when it has reached a state."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        os.environ["TMPDIR"], tempfile.tempdir = folder, folder
        kind = state if state in HANGS else "sleep"
        phase = "close" if state == "closing" else "step" if state in HANGS else "never"
        env = build(Fault(kind=kind, phase=phase, at=1), method, deadline=1e9)
        env.reset(SEED)
        os.write(writer, b"r")
        if state == "closing":
            env.close()
        while True:
            env.step(torch.zeros(NUM_ENVS, dtype=torch.int64))
    finally:
        os._exit(1)


def descendants(root: int) -> list[int]:
    """Return the running processes below one, and reap those that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and is_running(int(entry)):
            try:
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found, level = [], [root]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found += level
    return found


def named_files(pids: list[int], folder: str) -> list[str]:
    """Return files in shared memory or in the temporary directory that these processes have mapped or open."""
    found = set()
    for pid in pids:
        try:
            paths = [line.split(maxsplit=5)[-1].strip() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
            paths += [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        found.update(path for path in paths if path.startswith(("/dev/shm/", folder)))
    return sorted(found)
