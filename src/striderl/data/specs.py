"""Observation specs: named components with shape, dtype and group.

One `ObsSpec` drives slicing, encoders, estimators, partial checkpoint loads and export metadata, so the layout of an
observation is written down exactly once. A flat vector is a spec over views of it:

    spec = ObsSpec.from_segments({"command": 3, "joints": 12, "height_scan": (1, 2, 3)})

    flat   [ c c c | j j j j j j j j j j j j | h h h h h h ]      21 numbers
             0:3     3:15                      15:21
    spec.split(flat)["height_scan"].shape == (1, 2, 3)            a view, nothing is copied
    spec.select(["joints", "command"]).names == ("command", "joints")     the spec's order, not the argument's
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from striderl.data.naming import unknown

DTYPES = ("float32", "float64", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64", "bool")
"""Every dtype a spec may name; the words are those of numpy and torch alike."""


def dtype_name(dtype: Any) -> str:
    """Return the one name that numpy and torch share for a dtype ('float32', 'bool', …)."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        try:
            name = np.dtype(dtype).name
        except TypeError:
            raise TypeError(unknown("dtype", str(dtype), DTYPES, where="striderl")) from None
    if name not in DTYPES:
        raise TypeError(f"dtype {dtype!r} cannot be stored in a tensor; use one of {', '.join(DTYPES)}")
    return name


def torch_dtype(name: str) -> Any:
    """Return torch's dtype of that name; torch is imported here so that specs load without it."""
    import torch

    table = {
        "float32": torch.float32,
        "float64": torch.float64,
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
        "uint8": torch.uint8,
        "int8": torch.int8,
        "int16": torch.int16,
        "int32": torch.int32,
        "int64": torch.int64,
        "bool": torch.bool,
    }
    return table[dtype_name(name)]


