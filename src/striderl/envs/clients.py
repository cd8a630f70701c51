"""Tasks of simulators that are written for rsl_rl, by name, with the simulator's own config classes.

    mjlab:Mjlab-Velocity-Flat-Unitree-Go1     a task of mjlab's registry
    isaaclab:Isaac-Velocity-Flat-Anymal-C-v0  a task that Isaac Lab registers with Gymnasium
    legged_gym:anymal_c_flat                  a task of legged_gym's registry
    playground:Go1JoystickFlatTerrain         an env of MuJoCo Playground
    genesis:go2_train                         the module of a Genesis example: get_cfgs, get_train_cfg, one *Env class

`configs(task)` returns the client's config objects, `env` and `agent`; `override` changes fields of them by their
place, and `build` makes the env from the first. Nothing is imported before a task of that simulator is named. mjlab is
tried for real (`make test-clients`); the others are written from their sources and tested against recordings of their
API (`tests/cli/test_clients.py`).
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from striderl.data.naming import suggestion, unknown


@dataclass(frozen=True, kw_only=True)
class ClientConfigs:
    """The config objects of a task, as the simulator's own launch script has them."""

    env: Any
    """Settings of the env."""
    agent: Any
    """Settings of rsl_rl's runner."""


class Client(Protocol):
    """How a simulator is launched."""

    package: str
    """What has to be installed."""

    def configs(self, task: str) -> ClientConfigs:
        """Return the task's configs, fresh copies."""
        ...

    def build(self, task: str, configs: ClientConfigs, num_envs: int, device: str, *, filmed: bool) -> Any:
        """Build the env for rsl_rl's runner."""
        ...


class Mjlab:
    """mjlab 1.6."""

    package = "mjlab"

    def configs(self, task: str) -> ClientConfigs:
        """Return copies of what the task's registration has."""
        importlib.import_module("mjlab.tasks")
        registry = importlib.import_module("mjlab.tasks.registry")
        _require_task(task, registry.list_tasks(), "mjlab")
        return ClientConfigs(env=registry.load_env_cfg(task), agent=registry.load_rl_cfg(task))

    def build(self, task: str, configs: ClientConfigs, num_envs: int, device: str, *, filmed: bool) -> Any:
        """Build the env as mjlab's train does."""
        envs, rl = importlib.import_module("mjlab.envs"), importlib.import_module("mjlab.rl")
        configs.env.scene.num_envs = num_envs
        made = envs.ManagerBasedRlEnv(cfg=configs.env, device=device, render_mode="rgb_array" if filmed else None)
        return rl.RslRlVecEnvWrapper(made, clip_actions=configs.agent.clip_actions)


class IsaacLab:
    """Isaac Lab 2.2 and later; the simulator's app is started first, without a window."""

    package = "isaaclab"

    def configs(self, task: str) -> ClientConfigs:
        """Start the app once and return what the task's registration names."""
        _start_isaac_sim()
        importlib.import_module("isaaclab_tasks")
        load = importlib.import_module("isaaclab_tasks.utils").load_cfg_from_registry
        return ClientConfigs(env=load(task, "env_cfg_entry_point"), agent=load(task, "rsl_rl_cfg_entry_point"))

    def build(self, task: str, configs: ClientConfigs, num_envs: int, device: str, *, filmed: bool) -> Any:
        """Build the env as Isaac Lab's train does."""
        gymnasium, rl = importlib.import_module("gymnasium"), importlib.import_module("isaaclab_rl.rsl_rl")
        configs.env.scene.num_envs, configs.env.sim.device = num_envs, device
        made = gymnasium.make(task, cfg=configs.env, render_mode="rgb_array" if filmed else None)
        return rl.RslRlVecEnvWrapper(made, clip_actions=getattr(configs.agent, "clip_actions", None))


def _start_isaac_sim() -> None:
    launcher = importlib.import_module("isaaclab.app").AppLauncher
    if not _started:
        _started.append(launcher(headless=True, enable_cameras=False))


_started: list[Any] = []
"""Isaac Sim's app, once it is running; a process has one."""


