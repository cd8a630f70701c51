"""From a distribution to an action: sampled, greedy, ε-greedy, with noise on top, at random at first.

    obs ──policy──▶ distribution ──behaviour(obs, state, noise)──▶ action, state, columns

A behaviour draws nothing: its random numbers are declared in `noise` and passed in. Its memory (the walk of an
Ornstein-Uhlenbeck process) goes in and out as `state`, [N, …] each, and restarts with each episode. Its schedules
are 0-d tensors, set between steps by `at(env_steps)`, so nothing here depends on time.

A policy and a behaviour as an actor, for off-policy algorithms: no values, no log-probabilities.

obs ──policy.act──▶ distribution ──behaviour──▶ action        the policy's memory before the step is stored when
                                                              sequences are to be replayed with it
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from striderl.collect.actors.base import ActorOutput, Noise, Obs, RandomActor
from striderl.data.actions import ActionSpec, BoxSpec, DiscreteSpec
from striderl.data.arena import Columns
from striderl.data.noise import NoiseSpec
from striderl.networks.distributions.base import Distribution
from striderl.networks.heads.base import Head
from striderl.ops.ramps import Ramp, as_ramp
from striderl.policies.acting import Acting

State = dict[str, Tensor]
_ACTION = "action"


class Behaviour(ABC):
    """Chooses actions from the policy's distribution."""

    def noise(self, head: Head[Any]) -> Mapping[str, NoiseSpec]:
        """Return the random numbers needed for each env and step."""
        return {}

    def initial_state(self, num_envs: int, device: torch.device) -> State:
        """Return its memory at the start of an episode."""
        return {}

    def at(self, env_steps: int) -> None:  # noqa: B027  (most behaviours have no schedule)
        """Set the schedules for this point of the run."""

    @abstractmethod
    def __call__(self, obs: Obs, state: State, dist: Distribution[Any], noise: Noise) -> tuple[Any, State]:
        """Return actions and the memory after the step."""


class Greedy(Behaviour):
    """Acts with the mode."""

    def __call__(self, obs: Obs, state: State, dist: Distribution[Any], noise: Noise) -> tuple[Any, State]:
        """Return the mode."""
        return dist.mode(), state


class Sample(Behaviour):
    """Draws from the distribution."""

    def noise(self, head: Head[Any]) -> Mapping[str, NoiseSpec]:
        """Return the noise for a sample of this head."""
        spec = head.noise_spec()
        return {_ACTION: spec} if isinstance(spec, NoiseSpec) else {f"{_ACTION}/{k}": v for k, v in spec.items()}

    def __call__(self, obs: Obs, state: State, dist: Distribution[Any], noise: Noise) -> tuple[Any, State]:
        """Return a sample."""
        return dist.sample(sample_noise(noise)), state


class EpsilonGreedy(Behaviour):
    """With probability ε an allowed action at random, else the mode."""

    def __init__(self, action_spec: ActionSpec, epsilon: float | Ramp) -> None:
        """Set ε: one number, or a ramp over env steps."""
        if not isinstance(action_spec, DiscreteSpec):
            raise TypeError(f"EpsilonGreedy wants one discrete action, found {type(action_spec).__name__}")
        self.ramp = as_ramp(epsilon)
        self.random = RandomActor(action_spec)
        self.epsilon = torch.tensor(self.ramp.at(0))

    def noise(self, head: Head[Any]) -> Mapping[str, NoiseSpec]:
        """Return the coin and the random action."""
        return {"coin": NoiseSpec(shape=(), kind="uniform"), **self.random.noise()}

    def at(self, env_steps: int) -> None:
        """Set ε."""
        self.epsilon.fill_(self.ramp.at(env_steps))

    def __call__(self, obs: Obs, state: State, dist: Distribution[Any], noise: Noise) -> tuple[Any, State]:
        """Choose between both for each env."""
        mode = dist.mode()
        other = self.random.act(obs, (), noise).actions
        if self.epsilon.device != mode.device:
            self.epsilon = self.epsilon.to(mode.device)
        return torch.where(noise["coin"] < self.epsilon, other, mode), state


