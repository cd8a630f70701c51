"""`Track`: the last seconds of an env, to look back at; and what a page needs of a session.

moments    ●  ●  ●  ●  ●  ●      one per step, of all envs of the track
           └ back = 5     └ back = 0: now
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from striderl.cli.view.controls import Array, CommandEntry

FALLBACK_DT = 0.04
"""Seconds per step where a task has no unit of time, as for videos."""
PICTURE_BYTES = 200_000_000
"""Memory for the pictures of a track; older ones are dropped."""


class Picture:
    """A frame uint8 [height, width, 3], compressed: ten seconds of frames would be hundreds of megabytes."""

    def __init__(self, frame: NDArray[np.uint8]) -> None:
        """Compress a frame."""
        self._shape = frame.shape
        self._bytes = zlib.compress(np.ascontiguousarray(frame).tobytes(), 1)

    def __len__(self) -> int:
        return len(self._bytes)

    def frame(self) -> NDArray[np.uint8]:
        """Return the frame."""
        return np.frombuffer(zlib.decompress(self._bytes), np.uint8).reshape(self._shape)


@dataclass(kw_only=True)
class Moment:
    """One step of a track, of all its envs."""

    time: float
    """Seconds of the task's time since the track began."""
    checkpoint: int
    """Env steps of the policy that acted."""
    obs: Mapping[str, Array]
    """What the step led to, component → [N, …]."""
    actions: Mapping[str, Array]
    """What was done, part → [N, …]; empty before the first step."""
    terms: Mapping[str, Array]
    """Each term of the reward, [N]; empty before the first step."""
    reward: Array
    """[N]."""
    returned: Array
    """The sum of rewards of the episode so far, this step included, [N]."""
    done: Array
    """Whether the episode ended in this step, [N]."""
    pose: Array | None = None
    """Joint positions of the model, [N, nq]."""
    picture: Picture | None = None
    """The picture of the env that was picked then."""


class Track:
    """Moments in order, the newest last."""

    def __init__(self, label: str, *, dt: float, model: Any | None, max_moments: int) -> None:
        """Keep so many moments; `model` is the MuJoCo model of their poses."""
        self.label, self.dt, self.model = label, dt, model
        self.moments: deque[Moment] = deque(maxlen=max_moments)
        self._picture_bytes = 0

    def add(self, moment: Moment) -> None:
        """Add the newest; pictures of the oldest are dropped where there are too many."""
        if len(self.moments) == self.moments.maxlen:
            self._drop_picture(self.moments[0])
        self.moments.append(moment)
        self._picture_bytes += len(moment.picture) if moment.picture is not None else 0
        for old in self.moments:
            if self._picture_bytes <= PICTURE_BYTES:
                break
            self._drop_picture(old)

    def _drop_picture(self, moment: Moment) -> None:
        if moment.picture is not None:
            self._picture_bytes -= len(moment.picture)
            moment.picture = None

    def at(self, back: int) -> Moment:
        """Return the moment so many steps ago, at most the oldest."""
        return self.moments[max(len(self.moments) - 1 - back, 0)]

    def times(self) -> NDArray[np.float64]:
        """Return seconds relative to the newest moment, 0 or negative."""
        newest = self.moments[-1].time
        return np.array([moment.time - newest for moment in self.moments])

    def observation(self, component: str, env_index: int) -> NDArray[np.float64]:
        """Return a component of one env over the ring, [T, entries]."""
        rows = [np.asarray(moment.obs[component][env_index], np.float64).ravel() for moment in self.moments]
        return np.stack(rows)

    def rewards(self, env_index: int) -> dict[str, NDArray[np.float64]]:
        """Return each reward term of one env over the ring, [T]; NaN before the first step."""
        names = dict.fromkeys(name for moment in self.moments for name in moment.terms)
        return {
            name: np.array([_entry(moment.terms.get(name), env_index) for moment in self.moments]) for name in names
        }


def _entry(values: Array | None, index: int) -> float:
    return float("nan") if values is None else float(values[index])


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What can be done to a session besides pausing and looking back."""

    live: bool
    """Whether there is an env that steps, resets and follows checkpoints."""
    can_push: bool = False
    """Whether its robot can be pushed."""
    commands: tuple[CommandEntry, ...] = ()
    """What can be commanded."""
    num_levels: int = 0
    """How many terrain levels it has."""


class Session(Protocol):
    """What a page shows."""

    title: str
    folder: Path
    abilities: Abilities
    tracks: list[Track]
    num_envs: int
    env_index: int
    paused: bool
    back: int

    def tick(self) -> None:
        """Go on by one step, unless paused."""

    def step_once(self) -> None:
        """Go on by one step, and pause."""

    def poll(self) -> bool:
        """Look whether something new is to be shown; returns whether there is."""

    def facts(self) -> list[tuple[str, str]]:
        """Return what is shown, as names and texts."""

    @property
    def problem(self) -> str:
        """What went wrong; empty where nothing did."""

    def close(self) -> None:
        """Release the env."""
