"""The built-in tasks by name: the one table from which command line and contract tests build their envs.

env = make("cartpole", num_envs=8)
env = make("half_cheetah", num_envs=64, settings={"ctrl_cost_weight": 0.05, "num_threads": 2})
env = make("parkour", num_envs=64, settings={"lanes": {"kinds": ("crawl",), "levels": 4}})     a part of its config
env = make("gymnasium:LunarLander-v3", num_envs=8)            any Gymnasium id; 'LunarLander-v3' will do
env = make("mjlab:Mjlab-Cartpole-Balance", num_envs=64)       a simulator that is written for rsl_rl, see clients.py
env = make("my_pkg.envs:PointRobot", num_envs=8)              a class or function of one's own, by module and name
env = make(PointRobot, num_envs=8)                            … or the class, a function, an env object
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from striderl.data.naming import unknown
from striderl.data.registry import ENVS, GYMNASIUM, OBJECT, full_name, is_reference, task_hint
from striderl.envs.clients import build_client_env, client_of
from striderl.envs.vec_env import VecEnv
from striderl.envs.wrap_env import config_of, configured, wrap_env

Build = Callable[[int, str, Mapping[str, Any], int], VecEnv]


def make(
    task: Any,
    *,
    num_envs: int = 1,
    device: str = "cpu",
    settings: Mapping[str, Any] | None = None,
    filmed: bool = False,
    first_env_index: int = 0,
    num_processes: int = 0,
) -> VecEnv:
    """Build an env: a task by name, a class, a function, or an object; see the top of this module.

    `settings` are fields of its config or arguments of its class, and a wrong name gets a suggestion. Of a simulator's
    task they are places in its config, such as 'scene.terrain'; 'clip_actions' bounds actions that it leaves unbounded.
    `filmed` is for `render`: Gymnasium's envs need it beforehand, the built-in ones do not. `first_env_index` is
    the global number of the first env, where several processes each have a part of the envs.

    `num_processes` puts the envs into so many worker processes; 0 leaves them in this one. Tensors are shared, on a
    GPU by CUDA IPC. An env that is handed over as an object stays where it is, so it cannot have any.
    """
    if settings is not None and not isinstance(settings, Mapping):
        raise TypeError(f"settings: wanted a dict from name to value, found {type(settings).__name__} {settings!r}")
    if num_processes:
        return _in_processes(task, num_envs, device, settings or {}, filmed, first_env_index, num_processes)
    if not isinstance(task, str):
        return wrap_env(
            task,
            num_envs=num_envs if inspect.isclass(task) or not hasattr(task, "step") else 0,
            device=device,
            settings=settings,
            first_env_index=first_env_index,
            filmed=filmed,
        )
    task = full_name(task)
    env = _named(task, num_envs, device, settings or {}, filmed, first_env_index)
    env.made_as = (task, dict(settings or {}))
    return env


def _in_processes(
    task: Any,
    num_envs: int,
    device: str,
    settings: Mapping[str, Any],
    filmed: bool,
    first_env_index: int,
    num_processes: int,
) -> VecEnv:
    """Build an env in worker processes: Gymnasium's envs one by one in a pool, any other as one `VecEnv` in each."""
    from striderl.envs.workers.pool import WorkerConfig

    workers = WorkerConfig(num_workers=num_processes)
    if isinstance(task, str):
        task = full_name(task)
        if task.startswith(GYMNASIUM):
            return _gymnasium(task, num_envs, device, settings, filmed, first_env_index, workers)
    elif not inspect.isclass(task) and hasattr(task, "step"):
        raise ValueError("num_processes wants a task by name, a class or a function; an env object stays where it is")
    from striderl.envs.workers.vec_env_processes import VecEnvProcesses

    def build(count: int, first: int) -> VecEnv:
        return make(task, num_envs=count, device=device, settings=settings, filmed=filmed, first_env_index=first)

    env = VecEnvProcesses(build, num_envs, workers, device=device, first_env_index=first_env_index)
    if isinstance(task, str):
        env.made_as = (task, dict(settings))
    return env


def _gymnasium(
    task: str,
    num_envs: int,
    device: str,
    settings: Mapping[str, Any],
    filmed: bool,
    first_env_index: int,
    workers: Any,
) -> VecEnv:
    from striderl.envs.gymnasium.env import GymnasiumEnv

    shown = {"render_mode": "rgb_array"} if filmed else {}
    env = GymnasiumEnv(
        task.removeprefix(GYMNASIUM),
        num_envs,
        device=device,
        env_kwargs={**shown, **settings},
        first_env_index=first_env_index,
        workers=workers,
    )
    env.made_as = (task, dict(settings))
    return env


