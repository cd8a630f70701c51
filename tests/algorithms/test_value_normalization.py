"""`normalize_values`: the critic speaks in normalised units, targets and advantages are in those of the reward."""

from __future__ import annotations

import pytest
import torch
from hand_worked import hand_worked, order
from ppo_rollouts import build, endings, scripted, whole_minibatch

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.data import tree
from striderl.envs.toy import ProbeConfig, Terminator
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.rollout import RolloutStorage

STILL = {"gamma": 0.5, "lam": 0.0, "learning_rate": 1e-12}


def test_the_first_rollout_is_read_as_it_is_and_its_returns_are_normalised():
    # V = 1, 2, 3: returns 1 + 0.5 · 2 and 2 + 0.5 · 3, one std below and above their mean
    parts = hand_worked([1, 2, 3], [1, 2], normalize_values=True, **STILL)
    prepared = parts.collect()
    assert prepared.raw_returns[:, 0].tolist() == [2.0, 3.5]
    assert prepared.returns[:, 0].tolist() == pytest.approx([-1.0, 1.0])
    assert tree.equal(parts.prepare()._asdict(), prepared._asdict()), "asked twice, it answers the same"


def test_statistics_are_those_of_the_returns_after_the_update():
    parts = hand_worked([1, 2, 3], [1, 2], normalize_values=True, **STILL)
    prepared = parts.collect()
    normalizer = parts.ppo.value_normalizer
    assert float(normalizer.statistics.count) == 0.0
    parts.ppo.update(prepared, order())
    # returns 2 and 3.5: mean 2.75, std 0.75
    assert (float(normalizer.statistics.mean), float(normalizer.statistics.std)) == (2.75, 0.75)
    # now the critic's 1, 2, 3 mean 3.5, 4.25, 5: returns 1 + 2.125 and 2 + 2.5, advantages -0.375 and 0.25
    prepared = parts.collect()
    assert prepared.raw_returns[:, 0].tolist() == pytest.approx([3.125, 4.5])
    assert prepared.value[:, 0].tolist() == pytest.approx([1.0, 2.0])
    # all four returns 2, 3.5, 3.125, 4.5 have mean 3.28125 and std 0.894319
    assert prepared.returns[:, 0].tolist() == pytest.approx([-0.15625 / 0.894319, 1.21875 / 0.894319], rel=1e-5)
    assert prepared.advantage[:, 0].tolist() == pytest.approx([-1.0, 1.0])


def test_the_value_loss_is_in_normalised_units():
    parts = hand_worked([1, 2, 3], [1, 2], normalize_values=True, use_clipped_value_loss=False, **STILL)
    losses, _, stats = parts.ppo.compute_losses(whole_minibatch(parts.ppo, parts.collect()))
    # the critic says 1 and 2 and should say -1 and 1: the mean of 4 and 1
    assert losses["value_loss"][1].item() == pytest.approx(2.5)
    # residuals -2 and -1 have variance 1/4, targets have 1
    assert stats["explained_variance"].item() == pytest.approx(0.75)


def test_what_is_learned_is_read_back_as_it_was_meant():
    parts = build(scripted(*endings(24, 4)), 8, normalize_values=True)
    for _ in range(3):
        prepared = parts.collect()
        parts.ppo.update(prepared, order())
        read = parts.ppo.value_normalizer.denormalize(prepared.returns)
        torch.testing.assert_close(read, prepared.raw_returns, rtol=1e-5, atol=1e-5)


def test_only_valid_samples_are_counted():
    valid = torch.rand(8, 4, generator=order(5)) < 0.6
    parts = build(scripted(*endings(8, 4), valid), 8, normalize_values=True)
    prepared = parts.collect()
    parts.ppo.update(prepared, order())
    found, statistics = prepared.raw_returns[valid].double(), parts.ppo.value_normalizer.statistics
    assert int(statistics.count) == int(valid.sum()) < 32
    assert float(statistics.mean) == pytest.approx(float(found.mean()), rel=1e-6)
    assert float(statistics.std) == pytest.approx(float(found.std(correction=0)), rel=1e-6)
    assert bool((prepared.returns[~valid] == 0.0).all())


def test_every_value_has_statistics_of_its_own():
    groups = {"task": ("env",), "style": ("upright",)}
    parts = hand_worked(
        [0, 0, 0],
        [1, 3],
        info={"upright": [10, 50]},
        num_values=2,
        reward_groups=groups,
        normalize_values=True,
        **STILL,
    )
    parts.ppo.update(parts.collect(), order())
    statistics = parts.ppo.value_normalizer.statistics
    assert statistics.mean.tolist() == [2.0, 30.0] and statistics.std.tolist() == [1.0, 20.0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "gru"])
def test_the_first_ratio_stays_one(kind):
    parts = build(scripted(*endings(24, 4)), 8, kind, normalise=True, normalize_values=True, learning_rate=3e-3)
    for _ in range(3):
        prepared = parts.collect()
        assert float(parts.ppo.update(prepared, order())["first_ratio_error"]) < 1e-5
        parts.ppo.absorb(prepared.columns)


def test_statistics_are_saved_and_units_are_not_mixed():
    one, other = (build(scripted(*endings(16, 4)), 8, normalize_values=True) for _ in range(2))
    one.ppo.update(one.collect(), order())
    saved = one.ppo.state_dict()
    other.ppo.load_state_dict(saved)
    assert tree.equal(other.ppo.state_dict(), saved) and float(other.ppo.value_normalizer.statistics.count) == 32.0
    kept = tree.copy(saved)
    one.ppo.update(one.collect(), order())
    assert tree.equal(saved, kept), "a saved state is a copy"
    plain = PPO(one.ppo.policy)
    before = plain.state_dict()
    with pytest.raises(ValueError, match="the saved PPO has normalize_values=True, this one False"):
        plain.load_state_dict(saved)
    assert tree.equal(plain.state_dict(), before) and not tree.equal(before["policy"], saved["policy"])


@pytest.mark.slow
def test_values_are_learned_in_units_of_the_reward():
    # rewards of 100 per step: a critic that begins near 0 and learns by small steps would need long to get there
    env = Terminator(8, config=ProbeConfig(num_steps=5))
    torch.manual_seed(0)
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=()))
    collector = Collector(env, PolicyActor(policy))
    storage = RolloutStorage(collector.columns(), 20, 8, final_obs=env.obs_spec)
    config = PPOConfig(
        gamma=0.9, lam=0.9, learning_rate=0.03, use_clipped_value_loss=False, max_grad_norm=0.0,
        num_learning_epochs=4, num_mini_batches=2, normalize_values=True,
    )  # fmt: skip
    ppo = PPO(policy, config)
    for iteration in range(40):
        storage.clear()
        collector.collect(n_step=160, storage=storage)
        storage.data["rew"].mul_(100.0)
        ppo.update(
            ppo.prepare(storage, initial_state={}, last_obs=collector.current_obs, last_state={}), order(iteration)
        )
    with torch.no_grad():
        said, _ = policy.value({"obs": torch.eye(5)}, {}, {})
        values = ppo.value_normalizer.denormalize(said)
    torch.testing.assert_close(values.double(), 100.0 * env.value(0.9), rtol=0.03, atol=3.0)
