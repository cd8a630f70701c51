"""Classic control: small tasks that are learned in seconds to a minute on one core.

PPO, A2C, REINFORCE, IMPALA   on-policy: many env steps
DQN, SAC, TD3                 from replay: few env steps, many gradient steps
BC, TD3+BC, CQL, IQL, BCQ     from a dataset: no env is stepped but for evaluations

striderl dataset pendulum DATA --kind mix
striderl train pendulum --algorithm td3_bc --dataset DATA
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from striderl.algorithms.actor_critic.sac import SACConfig
from striderl.algorithms.actor_critic.td3 import TD3Config
from striderl.algorithms.offline.bcq import BCQConfig
from striderl.algorithms.offline.behaviour_cloning import BehaviourCloningConfig
from striderl.algorithms.offline.cql import CQLConfig
from striderl.algorithms.offline.iql import IQLConfig
from striderl.algorithms.offline.td3_bc import TD3BCConfig
from striderl.algorithms.on_policy.a2c import A2CConfig
from striderl.algorithms.on_policy.impala import IMPALAConfig
from striderl.algorithms.on_policy.ppo import PPOConfig
from striderl.algorithms.on_policy.reinforce import REINFORCEConfig
from striderl.algorithms.terms.rnd import RNDConfig
from striderl.algorithms.value_based.dqn import DQNConfig
from striderl.ops.ramps import Ramp
from striderl.policies.settings import PolicySettings
from striderl.training.experiment.run_config import (
    CheckpointSettings,
    EnvSettings,
    EvaluationSettings,
    LoggingSettings,
    RunConfig,
    StopSettings,
)  # fmt: skip
from striderl.training.plans import OfflinePlan, OffPolicyPlan, OnPolicyPlan

SMALL = PolicySettings(normalize_obs=False, actor_hidden_dims=(64, 64), critic_hidden_dims=(64, 64), activation="tanh")
"""Two small networks; the observations are of order one already."""
NORMALIZED = replace(SMALL, normalize_obs=True)
SOLVED = StopSettings(metric="evaluate/return_mean", value=475.0)
"""CartPole's goal."""

PPO = PPOConfig(
    num_learning_epochs=4,
    num_mini_batches=16,
    clip_param=0.2,
    gamma=0.99,
    lam=0.95,
    value_loss_coef=1.0,
    entropy_coef=0.0,
    learning_rate=1e-3,
    max_grad_norm=0.5,
    use_clipped_value_loss=True,
    schedule="fixed",
    desired_kl=0.01,
    normalize_advantage_per_mini_batch=False,
    optimizer_class_name="Adam",
)
"""PPO's settings where a recipe has no others."""


def cartpole_ppo() -> RunConfig[PPOConfig, OnPolicyPlan]:
    """CartPole with PPO: greedy return 475 or more in about ten seconds."""
    return RunConfig(
        env=EnvSettings(task="cartpole", num_envs=8),
        policy=SMALL,
        algorithm_name="ppo",
        algorithm=replace(PPO, num_mini_batches=4, gamma=0.98, lam=0.8, learning_rate=2.5e-3),
        plan=OnPolicyPlan(num_steps_per_env=128, total_steps=100_000),
        evaluation=EvaluationSettings(every=10, num_episodes=20, num_envs=10),
        stop=SOLVED,
        checkpoints=CheckpointSettings(every=20),
        logging=LoggingSettings(console_every=10),
        num_threads=1,
    )


def _cartpole(name: str, algorithm: Any, plan: OnPolicyPlan, *, every: int, save_every: int) -> RunConfig[Any, Any]:
    """Return CartPole in 16 envs with another algorithm."""
    return replace(
        cartpole_ppo(),
        env=EnvSettings(task="cartpole", num_envs=16),
        algorithm_name=name,
        algorithm=algorithm,
        plan=plan,
        evaluation=EvaluationSettings(every=every, num_episodes=20, num_envs=10),
        checkpoints=CheckpointSettings(every=save_every),
    )


