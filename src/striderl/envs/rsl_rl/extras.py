"""Read rewards, flags, logs and declared values out of what rsl_rl envs return beside the observation.

`extras` (called `infos` in v1) is usually the same dict object in every step, its tensors may be the simulator's own
buffers, and what it holds varies from step to step. So everything is copied here, and nothing is asked of its values:
only shapes and dtypes are looked at, so that no step waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.data.naming import unknown
from striderl.data.specs import TensorSpec, flatten_names, torch_dtype
from striderl.envs.rsl_rl.obs import Groups, describe, flat_groups, is_mapping
from striderl.envs.vec_env import ContractError

_LOG_KEYS = ("episode", "log")


def split_step(raw: Any, *, env_name: str) -> tuple[Groups, Any, Any, Mapping[str, Any]]:
    """Take the return value of any generation's `step` apart: observation groups, reward, dones, extras."""
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
