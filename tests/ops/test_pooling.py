"""Means over processes: the value of all samples, the gradient of one's own."""

from __future__ import annotations

import pytest
import torch

from striderl.networks.normalizers import RunningMeanStd
from striderl.ops.losses import normalised, valid_mean
from striderl.ops.moments import current_all_reduce, pooled


class Others:
    """Adds what the other processes have said in the same place, in order."""

    def __init__(self, *said: torch.Tensor) -> None:
        self.said = list(said)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.said.pop(0)


def test_a_mean_counts_all_samples_and_has_its_own_gradient():
    # here 1 + 5 = 6 in 2 valid samples; elsewhere 4 in 2: the mean is 10 / 4, and each of ours has weight 1 / 4
    x = torch.tensor([1.0, 5.0, 100.0], requires_grad=True)
    with pooled(Others(torch.tensor([4.0, 2.0]))):
        mean = valid_mean(x, torch.tensor([True, True, False]))
    mean.backward()
    assert mean.item() == 2.5
    assert x.grad.tolist() == [0.25, 0.25, 0.0]


def test_a_process_without_valid_samples_takes_part():
    x = torch.tensor([torch.nan, 7.0], requires_grad=True)
    with pooled(Others(torch.tensor([4.0, 2.0]))):
        mean = valid_mean(x, torch.tensor([False, False]))
    mean.backward()
    assert mean.item() == 2.0 and x.grad.tolist() == [0.0, 0.0]


def test_normalising_takes_the_moments_of_all():
    # 1 here, 3 elsewhere: mean 2, std 1
    with pooled(Others(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]))):
        found = normalised(torch.tensor([1.0]), torch.tensor([True]), eps=0.0)
    assert found.tolist() == [-1.0]


def test_running_statistics_take_in_what_all_have_seen():
    statistics = RunningMeanStd(())
    # one sample 1 here, one sample 3 elsewhere; sums of (count, count * mean), of squared deviations, of what was bad
    others = Others(
        torch.tensor([1.0, 3.0], dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64), torch.tensor(0)
    )
    with pooled(others):
        statistics.update(torch.tensor([1.0]))
    assert float(statistics.mean) == 2.0 and float(statistics.var) == 1.0 and not others.said


def test_regions_end():
    with pytest.raises(KeyError), pooled(Others()):
        assert current_all_reduce() is not None
        raise KeyError
    assert current_all_reduce() is None
    with pooled(None):
        assert current_all_reduce() is None
