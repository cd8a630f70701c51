"""A policy as an actor: decide, run, sample, and store what the update will need."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from striderl.collect.actors.base import ActingPart, ActorOutput, Noise, Obs
from striderl.data.arena import Columns
from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec
from striderl.policies.acting import Acting, lean_call
from striderl.policies.policy import Policy, PolicyOutput
from striderl.policies.stage import inner, outer

_ACTION = "action"
_STATE = "state"
_TAKEN = ("trunk", "actor", "critic", _ACTION, _STATE, "log_prob", "value", "dist", "memo")
"""Names that a part may not have: the policy's own."""


class PolicyActor:
    """Samples from the policy's distribution and stores log-prob, value, distribution parameters and decisions."""

    def __init__(self, policy: Policy, parts: Sequence[ActingPart] = (), *, store_state: bool = False) -> None:
        """Act with a policy; `parts` may replace actions and store columns under their names, in their order.

        With `store_state`, the policy's memory before each step is stored: for rollouts that are kept for long.
        """
        self.policy, self.parts, self.store_state = policy, tuple(parts), store_state and bool(policy.state_spec())
        names = [part.name for part in self.parts]
        for name in names:
            if name in _TAKEN or names.count(name) > 1:
                raise ValueError(f"an acting part is called {name!r}, which is taken; the names of parts must differ")

    def columns(self) -> Columns:
        """Return what the update reads back."""
        num_values = self.policy.value_head.num_values
        kept: Columns = {_STATE: dict(self.policy.state_spec())} if self.store_state else {}
        return {
            **{part.name: dict(part.columns()) for part in self.parts},
            **kept,
            "log_prob": TensorSpec(),
            "value": TensorSpec(shape=() if num_values == 1 else (num_values,)),
            "dist": dict(self.policy.head.params_spec()),
            "memo": dict(self.policy.stage_draw_spec()),
        }

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the stages and that of the sample."""
        spec = self.policy.head.noise_spec()
        sample = {_ACTION: spec} if isinstance(spec, NoiseSpec) else {f"{_ACTION}/{k}": v for k, v in spec.items()}
        theirs = {f"{part.name}/{name}": each for part in self.parts for name, each in part.noise().items()}
        return {**self.policy.noise(), **sample, **theirs}

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return the policy's memory at the start of an episode, and that of the parts under their names."""
        own = self.policy.initial_state(num_envs, device)
        for part in self.parts:
            own |= outer(part.initial_state(num_envs, device), part.name)
        return own

    def graph_key(self) -> Hashable:
        """Return the key of a captured `act`: one for all steps."""
        return ()

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Sample actions, and let the parts replace some."""
        stage_draws = self.policy.decide(noise)
        output: PolicyOutput = lean_call(self.policy, obs, state, stage_draws)
        actions, log_prob = output.distribution.sample_with_log_prob(_sample_noise(noise))
        columns = {
            "log_prob": log_prob,
            "value": output.value,
            "dist": output.distribution.params(),
            "memo": stage_draws,
        }
        if self.store_state:
            columns[_STATE] = {name: state[name] for name in output.state}
        if self.parts:
            return self._with_parts(obs, state, noise, output, ActorOutput(actions, output.state, columns))
        return ActorOutput(actions, output.state, columns)

    def _with_parts(self, obs: Obs, state: Any, noise: Noise, output: PolicyOutput, acted: ActorOutput) -> ActorOutput:
        """Run the parts; the stored log-probability is that of the actions executed in the end."""
        actions, new_state, columns = acted.actions, dict(acted.state), dict(acted.columns)
        for part in self.parts:
            played = part(obs, inner(state, part.name), actions, output.distribution, inner(noise, part.name))
            actions = played.actions
            new_state |= outer(played.state, part.name)
            columns[part.name] = played.columns
        if actions is not acted.actions:
            columns["log_prob"] = output.distribution.log_prob(actions)
        return ActorOutput(actions, new_state, columns)


class GreedyActor:
    """Acts with the mode of the policy's distribution and stores nothing: for evaluation."""

    def __init__(self, policy: Acting) -> None:
        self.policy = policy

    def columns(self) -> Columns:
        """Return nothing."""
        return {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing: nothing is drawn."""
        return {}

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return the policy's memory at the start of an episode."""
        return self.policy.initial_state(num_envs, device)

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Return the most likely action."""
        like = next(iter(obs.values()))
        stage_draws = self.policy.settled(like.new_zeros(like.shape[0]))
        distribution, state, _ = self.policy.act(obs, state, stage_draws)
        return ActorOutput(distribution.mode(), state, {})


def _sample_noise(noise: Noise) -> Any:
    """Return the noise of the sample: a tensor, or a dict for dict actions."""
    if _ACTION in noise:
        return noise[_ACTION]
    prefix = f"{_ACTION}/"
    found: dict[str, Tensor] = {k.removeprefix(prefix): v for k, v in noise.items() if k.startswith(prefix)}
    return found
