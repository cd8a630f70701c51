"""`striderl view RUN`: watch a run in the browser, while it trains, afterwards, or as a fault left it.

striderl view runs/quadruped                    the newest run there; it may be training in another process
striderl view RUN --compare 4096                two checkpoints side by side
striderl view RUN --fault 1                     the last second before the newest bad number
striderl train quadruped --view                 a view of the new run, for as long as it trains
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from striderl.cli.options import Env, Run, Trust, parse
from striderl.cli.runs import env_of, find_run
from striderl.cli.terminal import UsageError, message_of, say
from striderl.data.naming import missing_extra

if TYPE_CHECKING:
    from striderl.cli.view.follow import CheckpointFollower
    from striderl.cli.view.server import RequestCheck
    from striderl.cli.view.track import Session
    from striderl.envs.vec_env import VecEnv

PORT = 8080
"""Where the page is, unless asked otherwise."""
VIEW = "--view"
"""The flag of `striderl train`."""


@dataclass(frozen=True)
class BrowserOptions:
    """What is shown, and where."""

    run: Run
    """The folder of a run, or of several (runs/cartpole: the newest of them)."""
    checkpoint: str = "best"
    """'best' and 'last' are followed while the run trains; a number of env steps stays."""
    compare: str = ""
    """Another checkpoint to show beside it: 'best', 'last' or a number of env steps."""
    fault: int = 0
    """Replay the last second before a bad number instead: 1 is the newest fault of the run."""
    host: str = "127.0.0.1"
    """The address to listen on; one that is not local, such as 0.0.0.0, opens the view to others, with a token."""
    port: int = PORT
    """The port of the page; 0 takes any that is free."""
    num_envs: int = 4
    """How many envs are stepped, to pick from."""
    seed: int = 7
    """The seed of the envs."""
    seconds: float = 10.0
    """How far one can look back, in seconds of the task's time."""
    paused: bool = False
    """Begin paused."""
    duration: float = 0.0
    """End after this many seconds; 0 goes on until Ctrl-C."""
    env: Env = ""
    trust: Trust = False


def view(words: list[str]) -> int:
    """Serve the page until Ctrl-C, or until the time is over."""
    options = parse(
        BrowserOptions, words, command="view", description="Watch a run in the browser, also while it trains."
    )
    _check(options)
    folder = find_run(options.run)

    from striderl.cli.view.server import RequestCheck, close_server, open_server

    check = RequestCheck(options.host)
    session = _session(options, folder)
    session.paused = options.paused
    try:
        try:
            server = open_server(options.host, options.port, check)
        except (ImportError, OSError, RuntimeError) as error:
            raise UsageError(message_of(error)) from error
        try:
            _serve(server, session, check, options)
        finally:
            close_server(server)
    finally:
        session.close()
    return 0


def _check(options: BrowserOptions) -> None:
    wrong = {
        "--port is 0 to 65535": not 0 <= options.port <= 65535,
        "--num-envs is positive": options.num_envs < 1,
        "--seed is not negative": options.seed < 0,
        "--seconds is positive": not options.seconds > 0.0,
        "--duration is not negative": not options.duration >= 0.0,
        "--fault is positive": options.fault < 0,
    }
    for text, found in wrong.items():
        if found:
            name = text.split()[0].removeprefix("--").replace("-", "_")
            raise UsageError(f"{text}, found {getattr(options, name)}")
    if options.fault and options.compare:
        raise UsageError("--compare has no effect with --fault: a trace is shown alone")


def _session(options: BrowserOptions, folder: Path) -> Session:
    from striderl.cli.view.fault import FaultSession
    from striderl.cli.view.session import ViewSession

    def build(follower: CheckpointFollower, num_envs: int = options.num_envs) -> VecEnv:
        return env_of(follower.loaded, options.env, num_envs=num_envs, filmed=True)

    if not options.fault:
        return ViewSession(
            folder,
            build,
            checkpoint=options.checkpoint,
            compare=options.compare,
            seed=options.seed,
            seconds=options.seconds,
            trust=options.trust,
        )

    def model() -> Any | None:
        from striderl.cli.view.controls import controls_of
        from striderl.cli.view.follow import CheckpointFollower

        with build(CheckpointFollower(folder, options.checkpoint, trust=options.trust), 1) as env:
            return controls_of(env).model

    return FaultSession(folder, options.fault, model=model)


def _serve(server: Any, session: Session, check: RequestCheck, options: BrowserOptions) -> None:
    from striderl.cli.view.page import ViewPage
    from striderl.cli.view.server import PARAMETER

    logging.getLogger("striderl.checkpoint.store").setLevel(logging.ERROR)  # the page names what is damaged
    try:
        page = ViewPage(server, session)
    except ImportError as error:
        raise UsageError(message_of(error)) from error
    host = "localhost" if options.host in ("127.0.0.1", "::1", "0.0.0.0", "::") else options.host
    token = f"/?{PARAMETER}={check.token}" if check.token else ""
    say(f"view of {session.folder}: http://{host}:{server.get_port()}{token}")
    end = time.monotonic() + options.duration if options.duration else float("inf")
    with contextlib.suppress(KeyboardInterrupt):
        page.run(lambda: time.monotonic() >= end)


# -- beside a training -------------------------------------------------------------------------------------------------


def take_view(words: list[str], given: dict[str, str], *, alone: bool = True) -> tuple[list[str], dict[str, str]]:
    """Move --view from the words to what is given; raise where there is no one run of this process to view."""
    if VIEW in words:
        words, given = [word for word in words if word != VIEW], {**given, VIEW: ""}
        _check_installed()
    if VIEW in given and not alone:
        raise UsageError(
            f"{VIEW} is for one run that this process trains; 'striderl view RUN' opens a view of any other"
        )
    return words, given


@contextlib.contextmanager
def viewed(folder: Path, *, asked: bool) -> Iterator[None]:
    """Keep a view of a run open, in a process of its own that ends with this one; without `asked` do nothing.

    A view that cannot start is reported by its process, and the training goes on.
    """
    if not asked:
        yield
        return
    port = _free_port()
    program = (
        "import sys; from striderl.cli.main import main; from striderl.cli.view.command import end_with_parent; "
        "end_with_parent(); sys.exit(main(['view', *sys.argv[1:]]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder.resolve()), "--checkpoint", "last", "--port", str(port)],
        stdin=subprocess.PIPE,  # nothing is written to it: it is closed when this process ends, however it ends
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the training, which ends the view when it has saved
    )
    say(f"view: http://localhost:{port}, in a few seconds")
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    """Return the usual port, or one that is free where that is taken."""
    for port in (PORT, 0):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                trial.bind(("127.0.0.1", port))
                return int(trial.getsockname()[1])
    raise UsageError(f"{VIEW}: no port of 127.0.0.1 is free")


def _check_installed() -> None:
    """Raise where the packages of the view are missing: before anything is trained."""
    if importlib.util.find_spec("viser") is None:
        raise UsageError(missing_extra("viser", "view", purpose="The view in the browser"))


def end_with_parent() -> None:
    """End this process, the view of a training, when the training is gone."""

    def leave() -> None:
        sys.stdin.buffer.read()  # returns when the other end of the pipe is closed
        os._exit(0)

    threading.Thread(target=leave, name="striderl-view-parent", daemon=True).start()
