"""Steps in which nothing happens take a short way on the CPU; data and statistics are those of the long one."""

from __future__ import annotations

import pytest
import torch

from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector
from striderl.collect.quarantine import Quarantine, all_true, any_true
from striderl.collect.statistics import EpisodeStatistics
from striderl.envs.classic_control import CartPole
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import Remember
from striderl.storage.rollout import RolloutStorage


def collected(looks: bool, config: PolicyConfig) -> tuple[RolloutStorage, dict[str, float], list[bool]]:
    env = CartPole(5)
    torch.manual_seed(0)
    policy = Policy(env.obs_spec, env.action_spec, config)
    collector = Collector(env, PolicyActor(policy))
    storage = RolloutStorage(collector.columns(), 60, 5)
    collector.reset()
    group = collector.groups[0]
    group.looks = collector.statistics.on_cpu = looks
    quiet = []
    for _ in range(60):
        collector.collect(n_step=5, storage=storage)
        quiet.append(group.quiet)
    return storage, collector.statistics.read(), quiet


@pytest.mark.parametrize("actor", [(), (Remember(type="gru", hidden_size=4),)])
def test_the_short_way_collects_the_same(actor):
    config = PolicyConfig(actor=actor, actor_hidden_dims=(8,), critic_hidden_dims=(8,))
    short, numbers, quiet = collected(True, config)
    long, expected, never = collected(False, config)
    assert 0 < sum(quiet) < 60 and not any(never)  # both ways were taken, and the other run took one only
    assert numbers == expected and numbers["episodes"] > 3
    for dtype, block in short.arena.blocks.items():
        assert torch.equal(block, long.arena.blocks[dtype])


def test_statistics_in_numpy_and_in_torch_agree():
    generator = torch.Generator().manual_seed(3)
    numpy, tensors = (EpisodeStatistics(6, torch.device("cpu"), window=4) for _ in range(2))
    tensors.on_cpu = False
    for _ in range(80):
        reward = torch.randn(6, generator=generator)
        done, invalid, cut = (torch.rand(6, generator=generator) < p for p in (0.1, 0.05, 0.3))
        reward = torch.where(invalid, torch.nan, reward)
        for rows in (slice(0, 2), slice(2, 6)):
            for statistics in (numpy, tensors):
                statistics.update(rows, reward[rows], done[rows], ~invalid[rows], (cut & done)[rows])
        assert torch.equal(numpy.running_return, tensors.running_return)
        assert torch.equal(numpy.running_length, tensors.running_length)
        assert torch.equal(numpy.spoiled, tensors.spoiled)
        assert torch.equal(numpy.returns[:-1], tensors.returns[:-1])
        assert torch.equal(numpy.lengths[:-1], tensors.lengths[:-1])
    assert numpy.read() == tensors.read() and int(numpy.num_episodes) > 10


def test_more_episodes_than_the_window_end_together():
    statistics = EpisodeStatistics(5, torch.device("cpu"), window=2)
    everywhere = torch.ones(5, dtype=torch.bool)
    statistics.update(slice(0, 5), torch.arange(5.0), everywhere, everywhere, ~everywhere)
    assert statistics.read()["episodes"] == 5
    assert sorted(statistics.returns[:2].tolist()) == [3.0, 4.0]  # the last two of them


def test_a_quiet_update_is_an_update():
    one, other = (EpisodeStatistics(4, torch.device("cpu")) for _ in range(2))
    reward, nowhere = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.zeros(4, dtype=torch.bool)
    for rows in (slice(0, 4), slice(1, 3)):
        one.update_quiet(rows, reward[rows])
        other.update(rows, reward[rows], nowhere[rows], ~nowhere[rows], nowhere[rows])
    for name, value in one.state_dict().items():
        assert name == "logged" or torch.equal(value, other.state_dict()[name])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e11])
def test_a_bad_number_is_never_quiet(value):
    quarantine = Quarantine(3, torch.device("cpu"))
    reward, obs = torch.zeros(3), {"obs": torch.zeros(3, 2), "flag": torch.ones(3, dtype=torch.int64)}
    assert quarantine.all_fine(reward, obs)
    bad = torch.tensor([0.0, value, 0.0])
    assert not quarantine.all_fine(bad, obs)
    assert not quarantine.all_fine(reward, {**obs, "obs": bad.view(3, 1)})
    quarantine.sick[1] = True
    assert not quarantine.all_fine(reward, obs)


def test_looking_at_masks():
    mask = torch.tensor([[False, True], [False, False]])
    assert any_true(mask) and not any_true(mask[1]) and any_true(mask[:, 1]) and not any_true(mask[:, 0])
    assert all_true(~mask[1]) and not all_true(~mask) and all_true(mask[:1, 1])


def test_when_somebody_looks_does_not_matter():
    # sums of numbers of very different sizes: added in another order, the last bits would differ
    watched, left_alone = (EpisodeStatistics(3, torch.device("cpu")) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    nowhere = torch.zeros(3, dtype=torch.bool)
    plain = torch.zeros(3, dtype=torch.float64)
    for step in range(200):
        reward = torch.randn(3, generator=generator) * 10.0 ** (step % 7)
        plain += reward
        for statistics in (watched, left_alone):
            statistics.update_quiet(slice(0, 3), reward)
        if step % 5 == 0:
            assert torch.equal(watched.running_return, plain)
    assert len(left_alone.quiet_rewards[0, 3]) == 200
    for statistics in (watched, left_alone):
        statistics.update(slice(0, 3), torch.ones(3), ~nowhere, ~nowhere, nowhere)
    assert watched.read() == left_alone.read() and int(left_alone.num_steps) == 603
    assert torch.equal(left_alone.returns[:3], plain + 1.0) and left_alone.lengths[:3].tolist() == [201] * 3


def test_many_rewards_are_not_kept():
    statistics = EpisodeStatistics(3000, torch.device("cpu"))
    for _ in range(3):
        statistics.update_quiet(slice(0, 3000), torch.ones(3000))
    assert len(statistics.quiet_rewards[0, 3000]) == 1
    assert statistics.running_return.tolist() == [3.0] * 3000


def test_an_env_may_write_all_its_rewards_to_one_place():
    statistics = EpisodeStatistics(2, torch.device("cpu"))
    place = torch.zeros(2)
    for step in range(4):
        place.copy_(torch.tensor([1.0, 10.0]) * step)
        statistics.update_quiet(slice(0, 2), place)
    assert statistics.running_return.tolist() == [6.0, 60.0]  # 0 + 1 + 2 + 3, not four times the last
