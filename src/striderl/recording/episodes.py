"""Episodes on their way to the disk: each env's steps are gathered over rollouts until the episode ends.

    rollout 1          rollout 2          rollout 3
    env 0  ──────────────────┤ ├──────────────────      one episode written in rollout 2, one still open
    env 1  ───┤ ├───┤ ├──────────────────────────┤      two written in rollout 1, the next in rollout 3

Pieces are views of the rollouts; a rollout is let go of when no open episode lies in it any more. Only where an episode
ends is something done for one env by itself.

Steps of all envs on their way to the disk: a rollout is filled row by row, then squeezed and brought over at once.

device   [T, N, …] in one arena   │ row t: obs, act, rew, …                      final observations of the rows that
         of the stored columns    ▼                                              ended, packed: [K, …]
host     squeezed by the codecs: {('obs', 'depth'): uint8 [T, N, 1, 48, 64], …}  {…: [K, …]}, (t, env) → row
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from striderl.data.arena import Arena, Columns, Placement
from striderl.data.transition import Transition
from striderl.datasets.trajectories.spec import ColumnPath, TrajectoryError, TrajectorySpec, nested
from striderl.datasets.trajectories.writer import TrajectoryWriter
from striderl.envs.vec_env import Obs


class Piece(NamedTuple):
    """Some steps of one env in one rollout."""

    rollout: HostRollout
    start: int
    stop: int


class Segment(NamedTuple):
    """Steps [start, stop) of an env in a rollout that belong to one episode."""

    env: int
    start: int
    stop: int
    ended: bool
    """Whether the episode ends with them."""


class OpenEpisode:
    """The episode of one env that has not ended yet: pieces of the rollouts that it lies in, which are not copied."""

    def __init__(self, env: int) -> None:
        self.env = env
        self.pieces: list[Piece] = []

    def __len__(self) -> int:
        return sum(piece.stop - piece.start for piece in self.pieces)

    def add(self, rollout: HostRollout, start: int, stop: int) -> None:
        """Go on with steps [start, stop) of a rollout."""
        self.pieces.append(Piece(rollout, start, stop))

    def columns(self) -> dict[ColumnPath, Tensor]:
        """Return its squeezed columns [T, …], with memory of their own."""
        paths = self.pieces[0].rollout.stored
        return {
            path: torch.cat([piece.rollout.stored[path][piece.start : piece.stop, self.env] for piece in self.pieces])
            for path in paths
        }

    def final(self) -> dict[ColumnPath, Tensor] | None:
        """Return the squeezed observation after its last step [1, …], if it was kept."""
        last = self.pieces[-1]
        row = last.rollout.final_rows.get((last.stop - 1, self.env))
        if row is None:
            return None
        return {path: values[row : row + 1] for path, values in last.rollout.finals.items()}


class EpisodeWriter:
    """Cuts rollouts into episodes and writes those that are wanted."""

    def __init__(
        self, writer: TrajectoryWriter, num_envs: int, *, success_only: bool, first_env_index: int = 0
    ) -> None:
        """Write with a writer; with `success_only`, leave out what failed."""
        self.left_out = 0
        """Episodes that were not written because they failed."""
        self.rollout: HostRollout | None = None
        """The rollout that was taken last."""
        self._writer, self._success_only, self._first = writer, success_only, first_env_index
        self._open = [OpenEpisode(number) for number in range(num_envs)]
        self._next = [0] * num_envs
        self._failed = False

    def begin(self, rollout: HostRollout) -> Iterator[Segment]:
        """Take a rollout, and yield its pieces env by env; each is to be added, and finished where an episode ends.

        Then `complete`. After an error in between some envs have their steps and others have not, so nothing can be
        added any more.
        """
        if self._failed:
            raise TrajectoryError("writing failed before, and steps are missing since; record with a new saver")
        self._failed = True
        self.rollout, self._next = rollout, [0] * len(self._open)
        ends: list[list[int]] = [[] for _ in self._open]
        for env, step in np.argwhere(rollout.done.T).tolist():
            ends[env].append(step)
        for env, stops in enumerate(ends):
            start = 0
            for stop in stops:
                yield Segment(env, start, stop + 1, True)
                start = stop + 1
            if start < rollout.num_steps:
                yield Segment(env, start, rollout.num_steps, False)

    def complete(self) -> None:
        """Say that all pieces of the rollout were added."""
        self._failed = False

    def add(self, env: int, start: int, stop: int) -> None:
        """Go on with an env's episode by steps [start, stop) of the rollout."""
        if self.rollout is None or start != self._next[env]:
            raise ValueError(f"env {env}: step {self._next[env]} of the rollout is next, found {start} to {stop}")
        self._open[env].add(self.rollout, start, stop)
        self._next[env] = stop

    def finish(self, env: int, step: int) -> None:
        """End an env's episode with this step of the rollout: write it or leave it out, and begin the next."""
        episode = self._open[env]
        if self.rollout is None or not episode.pieces or step != self._next[env] - 1:
            raise ValueError(f"env {env}: step {step} is not the last that was added")
        success = bool(self.rollout.success[step, env]) and not bool(self.rollout.cut[step, env])
        self._write(episode, episode.columns(), success, episode.final())
        self.forget(env)

    def forget(self, env: int) -> None:
        """Drop what there is of an env's episode."""
        self._open[env] = OpenEpisode(env)

    def long_ones(self, length: int) -> list[int]:
        """Return the envs whose open episode has so many steps, or more."""
        return [episode.env for episode in self._open if len(episode) >= length]

    def cut(self, env: int, following: Mapping[ColumnPath, Tensor]) -> None:
        """Write what there is of an env's episode as one that was truncated; `following` is what was seen then."""
        episode = self._open[env]
        last = episode.pieces[-1]
        stored = episode.columns()
        stored[("truncated",)][-1] = True
        self._write(episode, stored, bool(last.rollout.success[last.stop - 1, env]), following)
        self.forget(env)

    def steps(self, env: int, start: int, stop: int) -> dict[str, Any]:
        """Return steps of an env in the last rollout as a reader will see them."""
        piece = OpenEpisode(env)
        if self.rollout is None:
            raise RuntimeError("there is no rollout yet; save_steps makes one")
        piece.add(self.rollout, start, stop)
        stored = piece.columns()
        return nested({column.path: column.restored(stored[column.path]) for column in self._writer.spec.columns})

    def _write(
        self,
        episode: OpenEpisode,
        stored: dict[ColumnPath, Tensor],
        success: bool,
        final: Mapping[ColumnPath, Tensor] | None,
    ) -> None:
        valid = stored[("valid",)]
        if not bool(valid.any()):
            return  # the leftover of an env in quarantine
        if self._success_only and not success:
            self.left_out += 1
            return
        about = {
            "env": self._first + episode.env,
            "success": success,
            "return": float((stored[("rew",)] * valid).sum()),
        }
        spec: TrajectorySpec = self._writer.spec
        self._writer.add_squeezed(stored, final=final if spec.final_obs else None, about=about)


