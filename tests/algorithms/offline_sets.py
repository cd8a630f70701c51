"""Small datasets with known answers, and every offline learner for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.offline.bcq import Imitated
from striderl.algorithms.offline.behaviour_cloning import BehaviourCloning, BehaviourCloningConfig
from striderl.algorithms.offline.cql import CQL, Conservative, CQLConfig
from striderl.algorithms.offline.iql import IQL, IQLConfig, members_of
from striderl.algorithms.offline.td3_bc import TD3BC, TD3BCConfig
from striderl.algorithms.value_based.dqn import DQN, DQNConfig, q_policy
from striderl.data.actions import ActionSpec, BoxSpec, DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.datasets.offline import replay_of
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.value_functions import ChoiceQFunction, QFunction, QFunctionConfig, ValueFunction
from striderl.storage.replay.replay import Replay
from striderl.training.protocols import UpdateNoise

BOX, CHOICES = BoxSpec(shape=(1,), low=-1.0, high=1.0), DiscreteSpec(n=2)
CONTINUOUS = ("bc", "bc mse", "td3_bc", "cql", "iql")
DISCRETE = ("bc choices", "bcq", "cql choices", "iql choices")
EVERY = (*CONTINUOUS, *DISCRETE)
VALUED = tuple(name for name in EVERY if not name.startswith("bc ") and name != "bc")


def spec_of(name: str) -> ActionSpec:
    return CHOICES if name in DISCRETE else BOX


def learner(
    name: str,
    obs_size: int = 1,
    *,
    action_spec: ActionSpec | None = None,
    obs_spec: ObsSpec | None = None,
    hidden: tuple[int, ...] = (16,),
    rate: float = 3e-3,
    gamma: float = 0.5,
    tau: float = 0.1,
    seed: int = 0,
    mode: str = "eager",
    **more: Any,
) -> Any:
    """Build a learner; `more` goes to what is special about it."""
    torch.manual_seed(seed)
    obs = obs_spec or ObsSpec.from_flat(obs_size)
    action = action_spec or spec_of(name)
    seen = (next(iter(obs)),)  # not the mask beside it
    network = ActorConfig(hidden_dims=hidden, obs=seen)
    critic = QFunctionConfig(hidden_dims=hidden)

    def actor(head: str) -> ActorPolicy:
        return ActorPolicy(obs, action, ActorConfig(hidden_dims=hidden, obs=seen, head=head))

    if name in ("bc", "bc mse", "bc choices"):
        config = BehaviourCloningConfig(loss="mse" if name == "bc mse" else "log_prob", learning_rate=rate, mode=mode)
        return BehaviourCloning(actor("gaussian"), config)
    if name in ("bcq", "cql choices"):
        kind: Any = Imitated(**more) if name == "bcq" else Conservative(**more)
        settings = DQNConfig(gamma=gamma, learning_rate=rate, target_every=1, tau=tau, mode=mode)
        return DQN(q_policy(obs, action, network, kind), settings, kind)
    if name == "iql choices":
        choice_config = QFunctionConfig(hidden_dims=hidden, obs=seen)
        iql = IQLConfig(gamma=gamma, tau=tau, learning_rate=rate, mode=mode, **more)
        choices = ChoiceQFunction(obs, action, choice_config)
        return IQL(actor("gaussian"), choices, ValueFunction(obs, choice_config), iql)
    q_function = QFunction(obs, action, critic)
    if name == "td3_bc":
        rates = {"actor_learning_rate": rate, "critic_learning_rate": rate, "mode": mode}
        return TD3BC(actor("deterministic"), q_function, TD3BCConfig(gamma=gamma, tau=tau, **rates, **more))
    if name == "cql":
        rates = {"actor_learning_rate": rate, "critic_learning_rate": rate, "temperature_learning_rate": rate}
        cql = CQLConfig(gamma=gamma, tau=tau, mode=mode, **rates, **more)
        return CQL(actor("squashed_gaussian"), q_function, cql)
    iql = IQLConfig(gamma=gamma, tau=tau, learning_rate=rate, mode=mode, **more)
    return IQL(actor("gaussian"), q_function, ValueFunction(obs, critic), iql)


def steps_of(
    obs: Tensor,
    act: Tensor,
    rew: Tensor,
    *,
    terminated: Tensor | bool = True,
    obs_next: Tensor | None = None,
    mask: Tensor | None = None,
    valid: Tensor | None = None,
) -> dict[str, Any]:
    """Single transitions [B, …] as one step of B envs; all of them end, by termination unless told."""
    count = rew.shape[0]
    ended = torch.full((count,), terminated) if isinstance(terminated, bool) else terminated
    seen = {"obs": obs} if mask is None else {"obs": obs, "mask": mask}
    after = {**seen, "obs": obs if obs_next is None else obs_next}
    whole: dict[str, Any] = {
        "obs": seen,
        "act": act,
        "rew": rew,
        "terminated": ended,
        "truncated": ~ended,
        "valid": torch.ones(count, dtype=torch.bool) if valid is None else valid,
        "obs_next": after,
    }
    return {
        name: {key: leaf.unsqueeze(0) for key, leaf in value.items()} if isinstance(value, dict) else value.unsqueeze(0)
        for name, value in whole.items()
    }


def rare_best(count: int = 400) -> dict[str, Any]:
    """One in ten does something near 0.5, which pays 1; the others do something near -0.5."""
    generator = torch.Generator().manual_seed(0)
    good = torch.arange(count) % 10 == 0
    act = torch.where(good, 0.5, -0.5) + 0.1 * torch.randn(count, generator=generator)
    return steps_of(torch.ones(count, 1), act.unsqueeze(1), good.float())


def dataset(algorithm: Any, steps: dict[str, Any], obs_spec: ObsSpec | None = None, seed: int = 0) -> Replay:
    obs = obs_spec or ObsSpec.from_flat(steps["obs"]["obs"].shape[-1])
    return replay_of(steps, obs, algorithm.policy.action_spec, picker=algorithm.picker(seed), view=algorithm.view())


def train(algorithm: Any, replay: Replay, num_updates: int, batch_size: int = 64) -> dict[str, Tensor]:
    """Take gradient steps and return the numbers of the last."""
    noise = UpdateNoise(algorithm.noise(), batch_size, 0, torch.device("cpu"))
    numbers: dict[str, Tensor] = {}
    for number in range(num_updates):
        sample = replay.sample(batch_size)
        numbers = algorithm.update(sample.data, sample.weight, noise.at(number))
    return numbers


def q_values(algorithm: Any, obs: Tensor, act: Tensor) -> Tensor:
    """What a learner says about actions, [B]; the least of several critics."""
    with torch.no_grad():
        if hasattr(algorithm, "critic"):
            return members_of(algorithm.critic, {"obs": {"obs": obs}, "act": act}).amin(dim=0)
        distribution, _, _ = algorithm.policy.act({"obs": obs}, {}, {})
        return distribution.value_of(act)


def greedy(algorithm: Any, obs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        distribution, _, _ = algorithm.policy.act(obs, {}, {})
        return distribution.mode()
