"""On-policy algorithms with each term, in one process and spread over several; run by `replay_rank_cases.py`.

The whole rollout is one minibatch: so the samples of a gradient step do not depend on how envs are shared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.terms.adversarial import AdversarialReward
from striderl.algorithms.terms.discriminator import AdversarialConfig, StateAction, StatePair
from striderl.algorithms.terms.distill import Distill, DistillConfig
from striderl.algorithms.terms.estimation import Estimation
from striderl.algorithms.terms.expert import EnvExpert, ExpertRows
from striderl.algorithms.terms.mimic import Mimic, MimicConfig
from striderl.algorithms.terms.motion_prior import MotionPrior, MotionPriorConfig
from striderl.algorithms.terms.rnd import RandomNetworkDistillation, RNDConfig
from striderl.algorithms.terms.symmetry import Symmetry
from striderl.algorithms.terms.term import Term
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.teacher import Teacher
from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.envs.toy.base import State, ToyEnv, ToyOutcome
from striderl.envs.vec_env import Actions, Obs
from striderl.ops.moments import pooled
from striderl.policies.estimate import Estimate
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs
from striderl.training.callbacks.ranks import learned_tensors
from striderl.training.distributed import Ranks
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer

ENVS = 8
ACTION = BoxSpec(shape=(2,), low=-1.0, high=1.0)
SPEC = ObsSpec(
    {
        "obs": ComponentSpec(shape=(3,), dtype="float64"),
        "speed": ComponentSpec(shape=(2,), dtype="float64", group="critic"),
    }
)


class Guided(ToyEnv):
    """Points that move by their actions; a reference motion and a pair of frames come in every step."""

    SAVED_NAME = "Guided"

    def __init__(self, num_envs: int, first_env_index: int) -> None:
        super().__init__(
            num_envs,
            "cpu",
            obs_spec=SPEC,
            action_spec=ACTION,
            max_episode_length=5,
            first_env_index=first_env_index,
            num_words=3,
            info_spec={"reference": TensorSpec(shape=(3,)), "pair": TensorSpec(shape=(6,))},
        )

    def _start(self, words: Tensor) -> State:
        place = words.double() / 2.0**31 - 1.0
        return {"place": place, "speed": place[:, :2]}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        place = (state["place"] + 0.1 * actions.double().sum(1, keepdim=True)).roll(1, dims=1)
        bad = (self.env_index % 5 == 4) & (state["length"] == 1)
        reward = torch.where(bad, torch.nan, (place[:, 0] > 0.0).float())
        # whole numbers, so that they do not depend on the last bits of actions
        shown = (self.env_index + 2 * state["length"]).float().unsqueeze(1) * torch.tensor([0.1, -0.05, 0.02]).float()
        info = {"reference": shown, "pair": torch.cat([shown, shown.flip(1)], dim=1)}
        speed = (place - state["place"])[:, :2]
        return ToyOutcome({"place": place, "speed": speed}, reward, place[:, 1] > 1.0, self._never(), info)

    def _observe(self, state: State) -> Obs:
        return {"obs": state["place"].clone(), "speed": state["speed"].clone()}


def _policy(stages: tuple[Any, ...] = ()) -> Policy:
    settings = PolicyConfig(
        actor=(NormalizeObs(), *stages), critic=(NormalizeObs(),), actor_hidden_dims=(8,), critic_hidden_dims=(8,)
    )
    return Policy(SPEC, ACTION, settings)


class Wide(nn.Module):
    """A discriminator in float64: features are float32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        score: Tensor = self.layers(x.double())
        return score.squeeze(-1)


def _adversarial(expert: Any, features: Any, **changes: Any) -> AdversarialReward:
    config, network = AdversarialConfig(task_weight=0.5, **changes), Wide(features.size)
    torch.set_default_dtype(torch.float32)  # of the ring of earlier samples
    try:
        return AdversarialReward(features, expert, config, network=network)
    finally:
        torch.set_default_dtype(torch.float64)


PAIR = EnvExpert(shape=(6,), column="pair")


TERMS: dict[str, Callable[[int], list[Term]]] = {
    "no term": lambda envs: [],
    "rnd": lambda envs: [RandomNetworkDistillation(SPEC, envs, RNDConfig(num_outputs=3))],
    "symmetry": lambda envs: [
        Symmetry(
            mirror_obs={"obs": lambda x: -x, "speed": lambda x: -x}, mirror_act=lambda x: -x, mirror_loss_weight=0.5
        )
    ],
    "estimation": lambda envs: [Estimation()],
    "distill": lambda envs: [Distill(Teacher(_policy()), DistillConfig(teacher_act_prob=0.5))],
    "mimic": lambda envs: [Mimic(obs_spec=SPEC, config=MimicConfig(components=("obs",), column="reference"))],
    "motion_prior": lambda envs: [
        MotionPrior(
            SPEC,
            PAIR,
            MotionPriorConfig(components=("obs",), replay_size=0),
            network=Wide(6),
        )
    ],
    "adversarial": lambda envs: [
        _adversarial(ExpertRows(torch.full((1, 5), 0.3)), StateAction(SPEC, ACTION, ("obs",)))
    ],
    "adversarial between": lambda envs: [
        _adversarial(PAIR, StatePair(SPEC, ("obs",)), loss="wasserstein", reward="difference")
    ],
    "own expert draws": lambda envs: [
        _adversarial(
            ExpertRows(torch.linspace(-1.0, 1.0, 40).view(8, 5)), StateAction(SPEC, ACTION, ("obs",)), replay_size=16
        )
    ],
}
"""Term → how it is made for a number of envs. The last draws expert samples in each rank and keeps a ring there."""
CASES = [f"ppo {name}" for name in TERMS]
DRAWS = "ppo own expert draws"


def from_rollouts(case: str, ranks: Ranks, total_envs: int = ENVS) -> dict[str, Any]:
    """Train PPO with one of the terms."""
    torch.set_default_dtype(torch.float64)
    name = case.removeprefix("ppo ")
    count, first = ranks.shard(total_envs)
    env = Guided(count, first)
    torch.manual_seed(1)
    estimate = Estimate(obs_components=("obs",), target_components=("speed",), hidden_sizes=(8,))
    config = PPOConfig(num_learning_epochs=2, num_mini_batches=1, schedule="adaptive", desired_kl=1e-4)
    with pooled(ranks.reduce):
        algorithm = PPO(_policy((estimate,) if name == "estimation" else ()), config, TERMS[name](count))
    collector = Collector(env, algorithm.actor(), CollectorConfig(seed=3))
    plan = OnPolicyPlan(num_steps_per_env=6, total_iterations=2)
    trainer = Trainer(algorithm, collector, plan, seed=3, total_envs=total_envs, ranks=ranks)
    numbers = [dict(record.metrics) for record in trainer]
    ranks.require_equal(learned_tensors(algorithm))
    return {"state": algorithm.state_dict(), "numbers": numbers, "env_steps": trainer.env_steps}
