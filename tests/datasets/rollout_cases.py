"""Recordings whose numbers tell where they are from, and a reader of them in plain Python."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import torch

from striderl.data.noise import uniform
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.datasets.trajectories.spec import TrajectorySpec

COMPONENTS = ObsSpec({"place": ComponentSpec(shape=(2,)), "secret": ComponentSpec(group="critic")})


def spec_of(*, final_obs: bool) -> TrajectorySpec:
    """A spec with a component that everybody sees and one for the critic."""
    columns = {
        "obs": dict(COMPONENTS),
        "act": TensorSpec(shape=(1,)),
        "rew": TensorSpec(),
        "terminated": TensorSpec(dtype="bool"),
        "truncated": TensorSpec(dtype="bool"),
    }
    spec = TrajectorySpec.from_columns(columns, final_obs=final_obs)
    layout = {
        "observations": [{"name": name, "group": part.group, "scale": 1.0} for name, part in COMPONENTS.items()],
        "actions": [],
    }
    return TrajectorySpec(columns=spec.columns, final_obs=final_obs, layout=layout)


def observed(trajectory: int, frames: Any) -> dict[str, torch.Tensor]:
    """What is seen at frames of a trajectory: its number and the frame; to the critic both in one."""
    frame = torch.as_tensor(frames, dtype=torch.float32)
    return {
        "place": torch.stack([torch.full_like(frame, trajectory), frame], dim=-1),
        "secret": trajectory * 100 + frame,
    }


def steps_of(trajectory: int, length: int, ending: str) -> dict[str, Any]:
    """A trajectory that 'falls', runs out of 'time', or is 'cut' by whoever recorded it."""
    frame = torch.arange(length)
    last = frame == length - 1
    return {
        "obs": observed(trajectory, frame),
        "act": (trajectory + 0.01 * frame)[:, None].float(),
        "rew": -(trajectory * 100 + frame).float(),
        "terminated": last & (ending == "falls"),
        "truncated": last & (ending == "time"),
    }


class MemoryTrajectories:
    """Trajectories in memory, with the methods of a store; `hidden` ones are found by the next refresh."""

    def __init__(self, *, final_obs: bool = True, name: str = "memory") -> None:
        self.spec = spec_of(final_obs=final_obs)
        self.steps: list[dict[str, Any]] = []
        self.hidden: list[dict[str, Any]] = []
        self.folder = name
        self.num_reads = 0

    def record(self, length: int, ending: str = "falls") -> None:
        self.hidden.append(steps_of(len(self.steps) + len(self.hidden), length, ending))

    def refresh(self) -> int:
        found, self.hidden = self.hidden, []
        self.steps += found
        return len(found)

    def __len__(self) -> int:
        return len(self.steps)

    def lengths(self) -> list[int]:
        return [len(steps["rew"]) for steps in self.steps]

    def times(self) -> list[int]:
        return list(range(len(self.steps)))

    def name(self, index: int) -> str:
        return f"{self.folder}@{index}"

    def read(self, index: int, start: int, stop: int, *, columns: Collection[str]) -> dict[str, Any]:
        self.num_reads += 1
        steps = self.steps[index]
        return {
            key: {name: leaf[start:stop] for name, leaf in part.items()} if key == "obs" else part[start:stop]
            for key, part in steps.items()
            if key in columns
        }

    def read_final_obs(self, index: int) -> dict[str, Any] | None:
        return observed(index, [self.lengths()[index]]) if self.spec.final_obs else None


class Row(NamedTuple):
    """One step of one env, as the reference has it."""

    trajectory: int
    frame: int
    done: bool
    timeout: bool
    following: tuple[int, int]
    """What the env shows next; (-1, 0) where nothing is left."""
    final: tuple[int, int]
    """What really followed."""


class Reference:
    """One cursor after the other, step by step, with lists and loops."""

    def __init__(self, source: MemoryTrajectories, num_envs: int, settings: dict[str, Any]) -> None:
        self.source, self.settings = source, settings
        self.queue: list[int] = []
        self.num_begun = self.num_taken = 0
        self.places: list[tuple[int, int] | None] = [None] * num_envs
        self.reset(range(num_envs))

    def reset(self, envs: Any) -> None:
        for env in envs:
            self.places[env] = self._begin()

    def step(self, envs: Any) -> list[Row | None]:
        """Move all envs on; those whose trajectory ended take the next ones afterwards, in order."""
        before = {env: self.places[env] for env in envs}
        lengths = self.source.lengths()
        ended = []
        for env, place in before.items():
            if place is not None:
                self.places[env] = (place[0], place[1] + 1)
                if place[1] + 1 == lengths[place[0]]:
                    ended.append(env)
        self.reset(ended)
        return [None if place is None else self._row(env, place, env in ended) for env, place in before.items()]

    def _row(self, env: int, place: tuple[int, int], ended: bool) -> Row:
        trajectory, frame = place
        steps = self.source.steps[trajectory]
        following = self.places[env] or (-1, 0)
        final = following
        if ended:
            final = (trajectory, frame + 1 if self.source.spec.final_obs else frame)
        return Row(trajectory, frame, ended, ended and not bool(steps["terminated"][frame]), following, final)

    def _begin(self) -> tuple[int, int] | None:
        loops = self.settings["dataset_loops"]
        if not self.queue:
            if loops >= 1 and self.num_begun >= loops:
                return None
            self.source.refresh()
            self.queue = self._pass()
            self.num_begun += 1
        trajectory = self.queue.pop(0)
        length = self.source.lengths()[trajectory]
        low, high = self.settings["starting_frame_range"]
        low = min(low, length - 1)
        high = max(low + 1, min(high, length))
        frame = low + int(self._draw("start frame", self.num_taken, 0) * (high - low))
        self.num_taken += 1
        return trajectory, frame

    def _pass(self) -> list[int]:
        found = list(range(len(self.source)))
        newest = self.settings["keep_latest_n_trajs"]
        found = found[-newest:] if newest else found
        if self.settings["random_shuffle_traj_order"]:
            found.sort(key=lambda trajectory: self._draw("trajectory order", trajectory, self.num_begun))
        return found

    def _draw(self, name: str, number: int, occasion: int) -> float:
        seed = self.settings["seed"]
        return float(uniform(name, seed=seed, env_index=np.array([number]), occasion=occasion, count=1)[0, 0])
