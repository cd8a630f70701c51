"""What every MuJoCo task can be told, and what its controls are."""

from __future__ import annotations

import typing
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from striderl.data.actions import BoxSpec
from striderl.data.checked_fields import check_field_types, check_num_threads


@dataclass(frozen=True, kw_only=True)
class MujocoConfig:
    """What every MuJoCo task can be told."""

    num_envs: int = 1
    """How many envs are simulated together."""
    num_threads: int = 0
    """Threads of the simulation; 0 takes every core this process may use. Results do not depend on it."""
    frame_skip: int = 1
    """Physics substeps per env step (the decimation of a controller)."""
    max_episode_length: int = 1000
    """Steps after which an episode is truncated; 0 for no limit."""
    device: str = "cpu"
    """Where tensors are handed out; the simulation itself is on the CPU."""
    first_env_index: int = 0
    """The global index of env 0 when several processes share one set of envs; random numbers follow it."""
    render_height: int = 480
    """Rows of a rendered frame."""
    render_width: int = 640
    """Columns of a rendered frame."""
    camera: str = ""
    """Name of the model's camera to look through; empty: the one named 'track', else one that follows the root body."""

    def __post_init__(self) -> None:
        check_field_types(self)
        _check_parts(self)
        if self.num_envs < 1 or self.frame_skip < 1:
            raise ValueError(f"num_envs and frame_skip are at least 1, found {self.num_envs} and {self.frame_skip}")
        check_num_threads(self.num_threads)
        if self.max_episode_length < 0:
            raise ValueError(f"max_episode_length is 0 (no limit) or positive, found {self.max_episode_length}")


def _check_parts(config: MujocoConfig) -> None:
    """Raise TypeError for a field that wants a config of its own and got something else."""
    hints = typing.get_type_hints(type(config))
    for field in fields(config):
        wanted, value = hints[field.name], getattr(config, field.name)
        if isinstance(wanted, type) and is_dataclass(wanted) and not isinstance(value, wanted):
            names = ", ".join(part.name for part in fields(wanted))
            raise TypeError(
                f"{type(config).__name__}.{field.name}: wanted a {wanted.__name__}, found {type(value).__name__} "
                f"{value!r}; write {wanted.__name__}(…) with any of: {names}"
            )


def control_spec(model: Any) -> BoxSpec:
    """Describe the model's controls as an action: one number per actuator, bounded where its control is limited."""
    limited = np.asarray(model.actuator_ctrllimited, np.bool_)
    low = np.where(limited, model.actuator_ctrlrange[:, 0], -np.inf)
    high = np.where(limited, model.actuator_ctrlrange[:, 1], np.inf)
    names = tuple(model.actuator(index).name or f"actuator_{index}" for index in range(model.nu))
    return BoxSpec(shape=(model.nu,), low=tuple(low), high=tuple(high), names=names)