class LeggedGym:
    """legged_gym and its forks with the same registry."""

    package = "legged_gym"

    def configs(self, task: str) -> ClientConfigs:
        """Return what the task's registration has."""
        importlib.import_module("isaacgym")  # before torch is used on the GPU, as its own scripts do
        importlib.import_module("legged_gym.envs")
        env, agent = importlib.import_module("legged_gym.utils").task_registry.get_cfgs(name=task)
        return ClientConfigs(env=env, agent=agent)

    def build(self, task: str, configs: ClientConfigs, num_envs: int, device: str, *, filmed: bool) -> Any:
        """Build the env as legged_gym's train does; it reads the process's command line."""
        tools = importlib.import_module("legged_gym.utils")
        configs.env.env.num_envs = num_envs
        words = ["--task", task, "--headless", "--sim_device", device, "--rl_device", device]
        before, sys.argv = sys.argv, ["striderl", *words]
        try:
            env, _ = tools.task_registry.make_env(name=task, args=tools.get_args(), env_cfg=configs.env)
        finally:
            sys.argv = before
        return env


class Playground:
    """MuJoCo Playground with its wrapper for rsl_rl."""

    package = "mujoco_playground"

    def configs(self, task: str) -> ClientConfigs:
        """Return the env's default config and its settings for rsl_rl."""
        registry = importlib.import_module("mujoco_playground.registry")
        parameters = importlib.import_module("mujoco_playground.config.locomotion_params")
        return ClientConfigs(env=registry.get_default_config(task), agent=parameters.rsl_rl_config(task))

    def build(self, task: str, configs: ClientConfigs, num_envs: int, device: str, *, filmed: bool) -> Any:
        """Build the env as Playground's train_rsl_rl does."""
        registry = importlib.import_module("mujoco_playground.registry")
        wrapper = importlib.import_module("mujoco_playground.wrapper_torch").RSLRLBraxWrapper
        raw, seed = registry.load(task, config=configs.env), int(_field(configs.agent, "seed", 1))
        return wrapper(raw, num_envs, seed, int(configs.env.episode_length), int(configs.env.action_repeat))


class Genesis:
    """A training example of Genesis, by its module: go2_train beside go2_env, or one of your own like it."""

    package = "genesis"

    def configs(self, task: str) -> ClientConfigs:
        """Return the four dicts of get_cfgs and the train_cfg of get_train_cfg."""
        module = importlib.import_module(task)
        names = ("env_cfg", "obs_cfg", "reward_cfg", "command_cfg")
        return ClientConfigs(env=dict(zip(names, module.get_cfgs())), agent=module.get_train_cfg(task, 101))

    def build(self, task: str, configs: ClientConfigs, num_envs: int, device: str, *, filmed: bool) -> Any:
        """Start Genesis once and build the env as the example does."""
        module, genesis = importlib.import_module(task), importlib.import_module("genesis")
        kinds = [each for name, each in vars(module).items() if name.endswith("Env") and isinstance(each, type)]
        if len(kinds) != 1:
            raise TypeError(f"genesis:{task}: wanted one class that ends in 'Env' in this module, found {kinds}")
        if not genesis._initialized:
            genesis.init(logging_level="warning", backend=genesis.cpu if device == "cpu" else genesis.gpu)
        return kinds[0](num_envs=num_envs, **configs.env)


CLIENTS: Mapping[str, Client] = {
    "mjlab": Mjlab(),
    "isaaclab": IsaacLab(),
    "legged_gym": LeggedGym(),
    "playground": Playground(),
    "genesis": Genesis(),
}
"""Simulators by the word before the colon of a task's name."""


def client_of(task: str) -> tuple[Client, str] | None:
    """Return the simulator of 'mjlab:TASK' and the like, and the name of the task there; None for other tasks."""
    name, colon, inner = task.partition(":")
    return (CLIENTS[name], inner) if colon and inner and name in CLIENTS else None


