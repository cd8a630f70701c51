"""Names of a config turned into classes, functions and groups; trajectories; gradients of several processes.

'PPO'                         a class of this package          'my.module:Class.inner'       any object of a module
'rsl_rl.algorithms.PPO'       the same                         'my.module.Class'             the same
"""

from __future__ import annotations

import copy
import importlib
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn, optim

from striderl.data.naming import unknown
from striderl.networks.mlp import ACTIVATIONS
from striderl.ops import trajectories as ops

_log = logging.getLogger(__name__)

_HOME = __name__.rpartition(".utils.")[0]
_PARTS = ("algorithms", "env", "extensions", "models", "modules", "runners", "storage", "utils")
_OPTIMIZERS: Mapping[str, type[optim.Optimizer]] = {
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "sgd": optim.SGD,
    "rmsprop": optim.RMSprop,
}


def get_param(param: Any, idx: int) -> Any:
    """Return the entry of a list or tuple; anything else is the value of every layer."""
    return param[idx] if isinstance(param, (tuple, list)) else param


# -- names -------------------------------------------------------------------------------------------------------------


def resolve_nn_activation(act_name: str) -> nn.Module:
    """Build the activation of this name; 'crelu' is CELU, as in rsl_rl."""
    known: dict[str, type[nn.Module]] = {**ACTIVATIONS, "crelu": nn.CELU}
    if act_name.lower() not in known:
        raise ValueError(
            f"Invalid activation function: {unknown('activation', act_name, known, where='resolve_nn_activation')}"
        )
    return known[act_name.lower()]()


def resolve_optimizer(optimizer_name: str) -> type[optim.Optimizer]:
    """Return the class of an optimiser: 'adam', 'adamw', 'sgd' or 'rmsprop'."""
    if optimizer_name.lower() not in _OPTIMIZERS:
        raise ValueError(
            f"Invalid optimizer: {unknown('optimizer', optimizer_name, _OPTIMIZERS, where='resolve_optimizer')}"
        )
    return _OPTIMIZERS[optimizer_name.lower()]


def resolve_callable(callable_or_name: Any) -> Callable[..., Any]:
    """Return a callable as it is, or the one of a name; see the top of this module.

    Names come out of the caller's own config: importing a module runs it.
    """
    if callable(callable_or_name):
        return callable_or_name  # type: ignore[no-any-return]
    if not isinstance(callable_or_name, str):
        raise TypeError(f"Expected callable or string, found {type(callable_or_name).__name__} {callable_or_name!r}")
    name = callable_or_name
    if name.startswith("rsl_rl."):
        name = f"{_HOME}.{name.removeprefix('rsl_rl.')}"
    if ":" in name:
        module, _, path = name.rpartition(":")
        return _attribute(importlib.import_module(module), path)  # type: ignore[no-any-return]
    if "." in name:
        return _dotted(name)
    for part in _PARTS:
        found = vars(importlib.import_module(f"{_HOME}.{part}")).get(name)
        if callable(found):
            return found  # type: ignore[no-any-return]
    raise ValueError(f"Could not resolve '{name}'; give 'package.module:{name}', or the class itself")


def _attribute(found: Any, path: str) -> Any:
    for each in path.split("."):
        found = getattr(found, each)
    return found


def _dotted(name: str) -> Callable[..., Any]:
    """Return the object of 'package.module.Class.inner', in the deepest module that has it."""
    parts = name.split(".")
    module = None
    for count in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            # a module that exists, and itself imports one that does not, is a fault of its own
            if error.name is None or not ".".join(parts[:count]).startswith(error.name):
                raise
            continue
        try:
            return _attribute(module, ".".join(parts[count:]))  # type: ignore[no-any-return]
        except AttributeError:
            continue
    if module is None:
        raise ImportError(f"Could not resolve '{name}': none of its parts is a module")
    raise AttributeError(f"Could not resolve '{name}': {module.__name__} has no such attribute")


