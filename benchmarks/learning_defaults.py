"""What every algorithm has to reach with its own defaults: a row of the defaults' table each, see learning.py.

    env of the row ─▶ build: networks, `Config()`, plan, all without a setting ─▶ train(), to the budget at the latest
                                                                                  └ greedy episodes every so often

A row gives what cannot be left out and nothing else: the task, how many envs, the head an algorithm wants, bounds of
the return for those that have atoms, data for those that learn from data. Mode and device are those that the table
names, and decide how long a row takes. No other setting is given anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from learning_data import (
    CARTPOLE,
    PENDULUM,
    cartpole_steps,
    dataset_folder,
    expert_windows,
    pendulum_teacher,
)

from striderl.algorithms import (
    A2C,
    APPO,
    ATPPO,
    CQL,
    DQN,
    IMPALA,
    IQL,
    PPO,
    R2D2,
    REINFORCE,
    SAC,
    TD3,
    TD3BC,
    TPPO,
    AdversarialReward,
    APPOConfig,
    Atoms,
    ATPPOConfig,
    BCQConfig,
    BehaviourCloning,
    BehaviourCloningConfig,
    Conservative,
    CQLConfig,
    CrossQConfig,
    DAgger,
    DiscreteSACConfig,
    Distill,
    DQNConfig,
    EstimatorPPO,
    EstimatorTPPO,
    Imitated,
    ImplicitQuantiles,
    IQLConfig,
    Means,
    MotionPriorConfig,
    Quantiles,
    R2D2Config,
    RecurrentDQN,
    RecurrentSAC,
    SACConfig,
    StateAction,
    TD3BCConfig,
    TD3Config,
    discrete_sac,
    expert_rows,
    q_policy,
)
from striderl.algorithms.actor_critic.crossq import crossq
from striderl.algorithms.actor_critic.fast_td3 import fast_sac, fast_td3
from striderl.algorithms.actor_critic.sac import redq, tqc
from striderl.algorithms.actor_critic.td3 import ddpg, ddpg_config
from striderl.algorithms.value_based.distributional import rainbow, rainbow_config
from striderl.collect import Collector, CollectorConfig
from striderl.data.actions import DiscreteSpec
from striderl.data.arena import Placement
from striderl.datasets.offline import load_dataset
from striderl.envs.vec_env import VecEnv
from striderl.policies import ActorConfig, ActorPolicy, Policy, PolicyConfig, QFunction, QFunctionConfig
from striderl.policies.estimate import Estimate
from striderl.policies.stages import Remember
from striderl.policies.value_functions import ValueFunction
from striderl.training import OfflinePlan, OffPolicyPlan, OnPolicyPlan
from striderl.training.plans import Plan

LOW, HIGH = 0.0, 100.0
"""Bounds of CartPole's discounted return: 1 a step, at most 1 / (1 - 0.99)."""


class Where(NamedTuple):
    """How gradient steps are run, and on what: it decides how long a row takes, not what is learned."""

    mode: str = "eager"
    device: str = "cpu"
    seed: int = 0


class Parts(NamedTuple):
    """What a trainer is made of."""

    algorithm: Any
    source: Any
    """A collector or a dataset."""
    plan: Plan


Build = Callable[[VecEnv, Where, int], Parts]
"""(env, where, budget) → parts."""


@dataclass(frozen=True, kw_only=True)
class DefaultRow:
    """One algorithm with its defaults on one task."""

    title: str
    """What the row is called."""
    covers: tuple[str, ...]
    """The public names of `striderl.algorithms` that it shows."""
    task: str = CARTPOLE
    num_envs: int = 1
    steps: int
    """The budget in env steps; for learners from datasets, in gradient steps."""
    target: float
    build: Build
    given: str = ""
    """What is given beside task and envs, for the table."""
    data: str = ""
    """The task whose expert or dataset is needed; see learning_data.py."""

    @property
    def stop(self) -> float:
        """An evaluation this good ends the training: better than the target, which other episodes must then reach."""
        return 490.0 if self.task.startswith(CARTPOLE) else self.target + 20.0

    def reached(self, value: float) -> bool:
        """Tell whether a value is as good as the target."""
        return value >= self.target

    def text(self, value: float) -> str:
        """Return a value as it is printed."""
        return f"{value:,.0f}".replace("-", "−")


# -- on-policy ---------------------------------------------------------------------------------------------------------


def _collector(env: VecEnv, algorithm: Any, where: Where) -> Collector:
    return Collector(env, algorithm.actor(), CollectorConfig(seed=where.seed))


def _on_policy(make: Callable[[VecEnv, Where], Any]) -> Build:
    def build(env: VecEnv, where: Where, steps: int) -> Parts:
        algorithm = make(env, where)
        return Parts(algorithm, _collector(env, algorithm, where), OnPolicyPlan(total_steps=steps))

    return build


