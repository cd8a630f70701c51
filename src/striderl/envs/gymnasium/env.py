"""Gymnasium envs as one `VecEnv`: N copies of any env, in this process or in workers, or a vector env as it is.

    env = GymnasiumEnv("CartPole-v1", 8)
    env = GymnasiumEnv(lambda: MyEnv(level=3), 64, workers=WorkerConfig(num_workers=4))
    env = GymnasiumEnv(gymnasium.make_vec("Pendulum-v1", 8, vector_kwargs={"autoreset_mode": "SameStep"}))

What is converted: Dict and Tuple observations become components named 'outer/inner', a plain one becomes 'obs'; float64
components are stored as float32 unless `keep_float64`; rewards are float32; Discrete values are int64; images stay
uint8. Actions are passed on in the dtype of the action space, clipped to a Box's bounds: a Gaussian policy samples
outside of them, and its unclipped sample is stored and learned from.

Seeds: env i gets the stream `env_seed_sequence(seed, first_env_index + i)`; the same seed gives the same bits for any
number of workers and any start method. Gymnasium's own env checker is left out of envs made by id (it costs more than
many envs' step), and so is its `OrderEnforcing`; the checks here take their place.

Also here: one builder per env from the user's argument.

"CartPole-v1", 2     ─▶  [build, build]      looked up here: a worker process may not have registered it
lambda: MyEnv(), 2   ─▶  [build, build]
[build_a, build_b]   ─▶  the same
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from striderl.data.actions import action_spec_from_space
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec, space_leaves
from striderl.envs.gymnasium.backend import Backend, InProcessBackend
from striderl.envs.gymnasium.rows import EnvFacts, EnvRows
from striderl.envs.vec_env import ContractError
from striderl.envs.workers.block import make_env
from striderl.envs.workers.convert import EnvFactory, mask_size
from striderl.envs.workers.errors import ContractViolation, EnvCloseWarning, MissingPackage, WrongType, WrongValue
from striderl.envs.workers.layout import Layout, make_layout
from striderl.envs.workers.pool import WorkerConfig

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.vector import VectorEnv


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class GymnasiumEnv(EnvRows):
    """N Gymnasium envs behind the `VecEnv` contract.

    Every step is one real transition for every env. `Step.info` always carries 'valid' (false for rows of a step in
    which a worker was lost and restarted) and the declared `info_keys`; a declared key that a step does not have is 0
    there. `Step.final_obs` is the observation that the step led to, in every row; where no episode ended it equals
    `Step.obs`.
    """

    def __init__(
        self,
        env: str | EnvSpec | Callable[..., Any] | Sequence[EnvFactory] | VectorEnv[Any, Any, Any],
        num_envs: int = 0,
        *,
        device: torch.device | str = "cpu",
        env_kwargs: Mapping[str, Any] = _NOTHING,
        workers: WorkerConfig = WorkerConfig(),  # noqa: B008  (frozen)
        info_keys: Mapping[str, TensorSpec] = _NOTHING,
        action_mask: str = "",
        render_mode: str = "",
        keep_float64: bool = False,
        first_env_index: int = 0,
    ) -> None:
        """Build the envs.

        Args:
            env: a Gymnasium id or spec, something callable that builds an env, one such callable per env, or a
                `gymnasium.vector.VectorEnv`, which is then owned and closed by this object.
            num_envs: how many copies; may be left out where `env` has the number.
            device: where tensors live.
            env_kwargs: passed on to `gymnasium.make` or to the callable.
            workers: how the envs are spread over processes.
            info_keys: which info entries every step carries as tensors, with shape and dtype.
            action_mask: the observation component, or else the info key, that holds the mask of allowed actions.
            render_mode: 'rgb_array' makes `render` work; passed on like `env_kwargs`.
            keep_float64: keep float64 observations instead of storing them as float32.
            first_env_index: the global index of env 0, when several processes each hold a part of the envs.
        """
        check_arguments(num_envs, workers, env_kwargs, info_keys)
        kwargs = {**env_kwargs, **({"render_mode": render_mode} if render_mode else {})}
        try:
            backend = _make_backend(env, num_envs, kwargs, workers, first_env_index)
            try:
                layout = _layout(backend, info_keys, action_mask, keep_float64)
                backend.bind(layout)
            except BaseException:
                backend.close()
                raise
        except ContractViolation as violation:
            raise user_error(violation) from None
        facts = EnvFacts(
            layout=layout,
            obs_spec=_obs_spec(layout, backend.description.observation_space),
            action_spec=action_spec_from_space(backend.description.action_space, mask=action_mask),
            info_spec={**info_keys, "valid": TensorSpec(dtype="bool")},
            device=torch.device(device),
            max_episode_length=max(backend.description.limits),
            step_dt=backend.description.step_dt,
            render_fps=backend.description.render_fps,
            first_env_index=first_env_index,
            log_restarts=workers.on_failure == "restart",
            has_episode=bytearray(backend.num_envs),
            under_way=bytearray(backend.num_envs),
        )
        super().__init__(backend, facts, 0, backend.num_envs)
        self.observation_space = backend.description.observation_space
        """Gymnasium's space of one env's observation, with the bounds that `obs_spec` leaves out."""
        self._closer = weakref.finalize(self, _close_quietly, backend, os.getpid())

    def close(self) -> None:
        """Close all envs and end all workers, within five seconds; calling it twice is fine.

        What an env raises while it is closed is shown as an `EnvCloseWarning`, after everything was released.
        """
        if self._closer.detach() is None:
            return
        texts = self.backend.close()
        if texts:
            warnings.warn("closing raised in " + "\n".join(texts), EnvCloseWarning, stacklevel=2)


def _close_quietly(backend: Backend, owner: int) -> None:
    """Close the envs of a forgotten object, or at the end of the interpreter; never in a forked copy."""
    if os.getpid() == owner:
        backend.close()


def _make_backend(
    env: Any, num_envs: int, kwargs: Mapping[str, Any], workers: WorkerConfig, first_env_index: int
) -> Backend:
    from gymnasium.vector import VectorEnv

    if isinstance(env, VectorEnv):
        from striderl.envs.gymnasium.vector import VectorBackend

        if kwargs or workers.num_workers:
            raise ValueError("env_kwargs, render_mode and workers have no effect on a VectorEnv that is already built")
        if num_envs not in (0, env.num_envs):
            raise ValueError(f"num_envs: the VectorEnv has {env.num_envs} envs, found num_envs={num_envs}")
        return VectorBackend(env, first_env_index=first_env_index)
    factories = make_factories(env, num_envs, kwargs)
    if workers.num_workers:
        from striderl.envs.workers.pool import WorkerPool  # needs Linux; the rest of this module does not

        return WorkerPool(factories, workers, first_env_index=first_env_index)
    return InProcessBackend(factories, first_env_index=first_env_index)


def _layout(backend: Backend, info_keys: Mapping[str, TensorSpec], mask: str, keep_float64: bool) -> Layout:
    """Lay out the buffers for the envs' description; unusable spaces raise here."""
    description = backend.description
    action_spec_from_space(description.action_space)
    return make_layout(
        description,
        num_envs=backend.num_envs,
        num_slots=backend.num_slots,
        info_keys=info_keys,
        mask=mask,
        mask_size=mask_size(description.action_space) if mask else 0,
        keep_float64=keep_float64,
    )


