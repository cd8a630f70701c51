"""Small learners of every kind on any device, for comparing eager, compiled and recorded runs of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.algorithms.actor_critic.crossq import CrossQ, CrossQConfig
from striderl.algorithms.actor_critic.fast_td3 import fast_sac, fast_td3
from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.actor_critic.td3 import TD3, TD3Config
from striderl.algorithms.on_policy.appo import APPO, APPOConfig
from striderl.algorithms.on_policy.estimator_ppo import EstimatorPPO
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.on_policy.tppo import TPPO, TPPOConfig
from striderl.algorithms.terms.motion_prior import MotionPriorConfig
from striderl.algorithms.terms.rnd import RandomNetworkDistillation, RNDConfig
from striderl.algorithms.terms.symmetry import MirrorTable, Symmetry
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.teacher import Teacher
from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.datasets.motion.amp_loader import AMPLoader, AMPLoaderConfig
from striderl.datasets.motion.clip import ClipField, MotionClip
from striderl.envs.toy.base import State, ToyEnv, ToyOutcome
from striderl.envs.vec_env import Actions, Obs
from striderl.execution.modes import ExecutionConfig
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.estimate import Estimate
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.policies.value_functions import QFunction, QFunctionConfig
from striderl.training.plans import OffPolicyPlan, OnPolicyPlan
from striderl.training.trainer import Trainer

ENVS, LIMIT = 12, 16
ON_POLICY = ("mlp", "lstm", "discrete", "rnd", "symmetry", "estimator", "amp", "tppo", "dagger")
OFF_POLICY = ("dqn", "td3", "sac", "crossq", "fast_td3", "fast_sac")


class Reach(ToyEnv):
    """A point that is pushed towards a goal that only critics and teachers see; by numbers, or by four choices.

    Far out an episode terminates; after some steps, another number in each env, it is truncated.
    """

    def __init__(self, device: torch.device | str, *, choices: bool = False, num_envs: int = ENVS) -> None:
        parts = {
            "place": ComponentSpec(shape=(2,)),
            "push": ComponentSpec(shape=(2,)),
            "goal": ComponentSpec(shape=(2,), group="critic"),
            "motion": ComponentSpec(shape=(2,), group="motion"),
        }
        super().__init__(
            num_envs,
            device,
            obs_spec=ObsSpec(parts),
            action_spec=DiscreteSpec(n=4) if choices else BoxSpec(shape=(2,), low=-1.0, high=1.0),
            max_episode_length=0,
            first_env_index=0,
            num_words=5,
        )
        self.choices = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], device=self.device)

    def _start(self, words: Tensor) -> State:
        place = words[:, :2].float() * 2.0**-31 - 1.0
        goal = words[:, 2:4].float() * 2.0**-31 - 1.0
        return {"place": place, "goal": goal, "push": torch.zeros_like(place), "age": words[:, 4] % LIMIT}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        push = self.choices[actions] if actions.dtype is torch.int64 else actions.clamp(-1.0, 1.0)
        place, age = state["place"] + 0.3 * push, state["age"] + 1
        reward = -(place - state["goal"]).abs().sum(dim=-1)
        moved = {"place": place, "push": push, "age": age}
        return ToyOutcome(moved, reward, place.abs().amax(dim=-1) > 1.5, age >= LIMIT, {})

    def _observe(self, state: State) -> Obs:
        shown = {name: state[name].clone() for name in ("place", "push", "goal")}
        return {**shown, "motion": 2.0 * state["place"]}


def make_policy(env: Reach, *, memory: bool = False, actor: tuple[Any, ...] = (), **more: Any) -> Policy:
    """A small actor and critic; the weights are the same on every device."""
    torch.manual_seed(0)
    stages = (NormalizeObs(), *actor, *([Remember(type="lstm", hidden_size=16)] if memory else []))
    settings: dict[str, Any] = {
        "actor_obs": ("place", "push"),
        "critic_obs": ("place", "push", "goal"),
        "actor": stages,
        "critic": (NormalizeObs(), *([Remember(type="lstm", hidden_size=16)] if memory else [])),
        "actor_hidden_dims": (32,),
        "critic_hidden_dims": (32,),
    }
    return Policy(env.obs_spec, env.action_spec, PolicyConfig(**{**settings, **more})).to(env.device)


def clips() -> AMPLoader:
    """Two short clips of 'motion' that go to the right."""

    def clip(name: str, height: float) -> MotionClip:
        way = np.stack([0.2 * np.arange(8.0) - 0.8, np.full(8, height)], axis=1)
        return MotionClip(name=name, frame_duration=0.1, fields={"x": ClipField(size=2)}, values={"x": 2.0 * way})

    return AMPLoader([clip("low", -0.3), clip("high", 0.4)], AMPLoaderConfig(time_between_frames=0.1))


def _symmetry(device: torch.device) -> Symmetry:
    turned = MirrorTable([1, 0])
    components = dict.fromkeys(("place", "push", "goal", "motion"), turned)
    return Symmetry(mirror_obs=components, mirror_act=turned, augment=True, mirror_loss_weight=0.5)


def _on_policy(kind: str, env: Reach, config: PPOConfig, mode: ExecutionConfig) -> Any:
    if kind in ("mlp", "lstm", "discrete"):
        return PPO(make_policy(env, memory=kind == "lstm"), config, mode=mode)
    if kind == "rnd":
        small = RNDConfig(obs_components=("place",), num_outputs=8, predictor_hidden_dims=(16,))
        policy = make_policy(env)
        return PPO(policy, config, [RandomNetworkDistillation(env.obs_spec, ENVS, small, env.device)], mode=mode)
    if kind == "symmetry":
        return PPO(make_policy(env), config, [_symmetry(env.device)], mode=mode)
    if kind == "estimator":
        stage = Estimate(obs_components=("place",), target_components=("goal",), hidden_sizes=(8,))
        return EstimatorPPO(make_policy(env, actor=(stage,), actor_obs=("place", "push", "goal")), config, mode=mode)
    if kind == "amp":
        policy = make_policy(env)
        prior = MotionPriorConfig(hidden_dims=(16,), learning_rate=1e-3, replay_size=64)
        return APPO(policy, clips(), APPOConfig(ppo=config, prior=prior), mode=mode)
    teacher = Teacher(make_policy(env, actor_obs=("goal",), actor_hidden_dims=(8,)))
    torch.manual_seed(1)
    student = make_policy(env)
    usual = {"teacher_act_prob": 0.4, "using_ppo": kind == "tppo"}
    if kind == "dagger":
        config = PPOConfig(num_learning_epochs=3, num_mini_batches=4)
    return TPPO(student, teacher, TPPOConfig(ppo=config, **usual), mode=mode)


def on_policy_trainer(kind: str, mode: ExecutionConfig, device: str) -> Trainer:
    """Three iterations of seven steps, three epochs of four minibatches each."""
    env = Reach(device, choices=kind == "discrete")
    schedule = "fixed" if kind == "discrete" else "adaptive"
    config = PPOConfig(num_learning_epochs=3, num_mini_batches=4, schedule=schedule, entropy_coef=0.01)
    algorithm = _on_policy(kind, env, config, mode)
    collector = Collector(env, algorithm.actor(), CollectorConfig(seed=3))
    return Trainer(algorithm, collector, OnPolicyPlan(num_steps_per_env=7, total_iterations=3))


def _actor_and_critic(env: Reach, head: str, **critic: Any) -> tuple[ActorPolicy, QFunction]:
    torch.manual_seed(0)
    stages = (NormalizeObs(),)
    policy = ActorPolicy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(32,), stages=stages, head=head))
    settings = QFunctionConfig(hidden_dims=(32,), **{"stages": stages, **critic})
    return policy.to(env.device), QFunction(env.obs_spec, env.action_spec, settings).to(env.device)


def _dqn(env: Reach, mode: str) -> Any:
    torch.manual_seed(0)
    policy = q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(32,))).to(env.device)
    return DQN(policy, DQNConfig(mode=mode, n_step=3, target_every=4))


def _fast(env: Reach, mode: str, make: Callable[..., Any], config: Any) -> Any:
    torch.manual_seed(0)
    small: dict[str, Any] = {"low": -20.0, "high": 5.0, "num_atoms": 21}
    small |= {"actor_hidden_dims": (32,), "critic_hidden_dims": (32,)}
    config = replace(config, mode=mode, gamma=0.97, tau=0.1, weight_decay=0.1)
    return make(env.obs_spec, env.action_spec, num_envs=ENVS, config=config, device=env.device, **small)[0]


def _off_policy(kind: str, env: Reach, mode: str) -> Any:
    if kind == "dqn":
        return _dqn(env, mode)
    if kind == "fast_td3":
        return _fast(env, mode, fast_td3, TD3Config(smoothing_std=0.05))
    if kind == "fast_sac":
        return _fast(env, mode, fast_sac, SACConfig(init_temperature=0.01, target_entropy=0.0))
    if kind == "td3":
        return TD3(*_actor_and_critic(env, "deterministic"), TD3Config(mode=mode))
    if kind == "crossq":
        networks = _actor_and_critic(env, "squashed_gaussian", batch_renorm=True, stages=())
        return CrossQ(*networks, CrossQConfig(mode=mode))
    return SAC(*_actor_and_critic(env, "squashed_gaussian"), SACConfig(mode=mode, n_step=2, actor_every=2))


def off_policy_trainer(kind: str, mode: str, device: str, *, iterations: int = 3) -> Trainer:
    """Iterations of eight rounds of three gradient steps; the replay goes round in the second."""
    env = Reach(device, choices=kind == "dqn")
    algorithm = _off_policy(kind, env, mode)
    plan = OffPolicyPlan(
        num_steps_per_env=8,
        num_updates_per_round=3,
        batch_size=64,
        learning_starts=36,
        buffer_size=12 * ENVS,
        total_iterations=iterations,
    )
    return Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=3)), plan)


def learned(trainer: Trainer) -> dict[str, Tensor]:
    """Everything that was learned, by path: networks, targets, terms, optimisers."""
    from striderl.data import tree

    state = trainer.algorithm.state_dict()
    return {path: leaf.detach().clone() for path, leaf in tree.items(state) if isinstance(leaf, Tensor)}
