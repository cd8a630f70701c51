"""Runs in forked processes that are killed, told to stop, or left without a disk; torch is loaded once for all.

    parent ──fork──▶ child: Run(...).restore(), drive()        Board: shared memory, phase and last acknowledged save
       │  kill, signal ─────▶│
       └─ fork again: resume …  until the run has ended; its state must be that of a run which nobody disturbed

The board is written by the child and read by the parent after the child is gone, so it tells where a signal hit.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from poison import digest
from run_cases import final_state, folder_at, take_signals, tiny

from striderl.algorithms.terms.rnd import RNDConfig
from striderl.checkpoint.store import CheckpointStore
from striderl.collect.group import EnvGroup
from striderl.envs.workers.parent_watchdog import hold_on_to_parent
from striderl.training.callbacks.chain import CallbackList
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.loops import off_policy as off_policy  # loaded here once, not in every child
from striderl.training.signals import StopSignals

PHASES = ("start-up", "warmup", "collect", "prepare", "update", "absorb", "interact", "consume", "evaluate", "save")
"""Where a run can be; 'interact' is what learners from replay do, the four before it are PPO's."""

_PHASE, _ACKNOWLEDGED, _RESTORED, _LISTENING = 0, 8, 16, 24
"""Places on the board: an index into PHASES, the env steps of the last finished save, those of the restore, and 1 as
soon as signals are caught."""


class Board:
    """A few numbers that a child leaves for its parent, whatever becomes of it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 64)

    def put(self, place: int, number: int) -> None:
        struct.pack_into("<q", self._memory, place, number)

    def get(self, place: int) -> int:
        found: int = struct.unpack_from("<q", self._memory, place)[0]
        return found

    @property
    def phase(self) -> str:
        return PHASES[self.get(_PHASE)]

    @property
    def acknowledged(self) -> int:
        return self.get(_ACKNOWLEDGED)

    @property
    def restored(self) -> int:
        return self.get(_RESTORED)


def instrument(run: Run, board: Board) -> None:
    """Let a run write on the board where it is."""
    trainer, store, evaluation = run.trainer, run.store, run.evaluation
    work, save, play = trainer.loop.run, store.save, evaluation.on_iteration

    def during(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **settings: Any) -> Any:
            before = board.get(_PHASE)
            board.put(_PHASE, PHASES.index(phase))
            found = function(*arguments, **settings)
            board.put(_PHASE, before)
            return found

        return noted

    def working(phase: str, iteration: int) -> None:
        board.put(_PHASE, PHASES.index(phase))
        work(phase, iteration)
        board.put(_PHASE, PHASES.index("consume"))

    def saving(state: Any, *, step: int, **settings: Any) -> Any:
        path = during("save", save)(state, step=step, **settings)
        board.put(_ACKNOWLEDGED, max(step, board.acknowledged))
        return path

    trainer.loop.run = working  # type: ignore[method-assign]
    store.save = saving  # type: ignore[method-assign]
    evaluation.on_iteration = during("evaluate", play)  # type: ignore[method-assign]


def drive(config: Any, path: Path, board: Board, prepare: Callable[[Run], None] = lambda run: None) -> int:
    """Be one process of a run: build, restore, train."""
    board.put(_PHASE, 0)
    with StopSignals() as signals:
        board.put(_LISTENING, 1)
        run = Run(config, folder_at(path, config), signals=signals)
        instrument(run, board)
        run.restore()
        board.put(_RESTORED, run.trainer.env_steps)
        prepare(run)
        code = run.drive().exit_code
        signals.leave()  # the run is over: a second signal would meet the handlers from before, and end this process
        return code


def fork(work: Callable[[], int]) -> int:
    """Start a process that does the work and leaves with its exit code; nothing of the parent's is cleaned up in it."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        gc.freeze()  # what earlier tests left is never finalised here: it may wait for threads that a fork has not got
        hold_on_to_parent(parent)  # a test that times out leaves nobody behind who would keep the suite from ending
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        torch.set_num_threads(1)
        take_signals()
        code = work()
    except BaseException:  # noqa: BLE001  (whatever it is, a child must not run the parent's code)
        traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
    os._exit(code)


