"""`RandomNetworkDistillation`: a reward for states that a network has not learned to predict yet (Burda et al., 2018).

state ─▶ target (random, frozen)  ─▶ e              reward = weight · ‖e - e'‖
      ─▶ predictor (learned)      ─▶ e'             loss   = mean (e - e')²

weight_schedule {"mode": "constant"}
                {"mode": "step", "final_step": 500, "final_value": 0.0}
                {"mode": "linear", "initial_step": 0, "final_step": 500, "final_value": 0.0}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from striderl.compat.rsl_rl.modules.mlp import MLP
from striderl.compat.rsl_rl.modules.normalization import (
    EmpiricalDiscountedVariationNormalization,
    EmpiricalNormalization,
)
from striderl.data.naming import unknown


class RandomNetworkDistillation(nn.Module):
    """The reward, its networks and their optimiser; see the top of this module."""

    def __init__(
        self,
        num_states: int,
        obs_groups: Mapping[str, Sequence[str]],
        num_outputs: int,
        predictor_hidden_dims: Sequence[int],
        target_hidden_dims: Sequence[int],
        activation: str = "elu",
        state_normalization: bool = False,
        reward_normalization: bool = False,
        weight: float = 0.0,
        weight_schedule: Mapping[str, Any] | None = None,
        learning_rate: float = 1e-3,
        device: torch.device | str = "cpu",
    ) -> None:
        """Build both networks for the groups `obs_groups["rnd_state"]`, which have `num_states` numbers together.

        A hidden size of -1 is `num_states`. The schedule counts calls of `get_intrinsic_reward`: steps of the env.
        """
        super().__init__()
        self.num_states, self.num_outputs, self.obs_groups = num_states, num_outputs, obs_groups
        self.initial_weight = self.weight = weight
        self.device = device
        self.state_normalization, self.reward_normalization = state_normalization, reward_normalization
        self.state_normalizer: nn.Module = nn.Identity()
        if state_normalization:
            self.state_normalizer = EmpiricalNormalization(shape=[num_states], until=10**8).to(device)
        self.reward_normalizer: nn.Module = nn.Identity()
        if reward_normalization:
            self.reward_normalizer = EmpiricalDiscountedVariationNormalization(shape=[], until=10**8).to(device)
        self.update_counter = 0
        self.weight_scheduler: Callable[..., float] | None = None
        self.weight_scheduler_params: dict[str, Any] = dict(weight_schedule or {})
        if weight_schedule is not None:
            schedules: Mapping[str, Callable[..., float]] = {
                "constant": self._constant_weight_schedule,
                "step": self._step_weight_schedule,
                "linear": self._linear_weight_schedule,
            }
            mode = weight_schedule["mode"]
            if mode not in schedules:
                raise ValueError(unknown("mode", mode, schedules, where="weight_schedule"))
            self.weight_scheduler = schedules[mode]
        self.predictor = MLP(num_states, num_outputs, predictor_hidden_dims, activation).to(device)
        self.target = MLP(num_states, num_outputs, target_hidden_dims, activation).to(device)
        self.target.eval()
        self.optimizer = torch.optim.Adam(self.predictor.parameters(), lr=learning_rate)

    def get_intrinsic_reward(self, obs: Any) -> Tensor:
        """Return the weighted rewards [N] of observations, and count the step."""
        self.update_counter += 1
        with torch.no_grad():
            state = self.state_normalizer(self.get_rnd_state(obs))
            novelty = torch.linalg.norm(self.target(state) - self.predictor(state), dim=1)
            novelty = self.reward_normalizer(novelty)
        self.weight = self.initial_weight
        if self.weight_scheduler is not None:
            self.weight = self.weight_scheduler(step=self.update_counter, **self.weight_scheduler_params)
        return novelty * self.weight  # type: ignore[no-any-return]

    def compute_loss(self, obs: Any) -> Tensor:
        """Return the predictor's loss."""
        with torch.no_grad():
            state = self.state_normalizer(self.get_rnd_state(obs))
            wanted = self.target(state)
        return nn.functional.mse_loss(self.predictor(state), wanted)

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: there is no one output."""
        raise RuntimeError("RandomNetworkDistillation has no forward; call get_intrinsic_reward or compute_loss")

    def train(self, mode: bool = True) -> Self:
        """Set the predictor's and the normalisers' mode; the target stays as it is."""
        for module in (self.predictor, self.state_normalizer, self.reward_normalizer):
            module.train(mode)
        return self

    def eval(self) -> Self:
        """Set evaluation mode."""
        return self.train(False)

    def get_rnd_state(self, obs: Any) -> Tensor:
        """Return the joined groups of 'rnd_state'."""
        return torch.cat([obs[group] for group in self.obs_groups["rnd_state"]], dim=-1)

    def update_normalization(self, obs: Any) -> None:
        """Learn the statistics of states, where they are normalised."""
        if isinstance(self.state_normalizer, EmpiricalNormalization):
            self.state_normalizer.update(self.get_rnd_state(obs))

    def _constant_weight_schedule(self, step: int, **kwargs: Any) -> float:
        return self.initial_weight

    def _step_weight_schedule(self, step: int, final_step: int, final_value: float, **kwargs: Any) -> float:
        return self.initial_weight if step < final_step else final_value

    def _linear_weight_schedule(
        self, step: int, initial_step: int, final_step: int, final_value: float, **kwargs: Any
    ) -> float:
        if step < initial_step:
            return self.initial_weight
        if step > final_step:
            return final_value
        way = (step - initial_step) / (final_step - initial_step)
        return self.initial_weight + (final_value - self.initial_weight) * way


def resolve_rnd_config(
    alg_cfg: dict[str, Any], obs: Any, obs_groups: Mapping[str, Sequence[str]], env: Any
) -> dict[str, Any]:
    """Add sizes and groups to alg_cfg["rnd_cfg"], and scale its weight by the seconds of a step."""
    if alg_cfg.get("rnd_cfg") is None:
        alg_cfg["rnd_cfg"] = None
        return alg_cfg
    for group in obs_groups["rnd_state"]:
        if obs[group].dim() != 2:
            raise ValueError(
                f"novelty reads vectors [N, F]; the group '{group}' has the shape {tuple(obs[group].shape)}"
            )
    settings = alg_cfg["rnd_cfg"]
    settings["num_states"] = sum(obs[group].shape[-1] for group in obs_groups["rnd_state"])
    settings["obs_groups"] = obs_groups
    settings["weight"] *= getattr(env, "unwrapped", env).step_dt
    return alg_cfg