class GaussianNoise(Behaviour):
    """The mode plus Gaussian noise, kept within the bounds."""

    def __init__(self, action_spec: ActionSpec, std: float | Ramp = 0.1) -> None:
        """Set the standard deviation in units of half the range of each action; in plain units where unbounded."""
        self.low, self.high, self.scale = box_bounds(action_spec, "GaussianNoise")
        self.ramp = as_ramp(std)
        self.std = torch.tensor(self.ramp.at(0))

    def noise(self, head: Head[Any]) -> Mapping[str, NoiseSpec]:
        """Return one normal number per action."""
        return {"exploration": NoiseSpec(shape=tuple(self.low.shape), kind="normal")}

    def at(self, env_steps: int) -> None:
        """Set the standard deviation."""
        self.std.fill_(self.ramp.at(env_steps))

    def __call__(self, obs: Obs, state: State, dist: Distribution[Any], noise: Noise) -> tuple[Any, State]:
        """Return the noisy mode."""
        mode = dist.mode()
        self._move(mode.device)
        return (mode + self.std * self.scale * noise["exploration"]).clamp(self.low, self.high), state

    def _move(self, device: torch.device) -> None:
        if self.low.device != device:
            self.low, self.high = self.low.to(device), self.high.to(device)
            self.scale, self.std = self.scale.to(device), self.std.to(device)


class SpreadNoise(Behaviour):
    """The mode plus Gaussian noise of a different strength in every env, evenly from `low` to `high`.

    With many envs all strengths occur at every step, and no schedule is needed.
    """

    def __init__(self, action_spec: ActionSpec, *, low: float = 0.001, high: float = 0.4) -> None:
        """Set both ends of the standard deviation in units of half the range of each action."""
        if not 0.0 <= low <= high:
            raise ValueError(f"SpreadNoise wants 0 <= low <= high, found {low} and {high}")
        self.action_low, self.action_high, self.scale = box_bounds(action_spec, "SpreadNoise")
        self.low, self.high = low, high

    def noise(self, head: Head[Any]) -> Mapping[str, NoiseSpec]:
        """Return one normal number per action."""
        return {"exploration": NoiseSpec(shape=tuple(self.scale.shape), kind="normal")}

    def initial_state(self, num_envs: int, device: torch.device) -> State:
        """Return the strength of every env; it stays with the env."""
        return {"std": torch.linspace(self.low, self.high, num_envs, device=device)}

    def __call__(self, obs: Obs, state: State, dist: Distribution[Any], noise: Noise) -> tuple[Any, State]:
        """Return the noisy mode."""
        mode = dist.mode()
        if self.scale.device != mode.device:
            self.scale = self.scale.to(mode.device)
            self.action_low, self.action_high = self.action_low.to(mode.device), self.action_high.to(mode.device)
        std = state["std"].view(-1, *[1] * (mode.dim() - 1))
        return (mode + std * self.scale * noise["exploration"]).clamp(self.action_low, self.action_high), state


class OrnsteinUhlenbeck(Behaviour):
    """The mode plus a walk that is drawn back to zero: x ← x - θ x dt + σ √dt n; starts at zero with each episode."""

    def __init__(
        self, action_spec: ActionSpec, sigma: float | Ramp = 0.2, *, theta: float = 0.15, dt: float = 0.01
    ) -> None:
        """Set the strength of the noise in units of half the range of each action."""
        if theta <= 0.0 or dt <= 0.0:
            raise ValueError(f"OrnsteinUhlenbeck wants theta > 0 and dt > 0, found {theta} and {dt}")
        self.low, self.high, self.scale = box_bounds(action_spec, "OrnsteinUhlenbeck")
        self.ramp, self.theta, self.dt = as_ramp(sigma), theta, dt
        self.sigma = torch.tensor(self.ramp.at(0))

    def noise(self, head: Head[Any]) -> Mapping[str, NoiseSpec]:
        """Return one normal number per action."""
        return {"exploration": NoiseSpec(shape=tuple(self.low.shape), kind="normal")}

    def initial_state(self, num_envs: int, device: torch.device) -> State:
        """Return the walk at zero."""
        return {"walk": torch.zeros(num_envs, *self.low.shape, device=device)}

    def at(self, env_steps: int) -> None:
        """Set the strength."""
        self.sigma.fill_(self.ramp.at(env_steps))

    def __call__(self, obs: Obs, state: State, dist: Distribution[Any], noise: Noise) -> tuple[Any, State]:
        """Return the mode plus the walk after its next step."""
        mode = dist.mode()
        if self.low.device != mode.device:
            self.low, self.high = self.low.to(mode.device), self.high.to(mode.device)
            self.scale, self.sigma = self.scale.to(mode.device), self.sigma.to(mode.device)
        walk = state["walk"]
        walk = walk - self.theta * self.dt * walk + self.sigma * self.dt**0.5 * noise["exploration"]
        return (mode + self.scale * walk).clamp(self.low, self.high), {"walk": walk}