def wait(child: int, seconds: float) -> int | None:
    """Return the exit code of a child, negative for a signal; None when it is still there after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


class Reference:
    """A run that nobody disturbs: how long it takes, and what it ends with."""

    def __init__(self, kind: str, folder: Path, iterations: int = 8, **changes: Any) -> None:
        self.config = config_of(kind, iterations, **changes)
        path, started = folder / f"whole_{kind}", time.monotonic()
        child = fork(lambda: drive(self.config, path, Board()))
        code = wait(child, 100)
        if code != 0:
            raise RuntimeError(f"the undisturbed run of {kind} ended with {code}")
        self.kind, self.folder, self.seconds = kind, folder, time.monotonic() - started
        self.state = state_digest(path)
        self.rows = log_steps(path)
        self.count = 0

    def new_path(self) -> Path:
        self.count += 1
        return self.folder / f"{self.kind}_{self.count}"

    def compare(self, path: Path) -> list[str]:
        """Return what differs in a run that has ended."""
        wrong = [] if state_digest(path) == self.state else ["the final state differs from the undisturbed run's"]
        found = log_steps(path)
        if found != self.rows:
            wrong.append(f"the log has the steps {found}, wanted {self.rows}")
        left = [name for name in os.listdir(RunFolder(path).checkpoints) if name.startswith(".")]
        return wrong + [f"{name} is left over" for name in left]


def config_of(kind: str, iterations: int, **changes: Any) -> Any:
    """A tiny run that saves and evaluates often; with an LSTM also RND, which learns beside the policy."""
    config = tiny(kind, iterations)
    changes.setdefault("num_threads", 1)
    changes.setdefault("env", replace(config.env, settings={"max_episode_length": 20}))
    changes.setdefault("evaluation", replace(config.evaluation, every=3))
    changes.setdefault("checkpoints", replace(config.checkpoints, every=1))
    if kind == "pendulum_lstm":
        changes.setdefault("terms", {"rnd": RNDConfig()})
    if kind in ("cartpole", "pendulum_lstm"):
        changes.setdefault("plan", replace(config.plan, warmup_steps=16))
    return replace(config, **changes)


def state_digest(path: Path) -> str:
    """Return the SHA-256 of everything that was saved last, but for the clock and how often a replay was saved."""
    return digest(final_state(path), but=("generation",))


def log_steps(path: Path) -> list[int]:
    lines = RunFolder(path).csv.read_text().splitlines()
    return [int(line.partition(",")[0]) for line in lines[1:]]


# -- kill -9 -----------------------------------------------------------------------------------------------------------


def kill_runs(
    reference: Reference, count: int, seed: int, *, kills_per_run: int = 6, aimed_share: float = 1 / 3
) -> tuple[int, list[str], dict[str, int]]:
    """Kill processes of runs at `count` random moments; return (kills, what is wrong, how many hit each phase).

    A share of the kills waits for a save and strikes at a random moment inside it; the others strike at any time.
    """
    dice, kills, wrong, hit = random.Random(seed), 0, [], dict[str, int]()
    while kills < count:
        path, board, strikes = reference.new_path(), Board(), 0
        while True:
            before = board.acknowledged
            board.put(_PHASE, 0)  # the child may be gone before it can say that it is starting
            child = fork(lambda path=path, board=board: drive(reference.config, path, board))
            aimed = dice.random() < aimed_share
            if strikes == kills_per_run or kills == count:
                code = wait(child, 100)
            else:
                code = _strike(child, board, dice, reference.seconds, aimed)
            # what was acknowledged before is never lost: the resumed process begins there or later
            if board.restored < before and not (code == -signal.SIGKILL and board.phase == "start-up"):
                wrong.append(f"seed {seed}, kill {kills}: saved at step {before}, resumed at {board.restored}")
            if code != -signal.SIGKILL:
                break
            strikes, kills = strikes + 1, kills + 1
            hit[board.phase] = hit.get(board.phase, 0) + 1
        if code != 0:
            return (
                kills,
                [*wrong, f"seed {seed}: a resumed run ended with {code}"],
                hit,
            )  # it would do so again and again
        wrong += [f"seed {seed}, {path.name}: {what}" for what in reference.compare(path)]
        shutil.rmtree(path)
    return kills, wrong, hit


def _strike(child: int, board: Board, dice: random.Random, seconds: float, aimed: bool) -> int:
    """Kill a child at a random moment, or inside a save; return its exit code, which may be 0 if it was faster."""
    if not aimed:
        code = wait(child, dice.uniform(0.0, 1.1 * seconds))
    else:
        saves, code = dice.randrange(1, 6), None
        while saves and code is None:
            code = _wait_for(child, lambda: board.phase == "save", 30)
            saves -= 1
            if saves and code is None:
                code = _wait_for(child, lambda: board.phase != "save", 30)
        if code is None:
            code = wait(child, dice.uniform(0.0, 0.006))
    if code is None:
        kill(child)
        return -signal.SIGKILL
    return code


def _wait_for(child: int, condition: Callable[[], bool], seconds: float) -> int | None:
    """Wait until something is so; return the exit code if the child ends before."""
    deadline = time.monotonic() + seconds
    while not condition():
        code = wait(child, 0.0)
        if code is not None:
            return code
        if time.monotonic() > deadline:
            kill(child)
            raise RuntimeError("a child of the harness did not get there")
        time.sleep(0.0001)
    return None


# -- SIGTERM, SIGINT, SIGHUP ------------------------------------------------------------------------------------------


def signal_runs(
    reference: Reference, phases: list[str], seed: int, double: bool = False, limit: float = 10.0
) -> tuple[int, list[str], dict[str, int]]:
    """Send a signal in each of the phases, resume; return (signals, what is wrong, how many hit each phase).

    `limit` is how many seconds a run may take from a signal to its end.
    """
    dice, sent, wrong, hit = random.Random(seed), 0, [], dict[str, int]()
    for phase in phases:
        path, board = reference.new_path(), Board()
        number = dice.choice((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        child = fork(lambda path=path, board=board: drive(reference.config, path, board))
        code = _in_phase(child, board, phase, dice, reference.seconds)
        where = f"{reference.kind}, seed {seed}, {number.name} in {phase}"
        if code is None:
            os.kill(child, number)
            sent += 1
            hit[board.phase] = hit.get(board.phase, 0) + 1
            began, wanted = time.monotonic(), {128 + number}
            if double:
                time.sleep(dice.uniform(0.0, 0.01))
                second = dice.choice((signal.SIGTERM, signal.SIGINT))
                wanted.add(128 + second)
                _send(child, second)
            code = wait(child, limit)
            if code is None:
                kill(child)
                wrong.append(f"{where}: still there after {limit:g} seconds")
            elif code not in wanted and not _had_ended(code, path, reference):
                wrong.append(f"{where}: exit code {code}, wanted {sorted(wanted)}")
            elif not double and code and board.acknowledged < board.restored:
                wrong.append(f"{where}: nothing was saved in {time.monotonic() - began:.1f} s")
        before = board.acknowledged
        child = fork(lambda path=path, board=board: drive(reference.config, path, board))
        if wait(child, 100) != 0:
            wrong.append(f"{where}: the resumed run did not end well")
        else:
            wrong += [f"{where}: {what}" for what in reference.compare(path)]
            if board.restored < before:
                wrong.append(f"{where}: saved at step {before}, resumed at {board.restored}")
        shutil.rmtree(path)
    return sent, wrong, hit


def _send(child: int, number: int) -> None:
    try:
        os.kill(child, number)
    except ProcessLookupError:
        return


def _had_ended(code: int, path: Path, reference: Reference) -> bool:
    """Tell whether the run was over when the signal came."""
    return code == 0 and state_digest(path) == reference.state


def _in_phase(child: int, board: Board, phase: str, dice: random.Random, seconds: float) -> int | None:
    """Wait for a phase, at a random occasion; 'start-up' and 'warmup' come once."""
    if phase == "start-up":
        code = _wait_for(child, lambda: board.get(_LISTENING) == 1, 30)
        return wait(child, dice.uniform(0.0, 0.05)) if code is None else code
    code, turns = None, 1 if phase == "warmup" else dice.randrange(1, 4)
    while turns and code is None:
        code = _wait_for(child, lambda: board.phase == phase, 30)
        turns -= 1
        if turns and code is None:
            code = _wait_for(child, lambda: board.phase != phase, 30)
    return code


# -- planted bugs ------------------------------------------------------------------------------------------------------


def _overwrite(self: CheckpointStore, path: Path, payload: Any, *, step: int, best: bool, seal: Any) -> None:
    """Save in the place of the older ones instead of beside them."""
    for found in self._found():
        shutil.rmtree(found.path)
    COMMIT(self, path, payload, step=step, best=best, seal=seal)


def _forget_noise(self: EnvGroup, state: Any) -> None:
    LOAD_GROUP(self, {**state, "step": 0})


def _forget_callbacks(self: CallbackList, state: Any) -> None:
    """Leave the callbacks as new ones, so that the log is not cut back."""


COMMIT, LOAD_GROUP = CheckpointStore._commit, EnvGroup.load_state_dict

BUGS: dict[str, Callable[[], Any]] = {
    "overwrite": lambda: mock.patch.object(CheckpointStore, "_commit", _overwrite),
    "noise": lambda: mock.patch.object(EnvGroup, "load_state_dict", _forget_noise),
    "log": lambda: mock.patch.object(CallbackList, "load_state_dict", _forget_callbacks),
}
"""Ways to break the library that the kill test must notice: each is a patch that children inherit."""


# -- answers of children -----------------------------------------------------------------------------------------------


def answer(work: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Return what a function returns in a process of its own: plain data."""
    reader, writer = os.pipe()
    stacks = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the function)

    def telling() -> int:
        os.close(reader)
        faulthandler.dump_traceback_later(seconds, exit=True, file=stacks)
        with os.fdopen(writer, "w") as pipe:
            json.dump(work(), pipe)
        faulthandler.cancel_dump_traceback_later()
        return 0

    child = fork(telling)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()  # ends with the child, at the latest when its time is up
    code = wait(child, seconds)
    if code != 0 or not told:
        stacks.seek(0)
        where = stacks.read().decode()
        raise RuntimeError(f"a child of the harness ended with {code}; where it hung: {where or 'it did not'}")
    return json.loads(told)