def cartpole_a2c() -> RunConfig[A2CConfig, OnPolicyPlan]:
    """CartPole with A2C."""
    algorithm = A2CConfig(
        gamma=0.99, lam=1.0, num_return_steps=0, value_loss_coef=0.5, entropy_coef=0.0, learning_rate=2e-3,
        max_grad_norm=0.5, normalize_advantage=False, optimizer_class_name="RMSprop", optimizer_eps=1e-5,
    )  # fmt: skip
    plan = OnPolicyPlan(num_steps_per_env=16, total_steps=500_000)
    return _cartpole("a2c", algorithm, plan, every=100, save_every=200)


def cartpole_reinforce() -> RunConfig[REINFORCEConfig, OnPolicyPlan]:
    """CartPole with REINFORCE and a learned baseline."""
    algorithm = REINFORCEConfig(
        gamma=0.99, baseline=True, value_loss_coef=0.5, entropy_coef=0.0, learning_rate=3e-3, max_grad_norm=0.5,
        normalize_advantage=True, optimizer_class_name="Adam",
    )  # fmt: skip
    plan = OnPolicyPlan(num_steps_per_env=64, total_steps=500_000)
    return _cartpole("reinforce", algorithm, plan, every=25, save_every=50)


def cartpole_impala() -> RunConfig[IMPALAConfig, OnPolicyPlan]:
    """CartPole with IMPALA and a clipped surrogate, on rollouts of 32 steps."""
    algorithm = IMPALAConfig(
        gamma=0.98, lam=0.95, rho_bar=1.0, c_bar=1.0, clip=0.2, num_learning_epochs=4, value_loss_coef=0.5,
        entropy_coef=0.0, learning_rate=2e-3, max_grad_norm=0.5, normalize_advantage=True,
        optimizer_class_name="Adam", optimizer_eps=1e-5,
    )  # fmt: skip
    plan = OnPolicyPlan(num_steps_per_env=32, total_steps=200_000)
    return _cartpole("impala", algorithm, plan, every=20, save_every=100)


def pendulum_ppo() -> RunConfig[PPOConfig, OnPolicyPlan]:
    """Pendulum with PPO: greedy return about -165 after 200,000 steps."""
    algorithm = replace(
        PPO,
        num_learning_epochs=10,
        num_mini_batches=8,
        gamma=0.9,
        max_grad_norm=1.0,
        use_clipped_value_loss=False,
        lr_scheduler_class_name="LinearLR",
        # smaller steps towards the end of the 98 rollouts: the last policy is to be as good as the best one
        lr_scheduler={"start_factor": 1.0, "end_factor": 0.1, "total_iters": 98},
        normalize_values=True,
    )
    return _ppo("pendulum", algorithm, replace(NORMALIZED, init_std=1.0), steps=200_000, goal=-180.0)


def acrobot_ppo() -> RunConfig[PPOConfig, OnPolicyPlan]:
    """Acrobot with PPO: greedy return above -100."""
    algorithm = replace(PPO, lam=0.94, entropy_coef=0.01, learning_rate=5e-4)
    config = _ppo("acrobot", algorithm, NORMALIZED, steps=300_000, goal=-85.0)
    return replace(config, checkpoints=CheckpointSettings(every=20))


def mountain_car_ppo() -> RunConfig[PPOConfig, OnPolicyPlan]:
    """MountainCar with PPO: greedy return above -130; the first goal is found by many envs with rewarded novelty."""
    config = _ppo("mountain_car", replace(PPO, lam=0.98), NORMALIZED, steps=1_000_000, goal=-115.0)
    return replace(config, terms={"rnd": RNDConfig()})


def mountain_car_continuous_ppo() -> RunConfig[PPOConfig, OnPolicyPlan]:
    """MountainCarContinuous with PPO: greedy return above 90, thanks to a wide first exploration."""
    algorithm = replace(
        PPO, num_learning_epochs=10, num_mini_batches=8, learning_rate=3e-4, use_clipped_value_loss=False
    )
    wide = replace(NORMALIZED, init_std=2.0)
    config = _ppo("mountain_car_continuous", algorithm, wide, steps=500_000, goal=90.0)
    return replace(config, terms={"rnd": RNDConfig()})


