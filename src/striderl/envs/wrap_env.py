"""Any env as a `VecEnv`: an object, a class, or a function that makes one.

    wrap_env(env)                        a VecEnv, a Gymnasium vector env, a Gymnasium env, an env of any rsl_rl
    wrap_env(PointRobot, num_envs=64)    a class: VecEnv(num_envs=…, device=…), gymnasium.Env(**settings)
    wrap_env(make_env, num_envs=8)       a function that returns any of these, with or without num_envs and device

An object has a fixed number of envs; a class or a function makes `num_envs`.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch

from striderl.data.naming import unknown
from striderl.data.specs import TensorSpec
from striderl.envs.vec_env import VecEnv

ConfigT = TypeVar("ConfigT")


def wrap_env(
    env: Any,
    *,
    num_envs: int = 0,
    device: torch.device | str = "cpu",
    settings: Mapping[str, Any] | None = None,
    info: Mapping[str, TensorSpec] | None = None,
    first_env_index: int = 0,
    filmed: bool = False,
) -> VecEnv:
    """Return an env as a VecEnv.

    num_envs: how many envs a class or a function makes; of an object, how many it must have (0: any number).
    settings: arguments of the class or the function.
    info: values per env that an rsl_rl env puts into its extras and that are stored with each step.
    filmed: make Gymnasium envs with `render_mode='rgb_array'`.
    """
    if inspect.isclass(env) or (callable(env) and not _is_env(env)):
        made = _made(env, num_envs or 1, device, dict(settings or {}), first_env_index, filmed=filmed)
        return made if isinstance(made, VecEnv) else wrap_env(made, device=device, info=info, num_envs=num_envs)
    if settings:
        raise ValueError(f"settings {sorted(settings)} have no effect: the env is made already; hand over its class")
    found = _wrapped(env, device, info, first_env_index)
    if num_envs and found.num_envs != num_envs:
        raise ValueError(f"{type(env).__name__} has {found.num_envs} envs, wanted {num_envs}")
    return found


def _is_env(env: Any) -> bool:
    return isinstance(env, VecEnv) or hasattr(env, "step")


def _wrapped(
    env: Any, device: torch.device | str, info: Mapping[str, TensorSpec] | None, first_env_index: int
) -> VecEnv:
    if isinstance(env, VecEnv):
        return env
    if callable(getattr(env, "get_observations", None)):
        from striderl.envs.rsl_rl.env import RslRlEnv

        wrapped = RslRlEnv(env, device=device, info_keys=info)
        wrapped.first_env_index = first_env_index
        return wrapped
    if hasattr(env, "single_observation_space"):
        from striderl.envs.gymnasium.env import GymnasiumEnv

        return GymnasiumEnv(env, device=device, first_env_index=first_env_index)
    if _is_gymnasium(env):
        from striderl.envs.gymnasium.env import GymnasiumEnv

        return GymnasiumEnv([lambda: env], 1, device=device, first_env_index=first_env_index)
    raise TypeError(
        f"wanted an env: a VecEnv, a Gymnasium env or vector env, an rsl_rl env with get_observations(), or a class or "
        f"function that makes one; found {type(env).__name__}"
    )


def _is_gymnasium(env: Any) -> bool:
    return hasattr(env, "observation_space") and hasattr(env, "action_space") and hasattr(env, "step")


def _made(
    make: Callable[..., Any],
    num_envs: int,
    device: torch.device | str,
    settings: dict[str, Any],
    first_env_index: int,
    *,
    filmed: bool,
) -> Any:
    """Call a class or a function with what it takes of num_envs, device and settings."""
    names = _parameters(make)
    config = config_of(make)
    if config is not None and "config" in names and "config" not in settings:
        usual = {"num_envs": num_envs, "device": str(device), "first_env_index": first_env_index}
        known = {each.name for each in fields(config)}
        given: dict[str, Any] = {
            "config": configured(config, settings, **{k: v for k, v in usual.items() if k in known})
        }
    else:
        given = dict(settings)
    for name, value in (("num_envs", num_envs), ("device", device), ("first_env_index", first_env_index)):
        if name in names and name not in given:
            given[name] = value
    if "num_envs" in given or "config" in given:
        return make(**given)
    if inspect.isclass(make) and issubclass(make, VecEnv):
        return make(**given)
    if not (inspect.isclass(make) and _is_gymnasium(make)) and not _returns_gymnasium(make, given):
        return make(**given)
    from striderl.envs.gymnasium.env import GymnasiumEnv

    shown = {"render_mode": "rgb_array"} if filmed and "render_mode" in names else {}
    return GymnasiumEnv(
        make, num_envs, device=device, env_kwargs={**shown, **settings}, first_env_index=first_env_index
    )


def _returns_gymnasium(make: Callable[..., Any], given: Mapping[str, Any]) -> bool:
    """Return whether a function without num_envs makes single Gymnasium envs; one is made and closed to see it."""
    if inspect.isclass(make) and callable(getattr(make, "reset", None)) and callable(getattr(make, "step", None)):
        return not hasattr(make, "get_observations")
    made = make(**given)
    single = _is_gymnasium(made) and not hasattr(made, "single_observation_space") and not isinstance(made, VecEnv)
    if callable(getattr(made, "close", None)):
        made.close()
    return single and not callable(getattr(made, "get_observations", None))


def _parameters(make: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(make).parameters)
    except (TypeError, ValueError):
        return ()


def config_of(make: Any) -> type[Any] | None:
    """Return the dataclass of an env's settings: the class attribute `Config`, where there is one."""
    found = getattr(make, "Config", None)
    return found if inspect.isclass(found) and is_dataclass(found) else None


def configured(kind: type[ConfigT], settings: Mapping[str, Any], **given: Any) -> ConfigT:
    """Build a config from settings by name; an unknown name raises with a suggestion.

    A field that is a config of its own may be given as a table of its settings: as from a file or a command line.
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
