"""Classic control learned from a dataset: no env is stepped but for evaluations.

striderl dataset pendulum DATA --kind mix
striderl train pendulum --algorithm td3_bc --dataset DATA
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from striderl.algorithms.offline.bcq import BCQConfig
from striderl.algorithms.offline.behaviour_cloning import BehaviourCloningConfig
from striderl.algorithms.offline.cql import CQLConfig
from striderl.algorithms.offline.iql import IQLConfig
from striderl.algorithms.offline.td3_bc import TD3BCConfig
from striderl.policies.settings import PolicySettings
from striderl.training.experiment.run_config import (
    CheckpointSettings,
    EnvSettings,
    EvaluationSettings,
    LoggingSettings,
    RunConfig,
)
from striderl.training.plans import OfflinePlan

RATE = 1e-3
GAMMA, TAU = 0.95, 0.02
"""A swing-up takes a second or two; with a longer horizon or slower targets, values want far more gradient steps."""


def pendulum_bc() -> RunConfig[BehaviourCloningConfig, OfflinePlan]:
    """Pendulum by doing what the data did."""
    return _pendulum("bc", BehaviourCloningConfig(learning_rate=RATE), "squashed_gaussian")


def pendulum_td3_bc() -> RunConfig[TD3BCConfig, OfflinePlan]:
    """Pendulum with TD3 that stays near the data."""
    config = TD3BCConfig(gamma=GAMMA, tau=TAU, actor_learning_rate=RATE, critic_learning_rate=RATE)
    return _pendulum("td3_bc", config, "deterministic")


def pendulum_cql() -> RunConfig[CQLConfig, OfflinePlan]:
    """Pendulum with SAC whose critics promise little for what the data does not have."""
    config = CQLConfig(
        gamma=GAMMA,
        tau=TAU,
        penalty=5.0,
        actor_learning_rate=RATE,
        critic_learning_rate=RATE,
        temperature_learning_rate=RATE,
    )
    return _pendulum("cql", config, "squashed_gaussian")


def pendulum_iql() -> RunConfig[IQLConfig, OfflinePlan]:
    """Pendulum without ever asking for the value of an action outside the data."""
    # rewards of this task are large, and so are advantages and their errors: a low temperature
    config = IQLConfig(gamma=GAMMA, tau=TAU, learning_rate=RATE, expectile=0.9, temperature=0.1)
    return _pendulum("iql", config, "squashed_gaussian")


def cartpole_bc() -> RunConfig[BehaviourCloningConfig, OfflinePlan]:
    """CartPole by doing what the data did."""
    return _cartpole("bc", BehaviourCloningConfig(learning_rate=RATE))


def cartpole_iql() -> RunConfig[IQLConfig, OfflinePlan]:
    """CartPole without ever asking for the value of a choice outside the data."""
    return _cartpole("iql", IQLConfig(gamma=0.99, tau=TAU, learning_rate=RATE))


def cartpole_bcq() -> RunConfig[BCQConfig, OfflinePlan]:
    """CartPole with Q-learning among what the data would choose."""
    return _cartpole("bcq", BCQConfig(gamma=0.99, n_step=3, target_every=1, tau=TAU, learning_rate=RATE))


def _pendulum(name: str, algorithm: Any, head: Any) -> RunConfig[Any, OfflinePlan]:
    policy = PolicySettings(actor_hidden_dims=(64, 64), critic_hidden_dims=(64, 64), activation="relu", head=head)
    return _run("pendulum", name, algorithm, policy)


def _cartpole(name: str, algorithm: Any) -> RunConfig[Any, OfflinePlan]:
    policy = PolicySettings(actor_hidden_dims=(64, 64), critic_hidden_dims=(64, 64), activation="relu")
    return _run("cartpole", name, algorithm, policy)


def _run(task: str, name: str, algorithm: Any, policy: PolicySettings) -> RunConfig[Any, OfflinePlan]:
    return RunConfig(
        env=EnvSettings(task=task, num_envs=1),
        policy=policy,
        algorithm_name=name,
        algorithm=algorithm,
        plan=OfflinePlan(num_updates_per_iteration=500, batch_size=128, total_iterations=8),
        evaluation=EvaluationSettings(every=1, num_episodes=20, num_envs=20),
        checkpoints=CheckpointSettings(every=2),
        logging=LoggingSettings(console_every=1),
        num_threads=1,
    )


CLASSIC_CONTROL_OFFLINE: Mapping[tuple[str, str], Callable[[], RunConfig[Any, Any]]] = {
    ("cartpole", "bc"): cartpole_bc,
    ("cartpole", "iql"): cartpole_iql,
    ("cartpole", "bcq"): cartpole_bcq,
    ("pendulum", "bc"): pendulum_bc,
    ("pendulum", "td3_bc"): pendulum_td3_bc,
    ("pendulum", "cql"): pendulum_cql,
    ("pendulum", "iql"): pendulum_iql,
}
"""The recipes of this file."""
