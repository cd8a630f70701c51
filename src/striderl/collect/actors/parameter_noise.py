"""Noise in the weights instead of on the actions (Plappert et al. 2018): a consistent, perturbed policy acts.

    policy ──copy + std · noise──▶ perturbed policy ──behaviour──▶ action         drawn anew every so many env steps
       │                                 │
       └────────── distance ◀────────────┘      too near to the policy: std grows; too far: it shrinks

The noise depends on seed and number of the draw. The perturbed weights are those of the policy when it was drawn, so
they are part of what is saved: a resumed run acts with the same ones. Layers of very different scale profit from
`layer_norm` or normalised observations, as one std serves them all.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.collect.actors.base import ActorOutput, Noise, Obs
from striderl.collect.actors.behaviours import Behaviour, BehaviourActor, box_bounds
from striderl.data import tree
from striderl.data.actions import BoxSpec
from striderl.data.arena import Columns
from striderl.data.noise import NoiseSpec, draw
from striderl.networks.distributions.base import Distribution
from striderl.networks.distributions.deterministic import QValues
from striderl.policies.actor_policy import ActorPolicy


class ParameterNoiseActor:
    """Acts with a perturbed copy of the policy under a behaviour; pass it to an algorithm as `actor`."""

    def __init__(
        self,
        policy: ActorPolicy,
        behaviour: Behaviour,
        *,
        distance: float = 0.1,
        init_std: float = 0.1,
        factor: float = 1.01,
        every: int = 1000,
        seed: int = 0,
    ) -> None:
        """Keep the perturbed policy at this distance, and redraw it at this interval of env steps.

        For real-valued actions the distance is the root of the mean squared difference, in units of half the range; for
        choices it is the KL divergence between the softmax of both sets of Q-values.
        """
        if policy.state_spec():
            raise ValueError("ParameterNoiseActor wants a policy without memory: two sets of weights have two memories")
        if min(distance, init_std) <= 0.0 or factor <= 1.0 or every < 1:
            raise ValueError(
                "ParameterNoiseActor wants distance > 0, init_std > 0, factor > 1 and every >= 1, found "
                f"{distance}, {init_std}, {factor} and {every}"
            )
        self.policy = policy
        self._inner = BehaviourActor(copy.deepcopy(policy).requires_grad_(False), behaviour)
        device = next(policy.parameters()).device
        spec = policy.action_spec
        self._scale = box_bounds(spec, "ParameterNoiseActor")[2].to(device) if isinstance(spec, BoxSpec) else None
        self._distance, self._factor, self._every, self._seed = distance, factor, every, seed
        self.std = torch.tensor(init_std, device=device)
        """The strength of the noise, 0-d."""
        self._sum, self._count = torch.zeros((), device=device), 0
        self._number = -1

    # -- the exploration -----------------------------------------------------------------------------------------------

    @property
    def random(self) -> bool:
        """Whether to act uniformly at random."""
        return self._inner.random

    @random.setter
    def random(self, value: bool) -> None:
        self._inner.random = value

    def at(self, env_steps: int) -> None:
        """Set the behaviour's schedules, and redraw the perturbed policy when it is due."""
        self._inner.at(env_steps)
        number = env_steps // self._every
        if number != self._number:
            self._number = number
            self._adapt()
            self._perturb()

    @torch.no_grad()
    def _adapt(self) -> None:
        if self._count:
            mean = self._sum / self._count
            found = mean if self._scale is None else mean.sqrt()
            self.std.mul_(torch.where(found < self._distance, self._factor, 1.0 / self._factor))
        self._sum, self._count = torch.zeros_like(self._sum), 0

    @torch.no_grad()
    def _perturb(self) -> None:
        perturbed = self._inner.policy
        assert isinstance(perturbed, ActorPolicy)
        perturbed.load_state_dict(self.policy.state_dict())
        parameters = list(perturbed.parameters())
        spec = NoiseSpec(shape=(sum(each.numel() for each in parameters),), kind="normal")
        index = torch.zeros(1, dtype=torch.int64, device=self.std.device)
        noise = draw(spec, "parameter noise", seed=self._seed, iteration=self._number, env_index=index, num_steps=1)
        pieces = torch.split(noise.view(-1), [each.numel() for each in parameters])
        for parameter, piece in zip(parameters, pieces):
            parameter.add_(self.std * piece.view_as(parameter))

    # -- acting --------------------------------------------------------------------------------------------------------

    def columns(self) -> Columns:
        """Return nothing."""
        return {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the behaviour and of a random start."""
        return self._inner.noise()

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return the behaviour's memory at the start of an episode."""
        return self._inner.initial_state(num_envs, device)

    @torch.no_grad()
    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Act with the perturbed policy, and store its distance from the policy."""
        if self._number < 0:
            self.at(0)
        acted = self._inner.act(obs, state, noise)
        stage_draws = self.policy.decide(noise)
        plain, _, _ = self.policy.act(obs, {}, stage_draws)
        other, _, _ = self._inner.policy.act(obs, {}, stage_draws)
        self._sum = self._sum + self._apart(plain, other)
        self._count += 1
        return acted

    def _apart(self, plain: Distribution[Any], other: Distribution[Any]) -> Tensor:
        if self._scale is not None:
            difference: Tensor = (other.mode() - plain.mode()) / self._scale
            return difference.square().mean()
        if not (isinstance(plain, QValues) and isinstance(other, QValues)):
            return plain.kl(other).mean()
        one, two = plain.values.log_softmax(dim=-1), other.values.log_softmax(dim=-1)
        return (one.exp() * (one - two)).sum(dim=-1).mean()

    # -- saving --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the perturbed weights, the strength and the number of the next draw."""
        perturbed = self._inner.policy
        assert isinstance(perturbed, ActorPolicy)
        return {
            "perturbed": tree.copy(dict(perturbed.state_dict())),
            "std": self.std.clone(),
            "sum": self._sum.clone(),
            "count": self._count,
            "number": self._number,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        perturbed = self._inner.policy
        assert isinstance(perturbed, ActorPolicy)
        perturbed.load_state_dict(state["perturbed"])
        self.std.copy_(state["std"])
        self._sum = state["sum"].to(self.std.device, copy=True)
        self._count, self._number = int(state["count"]), int(state["number"])
