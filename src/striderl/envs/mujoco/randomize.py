"""Domain randomisation: a list of settings for an env, each of which draws values per env and episode.

    env = Ant(AntConfig(num_envs=64), randomize=[
        BodyMass(bodies=("torso",), add=(-0.05, 0.05)),
        Friction(sliding=(0.5, 1.25)),
        ActionLatency(max_steps=2),
    ])
    env.randomized["friction"]          [N, 1], redrawn for an env when its episode begins

A `Randomization` is what a user writes down; `attach` turns it into a `LiveTerm`, which holds the arrays. The env calls

    begin(ids)         when episodes begin: their model fields have the model's values, the terms change them in order
    filter_action(a)   before the task gets the actions                    (latency)
    disturb(length)    after the controls are set, before the physics       (pushes)
    filter_obs(obs)    after the task has observed                          (noise, latency)

Pushes, noise and latency are in `disturbances`; all terms of an env together in `LiveTerms`.

All randomisation terms of one env, in the order in which they were given, are `LiveTerms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mujoco
import numpy as np

from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.envs.mujoco.simulation import Arrays, Float, Int, Simulation, check_names, load_arrays, saved
from striderl.envs.mujoco.streams import Range, Streams


class Scene(NamedTuple):
    """What a term is attached to."""

    simulation: Simulation
    streams: Streams
    obs_spec: ObsSpec
    actions: Float
    """The env's array of actions, [N, …]; only its shape is used."""


class LiveTerm:
    """The arrays of one term in one env; a subclass overrides what it needs."""

    values: Float
    """The drawn values, [N, …], for privileged observations."""
    memory: Arrays
    """All arrays that the term needs to continue, `values` among them."""

    def begin(self, ids: Int) -> None:
        """Draw for the episodes that begin in these envs."""

    def filter_action(self, actions: Float) -> Float:
        """Return the actions that are applied instead of these."""
        return actions

    def disturb(self, episode_length: Int) -> None:
        """Change the physical state before the physics; `episode_length` [N] are the steps taken so far."""

    def filter_obs(self, obs: Arrays, rows: slice | Int, *, begun: bool, step_count: int) -> Arrays:
        """Return the observations to use instead; `begun`: `rows` are at the start of an episode."""
        return obs


class Randomization(ABC):
    """Setting of one quantity that differs between envs and episodes; subclasses are frozen dataclasses."""

    name: str
    """The key in `env.randomized`, and the term's place in a saved state."""

    @property
    def stream(self) -> str:
        """The name of its random stream, which no task's own stream can have by accident."""
        return f"randomize/{self.name}"

    @abstractmethod
    def attach(self, scene: Scene) -> LiveTerm:
        """Make the arrays for one env object."""


@dataclass(frozen=True, kw_only=True)
class BodyMass(Randomization):
    """Masses of bodies: mass × scale + add; `env.randomized` has the masses in kg, [N, bodies]."""

    bodies: tuple[str, ...] = ()
    """Names of the bodies; empty for all of them."""
    scale: Range = (1.0, 1.0)
    """Range of the factor; 0.8 to 1.2 is usual."""
    add: Range = (0.0, 0.0)
    """Range of what is added, in kg; -1 to 3 is usual for a 12 kg robot's trunk."""
    together: bool = True
    """Whether all bodies share one draw."""
    name: str = "body_mass"
    """See `Randomization`."""

    def __post_init__(self) -> None:
        check_range("BodyMass.scale", self.scale, above=0.0)
        check_range("BodyMass.add", self.add)

    def attach(self, scene: Scene) -> LiveTerm:
        """Give every env its own masses and inertias."""
        return _LiveBodyMass(self, scene)


