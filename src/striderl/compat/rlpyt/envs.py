"""rlpyt's spaces and single envs. Nothing here loads torch: worker processes import this module.

    FloatBox, IntBox, Composite            spaces of an env of one's own
    Env                                    its base class: step(action) ─▶ EnvStep(observation, reward, done, env_info)
    gym_make(id=…) ─▶ GymEnvWrapper        a Gymnasium env behind the same methods; dicts become named tuples

Where a time limit ended the episode, `env_info.timeout` is true; samplers then record it as truncated, not terminated.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from striderl.data.named_tuples import NamedTupleSchema, is_namedtuple

__path__: list[str] = []  # rlpyt's modules envs.… are below, see compat/original_paths.py

Array = np.ndarray[Any, Any]

EnvInfo = namedtuple("EnvInfo", [])
"""The env_info of an env that has none; an env of one's own defines its fields."""


class EnvStep(NamedTuple):
    """The result of an env's `step`."""

    observation: Any
    reward: Any
    done: Any
    env_info: Any
    """A named tuple with the same fields in every step."""


class EnvSpaces(NamedTuple):
    """The spaces that an agent gets."""

    observation: Any
    action: Any


# -- spaces ------------------------------------------------------------------------------------------------------------


class Space:
    """The methods of all spaces."""

    def sample(self) -> Any:
        """Return a random element."""
        raise NotImplementedError

    def null_value(self) -> Any:
        """Return the element that stands for none."""
        raise NotImplementedError


class FloatBox(Space):
    """Real numbers between bounds."""

    def __init__(
        self, low: Any, high: Any, shape: Sequence[int] | None = None, null_value: Any = 0.0, dtype: Any = "float32"
    ) -> None:
        """Take two numbers and a shape, or two arrays."""
        self.dtype = np.dtype(dtype)
        if not np.issubdtype(self.dtype, np.floating):
            raise TypeError(f"FloatBox holds real numbers, found dtype {self.dtype}")
        if shape is not None and (np.ndim(low) or np.ndim(high)):
            raise ValueError("FloatBox takes arrays for low and high, or numbers and a shape; found arrays and a shape")
        self.low = np.broadcast_to(np.asarray(low, self.dtype), np.shape(low) if shape is None else tuple(shape)).copy()
        self.high = np.broadcast_to(np.asarray(high, self.dtype), self.low.shape).copy()
        self._null_value = null_value

    def sample(self) -> Array:
        """Return uniform numbers."""
        return np.asarray(np.random.uniform(self.low, self.high), self.dtype)

    def null_value(self) -> Array:
        """Return the null value in the shape of the space."""
        return np.broadcast_to(np.asarray(self._null_value or 0.0, self.dtype), self.shape).copy()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an element."""
        return self.low.shape

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Low and high."""
        return self.low, self.high

    def __repr__(self) -> str:
        return f"FloatBox{self.shape}"


class IntBox(Space):
    """Whole numbers from `low` up to, not including, `high`."""

    def __init__(
        self, low: int, high: int, shape: Sequence[int] | None = None, dtype: Any = "int32", null_value: Any = None
    ) -> None:
        """Take two whole numbers, for all entries of the shape."""
        if np.ndim(low) or np.ndim(high):
            raise TypeError(f"IntBox takes two whole numbers, found low {low!r} and high {high!r}")
        self.low, self.high, self.dtype = low, high, np.dtype(dtype)
        if not np.issubdtype(self.dtype, np.integer):
            raise TypeError(f"IntBox holds whole numbers, found dtype {self.dtype}")
        self.shape: tuple[int, ...] = () if shape is None else tuple(shape)
        self._null_value = low if null_value is None else null_value
        if not low <= self._null_value < high:
            raise ValueError(f"IntBox: the null value is one of {low} to {high - 1}, found {null_value}")

    def sample(self) -> Any:
        """Return uniform whole numbers."""
        return np.random.randint(self.low, self.high, size=self.shape, dtype=self.dtype)

    def null_value(self) -> Array:
        """Return the null value in the shape of the space."""
        return np.full(self.shape, self._null_value, self.dtype)

    @property
    def bounds(self) -> tuple[int, int]:
        """Low and high."""
        return self.low, self.high

    @property
    def n(self) -> int:
        """Number of choices."""
        return self.high - self.low

    def __repr__(self) -> str:
        return f"IntBox({self.low}-{self.high - 1} shape={self.shape})"


