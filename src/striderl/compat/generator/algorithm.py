"""`Model` and `Algorithm`: networks, and how they learn; tensors in, tensors out. See agent.py."""

from __future__ import annotations

import copy
import inspect
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from striderl.algorithms.value_based.dqn import DQN
from striderl.compat.parts import components
from striderl.data.checked_fields import overridden, refuse_assignment, refuse_overrides
from striderl.data.naming import unknown
from striderl.networks.distributions.base import Distribution
from striderl.networks.distributions.deterministic import QValues
from striderl.storage.replay.replay import ReplaySample
from striderl.storage.rollout import RolloutStorage
from striderl.training.protocols import OnPolicyAlgorithm, ReplayAlgorithm, UpdateNoise, order_generator


class Rollout(NamedTuple):
    """A full rollout with where it began and where it stopped: what PPO and A2C learn from."""

    storage: RolloutStorage
    initial_state: dict[str, Tensor]
    last_obs: dict[str, Tensor]
    last_state: dict[str, Tensor]


class Model(nn.Module):
    """The networks of an algorithm, as `value` and `action`."""

    def __init__(self, algorithm: Any) -> None:
        """Show the networks of an algorithm; they are not copied."""
        super().__init__()
        self.policy = algorithm.policy
        replays: Any = algorithm if isinstance(algorithm, ReplayAlgorithm) else None
        self.critic: Any = getattr(replays, "critic", None)
        self.kind = "q" if isinstance(algorithm, DQN) else "critic" if self.critic is not None else "value"

    def value(self, x: Any, a: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return DQN's Q-values [B, n]; the values [B] of (x, a) by each critic; or PPO's value [B]."""
        obs = self._obs(x)
        if self.kind == "critic":
            if a is None:
                raise ValueError("this model values actions: call value(x, a)")
            return tuple(self.critic(obs, a).unbind(0))
        if self.kind == "q":
            return (self.action(x).params()["values"],)
        like = next(iter(obs.values()))
        stage_draws = self.policy.settled(like.new_zeros(like.shape[0]))
        return (self.policy.value(obs, self.policy.initial_state(len(like), like.device), stage_draws)[0],)

    def action(self, x: Any) -> Any:
        """Return the distribution of actions; for DQN its mode is the greedy choice."""
        obs = self._obs(x)
        like = next(iter(obs.values()))
        stage_draws = self.policy.settled(like.new_zeros(like.shape[0]))
        return self.policy.act(obs, self.policy.initial_state(len(like), like.device), stage_draws)[0]

    def _obs(self, x: Any) -> dict[str, Tensor]:
        return components(x, self.policy.obs_spec, next(self.policy.parameters()).device)


class Algorithm:
    """Updates of a model, and what its outputs mean; tensors in, tensors out.

    A subclass that defines `predict` and `learn` is an algorithm of one's own and needs no other.
    """

    core: Any = None
    """The algorithm of ours; None in one's own."""
    on_policy: bool = False
    """Whether `learn` takes whole rollouts [T, N, …], in place of samples of a replay."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.learn is Algorithm.learn:
            refuse_overrides(
                cls, {"sync_target": "learning moves the target by itself, by the algorithm's settings; override learn"}
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if self.core is not None:
            refuse_assignment(self, name, parts=("core", "view", "model"))
        super().__setattr__(name, value)

    def __init__(self, core: Any = None, *, model: nn.Module | None = None, seed: int = 0) -> None:
        """Take DQN, SAC, PPO or the like; `model` is the user's own where the networks were made of one.

        Without `core`, a subclass defines `predict` and `learn`.
        """
        if core is None:
            check_own(self)
            self.model: Any = model
            return
        if not isinstance(core, (ReplayAlgorithm, OnPolicyAlgorithm)):
            raise TypeError(f"Algorithm wants one of our algorithms, such as DQN or PPO, found {type(core).__name__}")
        self.core: Any = core
        self.view = model if isinstance(model, Model) else Model(core)
        self.model = self.view if model is None else model
        self.on_policy = not isinstance(core, ReplayAlgorithm)
        self.num_updates, self.seed = 0, seed
        self._noise: dict[int, UpdateNoise] = {}

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return device_of(self)

    @torch.no_grad()
    def predict(self, obs: Any) -> Any:
        """Return Q-values [B, n] (DQN), or the distribution of actions."""
        return self.view.value(obs)[0] if self.view.kind == "q" else self.view.action(obs)

    def learn(self, data: Any) -> dict[str, Any]:
        """Learn from a `ReplaySample`, or a dict of its columns, or a `Rollout`; return numbers.

        The errors of the samples are among them as 'td_error' [B] where the algorithm tells them.
        """
        numbers = self._learn_rollout(data) if self.on_policy else self._learn_sample(data)
        self.num_updates += 1
        return {name: value.detach() for name, value in numbers.items()}

    def _learn_sample(self, data: Any) -> dict[str, Tensor]:
        columns = data.data if isinstance(data, ReplaySample) else data
        if not isinstance(columns, Mapping) or "discount" not in columns:
            raise TypeError(f"{self._name}: learn wants a ReplaySample or its columns, found {type(data).__name__}")
        size = len(columns["rew"])
        if size not in self._noise:
            self._noise[size] = UpdateNoise(self.core.noise(), size, self.seed, self.device)
        weight = data.weight if isinstance(data, ReplaySample) else columns.get("weight")
        numbers: dict[str, Tensor] = dict(self.core.update(columns, weight, self._noise[size].at(self.num_updates)))
        self.core.update_normalization(columns)
        return numbers

    def _learn_rollout(self, data: Any) -> dict[str, Tensor]:
        if not isinstance(data, Rollout):
            raise TypeError(f"{self._name}: learn wants a Rollout, found {type(data).__name__}")
        prepared = self.core.prepare(
            data.storage, initial_state=data.initial_state, last_obs=data.last_obs, last_state=data.last_state
        )
        numbers: dict[str, Tensor] = self.core.update(
            prepared, order_generator(self.seed, self.num_updates, self.device)
        )
        self.core.update_normalization(data.storage.data)
        return numbers

    @property
    def _name(self) -> str:
        return type(self.core).__name__

    def sync_target(self) -> None:
        """Make the target network equal to the model; algorithms without one have nothing to do.

        Our algorithms move their targets in `learn`, by their settings.
        """
        target = getattr(self.core, "target", None)
        if target is not None:
            target.follow(1.0)


def core_of(alg: object) -> Any:
    """Return the algorithm of ours behind an `Algorithm`; None for one's own."""
    return alg.core if isinstance(alg, Algorithm) else None


def check_own(alg: object) -> None:
    """Raise TypeError for an object that cannot be an algorithm of one's own."""
    if isinstance(alg, (ReplayAlgorithm, OnPolicyAlgorithm)):
        raise TypeError(f"Agent wants an Algorithm, found {type(alg).__name__}; wrap it: Agent(Algorithm(…))")
    ours = isinstance(alg, Algorithm)
    missing = [
        name
        for name in ("predict", "learn")
        if not callable(getattr(alg, name, None)) or (ours and not overridden(alg, Algorithm, name))
    ]
    if missing:
        raise TypeError(
            f"{type(alg).__name__} lacks {' and '.join(missing)}: an algorithm of one's own defines predict(obs) and "
            "learn(data); one of ours is wrapped: Algorithm(DQN(…))"
        )


def device_of(alg: Any) -> torch.device:
    """Return where the networks of an algorithm are; of one's own, those of `alg.model`."""
    core = core_of(alg)
    module = getattr(alg, "model", None) if core is None else core.policy
    first = next(module.parameters(), None) if isinstance(module, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


def built(kind: Callable[..., Any], settings: Mapping[str, Any], required: Sequence[str]) -> Any:
    """Call a user's class with the settings that it takes; one of `required` that it does not take raises."""
    parameters = inspect.signature(kind).parameters.values()
    names = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    if len(names) < len(parameters):
        return kind(**settings)
    for name in required:
        if name not in names:
            raise TypeError(unknown("setting", name, names, where=getattr(kind, "__name__", repr(kind))))
    return kind(**{name: value for name, value in settings.items() if name in names})


def predicted_policy(alg: Algorithm) -> Any:
    """Return the policy of an algorithm, with the same modules, that acts by what `alg.predict` returns."""
    policy = alg.core.policy
    shadow = copy.copy(policy)

    def distribution(obs: Mapping[str, Tensor]) -> Distribution[Any]:
        found = alg.predict(next(iter(obs.values())) if len(obs) == 1 else dict(obs))
        found = found[0] if isinstance(found, tuple) else found
        if isinstance(found, Tensor) and alg.view.kind == "q":
            return QValues.from_values(found)
        if not isinstance(found, Distribution):
            wanted = "Q-values [B, n] or a distribution" if alg.view.kind == "q" else "a distribution of actions"
            raise TypeError(f"{type(alg).__name__}.predict must return {wanted}, found {type(found).__name__}")
        return found

    def act(obs: Mapping[str, Tensor], state: Any, stage_draws: Any, *sequence: Any) -> Any:
        _, after, aux = policy.act(obs, state, stage_draws, *sequence)
        return distribution({name: obs[name] for name in policy.obs_spec}), after, aux

    def forward(obs: Mapping[str, Tensor], state: Any, stage_draws: Any, *sequence: Any) -> Any:
        return policy(obs, state, stage_draws, *sequence)._replace(distribution=distribution(obs))

    shadow.act, shadow.forward = act, forward
    return shadow


def warn_of_unused_sync(agent: Any, trainer: type) -> None:
    """Warn where an own algorithm defines `sync_target` and no method of its classes calls it."""
    alg = getattr(agent, "alg", None)
    own = getattr(type(alg), "sync_target", None)
    if own is None or own is Algorithm.sync_target or getattr(agent, "target_network_frequency", None):
        return
    if not any("sync_target" in _names_used(kind) for kind in (type(alg), type(agent), trainer)):
        warnings.warn(
            f"nothing calls {type(alg).__name__}.sync_target: call it in learn, or give "
            "target_network_frequency, the env steps between two calls",
            stacklevel=3,
        )


def _names_used(kind: type) -> set[str]:
    """Return the names that the methods of a user's class refer to: those it defines, and those they call by super."""
    found: set[str] = set()
    for name in dir(kind):
        for base in kind.__mro__:
            member = vars(base).get(name)
            if isinstance(member, types.FunctionType) and not base.__module__.startswith("striderl."):
                names = set(_names_in(member.__code__))
                found |= names
                if "super" not in names:
                    break
    return found


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names_in(each)
