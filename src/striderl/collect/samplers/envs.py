"""From a sampler's `EnvCls` and `env_kwargs` to one `VecEnv` of B envs.

    EnvCls                                             becomes
    a VecEnv class, or a factory that takes num_envs   EnvCls(num_envs=B, **env_kwargs)
    a Gymnasium id, class, or function                 GymnasiumEnv(EnvCls, B, env_kwargs=env_kwargs)
    a class or function of rlpyt's envs                the same, each env behind a `SingleEnvAdapter`

What a function builds is found out by calling it once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from striderl.collect.samplers.samples import named_observation
from striderl.data.actions import DictActionSpec
from striderl.data.specs import TensorSpec, dtype_name
from striderl.envs.vec_env import AsyncVecEnv, VecEnv
from striderl.envs.workers.pool import WorkerConfig


class EnvSpaces(NamedTuple):
    """The spaces that an agent gets."""

    observation: Any
    """The env's own space, where it has one; otherwise our specs, nested like observations."""
    action: Any
    """The env's own space, or our `ActionSpec`."""


@dataclass(frozen=True, kw_only=True)
class EnvPlan:
    """The number of envs, and where they run."""

    num_envs: int
    """B."""
    first_env_index: int = 0
    """The global index of the first one."""
    workers: WorkerConfig = WorkerConfig()  # noqa: RUF009  (frozen)
    """Processes for single envs."""
    worker_cpus: tuple[tuple[int, ...], ...] = ()
    """For each worker the processors it is tied to; empty for none."""
    device: str = "cpu"
    """Where the tensors of single envs live."""


def make_sampler_env(EnvCls: Any, env_kwargs: Mapping[str, Any], plan: EnvPlan) -> tuple[VecEnv, EnvSpaces]:
    """Build the envs, see the table at the top of this module, and return them with the spaces for an agent."""
    if _makes_vec_env(EnvCls):
        env = _own_vec_env(EnvCls, env_kwargs, plan)
        return env, env_spaces(env)
    if isinstance(EnvCls, str) or not callable(EnvCls):
        return _gymnasium_env(EnvCls, env_kwargs, plan, {})
    import gymnasium

    if isinstance(EnvCls, type) and issubclass(EnvCls, gymnasium.Env):
        return _gymnasium_env(EnvCls, env_kwargs, plan, {})
    example = EnvCls(**env_kwargs)
    if isinstance(example, VecEnv):
        env = _checked(example, plan, "")
        return env, env_spaces(env)
    try:
        infos = None if isinstance(example, gymnasium.Env) else rlpyt_info_specs(example)
    finally:
        if hasattr(example, "close"):
            example.close()
    if infos is None:
        return _gymnasium_env(EnvCls, env_kwargs, plan, {})
    from striderl.collect.samplers.env_adapter import AdaptedBuilder

    env, _ = _gymnasium_env(AdaptedBuilder(EnvCls), env_kwargs, plan, infos)
    return env, EnvSpaces(example.observation_space, example.action_space)


def as_vec_env(envs: Any) -> VecEnv:
    """Return a `VecEnv` as it is, and a list of single envs, Gymnasium's or rlpyt's, as one."""
    if isinstance(envs, VecEnv):
        return envs
    import gymnasium

    from striderl.collect.samplers.env_adapter import BuiltEnv, SingleEnvAdapter
    from striderl.envs.gymnasium.env import GymnasiumEnv

    infos: dict[str, TensorSpec] = {}
    if not isinstance(envs[0], gymnasium.Env):
        infos = rlpyt_info_specs(envs[0])
        envs = [SingleEnvAdapter(env) for env in envs]
    return GymnasiumEnv([BuiltEnv(env) for env in envs], info_keys=infos)


def env_spaces(env: VecEnv) -> EnvSpaces:
    """Return the spaces of these envs for an agent."""
    from striderl.envs.gymnasium.rows import EnvRows

    if isinstance(env, EnvRows):
        return EnvSpaces(env.get_attr("observation_space")[0], env.get_attr("action_space")[0])
    return EnvSpaces(named_observation(dict(env.obs_spec)), env.action_spec)


def info_specs(env: VecEnv) -> dict[str, TensorSpec]:
    """Return the specs of env_info in samples, by name."""
    return {name: spec for name, spec in env.info_spec.items() if name != "valid"}


