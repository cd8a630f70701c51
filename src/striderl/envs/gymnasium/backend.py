"""Back ends of a `GymnasiumEnv`: this process, worker processes, or an existing vector env.

GymnasiumEnv ──rows start to stop──▶ Backend ──▶ Buffers         numpy arrays of all N envs
                                       ├─ InProcessBackend       here
                                       ├─ WorkerPool      workers.py
                                       └─ VectorBackend   gymnasium_vector.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from striderl.envs.workers.block import PHASES, EnvBlock
from striderl.envs.workers.convert import EnvFactory
from striderl.envs.workers.errors import ContractViolation, EnvRaised, Place, traceback_text
from striderl.envs.workers.layout import Array, Buffers, Description, Layout, env_seeds


class Backend(Protocol):
    """Step N envs; every method takes its rows start to stop."""

    num_envs: int
    num_slots: int
    """How many slots of the observation its layout needs."""
    borders: list[int]
    """Rows at which the envs may be split into parts."""
    description: Description
    """Spaces and limits of the envs."""
    buffers: Buffers
    """All that goes in and out, once `bind` was called."""
    valid: Array
    """bool [N]: whether the last step of each env is a real transition."""
    seed: int | None
    """The seed of the last seeded reset."""
    runs_ahead: bool
    """Whether a step runs by itself after `send_step`."""
    closed: bool
    """Whether `close` was called."""

    @property
    def restarts(self) -> int:
        """How many times a worker was restarted."""

    def bind(self, layout: Layout) -> None:
        """Make the buffers."""

    def reset(self, seed: int | None, start: int, stop: int) -> None:
        """Start new episodes, from the seed where given."""

    def reset_masked(self, start: int, stop: int) -> None:
        """Start new episodes where `buffers.reset_mask` is true."""

    def send_step(self, start: int, stop: int) -> None:
        """Start one step with `buffers.actions`."""

    def wait_step(self, start: int, stop: int) -> None:
        """Finish that step."""

    def is_ready(self, start: int, stop: int) -> bool:
        """Return whether `wait_step` would not wait."""

    def wait_any(self, ranges: Sequence[tuple[int, int]], timeout: float | None) -> list[bool]:
        """Wait until a part is ready and return of each whether it is."""

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return (slot, start, stop) of where the current observations lie."""

    def render(self, row: int) -> Array:
        """Return the picture of one env."""

    def get_attr(self, name: str) -> list[Any]:
        """Return an attribute of every env."""

    def close(self) -> list[str]:
        """Release everything and return what the envs raised meanwhile."""


class InProcessBackend:
    """Steps the envs here, one after the other: no process to fail, and little more than the envs' own cost."""

    num_slots = 1
    runs_ahead = False
    restarts = 0

    def __init__(self, factories: Sequence[EnvFactory], *, first_env_index: int = 0) -> None:
        self.num_envs = len(factories)
        self.borders = list(range(self.num_envs + 1))
        self.seed: int | None = None
        self._first_env_index = first_env_index
        self._progress = [0, first_env_index]
        self._bound = False
        self.closed = False
        with self._naming_env():
            self._block = EnvBlock(factories, first_env_index, self._progress)
        self.description = self._block.description

    def bind(self, layout: Layout) -> None:
        """Make the buffers, in ordinary memory."""
        self.buffers = layout.buffers(np.zeros(layout.num_bytes, np.uint8))
        self.valid: Array = np.ones(self.num_envs, np.bool_)
        self._block.bind(layout, self.buffers)
        self._bound = True

    def reset(self, seed: int | None, start: int, stop: int) -> None:
        """Start new episodes; see `Backend`."""
        if seed is not None:
            self.seed = seed
            for row in range(start, stop):
                self.buffers.seeds[row] = env_seeds(seed, self._first_env_index + row)
        with self._naming_env():
            self._block.reset(0, start, stop, seeded=seed is not None)

    def reset_masked(self, start: int, stop: int) -> None:
        """Start new episodes where the mask is true."""
        with self._naming_env():
            self._block.reset_masked(0, 0, start, stop)

    def send_step(self, start: int, stop: int) -> None:
        """Do nothing yet: `wait_step` does the work."""

    def wait_step(self, start: int, stop: int) -> None:
        """Take one step."""
        try:  # as `_naming_env`, which takes a microsecond longer
            self._block.step(0, start, stop)
        except (ContractViolation, KeyboardInterrupt):
            raise
        except (Exception, SystemExit) as error:
            raise self._named(error) from error

    def is_ready(self, start: int, stop: int) -> bool:
        """Return True: no other process has to finish first."""
        return True

    def wait_any(self, ranges: Sequence[tuple[int, int]], timeout: float | None) -> list[bool]:
        """Return True for every part."""
        return [True] * len(ranges)

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return the only slot."""
        return [(0, start, stop)]

    def render(self, row: int) -> Array:
        """Return the picture of one env."""
        with self._naming_env():
            return self._block.render(row)

    def get_attr(self, name: str) -> list[Any]:
        """Return an attribute of every env."""
        with self._naming_env():
            return self._block.get_attr(name)

    def close(self) -> list[str]:
        """Close the envs."""
        self.closed = True
        return self._block.close(pass_on_interrupt=True)

    @contextmanager
    def _naming_env(self) -> Iterator[None]:
        """Turn what an env raises into an `EnvRaised` that names it; Ctrl-C stays Ctrl-C."""
        try:
            yield
        except (ContractViolation, KeyboardInterrupt):
            raise
        except (Exception, SystemExit) as error:
            raise self._named(error) from error

    def _named(self, error: BaseException) -> EnvRaised:
        place = self._place()
        return EnvRaised(f"{place} raised {type(error).__name__}:\n{traceback_text(error)}", place)

    def _place(self) -> Place:
        phase, env_index = PHASES[self._progress[0]], self._progress[1]
        row = env_index - self._first_env_index
        return Place(
            env_index=env_index,
            last_env_index=env_index,
            worker_index=-1,
            phase=phase,
            seed=self.seed,
            env_seed=int(self.buffers.seeds[row, 0]) if self.seed is not None else None,
            step=int(self.buffers.num_steps[row]) + (phase == "step") if self._bound else 0,
            episode_step=int(self.buffers.episode_length[row]) if self._bound else 0,
        )
