"""Action specs: a box of real numbers, one or several choices, or a named mixture of these.

`ActuationSpec` describes how an env processes a box action on the way to its actuators.

A discrete spec may name the observation component with the mask of allowed choices (`mask`), so that masks
are stored, replayed and exported with everything else that was observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from striderl.data.specs import TensorSpec, as_shape


@dataclass(frozen=True, kw_only=True)
class BoxSpec:
    """Real-valued actions between bounds; a bound may be infinite."""

    shape: tuple[int, ...]
    """The shape of one env's action, usually (number of joints,)."""
    low: tuple[float, ...] | float = -float("inf")
    """Lower bound, one number for all or one per entry (flattened)."""
    high: tuple[float, ...] | float = float("inf")
    """Upper bound, likewise."""
    names: tuple[str, ...] = ()
    """Joint or channel names, one per entry, for export metadata; empty when unknown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", as_shape(self.shape))
        size = int(np.prod(self.shape))
        for bound in ("low", "high"):
            value = getattr(self, bound)
            if not isinstance(value, (int, float)):
                value = tuple(float(number) for number in np.asarray(value).reshape(-1))
                if len(value) != size:
                    raise ValueError(f"BoxSpec.{bound} has {len(value)} numbers for an action of {size}")
                object.__setattr__(self, bound, value)
        if np.any(np.asarray(self.low) > np.asarray(self.high)):
            raise ValueError(f"BoxSpec: low {self.low} is above high {self.high}")
        if self.names and len(self.names) != size:
            raise ValueError(f"BoxSpec.names has {len(self.names)} names for an action of {size}")

    @property
    def tensor(self) -> TensorSpec:
        """How one action is stored."""
        return TensorSpec(shape=self.shape, dtype="float32")

    def bounds(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return low and high as float32 arrays of the action's shape."""
        low = np.broadcast_to(np.asarray(self.low, np.float32), (int(np.prod(self.shape)),)).reshape(self.shape)
        high = np.broadcast_to(np.asarray(self.high, np.float32), (int(np.prod(self.shape)),)).reshape(self.shape)
        return low.copy(), high.copy()

    @property
    def is_bounded(self) -> bool:
        """Whether any entry has a finite bound, so that there is something to clip to."""
        return bool(np.isfinite(np.asarray(self.low)).any() or np.isfinite(np.asarray(self.high)).any())

    def clip_bounds(self, dtype: Any = np.float32) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return low and high of the action's shape, rounded inwards: what is clipped in `dtype` lies in the box.

        The nearest float32 of a float64 bound may lie outside of it. For whole numbers the bounds are float64.
        """
        kind = np.dtype(dtype)
        size = (int(np.prod(self.shape)),)
        low, high = (np.broadcast_to(np.asarray(bound, np.float64), size) for bound in (self.low, self.high))
        if kind.kind != "f":
            return np.ceil(low).reshape(self.shape), np.floor(high).reshape(self.shape)
        lower, upper = low.astype(kind), high.astype(kind)
        up, down = np.asarray(np.inf, kind), np.asarray(-np.inf, kind)
        lower = np.where(lower.astype(np.float64) < low, np.nextafter(lower, up), lower)
        upper = np.where(upper.astype(np.float64) > high, np.nextafter(upper, down), upper)
        return lower.reshape(self.shape), upper.reshape(self.shape)


@dataclass(frozen=True, kw_only=True)
class DiscreteSpec:
    """One choice out of n, numbered from 0."""

    n: int
    """How many choices there are."""
    mask: str = ""
    """The observation component [n] of bool that is true for allowed choices; empty when all always are."""

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"DiscreteSpec wants at least one choice, found n={self.n}")

    @property
    def tensor(self) -> TensorSpec:
        """How one action is stored."""
        return TensorSpec(shape=(), dtype="int64")


@dataclass(frozen=True, kw_only=True)
class MultiDiscreteSpec:
    """Several choices at once, the i-th out of nvec[i]."""

    nvec: tuple[int, ...]
    """How many choices each entry has."""
    mask: str = ""
    """The observation component [sum(nvec)] of bool with the allowed choices of all entries in a row; empty: none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nvec", as_shape(self.nvec))
        if not self.nvec or min(self.nvec) < 1:
            raise ValueError(f"MultiDiscreteSpec wants at least one choice in every entry, found nvec={self.nvec}")

    @property
    def tensor(self) -> TensorSpec:
        """How one action is stored."""
        return TensorSpec(shape=(len(self.nvec),), dtype="int64")


