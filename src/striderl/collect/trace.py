"""`EnvTrace`: some steps of one env on disk, to look at: the episode of a video, or the last second before a fault.

    videos/step_8192.trace.npz      obs/<component> [T, …], action [T, …], reward [T], done [T]; meta.json: plain facts;
                                    of MuJoCo tasks pose [T, nq] before a fault
    faults/obs_env3_step128.trace.npz
    evaluation.trace.npz            the first episode of the last evaluation

`TraceRecorder` keeps references to the tensors of the last steps, which envs never change after returning them, and
copies one env's row when a trace is asked for; so keeping them costs next to nothing.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from striderl.checkpoint.array_archive import read_archive, write_archive
from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import decode_json

SUFFIX = ".trace.npz"
"""How the file's name ends."""
MAX_BYTES = 32_000_000
"""The largest trace that is read."""
COMPONENT_BYTES = 2_000_000
"""A component of more bytes, such as pictures, is left out, and named in the facts."""
_META = "meta.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class EnvTrace:
    """Steps of one env, in order."""

    obs: Mapping[str, NDArray[Any]]
    """What was acted on, component → [T, …]; before a fault: what followed the action, so that it ends with it."""
    actions: Mapping[str, NDArray[Any]]
    """What was done, part → [T, …]; the part of a plain action is 'action'."""
    reward: NDArray[Any]
    """Shape: [T]."""
    done: NDArray[Any]
    """Whether an episode ended in the step. Shape: [T]."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Plain values: task, step_dt, env, and what was left out."""
    pose: NDArray[Any] | None = None
    """Joint positions of a MuJoCo model after each step, [T, nq], where they were kept."""


class TracedStep(NamedTuple):
    """The tensors of one step of N envs, [N, …] each."""

    obs: Mapping[str, Tensor]
    action: Tensor | Mapping[str, Tensor]
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    pose: Tensor | None = None

    def row(self, env: int) -> TracedStep:
        """Return a copy with the tensors of one env, [1, …] each."""

        def of(value: Tensor) -> Tensor:
            return value[env : env + 1].clone()

        action = {name: of(part) for name, part in self.action.items()} if isinstance(self.action, Mapping) else None
        return TracedStep(
            obs={name: of(value) for name, value in self.obs.items()},
            action=of(self.action) if isinstance(self.action, Tensor) else action or {},
            reward=of(self.reward),
            terminated=of(self.terminated),
            truncated=of(self.truncated),
        )


class TraceRecorder:
    """Keep the newest steps of some envs."""

    def __init__(self, max_steps: int) -> None:
        """Keep at most so many steps."""
        self._steps: deque[TracedStep] = deque(maxlen=max_steps)

    def add(self, step: TracedStep) -> None:
        """Keep one step; nothing is copied."""
        self._steps.append(step)

    def trace(self, row: int, **facts: Any) -> EnvTrace:
        """Copy the steps of one env; components that are too large are left out."""
        steps = list(self._steps)
        left_out: list[str] = []

        def stacked(values: list[Tensor], name: str) -> dict[str, NDArray[Any]]:
            if not values:
                return {}
            if values[0][row].numel() * values[0].element_size() * len(values) > COMPONENT_BYTES:
                left_out.append(name)
                return {}
            array = np.stack([value[row].detach().cpu().numpy() for value in values])
            return {name: array}

        obs: dict[str, NDArray[Any]] = {}
        for name in steps[0].obs if steps else ():
            obs |= stacked([step.obs[name] for step in steps], name)
        parts = [step.action if isinstance(step.action, Mapping) else {"action": step.action} for step in steps]
        actions: dict[str, NDArray[Any]] = {}
        for name in parts[0] if parts else ():
            actions |= stacked([part[name] for part in parts], name)
        reward = np.array([float(step.reward[row]) for step in steps], np.float32)
        done = np.array([bool(step.terminated[row]) or bool(step.truncated[row]) for step in steps], bool)
        poses = [step.pose for step in steps if step.pose is not None]
        pose = stacked(poses, "pose").get("pose") if poses and len(poses) == len(steps) else None
        found = {**facts, "left_out": left_out} if left_out else facts
        return EnvTrace(obs=obs, actions=actions, reward=reward, done=done, facts=found, pose=pose)


def write_trace(path: str | Path, trace: EnvTrace) -> Path:
    """Write a trace, whole or not at all."""
    arrays = {f"obs/{name}": value for name, value in trace.obs.items()}
    arrays |= {f"action/{name}": value for name, value in trace.actions.items()}
    arrays |= {"reward": trace.reward, "done": trace.done}
    arrays |= {"pose": trace.pose} if trace.pose is not None else {}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # JSON has no infinities; a reader shows the words
    plain = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in trace.facts.items()
    }
    facts = json.dumps(plain, allow_nan=False).encode()
    return write_archive(path, arrays, {_META: facts}, compress=True)


def read_trace(path: str | Path) -> EnvTrace:
    """Read a trace; what is damaged, too large or of another form raises FileRefused."""
    arrays, texts = read_archive(path, what="trace", max_bytes=MAX_BYTES, max_members=512, kinds="fbiu", texts=(_META,))
    facts = decode_json(texts.get(_META, b"{}"), path)
    reward, done = arrays.get("reward"), arrays.get("done")
    if reward is None or done is None or reward.ndim != 1 or reward.shape != done.shape or not isinstance(facts, dict):
        raise FileRefused(path, "it is no trace: reward and done are wanted, of one length")
    if any(array.ndim < 1 or len(array) != len(reward) for array in arrays.values()):
        raise FileRefused(path, f"its arrays are not all of {len(reward)} steps")
    pose = arrays.get("pose")
    if pose is not None and pose.ndim != 2:
        raise FileRefused(path, f"its pose wants shape [steps, positions], found {list(pose.shape)}")
    return EnvTrace(
        obs={name.removeprefix("obs/"): array for name, array in arrays.items() if name.startswith("obs/")},
        actions={name.removeprefix("action/"): array for name, array in arrays.items() if name.startswith("action/")},
        reward=reward,
        done=done.astype(bool),
        facts=facts,
        pose=pose,
    )
