"""An env that can be imitated, experts for it, and learners: for tests of motion priors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.on_policy.appo import APPO, APPOConfig
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.terms.motion_prior import MotionPrior, MotionPriorConfig
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.data.transition import Transition
from striderl.envs.toy.base import ToyEnv, ToyOutcome
from striderl.policies.policy import Policy, PolicyConfig
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer

STRIDE = (0.2, 0.0)
"""How far the expert goes in a step."""
SMALL = {"hidden_dims": (16,), "learning_rate": 1e-3, "replay_size": 256}


class Drift(ToyEnv):
    """A point that goes where it is told, at most 0.4 a step; the task pays for going to the left.

    Beyond the wall at x = -0.5 an episode terminates; after some steps, another number in each env, it is truncated.
    """

    def __init__(self, num_envs: int = 4, limit: int = 6) -> None:
        obs = {
            "place": ComponentSpec(shape=(2,)),
            "motion": ComponentSpec(shape=(2,), group="motion"),
            "speed": ComponentSpec(shape=(2,), group="speed"),
        }
        super().__init__(
            num_envs,
            "cpu",
            obs_spec=ObsSpec(obs),
            action_spec=BoxSpec(shape=(2,), low=-1.0, high=1.0),
            max_episode_length=0,
            first_env_index=0,
            num_words=3,
            info_spec={"ref_motion": TensorSpec(shape=(4,)), "ref_speed": TensorSpec(shape=(2,))},
        )
        self.limit = limit
        self.step_dt = 0.02

    def _start(self, words: Tensor) -> dict[str, Tensor]:
        place = words[:, :2].float() / 2**32 * 2.0 - 1.0
        return {"place": place, "age": words[:, 2] % self.limit, "stride": torch.zeros_like(place)}

    def _advance(self, state: dict[str, Tensor], actions: Any) -> ToyOutcome:
        stride = 0.4 * actions.clamp(-1.0, 1.0)
        place, age = state["place"] + stride, state["age"] + 1
        wanted = torch.cat([state["place"], state["place"] + torch.tensor(STRIDE)], dim=-1)
        info = {"ref_motion": 2.0 * wanted, "ref_speed": 5.0 * torch.tensor(STRIDE) + 0.1 * state["place"]}
        moved = {"place": place, "age": age, "stride": stride}
        return ToyOutcome(moved, -actions[:, 0], place[:, 0] < -0.5, age >= self.limit, info)

    def _observe(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"place": state["place"].clone(), "motion": state["place"] * 2.0, "speed": state["stride"] * 5.0}


def strides(count: int = 400, frames: int = 2) -> Tensor:
    """Windows [count, 2 · frames] of somebody who goes `STRIDE` a step, in the units of 'motion'."""
    start = torch.rand(count, 1, 2, generator=torch.Generator().manual_seed(5)) * 2.0 - 1.0
    way = torch.arange(frames).view(1, -1, 1) * torch.tensor(STRIDE)
    return (2.0 * (start + way)).flatten(1)


def speeds(count: int = 400) -> Tensor:
    """What 'speed' shows of the same, [count, 2], with a little spread."""
    spread = 0.1 * torch.randn(count, 2, generator=torch.Generator().manual_seed(6))
    return 5.0 * torch.tensor(STRIDE) + spread


def make_policy(env: ToyEnv, weights: int = 0, **settings: Any) -> Policy:
    torch.manual_seed(weights)
    config = {
        "actor_obs": ("place",),
        "critic_obs": ("place",),
        "actor_hidden_dims": (16,),
        "critic_hidden_dims": (16,),
    }
    return Policy(env.obs_spec, env.action_spec, PolicyConfig(**{**config, **settings}))


def make_appo(env: ToyEnv, policy: Policy, expert: Any = None, ppo: dict[str, Any] | None = None, **prior: Any) -> PPO:
    settings = MotionPriorConfig(**{**SMALL, **prior})
    expert = strides(frames=settings.frames) if expert is None else expert
    usual = {"num_learning_epochs": 2, "num_mini_batches": 2, "learning_rate": 3e-3, "schedule": "fixed"}
    torch.manual_seed(7)
    return APPO(policy, expert, APPOConfig(ppo=PPOConfig(**{**usual, **(ppo or {})}), prior=settings))


def make_trainer(algorithm: PPO, env: ToyEnv, *, iterations: int, num_steps: int = 8, seed: int = 0) -> Trainer:
    collector = Collector(env, algorithm.actor(), CollectorConfig(seed=seed))
    return Trainer(
        algorithm, collector, OnPolicyPlan(num_steps_per_env=num_steps, total_iterations=iterations), seed=seed
    )


def prior_of(algorithm: PPO) -> MotionPrior:
    return next(term for term in algorithm.terms if isinstance(term, MotionPrior))


class Witness:
    """A storage that also notes every step, to work things out one env and one step at a time."""

    balanced = True

    def __init__(self, storage: Any) -> None:
        self.storage, self.steps = storage, []

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        self.steps.append(transition)
        self.storage.add(transition, envs)