@dataclass(frozen=True)
class DictActionSpec:
    """Named parts, each with a spec of its own; actions are dicts with the same names (hybrid action spaces)."""

    parts: Mapping[str, BoxSpec | DiscreteSpec | MultiDiscreteSpec]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("DictActionSpec wants at least one part")
        object.__setattr__(self, "parts", dict(self.parts))

    @property
    def tensor(self) -> dict[str, TensorSpec]:
        """How one action is stored, part by part."""
        return {name: part.tensor for name, part in self.parts.items()}

    def __hash__(self) -> int:
        return hash(tuple(self.parts.items()))


@dataclass(frozen=True, kw_only=True)
class ActuationSpec:
    """How an env processes a box action on the way to its actuators, as far as the env declares it; None is unknown.

    target = offset + scale · (action, clipped to the bounds of its `BoxSpec`), then clipped to target_low, target_high

    Every tuple has one number, or name, per entry of the action (flattened), in its order.
    """

    target: str | None = None
    """What is set: 'joint_position' (rad), 'joint_velocity', 'torque' (Nm), or 'control' of a MuJoCo actuator."""
    scale: tuple[float, ...] | None = None
    """Units of target per unit of action."""
    offset: tuple[float, ...] | None = None
    """The target that action zero stands for."""
    target_low: tuple[float, ...] | None = None
    """The lower limit of targets; None where the env does not limit them, or does not declare it."""
    target_high: tuple[float, ...] | None = None
    """The upper limit."""
    joint_names: tuple[str, ...] | None = None
    """The joints that the entries drive."""
    default_joint_pos: tuple[float, ...] | None = None
    """The joints' default pose, rad."""
    joint_stiffness: tuple[float, ...] | None = None
    """kp of the joints' position controllers, Nm/rad, before any randomisation."""
    joint_damping: tuple[float, ...] | None = None
    """kd of them, Nm s/rad."""
    command_names: tuple[str, ...] | None = None
    """The commands that the task gives to the policy; not one per entry."""

    def __post_init__(self) -> None:
        lengths: dict[str, int] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or field.name == "target":
                continue
            kind = str if field.name.endswith("_names") else float
            object.__setattr__(self, field.name, tuple(kind(entry) for entry in value))
            if field.name != "command_names":
                lengths[field.name] = len(value)
        if len(set(lengths.values())) > 1:
            raise ValueError(f"ActuationSpec wants one entry per action in every field, found {lengths}")

    def check(self, spec: BoxSpec) -> None:
        """Raise ValueError unless there is one entry per entry of this action."""
        size = spec.tensor.size
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name not in ("target", "command_names") and len(value) != size:
                raise ValueError(f"ActuationSpec.{field.name} has {len(value)} entries for an action of {size}")


PlainActionSpec = BoxSpec | DiscreteSpec | MultiDiscreteSpec
ActionSpec = BoxSpec | DiscreteSpec | MultiDiscreteSpec | DictActionSpec


def action_spec_from_space(space: Any, *, mask: str = "") -> ActionSpec:
    """Describe a Gymnasium action space; `mask` names the observation component with the allowed choices."""
    kind = type(space).__name__
    if kind == "Box":
        if mask:
            raise ValueError("a Box action space has no choices to mask")
        return BoxSpec(shape=tuple(space.shape), low=tuple(space.low.reshape(-1)), high=tuple(space.high.reshape(-1)))
    if np.any(getattr(space, "start", 0)):  # of a Discrete or MultiDiscrete
        raise ValueError(f"{kind} action spaces start at 0 here, found start={space.start}; shift it in a wrapper")
    if kind == "Discrete":
        return DiscreteSpec(n=int(space.n), mask=mask)
    if kind == "MultiDiscrete":
        return MultiDiscreteSpec(nvec=tuple(int(n) for n in np.asarray(space.nvec).reshape(-1)), mask=mask)
    if kind == "MultiBinary":
        return MultiDiscreteSpec(nvec=(2,) * int(np.prod(space.shape)), mask=mask)
    if kind == "Dict":
        parts = {str(name): action_spec_from_space(inner) for name, inner in space.spaces.items()}
        flat: dict[str, PlainActionSpec] = {}
        for name, part in parts.items():
            if isinstance(part, DictActionSpec):
                raise TypeError(f"action part {name!r} is itself a Dict; one level of names is supported")
            flat[name] = part
        return DictActionSpec(flat)
    raise TypeError(f"action space {kind} is not supported; use Box, Discrete, MultiDiscrete, MultiBinary or Dict")
