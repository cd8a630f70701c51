"""A policy with `forward(batch, state) -> Batch` as an actor of our `Collector`.

    obs {name: [N, …]} ──▶ Batch(obs, rew, done, info) ──policy(batch, state)──▶ Batch(act, state, policy)
                                                              ▲                          │
                                                              └── zero where an episode begins, None where all do

Envs on the CPU show numpy arrays, others tensors. What the policy remembers is kept here, because its form is known
only after the first call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.collect.actors.base import Acted, Noise, Obs, RandomActor
from striderl.compat.base_policy import BasePolicy
from striderl.compat.policy_checks import as_actions, checked_forward
from striderl.data import leaf, tree
from striderl.data.actions import ActionSpec
from striderl.data.arena import Columns
from striderl.data.batch import Batch
from striderl.data.noise import NoiseSpec


class ForwardActor:
    """Lets a `BasePolicy` act; at random while `random` is true."""

    def __init__(self, policy: BasePolicy, action_spec: ActionSpec) -> None:
        """Wrap a policy for envs with these actions."""
        self.policy, self.action_spec = policy, action_spec
        self.random = False
        self.previous: dict[str, Any] = {}
        """Reward, end and info of the step before, by name, which the policy is shown beside the observation."""
        self._random_actor = RandomActor(action_spec)
        self._memory: Any = None

    def columns(self) -> Columns:
        """Return nothing: what a policy wants stored is seen when it comes."""
        return {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of random actions; a policy draws its own."""
        return self._random_actor.noise()

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return that all episodes begin."""
        return {"fresh": torch.ones(num_envs, dtype=torch.bool, device=device)}

    def act(self, obs: Obs, state: Any, noise: Noise) -> Acted:
        """Call the policy, or choose at random."""
        fresh: Tensor = state["fresh"]
        after = {"fresh": torch.zeros_like(fresh)}
        if self.random:
            self._memory = None
            return Acted(self._random_actor.act(obs, (), noise).actions, after, {})
        who, count = f"{type(self.policy).__name__}.forward", len(fresh)
        batch = Batch(obs=shown(obs), **(self.previous or _nothing_before(fresh)))
        result = checked_forward(self.policy(batch, self._remembered(fresh)), count, who)
        actions = as_actions(result.act, self.action_spec, count, fresh.device, who)
        self._memory = result.get("state")
        columns = _stored(result.get("policy"))
        if self._memory is not None:
            self._memory = tree.map(_detached, self._memory)
            columns["_state"] = _stored(self._memory) if _is_nested(self._memory) else torch.as_tensor(self._memory)
        return Acted(actions, after, columns)

    def _remembered(self, fresh: Tensor) -> Any:
        if self._memory is None or bool(fresh.all()):
            return None
        return tree.map(lambda value: _zero_where(fresh, value), self._memory) if bool(fresh.any()) else self._memory


def shown(obs: Mapping[str, Tensor]) -> Any:
    """Return an observation as policies see it: the one component 'obs' itself, or several nested by their names."""
    if list(obs) == ["obs"]:
        return as_shown(obs["obs"])
    nested: dict[str, Any] = {}
    for name, value in obs.items():
        *outer, last = name.split("/")
        place = nested
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = as_shown(value)
    return Batch(nested)


def as_shown(value: Tensor) -> Any:
    """Return an array for a tensor on the CPU, and other tensors as they are."""
    return value.numpy() if value.device.type == "cpu" else value


def _nothing_before(fresh: Tensor) -> dict[str, Any]:
    return {"rew": np.zeros(len(fresh), np.float32), "done": np.zeros(len(fresh), np.bool_), "info": Batch()}


def _is_nested(value: Any) -> bool:
    return tree.container_of(value) is not None


def _detached(value: Any) -> Any:
    return value.detach() if leaf.is_tensor(value) else value


def _zero_where(mask: Tensor, value: Any) -> Any:
    shape = (-1, *[1] * (value.ndim - 1))
    if leaf.is_tensor(value):
        return torch.where(mask.to(value.device).view(shape), torch.zeros_like(value), value)
    return np.where(mask.cpu().numpy().reshape(shape), np.zeros_like(value), value)


def _stored(nested: Any) -> dict[str, Any]:
    """Return nested numbers as dicts of tensors, which the collector can take rows of."""
    if nested is None:
        return {}
    container = tree.container_of(nested)
    assert container is not None
    return {
        name: _stored(value) if _is_nested(value) else torch.as_tensor(value).detach()
        for name, value in container.items(nested)
        if value is not None
    }