class Composite(Space):
    """Several spaces as the fields of a named tuple."""

    def __init__(self, spaces: Sequence[Any], NamedTupleCls: Any) -> None:
        """Take the spaces in the order of the fields."""
        self._spaces, self._named_tuple = list(spaces), NamedTupleCls

    def sample(self) -> Any:
        """Return a random element of each."""
        return self._named_tuple(*(space.sample() for space in self._spaces))

    def null_value(self) -> Any:
        """Return the null value of each."""
        return self._named_tuple(*(space.null_value() for space in self._spaces))

    @property
    def shape(self) -> Any:
        """The shapes, as a named tuple."""
        return self._named_tuple(*(space.shape for space in self._spaces))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields."""
        names: tuple[str, ...] = self._named_tuple._fields
        return names

    @property
    def spaces(self) -> list[Any]:
        """The spaces."""
        return self._spaces

    def __repr__(self) -> str:
        return ", ".join(repr(space) for space in self._spaces)


class GymSpaceWrapper:
    """A Gymnasium space with rlpyt's methods; a dict of spaces becomes a `Composite`."""

    def __init__(self, space: Any, null_value: Any = 0, name: str = "obs", force_float32: bool = True) -> None:
        """Wrap a space; `name` is that of the named tuple for a dict."""
        from gymnasium import spaces

        self._null_value = null_value
        if isinstance(space, spaces.Dict):
            parts = [
                GymSpaceWrapper(part, null_value, f"{name}_{key}", force_float32) for key, part in space.spaces.items()
            ]
            self.space: Any = Composite(parts, NamedTupleSchema(name, list(space.spaces)))
            self._dtype: Any = None
        else:
            self.space = space
            self._dtype = np.dtype(np.float32) if force_float32 and space.dtype == np.float64 else space.dtype

    @property
    def is_composite(self) -> bool:
        """Whether this is a dict of spaces."""
        return isinstance(self.space, Composite)

    def sample(self) -> Any:
        """Return a random element, as an array or a named tuple of arrays."""
        sample = self.space.sample()
        return sample if self.is_composite else np.asarray(sample, self._dtype)

    def null_value(self) -> Any:
        """Return the null value."""
        if self.is_composite:
            return self.space.null_value()
        return np.full(self.space.shape or (), self._null_value or 0, self._dtype)

    def convert(self, value: Any) -> Any:
        """Return a value of the Gymnasium env in rlpyt's form."""
        if not self.is_composite:
            return np.asarray(value, self._dtype)
        parts = [part.convert(value[name]) for name, part in zip(self.space.names, self.space.spaces)]
        return NamedTupleSchema("Observation", self.space.names)(*parts)

    def revert(self, value: Any) -> Any:
        """Return a value of rlpyt's form in that of the Gymnasium env."""
        if self.is_composite:
            parts = tuple(value)
            return {
                name: part.revert(parts[place])
                for place, (name, part) in enumerate(zip(self.space.names, self.space.spaces))
            }
        return int(value) if self.space.shape == () and np.issubdtype(self.space.dtype, np.integer) else value

    def contains(self, x: Any) -> bool:
        """Return whether a value of the Gymnasium env lies in the space."""
        return bool(self.space.contains(x))

    def seed(self, seed: int | None = None) -> Any:
        """Seed the space."""
        parts = self.space.spaces if self.is_composite else [self.space]
        return [part.seed(seed) for part in parts]

    @property
    def dtype(self) -> Any:
        """The dtype of an element."""
        return self._dtype

    @property
    def shape(self) -> Any:
        """The shape of an element."""
        return self.space.shape

    @property
    def low(self) -> Any:
        """Lower bound."""
        return self.space.low

    @property
    def high(self) -> Any:
        """Upper bound."""
        return self.space.high

    @property
    def n(self) -> int:
        """Number of choices."""
        return int(self.space.n)

    def __repr__(self) -> str:
        return repr(self.space)


def agent_spaces(spaces: Any) -> EnvSpaces:
    """Return spaces with `shape`, and `n` or `low` and `high`: an env's own, or rlpyt's in the place of our specs."""
    observation, action = spaces.observation, spaces.action
    if hasattr(action, "tensor"):  # one of our action specs
        action = IntBox(0, action.n) if hasattr(action, "n") else FloatBox(*action.bounds())
        observation = _observation_space(observation)
    elif type(observation).__name__ == "Dict":  # Gymnasium's
        observation = GymSpaceWrapper(observation).space
    return EnvSpaces(observation, action)


def _observation_space(spec: Any) -> Any:
    if isinstance(spec, Mapping):
        return Composite([_observation_space(part) for part in spec.values()], NamedTupleSchema("Observation", spec))
    if not hasattr(spec, "dtype"):  # components in a named tuple
        return Composite(
            [_observation_space(part) for part in tuple(spec)], NamedTupleSchema("Observation", spec._fields)
        )
    dtype = np.dtype(spec.dtype)
    if np.issubdtype(dtype, np.integer):
        return IntBox(
            0, int(np.iinfo(dtype).max) + 1 if dtype == np.uint8 else int(np.iinfo(dtype).max), spec.shape, dtype
        )
    return FloatBox(-np.inf, np.inf, spec.shape, dtype="float32" if dtype == np.bool_ else dtype)


# -- envs --------------------------------------------------------------------------------------------------------------


