"""Shared by algorithms on replayed sequences: views, burn-in, and the layout for one pass.

    sample ─▶ burn-in [T0, B] ─▶ memory ─▶ weave the T steps to learn from with what followed them (ops/trajectories.py)
    stored memory ──▲                         │
                                              ├─▶ 'woven', 'woven_resets', 'woven_valid' [L, B, …]   for the networks
                                              └─▶ act, rew, discount, valid, weight [T · B]          for the losses

The burn-in runs without gradient and only makes memories that fit the present weights (Kapturowski et al. 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from striderl.data import tree
from striderl.data.arena import Columns
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.noise import NoiseSpec
from striderl.ops.trajectories import sequence_windows, weave
from striderl.policies.actor_policy import ActorPolicy

SEQUENCE_BATCHES: Mapping[str, Any] = {"num_steps_per_env": 100, "batch_size": 32, "train_every": 2}
"""How learners from sequences fill in an `OffPolicyPlan`: a sequence has tens of steps, so few of them are a batch."""


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """How sequences are replayed."""

    length: int = 20
    """Steps of a sequence that are learned from."""
    burn_in: int = 10
    """Steps before them that only warm the memory up."""
    state_every: int = 4
    """The memory is stored before every so many steps; sequences start there."""
    eta: float = 0.9
    """Priority of a sequence: this share of its largest error, the rest of the mean."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.length < 1 or self.burn_in < 0 or self.state_every < 1 or not 0.0 <= self.eta <= 1.0:
            raise ValueError(
                "SequenceConfig wants length >= 1, burn_in >= 0, state_every >= 1 and 0 <= eta <= 1, found "
                f"{self.length}, {self.burn_in}, {self.state_every} and {self.eta}"
            )


@dataclass(frozen=True)
class ReplayState:
    """The spec of the actor's memory in a replay."""

    columns: Columns
    """The memory of one env."""
    every: int
    """Before every so many steps."""


def laid_out(
    sample: Mapping[str, Any], weight: Tensor | None, burn_in: int, *, gamma: float, n_step: int
) -> dict[str, Any]:
    """Return the inputs of the losses: woven observations, and one row per step to learn from, time first.

    'here' and 'there' [T · B] are the places of a step and of what followed its window, in the flattened woven order.
    """
    learn = {name: _later(sample[name], burn_in) for name in ("obs", "obs_next", "act", "rew", "terminated")}
    truncated, valid, resets = (sample[name][burn_in:] for name in ("truncated", "valid", "resets"))
    weaving = weave(learn["terminated"] | truncated, resets, valid)
    window = sequence_windows(learn["rew"], learn["terminated"], truncated, valid, gamma=gamma, n=n_step)
    count = valid.shape[1]
    column = torch.arange(count, device=valid.device)
    followed = weaving.here.gather(0, window.last) + 1
    masks = tree.map(lambda leaf: _at_last(leaf, window.last).flatten(0, 1), learn["obs_next"])
    return {
        "woven": {name: weaving.woven(learn["obs"][name], learn["obs_next"][name]) for name in learn["obs"]},
        "woven_resets": weaving.resets,
        "woven_valid": weaving.valid,
        "here": (weaving.here * count + column).flatten(),
        "there": (followed * count + column).flatten(),
        "obs": tree.map(lambda leaf: leaf.flatten(0, 1), learn["obs"]),
        "obs_next": masks,
        # what followed each step itself, for terms that learn from single steps
        "single": tree.map(
            lambda leaf: leaf.flatten(0, 1),
            {"obs_next": learn["obs_next"], "terminated": learn["terminated"], "truncated": truncated},
        ),
        "info": tree.map(lambda leaf: leaf.flatten(0, 1), _later(sample.get("info", {}), burn_in)),
        "act": learn["act"].flatten(0, 1),
        "rew": window.reward.flatten(),
        "discount": window.discount.flatten(),
        "valid": valid.flatten(),
        "weight": None if weight is None else weight.expand(valid.shape).flatten(),
    }


def warmed_up(
    policy: ActorPolicy, sample: Mapping[str, Any], state: Mapping[str, Tensor], burn_in: int
) -> dict[str, Tensor]:
    """Return the policy's memory after the burn-in, without gradient."""
    if not burn_in:
        return dict(state)
    with torch.no_grad():
        obs = {name: value[:burn_in] for name, value in sample["obs"].items()}
        after = policy.remembered(obs, state, sample["resets"][:burn_in], sample["valid"][:burn_in])
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in after.items()}


def woven_features(policy: ActorPolicy, minibatch: Mapping[str, Any], state: Mapping[str, Tensor]) -> Tensor:
    """Return the policy's features [L · B, F] along the woven sequence."""
    features, _, _, _ = policy.features(
        minibatch["woven"], state, {}, minibatch["woven_resets"], minibatch["woven_valid"]
    )
    return features.flatten(0, 1)


def per_step(specs: Mapping[str, NoiseSpec], length: int) -> dict[str, NoiseSpec]:
    """Return the noise of a whole sequence from that of a step."""
    return {name: NoiseSpec(shape=(length, *spec.shape), kind=spec.kind) for name, spec in specs.items()}


def flat_noise(noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return noise [B, T, …] as rows [T · B, …], time first."""
    return {name: values.transpose(0, 1).flatten(0, 1) for name, values in noise.items()}


def _later(values: Any, burn_in: int) -> Any:
    return tree.map(lambda leaf: leaf[burn_in:], values)


def _at_last(leaf: Tensor, last: Tensor) -> Tensor:
    index = last.view(*last.shape, *[1] * (leaf.dim() - 2)).expand_as(leaf)
    return leaf.gather(0, index)
