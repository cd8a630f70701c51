"""Read the observations of every rsl_rl generation into named components.

The generation is recognised from what an env returns; no version number is needed:

    generation   get_observations()              step()                                 seen in
    v1           tensor                          obs, privileged|None, rew, done, info  legged_gym, parkour, old Genesis
    v2           tensor, {"observations": {…}}   obs, rew, done, {"observations": {…}}  Isaac Lab up to 2.1, st_rl
    v3           {"policy": …, "critic": …}      {…}, rew, done, extras                 Isaac Lab 2.2 on, Playground
    v4           {"actor": …, "critic": …}       {…}, rew, done, extras                 mjlab 1.6 (rsl_rl 4 and 5)

All become groups first, and groups become components:

    {"policy": [N, 21], "critic": [N, 9], "camera": {"depth": [N, 1, 8, 8]}}
        │ obs_segments = {"command": 3, "joints": 18}
        ▼
    command [N, 3], joints [N, 18]     critic [N, 9]     camera/depth [N, 1, 8, 8]

How a component is named: after its segment where segments cut a flat group; else 'group/term' in a nested group; else
after its group, except that the two vectors of v1 and v2 are called 'obs' and 'privileged_obs'. A name that an earlier
component already has gets its group in front: a critic's segment 'height_scan' next to a policy's becomes
'critic/height_scan'. `ObsSpec` keeps the group of each, so nothing has to be read out of a name.

Also here: read rewards, flags, logs and declared values from what rsl_rl envs return.

`extras` (called `infos` in v1) is usually the same dict object in every step, its tensors may be the simulator's own
buffers, and what it holds varies from step to step. So everything is copied here, and only shapes and dtypes
are checked, never values, so that no step waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard

import numpy as np
import torch
from torch import Tensor

from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec, dtype_name, flatten_names, torch_dtype
from striderl.envs.vec_env import ContractError, Obs

Generation = Literal["v1", "v2", "v3", "v4"]
Groups = dict[str, Any]
"""Group name to its tensor, or to a mapping of named tensors."""
Segments = Mapping[str, int | Sequence[int]]

_FLAT_NAMES = {"policy": "obs", "critic": "privileged_obs"}


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value is a dict or TensorDict; tensordict itself is never imported."""
    return isinstance(value, Mapping) or (hasattr(value, "items") and hasattr(value, "keys"))


def recognise(raw: Any, *, env_name: str) -> Generation:
    """Return the generation, from the result of `get_observations()`.

    v3 and v4 differ only in the name of the actor's group, and nothing here depends on which of the two it is: a
    present env with the name 'policy' (Isaac Lab) is called v3.
    """
    if isinstance(raw, Tensor):
        return "v1"
    if is_mapping(raw):
        return "v4" if "actor" in raw.keys() else "v3"  # noqa: SIM118  (a TensorDict wants keys())
    if isinstance(raw, tuple) and len(raw) == 2 and isinstance(raw[0], Tensor):
        return "v2"
    raise ContractError(
        f"{env_name}.get_observations(): wanted a tensor (v1), a pair (tensor, extras) (v2) or a dict or TensorDict of "
        f"groups (v3 on), found {describe(raw)}"
    )


def groups_from(raw: Any) -> Groups:
    """Bring any form of observation (of `get_observations`, `reset` or a final observation) into groups."""
    if is_mapping(raw):
        return dict(raw.items())
    if isinstance(raw, Tensor):
        return {"policy": raw}
    if isinstance(raw, tuple) and raw:
        second = raw[1] if len(raw) > 1 else None
        if isinstance(raw[0], Tensor):
            return flat_groups(raw[0], privileged=second, extras=second)
        if is_mapping(raw[0]):
            return dict(raw[0].items())
    return {}