def sample_noise(noise: Noise) -> Any:
    """Return the noise of the sample: a tensor, or a dict for dict actions."""
    if _ACTION in noise:
        return noise[_ACTION]
    prefix = f"{_ACTION}/"
    found: dict[str, Tensor] = {k.removeprefix(prefix): v for k, v in noise.items() if k.startswith(prefix)}
    return found


def box_bounds(action_spec: ActionSpec, who: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return low, high and half the range of a real-valued action; 1 where it has no bounds."""
    if not isinstance(action_spec, BoxSpec):
        raise TypeError(f"{who} wants real-valued actions, found {type(action_spec).__name__}")
    low, high = (torch.as_tensor(bound).clone() for bound in action_spec.bounds())
    half = (high - low) / 2.0
    return low, high, torch.where(half.isfinite(), half, torch.ones_like(half))


# -- with a policy -----------------------------------------------------------------------------------------------------


_POLICY, _BEHAVIOUR = "policy/", "behaviour/"


class ExploringActor(Protocol):
    """An actor with an exploration schedule over env steps, such as `BehaviourActor` and `ParameterNoiseActor`."""

    random: bool
    """Whether to act uniformly at random."""

    def columns(self) -> Columns:
        """Return what is stored with each step."""
        ...

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the random numbers needed for each env and step."""
        ...

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return the memory at the start of an episode."""
        ...

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Choose actions."""
        ...

    def at(self, env_steps: int) -> None:
        """Set schedules for this point of the run."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the exploration, except for the state per env."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        ...


class BehaviourActor:
    """Acts with a policy under a behaviour; uniformly at random while `random` is true."""

    def __init__(self, policy: Acting, behaviour: Behaviour, *, store_state: bool = False) -> None:
        """With `store_state`, the policy's memory before each step is stored, for replay of sequences."""
        self.policy, self.behaviour, self.store_state = policy, behaviour, store_state
        self.random = False
        """Set by the trainer before learning starts."""
        self._random_actor = RandomActor(policy.action_spec)

    def at(self, env_steps: int) -> None:
        """Set the behaviour's schedules for this point of the run."""
        self.behaviour.at(env_steps)

    def memory_columns(self) -> Columns:
        """Return the policy's memory by the names that it has in this actor's state: for `Replay(state=…)`."""
        return {_POLICY + name: spec for name, spec in self.policy.state_spec().items()}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: schedules follow from the number of env steps."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def columns(self) -> Columns:
        """Return the policy's memory, if `store_state`."""
        return {"state": dict(self.policy.state_spec())} if self.store_state else {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the stages, of noisy layers, of the behaviour, and of a random start."""
        random = {f"random/{name}": spec for name, spec in self._random_actor.noise().items()}
        mine = self.behaviour.noise(self.policy.head)
        return {**self.policy.noise(), **self.policy.head.head_noise(), **mine, **random}

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return the memory of both at the start of an episode."""
        mine = self.behaviour.initial_state(num_envs, device)
        return {
            **{_POLICY + name: value for name, value in self.policy.initial_state(num_envs, device).items()},
            **{_BEHAVIOUR + name: value for name, value in mine.items()},
        }

    def graph_key(self) -> Hashable:
        """Return the key of a captured `act`: random steps, or all others."""
        return self.random

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Run the policy, then the behaviour; or choose at random, with the memory updated all the same."""
        before = _inner(state, _POLICY)
        seen = {**obs, **{name: noise[name] for name in self.policy.head.head_noise()}}
        distribution, after, _ = self.policy.act(seen, before, self.policy.decide(noise))
        actions, mine = self.behaviour(obs, _inner(state, _BEHAVIOUR), distribution, noise)
        if self.random:
            actions = self._random_actor.act(obs, (), _inner(noise, "random/")).actions
        new = {**{_POLICY + k: v for k, v in after.items()}, **{_BEHAVIOUR + k: v for k, v in mine.items()}}
        return ActorOutput(actions, new, {"state": before} if self.store_state else {})


def policy_memory(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return memory that was stored under the names of `BehaviourActor.memory_columns` as the policy takes it."""
    return _inner(stored, _POLICY)


def _inner(values: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
