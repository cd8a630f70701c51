"""`FaultSession`: the last second of an env before a bad number, as quarantine kept it in the run's folder.

faults/obs_env3_step128.trace.npz ──▶ observations, actions, rewards and, of MuJoCo tasks, poses ──▶ again and again
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from striderl.checkpoint.errors import CheckpointError
from striderl.cli.terminal import UsageError, message_of
from striderl.cli.view.track import FALLBACK_DT, Abilities, Moment, Track
from striderl.collect.trace import SUFFIX, EnvTrace, read_trace
from striderl.training.experiment.run_folder import RunFolder


def fault_traces(folder: Path) -> list[Path]:
    """Return the traces of a run's faults, the newest first."""
    try:
        found = [(path.lstat().st_mtime_ns, path) for path in RunFolder(folder).faults.glob(f"*{SUFFIX}")]
    except OSError:
        return []
    return [path for _, path in sorted(found, reverse=True)]


class FaultSession:
    """The last second of an env before a bad number, again and again."""

    def __init__(self, folder: Path, number: int, *, model: Callable[[], Any | None]) -> None:
        """Read the trace; 1 is the newest. `model` builds the MuJoCo model where the trace has poses."""
        paths = fault_traces(folder)
        if not paths:
            raise UsageError(
                f"{folder} has no traces of faults: quarantine found no bad number, or the run was on a GPU"
            )
        if not 1 <= number <= len(paths):
            listed = "; ".join(f"{index} {path.name.removesuffix(SUFFIX)}" for index, path in enumerate(paths, 1))
            raise UsageError(f"--fault {number} is not there; the newest is 1: {listed}")
        path = paths[number - 1]
        try:
            trace = read_trace(path)
        except (CheckpointError, ValueError, OSError) as error:
            raise UsageError(message_of(error)) from error
        if not len(trace.reward):
            raise UsageError(f"{path} has no steps")
        self.folder, self.trace, self.path = folder, trace, path
        self.title = f"fault {number} of {len(paths)}: {path.name.removesuffix(SUFFIX)}"
        self.abilities = Abilities(live=False)
        self.num_envs, self.env_index, self.paused = 1, 0, False
        self.problem = ""
        dt = trace.facts.get("step_dt")
        dt = float(dt) if isinstance(dt, (int, float)) and dt > 0 else FALLBACK_DT
        track = Track("A", dt=dt, model=self._model(trace, model), max_moments=len(trace.reward))
        for moment in _moments(trace, dt):
            track.add(moment)
        self.tracks = [track]
        self.back = len(trace.reward) - 1

    def _model(self, trace: EnvTrace, build: Callable[[], Any | None]) -> Any | None:
        """Build the model for the poses, where it has as many positions."""
        if trace.pose is None:
            return None
        try:
            model = build()
        except UsageError as error:
            self.problem = f"only curves: {message_of(error)}"
            return None
        if model is not None and trace.pose.shape[1:] != (model.nq,):
            self.problem = f"only curves: the trace has {trace.pose.shape[1:]} joint positions, the model {model.nq}"
            return None
        return model

    def facts(self) -> list[tuple[str, str]]:
        """Return what was bad, and which step is shown."""
        facts = self.trace.facts
        bad = f"{facts.get('component')} of env {facts.get('env')} was {facts.get('value')} at step {facts.get('step')}"
        last = len(self.trace.reward) - 1
        return [("bad number", bad), ("shown", f"{self.back} of {last} steps before it")]

    def tick(self) -> None:
        """Show the next step; after the last one begin again."""
        if not self.paused:
            self.back = self.back - 1 if self.back > 0 else len(self.trace.reward) - 1

    def step_once(self) -> None:
        """Show the next step, and pause."""
        self.paused = True
        self.back = max(self.back - 1, 0)

    def poll(self) -> bool:
        """Find nothing new: a trace does not change."""
        return False

    def close(self) -> None:
        """Release nothing."""


def _moments(trace: EnvTrace, dt: float) -> list[Moment]:
    returned = np.cumsum(np.nan_to_num(trace.reward.astype(np.float64)))
    return [
        Moment(
            time=(step + 1) * dt,
            checkpoint=0,
            obs={name: value[step : step + 1] for name, value in trace.obs.items()},
            actions={name: value[step : step + 1] for name, value in trace.actions.items()},
            terms={"reward": trace.reward[step : step + 1]},
            reward=trace.reward[step : step + 1],
            returned=returned[step : step + 1],
            done=trace.done[step : step + 1],
            pose=None if trace.pose is None else trace.pose[step : step + 1],
        )
        for step in range(len(trace.reward))
    ]