def flat_groups(obs: Tensor, *, privileged: Any, extras: Any) -> Groups:
    """Add v1's privileged tensor and v2's `extras["observations"]` to the policy's flat vector."""
    groups: Groups = {"policy": obs}
    if isinstance(privileged, Tensor):
        groups["critic"] = privileged
    more = extras.get("observations") if is_mapping(extras) else None
    if is_mapping(more):
        # Isaac Lab repeats the policy's own vector here, and Playground writes None where there is no critic
        groups.update({name: value for name, value in more.items() if name != "policy" and value is not None})
    return groups


@dataclass(frozen=True, kw_only=True)
class SegmentChoice:
    """The segments of one flat group, and whether the user gave them or they were found on the env."""

    segments: Segments | None = None
    """Name to size or shape of the consecutive pieces; None leaves the group whole."""
    explicit: bool = False
    """Whether not being able to apply them is an error."""
    groups: tuple[str, ...]
    """The group they belong to: the first of these that the env has."""


@dataclass(frozen=True, kw_only=True)
class _Leaf:
    """One tensor of the groups and the components it becomes."""

    path: tuple[str, ...]
    """The keys that lead to it: ('critic',) or ('camera', 'depth')."""
    dtype: torch.dtype
    width: tuple[int, ...]
    """Its shape without the env dimension."""
    spec: ObsSpec
    """Its components: one, or the pieces of a flat vector."""
    cut: bool
    """Whether the pieces must be cut out of the flat vector."""