def _policy(env: VecEnv, where: Where, config: PolicyConfig | None = None) -> Policy:
    return Policy(env.obs_spec, env.action_spec, config).to(where.device)


def _estimating(env: VecEnv, where: Where) -> Policy:
    """Return a policy that also predicts a speed, which it is shown as well: nothing here is hidden."""
    estimate = Estimate(obs_components=("obs",), target_components=("speed",))
    return _policy(env, where, PolicyConfig(actor=(estimate,)))


def _appo(env: VecEnv, where: Where) -> PPO:
    config = APPOConfig(prior=MotionPriorConfig(components=("obs",)))
    return APPO(_policy(env, where), expert_windows(CARTPOLE, where.device), config, mode=where.mode)


def _atppo(env: VecEnv, where: Where) -> PPO:
    config = ATPPOConfig(prior=MotionPriorConfig(components=("obs",)))
    expert = expert_windows(PENDULUM, where.device)
    return ATPPO(_policy(env, where), pendulum_teacher(where.device), expert, config, mode=where.mode)


def _gail(env: VecEnv, where: Where) -> PPO:
    features = StateAction(env.obs_spec, env.action_spec)
    term = AdversarialReward(features, expert_rows(cartpole_steps(), features), device=where.device)
    return PPO(_policy(env, where), terms=[term], mode=where.mode)


def _dagger(env: VecEnv, where: Where) -> DAgger:
    return DAgger(_policy(env, where), terms=[Distill(pendulum_teacher(where.device))], mode=where.mode)


# -- from replay -------------------------------------------------------------------------------------------------------


def _off_policy(make: Callable[[VecEnv, Where], Any]) -> Build:
    """Return a row with the default plan, as the algorithm fills it in: batches of sequences are smaller."""

    def build(env: VecEnv, where: Where, steps: int) -> Parts:
        with torch.device(where.device):  # presets build their networks themselves
            algorithm = make(env, where)
        own = algorithm.loop_settings(env.num_envs) if isinstance(algorithm, (RecurrentDQN, RecurrentSAC)) else {}
        return Parts(algorithm, _collector(env, algorithm, where), OffPolicyPlan(total_steps=steps, **own))

    return build


def _fast(make: Callable[..., tuple[Any, Any]]) -> Build:
    def build(env: VecEnv, where: Where, steps: int) -> Parts:
        # what these two run is 'auto' already; returns of the pendulum, discounted by 0.97, are above -16 / 0.03
        algorithm, settings = make(
            env.obs_spec, env.action_spec, num_envs=env.num_envs, low=-550.0, high=0.0, device=where.device
        )
        return Parts(
            algorithm, _collector(env, algorithm, where), OffPolicyPlan(**settings._asdict(), total_steps=steps)
        )

    return build


def _q_learner(make_kind: Callable[[], Any]) -> Callable[[VecEnv, Where], DQN]:
    def make(env: VecEnv, where: Where) -> DQN:
        kind = make_kind()
        network = q_policy(env.obs_spec, env.action_spec, kind=kind).to(where.device)
        return DQN(network, DQNConfig(mode=where.mode), kind)

    return make


def _rainbow(env: VecEnv, where: Where) -> DQN:
    config = replace(rainbow_config(), mode=where.mode)
    return rainbow(env.obs_spec, env.action_spec, low=LOW, high=HIGH, config=config)


def _recurrent_dqn(env: VecEnv, where: Where) -> RecurrentDQN:
    kind = Means(rescale=True)
    network = q_policy(env.obs_spec, env.action_spec, ActorConfig(stages=(Remember(),)), kind).to(where.device)
    return RecurrentDQN(network, DQNConfig(mode=where.mode), kind)


def _r2d2(env: VecEnv, where: Where) -> R2D2:
    config, kind = R2D2Config(mode=where.mode), Means(rescale=True)
    network = q_policy(env.obs_spec, env.action_spec, ActorConfig(stages=(Remember(),)), kind).to(where.device)
    return R2D2(network, config, kind, sequence=config.sequence)


def _actor(env: VecEnv, where: Where, head: str, *stages: Any) -> ActorPolicy:
    return ActorPolicy(env.obs_spec, env.action_spec, ActorConfig(head=head, stages=stages)).to(where.device)


def _critic(env: VecEnv, where: Where, *stages: Any) -> QFunction:
    return QFunction(env.obs_spec, env.action_spec, QFunctionConfig(stages=stages)).to(where.device)


def _sac(env: VecEnv, where: Where) -> SAC:
    return SAC(_actor(env, where, "squashed_gaussian"), _critic(env, where), SACConfig(mode=where.mode))


