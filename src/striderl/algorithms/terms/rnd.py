"""`RandomNetworkDistillation` (Burda et al. 2018): a reward for states that a network cannot predict yet.

    obs components ─▶ normalise ─┬─▶ target f, random and frozen ─────┐
                                 └─▶ predictor f̂, trained to match f ─┴─▶ novelty |f - f̂|
    t =      0     1     2     3 = last_obs
    novelty  n0    n1    n2    n3
    reward   n1    n2'   n3           step 1 ended its episode: its successor is not stored, so n1 stands for n2'

The reward of a step is the novelty of the state it led to, divided by the spread of discounted novelty, times weight
and step_dt. Normalisers are updated after the update, so that rewards are a function of the stored data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from striderl.algorithms.building import CRITIC_SEED, BuildContext
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.terms.term import Read, Term, collected
from striderl.data import tree
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.execution.updater import GroupConfig, ParameterGroup
from striderl.networks.mlp import MlpModel
from striderl.networks.normalizers import EmpiricalNormalization, RewardNormalizer
from striderl.ops.losses import valid_mean
from striderl.policies.policy import PolicyOutput
from striderl.policies.stage import flat_features

SCHEDULES = ("constant", "step", "linear")


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class RNDConfig:
    """Settings of random network distillation."""

    obs_components: tuple[str, ...] = ("policy",)
    """Components or groups of which novelty is measured."""
    predictor_hidden_dims: tuple[int, ...] = (128, 128)
    """Hidden layers of the predictor."""
    target_hidden_dims: tuple[int, ...] = (128, 128)
    """Hidden layers of the fixed target."""
    num_outputs: int = 1
    """Output size of both networks; 1 to 64 is usual."""
    activation: str = "elu"
    """The nonlinearity of both networks."""
    weight: float = 1.0
    """Weight of the reward, at first."""
    weight_schedule: str = "constant"
    """'constant'; 'step' to final_weight at final_step; 'linear' from initial_step to final_step."""
    initial_step: int = 0
    """Where the linear change begins, in steps of every env."""
    final_step: int = 0
    """Where final_weight is reached, in steps of every env."""
    final_weight: float = 0.0
    """The weight from final_step on."""
    step_dt: float = 1.0
    """Seconds per step, when the env's rewards are scaled with it; else 1."""
    normalize_obs: bool = True
    """Shift and scale what both networks read."""
    normalize_reward: bool = True
    """Divide the reward by the standard deviation of its discounted sum."""
    gamma: float = 0.99
    """Discount of that sum."""
    learning_rate: float = 1e-3
    """Of the predictor; the algorithm's schedule does not touch it."""
    max_grad_norm: float = 0.0
    """The predictor's gradient is clipped to this norm; 0 means never."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.weight_schedule not in SCHEDULES:
            raise ValueError(unknown("weight_schedule", self.weight_schedule, SCHEDULES, where="RNDConfig"))
        if self.num_outputs < 1 or self.step_dt <= 0.0:
            raise ValueError(f"num_outputs and step_dt are positive, found {self.num_outputs} and {self.step_dt}")
        if self.weight_schedule == "constant" and (self.initial_step or self.final_step or self.final_weight):
            raise ValueError("initial_step, final_step and final_weight have no effect with a constant weight")
        if self.weight_schedule == "step" and self.initial_step:
            raise ValueError("initial_step has no effect with weight_schedule='step'; set final_step only")
        if self.weight_schedule != "constant" and not 0 <= self.initial_step < self.final_step:
            raise ValueError(
                f"the weight changes from initial_step to a later final_step, found {self.initial_step} "
                f"and {self.final_step}"
            )


class NoveltyNetworks(nn.Module):
    """Both networks, their normalisers and the count of steps: everything that is saved."""

    def __init__(self, spec: ObsSpec, num_envs: int, config: RNDConfig) -> None:
        super().__init__()
        self.spec = spec
        outputs, activation = config.num_outputs, config.activation
        self.predictor = MlpModel(spec.size, config.predictor_hidden_dims, outputs, activation)
        self.target = MlpModel(spec.size, config.target_hidden_dims, outputs, activation).requires_grad_(False)
        self.obs_normalizer = EmpiricalNormalization(spec.size) if config.normalize_obs else None
        self.reward_normalizer = RewardNormalizer(num_envs, config.gamma) if config.normalize_reward else None
        self.num_steps: Tensor
        self.register_buffer("num_steps", torch.zeros((), dtype=torch.int64))

    def features(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the raw components as one vector, [.., size]."""
        return flat_features(obs, self.spec, self.predictor)

    def difference(self, features: Tensor, readable: Tensor) -> Tensor:
        """Return f - f̂ [.., K] for raw features; those that are not readable [..] are taken as zeros."""
        features = torch.where(readable.unsqueeze(-1), features, 0.0)
        if self.obs_normalizer is not None:
            features = self.obs_normalizer(features)
        difference: Tensor = self.target(features) - self.predictor(features)
        return difference

    def novelty(self, features: Tensor, readable: Tensor) -> Tensor:
        """Return the length of the difference, [..]; zero where features are not readable."""
        length = torch.linalg.vector_norm(self.difference(features, readable), dim=-1)
        return torch.where(readable, length, 0.0)


