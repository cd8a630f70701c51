"""Where everything lies that a worker and the trainer exchange: one run of bytes, cut into arrays.

    layout = Layout(num_envs=4, observation=(Leaf("obs", (3,), "float32"),), actions=(Leaf("", (), "int64"),), …)

    bytes   0        96       160      …
            │ obs    │ final  │ reward │ terminated │ truncated │ … │ actions │ infos │
            │[2,4,3] │ [4,3]  │ [4]    │ [4]        │ [4]       │   │ [4]     │       │
              └ slot: a step reads nothing from it and writes the other one, so the observation before a step
                      that killed its worker is still whole

Each worker maps the same bytes and touches only its own rows. The in-process back end uses the same arrays in ordinary
memory, with a single slot. Nothing here loads torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from striderl.data.specs import TensorSpec, space_leaves

Array = npt.NDArray[Any]
_ALIGNMENT = 64


class Leaf(NamedTuple):
    """One named array of a layout, without its env dimension."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Description:
    """Description of a block of envs once it is built."""

    observation_space: Any
    """The Gymnasium space of one env's observation."""
    action_space: Any
    """The Gymnasium space of one env's action."""
    limits: tuple[int, ...]
    """Steps after which each env truncates; 0 for none."""
    render_mode: str
    """What `render` gives; empty when the envs draw nothing."""
    step_dt: float
    """Seconds of simulated time per step; 0 when unknown."""
    render_fps: float
    """The 'render_fps' of the envs' metadata; 0 when they have none."""


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """The arrays of a layout; the first dimension is the env (the second one, after the slot, for `obs`)."""

    obs: tuple[Array, ...]
    """What to act on next, [slot, N, …] per component."""
    final_obs: tuple[Array, ...]
    """Where an episode ended, [N, …] per component; older content in rows that did not end."""
    reward: Array
    """float32 [N]."""
    terminated: Array
    """bool [N]."""
    truncated: Array
    """bool [N]."""
    episode_length: Array
    """Steps taken in the current episode, int64 [N]."""
    aged: Array
    """Whether a runner set the age of the current episode, so that its end is counted here, bool [N]."""
    num_steps: Array
    """Steps taken since the env was built, int64 [N]."""
    reset_mask: Array
    """Which envs a masked reset resets, bool [N]."""
    seeds: Array
    """What the env, its action space and its observation space are seeded with, int64 [N, 3]."""
    actions: tuple[Array, ...]
    """[N, …] per part of the action."""
    infos: tuple[Array, ...]
    """[N, …] per declared info key."""

    def rows(self, start: int, stop: int) -> Buffers:
        """Return views of some envs' rows."""
        return Buffers(
            obs=tuple(array[:, start:stop] for array in self.obs),
            final_obs=tuple(array[start:stop] for array in self.final_obs),
            reward=self.reward[start:stop],
            terminated=self.terminated[start:stop],
            truncated=self.truncated[start:stop],
            episode_length=self.episode_length[start:stop],
            aged=self.aged[start:stop],
            num_steps=self.num_steps[start:stop],
            reset_mask=self.reset_mask[start:stop],
            seeds=self.seeds[start:stop],
            actions=tuple(array[start:stop] for array in self.actions),
            infos=tuple(array[start:stop] for array in self.infos),
        )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Names, shapes and dtypes of all that is exchanged, and from these the place of every array."""

    num_envs: int
    """How many rows there are."""
    num_slots: int
    """2 where a worker may die and its last good observation is needed, else 1."""
    observation: tuple[Leaf, ...]
    """The components, in the order of the observation space; a mask from the info comes last."""
    actions: tuple[Leaf, ...]
    """The parts of an action; a single part has the name ''."""
    infos: tuple[Leaf, ...]
    """The declared info keys."""
    mask: str
    """The component with the allowed actions; empty when there is none."""
    mask_in_info: bool
    """Whether that component comes from the info dict of `reset` and `step`."""

    def places(self) -> Iterator[tuple[str, int, Leaf]]:
        """Yield (field of `Buffers`, offset in bytes, leaf with its full shape) for every array."""
        offset = 0
        for field, leaf in self._arrays():
            yield field, offset, leaf
            size = math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
            offset += -(-size // _ALIGNMENT) * _ALIGNMENT

    @property
    def num_bytes(self) -> int:
        """The size of the whole run of bytes."""
        _, offset, leaf = list(self.places())[-1]
        return offset + math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize

    def buffers(self, memory: npt.NDArray[np.uint8]) -> Buffers:
        """Return the arrays over this memory."""
        lists: dict[str, list[Array]] = {field.name: [] for field in fields(Buffers)}
        for field, offset, leaf in self.places():
            lists[field].append(np.ndarray(leaf.shape, leaf.dtype, buffer=memory.data, offset=offset))
        single = {name: arrays[0] for name, arrays in lists.items() if name not in _LISTS}
        return Buffers(**single, **{name: tuple(lists[name]) for name in _LISTS})  # type: ignore[arg-type]

    def _arrays(self) -> Iterator[tuple[str, Leaf]]:
        rows = self.num_envs
        for leaf in self.observation:
            yield "obs", Leaf(leaf.name, (self.num_slots, rows, *leaf.shape), leaf.dtype)
        for leaf in self.observation:
            yield "final_obs", Leaf(leaf.name, (rows, *leaf.shape), leaf.dtype)
        for leaf in self.actions:
            yield "actions", Leaf(leaf.name, (rows, *leaf.shape), leaf.dtype)
        for leaf in self.infos:
            yield "infos", Leaf(leaf.name, (rows, *leaf.shape), leaf.dtype)
        for name, dtype in _PER_ENV.items():
            yield name, Leaf(name, (rows,), dtype)
        yield "seeds", Leaf("seeds", (rows, 3), "int64")


_LISTS = ("obs", "final_obs", "actions", "infos")
_PER_ENV = {
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
    "episode_length": "int64",
    "aged": "bool",
    "num_steps": "int64",
    "reset_mask": "bool",
}


def observation_leaves(space: Any, *, keep_float64: bool) -> list[Leaf]:
    """Return the components of an observation space as they are stored; float64 becomes float32 unless kept."""
    leaves = []
    for name, spec in space_leaves(space):
        dtype = "float32" if spec.dtype == "float64" and not keep_float64 else spec.dtype
        leaves.append(Leaf(name or "obs", spec.shape, dtype))
    return leaves


def action_leaves(space: Any) -> list[Leaf]:
    """Return the parts of an action space as they are stored: choices as int64, numbers in the space's own dtype."""
    kind = type(space).__name__
    if kind == "Dict":
        return [Leaf(str(name), *action_leaves(inner)[0][1:]) for name, inner in space.spaces.items()]
    if kind == "Box":
        return [Leaf("", tuple(space.shape), np.dtype(space.dtype).name)]
    if kind == "Discrete":
        return [Leaf("", (), "int64")]
    return [Leaf("", (math.prod(space.shape),), "int64")]


