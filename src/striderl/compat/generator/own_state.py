"""The state of objects that a user wrote, read from their attributes, to resume a run bit for bit.

    class Algorithm:                                       state_of(agent)
        model = Model()                      nn.Module     {"alg": {"$object": {"model": {"$state": {…}},
        optimizer = Adam(…)                  state_dict                        "optimizer": {"$state": {…}},
        num_updates = 7                      a number                          "num_updates": 7}},
    class Agent:                                            "generator": {"$generator": …}}
        alg = Algorithm()                    its own attributes
        generator = np.random.default_rng()  a random generator

An object with `state_dict` and `load_state_dict` is saved by them. Numbers, text, arrays, tensors and containers are
saved as they are, random generators by their position (those of Gymnasium's spaces included), every other object by its
attributes. Functions, classes, devices and frozen dataclasses are settings: they are not saved. What is none of these
raises with the place. Loading fills the same attributes of objects that were built in the same way.
"""

from __future__ import annotations

import dataclasses
import enum
import random
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

_SETTINGS = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    torch.device,
    torch.dtype,
    np.dtype,
    PurePath,
    enum.Enum,
)
_SKIP = object()


def state_of(owner: object, *, without: Collection[str] = (), name: str = "") -> dict[str, Any]:
    """Return the state of an object by its attributes; `without` are those that are saved elsewhere."""
    return _attributes(owner, name or type(owner).__name__, {id(owner)}, without)


def load_state(owner: object, state: Mapping[str, Any], *, without: Collection[str] = (), name: str = "") -> None:
    """Load a state into an object that was built like the one it was read from."""
    name = name or type(owner).__name__
    now = {key: value for key, value in vars(owner).items() if key not in without}
    missing = [key for key, saved in state.items() if key not in now and _fills_an_object(saved)]
    if missing:
        raise KeyError(f"{name}: the saved state has {missing}, which this object lacks; build it as before the save")
    for key, saved in state.items():
        # past a `__setattr__` that refuses a second assignment
        vars(owner)[key] = _loaded(now.get(key), saved, f"{name}.{key}")


def _fills_an_object(saved: Any) -> bool:
    """Return whether a saved value is the content of an object, which must be there; numbers are not."""
    return isinstance(saved, dict) and next(iter(saved)) in ("$object", "$state", "$generator")


def _attributes(owner: object, where: str, seen: set[int], without: Collection[str] = ()) -> dict[str, Any]:
    found = {}
    for key, value in vars(owner).items():
        saved = _SKIP if key in without else _saved(value, f"{where}.{key}", seen)
        if saved is not _SKIP:
            found[key] = saved
    return found


