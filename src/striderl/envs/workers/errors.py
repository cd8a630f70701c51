"""What can go wrong with an env, by name: it raised, its process died, or it did not answer in time.

Nothing here loads torch, because worker processes use this module too.
"""

from __future__ import annotations

import signal
import traceback
from dataclasses import dataclass
from pathlib import Path

TEXT_LIMIT = 20_000
"""Longer texts are cut in the middle: an exception may carry a message of megabytes."""
_STEPPING = tuple(str(Path(__file__).parents[1] / folder) for folder in ("workers", "gymnasium"))
"""Where the code lies that calls envs: its frames are left out above those of the env."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in a run a failure happened."""

    env_index: int
    """The global index of the env at fault; the first env of the worker when it was between two commands."""
    last_env_index: int
    """The same index, or the last env of the worker when no single env can be named."""
    worker_index: int
    """Which worker process, or -1 when the envs live in the trainer's process."""
    phase: str
    """What was going on: 'init', 'reset', 'step', 'render', 'get_attr', 'close', or 'idle' between two commands."""
    seed: int | None
    """The run's seed, as given to `reset`; None before the first reset."""
    env_seed: int | None
    """The seed that this env was given."""
    step: int
    """The number of the step under way (or of the last one, when idle), counted since the env was built."""
    episode_step: int
    """Steps that were already taken in the current episode."""

    def __str__(self) -> str:
        """Name the place in one line, for error messages."""
        single = self.env_index == self.last_env_index
        envs = f"env {self.env_index}" if single else f"envs {self.env_index} to {self.last_env_index}"
        where = f"worker {self.worker_index}, " if self.worker_index >= 0 else ""
        seeds = f"seed {self.seed}" + (f" (env seed {self.env_seed})" if self.env_seed is not None else "")
        return f"{envs} ({where}phase {self.phase}, {seeds}, step {self.step}, episode step {self.episode_step})"


class EnvError(RuntimeError):
    """An env or its worker process failed; `place` holds which one, when, and with which seed."""

    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(message)
        self.place = place

    def __reduce__(self) -> tuple[type[EnvError], tuple[str, Place | None]]:
        return type(self), (str(self), self.place)


class EnvRaised(EnvError):  # noqa: N818  (the name is the news)
    """Code of the env raised an exception; the message holds its whole traceback."""


class EnvWorkerDied(EnvError):  # noqa: N818
    """A worker process ended without being asked to; the message names the signal or the exit code."""


class EnvTimeout(EnvError):  # noqa: N818
    """An env did not finish in time; the message holds the Python stack of its worker where that can be had."""


class ContractViolation(Exception):  # noqa: N818  (worker processes raise it; users meet it as ContractError)
    """An env gave something other than what it declared; becomes a `ContractError` in the trainer's process."""


class BuildViolation(ContractViolation):
    """An env cannot be built from what was given; becomes an error of the subclass's kind."""


class WrongValue(BuildViolation):
    """Becomes a ValueError: an unknown id, a version that does not exist."""


class WrongType(BuildViolation):
    """Becomes a TypeError: an argument the env does not take, a builder that returns no env."""


class MissingPackage(BuildViolation):
    """Becomes an ImportError: the env needs a package that is not installed."""


VIOLATIONS = {kind.__name__: kind for kind in (ContractViolation, WrongValue, WrongType, MissingPackage)}
"""The violations by name: that is how they travel between processes."""


class EnvCloseWarning(UserWarning):
    """Closing an env raised an exception; everything was released all the same."""


def describe_exit(code: int | None) -> str:
    """Describe how a process ended, from an exit code as `subprocess` gives it: negative for a signal."""
    if code is None:
        return "ended in an unknown way"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by signal {signal.Signals(-code).name} ({-code})"
    except ValueError:
        return f"was killed by signal {-code}"


def shortened(text: str, limit: int = TEXT_LIMIT) -> str:
    """Cut out the middle of a text that is longer than the limit, and mark how much was cut."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters cut out …\n{text[-half:]}"


def traceback_text(error: BaseException) -> str:
    """Return an exception's traceback from the env on as text, also when the exception cannot print itself."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_STEPPING):
        trace = trace.tb_next
    try:
        return shortened("".join(traceback.format_exception(type(error), error, trace)))
    except BaseException as second:  # noqa: BLE001  (str() of a foreign exception may raise anything, even SystemExit)
        frames = "".join(traceback.format_tb(trace))
        return shortened(f"{frames}{type(error).__name__}: its text is not available ({type(second).__name__})")