def resolve_class(cfg: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the class that `cfg["class_name"]` names, and a deep copy of the other settings."""
    settings = dict(copy.deepcopy(cfg))
    return resolve_callable(settings.pop("class_name")), settings


def resolve_obs_groups(obs: Any, obs_groups: dict[str, list[str]], default_sets: Iterable[str]) -> dict[str, list[str]]:
    """Return observation groups by set, checked against the env's; a missing set is filled in.

    A set that is missing takes the group of its own name, else the group 'policy', with a warning.
    """
    if not obs_groups:
        warnings.warn("obs_groups is empty: groups are chosen by their names; set it in the config", stacklevel=2)
    for name, groups in obs_groups.items():
        if not groups:
            raise ValueError(f"obs_groups['{name}'] is an empty list; name at least one group of {sorted(obs.keys())}")
        for group in groups:
            if group not in obs.keys():  # noqa: SIM118  (a TensorDict is no mapping)
                raise ValueError(
                    f"obs_groups['{name}'] names the observation '{group}'; the env gives {sorted(obs.keys())}"
                )
    for name in default_sets:
        if name in obs_groups:
            continue
        chosen = next((group for group in (name, "policy") if group in obs.keys()), None)  # noqa: SIM118
        if chosen is None:
            raise ValueError(
                f"obs_groups has no set '{name}', and the env gives neither '{name}' nor 'policy', but "
                f"{sorted(obs.keys())}; set obs_groups['{name}']"
            )
        warnings.warn(f"obs_groups has no set '{name}': the group '{chosen}' is used; set it", stacklevel=2)
        obs_groups[name] = [chosen]
    _log.info("observation sets: %s", obs_groups)
    return obs_groups


# -- checks and compiling ----------------------------------------------------------------------------------------------


def check_nan(obs: Any, rewards: Tensor, dones: Tensor) -> None:
    """Raise where the env returned NaN."""
    for name, value in [*((f"observation '{key}'", each) for key, each in obs.items()), ("rewards", rewards)]:
        if torch.isnan(value).any():
            raise ValueError(f"the env's {name} contain NaN values; look at its step() and reset()")
    if torch.isnan(dones).any():
        raise ValueError("the env's dones contain NaN values; look at its terminations")


def compile_model(model: nn.Module, mode: str | None = None) -> Any:
    """Return the model compiled in a mode of torch.compile; as it is without one.

    Modes with CUDA graphs are refused: a graph writes over the output of the call before.
    """
    if mode is None:
        return model
    if mode in ("reduce-overhead", "max-autotune"):
        raise ValueError(
            f"torch_compile_mode='{mode}' uses CUDA graphs, whose outputs the next call overwrites; "
            "use 'default' or 'max-autotune-no-cudagraphs', or striderl.training.OnPolicyRunner, which captures whole "
            "updates"
        )
    return torch.compile(model, mode=mode)


def reduce_gradients_in_buckets(params: Iterable[nn.Parameter], world_size: int, bucket_mb: float) -> None:
    """Average gradients over all processes, packed into buffers of at most `bucket_mb` megabytes.

    A gradient that is larger is reduced in slices; parameters without a gradient are left out.
    """
    limit = int(bucket_mb * 1024 * 1024)
    packed: list[Tensor] = []
    filled = 0
    for gradient in [each.grad.view(-1) for each in params if each.grad is not None]:
        for piece in torch.split(gradient, max(1, limit // gradient.element_size())):
            size = piece.numel() * piece.element_size()
            if packed and filled + size > limit:
                _reduce(packed, world_size)
                packed, filled = [], 0
            packed.append(piece)
            filled += size
    if packed:
        _reduce(packed, world_size)


def _reduce(pieces: list[Tensor], world_size: int) -> None:
    whole = torch.cat(pieces)
    torch.distributed.all_reduce(whole, op=torch.distributed.ReduceOp.SUM)
    whole /= world_size
    for piece, reduced in zip(pieces, torch.split(whole, [each.numel() for each in pieces])):
        piece.copy_(reduced)


# -- trajectories ------------------------------------------------------------------------------------------------------


def split_and_pad_trajectories(tensor: Any, dones: Tensor) -> tuple[Any, Tensor]:
    """Split [T, N, …] at `dones` [T, N] or [T, N, 1] into ([T, n_traj, …], masks [T, n_traj]); TensorDicts as well."""
    padded, masks = ops.split_and_pad_trajectories(tensor, dones.reshape(dones.shape[:2]))
    return padded, masks


def unpad_trajectories(trajectories: Any, masks: Tensor) -> Any:
    """Invert `split_and_pad_trajectories`."""
    return ops.unpad_trajectories(trajectories, masks)
