"""What a robot needs besides the network: its inputs in order, and the meaning of its outputs.

One description is written twice, as JSON next to the model and key by key inside the ONNX file, so that neither can be
lost without the other; the JSON file also has the 'parity' that was measured:

    {"format": 1, "striderl": "0.1.0", "torch": "2.13.0", "commit": "…", "dt": 0.02,      null: time has no unit
     "observations": [{"name": "joints", "shape": [12], "dtype": "float32", "scale": 1.0, "group": "policy"}, …],
     "unused_observations": ["velocity"],
     "training_layout": [{"name": "joints", …}, {"name": "velocity", …}],      what the actor was given, in a row
     "states": [{"name": "actor/0_Remember/hidden", "input": "state/…", "output": "next_state/…", "shape": […], …}],
     "actions": [{"output": "action", "kind": "box", "shape": [12], "names": ["hip", …], "low": [-5.0, …], "high": […],
                  "clipped": true, "target": "joint_position", "scale": [0.25, …], "offset": [0.1, …],
                  "target_low": […], "target_high": […]}],
     "joint_names": […], "joint_stiffness": […], "joint_damping": […], "default_joint_pos": […], "action_scale": […],
     "action_offset": […], "command_names": […], "observation_names": ["joints", …],       mjlab's names, in JSON
     "extra": {…}}

A component is what the simulator gave, with its scale in it; an action is what the network gave, clipped to low and
high where these are numbers. What the robot's controllers are given is `offset + scale · action`, within target_low and
target_high. Everything that the env did not declare is null.

The commit of the code that is running, for the description of a bundle.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import decode_json
from striderl.data.actions import ActuationSpec, BoxSpec, DiscreteSpec, PlainActionSpec
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec

FORMAT = 1
"""The version of this layout."""


@dataclass(frozen=True, kw_only=True)
class ExportMetadata:
    """Metadata besides the network; of an env: `ExportMetadata(dt=env.step_dt or None, actuation=env.actuation)`."""

    dt: float | None = None
    """Seconds between two actions; None where time has no unit, or it is unknown."""
    actuation: ActuationSpec | None = None
    """How the env processes actions before its actuators; None where it is unknown."""
    action_scale: float | tuple[float, ...] | None = None
    """What actions are multiplied by, one number or one per entry, where `actuation` does not have it."""
    action_names: tuple[str, ...] = ()
    """Joint or channel names, when neither the action spec nor `actuation` has them."""
    commit: str = ""
    """The version of the code that trained the policy; empty takes the commit of the git checkout one works in."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Anything else that JSON can hold: gains, default pose, the name of the robot."""

    def __post_init__(self) -> None:
        if self.dt is not None and not (self.dt > 0.0 and math.isfinite(self.dt)):
            raise ValueError(
                f"ExportMetadata.dt is the time between two actions in seconds, or None if unknown, found {self.dt}"
            )
        if self.action_scale is not None and self.actuation is not None and self.actuation.scale is not None:
            raise ValueError("ExportMetadata: actuation states the scale of actions already; leave action_scale out")


def describe_component(name: str, part: ComponentSpec) -> dict[str, Any]:
    """Return one input of the observation."""
    choices = {"num_choices": list(part.num_choices)} if part.num_choices else {}
    starts = {"first_choice": list(part.first_choice)} if part.first_choice else {}
    return {
        "name": name,
        "shape": list(part.shape),
        "dtype": part.dtype,
        "scale": part.scale,
        "group": part.group,
        **choices,
        **starts,
    }


def describe_state(name: str, spec: TensorSpec) -> dict[str, Any]:
    """Return one piece of memory."""
    return {
        "name": name,
        "input": f"state/{name}",
        "output": f"next_state/{name}",
        "shape": list(spec.shape),
        "dtype": spec.dtype,
    }


def describe_action(output: str, spec: PlainActionSpec, metadata: ExportMetadata) -> dict[str, Any]:
    """Return one output; bounds that are infinite are null, because JSON has no infinity."""
    common = {"output": output, "shape": list(spec.tensor.shape), "dtype": spec.tensor.dtype}
    if isinstance(spec, BoxSpec):
        low, high = spec.clip_bounds()
        stated = actuation_of(spec, metadata)
        return {
            **common,
            "kind": "box",
            "names": list(_names(output, spec, metadata)),
            "low": [_finite(number) for number in low.reshape(-1)],
            "high": [_finite(number) for number in high.reshape(-1)],
            "clipped": spec.is_bounded,
            "target": stated.target,
            "scale": _listed(stated.scale),
            "offset": _listed(stated.offset),
            "target_low": _listed(stated.target_low),
            "target_high": _listed(stated.target_high),
        }
    if isinstance(spec, DiscreteSpec):
        return {**common, "kind": "discrete", "n": spec.n, "mask": spec.mask}
    return {**common, "kind": "multi_discrete", "nvec": list(spec.nvec), "mask": spec.mask}