class _LiveBodyMass(LiveTerm):
    def __init__(self, term: BodyMass, scene: Scene) -> None:
        self._term, self._streams = term, scene.streams
        model = scene.simulation.model
        self._bodies = indices(model, "body", mujoco.mjtObj.mjOBJ_BODY, model.nbody, term.bodies)
        if not term.bodies:
            self._bodies = self._bodies[model.body_mass[self._bodies] > 0.0]
        if np.any(model.body_mass[self._bodies] <= 0.0):
            raise ValueError(f"BodyMass: a body of {term.bodies} has no mass to change")
        if np.any(model.body_mass[self._bodies] * term.scale[0] + term.add[0] <= 0.0):
            raise ValueError(f"BodyMass: scale {term.scale} and add {term.add} can make a mass negative or zero")
        self._mass, self._inertia = scene.simulation.expand("body_mass"), scene.simulation.expand("body_inertia")
        self.values = self._mass[:, self._bodies].copy()
        self.memory = {"values": self.values}

    def begin(self, ids: Int) -> None:
        term = self._term
        count = 1 if term.together else len(self._bodies)
        scale = self._streams.uniform(f"{term.stream}/scale", ids, count, low=term.scale[0], high=term.scale[1])
        add = self._streams.uniform(f"{term.stream}/add", ids, count, low=term.add[0], high=term.add[1])
        cells = (ids[:, None], self._bodies)
        before = self._mass[cells]
        after = before * scale + add
        self._mass[cells] = after
        # the same shape with another density: the inertia follows the mass
        self._inertia[cells] *= (after / before)[..., None]
        self.values[ids] = after


@dataclass(frozen=True, kw_only=True)
class Friction(Randomization):
    """Sliding friction of geoms; `env.randomized` has the coefficients, [N, 1] or [N, geoms].

    MuJoCo takes the larger coefficient of two touching geoms, so name both sides of a contact, or none to set all.
    """

    sliding: Range = (0.5, 1.25)
    """Range of the coefficient."""
    geoms: tuple[str, ...] = ()
    """Names of the geoms; empty for all of them."""
    together: bool = True
    """Whether all geoms share one draw."""
    name: str = "friction"
    """See `Randomization`."""

    def __post_init__(self) -> None:
        check_range("Friction.sliding", self.sliding, above=0.0)

    def attach(self, scene: Scene) -> LiveTerm:
        """Give every env its own coefficients."""
        return _LiveFriction(self, scene)


class _LiveFriction(LiveTerm):
    def __init__(self, term: Friction, scene: Scene) -> None:
        self._term, self._streams = term, scene.streams
        model = scene.simulation.model
        self._geoms = indices(model, "geom", mujoco.mjtObj.mjOBJ_GEOM, model.ngeom, term.geoms)
        self._friction = scene.simulation.expand("geom_friction")
        self.values = np.zeros((scene.simulation.num_envs, 1 if term.together else len(self._geoms)))
        self.memory = {"values": self.values}

    def begin(self, ids: Int) -> None:
        low, high = self._term.sliding
        sliding = self._streams.uniform(self._term.stream, ids, self.values.shape[1], low=low, high=high)
        self._friction[ids[:, None], self._geoms, 0] = sliding
        self.values[ids] = sliding


@dataclass(frozen=True, kw_only=True)
class ActuatorGain(Randomization):
    """Gains of actuators: strength of a motor, or kp and kd of a position servo; `env.randomized` has factors [N, 2].

    A position servo's force is kp · (ctrl - q) - kd · dq/dt. A motor has no kd: there a range other than (1, 1) is an
    error.
    """

    kp: Range = (0.9, 1.1)
    """Range of the factor on the gain."""
    kd: Range = (1.0, 1.0)
    """Range of the factor on the damping of a servo."""
    actuators: tuple[str, ...] = ()
    """Names of the actuators; empty for all of them."""
    name: str = "actuator_gain"
    """See `Randomization`."""

    def __post_init__(self) -> None:
        check_range("ActuatorGain.kp", self.kp, above=0.0)
        check_range("ActuatorGain.kd", self.kd, above=0.0)

    def attach(self, scene: Scene) -> LiveTerm:
        """Give every env its own gains."""
        return _LiveActuatorGain(self, scene)


