"""Write episodes to disk: each env's steps are gathered over rollouts until the episode ends.

    rollout 1          rollout 2          rollout 3
    env 0  ──────────────────┤ ├──────────────────      one episode written in rollout 2, one still open
    env 1  ───┤ ├───┤ ├──────────────────────────┤      two written in rollout 1, the next in rollout 3

Pieces are views of the rollouts; a rollout is released when no open episode lies in it any more. Single envs are
processed only where an episode ends.

A rollout of all envs is filled row by row, then encoded and copied to the host at once.

device   [T, N, …] in one arena   │ row t: obs, act, rew, …                      final observations of the rows that
         of the stored columns    ▼                                              ended, packed: [K, …]
host     encoded by the codecs:  {('obs', 'depth'): uint8 [T, N, 1, 48, 64], …}  {…: [K, …]}, (t, env) → row
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
        """Append steps [start, stop) of a rollout."""
        self.pieces.append(Piece(rollout, start, stop))

    def columns(self) -> dict[ColumnPath, Tensor]:
        """Return its encoded columns [T, …], as copies."""
        paths = self.pieces[0].rollout.stored
        return {
            path: torch.cat([piece.rollout.stored[path][piece.start : piece.stop, self.env] for piece in self.pieces])
            for path in paths
        }

    def final(self) -> dict[ColumnPath, Tensor] | None:
        """Return the encoded observation after its last step [1, …], if it was kept."""
        last = self.pieces[-1]
        row = last.rollout.final_rows.get((last.stop - 1, self.env))
        if row is None:
            return None
        return {path: values[row : row + 1] for path, values in last.rollout.finals.items()}


class EpisodeWriter:
    """Cut rollouts into episodes and write those that are wanted."""

    def __init__(
        self, writer: TrajectoryWriter, num_envs: int, *, success_only: bool, first_env_index: int = 0
    ) -> None:
        """Write with a writer; with `success_only`, skip failed episodes."""
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
        """Mark all pieces of the rollout as added."""
        self._failed = False

    def add(self, env: int, start: int, stop: int) -> None:
        """Append steps [start, stop) of the rollout to an env's episode."""
        if self.rollout is None or start != self._next[env]:
            raise ValueError(f"env {env}: step {self._next[env]} of the rollout is next, found {start} to {stop}")
        self._open[env].add(self.rollout, start, stop)
        self._next[env] = stop

    def finish(self, env: int, step: int) -> None:
        """End an env's episode with this step of the rollout: write or skip it, and begin the next."""
        episode = self._open[env]
        if self.rollout is None or not episode.pieces or step != self._next[env] - 1:
            raise ValueError(f"env {env}: step {step} is not the last that was added")
        success = bool(self.rollout.success[step, env]) and not bool(self.rollout.cut[step, env])
        self._write(episode, episode.columns(), success, episode.final())
        self.forget(env)

    def forget(self, env: int) -> None:
        """Drop an env's open episode."""
        self._open[env] = OpenEpisode(env)

    def long_ones(self, length: int) -> list[int]:
        """Return the envs whose open episode has so many steps, or more."""
        return [episode.env for episode in self._open if len(episode) >= length]

    def cut(self, env: int, following: Mapping[ColumnPath, Tensor]) -> None:
        """Write an env's open episode as truncated; `following` is the observation after it."""
        episode = self._open[env]
        last = episode.pieces[-1]
        stored = episode.columns()
        stored[("truncated",)][-1] = True
        self._write(episode, stored, bool(last.rollout.success[last.stop - 1, env]), following)
        self.forget(env)

    def steps(self, env: int, start: int, stop: int) -> dict[str, Any]:
        """Return steps of an env in the last rollout as a reader gets them."""
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
    """The recorded action: the executed one, or in `DaggerSaver` the teacher's."""
    rewards: Tensor
    """float32 [N]."""
    dones: Tensor
    """bool [N]."""
    infos: dict[str, Any]
    """The env's info."""
    obs: Obs
    """The policy's next observation, by component."""
    critic_obs: Obs
    """The critic's own components; the policy's where there are none."""


class HostRollout(NamedTuple):
    """Some steps of all envs, as they are stored."""

    stored: dict[ColumnPath, Tensor]
    """Encoded columns [T, N, …] on the CPU."""
    finals: dict[ColumnPath, Tensor]
    """Encoded final observations, [K, …]; empty where none are kept."""
    final_rows: dict[tuple[int, int], int]
    """(step, env) → row of `finals`."""
    done: Array
    """Where an episode ended, bool [T, N]."""
    success: Array
    """Whether it succeeded, bool [T, N]; meaningful where `done`."""
    cut: Array
    """Where an episode was dropped because of a non-finite number, bool [T, N]."""

    @property
    def num_steps(self) -> int:
        """How many steps each env has."""
        return int(self.done.shape[0])


class SaverBuffer:
    """A rollout that is being filled."""

    def __init__(self, columns: Columns, spec: TrajectorySpec, num_steps: int, num_envs: int, device: torch.device):
        """Allocate `num_steps` steps of `num_envs` envs."""
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
            # a device synchronisation in each step; writing files is slower anyway
            rows = transition.done.nonzero().squeeze(1)
            if len(rows):
                self._finals.append((step, rows, {name: value[rows] for name, value in transition.final_obs.items()}))
        self.count += 1

    def take(self) -> HostRollout:
        """Return the stored steps, encoded and on the host, and start again."""
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
        """Return observations [n, …] encoded, on the host."""
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
