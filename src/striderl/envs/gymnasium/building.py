"""From what a user gives to one builder per env, with an error in plain words where that does not work out.

"CartPole-v1", 2     ─▶  [build, build]      looked up here: a worker process may not have registered it
lambda: MyEnv(), 2   ─▶  [build, build]
[build_a, build_b]   ─▶  the same
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from striderl.data.specs import TensorSpec
from striderl.envs.vec_env import ContractError
from striderl.envs.workers.block import make_env
from striderl.envs.workers.config import WorkerConfig
from striderl.envs.workers.convert import EnvFactory
from striderl.envs.workers.errors import ContractViolation, MissingPackage, WrongType, WrongValue

_USER_ERRORS: dict[type[ContractViolation], type[Exception]] = {
    WrongValue: ValueError,
    WrongType: TypeError,
    MissingPackage: ImportError,
}
_SHOW = "an id, a spec, a function that builds an env, a list of such functions, or a VectorEnv"


def user_error(violation: ContractViolation) -> Exception:
    """Return the error that users know for a violation found here or in a worker."""
    return _USER_ERRORS.get(type(violation), ContractError)(str(violation))


def check_arguments(num_envs: Any, workers: Any, env_kwargs: Any, info_keys: Any) -> None:
    """Refuse arguments of the wrong kind before anything is built."""
    if not isinstance(num_envs, int) or isinstance(num_envs, bool):
        raise TypeError(f"num_envs: wanted a whole number, found {type(num_envs).__name__} {num_envs!r}")
    if not isinstance(workers, WorkerConfig):
        hint = f"; write workers=WorkerConfig(num_workers={workers})" if isinstance(workers, int) else ""
        raise TypeError(f"workers: wanted a WorkerConfig, found {type(workers).__name__} {workers!r}{hint}")
    if not isinstance(env_kwargs, Mapping):
        raise TypeError(f"env_kwargs: wanted a dict from name to value, found {type(env_kwargs).__name__}")
    if not isinstance(info_keys, Mapping) or not all(isinstance(spec, TensorSpec) for spec in info_keys.values()):
        raise TypeError(
            f"info_keys: wanted a dict from name to TensorSpec, found {type(info_keys).__name__} {info_keys!r}; "
            "write info_keys={'name': TensorSpec(shape=(), dtype='float32')}"
        )
    for name in ("valid", "log"):
        if name in info_keys:
            raise ValueError(f"info_keys: {name!r} is what this adapter adds; rename the env's own key")


def make_factories(env: Any, num_envs: int, kwargs: Mapping[str, Any]) -> list[EnvFactory]:
    """Return one function per env that builds it."""
    _refuse_built(env)
    if isinstance(env, Sequence) and not isinstance(env, str):
        if num_envs not in (0, len(env)):
            raise ValueError(f"num_envs: {len(env)} env builders are given, found num_envs={num_envs}")
        if not env:
            raise ValueError("env: wanted at least one env builder, found an empty sequence")
        return [_with_arguments(_checked_builder(build, f"env[{row}]"), kwargs) for row, build in enumerate(env)]
    if num_envs < 1:
        raise ValueError(f"num_envs: wanted 1 or more copies, found {num_envs}")
    if callable(env):
        return [_with_arguments(env, kwargs)] * num_envs
    return [functools.partial(make_env, _found_spec(env), kwargs)] * num_envs


def _checked_builder(build: Any, name: str) -> Callable[..., Any]:
    _refuse_built(build, name)
    if not callable(build):
        raise TypeError(f"{name}: wanted a function that builds an env, found {type(build).__name__} {build!r}")
    return build  # type: ignore[no-any-return]


def _refuse_built(env: Any, name: str = "env") -> None:
    import gymnasium

    if isinstance(env, gymnasium.Env):
        raise TypeError(
            f"{name}: wanted {_SHOW}; found {env}, which is already built and cannot be copied. "
            "Give what builds it: GymnasiumEnv('CartPole-v1', 2) or GymnasiumEnv(lambda: MyEnv(), 2)"
        )


def _with_arguments(build: Callable[..., Any], kwargs: Mapping[str, Any]) -> EnvFactory:
    """Bind env_kwargs to a builder; names that it does not take are found here and not in N processes."""
    if kwargs:
        try:
            signature = inspect.signature(build)
        except ValueError:  # something built in, which tells nothing about its arguments
            return functools.partial(build, **kwargs)
        try:
            signature.bind(**kwargs)
        except TypeError as error:
            raise TypeError(f"env_kwargs: the env builder takes {signature}, found {sorted(kwargs)}: {error}") from None
    return functools.partial(build, **kwargs)


def _found_spec(env: Any) -> Any:
    """Look an id up here, because a worker process may not have run the code that registered it."""
    import gymnasium
    from gymnasium.envs.registration import EnvSpec, parse_env_id
    from gymnasium.error import Error, UnregisteredEnv

    if not isinstance(env, (str, EnvSpec)):
        raise TypeError(f"env: wanted {_SHOW}; found {type(env).__name__} {env!r}")
    if isinstance(env, EnvSpec):
        return env
    try:
        return gymnasium.spec(env)
    except UnregisteredEnv as error:
        if ":" in env:  # 'module:id': gymnasium.make imports the module first
            return env
        raise ValueError(
            f"Gymnasium has no env {env!r}: {error} (gymnasium.pprint_registry() lists all; an id of your own is "
            "known once the module that registers it is imported)"
        ) from None
    except Error:
        try:
            parse_env_id(env.rpartition(":")[2])
        except Error as error:
            raise ValueError(f"env: {error}") from None
        return env  # an id without version: gymnasium.make takes the newest
