"""One env whose critic says exactly what it observes, so that targets can be worked out by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from ppo_rollouts import ACTION

from striderl.algorithms.on_policy.ppo import PPO, Prepared
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.envs.toy import Script, Scripted
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.rollout import RolloutStorage
from striderl.training.experiment.runner_config import rsl_rl_ppo_config


class HandWorked(NamedTuple):
    ppo: PPO
    collector: Collector
    storage: RolloutStorage

    def collect(self) -> Prepared:
        """Play the script from its beginning and prepare it."""
        self.storage.clear()
        self.collector.reset(0)
        self.collector.collect(n_step=self.storage.num_steps, storage=self.storage)
        return self.prepare()

    def prepare(self) -> Prepared:
        return self.ppo.prepare(
            self.storage, initial_state={}, last_obs=self.collector.current_obs, last_state=self.collector.current_state
        )


def hand_worked(
    values: list[float],
    rewards: list[float],
    *,
    info: dict[str, list[float]] | None = None,
    num_values: int = 1,
    terms: Any = (),
    **config: Any,
) -> HandWorked:
    """Every value is the observation; no episode ends. `values` has one number more than `rewards`."""
    steps = len(rewards)
    never = torch.zeros(steps, 1, dtype=torch.bool)
    script = Script(
        obs={"obs": torch.tensor(values).view(-1, 1, 1)},
        reward=torch.tensor(rewards).view(-1, 1),
        terminated=never,
        truncated=never,
        info=None if info is None else {name: torch.tensor(column).view(-1, 1) for name, column in info.items()},
    )
    env = Scripted(script, action_spec=ACTION)
    torch.manual_seed(0)
    settings = PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=(), num_values=num_values)
    policy = Policy(env.obs_spec, env.action_spec, settings)
    with torch.no_grad():
        policy.value_head.layer.weight.fill_(1.0)
        policy.value_head.layer.bias.zero_()
    ppo = PPO(policy, rsl_rl_ppo_config(**config), terms=terms)
    collector = Collector(env, PolicyActor(policy))
    return HandWorked(ppo, collector, RolloutStorage(collector.columns(), steps, 1))


def order(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