def _ppo(
    task: str, algorithm: PPOConfig, policy: PolicySettings, *, steps: int, goal: float
) -> RunConfig[PPOConfig, OnPolicyPlan]:
    return RunConfig(
        env=EnvSettings(task=task, num_envs=16),
        policy=policy,
        algorithm_name="ppo",
        algorithm=algorithm,
        plan=OnPolicyPlan(num_steps_per_env=128, total_steps=steps),
        evaluation=EvaluationSettings(every=10, num_episodes=20, num_envs=20),
        stop=StopSettings(metric="evaluate/return_mean", value=goal),
        checkpoints=CheckpointSettings(every=50),
        logging=LoggingSettings(console_every=10),
        num_threads=1,
    )


CLASSIC_CONTROL: Mapping[tuple[str, str], Callable[[], RunConfig[Any, Any]]] = {
    ("cartpole", "ppo"): cartpole_ppo,
    ("cartpole", "a2c"): cartpole_a2c,
    ("cartpole", "reinforce"): cartpole_reinforce,
    ("cartpole", "impala"): cartpole_impala,
    ("pendulum", "ppo"): pendulum_ppo,
    ("acrobot", "ppo"): acrobot_ppo,
    ("mountain_car", "ppo"): mountain_car_ppo,
    ("mountain_car_continuous", "ppo"): mountain_car_continuous_ppo,
}
"""The recipes of this file."""


# -- from replay -------------------------------------------------------------------------------------------------------


def cartpole_dqn() -> RunConfig[DQNConfig, OffPolicyPlan]:
    """CartPole with double DQN and three-step returns: 475 or more after about 25,000 steps."""
    return RunConfig(
        env=EnvSettings(task="cartpole", num_envs=4),
        policy=PolicySettings(
            normalize_obs=False, actor_hidden_dims=(120, 84), critic_hidden_dims=(120, 84), activation="relu"
        ),
        algorithm_name="dqn",
        algorithm=DQNConfig(
            gamma=0.99,
            n_step=3,
            double=True,
            target_every=100,
            tau=1.0,
            learning_rate=5e-4,
            max_grad_norm=10.0,
            epsilon=Ramp(start=1.0, end=0.05, num_steps=10_000),
        ),
        plan=OffPolicyPlan(
            num_steps_per_env=250,
            train_every=1,
            num_updates_per_round=2,
            batch_size=128,
            learning_starts=1_000,
            buffer_size=100_000,
            total_steps=80_000,
        ),
        evaluation=EvaluationSettings(every=4, num_episodes=20, num_envs=10),
        stop=StopSettings(metric="evaluate/return_mean", value=475.0),
        checkpoints=CheckpointSettings(every=10),
        logging=LoggingSettings(console_every=4),
        num_threads=1,
    )


def pendulum_sac() -> RunConfig[SACConfig, OffPolicyPlan]:
    """Pendulum with SAC: swings up after a few thousand steps."""
    algorithm = SACConfig(
        gamma=0.99,
        n_step=1,
        tau=0.005,
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        temperature_learning_rate=1e-3,
        init_temperature=1.0,
    )
    return _pendulum("sac", algorithm, "squashed_gaussian")


def pendulum_td3() -> RunConfig[TD3Config, OffPolicyPlan]:
    """Pendulum with TD3: swings up after a few thousand steps."""
    algorithm = TD3Config(
        gamma=0.99,
        n_step=1,
        tau=0.005,
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        actor_every=2,
        exploration_std=0.1,
        smoothing_std=0.2,
        smoothing_clip=0.5,
    )
    return _pendulum("td3", algorithm, "deterministic")