def _td3(env: VecEnv, where: Where) -> TD3:
    return TD3(_actor(env, where, "deterministic"), _critic(env, where), TD3Config(mode=where.mode))


def _recurrent_sac(env: VecEnv, where: Where) -> RecurrentSAC:
    policy = _actor(env, where, "squashed_gaussian", Remember())
    return RecurrentSAC(policy, _critic(env, where, Remember()), SACConfig(mode=where.mode))


# -- from datasets -----------------------------------------------------------------------------------------------------


def _offline(make: Callable[[VecEnv, Where], Any]) -> Build:
    def build(env: VecEnv, where: Where, steps: int) -> Parts:
        algorithm = make(env, where)
        folder: Path = dataset_folder(_task_of(env))
        replay = load_dataset(
            folder,
            env.obs_spec,
            env.action_spec,
            sampler=algorithm.sampler(where.seed),
            view=algorithm.view(),
            placement=Placement(device=where.device),
        )
        plan = OfflinePlan()
        return Parts(algorithm, replay, replace(plan, total_iterations=steps // plan.num_updates_per_iteration))

    return build


def _task_of(env: VecEnv) -> str:
    return CARTPOLE if isinstance(env.action_spec, DiscreteSpec) else PENDULUM


def _bc(env: VecEnv, where: Where) -> BehaviourCloning:
    return BehaviourCloning(_actor(env, where, "squashed_gaussian"), BehaviourCloningConfig(mode=where.mode))


def _td3_bc(env: VecEnv, where: Where) -> TD3BC:
    return TD3BC(_actor(env, where, "deterministic"), _critic(env, where), TD3BCConfig(mode=where.mode))


def _cql(env: VecEnv, where: Where) -> CQL:
    return CQL(_actor(env, where, "squashed_gaussian"), _critic(env, where), CQLConfig(mode=where.mode))


def _iql(env: VecEnv, where: Where) -> IQL:
    value = ValueFunction(env.obs_spec).to(where.device)
    return IQL(_actor(env, where, "squashed_gaussian"), _critic(env, where), value, IQLConfig(mode=where.mode))


def _bcq(env: VecEnv, where: Where) -> DQN:
    kind = Imitated()
    network = q_policy(env.obs_spec, env.action_spec, kind=kind).to(where.device)
    return DQN(network, BCQConfig(mode=where.mode), kind)


# -- the rows ----------------------------------------------------------------------------------------------------------


def _balance(title: str, names: str, build: Build, steps: int, **more: Any) -> DefaultRow:
    """Return a row of CartPole."""
    return DefaultRow(
        title=title,
        covers=tuple(names.split()),
        build=build,
        steps=steps,
        **{"target": 475.0, "task": CARTPOLE, **more},
    )


def _swing_up(title: str, names: str, build: Build, steps: int = 20_000, **more: Any) -> DefaultRow:
    """Return a row of Pendulum."""
    return DefaultRow(
        title=title,
        covers=tuple(names.split()),
        build=build,
        steps=steps,
        **{"target": -200.0, "task": PENDULUM, **more},
    )


EIGHT = {"num_envs": 8}
ATOMS = {"given": f"returns from {LOW:g} to {HIGH:g}"}
RETURNS = {"given": "returns from −550 to 0", "num_envs": 128}
CLONED = {"given": "expert data", "data": CARTPOLE}
SWUNG = {"given": "expert data", "data": PENDULUM}
TAUGHT = {"given": "SAC as the teacher", "data": PENDULUM, **EIGHT}
SPEED = "an estimator of a speed that it is shown"

ROWS: Mapping[str, DefaultRow] = {
    "ppo": _balance("PPO", "PPO", _on_policy(lambda e, w: PPO(_policy(e, w), mode=w.mode)), 100_000, **EIGHT),
    "a2c": _balance("A2C", "A2C", _on_policy(lambda e, w: A2C(_policy(e, w), mode=w.mode)), 200_000, **EIGHT),
    "impala": _balance(
        "IMPALA", "IMPALA", _on_policy(lambda e, w: IMPALA(_policy(e, w), mode=w.mode)), 200_000, **EIGHT
    ),
    "reinforce": _balance(
        "REINFORCE", "REINFORCE", _on_policy(lambda e, w: REINFORCE(_policy(e, w), mode=w.mode)), 200_000, **EIGHT
    ),
    "estimator_ppo": _balance(
        "EstimatorPPO",
        "EstimatorPPO",
        _on_policy(lambda e, w: EstimatorPPO(_estimating(e, w), mode=w.mode)),
        100_000,
        **{**EIGHT, "task": "cartpole+speed", "given": SPEED},
    ),
    "appo": _balance(
        "APPO", "APPO", _on_policy(_appo), 100_000, **EIGHT, given="motions of a controller written by hand"
    ),
    "gail": _balance(
        "GAIL (`AdversarialReward` on PPO)",
        "AdversarialReward GAIL",
        _on_policy(_gail),
        100_000,
        **EIGHT,
        given="2,000 steps of a controller written by hand",
    ),
    "tppo": _swing_up(
        "TPPO",
        "TPPO",
        _on_policy(lambda e, w: TPPO(_policy(e, w), pendulum_teacher(w.device), mode=w.mode)),
        100_000,
        **TAUGHT,
    ),
    "estimator_tppo": _swing_up(
        "EstimatorTPPO",
        "EstimatorTPPO",
        _on_policy(lambda e, w: EstimatorTPPO(_estimating(e, w), pendulum_teacher(w.device), mode=w.mode)),
        100_000,
        **{**TAUGHT, "task": "pendulum+speed", "given": f"SAC as the teacher, {SPEED}"},
    ),
    "atppo": _swing_up(
        "ATPPO", "ATPPO", _on_policy(_atppo), 100_000, **{**TAUGHT, "given": "SAC as the teacher, motions of SAC"}
    ),
    "dagger": _swing_up("DAgger", "DAgger", _on_policy(_dagger), 100_000, **TAUGHT),
    "dqn": _balance("DQN", "DQN", _off_policy(_q_learner(Means)), 50_000),
    "c51": _balance("C51", "Atoms C51", _off_policy(_q_learner(lambda: Atoms(low=LOW, high=HIGH))), 50_000, **ATOMS),
    "qr_dqn": _balance("QR-DQN", "Quantiles QRDQN", _off_policy(_q_learner(Quantiles)), 50_000),
    "iqn": _balance("IQN", "ImplicitQuantiles IQN", _off_policy(_q_learner(ImplicitQuantiles)), 50_000),
    "rainbow": _balance("Rainbow", "rainbow Rainbow", _off_policy(_rainbow), 50_000, **ATOMS),
    "recurrent_dqn": _balance(
        "recurrent DQN", "RecurrentDQN", _off_policy(_recurrent_dqn), 50_000, given="an LSTM, rescaled values"
    ),
    "r2d2": _balance("R2D2", "R2D2", _off_policy(_r2d2), 50_000, given="an LSTM"),
    "discrete_sac": _balance(
        "discrete SAC",
        "DiscreteSAC discrete_sac",
        _off_policy(lambda e, w: discrete_sac(e.obs_spec, e.action_spec, config=DiscreteSACConfig(mode=w.mode))),
        50_000,
    ),
    "ddpg": _swing_up(
        "DDPG",
        "ddpg DDPG",
        _off_policy(lambda e, w: ddpg(e.obs_spec, e.action_spec, config=replace(ddpg_config(), mode=w.mode))),
    ),
    "td3": _swing_up("TD3", "TD3", _off_policy(_td3)),
    "sac": _swing_up("SAC", "SAC", _off_policy(_sac)),
    "redq": _swing_up(
        "REDQ", "redq REDQ", _off_policy(lambda e, w: redq(e.obs_spec, e.action_spec, config=SACConfig(mode=w.mode)))
    ),
    "tqc": _swing_up(
        "TQC", "tqc TQC", _off_policy(lambda e, w: tqc(e.obs_spec, e.action_spec, config=SACConfig(mode=w.mode)))
    ),
    "crossq": _swing_up(
        "CrossQ",
        "CrossQ crossq",
        _off_policy(lambda e, w: crossq(e.obs_spec, e.action_spec, config=CrossQConfig(mode=w.mode))),
    ),
    "fast_td3": _swing_up("FastTD3", "fast_td3 FastTD3", _fast(fast_td3), 200_000, **RETURNS),
    "fast_sac": _swing_up("FastSAC", "fast_sac FastSAC", _fast(fast_sac), 200_000, **RETURNS),
    "recurrent_sac": _swing_up("recurrent SAC", "RecurrentSAC", _off_policy(_recurrent_sac), given="LSTMs"),
    "bc": _swing_up("behaviour cloning", "BehaviourCloning BC", _offline(_bc), **SWUNG),
    "td3_bc": _swing_up("TD3+BC", "TD3BC", _offline(_td3_bc), **SWUNG),
    "cql": _swing_up("CQL", "CQL", _offline(_cql), **SWUNG),
    "cql_choices": _balance("CQL for choices", "Conservative", _offline(_q_learner(Conservative)), 20_000, **CLONED),
    "iql": _swing_up("IQL", "IQL", _offline(_iql), **SWUNG),
    "bcq": _balance("BCQ", "Imitated BCQ", _offline(_bcq), 20_000, **CLONED),
}
"""The rows, in the order of the table."""