def make_layout(
    description: Description,
    *,
    num_envs: int,
    num_slots: int,
    info_keys: Mapping[str, TensorSpec],
    mask: str,
    mask_size: int,
    keep_float64: bool,
) -> Layout:
    """Lay out the arrays for envs of this description; `mask` names a component or, failing that, an info key."""
    observation = observation_leaves(description.observation_space, keep_float64=keep_float64)
    in_info = bool(mask) and mask not in [leaf.name for leaf in observation]
    if in_info:
        observation.append(Leaf(mask, (mask_size,), "bool"))
    elif mask:
        observation = [Leaf(leaf.name, leaf.shape, "bool") if leaf.name == mask else leaf for leaf in observation]
    return Layout(
        num_envs=num_envs,
        num_slots=num_slots,
        observation=tuple(observation),
        actions=tuple(action_leaves(description.action_space)),
        infos=tuple(Leaf(name, spec.shape, spec.dtype) for name, spec in info_keys.items()),
        mask=mask,
        mask_in_info=in_info,
    )


def env_seeds(seed: int, global_index: int, restart: int = 0) -> npt.NDArray[np.int64]:
    """Return the three seeds of one env: for itself, for its action space and for its observation space.

    The stream is that of `vec_env.env_seed_sequence`; after a restart of its worker an env gets a child of it.
    """
    key = (global_index, restart) if restart else (global_index,)
    return np.random.SeedSequence(seed, spawn_key=key).generate_state(3).astype(np.int64)
