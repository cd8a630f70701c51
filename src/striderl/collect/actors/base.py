"""Actors: they choose the actions while experience is collected.

An actor is a pure function with declared randomness: random numbers come in as `noise`, its memory goes in and
out as `state`, what is stored with the step comes out as columns. Policies with a behaviour on top are actors;
the two here need no network.

`ActingPart`: what a term adds to the acting of a policy: other actions for some envs, columns, a memory of its own.

policy ─▶ distribution ─▶ sample ─▶ part ─▶ part ─▶ the executed actions, of which the log-prob is stored
                                     │ columns 'distill/label' …   memory 'distill/…', fresh where an episode ended
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec, PlainActionSpec
from striderl.data.arena import Columns
from striderl.data.noise import NoiseSpec
from striderl.networks.distributions.base import Distribution

Obs = dict[str, Tensor]
Noise = Mapping[str, Tensor]


class ActorOutput(NamedTuple):
    """The output of an actor for N envs."""

    actions: Any
    """A tensor [N, …], or a dict of them for dict action specs."""
    state: Any
    """The actor's memory after this step, any nested tensors with the env first; () when it has none."""
    columns: dict[str, Any]
    """What is stored with the step under 'policy', in the layout of `Actor.columns`."""


@runtime_checkable
class Actor(Protocol):
    """Chooses actions for N envs at once."""

    def columns(self) -> Columns:
        """Return the columns that are stored with each step."""
        ...

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the random numbers needed for each env and step."""
        ...

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return the memory at the start of an episode."""
        ...

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Choose actions; the arguments are not changed."""
        ...


class RandomActor:
    """Chooses uniformly among the allowed actions; a direction without bounds gets a standard normal number."""

    def __init__(self, action_spec: ActionSpec, device: torch.device | str = "cpu") -> None:
        """Keep the bounds on this device; a first step on another device moves them there."""
        self.action_spec = action_spec
        parts = action_spec.parts if isinstance(action_spec, DictActionSpec) else {"": action_spec}
        self._parts: dict[str, PlainActionSpec] = {f"random_action/{name}": part for name, part in parts.items()}
        self._bounds = {
            name: tuple(torch.as_tensor(bound, device=device) for bound in part.bounds())
            for name, part in self._parts.items()
            if isinstance(part, BoxSpec)
        }

    def columns(self) -> Columns:
        """Return nothing: a random action stores no columns."""
        return {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return one uniform number per action entry, or one Gumbel number per choice."""
        specs: dict[str, NoiseSpec] = {}
        for name, part in self._parts.items():
            if isinstance(part, BoxSpec):
                specs[name] = NoiseSpec(shape=part.shape, kind="uniform")
                specs[f"{name}/unbounded"] = NoiseSpec(shape=part.shape, kind="normal")
            else:
                choices = part.n if isinstance(part, DiscreteSpec) else sum(part.nvec)
                specs[name] = NoiseSpec(shape=(choices,), kind="gumbel")
        return specs

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return no memory."""
        return ()

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Choose at random."""
        device = next(iter(noise.values())).device
        if any(bound.device != device for bounds in self._bounds.values() for bound in bounds):
            self._bounds = {name: tuple(bound.to(device) for bound in bounds) for name, bounds in self._bounds.items()}
        chosen = {
            name: _random_part(part, name, obs, noise, self._bounds.get(name, ())) for name, part in self._parts.items()
        }
        if isinstance(self.action_spec, DictActionSpec):
            return ActorOutput(
                {name.removeprefix("random_action/"): value for name, value in chosen.items()}, state, {}
            )
        return ActorOutput(next(iter(chosen.values())), state, {})


def _random_part(part: PlainActionSpec, name: str, obs: Obs, noise: Noise, bounds: tuple[Tensor, ...]) -> Tensor:
    draw = noise[name]
    if isinstance(part, BoxSpec):
        low, high = bounds
        bounded = torch.isfinite(low) & torch.isfinite(high)
        inside = torch.where(bounded, low, 0.0) + draw * torch.where(bounded, high - low, 1.0)
        outside = torch.minimum(torch.maximum(noise[f"{name}/unbounded"], low), high)
        return torch.where(bounded, inside, outside)
    if part.mask:
        draw = draw.masked_fill(~obs[part.mask].bool(), -torch.inf)
    if isinstance(part, DiscreteSpec):
        return draw.argmax(dim=-1)
    assert isinstance(part, MultiDiscreteSpec)
    return torch.stack([piece.argmax(dim=-1) for piece in torch.split(draw, list(part.nvec), dim=-1)], dim=-1)


class ScriptedActor:
    """Chooses by a function of the observation: a controller, a replayed trajectory, a user's policy."""

    def __init__(self, function: Callable[[Obs], Any]) -> None:
        """Wrap a function from observations [N, …] to actions [N, …]."""
        self.function = function

    def columns(self) -> Columns:
        """Return nothing."""
        return {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing: a script draws nothing."""
        return {}

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return no memory."""
        return ()

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Call the function."""
        return ActorOutput(self.function(obs), state, {})


# -- what a term adds --------------------------------------------------------------------------------------------------


class Played(NamedTuple):
    """The output of a part for N envs."""

    actions: Any
    """The executed actions; the given object itself where nothing is replaced."""
    state: dict[str, Tensor]
    """The part's memory after this step, [N, …] each."""
    columns: dict[str, Any]
    """What is stored with the step, in the layout of `ActingPart.columns`."""


class ActingPart(Protocol):
    """Runs between the policy's sample and the env; like an actor, it is a pure function with declared randomness."""

    @property
    def name(self) -> str:
        """The name of its columns, noise and memory."""
        ...

    def columns(self) -> Columns:
        """Return the columns it stores with each step."""
        ...

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the random numbers needed for each env and step."""
        ...

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return its memory at the start of an episode."""
        ...

    def __call__(
        self, obs: Obs, state: Mapping[str, Tensor], actions: Any, distribution: Distribution[Any], noise: Noise
    ) -> Played:
        """Replace actions, or leave them as they are; the arguments are not changed."""
        ...