def as_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape tuple from a size or a sequence of sizes."""
    if isinstance(shape, str):
        raise TypeError(f"a shape is a size or a sequence of sizes, found {shape!r}")
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    result = tuple(int(size) for size in sizes)
    if any(size < 0 for size in result):
        raise ValueError(f"a shape has no negative sizes, found {result}")
    return result


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Shape and dtype of one tensor, without its leading env and time dimensions."""

    shape: tuple[int, ...] = ()
    """The shape of one env's value: () for a number, (48,) for a vector, (1, 64, 64) for an image."""
    dtype: str = "float32"
    """One of `DTYPES`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", as_shape(self.shape))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    @property
    def size(self) -> int:
        """How many numbers one env's value holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class ComponentSpec(TensorSpec):
    """One named part of an observation."""

    group: str = "policy"
    """Its group: 'policy', 'critic' (privileged), 'teacher', 'motion', 'action_mask', …"""
    scale: float = 1.0
    """The simulator's scale of the physical quantity; kept for export metadata, never applied here."""
    num_choices: tuple[int, ...] = ()
    """Of a Discrete or MultiDiscrete component: how many values each entry (flattened) can have; else empty."""
    first_choice: tuple[int, ...] = ()
    """Of such a component: the lowest value of each entry; empty where all start at 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "num_choices", as_shape(self.num_choices))
        object.__setattr__(self, "first_choice", tuple(int(number) for number in self.first_choice))
        if self.num_choices and (len(self.num_choices) != self.size or min(self.num_choices) < 1):
            raise ValueError(
                f"num_choices wants a positive number for each of the {self.size} entries, found {self.num_choices}"
            )
        if self.first_choice and len(self.first_choice) != len(self.num_choices):
            raise ValueError(f"first_choice has {len(self.first_choice)} numbers for {len(self.num_choices)} entries")


SAME_GROUP = (("policy", "actor", "state"), ("critic", "privileged_state"))
"""Names of one group: of the actor's observations (Isaac Lab, mjlab, Playground), and of the critic's."""


@dataclass(frozen=True, eq=False)
class ObsSpec(Mapping[str, ComponentSpec]):
    """Ordered components of an observation; a mapping from name to `ComponentSpec`."""

    components: Mapping[str, ComponentSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, component in self.components.items():
            if not isinstance(name, str) or not name:
                raise TypeError(f"observation component names are non-empty strings, found {name!r}")
            if not isinstance(component, ComponentSpec):
                raise TypeError(f"component {name!r}: wanted a ComponentSpec, found {type(component).__name__}")
        object.__setattr__(self, "components", dict(self.components))

    # -- the mapping -----------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> ComponentSpec:
        try:
            return self.components[name]
        except KeyError:
            raise KeyError(unknown("component", name, self.components, where="the observation")) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.components)

    def __len__(self) -> int:
        return len(self.components)

    def __eq__(self, other: object) -> bool:
        """Return whether the other spec has the same components in the same order: swapping two changes the layout."""
        return isinstance(other, ObsSpec) and list(self.components.items()) == list(other.components.items())

    def __hash__(self) -> int:
        return hash(tuple(self.components.items()))

    @property
    def names(self) -> tuple[str, ...]:
        """Component names in order."""
        return tuple(self.components)

    @property
    def groups(self) -> tuple[str, ...]:
        """Group names in the order in which they first appear."""
        return tuple(dict.fromkeys(component.group for component in self.components.values()))

    @property
    def size(self) -> int:
        """How many numbers one env's whole observation holds."""
        return sum(component.size for component in self.components.values())

    # -- construction ----------------------------------------------------------------------------------------------

    @classmethod
    def from_segments(
        cls, obs_segments: Mapping[str, int | Sequence[int]], *, group: str = "policy", dtype: str = "float32"
    ) -> ObsSpec:
        """Describe a flat vector whose consecutive pieces have these names and shapes."""
        return cls(
            {
                name: ComponentSpec(shape=as_shape(shape), dtype=dtype, group=group)
                for name, shape in obs_segments.items()
            }
        )

    @classmethod
    def from_flat(
        cls, size: int, obs_segments: Mapping[str, int | Sequence[int]] | None = None, *, group: str = "policy"
    ) -> ObsSpec:
        """Describe a flat vector of this size, in segments if given, else as one component named 'obs'."""
        spec = cls.from_segments(obs_segments if obs_segments is not None else {"obs": size}, group=group)
        if spec.size != size:
            sizes = ", ".join(f"{name}={component.size}" for name, component in spec.items())
            raise ValueError(f"obs_segments add up to {spec.size} numbers ({sizes}), but the observation has {size}")
        return spec

    @classmethod
    def from_tensors(
        cls, obs: Mapping[str, Any], *, groups: Mapping[str, str] | None = None, batch_dims: int = 1
    ) -> ObsSpec:
        """Describe a dict or TensorDict of [N, …] tensors or arrays; nested names are joined with '/'."""
        found: dict[str, ComponentSpec] = {}
        for name, value in flatten_names(obs):
            found[name] = ComponentSpec(
                shape=tuple(value.shape[batch_dims:]),
                dtype=dtype_name(value.dtype),
                group=(groups or {}).get(name, "policy"),
            )
        return cls(found)

    @classmethod
    def from_space(cls, space: Any, *, group: str = "policy") -> ObsSpec:
        """Describe a Gymnasium space; Dict and Tuple spaces give one component per leaf, others one named 'obs'."""
        leaves = list(space_leaves(space))
        if leaves and leaves[0][0] == "":
            leaves = [("obs", leaves[0][1])]
        return cls({name: replace(spec, group=group) for name, spec in leaves})

    # -- parts of a spec ---------------------------------------------------------------------------------------------

    def resolve(self, name: str) -> str | None:
        """Return the component or group of this name, else the group that others call so; None where there is none."""
        groups = self.groups
        if name in self.components or name in groups:
            return name
        others = next((names for names in SAME_GROUP if name in names), ())
        return next((other for other in others if other in groups), None)

    def select(self, wanted: Iterable[str]) -> ObsSpec:
        """Keep the components named, or all components of a group named; the order is this spec's own."""
        chosen: set[str] = set()
        for name in wanted:
            found = self.resolve(name)
            if found is None:
                choices = [*self.components, *(group for group in self.groups if group not in self.components)]
                raise KeyError(unknown("component or group", name, choices, where="the observation"))
            if found in self.components:
                chosen.add(found)
            else:
                chosen.update(key for key, component in self.components.items() if component.group == found)
        return ObsSpec({name: component for name, component in self.components.items() if name in chosen})

    def merged(self, other: ObsSpec) -> ObsSpec:
        """Return this spec followed by the other's components; a name in both is an error."""
        both = [name for name in other if name in self.components]
        if both:
            raise ValueError(f"components {both} are in both specs; rename one side")
        return ObsSpec({**self.components, **other.components})

    def slices(self) -> dict[str, slice]:
        """Return where each component lies in the flat vector."""
        result, start = {}, 0
        for name, component in self.components.items():
            result[name] = slice(start, start + component.size)
            start += component.size
        return result

    # -- values --------------------------------------------------------------------------------------------------------

    def split(self, flat: Any) -> dict[str, Any]:
        """Cut a flat [..., size] tensor or array into named views; writing to a view writes to the flat vector."""
        if flat.shape[-1] != self.size:
            raise ValueError(f"the flat observation has {flat.shape[-1]} numbers, the spec wants {self.size}: {self}")
        lead = tuple(flat.shape[:-1])
        return {
            name: flat[..., place].reshape(lead + self.components[name].shape)
            if len(self.components[name].shape) != 1
            else flat[..., place]
            for name, place in self.slices().items()
        }

    def flatten(self, obs: Mapping[str, Any]) -> Any:
        """Join the components of this spec into one flat [..., size] tensor or array, in the spec's order."""
        self.require(obs)
        pieces = []
        for name, component in self.components.items():
            value = obs[name]
            lead = tuple(value.shape[: value.ndim - len(component.shape)])
            pieces.append(value.reshape((*lead, component.size)))
        if isinstance(pieces[0], np.ndarray):
            return np.concatenate(pieces, axis=-1)
        import torch

        return torch.cat(pieces, dim=-1)

    def require(self, obs: Mapping[str, Any], *, where: str = "the observation") -> None:
        """Raise KeyError or ValueError unless obs holds every component with the shape the spec gives it."""
        for name, component in self.components.items():
            if name not in obs:
                raise KeyError(unknown("component", name, obs.keys(), where=where))
            shape = tuple(obs[name].shape)
            if shape[len(shape) - len(component.shape) :] != component.shape or len(shape) < len(component.shape):
                raise ValueError(f"{where}: component {name!r} wants shape [..., {component.shape}], found {shape}")

    def __str__(self) -> str:
        parts = (f"{name}{list(component.shape)}:{component.dtype}" for name, component in self.components.items())
        return "ObsSpec(" + ", ".join(parts) + ")"


