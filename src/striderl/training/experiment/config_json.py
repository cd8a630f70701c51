"""Configs as JSON and back, strictly: an unknown key gets a suggestion, a wrong type is named with its place.

    to_plain(PPOConfig(clip_param=0.1))                     {"clip_param": 0.1, "gamma": 0.99, …}
    from_plain(PPOConfig, {"clip_parm": 0.1}, "algorithm")  ValueError: algorithm has no setting 'clip_parm'. Did you …

Allowed values follow from a field's annotation: numbers, strings, choices, tuples, tables of settings, other configs.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

from striderl.data.checked_fields import check_finite
from striderl.data.naming import saved_name, unknown
from striderl.data.registry import is_reference, load_reference
from striderl.envs.tasks import modules_named
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.policy import PolicyConfig
from striderl.policies.settings import OwnNetwork, PolicySettings
from striderl.policies.stages import NormalizeObs, OneHot, Override, Remember

ConfigT = TypeVar("ConfigT")

STAGES: Mapping[str, type[Any]] = {
    "NormalizeObs": NormalizeObs,
    "OneHot": OneHot,
    "Remember": Remember,
    "Override": Override,
    "Encode": Encode,
    "Estimate": Estimate,
    "Adapt": Adapt,
    "OwnNetwork": OwnNetwork,
}
"""The stages of this library, by the name under which they are saved; others are 'module:Class'."""

RUNNER, TRAIN_CFG = "runner", "train_cfg"
"""What a runner's config.json has besides: its class, and the config that was translated."""
STAGE_LISTS = ("trunk", "actor", "critic")
"""The fields of a policy that are lists of stages."""

_PLAIN = (bool, int, float, str)


class ConfigError(ValueError):
    """A setting has a wrong name or value; the message contains its place, what was expected and what was found."""