class _LiveActuatorGain(LiveTerm):
    def __init__(self, term: ActuatorGain, scene: Scene) -> None:
        self._term, self._streams = term, scene.streams
        model = scene.simulation.model
        self._actuators = indices(model, "actuator", mujoco.mjtObj.mjOBJ_ACTUATOR, model.nu, term.actuators)
        if term.kd != (1.0, 1.0) and not np.all(model.actuator_biasprm[self._actuators, 2]):
            raise ValueError(f"ActuatorGain.kd={term.kd}, but an actuator here has no damping of its own to scale")
        self._gain = scene.simulation.expand("actuator_gainprm")
        self._bias = scene.simulation.expand("actuator_biasprm")
        self.values = np.ones((scene.simulation.num_envs, 2))
        self.memory = {"values": self.values}

    def begin(self, ids: Int) -> None:
        term = self._term
        low, high = np.array([term.kp[0], term.kd[0]]), np.array([term.kp[1], term.kd[1]])
        factors = self._streams.uniform(term.stream, ids, 2, low=low, high=high)
        rows = ids[:, None]
        self._gain[rows, self._actuators, 0] *= factors[:, :1]
        self._bias[rows, self._actuators, 1] *= factors[:, :1]
        self._bias[rows, self._actuators, 2] *= factors[:, 1:]
        self.values[ids] = factors


def indices(model: Any, kind: str, object_type: Any, count: int, names: Sequence[str]) -> Int:
    """Return the model's indices of named things, or of all of them when no name is given."""
    if not names:
        return np.arange(count)
    found = [mujoco.mj_id2name(model, object_type, index) or "" for index in range(count)]
    for name in names:
        if name not in found:
            raise ValueError(unknown(kind, name, filter(None, found), where="the model"))
    return np.array([found.index(name) for name in names])


def check_range(what: str, bounds: Range, *, above: float = -np.inf) -> None:
    """Raise ValueError unless bounds are (low, high) in order, with low above or at `above`."""
    low, high = bounds
    if not low <= high or low < above:
        least = "" if above == -np.inf else f" of at least {above:g}"
        raise ValueError(f"{what} wants a range (low, high){least} with low <= high, found {bounds}")


# -- all terms of an env -----------------------------------------------------------------------------------------------


class LiveTerms:
    """The arrays of every term, by its name."""

    def __init__(self, randomize: Sequence[Randomization], scene: Scene) -> None:
        """Attach the terms to one env; two of the same name raise."""
        self._simulation = scene.simulation
        self._terms: dict[str, LiveTerm] = {}
        for term in randomize:
            if term.name in self._terms:
                raise ValueError(f"two randomisation terms are named {term.name!r}; give one of them another name")
            self._terms[term.name] = term.attach(scene)

    def values(self) -> dict[str, Float]:
        """Return what each term has drawn, [N, …]."""
        return {name: term.values for name, term in self._terms.items()}

    def begin(self, ids: Int) -> None:
        """Give these envs the model's own fields again, then let the terms draw for the episodes that begin."""
        if not self._terms:
            return
        self._simulation.restore_fields(ids)
        for term in self._terms.values():
            term.begin(ids)
        self._simulation.update_constants(ids)

    def filter_action(self, actions: Float) -> Float:
        """Return the actions that are applied instead of these."""
        for term in self._terms.values():
            actions = term.filter_action(actions)
        return actions

    def disturb(self, episode_length: Int) -> None:
        """Change the physical state before the physics."""
        for term in self._terms.values():
            term.disturb(episode_length)

    def filter_obs(self, obs: Arrays, rows: slice | Int, *, begun: bool, step_count: int) -> Arrays:
        """Return the observations to use instead; `begun`: `rows` are at the start of an episode."""
        for term in self._terms.values():
            obs = term.filter_obs(obs, rows, begun=begun, step_count=step_count)
        return obs

    def state_dict(self) -> dict[str, Any]:
        """Return the arrays of every term."""
        return {name: saved(term.memory) for name, term in self._terms.items()}

    def load_state_dict(self, state: Mapping[str, Any], *, where: str) -> None:
        """Load the arrays of the same terms; `where` names them in errors."""
        check_names(self._terms, state, where=where)
        for name, term in self._terms.items():
            load_arrays(term.memory, state[name], where=f"randomisation term {name!r}")