def load_configs(task: str, overrides: Mapping[str, Any] | None = None) -> ClientConfigs:
    """Return the configs of a client's task, with fields of the env changed by their place."""
    found = client_of(task)
    if found is None:
        raise KeyError(unknown("simulator", task.partition(":")[0], CLIENTS, where="striderl.envs.clients"))
    client, inner = found
    try:
        configs = client.configs(inner)
    except ModuleNotFoundError as error:
        raise ImportError(f"{task!r} wants the package {client.package!r} installed ({error})") from error
    for place, value in (overrides or {}).items():
        override(configs.env, place, value, where="env")
    return configs


def build_client_env(task: str, num_envs: int, device: str, overrides: Mapping[str, Any], *, filmed: bool) -> Any:
    """Build the env of a client's task for rsl_rl's runner."""
    found = client_of(task)
    assert found is not None
    configs = load_configs(task, overrides)
    return found[0].build(found[1], configs, num_envs, device, filmed=filmed)


def _require_task(task: str, known: Sequence[str], where: str) -> None:
    if task not in known:
        raise KeyError(unknown("task", task, known, where=where))


# -- fields by their place ---------------------------------------------------------------------------------------------


def override(config: Any, place: str, value: Any, *, where: str) -> None:
    """Set 'scene.num_envs' of a config: of dataclasses, classes of legged_gym, dicts; a text is read by its type."""
    *path, last = place.replace("-", "_").split(".")
    holder = config
    for number, name in enumerate(path):
        holder = _required(holder, name, ".".join([where, *path[:number]]))
    before = _required(holder, last, ".".join([where, *path]))
    after = parsed(value, before, f"{where}.{place}") if isinstance(value, str) else value
    if isinstance(holder, MutableMapping) or hasattr(holder, "__setitem__"):
        holder[last] = after
    else:
        setattr(holder, last, after)


def parsed(text: str, before: Any, where: str) -> Any:
    """Read a value from text, of the kind that the field has now."""
    if isinstance(before, str):
        return text
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = {"true": True, "false": False, "none": None}.get(text.lower(), text)
    if isinstance(before, bool) != isinstance(value, bool) and before is not None and value is not None:
        raise ValueError(f"--{where} is {'True or False' if isinstance(before, bool) else 'a number'}, found {text!r}")
    if isinstance(before, float) and isinstance(value, int):
        return float(value)
    if isinstance(before, int) and isinstance(value, float):
        raise ValueError(f"--{where} is a whole number, found {text!r}")
    if isinstance(before, (int, float)) and isinstance(value, str):
        raise ValueError(f"--{where} is a number like {before!r}, found {text!r}")
    return tuple(value) if isinstance(before, tuple) and isinstance(value, list) else value


def places(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the place and value of every plain field of a config, nested ones included."""
    for name, value in _fields(config):
        place = f"{prefix}{name}"
        if value is None or isinstance(value, (bool, int, float, str, tuple, list)):
            yield place, value
        elif _fields(value):
            yield from places(value, f"{place}.")


def _required(holder: Any, name: str, where: str) -> Any:
    known = dict(_fields(holder))
    if name not in known:
        raise KeyError(f"{where} has no field {name!r}. {suggestion(name, list(known))}It has: {', '.join(known)}")
    return known[name]


def _field(holder: Any, name: str, default: Any) -> Any:
    return dict(_fields(holder)).get(name, default)


def _fields(holder: Any) -> list[tuple[str, Any]]:
    """Return the fields of a config object: of a dict, a dataclass, or a class with attributes."""
    if isinstance(holder, Mapping) or (hasattr(holder, "items") and hasattr(holder, "keys")):
        return [(str(name), value) for name, value in holder.items()]
    if dataclasses.is_dataclass(holder) and not isinstance(holder, type):
        return [(each.name, getattr(holder, each.name)) for each in dataclasses.fields(holder)]
    if callable(holder) and not isinstance(holder, type):
        return []
    if isinstance(holder, (int, float, str, bytes, tuple, list)) or holder is None:
        return []
    names = [name for name in dir(holder) if not name.startswith("_")]
    found = [(name, getattr(holder, name)) for name in names]
    return [(name, value) for name, value in found if isinstance(value, type) or not callable(value)]