def _has_state(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _is_frozen(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and bool(getattr(type(value), "__dataclass_params__").frozen)  # noqa: B009


def _saved(value: Any, where: str, seen: set[int]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return value
    if isinstance(value, _SETTINGS) or _is_frozen(value):
        return _SKIP
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if id(value) in seen:  # saved where it was met first
        return _SKIP
    seen.add(id(value))
    generator = _generator_of(value)
    if generator is not None:
        return {"$generator": generator[0]()}
    if _has_state(value):
        return {"$state": _copied(value.state_dict())}
    if isinstance(value, Mapping):
        return {"$dict": [[key, *_item(each, f"{where}[{key!r}]", seen)] for key, each in value.items()]}
    if isinstance(value, (list, tuple, deque)):
        return {"$list": [_item(each, f"{where}[{number}]", seen) for number, each in enumerate(value)]}
    if hasattr(value, "__dict__"):
        return {"$object": _attributes(value, where, seen)}
    raise TypeError(
        f"{where}: a {type(value).__name__} cannot be saved; define state_dict() and load_state_dict(state) for the "
        "object that has it"
    )


def _item(value: Any, where: str, seen: set[int]) -> list[Any]:
    """Return what is saved of one entry of a container: nothing for a setting, or for what is saved elsewhere."""
    saved = _saved(value, where, seen)
    return [] if saved is _SKIP else [saved]


def _loaded(value: Any, saved: Any, where: str) -> Any:
    """Return the value with its saved state: the same object where it can be filled, else a new one."""
    if isinstance(saved, Tensor) and isinstance(value, Tensor) and value.shape == saved.shape:
        with torch.no_grad():
            value.copy_(saved)  # an optimizer may hold it
        return value
    if not isinstance(saved, dict):
        return saved.to(value.device) if isinstance(saved, Tensor) and isinstance(value, Tensor) else saved
    kind, content = next(iter(saved.items()))
    if kind == "$generator":
        generator = _generator_of(value)
        if generator is None:
            raise TypeError(f"{where}: wanted a random generator, found {type(value).__name__}")
        generator[1](content)
    elif kind == "$state":
        value.load_state_dict(content)
    elif kind == "$object":
        load_state(value, content, name=where)
    elif kind == "$dict":
        return _loaded_mapping(value, content, where)
    else:
        return _loaded_list(value, content, where)
    return value


def _loaded_mapping(value: Any, pairs: list[Any], where: str) -> Any:
    now = value if isinstance(value, Mapping) else {}
    new = {
        key: _loaded(now.get(key), saved[0], f"{where}[{key!r}]") if saved else now.get(key) for key, *saved in pairs
    }
    if not isinstance(value, dict):
        return new
    value.clear()
    value.update(new)
    return value


def _loaded_list(value: Any, items: list[Any], where: str) -> Any:
    now = list(value) if isinstance(value, (list, tuple, deque)) else []
    now += [None] * (len(items) - len(now))
    new = [
        _loaded(now[number], saved[0], f"{where}[{number}]") if saved else now[number]
        for number, saved in enumerate(items)
    ]
    if isinstance(value, (list, deque)):
        value.clear()
        value.extend(new)
        return value
    if hasattr(value, "_fields"):
        return type(value)(*new)
    return tuple(new) if isinstance(value, tuple) else new


def _copied(state: Any) -> Any:
    """Return nested dicts and lists with copies of their tensors."""
    if isinstance(state, (Tensor, np.ndarray)):
        return state.detach().clone() if isinstance(state, Tensor) else state.copy()
    if isinstance(state, Mapping):
        return {key: _copied(each) for key, each in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_copied(each) for each in state)
    return state


# -- random numbers ----------------------------------------------------------------------------------------------------


def _generator_of(value: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Return how the position of a random generator is read and set, or None for other objects."""
    if isinstance(value, torch.Generator):
        return value.get_state, value.set_state
    if isinstance(value, np.random.Generator):
        source: Any = value.bit_generator
        return (lambda: source.state), (lambda state: setattr(source, "state", state))
    if isinstance(value, np.random.RandomState):
        return (lambda: value.get_state(legacy=False)), value.set_state
    if isinstance(value, random.Random):
        return value.getstate, value.setstate
    if isinstance(value, gymnasium.Space):
        sources = [each.np_random.bit_generator for each in _spaces(value)]
        return (lambda: [each.state for each in sources]), (lambda states: _set_states(sources, states))
    return None


def _spaces(space: gymnasium.Space[Any]) -> Iterator[gymnasium.Space[Any]]:
    yield space
    inner = getattr(space, "spaces", ())
    for each in inner.values() if isinstance(inner, Mapping) else inner:
        yield from _spaces(each)


def _set_states(sources: list[Any], states: list[Any]) -> None:
    for source, state in zip(sources, states, strict=True):
        source.state = state


def global_generators() -> dict[str, Any]:
    """Return the positions of the generators of the process: Python's, numpy's and torch's."""
    found = {
        "random": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    return {**found, "cuda": torch.cuda.get_rng_state_all()} if torch.cuda.is_available() else found


def load_global_generators(state: Mapping[str, Any]) -> None:
    """Set the generators of the process to saved positions."""
    random.setstate(state["random"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