class ObsLayout:
    """How the groups of one env become components; made once, from the first observation."""

    def __init__(
        self,
        groups: Groups,
        *,
        env_name: str,
        num_envs: int,
        flat_names: bool,
        segments: Sequence[SegmentChoice] = (),
    ) -> None:
        self.env_name = env_name
        self.num_envs = num_envs
        self._leaves: list[_Leaf] = []
        self.spec = ObsSpec()
        cuts = self._place_segments(groups, segments)
        for path, value in _leaves(groups):
            self._add(path, value, cut=cuts.get(path[0]) if len(path) == 1 else None, flat_names=flat_names)
        if not self._leaves:
            raise ContractError(f"{env_name}.get_observations(): wanted at least one tensor, found {describe(groups)}")

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups that are read."""
        return tuple(dict.fromkeys(leaf.path[0] for leaf in self._leaves))

    def covers(self, groups: Groups) -> bool:
        """Return whether these groups hold everything that the components need."""
        return all(isinstance(_follow(groups, leaf.path), Tensor) for leaf in self._leaves)

    def read(self, groups: Groups, *, device: torch.device, field: str) -> Obs:
        """Copy the groups into components; simulators reuse their buffers, and ours must never change afterwards."""
        obs: Obs = {}
        for leaf in self._leaves:
            value = _follow(groups, leaf.path)
            self._check(leaf, value, field)
            copy = value.detach().to(device, copy=True)
            if leaf.cut:
                obs.update(leaf.spec.split(copy))
            else:
                obs[leaf.spec.names[0]] = copy
        return obs

    def _check(self, leaf: _Leaf, value: Any, field: str) -> None:
        wanted = (self.num_envs, *leaf.width)
        if isinstance(value, Tensor) and tuple(value.shape) == wanted and value.dtype == leaf.dtype:
            return
        raise ContractError(
            f"{self.env_name}: {field}, group {'/'.join(leaf.path)!r}: wanted {dtype_name(leaf.dtype)} "
            f"{list(wanted)} as at construction, found {describe(value)}"
        )

    def _add(self, path: tuple[str, ...], value: Any, *, cut: Segments | None, flat_names: bool) -> None:
        name = "/".join(path)
        if not isinstance(value, Tensor) or value.ndim < 1 or value.shape[0] != self.num_envs:
            raise ContractError(
                f"{self.env_name}.get_observations(), group {name!r}: wanted a tensor [{self.num_envs}, …], "
                f"found {describe(value)}"
            )
        plain = ComponentSpec(shape=tuple(value.shape[1:]), dtype=dtype_name(value.dtype), group=path[0])
        found = {_FLAT_NAMES.get(name, name) if flat_names else name: plain}
        if cut is not None:
            found = self._cut(cut, plain)
        # a name that is taken gets its group in front, whichever way it came about
        spec = ObsSpec({f"{path[0]}/{key}" if key in self.spec else key: component for key, component in found.items()})
        self.spec = self.spec.merged(spec)
        self._leaves.append(
            _Leaf(path=path, dtype=value.dtype, width=tuple(value.shape[1:]), spec=spec, cut=cut is not None)
        )

    def _cut(self, segments: Segments, plain: ComponentSpec) -> dict[str, ComponentSpec]:
        try:
            pieces = ObsSpec.from_flat(plain.size, segments, group=plain.group)
        except ValueError as error:
            raise ContractError(
                f"{self.env_name}, group {plain.group!r}: {error}. Pass the right segments to RslRlEnv, "
                f"or {{'obs': {plain.size}}} to keep the vector whole."
            ) from None
        return {name: replace(piece, dtype=plain.dtype) for name, piece in pieces.items()}

    def _place_segments(self, groups: Groups, choices: Sequence[SegmentChoice]) -> dict[str, Segments]:
        placed: dict[str, Segments] = {}
        for choice in choices:
            if choice.segments is None:
                continue
            flat = [name for name in choice.groups if isinstance(groups.get(name), Tensor) and groups[name].ndim == 2]
            if flat:
                placed[flat[0]] = choice.segments
            elif choice.explicit:
                raise ContractError(
                    f"{self.env_name}: the segments {list(choice.segments)} belong to a flat group called "
                    f"{' or '.join(repr(name) for name in choice.groups)}; the env gives {describe(groups)}"
                )
        return placed


def describe(value: Any) -> str:
    """Describe a value in a few words, for error messages."""
    if isinstance(value, Tensor):
        return f"{dtype_name(value.dtype)} {list(value.shape)}"
    if is_mapping(value):
        return "{" + ", ".join(f"{name!r}: {describe(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}: (" + ", ".join(describe(inner) for inner in value) + ")"
    return "None" if value is None else f"a value of type {type(value).__name__}"


def first_tensor(groups: Groups) -> Tensor:
    """Return the first tensor in the groups, nested ones included."""
    for _, value in _leaves(groups):
        if isinstance(value, Tensor):
            return value
    raise ContractError(f"the observation holds no tensor: {describe(groups)}")


def _leaves(groups: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in groups.items():
        if is_mapping(value):
            yield from _leaves(value, (*prefix, str(name)))
        else:
            yield (*prefix, str(name)), value


def _follow(groups: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = groups
    for key in path:
        if not is_mapping(value) or key not in value.keys():  # noqa: SIM118  (a TensorDict wants keys())
            return None
        value = value[key]
    return value


# -- rewards, flags and logs -------------------------------------------------------------------------------------------


_LOG_KEYS = ("episode", "log")


def split_step(raw: Any, *, env_name: str) -> tuple[Groups, Any, Any, Mapping[str, Any]]:
    """Split the return value of any generation's `step`: observation groups, reward, dones, extras."""
    if isinstance(raw, tuple) and len(raw) == 5 and isinstance(raw[0], Tensor):
        obs, privileged, reward, dones, extras = raw
        extras = _as_extras(extras, env_name)
        return flat_groups(obs, privileged=privileged, extras=extras), reward, dones, extras
    if isinstance(raw, tuple) and len(raw) == 4:
        obs, reward, dones, extras = raw
        extras = _as_extras(extras, env_name)
        if is_mapping(obs):
            return dict(obs.items()), reward, dones, extras
        if isinstance(obs, Tensor):
            return flat_groups(obs, privileged=None, extras=extras), reward, dones, extras
    raise ContractError(
        f"{env_name}.step(): wanted (obs, reward, dones, extras), or (obs, privileged obs, reward, dones, infos) with "
        f"tensors, found {describe(raw)}. An env that answers in Gymnasium's way needs its rsl_rl wrapper first."
    )


