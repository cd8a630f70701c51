"""Normalisers: hand numbers, exact pooling, masks, frozen states, bad samples, and reading that changes nothing."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from striderl.networks.normalizers import (
    EmpiricalNormalization,
    Normalize,
    Normalizer,
    RewardNormalizer,
    RunningMeanStd,
    ValueNormalizer,
)


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy(module.state_dict())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_running_mean_std_hand_numbers():
    statistics = RunningMeanStd(2)
    assert statistics.mean.tolist() == [0, 0]
    assert statistics.std.tolist() == [1, 1]
    statistics.update(torch.tensor([[1.0, 10.0], [3.0, 10.0]]))
    # first column: mean 2, variance 1; second: mean 10, variance 0
    assert statistics.mean.tolist() == [2, 10]
    assert statistics.var.tolist() == [1, 0]
    statistics.update_from_moments(torch.tensor([6.0, 10.0]), torch.tensor([1.0, 0.0]), 2)
    # 1, 3, 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5
    assert statistics.mean.tolist() == [4, 10]
    assert statistics.var.tolist() == [5, 0]
    assert statistics.count == 4


def test_a_prior_of_epsilon_samples():
    statistics = RunningMeanStd((), epsilon=1.0)
    statistics.update(torch.tensor([3.0]))
    # a pretended sample of mean 0 with m2 = 1, then 3: mean 1.5, m2 = 1 + 9 / 2 = 5.5
    assert (statistics.mean.item(), statistics.var.item()) == (1.5, 2.75)


def test_float64_stays_whatever_the_model_becomes():
    for convert in (nn.Module.half, nn.Module.float, nn.Module.double, lambda m: m.to(torch.bfloat16)):
        model = nn.Sequential(EmpiricalNormalization(2), nn.Linear(2, 2))
        convert(model)
        assert model[0].statistics.mean.dtype == model[0].statistics.m2.dtype == torch.float64
        assert model[0].statistics.num_ignored.dtype == torch.int64
    # 1 + 1e-12 per sample is lost in float32
    statistics = RunningMeanStd()
    statistics.update_from_moments(1.0, 0.0, 1e9)
    statistics.update(torch.full((1,), 2.0))
    assert statistics.mean.item() == pytest.approx(1.0 + 1e-9, abs=1e-12)


batches = st.lists(st.lists(st.floats(-50, 50), min_size=0, max_size=5), min_size=1, max_size=5)


@pytest.mark.slow
@given(batches)
def test_merging_is_the_pooled_data(pieces):
    whole, workers = RunningMeanStd(), []
    whole.update(torch.tensor([number for piece in pieces for number in piece], dtype=torch.float64))
    for piece in pieces:
        workers.append(RunningMeanStd())
        workers[-1].update(torch.tensor(piece, dtype=torch.float64))
    merged = RunningMeanStd()
    for worker in workers:
        merged.merge(worker.state_dict())
    assert merged.count == whole.count
    assert torch.allclose(merged.mean, whole.mean, rtol=1e-12, atol=1e-12)
    assert torch.allclose(merged.var, whole.var, rtol=1e-10, atol=1e-10)


def test_two_processes_stay_equal_to_one():
    torch.manual_seed(0)
    one, ranks = EmpiricalNormalization(3), [EmpiricalNormalization(3), EmpiricalNormalization(3)]
    for _ in range(4):
        x, valid = torch.randn(10, 3) * 5 + 2, torch.rand(10) < 0.7
        one.update(x, valid)
        halves = [(x[:4], valid[:4]), (x[4:], valid[4:])]
        for rank, normalizer in enumerate(ranks):
            normalizer.update(*halves[rank], all_reduce=_summed_with(halves, rank))
    for normalizer in ranks:
        assert normalizer.statistics.count == one.statistics.count
        assert torch.allclose(normalizer.statistics.mean, one.statistics.mean, rtol=1e-12)
        assert torch.allclose(normalizer.statistics.m2, one.statistics.m2, rtol=1e-12)
    with pytest.raises(ValueError, match=r"shape \(3,\) into \(2,\)"):
        EmpiricalNormalization(2).merge(one.state_dict())


def _summed_with(halves, rank):
    """Play the other process: recompute what it would hand to all_reduce at each of its calls."""
    from striderl.ops.moments import batch_moments

    x, valid = halves[1 - rank]
    other, ignored = batch_moments(x, (3,), valid)
    seen = []

    def all_reduce(mine: torch.Tensor) -> torch.Tensor:
        if not seen:
            theirs = torch.cat([other.num_samples.reshape(1), other.num_samples * other.mean])
            seen.append(mine + theirs)
            return seen[0]
        if len(seen) == 1:
            mean = seen[0][1:] / seen[0][0]
            seen.append(None)
            return mine + other.m2 + other.num_samples * (other.mean - mean).square()
        return mine + ignored

    return all_reduce


def test_empirical_normalization_hand_numbers_and_inverse():
    normalizer = EmpiricalNormalization(1, eps=0.5)
    normalizer.update(torch.tensor([[0.0], [4.0]]))
    # mean 2, std 2: (7 - 2) / (2 + 0.5) = 2
    assert normalizer(torch.tensor([[7.0]])).item() == 2.0
    assert normalizer.inverse(torch.tensor([[2.0]])).item() == 7.0
    assert (normalizer.mean.item(), normalizer.std.item()) == (2.0, 2.0)
    assert normalizer.mean.dtype == torch.float32
    assert normalizer(torch.tensor([[7]], dtype=torch.uint8)).item() == 2.0


def test_reading_changes_nothing():
    x = torch.randn(4, 3)
    for module in (EmpiricalNormalization(3), Normalizer(3), ValueNormalizer(3)):
        module.update(torch.randn(8, 3))
        before = state_of(module)
        module(x)
        if isinstance(module, Normalizer):
            module.normalize(x.numpy())
            module.normalize_torch(x, "cpu")
        assert same(before, state_of(module))


def test_frozen_in_eval_and_after_until():
    normalizer = EmpiricalNormalization(1, until=3)
    normalizer.eval()
    normalizer.update(torch.tensor([[5.0]]))
    assert normalizer.statistics.count == 0
    normalizer.train()
    normalizer.update(torch.tensor([[1.0], [2.0]]))
    normalizer.update(torch.tensor([[3.0], [6.0]]))  # count was 2 < 3: still taken
    assert normalizer.statistics.count == 4
    before = state_of(normalizer)
    normalizer.update(torch.tensor([[100.0]]))
    assert same(before, state_of(normalizer))


def test_invalid_and_bad_samples():
    normalizer = EmpiricalNormalization(2)
    x = torch.tensor([[1.0, 2.0], [torch.nan, 0.0], [3.0, 4.0], [1e30, torch.inf], [9.0, 9.0]])
    normalizer.update(x, torch.tensor([True, True, True, True, False]))
    assert normalizer.statistics.mean.tolist() == [2, 3]
    assert normalizer.statistics.num_ignored == 2
    before = normalizer.statistics.mean.clone()
    normalizer.update(torch.full((3, 2), torch.nan))
    assert torch.equal(normalizer.statistics.mean, before)
    assert normalizer(torch.zeros(1, 2)).isfinite().all()


def test_sequences_and_shaped_samples():
    normalizer = EmpiricalNormalization((2, 2))
    normalizer.update(torch.ones(3, 5, 2, 2), torch.ones(3, 5).bool())
    assert normalizer.statistics.count == 15
    assert normalizer(torch.ones(3, 5, 2, 2)).abs().max() == 0


def test_state_dict_round_trip():
    one, other = EmpiricalNormalization(3), EmpiricalNormalization(3)
    one.update(torch.randn(6, 3))
    other.load_state_dict(one.state_dict())
    x = torch.randn(2, 3)
    assert torch.equal(one(x), other(x))
    assert {"statistics.count", "statistics.mean", "statistics.m2"} <= set(one.state_dict())


def test_normalizer_clips_and_speaks_numpy_and_torch():
    normalizer = Normalizer(1, epsilon=0.0, clip_obs=3.0)
    normalizer.update(np.array([[0.0], [2.0]]))
    # mean 1, variance 1
    assert normalizer.normalize(torch.tensor([[3.0], [50.0], [-50.0]])).flatten().tolist() == [2.0, 3.0, -3.0]
    result = normalizer.normalize(np.array([[3.0]], np.float32))
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [[2.0]]
    assert normalizer.normalize_torch(torch.tensor([[3.0]]), "cpu").item() == 2.0
    with pytest.raises(ValueError, match="clip_obs"):
        Normalizer(1, clip_obs=0.0)


def test_update_normalizer_weighs_policy_and_expert_alike():
    normalizer = Normalizer(1)
    rollouts = [(torch.zeros(2, 1), torch.zeros(2, 1)), (torch.zeros(2, 1), torch.zeros(2, 1))]
    endless = iter(lambda: (np.full((2, 1), 2.0), np.full((2, 1), 2.0)), None)
    normalizer.update_normalizer(rollouts, endless)
    # 8 zeros and 8 twos, as many expert batches as policy batches
    assert (normalizer.statistics.count, normalizer.statistics.mean.item()) == (16, 1.0)


def test_normalize_to_length_one():
    # (3, 4) has length 5
    assert Normalize()(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist() == [
        [0.6000000238418579, 0.800000011920929],
        [0, 0],
    ]


def test_reward_normalizer_against_a_loop():
    torch.manual_seed(0)
    normalizer = RewardNormalizer(3, gamma=0.9, eps=0.0)
    running, samples = [0.0] * 3, []
    for _ in range(2):  # two rollouts: the return is carried over
        reward, done = torch.randn(5, 3), torch.rand(5, 3) < 0.3
        normalizer.update(reward, done)
        for step in range(5):
            for env in range(3):
                running[env] = 0.9 * running[env] + reward[step, env].item()
                samples.append(running[env])
                if done[step, env]:
                    running[env] = 0.0
    assert normalizer.running_return.tolist() == pytest.approx(running, abs=1e-5)
    std = torch.tensor(samples).std(correction=0).item()
    assert normalizer(torch.tensor([2.0])).item() == pytest.approx(2.0 / std, rel=1e-4)


def test_reward_normalizer_one_step_at_a_time_is_the_same():
    reward, done = torch.randn(6, 2), torch.rand(6, 2) < 0.4
    whole, steps = RewardNormalizer(2), RewardNormalizer(2)
    whole.update(reward, done)
    for step in range(6):
        steps.update(reward[step], done[step])
    assert torch.allclose(whole.statistics.m2, steps.statistics.m2)
    assert torch.equal(whole.running_return, steps.running_return)


def test_reward_normalizer_ignores_invalid_and_bad_rewards():
    normalizer = RewardNormalizer(2, gamma=0.5)
    reward = torch.tensor([[1.0, torch.nan], [torch.inf, 4.0], [3.0, 8.0]])
    valid = torch.tensor([[True, False], [True, True], [True, True]])
    normalizer.update(reward, torch.zeros(3, 2), valid)
    # env 0: 1, (bad), 3; env 1: (invalid), 4, 8 + 2 = 10
    assert normalizer.statistics.count == 4
    assert normalizer.statistics.mean.item() == pytest.approx((1 + 3 + 4 + 10) / 4)
    assert normalizer.statistics.num_ignored == 1
    assert normalizer.running_return.tolist() == [3.0, 10.0]
    before = state_of(normalizer)
    normalizer.eval().update(torch.ones(2), torch.zeros(2))
    assert same(before, state_of(normalizer))
    with pytest.raises(ValueError, match="gamma"):
        RewardNormalizer(2, gamma=1.0)


def test_value_normalizer_round_trip():
    normalizer = ValueNormalizer()
    normalizer.update(torch.tensor([[10.0, 20.0], [30.0, 1e9]]), torch.tensor([[True, True], [True, False]]))
    # mean 20, std sqrt(200 / 3) = 8.164966
    assert normalizer.normalize(torch.tensor(28.164966)).item() == pytest.approx(1.0, abs=1e-5)
    value = torch.tensor([3.0, -7.0])
    assert torch.allclose(normalizer.denormalize(normalizer.normalize(value)), value, atol=1e-4)
    constant = ValueNormalizer()
    constant.update(torch.full((4,), 5.0))
    assert constant.normalize(torch.tensor(5.0)) == 0.0


@pytest.mark.slow
def test_updates_and_reading_compile_whole():
    normalizer = EmpiricalNormalization(3, until=100)
    plain = copy.deepcopy(normalizer)
    x, valid = torch.randn(8, 3), torch.rand(8) < 0.5
    update = torch.compile(normalizer.update, fullgraph=True, backend="eager")
    update(x, valid)
    plain.update(x, valid)
    assert torch.allclose(normalizer.statistics.m2, plain.statistics.m2)
    read = torch.compile(normalizer, fullgraph=True, backend="eager")
    assert torch.allclose(read(x), plain(x))


def test_both_orders_of_arguments_are_told_apart_by_type():
    newer, older = RunningMeanStd((3,), 1e-4), RunningMeanStd(1e-4, (3,))
    assert newer.shape == older.shape == (3,) and newer.count == older.count == 1e-4
    assert RunningMeanStd(1e-4).shape == () and RunningMeanStd(1e-4).count == 1e-4
    assert RunningMeanStd(epsilon=1e-4, shape=(2,)).shape == (2,)
    for wrong in ((1e-4, 0.5), ((2,), (3,))):
        with pytest.raises(TypeError, match=r"RunningMeanStd wants \(shape, epsilon\)"):
            RunningMeanStd(*wrong)


def test_arrays_are_samples_too():
    # the values 1 and 3: mean 2, variance 1
    samples = np.array([[1.0], [3.0]])
    statistics, normalizer = RunningMeanStd(1), EmpiricalNormalization(1)
    statistics.update(samples)
    normalizer.update(samples)
    assert (statistics.mean.item(), statistics.var.item()) == (2.0, 1.0)
    assert (normalizer.mean.item(), normalizer.std.item()) == (2.0, 1.0)


def test_the_normalizer_shows_and_takes_moments():
    # 2 samples of mean 1 and variance 4: the std is 2; in eval mode nothing is learned
    normalizer = Normalizer(1)
    normalizer.update_from_moments(1.0, 4.0, 2)
    assert (normalizer.mean.item(), normalizer.var.item(), normalizer.std.item()) == (1.0, 4.0, 2.0)
    normalizer.eval()
    normalizer.update_from_moments(9.0, 1.0, 50)
    assert normalizer.mean.item() == 1.0