def _obs_spec(layout: Layout, space: Any) -> ObsSpec:
    """Describe the components as they are stored, with the choices of the space's discrete parts."""
    parts = {name or "obs": part for name, part in space_leaves(space)}
    found: dict[str, ComponentSpec] = {}
    for leaf in layout.observation:
        if leaf.name == layout.mask:
            found[leaf.name] = ComponentSpec(shape=leaf.shape, dtype=leaf.dtype, group="action_mask")
        else:
            found[leaf.name] = replace(parts[leaf.name], dtype=leaf.dtype)
    return ObsSpec(found)


# -- builders ----------------------------------------------------------------------------------------------------------


_USER_ERRORS: dict[type[ContractViolation], type[Exception]] = {
    WrongValue: ValueError,
    WrongType: TypeError,
    MissingPackage: ImportError,
}
_SHOW = "an id, a spec, a function that builds an env, a list of such functions, or a VectorEnv"


def user_error(violation: ContractViolation) -> Exception:
    """Return the public error for a violation found here or in a worker."""
    return _USER_ERRORS.get(type(violation), ContractError)(str(violation))


def check_arguments(num_envs: Any, workers: Any, env_kwargs: Any, info_keys: Any) -> None:
    """Raise for arguments of the wrong kind before anything is built."""
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
    """Bind env_kwargs to a builder; names that it does not take, or lacks, are found here and not in N processes."""
    try:
        signature = inspect.signature(build)
    except ValueError:  # a built-in without a signature
        return functools.partial(build, **kwargs)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        found = f"found {sorted(kwargs)}" if kwargs else "found none"
        raise TypeError(
            f"env_kwargs: the env builder takes {signature}, {found}: {error} (--env.settings.NAME VALUE gives one)"
        ) from None
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
        spec = copy.copy(gymnasium.spec(env))
        spec.order_enforce = False  # `EnvRows` refuses to step and to render before the first reset
        return spec
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