def action_tensor(env: VecEnv) -> TensorSpec:
    """Return the spec of a stored action; samplers support actions that are one tensor."""
    if isinstance(env.action_spec, DictActionSpec):
        raise TypeError(
            f"samplers keep action and prev_action as one tensor; {type(env).__name__} takes a dict with "
            f"{sorted(env.action_spec.parts)}. Use Collector with a RolloutStorage"
        )
    return env.action_spec.tensor


def rlpyt_info_specs(env: Any) -> dict[str, TensorSpec]:
    """Take one step in an env of rlpyt's kind and return what its env_info holds, by name."""
    from striderl.collect.samplers.env_adapter import SingleEnvAdapter

    missing = [name for name in ("reset", "step", "observation_space", "action_space") if not hasattr(env, name)]
    if missing:
        raise TypeError(
            f"EnvCls made a {type(env).__name__}, which is no VecEnv, no Gymnasium env, and without {missing} "
            "not one of rlpyt's kind either"
        )
    adapter = SingleEnvAdapter(env)
    adapter.reset()
    info = adapter.step(adapter.action_space.sample())[4]
    values = {name: torch.as_tensor(value) for name, value in info.items()}
    return {name: TensorSpec(shape=tuple(value.shape), dtype=dtype_name(value.dtype)) for name, value in values.items()}


def _makes_vec_env(EnvCls: Any) -> bool:
    if isinstance(EnvCls, type):
        return issubclass(EnvCls, VecEnv)
    return callable(EnvCls) and "num_envs" in _parameters(EnvCls)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # some builtins have no signature
        return {}


def _own_vec_env(EnvCls: Any, env_kwargs: Mapping[str, Any], plan: EnvPlan) -> VecEnv:
    kwargs = dict(env_kwargs)
    if "first_env_index" in _parameters(EnvCls):
        kwargs.setdefault("first_env_index", plan.first_env_index)
    env = EnvCls(num_envs=plan.num_envs, **kwargs)
    name = getattr(EnvCls, "__name__", str(EnvCls))
    if not isinstance(env, VecEnv):
        raise TypeError(f"{name} takes num_envs, so it should build a VecEnv; it built a {type(env).__name__}")
    return _checked(env, plan, name)


def _checked(env: VecEnv, plan: EnvPlan, name: str) -> VecEnv:
    """Raise for envs that are too few, or that cannot run in the requested processes."""
    problem: Exception | None = None
    if env.num_envs != plan.num_envs:
        problem = ValueError(f"EnvCls {name} built {env.num_envs} envs, wanted {plan.num_envs}")
    elif plan.workers.num_workers and not isinstance(env, AsyncVecEnv):
        problem = TypeError(
            f"worker processes are for single envs; {type(env).__name__} steps all of its envs in this process: "
            "use SerialSampler"
        )
    if problem is not None:
        env.close()
        raise problem
    return env


def _gymnasium_env(
    env: Any, kwargs: Mapping[str, Any], plan: EnvPlan, infos: Mapping[str, TensorSpec]
) -> tuple[VecEnv, EnvSpaces]:
    from striderl.envs.gymnasium.env import GymnasiumEnv

    builders = _pinned(env, plan) if plan.worker_cpus else env
    made = GymnasiumEnv(
        builders,
        plan.num_envs,
        device=plan.device,
        env_kwargs=kwargs,
        workers=plan.workers,
        info_keys=infos,
        first_env_index=plan.first_env_index,
    )
    return made, env_spaces(made)


def _pinned(env: Any, plan: EnvPlan) -> Sequence[Callable[..., Any]]:
    """Return one builder per env that ties its worker to the worker's processors."""
    import functools

    import gymnasium

    from striderl.collect.samplers.env_adapter import PinnedBuilder

    build = env if callable(env) else functools.partial(gymnasium.make, env, disable_env_checker=True)
    num_workers = plan.workers.num_workers
    borders = [plan.num_envs * index // num_workers for index in range(num_workers + 1)]
    return [
        PinnedBuilder(build, plan.worker_cpus[worker])
        for worker in range(num_workers)
        for _ in range(borders[worker], borders[worker + 1])
    ]
