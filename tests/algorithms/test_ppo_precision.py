"""`use_mixed_precision`: bfloat16 networks, float32 everything else; it learns what float32 learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hand_worked import order
from ppo_rollouts import build, endings, gradients, scripted, whole_minibatch

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data import tree
from striderl.envs.classic_control import CartPole
from striderl.envs.toy import Bandit, BanditConfig, ContinuousBandit, ContinuousBanditConfig
from striderl.envs.vec_env import VecEnv
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.rollout import RolloutStorage


def in_both(env_of: Any, kind: str) -> Any:
    """The same rollout for PPO in float32 and in bfloat16."""
    parts = build(env_of(), 8, kind, normalise=True)
    half = build(env_of(), 8, kind, normalise=True, use_mixed_precision=True)
    prepared = parts.collect()
    assert tree.equal(prepared.columns, half.collect().columns), "acting stays in float32"
    return parts.ppo, half.ppo, whole_minibatch(parts.ppo, prepared)


def bfloat16_lstm_refused() -> bool:
    """Tell whether this processor has no bfloat16 LSTM in torch's library: those without AVX-512 have none."""
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.nn.LSTM(2, 2)(torch.zeros(1, 1, 2))
    except RuntimeError:
        return True
    return False


LSTM = pytest.param(
    "lstm", marks=pytest.mark.skipif(bfloat16_lstm_refused(), reason="torch has no bfloat16 LSTM for this processor")
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "gru", LSTM])
@pytest.mark.parametrize(
    "env_of", [lambda: scripted(*endings(8, 4)), lambda: CartPole(4)], ids=["continuous", "discrete"]
)
def test_losses_and_gradients_are_close(env_of, kind):
    full, half, minibatch = in_both(env_of, kind)
    losses, gradient = gradients(full, minibatch)
    half_losses, half_gradient = gradients(half, minibatch)
    assert half_losses == pytest.approx(losses, rel=0.02, abs=0.02)
    assert half_losses != losses, "something was computed in bfloat16"
    cosine = torch.cosine_similarity(gradient, half_gradient, dim=0)
    assert float(cosine) > 0.995
    assert float(half_gradient.norm() / gradient.norm()) == pytest.approx(1.0, abs=0.03)
    assert half_gradient.dtype == torch.float32


@pytest.mark.parametrize("kind", ["plain", "gru"])
def test_everything_that_is_compared_is_float32(kind):
    _, half, minibatch = in_both(lambda: scripted(*endings(8, 4)), kind)
    losses, inter_vars, stats = half.compute_losses(minibatch)
    output = inter_vars["output"]
    found = {
        **{name: loss for name, (_, loss) in losses.items()},
        **stats,
        **output.distribution.params(),
        **output.state,
        **output.aux,
        "value": output.value,
        "ratio": inter_vars["ratio"],
    }
    assert {name: value.dtype for name, value in found.items() if value.dtype != torch.float32} == {}
    # the first ratio is not exactly 1, and not far from it
    assert 1e-5 < float(stats["ratio_error"]) < 0.05


def learned(env: VecEnv, solved: Callable[[Policy], bool], **config: Any) -> Policy:
    """Learn for 60 iterations at most, until it is solved."""
    torch.manual_seed(0)
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(16,), critic_hidden_dims=(16,)))
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=1))
    storage = RolloutStorage(collector.columns(), 8, env.num_envs)
    settings = {"num_learning_epochs": 4, "num_mini_batches": 2, "learning_rate": 3e-3, **config}
    ppo = PPO(policy, PPOConfig(**settings))
    for iteration in range(60):
        storage.clear()
        collector.collect(n_step=8 * env.num_envs, storage=storage)
        prepared = ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={})
        numbers = ppo.update(prepared, order(iteration))
        if iteration % 5 == 4 and solved(policy):
            break
    assert all(bool(value.isfinite()) for value in numbers.values()) and int(numbers["skipped_updates"]) == 0
    return policy


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16"])
def test_a_bandit_is_solved(mixed):
    def chance(policy: Policy) -> torch.Tensor:
        with torch.no_grad():
            distribution, _, _ = policy.act({"obs": torch.eye(3)}, {}, {})
        return distribution.params()["log_probs"].exp().diagonal()

    env = Bandit(16, config=BanditConfig(num_arms=3, contextual=True))
    policy = learned(env, lambda policy: bool((chance(policy) > 0.9).all()), use_mixed_precision=mixed)
    assert bool((chance(policy) > 0.9).all()), chance(policy)


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16"])
def test_a_number_is_found(mixed):
    def number(policy: Policy) -> float:
        with torch.no_grad():
            distribution, _, _ = policy.act({"obs": torch.ones(1, 1)}, {}, {})
        return float(distribution.mode())

    env = ContinuousBandit(16, config=ContinuousBanditConfig(target=0.5))
    near = pytest.approx(0.5, abs=0.1)
    policy = learned(env, lambda policy: number(policy) == near, use_mixed_precision=mixed, schedule="adaptive")
    assert number(policy) == near
