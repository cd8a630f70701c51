"""What must hold for PPO whatever the policy is made of: the first ratio, the order of envs, who sees what."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ppo_rollouts import ACTION, USUAL, build, endings, scripted
from term_rollouts import ESTIMATE, MEMORY, make_env, make_parts, make_policy, order

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig, Prepared
from striderl.algorithms.terms.estimation import Estimation
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data import tree
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.storage.rollout import RolloutStorage

LSTM = Remember(type="lstm", hidden_size=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actor", "critic"),
    [
        ((ESTIMATE,), ()),
        ((NormalizeObs(), ESTIMATE), (NormalizeObs(),)),
        ((ESTIMATE, MEMORY), (LSTM,)),
        ((NormalizeObs(), ESTIMATE, LSTM), (NormalizeObs(), MEMORY)),
    ],
    ids=["estimator", "normaliser, estimator", "estimator, memory", "all"],
)
def test_the_first_ratio_is_one_although_estimates_replace_the_truth_at_random(actor, critic):
    # half of the estimates stand for the truth, drawn while acting; the update repeats the very same draws
    env = make_env(24, 4)
    parts = make_parts(env, make_policy(env, actor, critic), lambda env: [Estimation()], learning_rate=1e-2)
    for _ in range(3):
        prepared = parts.collect()
        (memo,) = prepared.columns["policy"]["memo"].values()
        assert 0.0 < float(memo.float().mean()) < 1.0, "both happen"
        numbers = parts.ppo.update(prepared, order())
        assert float(numbers["first_ratio_error"]) < 1e-5 < 1e-3 < float(numbers["ratio_error"])
        parts.ppo.absorb(prepared.columns)


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), rate=st.sampled_from([0.0, 0.1, 0.5, 0.9]), count=st.integers(1, 5))
@settings(max_examples=25)
def test_every_minibatch_repeats_the_rollout(seed, rate, count):
    env = make_env(7, 5, rate=rate, seed=seed)
    policy = make_policy(env, (NormalizeObs(), ESTIMATE, MEMORY), (LSTM,))
    parts = make_parts(env, policy, num_steps=7, num_mini_batches=count, num_learning_epochs=2)
    prepared = parts.collect()
    for minibatch in parts.ppo.minibatches(prepared, order(seed)):
        _, inter_vars, stats = parts.ppo.compute_losses(minibatch)
        assert float(stats["ratio_error"]) < 1e-5 and float(stats["kl"]) < 1e-9
        kept = minibatch["valid"]
        torch.testing.assert_close(inter_vars["output"].value[kept], minibatch["value"][kept], rtol=0, atol=1e-5)


def moved(prepared: Prepared, envs: torch.Tensor) -> Prepared:
    """The same rollout with its envs in another order."""
    whole = {
        name: tree.map(lambda leaf: leaf[:, envs], value)
        for name, value in prepared._asdict().items()
        if name not in ("initial_state", "numbers")
    }
    state = tree.map(lambda leaf: leaf[envs], prepared.initial_state)
    return Prepared(**whole, initial_state=state, numbers=prepared.numbers)


@pytest.mark.parametrize("kind", ["plain", "gru"])
def test_the_order_of_envs_does_not_change_an_update_on_the_whole_batch(kind):
    results = []
    for shuffled in (torch.arange(5), torch.tensor([3, 0, 4, 1, 2])):
        parts = build(scripted(*endings(7, 5)), 7, kind, normalise=True, num_mini_batches=1, num_learning_epochs=3)
        prepared = parts.collect()
        parts.ppo.update(moved(prepared, shuffled), order())
        parts.ppo.absorb(moved(prepared, shuffled).columns)
        results.append(parts.ppo.policy.state_dict())
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("stages", [(), (LSTM,)], ids=["plain", "lstm"])
def test_a_privileged_critic_learns_and_the_actor_does_not_see_it(stages):
    spec = ObsSpec({"joints": ComponentSpec(shape=(3,)), "command": ComponentSpec(shape=(2,), group="critic")})
    env = scripted(*endings(6, 3))
    env.obs_spec = spec
    torch.manual_seed(0)
    config = PolicyConfig(actor=stages, critic=stages, actor_hidden_dims=(4,), critic_hidden_dims=(4,))
    policy = Policy(spec, ACTION, config)
    collector = Collector(env, PolicyActor(policy))
    storage = RolloutStorage(collector.columns(), 6, 3, final_obs=spec, final_state=policy.state_spec())
    collector.ready()
    initial = collector.current_state
    collector.collect(n_step=18, storage=storage)
    ppo = PPO(policy, PPOConfig(**{**USUAL, "num_mini_batches": 2}))

    def prepared() -> Prepared:
        return ppo.prepare(
            storage, initial_state=initial, last_obs=collector.current_obs, last_state=collector.current_state
        )

    minibatch = next(iter(ppo.minibatches(prepared(), order())))
    other = {**minibatch, "obs": {**minibatch["obs"], "command": minibatch["obs"]["command"] + 1.0}}
    (_, one, _), (_, two, _) = ppo.compute_losses(minibatch), ppo.compute_losses(other)
    assert torch.equal(one["ratio"], two["ratio"])
    assert not torch.equal(one["output"].value, two["output"].value)
    assert float(ppo.update(prepared(), order())["first_ratio_error"]) < 1e-5
