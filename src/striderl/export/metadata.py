"""What a robot must know besides the network: which numbers go in, in which order, and what comes out.

One description is written twice, as JSON beside the model and key by key inside the ONNX file, so that neither can be
lost without the other; the JSON file also has the 'parity' that was measured:

    {"format": 1, "striderl": "0.1.0", "torch": "2.13.0", "commit": "…", "dt": 0.02,
     "observations": [{"name": "joints", "shape": [12], "dtype": "float32", "scale": 1.0, "group": "policy"}, …],
     "unused_observations": ["velocity"],
     "training_layout": [{"name": "joints", …}, {"name": "velocity", …}],      what the actor was given, in a row
     "states": [{"name": "actor/0_Remember/hidden", "input": "state/…", "output": "next_state/…", "shape": […], …}],
     "actions": [{"output": "action", "kind": "box", "shape": [12], "names": ["hip", …], "scale": [0.25, …],
                  "low": [null, …], "high": [null, …]}],
     "extra": {…}}

Scales are told, not applied: a component is what the simulator gave, an action what the network gave.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import decode_json
from striderl.data.actions import BoxSpec, DiscreteSpec, PlainActionSpec
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec

FORMAT = 1
"""The version of this layout."""


@dataclass(frozen=True, kw_only=True)
class ExportMetadata:
    """What only the one who exports knows."""

    dt: float
    """Seconds between two actions."""
    action_scale: float | tuple[float, ...] = 1.0
    """What the env multiplies actions by before they reach the motors; one number, or one per entry."""
    action_names: tuple[str, ...] = ()
    """Joint or channel names, when the action spec does not have them."""
    commit: str = ""
    """The version of the code that trained the policy; empty takes the commit of the git checkout one works in."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Anything else that JSON can hold: gains, default pose, the name of the robot."""

    def __post_init__(self) -> None:
        if not (self.dt > 0.0 and math.isfinite(self.dt)):
            raise ValueError(f"ExportMetadata.dt is the time between two actions in seconds, found {self.dt}")


def describe_component(name: str, part: ComponentSpec) -> dict[str, Any]:
    """Return one input of the observation."""
    return {
        "name": name,
        "shape": list(part.shape),
        "dtype": part.dtype,
        "scale": part.scale,
        "group": part.group,
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
        size = spec.tensor.size
        low, high = spec.bounds()
        return {
            **common,
            "kind": "box",
            "names": list(_names(output, spec, metadata)),
            "scale": _per_entry(metadata.action_scale, size, "action_scale"),
            "low": [_finite(number) for number in low.reshape(-1)],
            "high": [_finite(number) for number in high.reshape(-1)],
        }
    if isinstance(spec, DiscreteSpec):
        return {**common, "kind": "discrete", "n": spec.n, "mask": spec.mask}
    return {**common, "kind": "multi_discrete", "nvec": list(spec.nvec), "mask": spec.mask}


def spec_of(metadata: Mapping[str, Any], entry: str = "observations") -> ObsSpec:
    """Return the observation that an entry of a description names: what is read, or 'training_layout'."""
    return ObsSpec(
        {
            part["name"]: ComponentSpec(
                shape=tuple(part["shape"]), dtype=part["dtype"], group=part["group"], scale=part["scale"]
            )
            for part in metadata[entry]
        }
    )


def as_properties(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the description as the string table that an ONNX file holds; every value is JSON."""
    return {key: json.dumps(value) for key, value in metadata.items()}


def from_properties(properties: Mapping[str, str]) -> dict[str, Any]:
    """Read the string table of an ONNX file; entries that are not JSON are other people's."""
    found: dict[str, Any] = {}
    for key, text in properties.items():
        try:
            found[key] = decode_json(text.encode("utf-8", errors="surrogatepass"), f"the entry {key!r}")
        except FileRefused:
            continue
    return found


def _names(output: str, spec: BoxSpec, metadata: ExportMetadata) -> tuple[str, ...]:
    names = spec.names or metadata.action_names
    if names and len(names) != spec.tensor.size:
        raise ValueError(f"{output!r} has {spec.tensor.size} entries, ExportMetadata.action_names has {len(names)}")
    return names


def _per_entry(value: float | Sequence[float], size: int, what: str) -> list[float]:
    numbers = np.asarray(value, np.float64).reshape(-1)
    if numbers.size not in (1, size):
        raise ValueError(f"ExportMetadata.{what} has {numbers.size} numbers for an action of {size}")
    return [float(number) for number in np.broadcast_to(numbers, (size,))]


def _finite(number: Any) -> float | None:
    return float(number) if math.isfinite(number) else None