class RandomNetworkDistillation(Term):
    """Reward novelty, and train the predictor."""

    capturable = True
    learns_in_ranks = True

    Config = RNDConfig
    summary = "rewards novelty: random network distillation"

    @classmethod
    def build(cls, config: RNDConfig, context: BuildContext) -> RandomNetworkDistillation:
        """Build the term from its config."""
        with context.seeded(CRITIC_SEED):
            return cls(context.obs_spec, context.num_envs, config, context.device)

    def __init__(
        self, obs_spec: ObsSpec, num_envs: int, config: RNDConfig | None = None, device: torch.device | str = "cpu"
    ) -> None:
        """Build both networks on the policy's device; the reward's spread is kept per env."""
        self.config = config = config or RNDConfig()
        self.networks = NoveltyNetworks(obs_spec.select(config.obs_components), num_envs, config).to(device)
        self.num_envs = num_envs
        group = GroupConfig(optimizer="Adam", learning_rate=config.learning_rate, max_grad_norm=config.max_grad_norm)
        self._groups = {"rnd": ParameterGroup(self.networks.predictor.parameters(), group)}

    @property
    def name(self) -> str:
        """Its name among the terms."""
        return "rnd"

    @property
    def groups(self) -> Mapping[str, ParameterGroup]:
        """The predictor's parameters, with an Adam of their own."""
        return self._groups

    @property
    def weight(self) -> Tensor:
        """The weight of the reward after the steps seen so far, a 0-d tensor."""
        config, step = self.config, self.networks.num_steps
        first = torch.full((), config.weight, device=step.device)
        if config.weight_schedule == "constant":
            return first
        if config.weight_schedule == "step":
            return torch.where(step < config.final_step, first, config.final_weight)
        way = (step - config.initial_step) / (config.final_step - config.initial_step)
        return first + (config.final_weight - config.weight) * way.clamp(0.0, 1.0)

    @torch.no_grad()
    def reward(self, read: Read) -> dict[str, Tensor]:
        """Return the scaled novelty of each step's next state."""
        data = read.columns
        self.check_envs(data["valid"].shape[1])
        now, last = self.networks.features(data["obs"]), self.networks.features(read.last_obs)
        features = torch.cat([now, last.unsqueeze(0)])
        readable = features.isfinite().all(dim=-1)
        novelty = self.networks.novelty(features, readable)
        follows = readable[1:] & ~(data["terminated"] | data["truncated"])
        reward = torch.where(follows, novelty[1:], novelty[:-1])
        if self.networks.reward_normalizer is not None:
            reward = self.networks.reward_normalizer(reward)
        reward = torch.where(data["valid"], reward * (self.weight * self.config.step_dt), 0.0)
        return {"rnd_reward": reward.to(data["rew"].dtype)}

    @torch.no_grad()
    def reward_of(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the scaled novelty of observations [N, …], with the present statistics."""
        features = self.networks.features(obs)
        novelty = self.networks.novelty(features, features.isfinite().all(dim=-1))
        if self.networks.reward_normalizer is not None:
            novelty = self.networks.reward_normalizer(novelty)
        return (novelty * (self.weight * self.config.step_dt)).to(torch.float32)

    def losses(self, minibatch: Mapping[str, Any], out: PolicyOutput) -> Losses:
        """Return the mean squared error of the predictor over samples that were collected."""
        counted = collected(minibatch)
        difference = self.networks.difference(self.networks.features(minibatch["obs"]), counted)
        return {"rnd_loss": (1.0, valid_mean(difference.square().mean(dim=-1), counted))}

    @torch.no_grad()
    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the normalisers and count the steps."""
        networks, valid = self.networks, columns["valid"]
        self.check_envs(valid.shape[1])
        features = networks.features(columns["obs"])
        if networks.reward_normalizer is not None:
            # read with the statistics used for the rewards of this rollout
            novelty = networks.novelty(features, valid & features.isfinite().all(dim=-1))
            networks.reward_normalizer.update(novelty, columns["terminated"] | columns["truncated"], valid)
        if networks.obs_normalizer is not None:
            networks.obs_normalizer.update(features, valid)
        networks.num_steps += valid.shape[0]

    def numbers(self) -> dict[str, Tensor]:
        """Return the present weight."""
        return {"rnd_weight": self.weight}

    def state_dict(self) -> dict[str, Any]:
        """Return networks, normalisers and the count of steps."""
        return dict(tree.copy(dict(self.networks.state_dict())))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved networks."""
        self.networks.load_state_dict(state)

    def check_envs(self, num_envs: int) -> None:
        """Raise for another number of envs than the spread of the reward is kept for."""
        if self.networks.reward_normalizer is not None and num_envs != self.num_envs:
            raise ValueError(
                f"RandomNetworkDistillation was made for {self.num_envs} envs, this rollout has {num_envs}"
            )

    def check_replay(self) -> None:
        """Raise for settings that need rollouts: samples of a replay have no envs and no order."""
        if self.config.normalize_reward:
            raise ValueError(
                "RND on replay wants normalize_reward=False: the spread of discounted novelty is that of whole "
                "rollouts, and samples of a replay are in no order"
            )
        if self.config.weight_schedule != "constant":
            raise ValueError(
                "RND on replay wants weight_schedule='constant': samples of a replay do not count the steps of envs"
            )

    def reward_names(self) -> tuple[str, ...]:
        """Return the one name."""
        return ("rnd_reward",)
