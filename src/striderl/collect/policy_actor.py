"""A policy as an actor: decide, run, sample, and store what the update will need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.collect.actors import Acted, Noise, Obs
from striderl.data.arena import Columns
from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec
from striderl.policies.policy import Policy

_ACTION = "action"


class PolicyActor:
    """Samples from the policy's distribution and stores log-prob, value, distribution parameters and decisions."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def columns(self) -> Columns:
        """Return what the update reads back."""
        num_values = self.policy.value_head.num_values
        return {
            "log_prob": TensorSpec(),
            "value": TensorSpec(shape=() if num_values == 1 else (num_values,)),
            "dist": dict(self.policy.head.params_spec()),
            "memo": dict(self.policy.memo_spec()),
        }

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the stages and that of the sample."""
        spec = self.policy.head.noise_spec()
        sample = {_ACTION: spec} if isinstance(spec, NoiseSpec) else {f"{_ACTION}/{k}": v for k, v in spec.items()}
        return {**self.policy.noise(), **sample}

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return the policy's memory at the start of an episode."""
        return self.policy.initial_state(num_envs, device)

    def act(self, obs: Obs, state: Any, noise: Noise) -> Acted:
        """Sample actions."""
        memo = self.policy.decide(noise)
        output = self.policy(obs, state, memo)
        actions, log_prob = output.distribution.sample_with_log_prob(_sample_noise(noise))
        columns = {
            "log_prob": log_prob,
            "value": output.value,
            "dist": output.distribution.params(),
            "memo": memo,
        }
        return Acted(actions, output.state, columns)


class GreedyActor:
    """Plays the mode of the policy's distribution and stores nothing: for evaluation."""

    def __init__(self, policy: Policy) -> None:
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

    def act(self, obs: Obs, state: Any, noise: Noise) -> Acted:
        """Play the most likely action."""
        like = next(iter(obs.values()))
        memo = self.policy.settled(like.new_zeros(like.shape[0]))
        distribution, state, _ = self.policy.act(obs, state, memo)
        return Acted(distribution.mode(), state, {})


def _sample_noise(noise: Noise) -> Any:
    """Return the noise of the sample: a tensor, or a dict for dict actions."""
    if _ACTION in noise:
        return noise[_ACTION]
    prefix = f"{_ACTION}/"
    found: dict[str, Tensor] = {k.removeprefix(prefix): v for k, v in noise.items() if k.startswith(prefix)}
    return found