def _named(
    task: str, num_envs: int, device: str, settings: Mapping[str, Any], filmed: bool, first_env_index: int
) -> VecEnv:
    if task.startswith(OBJECT):
        raise KeyError(
            f"{task!r} was handed over as an object; hand it over again, as in striderl.train(resume=RUN, env=env)"
        )
    if task.startswith(GYMNASIUM):
        from striderl.envs.workers.pool import WorkerConfig

        return _gymnasium(task, num_envs, device, settings, filmed, first_env_index, WorkerConfig())
    if client_of(task) is not None:
        from striderl.envs.rsl_rl.env import RslRlEnv

        own = {name: value for name, value in settings.items() if name != "clip_actions"}
        made = build_client_env(task, num_envs, device, own, filmed=filmed)
        wrapped = RslRlEnv(made, clip_actions=settings.get("clip_actions"), device=device)
        wrapped.first_env_index = first_env_index
        return wrapped
    if task not in TASKS:
        if task not in ENVS.names() and not is_reference(task):
            raise KeyError(unknown("task", task, [*TASKS, *ENVS.names()], where="striderl") + task_hint(task))
        return make(
            ENVS.get(task),
            num_envs=num_envs,
            device=device,
            settings=settings,
            filmed=filmed,
            first_env_index=first_env_index,
        )
    for name in ("num_envs", "device"):
        if name in settings:
            raise ValueError(f"settings: {name!r} is not one of them; give it as make({task!r}, {name}=…)")
    return TASKS[task](num_envs, device, settings, first_env_index)


def modules_named(task: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the modules that `make` would import for a task, beyond what is installed and registered.

    'gymnasium:module:Id-v0' names one. So may a setting of such a task, where its env builds another env by its id.
    """
    if task.startswith(OBJECT):
        return []
    if client_of(task) is not None:
        return task.split(":")[:2]  # the simulator imports the second itself: genesis:MODULE, isaaclab:MODULE:TASK
    inner = task.removeprefix(GYMNASIUM)
    named = [inner] if ":" in inner else []
    if task.startswith(GYMNASIUM):
        named += [text for text in _texts(settings) if re.match(r"[^\W\d][\w.]*:", text)]
    return [name.partition(":")[0] for name in named]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def task_config(task: str) -> type[Any] | None:
    """Return the dataclass of a task's settings; None where it has none, as for ids of Gymnasium."""
    if task.startswith((GYMNASIUM, OBJECT)) or client_of(task) is not None:
        return None
    if task in TASKS:
        return CONFIG_OF[task]() if task in CONFIG_OF else None
    return config_of(ENVS.get(task))


def _classic(gymnasium_id: str) -> Build:
    def build(num_envs: int, device: str, settings: Mapping[str, Any], first_env_index: int) -> VecEnv:
        from striderl.envs.classic_control.tasks import CLASSIC_TASKS

        kind = CLASSIC_TASKS[gymnasium_id]
        config = configured(type(kind.default_config), settings)
        return kind(num_envs, device, config=config, first_env_index=first_env_index)

    return build


def _classic_config(gymnasium_id: str) -> Callable[[], type[Any]]:
    def config() -> type[Any]:
        from striderl.envs.classic_control.tasks import CLASSIC_TASKS

        return type(CLASSIC_TASKS[gymnasium_id].default_config)

    return config


def _locomotion_config(name: str) -> Callable[[], type[Any]]:
    def config() -> type[Any]:
        from striderl.envs.mujoco.gym_tasks import CONFIGS

        return CONFIGS[name]

    return config


def _quadruped_config(name: str) -> Callable[[], type[Any]]:
    def config() -> type[Any]:
        from striderl.envs.quadruped.tasks import QUADRUPED_CONFIGS

        return QUADRUPED_CONFIGS[name]

    return config


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

CONFIG_OF: dict[str, Callable[[], type[Any]]] = {
    "cartpole": _classic_config("CartPole-v1"),
    "pendulum": _classic_config("Pendulum-v1"),
    "acrobot": _classic_config("Acrobot-v1"),
    "mountain_car": _classic_config("MountainCar-v0"),
    "mountain_car_continuous": _classic_config("MountainCarContinuous-v0"),
    **{name: _locomotion_config(name) for name in ("half_cheetah", "hopper", "walker2d", "ant", "humanoid")},
    "quadruped": _quadruped_config("quadruped_flat"),
    **{name: _quadruped_config(name) for name in ("quadruped_rough", "quadruped_blind", "quadruped_depth", "parkour")},
}
"""The type of every built-in task's settings."""
