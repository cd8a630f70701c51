"""How the learners from datasets are built from a run's config: behaviour cloning, TD3+BC, CQL, IQL and BCQ.

config.dataset ──▶ folder of save_dataset() ──▶ Replay ─┐
config.policy, config.algorithm ──▶ policy, algorithm ──┴▶ Trainer with an OfflinePlan

The run's env is not stepped: it says what is observed and done, and evaluations are played in others of its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as with_changes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from striderl.algorithms.bcq import Imitated
from striderl.algorithms.behaviour_cloning import BehaviourCloning
from striderl.algorithms.cql import CQL
from striderl.algorithms.dqn import DQN, DQNConfig, q_policy
from striderl.algorithms.iql import IQL
from striderl.algorithms.td3 import TD3Config
from striderl.algorithms.td3_bc import TD3BC
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.data.actions import ActionSpec, DiscreteSpec
from striderl.data.arena import Placement
from striderl.data.specs import ObsSpec
from striderl.datasets.offline import load_dataset
from striderl.envs.vec_env import VecEnv
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.choice_q_function import ChoiceQFunction
from striderl.policies.q_function import QFunction
from striderl.policies.value_function import ValueFunction
from striderl.storage.replay.replay import Replay
from striderl.training.algorithm_entry import Learner
from striderl.training.distributed import Ranks
from striderl.training.off_policy import ReplayAlgorithm
from striderl.training.policy_settings import actor_config, head_settings, q_function_config
from striderl.training.replay_learners import MakePolicy, critics_of, settings_of
from striderl.training.trainer import Trainer

if TYPE_CHECKING:
    from striderl.training.run_config import RunConfig

MakeOffline = Callable[["RunConfig[Any, Any]", ActorPolicy, VecEnv], ReplayAlgorithm]


def offline(make: MakeOffline, make_policy: MakePolicy) -> Callable[[RunConfig[Any, Any], VecEnv, Ranks], Learner]:
    """Return how a learner from a dataset is built; the env says what the dataset must hold."""

    def learner(config: RunConfig[Any, Any], env: VecEnv, ranks: Ranks) -> Learner:
        check_offline(config)
        if config.terms:
            raise ValueError(f"{config.algorithm_name} takes no terms, found {list(config.terms)}; ppo does")
        policy = make_policy(config, env.obs_spec, env.action_spec)
        algorithm = make(config, policy, env)
        dataset = dataset_of(config, env, algorithm)
        return Learner(
            policy=policy,
            greedy=GreedyActor(policy),
            trainer=lambda consumers: Trainer(algorithm, dataset, config.plan, consumers=consumers, seed=config.seed),
        )

    return learner


def dataset_of(config: RunConfig[Any, Any], env: VecEnv, algorithm: ReplayAlgorithm) -> Replay:
    """Load the run's dataset for an algorithm, or say what is wrong with its folder."""
    how = f"'striderl dataset {config.env.task} FOLDER' makes one"
    if not config.dataset:
        raise ValueError(f"{config.algorithm_name} learns from a dataset: add --dataset FOLDER; {how}")
    if not Path(config.dataset).is_dir():
        raise FileNotFoundError(f"there is no dataset {config.dataset!r}; {how}")
    return load_dataset(
        config.dataset,
        env.obs_spec,
        env.action_spec,
        picker=algorithm.picker(config.seed),
        view=algorithm.view(),
        placement=Placement(device=config.device),
    )


def bcq_policy_of(config: RunConfig[Any, Any], obs_spec: ObsSpec, action_spec: ActionSpec) -> ActorPolicy:
    """Build Q-values and likelihoods of choices; the run's seed decides the first weights."""
    head_settings(config.policy, action_spec)  # a setting of a head that is not there is refused
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = actor_config(config.policy, obs_spec, {})
        return q_policy(obs_spec, action_spec, network, _imitated(config)).to(config.device)


def make_bc(config: RunConfig[Any, Any], policy: ActorPolicy, env: VecEnv) -> ReplayAlgorithm:
    """Build behaviour cloning."""
    return BehaviourCloning(policy, settings_of(config))


def make_td3_bc(config: RunConfig[Any, Any], policy: ActorPolicy, env: VecEnv) -> ReplayAlgorithm:
    """Build TD3+BC."""
    if config.algorithm.exploration_std != TD3Config.exploration_std:
        raise ValueError("algorithm.exploration_std has no effect: nothing is collected")
    return TD3BC(policy, critics_of(config, env), settings_of(config))


def make_cql(config: RunConfig[Any, Any], policy: ActorPolicy, env: VecEnv) -> ReplayAlgorithm:
    """Build CQL for real-valued actions."""
    return CQL(policy, critics_of(config, env), settings_of(config))


def make_iql(config: RunConfig[Any, Any], policy: ActorPolicy, env: VecEnv) -> ReplayAlgorithm:
    """Build IQL; choices have critics of their own."""
    settings = q_function_config(config.policy, env.obs_spec)
    critic: QFunction | ChoiceQFunction
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed + 1)
        if isinstance(env.action_spec, DiscreteSpec):
            critic = ChoiceQFunction(env.obs_spec, env.action_spec, settings)
        else:
            critic = QFunction(env.obs_spec, env.action_spec, settings)
        value = ValueFunction(env.obs_spec, settings)
    return IQL(policy, critic.to(config.device), value.to(config.device), settings_of(config))


def make_bcq(config: RunConfig[Any, Any], policy: ActorPolicy, env: VecEnv) -> ReplayAlgorithm:
    """Build BCQ for choices."""
    if config.algorithm.epsilon != DQNConfig().epsilon:
        raise ValueError("algorithm.epsilon has no effect: nothing is collected")
    return DQN(policy, settings_of(config), _imitated(config))


def _imitated(config: RunConfig[Any, Any]) -> Imitated:
    return Imitated(threshold=config.algorithm.threshold, logit_penalty=config.algorithm.logit_penalty)


def check_offline(config: RunConfig[Any, Any]) -> None:
    """Raise for settings of collecting, which have no effect when nothing is collected."""
    changed = with_changes(config.collector, seed=0) != type(config.collector)()
    if changed or config.env.num_envs != 1:
        what = "collector" if changed else "env.num_envs"
        raise ValueError(f"{what}: these settings have no effect with {config.algorithm_name}: nothing is collected")