def flatten_names(obs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ('outer/inner', leaf) for a nested mapping, depth first, in its own order."""
    for key, value in obs.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) or (hasattr(value, "items") and hasattr(value, "keys")):
            yield from flatten_names(value, f"{name}/")
        else:
            yield name, value


def space_leaves(space: Any, prefix: str = "") -> Iterator[tuple[str, ComponentSpec]]:
    """Yield ('outer/inner', spec) for each leaf of a Gymnasium space; a plain space has the name ''."""
    kind = type(space).__name__
    if kind == "Dict":
        for key, inner in space.spaces.items():
            yield from space_leaves(inner, f"{prefix}/{key}" if prefix else str(key))
    elif kind == "Tuple":
        for position, inner in enumerate(space.spaces):
            yield from space_leaves(inner, f"{prefix}/{position}" if prefix else str(position))
    elif kind in ("Box", "Discrete", "MultiDiscrete", "MultiBinary"):
        num_choices, first_choice = _choices(space, kind)
        yield (
            prefix,
            ComponentSpec(
                shape=tuple(space.shape),
                dtype=dtype_name(space.dtype),
                num_choices=num_choices,
                first_choice=first_choice,
            ),
        )
    else:
        raise TypeError(
            f"observation space {kind} at {prefix or 'the top'!r} has no fixed-size tensor form; "
            "use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, or wrap the env"
        )


def _choices(space: Any, kind: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many values each entry of a Discrete or MultiDiscrete space has, and where they start if not at 0."""
    if kind not in ("Discrete", "MultiDiscrete"):
        return (), ()
    counts = np.asarray(space.n if kind == "Discrete" else space.nvec).reshape(-1)
    starts = np.broadcast_to(np.asarray(getattr(space, "start", 0)).reshape(-1), counts.shape)
    return tuple(map(int, counts)), tuple(map(int, starts)) if starts.any() else ()
