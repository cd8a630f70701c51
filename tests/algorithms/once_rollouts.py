"""Runs for the tests of learners that use a rollout once: hand-made targets, small tasks, greedy play."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ppo_rollouts import scripted

from striderl.algorithms.on_policy_targets import Targets
from striderl.collect.actors.policy_actor import GreedyActor, PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data import tree
from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.envs.toy import Script, Scripted
from striderl.envs.vec_env import VecEnv
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.rollout import RolloutStorage


def even_policy(value_bias: float = 0.0) -> Policy:
    """Two actions with probability 1/2 each and the same value everywhere: log π = -log 2, entropy = log 2."""
    config = PolicyConfig(actor_hidden_dims=(), critic_hidden_dims=())
    policy = Policy(ObsSpec.from_flat(1), DiscreteSpec(n=2), config)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        policy.value_head.layer.bias.fill_(value_bias)
    return policy


def hand_made(act: list[int], advantage: list[float], returns: list[float], counts: list[bool]) -> Targets:
    """One env, one row per number, observation 1 everywhere."""

    def column(values: list[Any], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).view(-1, 1)

    steps = len(act)
    return Targets(
        columns={"obs": {"obs": torch.ones(steps, 1, 1)}, "policy": {"memo": {}}},
        act=column(act, torch.int64),
        returns=column(returns),
        advantage=column(advantage),
        counts=column(counts, torch.bool),
        resets=torch.zeros(steps, 1, dtype=torch.bool),
        readable=torch.ones(steps, 1, dtype=torch.bool),
        initial_state={},
    )


def valued_by_obs(env: VecEnv) -> Policy:
    """A policy whose critic says V(obs) = obs: no hidden layer, weight 1, bias 0."""
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=()))
    with torch.no_grad():
        policy.value_head.layer.weight.fill_(1.0)
        policy.value_head.layer.bias.zero_()
    return policy


def one_env(values, rewards, terminated, truncated, finals=None, valid=None) -> Scripted:
    """Observations (and so values) and rewards by the step, of one env."""
    final = None if finals is None else {"obs": torch.tensor(finals, dtype=torch.float32).view(-1, 1, 1)}
    return Scripted(
        Script(
            obs={"obs": torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)},
            reward=torch.tensor(rewards, dtype=torch.float32).view(-1, 1),
            terminated=torch.tensor(terminated).bool().view(-1, 1),
            truncated=torch.tensor(truncated).bool().view(-1, 1),
            final_obs=final,
            info=None if valid is None else {"valid": torch.tensor(valid).bool().view(-1, 1)},
        ),
        action_spec=BoxSpec(shape=(2,), low=-1.0, high=1.0),
    )


def prepared(
    algorithm: Any, env: VecEnv, num_steps: int, spoil: Callable[[RolloutStorage], None] | None = None
) -> Targets:
    """Collect one rollout, let `spoil` change what was stored, and prepare it."""
    policy = algorithm.policy
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=3))
    finals = env.gives_final_obs
    storage = RolloutStorage(
        collector.columns(),
        num_steps,
        env.num_envs,
        final_obs=env.obs_spec if finals else None,
        final_state=policy.state_spec() if finals else None,
        pool_size=num_steps * env.num_envs,
    )
    collector.ready()
    initial = collector.current_state
    collector.collect(n_step=num_steps * env.num_envs, storage=storage)
    if spoil is not None:
        spoil(storage)
    return algorithm.prepare(
        storage, initial_state=initial, last_obs=collector.current_obs, last_state=collector.current_state
    )


def gradient_with_poison(algorithm: Any, poison: float | None) -> tuple[dict[str, float], torch.Tensor]:
    """Losses and gradient of a rollout where env 1 does not count from step 3 on, with this number all over there.

    As quarantine has it, the step before was cut.
    """
    flags = torch.zeros(6, 3, dtype=torch.bool)
    truncated, valid = flags.clone(), ~flags
    truncated[2, 1] = True
    valid[3:, 1] = False
    terminated = flags.clone()
    terminated[4, 0] = terminated[5, 2] = True

    def spoil(storage: RolloutStorage) -> None:
        if poison is not None:
            for column in tree.leaves({name: storage.data[name] for name in ("obs", "act", "rew", "policy")}):
                column[3:, 1] = poison

    targets = prepared(algorithm, scripted(terminated, truncated, valid), 6, spoil)
    losses, _ = algorithm.losses(targets)
    total = torch.stack([weight * loss for weight, loss in losses.values()]).sum()
    grads = torch.autograd.grad(total, list(algorithm.policy.parameters()), allow_unused=True)
    found = [grad.flatten() for grad in grads if grad is not None]
    return {name: loss.item() for name, (_, loss) in losses.items()}, torch.cat(found)


def small_policy(env: VecEnv, seed: int = 0, stages: tuple[Any, ...] = ()) -> Policy:
    torch.manual_seed(seed)
    config = PolicyConfig(actor=stages, critic=stages, actor_hidden_dims=(16,), critic_hidden_dims=())
    return Policy(env.obs_spec, env.action_spec, config)


def learn(algorithm: Any, env: VecEnv, *, iterations: int, num_steps: int) -> dict[str, torch.Tensor]:
    """Train for some rollouts and return the last numbers."""
    collector = Collector(env, PolicyActor(algorithm.policy), CollectorConfig(seed=1))
    storage = RolloutStorage(
        collector.columns(), num_steps, env.num_envs, final_obs=env.obs_spec, pool_size=num_steps * env.num_envs
    )
    stats: dict[str, torch.Tensor] = {}
    for _ in range(iterations):
        storage.clear()
        collector.collect(n_step=num_steps * env.num_envs, storage=storage)
        targets = algorithm.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
        stats = algorithm.update(targets, torch.Generator())
    return stats


def greedy_returns(policy: Policy, env: VecEnv) -> list[float]:
    """What the most likely actions earn, an episode per env."""
    return Collector(env, GreedyActor(policy)).collect(n_episode=env.num_envs).returns


def values_of(policy: Policy, states: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return policy.value({"obs": states}, {}, {})[0].double()
