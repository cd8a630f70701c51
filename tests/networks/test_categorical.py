"""Categorical and MultiDiscrete: masks that hold, entropy over what is allowed, exact Gumbel sampling."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributions as reference

from striderl.data.noise import draw
from striderl.networks.distributions.categorical import FORBIDDEN, Categorical, MultiDiscrete, check_mask


def noise_for(distribution, count: int) -> torch.Tensor:
    return draw(distribution.noise_spec(), "c", seed=7, iteration=1, env_index=torch.arange(count), num_steps=1)[0]


def test_hand_worked_numbers():
    # logits log 1, log 2, log 5 with the last masked: probabilities 1/3, 2/3, 0
    mask = torch.tensor([True, True, False])
    distribution = Categorical.from_logits(torch.tensor([1.0, 2.0, 5.0]).log(), mask)
    assert distribution.probs.tolist() == pytest.approx([1 / 3, 2 / 3, 0.0])
    assert distribution.log_prob(torch.tensor(1)).item() == pytest.approx(math.log(2 / 3))
    # entropy: (1/3) log 3 + (2/3) log 1.5 = 0.636514
    assert distribution.entropy().item() == pytest.approx(0.636514, abs=1e-5)
    # KL to the uniform over the two: log 2 - 0.636514
    uniform = Categorical.from_logits(torch.zeros(3), mask)
    assert distribution.kl(uniform).item() == pytest.approx(math.log(2.0) - 0.636514, abs=1e-5)
    assert distribution.mode().item() == 1


@st.composite
def cases(draw_):
    n = draw_(st.integers(1, 6))
    logits = draw_(st.lists(st.floats(-8, 8, width=32), min_size=n, max_size=n))
    mask = draw_(st.lists(st.booleans(), min_size=n, max_size=n))
    mask[draw_(st.integers(0, n - 1))] = True
    return torch.tensor(logits), torch.tensor(mask)


@given(cases(), st.integers(0, 1000))
def test_against_torch_over_the_allowed_choices(case, seed):
    logits, mask = case
    ours = Categorical.from_logits(logits, mask)
    theirs = reference.Categorical(logits=logits[mask])
    assert torch.allclose(ours.log_probs[mask], theirs.logits, atol=1e-5)
    assert torch.allclose(ours.entropy(), theirs.entropy(), atol=1e-5)
    other = Categorical.from_logits(logits.flip(0), mask)
    wanted = reference.kl_divergence(theirs, reference.Categorical(logits=logits.flip(0)[mask]))
    assert torch.allclose(ours.kl(other), wanted, atol=1e-5)
    assert ours.kl(ours) == 0.0
    assert (ours.probs[~mask] == 0).all()
    gumbel = torch.randn(200, len(logits), generator=torch.Generator().manual_seed(seed)) * 10
    assert mask[ours.from_params({"log_probs": ours.log_probs.expand(200, -1)}).sample(gumbel)].all()
    assert mask[ours.mode()]


def test_frequencies_are_the_probabilities():
    count = 40000
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0])
    mask = torch.tensor([True, True, False, True])
    distribution = Categorical.from_logits(logits.expand(count, 4), mask.expand(count, 4))
    drawn = distribution.sample(noise_for(distribution, count))
    found = torch.bincount(drawn, minlength=4) / count
    # a standard error is at most 1 / (2 * 200) = 0.0025
    assert found.tolist() == pytest.approx(distribution.probs[0].tolist(), abs=0.01)
    assert found[2] == 0


def test_a_row_that_allows_nothing_counts_as_all_allowed():
    mask = torch.tensor([[False, False], [True, False]])
    distribution = Categorical.from_logits(torch.zeros(2, 2), mask)
    assert distribution.probs.tolist() == [[0.5, 0.5], [1.0, 0.0]]
    assert distribution.entropy().tolist() == pytest.approx([math.log(2.0), 0.0])
    with pytest.raises(ValueError, match=r"index \(0,\) allows no choice"):
        check_mask(mask)
    check_mask(mask[1:])


def test_nan_logits_never_choose_a_masked_action():
    logits = torch.full((3, 4), torch.nan)
    mask = torch.tensor([False, False, True, False]).expand(3, 4)
    distribution = Categorical.from_logits(logits, mask)
    assert (distribution.sample(torch.randn(3, 4)) == 2).all()
    assert (distribution.mode() == 2).all()
    assert distribution.log_prob(torch.tensor([2, 2, 2])).isnan().all()  # NaN is not hidden from the loss


def test_gradients_are_finite_and_zero_where_masked():
    logits = torch.randn(5, 4, requires_grad=True)
    mask = torch.tensor([True, False, True, True]).expand(5, 4)
    distribution = Categorical.from_logits(logits, mask)
    other = Categorical.from_logits(torch.zeros(5, 4), mask)
    (distribution.entropy() + distribution.kl(other) + distribution.log_prob(torch.zeros(5).long())).sum().backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[:, 1] == 0).all()
    assert (logits.grad[:, 0] != 0).all()


def test_a_masked_action_has_ratio_zero_not_nan():
    distribution = Categorical.from_logits(torch.zeros(2), torch.tensor([True, False]))
    assert distribution.log_prob(torch.tensor(1)).item() == pytest.approx(FORBIDDEN)
    assert (distribution.log_prob(torch.tensor(1)) - 0.0).exp() == 0.0


def test_half_precision_logits_are_raised_to_float():
    distribution = Categorical.from_logits(torch.zeros(3, dtype=torch.float16), torch.tensor([True, False, True]))
    assert distribution.log_probs.dtype == torch.float32


def test_mask_of_another_size_is_named():
    with pytest.raises(ValueError, match="mask is over 3 choices, the logits over 2"):
        Categorical.from_logits(torch.zeros(2), torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("leading", [(), (5,), (4, 5)])
def test_shapes_and_integer_dtypes(leading, dtype):
    distribution = Categorical.from_logits(torch.randn(*leading, 3))
    action = distribution.sample(torch.randn(*leading, 3))
    assert action.shape == leading
    assert action.dtype == torch.int64
    assert distribution.log_prob(action.to(dtype)).shape == leading


def test_multi_discrete_is_several_categoricals():
    torch.manual_seed(0)
    nvec = (3, 1, 4)
    logits, mask = torch.randn(6, 8), torch.rand(6, 8) < 0.6
    mask[:, [0, 3, 4]] = True
    ours = MultiDiscrete.from_logits(logits, nvec, mask)
    parts = [Categorical.from_logits(p, m) for p, m in zip(logits.split(nvec, -1), mask.split(nvec, -1))]
    noise = torch.randn(6, 8)
    action = ours.sample(noise)
    wanted = [part.sample(drawn) for part, drawn in zip(parts, noise.split(nvec, -1))]
    assert torch.equal(action, torch.stack(wanted, -1))
    assert torch.equal(ours.mode(), torch.stack([part.mode() for part in parts], -1))
    assert torch.allclose(ours.log_prob(action), sum(p.log_prob(a) for p, a in zip(parts, wanted)))
    assert torch.allclose(ours.entropy(), sum(part.entropy() for part in parts))
    other = MultiDiscrete.from_logits(torch.randn(6, 8), nvec, mask)
    other_parts = [Categorical(p) for p in other.log_probs.split(nvec, -1)]
    assert torch.allclose(ours.kl(other), sum(p.kl(q) for p, q in zip(parts, other_parts)), atol=1e-6)
    assert (ours.kl(ours) == 0).all()
    assert ours.noise_spec().shape == (8,)
    assert torch.equal(ours.from_params(ours.params()).log_probs, ours.log_probs)


def test_multi_discrete_errors_and_no_mask():
    assert MultiDiscrete.from_logits(torch.zeros(2, 5), [2, 3]).entropy().tolist() == pytest.approx([math.log(6.0)] * 2)
    with pytest.raises(ValueError, match="wants 5 logits, found 4"):
        MultiDiscrete.from_logits(torch.zeros(4), [2, 3])
    with pytest.raises(ValueError, match="mask over 5, found 4"):
        MultiDiscrete.from_logits(torch.zeros(5), [2, 3], torch.ones(4))
