"""Every learner from replay, small, in one table; and what the contract tests do with each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.actor_critic.critic_kinds import CategoricalReturns
from striderl.algorithms.actor_critic.crossq import CrossQConfig, crossq
from striderl.algorithms.actor_critic.recurrent_sac import RecurrentSAC
from striderl.algorithms.actor_critic.sac import SAC, SACConfig, redq, tqc
from striderl.algorithms.actor_critic.sac_discrete import DiscreteSACConfig, discrete_sac
from striderl.algorithms.actor_critic.td3 import TD3, TD3Config, ddpg
from striderl.algorithms.offline.bcq import Imitated
from striderl.algorithms.offline.cql import CQL, Conservative, CQLConfig
from striderl.algorithms.offline.td3_bc import TD3BC, TD3BCConfig
from striderl.algorithms.sequence_learning import SequenceConfig
from striderl.algorithms.value_based.distributional import Atoms, ImplicitQuantiles, Quantiles, rainbow
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, Means, QKind, q_policy
from striderl.algorithms.value_based.recurrent_dqn import RecurrentDQN
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.actions import BoxSpec
from striderl.envs.toy.chains import ProbeConfig, Terminator, TimeLimit
from striderl.envs.vec_env import VecEnv
from striderl.ops.ramps import constant
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.stages import Remember
from striderl.policies.value_functions import QFunction, QFunctionConfig
from striderl.training.loops.off_policy import ReplayLearner
from striderl.training.protocols import replay_for

HIDDEN = (24,)
RATE = 1e-2


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a test wants to differ."""

    gamma: float = 0.5
    low: float = 0.0
    high: float = 4.0
    prioritized: bool = False
    mode: str = "eager"


def _dqn_config(s: Setting, **changes: Any) -> DQNConfig:
    settings: dict[str, Any] = {
        "gamma": s.gamma,
        "learning_rate": RATE,
        "target_every": 5,
        "epsilon": constant(0.1),
        "prioritized": s.prioritized,
        "mode": s.mode,
    }
    return DQNConfig(**{**settings, **changes})


def _dqn(make_kind: Callable[[Setting], QKind], **changes: Any) -> Callable[[VecEnv, Setting], DQN]:
    def build(env: VecEnv, s: Setting) -> DQN:
        kind = make_kind(s)
        network = q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=HIDDEN), kind)
        return DQN(network, _dqn_config(s, **changes), kind)

    return build


def _rainbow(env: VecEnv, s: Setting) -> DQN:
    network, config = ActorConfig(hidden_dims=HIDDEN), _dqn_config(s, prioritized=True, n_step=3)
    return rainbow(env.obs_spec, env.action_spec, low=s.low, high=s.high, network=network, config=config)


SEQUENCE = SequenceConfig(length=4, burn_in=2, state_every=2)


def _recurrent_dqn(env: VecEnv, s: Setting) -> RecurrentDQN:
    kind = Means(rescale=True)
    stages = (Remember(type="gru", hidden_size=16),)
    network = q_policy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=HIDDEN, stages=stages), kind)
    return RecurrentDQN(network, _dqn_config(s, n_step=2), kind, sequence=SEQUENCE)


def _discrete_sac(env: VecEnv, s: Setting) -> Any:
    config = DiscreteSACConfig(
        gamma=s.gamma,
        tau=0.2,
        actor_learning_rate=RATE,
        critic_learning_rate=RATE,
        init_temperature=0.01,
        learn_temperature=False,
        prioritized=s.prioritized,
        mode=s.mode,
    )
    actor, critic = ActorConfig(hidden_dims=HIDDEN), QFunctionConfig(hidden_dims=HIDDEN)
    return discrete_sac(env.obs_spec, env.action_spec, actor=actor, critic=critic, config=config)


def _actor(head: str, *stages: Any) -> ActorConfig:
    return ActorConfig(hidden_dims=HIDDEN, head=head, stages=stages)


def _td3_config(s: Setting) -> TD3Config:
    rates = {"actor_learning_rate": 3e-3, "critic_learning_rate": RATE}
    return TD3Config(gamma=s.gamma, tau=0.2, prioritized=s.prioritized, mode=s.mode, **rates)


def _td3(env: VecEnv, s: Setting) -> TD3:
    policy = ActorPolicy(env.obs_spec, env.action_spec, _actor("deterministic"))
    return TD3(policy, QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=HIDDEN)), _td3_config(s))