def as_reward(value: Any, num_envs: int, device: torch.device, *, where: str) -> Tensor:
    """Return the reward as a new float32 [N]; it may come as [N, 1] and in any number type but bool."""
    # a bool here is Gymnasium's 'terminated', which stands where rsl_rl's first generation has its reward
    if not isinstance(value, Tensor) or value.dtype == torch.bool or not _one_per_env(value, num_envs):
        raise ContractError(f"{where}: wanted numbers [{num_envs}], found {describe(value)}")
    return value.detach().reshape(num_envs).to(device, torch.float32, copy=True)


def as_flags(value: Any, num_envs: int, device: torch.device, *, where: str) -> Tensor:
    """Return flags as a new bool [N]; simulators send bool, uint8, int32, int64 or float32, as [N] or [N, 1]."""
    if not isinstance(value, Tensor) or not _one_per_env(value, num_envs):
        raise ContractError(f"{where}: wanted flags [{num_envs}], found {describe(value)}")
    return (value.detach().reshape(num_envs) != 0).to(device)


def look_up(extras: Mapping[str, Any], path: str) -> Any:
    """Return what lies at 'outer/inner' in nested mappings, or None; a key that itself has a '/' is tried first."""
    if path in extras.keys():  # noqa: SIM118  (a TensorDict wants keys())
        return extras[path]
    outer, _, inner = path.partition("/")
    below = extras.get(outer) if inner else None
    return look_up(below, inner) if is_mapping(below) else None


def read_log(extras: Mapping[str, Any]) -> dict[str, float | Tensor]:
    """Collect `extras["episode"]` and `extras["log"]` as numbers and 0-d tensors; the second wins a name in both.

    A vector becomes its mean, text is left out. legged_gym leaves the values of the last reset in place until the next
    one; they are passed on in every step, as rsl_rl does, so that logged means stay comparable.
    """
    log: dict[str, float | Tensor] = {}
    for key in _LOG_KEYS:
        part = extras.get(key)
        for name, value in flatten_names(part) if is_mapping(part) else ():
            if isinstance(value, Tensor) and value.numel() > 0:
                number = value.detach().float()
                log[name] = number.reshape(()) if number.numel() == 1 else number.mean()
            elif isinstance(value, (bool, int, float, np.number, np.bool_)):
                log[name] = float(value)
    return log | _copied({name: value for name, value in log.items() if isinstance(value, Tensor)})


def _copied(scalars: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy 0-d tensors with one stack per device; a clone each would be dozens of tiny kernels per step on a GPU."""
    by_device: dict[torch.device, list[str]] = {}
    for name, value in scalars.items():
        by_device.setdefault(value.device, []).append(name)
    copies: dict[str, Tensor] = {}
    for names in by_device.values():
        copies.update(zip(names, torch.stack([scalars[name] for name in names]).unbind(), strict=True))
    return copies


def read_info(
    extras: Mapping[str, Any],
    info_spec: Mapping[str, TensorSpec],
    num_envs: int,
    device: torch.device,
    *,
    env_name: str,
) -> dict[str, Any]:
    """Copy the declared per-env values out of extras; 'outer/inner' names reach into nested dicts."""
    info: dict[str, Any] = {}
    for name, spec in info_spec.items():
        value = look_up(extras, name)
        if value is None:
            known = [key for key, _ in flatten_names(extras)]
            raise ContractError(f"{env_name}.step(): {unknown('declared key', name, known, where='extras')}")
        wanted = (num_envs, *spec.shape)
        if not isinstance(value, Tensor) or tuple(value.shape) != wanted:
            raise ContractError(
                f"{env_name}.step(): extras, declared key {name!r}: wanted {spec.dtype} {list(wanted)}, "
                f"found {describe(value)}"
            )
        info[name] = value.detach().to(device, torch_dtype(spec.dtype), copy=True)
    return info


def _one_per_env(value: Tensor, num_envs: int) -> bool:
    return tuple(value.shape) in ((num_envs,), (num_envs, 1))


def _as_extras(extras: Any, env_name: str) -> Mapping[str, Any]:
    if extras is None:
        return {}
    if not is_mapping(extras):
        raise ContractError(f"{env_name}.step(): extras: wanted a dict, found {describe(extras)}")
    return extras
