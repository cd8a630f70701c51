"""The built-in tasks by name: the one table from which command line and contract tests build their envs.

env = make("cartpole", num_envs=8)
env = make("half_cheetah", num_envs=64, settings={"ctrl_cost_weight": 0.05, "num_threads": 2})
env = make("parkour", num_envs=64, settings={"lanes": {"kinds": ("crawl",), "levels": 4}})     a part of its config
env = make("gymnasium:LunarLander-v3", num_envs=8)            any Gymnasium id
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from striderl.data.naming import unknown
from striderl.envs.vec_env import VecEnv

ConfigT = TypeVar("ConfigT")
Build = Callable[[int, str, Mapping[str, Any], int], VecEnv]


def make(
    task: str,
    *,
    num_envs: int = 1,
    device: str = "cpu",
    settings: Mapping[str, Any] | None = None,
    filmed: bool = False,
    first_env_index: int = 0,
) -> VecEnv:
    """Build a task with this many envs; `settings` are fields of its config, and a wrong name gets a suggestion.

    `filmed` is for `render`: Gymnasium's envs must be told beforehand, the built-in ones need not. `first_env_index` is
    the global number of the first env, where several processes each have a part of the envs.
    """
    if settings is not None and not isinstance(settings, Mapping):
        raise TypeError(f"settings: wanted a dict from name to value, found {type(settings).__name__} {settings!r}")
    if task.startswith("gymnasium:"):
        from striderl.envs.gymnasium.env import GymnasiumEnv

        shown = {"render_mode": "rgb_array"} if filmed else {}
        kwargs = {**shown, **(settings or {})}
        name = task.removeprefix("gymnasium:")
        return GymnasiumEnv(name, num_envs, device=device, env_kwargs=kwargs, first_env_index=first_env_index)
    if task not in TASKS:
        raise KeyError(_unknown_task(task))
    for name in ("num_envs", "device"):
        if name in (settings or {}):
            raise ValueError(f"settings: {name!r} is not one of them; give it as make({task!r}, {name}=…)")
    return TASKS[task](num_envs, device, settings or {}, first_env_index)


def modules_named(task: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the modules that `make` would import for a task, beyond what is installed and registered.

    'gymnasium:module:Id-v0' names one. So may a setting of such a task, where its env builds another env by its id.
    """
    inner = task.removeprefix("gymnasium:")
    named = [inner] if ":" in inner else []
    if task.startswith("gymnasium:"):
        named += [text for text in _texts(settings) if re.match(r"[A-Za-z_][\w.]*:", text)]
    return [name.partition(":")[0] for name in named]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _unknown_task(task: str) -> str:
    """Say what a task may be called; somebody who writes a Gymnasium id is shown both ways to have it."""
    if not re.search(r"-v\d+$", task):
        return unknown("task", task, TASKS, where="striderl")
    builtin = {name.replace("_", ""): name for name in TASKS}.get(task.rpartition("-v")[0].lower().replace("_", ""))
    also = f", or {builtin!r} for the built-in one" if builtin else ""
    return f"striderl has no task {task!r}. Write 'gymnasium:{task}' for Gymnasium's env{also}."


def configured(kind: type[ConfigT], settings: Mapping[str, Any], **given: Any) -> ConfigT:
    """Build a config from settings by name; an unknown name raises with a suggestion.

    A field that is a config of its own may be given as a table of its settings: what a file or a command line can say.
    """
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in settings:
        if name not in names:
            raise KeyError(unknown("setting", name, names, where=kind.__name__))
    parts = typing.get_type_hints(kind)
    built = {
        name: configured(parts[name], value) if isinstance(value, Mapping) and is_dataclass(parts[name]) else value
        for name, value in settings.items()
    }
    return kind(**{**given, **built})


def _classic(gymnasium_id: str) -> Build:
    def build(num_envs: int, device: str, settings: Mapping[str, Any], first_env_index: int) -> VecEnv:
        from striderl.envs.classic_control.tasks import CLASSIC_TASKS

        kind = CLASSIC_TASKS[gymnasium_id]
        config = configured(type(kind.default_config), settings)
        return kind(num_envs, device, config=config, first_env_index=first_env_index)

    return build


def _locomotion(name: str) -> Build:
    def build(num_envs: int, device: str, settings: Mapping[str, Any], first_env_index: int) -> VecEnv:
        from striderl.envs.mujoco.gym_tasks import CONFIGS
        from striderl.envs.mujoco.gym_tasks import TASKS as LOCOMOTION_TASKS

        given = {"num_envs": num_envs, "device": device, "first_env_index": first_env_index}
        return LOCOMOTION_TASKS[name](configured(CONFIGS[name], settings, **given))

    return build


def _quadruped(name: str) -> Build:
    def build(num_envs: int, device: str, settings: Mapping[str, Any], first_env_index: int) -> VecEnv:
        from striderl.envs.quadruped.tasks import QUADRUPED_CONFIGS, QUADRUPED_TASKS

        given = {"num_envs": num_envs, "device": device, "first_env_index": first_env_index}
        return QUADRUPED_TASKS[name](configured(QUADRUPED_CONFIGS[name], settings, **given))

    return build


TASKS: dict[str, Build] = {
    "cartpole": _classic("CartPole-v1"),
    "pendulum": _classic("Pendulum-v1"),
    "acrobot": _classic("Acrobot-v1"),
    "mountain_car": _classic("MountainCar-v0"),
    "mountain_car_continuous": _classic("MountainCarContinuous-v0"),
    "half_cheetah": _locomotion("half_cheetah"),
    "hopper": _locomotion("hopper"),
    "walker2d": _locomotion("walker2d"),
    "ant": _locomotion("ant"),
    "humanoid": _locomotion("humanoid"),
    "quadruped": _quadruped("quadruped_flat"),
    "quadruped_rough": _quadruped("quadruped_rough"),
    "quadruped_blind": _quadruped("quadruped_blind"),
    "quadruped_depth": _quadruped("quadruped_depth"),
    "parkour": _quadruped("parkour"),
}
"""Every built-in task."""
