"""Datasets that the project generates: train a policy and record it at three stages.

    SAC or DQN on the task ──▶ random ─────────▶ medium ─────────▶ expert
                               never trained     half way between   the best that was seen
                               │                 │                  │
    kind                       random            medium             expert          mix: a third of each

    behaviours = train_behaviours("pendulum", total_steps=8_000, seed=0)
    replay = generate(behaviours, "medium", 10_000, seed=1)
    save_dataset(folder, replay, *behaviours.specs(), about={"kind": "medium"})

SAC learns real-valued actions and DQN choices. Medium and expert act by samples of SAC's policy, and with one choice in
ten at random by DQN's, as they did while they learned. Half way is meant in returns.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.collect.actors.base import Actor, RandomActor
from striderl.collect.actors.behaviours import BehaviourActor, EpsilonGreedy, Sample
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data import tree
from striderl.data.actions import ActionSpec, BoxSpec, DiscreteSpec
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.data.transition import Transition, transition_columns
from striderl.envs.tasks import make
from striderl.envs.vec_env import VecEnv
from striderl.ops.ramps import Ramp
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.value_functions import QFunction, QFunctionConfig
from striderl.storage.replay.replay import Replay
from striderl.training.evaluation import evaluate
from striderl.training.plans import OffPolicyPlan
from striderl.training.trainer import Trainer

KINDS = ("random", "medium", "expert", "mix")
EPSILON = 0.1
"""How often a recorded DQN acts at random."""
_HIDDEN = (64, 64)


@dataclass(frozen=True, kw_only=True)
class Behaviours:
    """The behaviour policies of a task's datasets."""

    task: str
    """The name of the task."""
    policy: ActorPolicy
    """The network; it holds the weights of none of them in particular."""
    weights: Mapping[str, Mapping[str, Tensor]]
    """Those of 'medium' and 'expert'."""
    returns: Mapping[str, float]
    """Mean returns of 'random', 'medium' and 'expert' when they were chosen, acting as in the datasets."""

    def specs(self) -> tuple[ObsSpec, ActionSpec]:
        """Return the observation and action specs."""
        return self.policy.obs_spec, self.policy.action_spec

    def actors(self, kind: str) -> list[Actor]:
        """Return the actors of a dataset of this kind, in order."""
        if kind not in KINDS:
            raise ValueError(unknown("kind", kind, KINDS, where="the datasets"))
        names = ("random", "medium", "expert") if kind == "mix" else (kind,)
        return [self._actor(name) for name in names]

    def _actor(self, name: str) -> Actor:
        if name == "random":
            return RandomActor(self.policy.action_spec)
        policy = copy.deepcopy(self.policy)
        policy.load_state_dict(self.weights[name])
        return exploring(policy)


def exploring(policy: ActorPolicy) -> Actor:
    """Return the actor that runs a learner's policy as in the datasets."""
    if isinstance(policy.action_spec, DiscreteSpec):
        return BehaviourActor(policy, EpsilonGreedy(policy.action_spec, EPSILON))
    return BehaviourActor(policy, Sample())


def train_behaviours(
    task: str = "pendulum", *, total_steps: int = 8_000, seed: int = 0, progress: Callable[[float], None] | None = None
) -> Behaviours:
    """Train SAC, or DQN where actions are choices, and keep policies on the way; `progress` gets the share done."""
    env = make(task, num_envs=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        algorithm = _learner(env)
    policy: ActorPolicy = algorithm.policy
    plan = OffPolicyPlan(
        num_steps_per_env=250, batch_size=128, learning_starts=500, buffer_size=total_steps, total_steps=total_steps
    )
    trainer = Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=seed)), plan, seed=seed)
    seen: list[tuple[float, dict[str, Any]]] = []
    for _ in trainer:
        weights: dict[str, Any] = tree.copy(dict(policy.state_dict()))
        seen.append((_returns(task, exploring(policy)), weights))
        if progress is not None:
            progress(trainer.env_steps / total_steps)
    trainer.close()
    return _chosen(task, policy, seen, _returns(task, RandomActor(policy.action_spec)))


def _learner(env: VecEnv) -> Any:
    obs_spec, action_spec = env.obs_spec, env.action_spec
    if isinstance(action_spec, DiscreteSpec):
        config = DQNConfig(
            n_step=3, learning_rate=5e-4, target_every=200, epsilon=Ramp(start=1.0, end=EPSILON, num_steps=3_000)
        )
        return DQN(q_policy(obs_spec, action_spec, ActorConfig(hidden_dims=_HIDDEN)), config)
    if not isinstance(action_spec, BoxSpec):
        raise ValueError(f"the datasets are for real-valued actions or one choice, found {type(action_spec).__name__}")
    policy = ActorPolicy(obs_spec, action_spec, ActorConfig(hidden_dims=_HIDDEN, head="squashed_gaussian"))
    critic = QFunction(obs_spec, action_spec, QFunctionConfig(hidden_dims=_HIDDEN))
    rates = SACConfig(actor_learning_rate=1e-3, critic_learning_rate=1e-3, temperature_learning_rate=1e-3)
    return SAC(policy, critic, rates)


def _returns(task: str, actor: Actor) -> float:
    env = make(task, num_envs=20)
    result = evaluate(env, actor, 20, seed=12345)
    env.close()
    return result.mean


def _chosen(task: str, policy: ActorPolicy, seen: list[tuple[float, dict[str, Any]]], random: float) -> Behaviours:
    """Choose the best policy as expert, and the one nearest to half way from random to it as medium."""
    best, expert = max(seen, key=lambda pair: pair[0])
    middle, medium = min(seen, key=lambda pair: abs(pair[0] - 0.5 * (random + best)))
    return Behaviours(
        task=task,
        policy=policy,
        weights={"medium": medium, "expert": expert},
        returns={"random": random, "medium": middle, "expert": best},
    )


def generate(behaviours: Behaviours, kind: str, num_steps: int, *, seed: int = 0, num_envs: int = 10) -> Replay:
    """Record a dataset of one kind of at least so many steps."""
    actors = behaviours.actors(kind)
    env = make(behaviours.task, num_envs=num_envs)
    replay = record_steps(env, actors, num_steps, seed=seed)
    env.close()
    return replay


def record_steps(
    env: VecEnv,
    actors: Sequence[Actor],
    num_steps: int,
    *,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Replay:
    """Record at least so many steps, the same number of each actor and env; `progress` gets the share done.

    Episodes that are under way when an actor is finished are truncated.
    """
    if num_steps < 1:
        raise ValueError(f"a dataset has at least one step, found num_steps={num_steps}")
    per_env = -(-num_steps // (env.num_envs * len(actors)))
    columns = transition_columns(env.obs_spec, env.action_spec, {}, {})
    replay = Replay(columns, per_env * env.num_envs * len(actors), env.num_envs)
    storage = replay if progress is None else _Watched(replay, per_env * len(actors), progress)
    for number, actor in enumerate(actors):
        collector = Collector(env, actor, CollectorConfig(seed=1_000 * seed + number))
        collector.collect(n_step=per_env * env.num_envs, storage=storage)
        replay.cut()
    return replay


class _Watched:
    """Pass transitions on to a replay and report how many of the wanted steps it has."""

    def __init__(self, replay: Replay, num_steps: int, progress: Callable[[float], None]) -> None:
        self.replay, self.balanced, self._wanted, self._progress = replay, replay.balanced, num_steps, progress
        self._taken = 0

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Store one step of all envs."""
        self.replay.add(transition, envs)
        self._taken += 1
        self._progress(self._taken / self._wanted)