def _fast_td3(env: VecEnv, s: Setting) -> TD3:
    policy = ActorPolicy(env.obs_spec, env.action_spec, _actor("deterministic"))
    critic = QFunctionConfig(hidden_dims=HIDDEN, num_outputs=31, layer_norm=True)
    kind = CategoricalReturns(low=s.low, high=s.high, num_atoms=31)
    return TD3(policy, QFunction(env.obs_spec, env.action_spec, critic), _td3_config(s), kind=kind)


def _ddpg(env: VecEnv, s: Setting) -> TD3:
    rates = {"actor_learning_rate": 3e-3, "critic_learning_rate": RATE}
    config = TD3Config(
        gamma=s.gamma, tau=0.2, smoothing_std=0.0, actor_every=1, prioritized=s.prioritized, mode=s.mode, **rates
    )
    critic = QFunctionConfig(hidden_dims=HIDDEN)
    return ddpg(env.obs_spec, env.action_spec, actor=_actor("deterministic"), critic=critic, config=config)


def _sac_config(s: Setting, **changes: Any) -> SACConfig:
    settings: dict[str, Any] = {
        "gamma": s.gamma,
        "tau": 0.2,
        "actor_learning_rate": 5e-3,
        "critic_learning_rate": RATE,
        "init_temperature": 0.005,
        "learn_temperature": False,
        "prioritized": s.prioritized,
        "mode": s.mode,
    }
    return SACConfig(**{**settings, **changes})


def _sac(env: VecEnv, s: Setting) -> SAC:
    policy = ActorPolicy(env.obs_spec, env.action_spec, _actor("squashed_gaussian"))
    return SAC(policy, QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=HIDDEN)), _sac_config(s))


def _fast_sac(env: VecEnv, s: Setting) -> SAC:
    policy = ActorPolicy(env.obs_spec, env.action_spec, _actor("squashed_gaussian"))
    critic = QFunctionConfig(hidden_dims=HIDDEN, num_outputs=31, layer_norm=True)
    kind = CategoricalReturns(low=s.low, high=s.high, num_atoms=31)
    return SAC(policy, QFunction(env.obs_spec, env.action_spec, critic), _sac_config(s), kind)


def _td3_bc(env: VecEnv, s: Setting) -> TD3BC:
    policy = ActorPolicy(env.obs_spec, env.action_spec, _actor("deterministic"))
    critic = QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=HIDDEN))
    return TD3BC(policy, critic, TD3BCConfig(**asdict(_td3_config(s)), bc_alpha=10.0))


def _cql(env: VecEnv, s: Setting) -> CQL:
    policy = ActorPolicy(env.obs_spec, env.action_spec, _actor("squashed_gaussian"))
    critic = QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=HIDDEN))
    return CQL(policy, critic, CQLConfig(**asdict(_sac_config(s)), penalty=0.01, num_actions=2))


def _redq(env: VecEnv, s: Setting) -> SAC:
    parts = {"actor": _actor("squashed_gaussian"), "critic": QFunctionConfig(hidden_dims=HIDDEN)}
    return redq(env.obs_spec, env.action_spec, num_critics=4, config=_sac_config(s), **parts)


def _tqc(env: VecEnv, s: Setting) -> SAC:
    parts = {"actor": _actor("squashed_gaussian"), "critic": QFunctionConfig(hidden_dims=HIDDEN)}
    return tqc(env.obs_spec, env.action_spec, num_quantiles=8, num_dropped=1, config=_sac_config(s), **parts)


def _crossq(env: VecEnv, s: Setting) -> Any:
    config = CrossQConfig(
        gamma=s.gamma,
        learning_rate=5e-3,
        actor_every=1,
        init_temperature=0.005,
        learn_temperature=False,
        prioritized=s.prioritized,
        mode=s.mode,
    )
    parts = {"actor": _actor("squashed_gaussian"), "critic": QFunctionConfig(hidden_dims=HIDDEN)}
    return crossq(env.obs_spec, env.action_spec, config=config, **parts)


def _recurrent_sac(env: VecEnv, s: Setting) -> RecurrentSAC:
    memory = Remember(type="gru", hidden_size=16)
    policy = ActorPolicy(env.obs_spec, env.action_spec, _actor("squashed_gaussian", memory))
    critic = QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=HIDDEN, stages=(memory,)))
    return RecurrentSAC(policy, critic, _sac_config(s), sequence=SEQUENCE)