# -- rollouts ----------------------------------------------------------------------------------------------------------


Array = np.ndarray[Any, Any]


class SavedStep(NamedTuple):
    """What `get_transition` returns: st_rl's six values in their order."""

    actions: Any
    """What is recorded as the action: what was done, or in `DaggerSaver` what the teacher would have done."""
    rewards: Tensor
    """float32 [N]."""
    dones: Tensor
    """bool [N]."""
    infos: dict[str, Any]
    """The env's info."""
    obs: Obs
    """What the policy sees next, by component."""
    critic_obs: Obs
    """What only the critic sees, by component; what the policy sees where there is nothing of the kind."""


class HostRollout(NamedTuple):
    """Some steps of all envs, as they are stored."""

    stored: dict[ColumnPath, Tensor]
    """Squeezed columns [T, N, …] on the CPU."""
    finals: dict[ColumnPath, Tensor]
    """Squeezed observations after an end, [K, …]; empty where none are kept."""
    final_rows: dict[tuple[int, int], int]
    """(step, env) → row of `finals`."""
    done: Array
    """Where an episode ended, bool [T, N]."""
    success: Array
    """Whether it ended well, bool [T, N]; means something where `done`."""
    cut: Array
    """Where an episode was given up because of a number that is not finite, bool [T, N]."""

    @property
    def num_steps(self) -> int:
        """How many steps each env has."""
        return int(self.done.shape[0])


