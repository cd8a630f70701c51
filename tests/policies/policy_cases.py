"""The classes of the older libraries with small settings, and inputs for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from striderl.data.noise import draw_all
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.policy import Policy
from striderl.policies.presets.amp import AmpActorCritic, AmpActorCriticRecurrent, EncoderAmpActorCriticRecurrent
from striderl.policies.presets.base import ActorCritic, ActorCriticRecurrent, DeterministicPolicy
from striderl.policies.presets.encoder import (
    EncoderActorCritic,
    EncoderActorCriticRecurrent,
    VisualDeterministicAC,
    VisualDeterministicRecurrent,
)
from striderl.policies.presets.state import (
    EncoderStateAc,
    EncoderStateAcRecurrent,
    PrivilegeStateAcRecurrent,
    StateAc,
    StateAcRecurrent,
)

OBS_SEGMENTS = {"imu": 4, "velocity": 3, "scan": (1, 5, 5)}
CRITIC_SEGMENTS = {"imu": 4, "velocity": 3, "friction": 2, "scan": (1, 5, 5)}
NUM_OBS, NUM_CRITIC_OBS, NUM_ACTIONS = 32, 34, 2

BASE: dict[str, Any] = {
    "obs_segments": OBS_SEGMENTS,
    "critic_obs_segments": CRITIC_SEGMENTS,
    "actor_hidden_dims": [8, 6],
    "critic_hidden_dims": [7],
}
MEMORY = {"rnn_type": "lstm", "rnn_hidden_size": 5, "rnn_num_layers": 1}
ENCODER = {"encoder_component_names": ["scan"], "encoder_kwargs": {"hidden_sizes": [6]}, "encoder_output_size": 4}
ESTIMATOR = {
    "estimator_obs_components": ["imu"],
    "estimator_target_components": ["velocity"],
    "estimator_kwargs": {"hidden_sizes": [6]},
    "replace_state_prob": 0.5,
}
ADAPTOR = {
    "adaptor_obs_components": ["imu"],
    "adaptor_target_components": ["friction"],
    "adaptor_kwargs": {"hidden_sizes": [6]},
    "privilege_replace_state_prob": 0.5,
}
VISUAL = {
    "visual_component_name": "scan",
    "visual_kwargs": {"channels": [3], "kernel_sizes": [2], "strides": [1], "hidden_sizes": [6]},
    "visual_latent_size": 4,
}
AMP = {"amp_discriminator": {"input_dim": 6, "style_reward_coef": 2.0, "hidden_dims": [8]}}

CASES: dict[type[StatefulPolicy], dict[str, Any]] = {
    ActorCritic: {},
    DeterministicPolicy: {},
    ActorCriticRecurrent: MEMORY,
    EncoderActorCritic: ENCODER,
    EncoderActorCriticRecurrent: {**ENCODER, **MEMORY},
    StateAc: ESTIMATOR,
    StateAcRecurrent: {**ESTIMATOR, **MEMORY},
    EncoderStateAc: {**ENCODER, **ESTIMATOR},
    EncoderStateAcRecurrent: {**ENCODER, **ESTIMATOR, **MEMORY},
    PrivilegeStateAcRecurrent: {**ADAPTOR, **ESTIMATOR, **MEMORY},
    AmpActorCritic: AMP,
    AmpActorCriticRecurrent: {**AMP, **MEMORY},
    EncoderAmpActorCriticRecurrent: {**AMP, **ENCODER, **MEMORY},
    VisualDeterministicAC: VISUAL,
    VisualDeterministicRecurrent: {**VISUAL, **MEMORY},
}
"""Every class that is a whole policy, with settings that exercise all of its stages."""


def build(kind: type[StatefulPolicy], seed: int = 0, **changes: Any) -> Any:
    """Build a class with its small settings, some of them changed."""
    torch.manual_seed(seed)
    sizes = {name: changes.pop(name, size) for name, size in SIZES.items()}
    return kind(*sizes.values(), **{**BASE, **CASES[kind], **changes})  # type: ignore[call-arg]


SIZES = {"num_actor_obs": NUM_OBS, "num_critic_obs": NUM_CRITIC_OBS, "num_actions": NUM_ACTIONS}


def random_obs(policy: Policy, *lead: int, seed: int = 0) -> dict[str, Tensor]:
    """Return all components of a policy's observation with this leading shape."""
    generator = torch.Generator().manual_seed(seed)
    obs = {}
    for name, part in policy.obs_spec.items():
        if part.dtype == "uint8":
            obs[name] = torch.randint(0, 256, (*lead, *part.shape), generator=generator, dtype=torch.uint8)
        else:
            obs[name] = torch.randn(*lead, *part.shape, generator=generator)
    return obs


def random_memo(policy: Policy, num_steps: int, num_envs: int, seed: int = 0) -> dict[str, Tensor]:
    """Return decisions [T, N] made from noise, as a collector makes them."""
    env_index = torch.arange(num_envs)
    noise = draw_all(policy.noise(), seed=seed, iteration=0, env_index=env_index, num_steps=num_steps)
    return policy.decide(noise)


def at(tensors: dict[str, Tensor], step: int) -> dict[str, Tensor]:
    """Return one step of a dict of sequences."""
    return {name: value[step] for name, value in tensors.items()}


def forget(state: dict[str, Tensor], dones: Tensor) -> dict[str, Tensor]:
    """Zero the memory of the envs that are done."""
    return {name: torch.where(dones.view(-1, *[1] * (value.dim() - 1)), 0.0, value) for name, value in state.items()}


def step_by_step(policy: Policy, obs: Any, state: Any, memo: Any, resets: Tensor) -> list[Any]:
    """Run a sequence as a rollout does: one step at a time, forgetting where an episode begins."""
    outputs = []
    for step in range(resets.shape[0]):
        output = policy(at(obs, step), forget(state, resets[step]), at(memo, step))
        outputs.append(output)
        state = output.state
    return outputs


def difference(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference; infinite where shapes differ or one is NaN."""
    if one.shape != other.shape:
        return float("inf")
    gap = (one.detach().double() - other.detach().double()).abs()
    return float(gap.nan_to_num(nan=float("inf")).max()) if gap.numel() else 0.0


def flat(*lead: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return flat observations of the actor and of the critic with this leading shape."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(*lead, NUM_OBS, generator=generator)
    return obs, torch.randn(*lead, NUM_CRITIC_OBS, generator=generator)


def leaves(hidden: Any) -> list[Tensor]:
    """Return the tensors of nested hidden states."""
    if isinstance(hidden, torch.Tensor):
        return [hidden]
    return [leaf for part in tuple(hidden) if part is not None for leaf in leaves(part)]
