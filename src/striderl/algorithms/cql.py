"""CQL (Kumar et al. 2020): SAC on a dataset, with critics that promise little for actions the data does not have.

    critic   SAC's + penalty · mean_B Σ_k ( log Σ_j exp Q_k(s, a_j) - Q_k(s, a) )

a_j are actions at random, and samples of the policy in s and in s'; each counts by its density.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.replay_parts import sample_noise_spec
from striderl.algorithms.sac import SAC, SACConfig
from striderl.collect.behaviours import box_bounds
from striderl.data.noise import NoiseSpec
from striderl.ops.losses import valid_mean
from striderl.ops.offline import conservative_gap
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.q_function import QFunction


class CQL(SAC):
    """SAC with a conservative penalty on its critics."""

    def __init__(
        self,
        policy: ActorPolicy,
        critic: QFunction,
        config: SACConfig | None = None,
        *,
        penalty: float = 5.0,
        num_actions: int = 4,
    ) -> None:
        """Take the parts of SAC, the weight of the penalty, and how many actions are drawn in each of three ways."""
        if penalty < 0.0 or num_actions < 1:
            raise ValueError(f"penalty >= 0 and num_actions >= 1, found {penalty} and {num_actions}")
        super().__init__(policy, critic, config)
        if critic.config.num_outputs != 1:
            raise ValueError(f"CQL wants critics with one value each, found num_outputs={critic.config.num_outputs}")
        self.penalty, self.num_actions = penalty, num_actions
        device = next(policy.parameters()).device
        low, high, _ = box_bounds(policy.action_spec, "CQL")
        if not bool((low.isfinite() & high.isfinite()).all()):
            raise ValueError("CQL draws actions at random and wants bounds on all of them")
        self._low, self._range = low.to(device), (high - low).to(device)

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return SAC's, and that of the actions to be penalised."""
        shape = sample_noise_spec(self.policy).shape
        several = (self.num_actions, *shape)
        return {
            **super().noise(),
            "random_actions": NoiseSpec(shape=several, kind="uniform"),
            "policy_actions": NoiseSpec(shape=several, kind="normal"),
            "next_policy_actions": NoiseSpec(shape=several, kind="normal"),
        }

    def critic_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return SAC's loss and the penalty."""
        losses, numbers = super().critic_losses(minibatch)
        actions, density = self._candidates(minibatch)
        values = torch.stack([self.critic(minibatch["obs"], action) for action in actions])
        taken = self.critic(minibatch["obs"], minibatch["act"])
        gap = conservative_gap(values, density.unsqueeze(1), taken).sum(dim=0)
        loss = valid_mean(gap, minibatch["valid"])
        return {**losses, "conservative_loss": (self.penalty, loss)}, numbers

    @torch.no_grad()
    def _candidates(self, minibatch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return actions [J, B, …] and their log-densities [J, B]."""
        noise = minibatch["noise"]
        random = self._low + self._range * noise["random_actions"].transpose(0, 1)
        flat = -math.fsum(math.log(width) for width in self._range.flatten().tolist())
        actions, densities = [random], [torch.full(random.shape[:2], flat, device=random.device)]
        for state, name in (("obs", "policy_actions"), ("obs_next", "next_policy_actions")):
            distribution, _, _ = self.policy.act(minibatch[state], {}, {})
            action, density = distribution.sample_with_log_prob(noise[name].transpose(0, 1))
            actions.append(action)
            densities.append(density)
        return torch.cat(actions), torch.cat(densities)