def to_plain(value: Any) -> Any:
    """Return a config, or a part of one, as dicts, lists, numbers and strings that JSON can hold."""
    if isinstance(value, PolicyConfig):
        return policy_to_plain(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if value is None or isinstance(value, _PLAIN):
        return value
    raise ConfigError(
        f"a setting is made of numbers, strings, tables and lists, found {type(value).__name__} {value!r}"
    )


def from_plain(kind: type[ConfigT], data: Any, where: str, given: Mapping[str, Any] | None = None) -> ConfigT:
    """Build a config from plain data; missing settings have their defaults.

    `given` are fields whose values are built already, because their type is not in the annotation.
    """
    given = given or {}
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: wanted a table of settings, found {type(data).__name__} {data!r}")
    for name in data:
        if name not in names:
            raise ConfigError(unknown("setting", str(name), names, where=where))
    values = {
        name: given[name] if name in given else _read(hints[name], value, f"{where}.{name}")
        for name, value in data.items()
    }
    try:
        built = kind(**{**given, **values})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error
    try:
        check_finite(built, where)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return built


def _read(hint: Any, value: Any, where: str) -> Any:
    """Return a value converted to the annotated type."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return _chosen(arguments, value, where)
    if origin in (typing.Union, types.UnionType):
        return _either(arguments, value, where)
    if origin is tuple:
        return _items(arguments, value, where)
    if origin in (Mapping, dict) or hint is dict:
        if not isinstance(value, Mapping):
            raise _wrong(where, "a table of settings", value)
        return {str(name): _frozen(item) for name, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in _PLAIN and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise _wrong(where, hint.__name__, value)
    return value


def _chosen(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in choices:
        raise ConfigError(unknown("choice", str(value), [str(choice) for choice in choices], where=where))
    return value


def _either(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    errors = []
    for argument in arguments:
        if argument is type(None):
            continue
        try:
            return _read(argument, value, where)
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _items(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _wrong(where, "a list", value)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_read(arguments[0], item, f"{where}.{number}") for number, item in enumerate(value))
    if len(arguments) != len(value):
        raise _wrong(where, f"a list of {len(arguments)}", value)
    return tuple(_read(hint, item, f"{where}.{number}") for number, (hint, item) in enumerate(zip(arguments, value)))


def _frozen(value: Any) -> Any:
    """Return lists as the tuples that configs hold."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    return {str(name): _frozen(item) for name, item in value.items()} if isinstance(value, Mapping) else value


def _wrong(where: str, wanted: str, value: Any) -> ConfigError:
    return ConfigError(f"{where}: wanted {wanted}, found {type(value).__name__} {value!r}")


# -- the policy as data ------------------------------------------------------------------------------------------------


def policy_to_plain(config: PolicyConfig) -> dict[str, Any]:
    """Return a policy's config as plain data, each stage with its name."""
    plain = {each.name: getattr(config, each.name) for each in dataclasses.fields(config)}
    for name in STAGE_LISTS:
        plain[name] = [{"stage": _stage_name(stage), **to_plain(stage)} for stage in plain[name]]
    return {name: to_plain(value) for name, value in plain.items()}


def policy_from_plain(data: Mapping[str, Any]) -> PolicySettings | PolicyConfig:
    """Return the config of a policy from plain data: a few settings, or stage by stage where it has lists of them."""
    if not any(name in data for name in STAGE_LISTS):
        return from_plain(PolicySettings, data, "config.policy")
    stages = {name: tuple(_stage(part, f"policy.{name}") for part in data.get(name, ())) for name in STAGE_LISTS}
    return from_plain(PolicyConfig, data, "policy", stages)


def _stage_name(stage: Any) -> str:
    name = saved_name(stage)
    if type(stage) is STAGES.get(name):
        return name
    if not dataclasses.is_dataclass(stage) or "<" in type(stage).__qualname__:
        raise ConfigError(f"the stage {type(stage).__name__} is no dataclass of a module, so no file can name it")
    return f"{type(stage).__module__}:{type(stage).__qualname__}"


def _stage(part: Any, where: str) -> Any:
    if not isinstance(part, Mapping) or not isinstance(part.get("stage"), str):
        raise ConfigError(f"{where}: wanted a stage with its name, found {part!r}")
    name = part["stage"]
    if name not in STAGES and not is_reference(name):
        raise ConfigError(unknown("stage", name, STAGES, where=where))
    kind = STAGES[name] if name in STAGES else load_reference(name)
    return from_plain(kind, {key: value for key, value in part.items() if key != "stage"}, where)


# -- what a config imports ---------------------------------------------------------------------------------------------


def modules_in(data: Mapping[str, Any], *, env: bool = True) -> list[str]:
    """Return the modules that building a stored config would import, beyond the library and what is installed.

    env: whether its env is built as well; a policy alone needs none.
    """
    parts = {name: data.get(name) for name in ("policy", "terms", "logging", "env")}
    tables = {name: part for name, part in parts.items() if isinstance(part, Mapping)}
    policy = tables.get("policy", {})
    stages = [part for name in STAGE_LISTS for part in (policy.get(name) or ()) if isinstance(part, Mapping)]
    named = [
        data.get("algorithm_name"),
        *(part.get(name) for part in [policy, *stages] for name in ("network", "stage")),
    ]
    named += [*tables.get("terms", {}), *_texts(list(tables.get("terms", {}).values()))]
    if env:
        named += _functions(data.get(TRAIN_CFG))
        named += [*_texts(tables.get("logging", {}).get("trackers", ())), *_texts(data.get("callbacks", ()))]
    found = [name.partition(":")[0] for name in named if isinstance(name, str) and is_reference(name)]
    task = tables.get("env", {}).get("task")
    if env and isinstance(task, str):
        found += modules_named(task, tables["env"].get("settings") or {})
    return found


def addresses_in(data: Mapping[str, Any]) -> list[str]:
    """Return the clusters that a run of a stored config would connect to, other than one of this machine."""
    workers = data.get("workers")
    address = workers.get("address") if isinstance(workers, Mapping) else ""
    return [address] if isinstance(address, str) and address not in ("", "auto", "local") else []


def to_be_trusted(
    data: Mapping[str, Any], known: Mapping[str, Any], *, env: bool = True
) -> tuple[list[str], list[str]]:
    """Return the modules and the clusters of a stored config that a `known` one does not name."""
    clusters = addresses_in(data) if env else []
    return (
        [name for name in modules_in(data, env=env) if name not in modules_in(known)],
        [name for name in clusters if name not in addresses_in(known)],
    )


def must_be_known(data: Mapping[str, Any]) -> bool:
    """Return whether a config is registered as made here, so that reading it needs no word of the user."""
    return any(to_be_trusted(data, {}))


def _functions(value: Any) -> Iterator[str]:
    """Yield the names of functions that reading a train_cfg imports."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _texts(part) if name == "data_augmentation_func" else _functions(part)
    elif isinstance(value, list):
        for part in value:
            yield from _functions(part)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)
