"""Algorithms of every kind with a rollout to learn from, built the same for each mode of execution."""

from __future__ import annotations

from typing import Any

import torch

from striderl.algorithms.on_policy.a2c import A2C, A2CConfig
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.terms.estimation import Estimation
from striderl.algorithms.terms.rnd import RandomNetworkDistillation, RNDConfig
from striderl.algorithms.terms.symmetry import MirrorTable, Symmetry
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.envs.toy import Script, Scripted
from striderl.execution.modes import ExecutionConfig
from striderl.policies.estimate import Estimate
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.storage.rollout import RolloutStorage

STEPS, ENVS = 4, 5
CASES = ("mlp", "lstm", "discrete", "terms", "a2c")
ESTIMATE = Estimate(
    obs_components=("joints",), target_components=("command",), hidden_sizes=(5,), replace_state_prob=0.5
)
MIRROR = {"joints": MirrorTable([1, 0, 2], [1, 1, -1]), "command": MirrorTable([0, 1], [1, -1])}


def make_env(case: str) -> Scripted:
    """Random observations, some endings, some samples that do not count."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    valid = random(STEPS, ENVS) < 1.3
    script = Script(
        obs={"joints": random(STEPS + 1, ENVS, 3), "command": random(STEPS + 1, ENVS, 2)},
        reward=random(STEPS, ENVS),
        terminated=random(STEPS, ENVS) > 1.3,
        truncated=random(STEPS, ENVS) > 1.3,
        final_obs={"joints": random(STEPS, ENVS, 3), "command": random(STEPS, ENVS, 2)},
        info={"valid": valid},
    )
    action = DiscreteSpec(n=3) if case == "discrete" else BoxSpec(shape=(2,), low=-1.0, high=1.0)
    return Scripted(script, action_spec=action)


def make(case: str, mode: str | ExecutionConfig, **config: Any) -> tuple[PPO | A2C, Any]:
    """Return the algorithm and a prepared rollout."""
    env = make_env(case)
    torch.manual_seed(0)
    stages: dict[str, tuple[Any, ...]] = {
        "lstm": (NormalizeObs(), Remember(type="lstm", hidden_size=4)),
        "terms": (ESTIMATE,),
    }
    recipe = stages.get(case, (NormalizeObs(),))
    settings = PolicyConfig(
        actor=recipe, critic=() if case == "terms" else recipe, actor_hidden_dims=(8,), critic_hidden_dims=(8,)
    )
    policy = Policy(env.obs_spec, env.action_spec, settings)
    terms: list[Any] = []
    if case == "terms":
        small = RNDConfig(predictor_hidden_dims=(6,), target_hidden_dims=(6,), num_outputs=3)
        mirror = Symmetry(mirror_obs=MIRROR, mirror_act=MirrorTable([1, 0]), mirror_loss_weight=0.5)
        terms = [RandomNetworkDistillation(env.obs_spec, ENVS, small), mirror, Estimation()]
    algorithm: PPO | A2C
    if case == "a2c":
        algorithm = A2C(policy, A2CConfig(**config), mode=mode)
    else:
        usual = {"num_learning_epochs": 1, "num_mini_batches": 1, "schedule": "adaptive", "entropy_coef": 0.01}
        if case == "lstm":
            # the first KL is 0 up to rounding, which differs between kernels, and its sign decides
            usual["schedule"] = "fixed"
        algorithm = PPO(policy, PPOConfig(**{**usual, **config}), terms, mode=mode)
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=3))
    storage = RolloutStorage(
        collector.columns(), STEPS, ENVS, final_obs=env.obs_spec, final_state=policy.state_spec(), pool_size=20
    )
    collector.ready()
    initial = collector.current_state
    collector.collect(n_step=STEPS * ENVS, storage=storage)
    prepared = algorithm.prepare(
        storage, initial_state=initial, last_obs=collector.current_obs, last_state=collector.current_state
    )
    return algorithm, prepared