def describe_joints(actions: Mapping[str, PlainActionSpec], metadata: ExportMetadata) -> dict[str, Any]:
    """Return the entries about the robot as a whole, under the names that mjlab's files have."""
    boxes = [spec for spec in actions.values() if isinstance(spec, BoxSpec)]
    stated = actuation_of(boxes[0], metadata) if len(actions) == len(boxes) == 1 else ActuationSpec()
    return {
        "joint_names": _listed(stated.joint_names),
        "joint_stiffness": _listed(stated.joint_stiffness),
        "joint_damping": _listed(stated.joint_damping),
        "default_joint_pos": _listed(stated.default_joint_pos),
        "action_scale": _listed(stated.scale),
        "action_offset": _listed(stated.offset),
        "command_names": _listed(stated.command_names),
    }


def actuation_of(spec: BoxSpec, metadata: ExportMetadata) -> ActuationSpec:
    """Return the actuation of a box action: from the env, or its scale from the export's arguments."""
    stated = metadata.actuation or ActuationSpec()
    stated.check(spec)
    if metadata.action_scale is None:
        return stated
    scale = _per_entry(metadata.action_scale, spec.tensor.size, "action_scale")
    return replace(stated, scale=tuple(scale))


def spec_of(metadata: Mapping[str, Any], entry: str = "observations") -> ObsSpec:
    """Return the observation that an entry of a description names: what is read, or 'training_layout'."""
    return ObsSpec(
        {
            part["name"]: ComponentSpec(
                shape=tuple(part["shape"]),
                dtype=part["dtype"],
                group=part["group"],
                scale=part["scale"],
                num_choices=tuple(part.get("num_choices", ())),
                first_choice=tuple(part.get("first_choice", ())),
            )
            for part in metadata[entry]
        }
    )


def as_properties(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the description as the string table that an ONNX file holds; every value is JSON."""
    return {key: json.dumps(value) for key, value in metadata.items()}


def from_properties(properties: Mapping[str, str]) -> dict[str, Any]:
    """Read the string table of an ONNX file; entries that are not JSON are from other tools."""
    found: dict[str, Any] = {}
    for key, text in properties.items():
        try:
            found[key] = decode_json(text.encode("utf-8", errors="surrogatepass"), f"the entry {key!r}")
        except FileRefused:
            continue
    return found


def _names(output: str, spec: BoxSpec, metadata: ExportMetadata) -> tuple[str, ...]:
    stated = metadata.actuation.joint_names if metadata.actuation is not None else None
    names = spec.names or stated or metadata.action_names
    if names and len(names) != spec.tensor.size:
        raise ValueError(f"{output!r} has {spec.tensor.size} entries, ExportMetadata.action_names has {len(names)}")
    return names


def _listed(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)


def _per_entry(value: float | Sequence[float], size: int, what: str) -> list[float]:
    numbers = np.asarray(value, np.float64).reshape(-1)
    if numbers.size not in (1, size):
        raise ValueError(f"ExportMetadata.{what} has {numbers.size} numbers for an action of {size}")
    return [float(number) for number in np.broadcast_to(numbers, (size,))]


def _finite(number: Any) -> float | None:
    return float(number) if math.isfinite(number) else None


def current_commit(folder: str | Path = ".") -> str:
    """Return the commit of the git checkout that a folder lies in; '' where there is none, or no git."""
    return (_git(folder, "rev-parse", "HEAD") or "").strip()


def uncommitted_files(folder: str | Path = ".") -> int | None:
    """Return how many tracked files of the git checkout differ from its commit; None where there is no checkout."""
    found = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if found is None else len(found.splitlines())


def _git(folder: str | Path, *words: str) -> str | None:
    """Return what git prints; None where there is no git, no checkout, or an error."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        found = subprocess.run([git, *words], cwd=folder, capture_output=True, text=True, timeout=10.0, check=False)
    except (OSError, subprocess.TimeoutExpired):  # a git that hangs or cannot start must not stop an export
        return None
    return found.stdout if found.returncode == 0 else None