class SaverBuffer:
    """A rollout in the making."""

    def __init__(self, columns: Columns, spec: TrajectorySpec, num_steps: int, num_envs: int, device: torch.device):
        """Make room for `num_steps` steps of `num_envs` envs."""
        self.num_steps, self.count = num_steps, 0
        self._spec, self._num_envs = spec, num_envs
        self._arena = Arena(columns, (num_steps, num_envs), Placement(device=str(device)))
        self._success = torch.zeros((num_steps, num_envs), dtype=torch.bool, device=device)
        self._cut = torch.zeros_like(self._success)
        self._finals: list[tuple[int, Tensor, dict[str, Tensor]]] = []

    @property
    def data(self) -> dict[str, Any]:
        """All columns as views, [T, N, …] each; rows from `count` on are old."""
        return self._arena.data

    def add(self, columns: Mapping[str, Any], transition: Transition, success: Tensor, cut: Tensor) -> None:
        """Write the next step of all envs."""
        if self.count >= self.num_steps:
            raise IndexError(f"the buffer has {self.num_steps} steps, and all are there; call save_steps first")
        step = self.count
        self._arena.write((step, slice(0, self._num_envs)), columns)
        self._success[step] = success
        self._cut[step] = cut
        if self._spec.final_obs and transition.final_obs is not None:
            # a look at the device in each step; what is written to files need not outrun it
            rows = transition.done.nonzero().squeeze(1)
            if len(rows):
                self._finals.append((step, rows, {name: value[rows] for name, value in transition.final_obs.items()}))
        self.count += 1

    def take(self) -> HostRollout:
        """Return what is there, squeezed and on the host, and start again."""
        count = self.count
        stored = {
            path: values.to("cpu", copy=True)
            for path, values in self._spec.squeezed(_first(self._arena.data, count)).items()
        }
        terminated, truncated = stored[("terminated",)], stored[("truncated",)]
        rollout = HostRollout(
            stored=stored,
            finals=self._squeezed_finals(),
            final_rows=self._final_rows(),
            done=(terminated | truncated).numpy(),
            success=self._success[:count].cpu().numpy().copy(),
            cut=self._cut[:count].cpu().numpy().copy(),
        )
        self.count, self._finals = 0, []
        return rollout

    def squeezed_obs(self, obs: Mapping[str, Tensor]) -> dict[ColumnPath, Tensor]:
        """Return what is stored of observations [n, …], on the host."""
        return {
            column.path: column.squeezed(obs["/".join(column.path[1:])]).to("cpu") for column in self._spec.obs_columns
        }

    def _squeezed_finals(self) -> dict[ColumnPath, Tensor]:
        if not self._finals:
            return {}
        names = self._finals[0][2]
        return self.squeezed_obs({name: torch.cat([rows[name] for _, _, rows in self._finals]) for name in names})

    def _final_rows(self) -> dict[tuple[int, int], int]:
        places = [(step, env) for step, rows, _ in self._finals for env in rows.tolist()]
        return {place: row for row, place in enumerate(places)}


def _first(values: Any, count: int) -> Any:
    if isinstance(values, Mapping):
        return {name: _first(value, count) for name, value in values.items()}
    return values[:count]