def _pendulum(name: str, algorithm: Any, head: Any) -> RunConfig[Any, OffPolicyPlan]:
    return RunConfig(
        env=EnvSettings(task="pendulum", num_envs=1),
        policy=PolicySettings(
            normalize_obs=False,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
            activation="relu",
            head=head,
        ),
        algorithm_name=name,
        algorithm=algorithm,
        plan=OffPolicyPlan(
            num_steps_per_env=250,
            train_every=1,
            num_updates_per_round=1,
            batch_size=256,
            learning_starts=1_000,
            buffer_size=50_000,
            total_steps=20_000,
        ),
        evaluation=EvaluationSettings(every=4, num_episodes=20, num_envs=20),
        stop=StopSettings(metric="evaluate/return_mean", value=-180.0),
        checkpoints=CheckpointSettings(every=10),
        logging=LoggingSettings(console_every=4),
        num_threads=1,
    )


CLASSIC_CONTROL_REPLAY: Mapping[tuple[str, str], Callable[[], RunConfig[Any, Any]]] = {
    ("cartpole", "dqn"): cartpole_dqn,
    ("pendulum", "sac"): pendulum_sac,
    ("pendulum", "td3"): pendulum_td3,
}
"""The recipes from replay."""

# -- from a dataset ----------------------------------------------------------------------------------------------------


RATE = 1e-3
GAMMA, TAU = 0.95, 0.02
"""A swing-up takes a second or two; with a longer horizon or slower targets, values need far more gradient steps."""


def pendulum_bc() -> RunConfig[BehaviourCloningConfig, OfflinePlan]:
    """Pendulum with BC."""
    return _run("pendulum", "bc", BehaviourCloningConfig(learning_rate=RATE), "squashed_gaussian")


def pendulum_td3_bc() -> RunConfig[TD3BCConfig, OfflinePlan]:
    """Pendulum with TD3+BC, which stays near the data."""
    config = TD3BCConfig(gamma=GAMMA, tau=TAU, actor_learning_rate=RATE, critic_learning_rate=RATE)
    return _run("pendulum", "td3_bc", config, "deterministic")


def pendulum_cql() -> RunConfig[CQLConfig, OfflinePlan]:
    """Pendulum with CQL: SAC whose critics are pessimistic for actions outside the data."""
    config = CQLConfig(
        gamma=GAMMA,
        tau=TAU,
        penalty=5.0,
        actor_learning_rate=RATE,
        critic_learning_rate=RATE,
        temperature_learning_rate=RATE,
    )
    return _run("pendulum", "cql", config, "squashed_gaussian")


def pendulum_iql() -> RunConfig[IQLConfig, OfflinePlan]:
    """Pendulum with IQL, which never evaluates an action outside the data."""
    # rewards of this task are large, and so are advantages and their errors: a low temperature
    config = IQLConfig(gamma=GAMMA, tau=TAU, learning_rate=RATE, expectile=0.9, temperature=0.1)
    return _run("pendulum", "iql", config, "squashed_gaussian")


def cartpole_bc() -> RunConfig[BehaviourCloningConfig, OfflinePlan]:
    """CartPole with BC."""
    return _run("cartpole", "bc", BehaviourCloningConfig(learning_rate=RATE))


def cartpole_iql() -> RunConfig[IQLConfig, OfflinePlan]:
    """CartPole with IQL, which never evaluates a choice outside the data."""
    return _run("cartpole", "iql", IQLConfig(gamma=0.99, tau=TAU, learning_rate=RATE))


def cartpole_bcq() -> RunConfig[BCQConfig, OfflinePlan]:
    """CartPole with BCQ: Q-learning among the data's likely choices."""
    return _run("cartpole", "bcq", BCQConfig(gamma=0.99, n_step=3, target_every=1, tau=TAU, learning_rate=RATE))


def _run(task: str, name: str, algorithm: Any, head: Any = "gaussian") -> RunConfig[Any, OfflinePlan]:
    policy = PolicySettings(actor_hidden_dims=(64, 64), critic_hidden_dims=(64, 64), activation="relu", head=head)
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