class Env:
    """The base class of envs: define `step` and `reset`, and set `_observation_space` and `_action_space`."""

    _observation_space: Any
    _action_space: Any

    def step(self, action: Any) -> Any:
        """Take one step and return an `EnvStep`."""
        raise NotImplementedError

    def reset(self) -> Any:
        """Start an episode and return its first observation."""
        raise NotImplementedError

    @property
    def action_space(self) -> Any:
        """The space of actions."""
        return self._action_space

    @property
    def observation_space(self) -> Any:
        """The space of observations."""
        return self._observation_space

    @property
    def spaces(self) -> EnvSpaces:
        """Both spaces."""
        return EnvSpaces(observation=self.observation_space, action=self.action_space)

    @property
    def horizon(self) -> int:
        """The most steps of an episode."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the env holds."""


class EnvInfoWrapper:
    """A Gymnasium env whose infos have some keys in every step."""

    def __init__(self, env: Any, info_example: Mapping[str, Any]) -> None:
        """Take the keys with the values that stand for none."""
        self.env, self._info_example = env, dict(info_example)

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def step(self, action: Any) -> Any:
        """Take one step; keys that the info lacks are put in."""
        *result, info = self.env.step(action)
        return (*result, infill_info(info, self._info_example))


def infill_info(info: Mapping[str, Any], sometimes_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an info with the keys of an example that it lacks, nested ones too."""
    found = {**sometimes_info, **info}
    nested = {key: infill_info(found[key], part) for key, part in sometimes_info.items() if isinstance(part, Mapping)}
    return {**found, **nested}


class GymEnvWrapper(Env):
    """A Gymnasium env with rlpyt's methods.

    The keys of the info in the first step are the fields of `env_info`; others that come later are left out. Its field
    `timeout` is true where the episode was truncated.
    """

    def __init__(self, env: Any, act_null_value: Any = 0, obs_null_value: Any = 0, force_float32: bool = True) -> None:
        """Wrap an env; one step is taken to see what infos hold."""
        self.env = env
        self._action_space = GymSpaceWrapper(env.action_space, act_null_value, "act", force_float32)
        self._observation_space = GymSpaceWrapper(env.observation_space, obs_null_value, "obs", force_float32)
        self._seed: int | None = None
        env.reset()
        self._info_example = _numbers(env.step(env.action_space.sample())[4])

    def seed(self, seed: int | None = None) -> None:
        """Seed the env with the next reset."""
        self._seed = seed

    def reset(self) -> Any:
        """Start an episode."""
        seed, self._seed = self._seed, None
        return self._observation_space.convert(self.env.reset(seed=seed)[0])

    def step(self, action: Any) -> EnvStep:
        """Take one step."""
        observation, reward, terminated, truncated, info = self.env.step(self._action_space.revert(action))
        found = _named_info({**_numbers(info), "timeout": bool(truncated and not terminated)}, self._info_example)
        done = bool(terminated or truncated)
        return EnvStep(self._observation_space.convert(observation), np.float32(reward), done, found)

    def render(self) -> Any:
        """Draw the env in the mode that it was made with."""
        return self.env.render()

    @property
    def horizon(self) -> int:
        """The most steps of an episode, where the env has a time limit."""
        spec = getattr(self.env, "spec", None)
        if spec is None or spec.max_episode_steps is None:
            raise NotImplementedError(f"{self.env} has no time limit")
        return int(spec.max_episode_steps)

    def close(self) -> None:
        """Close the env."""
        self.env.close()


def _numbers(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of an info, under names that can be fields."""
    found: dict[str, Any] = {}
    for key, value in info.items():
        name = str(key).replace(".", "_").replace("-", "_")
        if isinstance(value, Mapping):
            found[name] = _numbers(value)
        elif np.asarray(value).dtype.kind in "biuf":
            found[name] = value
    return {name: value for name, value in found.items() if name.isidentifier() and not name.startswith("_")}


def _named_info(info: Mapping[str, Any], example: Mapping[str, Any]) -> Any:
    names = [name for name in example if name != "timeout"] + (["timeout"] if "timeout" in info else [])
    values = []
    for name in names:
        if isinstance(example.get(name), Mapping):
            values.append(_named_info(info.get(name, {}), example[name]))
        else:
            values.append(info[name] if name in info else np.zeros_like(example[name]))
    return NamedTupleSchema("EnvInfo", names)(*values)


def make(*args: Any, info_example: Mapping[str, Any] | None = None, **kwargs: Any) -> GymEnvWrapper:
    """Make a Gymnasium env by its id and wrap it; `info_example` has keys that infos have only in some steps."""
    import gymnasium

    env: Any = gymnasium.make(*args, **kwargs)
    return GymEnvWrapper(env if info_example is None else EnvInfoWrapper(env, info_example))


gym_make = make


def nt_to_dict(value: Any) -> Any:
    """Return nested named tuples as dicts."""
    if is_namedtuple(value):
        return {name: nt_to_dict(part) for name, part in zip(value._fields, tuple(value))}
    return value