CHOICES: dict[str, Callable[[VecEnv, Setting], Any]] = {
    "dqn": _dqn(lambda s: Means(), double=False),
    "double dqn": _dqn(lambda s: Means(), double=True),
    "dueling dqn": _dqn(lambda s: Means(dueling=True)),
    "noisy dqn": _dqn(lambda s: Means(noisy=True), learning_rate=3e-3),
    "n-step dqn": _dqn(lambda s: Means(), n_step=3),
    "prioritized dqn": _dqn(lambda s: Means(), prioritized=True),
    "rescaled dqn": _dqn(lambda s: Means(rescale=True)),
    "c51": _dqn(lambda s: Atoms(low=s.low, high=s.high, num_atoms=31)),
    "qr-dqn": _dqn(lambda s: Quantiles(num_quantiles=8)),
    "iqn": _dqn(lambda s: ImplicitQuantiles(num_quantiles=8, embedding_size=16)),
    "rainbow": _rainbow,
    "bcq": _dqn(lambda s: Imitated(threshold=0.1)),
    "conservative dqn": _dqn(lambda s: Conservative(penalty=0.01)),
    "discrete sac": _discrete_sac,
    "recurrent dqn": _recurrent_dqn,
}
"""Learners of one discrete action."""

NUMBERS: dict[str, Callable[[VecEnv, Setting], Any]] = {
    "ddpg": _ddpg,
    "td3": _td3,
    "fast td3": _fast_td3,
    "sac": _sac,
    "fast sac": _fast_sac,
    "td3+bc": _td3_bc,
    "cql": _cql,
    "redq": _redq,
    "tqc": _tqc,
    "crossq": _crossq,
    "recurrent sac": _recurrent_sac,
}
"""Learners of real-valued actions."""

ALL = {**CHOICES, **NUMBERS}


def build(name: str, env: VecEnv, setting: Setting | None = None, weights: int = 0) -> Any:
    """Build a learner with weights of its own."""
    torch.manual_seed(weights)
    return ALL[name](env, setting or Setting())


def clock(name: str, kind: type[TimeLimit] | type[Terminator], num_steps: int, num_envs: int = 4) -> VecEnv:
    """Return an env that pays 1 in every step, with actions of the learner's kind; what is done changes nothing."""
    env = kind(num_envs, config=ProbeConfig(num_steps=num_steps))
    if name in NUMBERS:
        env.action_spec = BoxSpec(shape=(1,), low=-1.0, high=1.0)
    return env


def learner_of(algorithm: Any, env: VecEnv, *, num_steps: int = 256, batch_size: int = 32) -> ReplayLearner:
    """Fill a replay at random and return what takes gradient steps on it."""
    collector = Collector(env, algorithm.actor(), CollectorConfig(seed=0))
    replay = replay_for(collector, algorithm, 2 * num_steps, 0)
    algorithm.explore(0, random=True)
    collector.collect(n_step=num_steps, storage=replay)
    return ReplayLearner(algorithm, replay, batch_size, 0)


def learned(algorithm: Any, env: VecEnv, updates: int, *, num_steps: int = 256) -> Any:
    """Let the algorithm learn from random experience, and return it."""
    learner = learner_of(algorithm, env, num_steps=num_steps)
    for number in range(updates):
        learner.step(number)
    learner.finish()
    return algorithm


@torch.no_grad()
def value_of(algorithm: Any, obs: Mapping[str, Tensor]) -> Tensor:
    """Return the value [B] of the greedy action at the start of an episode, in the units of returns."""
    policy = algorithm.policy
    count = next(iter(obs.values())).shape[0]
    distribution, _, _ = policy.act(obs, policy.initial_state(count), {})
    if hasattr(distribution, "values"):
        values = distribution.values.amax(dim=-1)
        return rescaled_back(values) if getattr(algorithm.kind, "rescale", False) else values
    if not hasattr(algorithm.critic, "value"):
        return algorithm.critic(obs).mean(dim=0).gather(-1, distribution.mode().unsqueeze(-1)).squeeze(-1)
    critic = algorithm.critic
    memory = {name: torch.zeros(count, *spec.shape) for name, spec in critic.state_spec().items()}
    members = critic.value(critic.features(obs, memory)[0], distribution.mode())
    kind = getattr(algorithm, "kind", None)
    return (members if kind is None else kind.means(members)).mean(dim=0)


def rescaled_back(value: Tensor) -> Tensor:
    """Undo h(x) by bisection: slower than the closed form that is tested with it, and obviously right."""
    low, high = torch.full_like(value, -1e4), torch.full_like(value, 1e4)
    for _ in range(60):
        middle = (low + high) / 2.0
        scaled = middle.sign() * ((middle.abs() + 1.0).sqrt() - 1.0) + 1e-3 * middle
        low, high = torch.where(scaled < value, middle, low), torch.where(scaled < value, high, middle)
    return (low + high) / 2.0
