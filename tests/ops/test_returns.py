"""Returns and advantages: numbers to redo by hand, and the definition, term by term, on random episodes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from striderl.ops.returns import backward_scan, discounted_returns, gae, n_step_returns, vtrace


def column(*numbers, dtype=torch.float64):
    return torch.tensor(numbers, dtype=dtype).unsqueeze(1)


NO = column(False, False, False, dtype=torch.bool)


def test_gae_by_hand():
    # gamma 0.5, lam 0.5; V = (1, 2, 3), followed by V = 4
    # delta = (1 + 0.5·2 - 1, 1 + 0.5·3 - 2, 1 + 0.5·4 - 3) = (1, 0.5, 0)
    # A2 = 0; A1 = 0.5 + 0.25·0 = 0.5; A0 = 1 + 0.25·0.5 = 1.125
    returns, advantage = gae(column(1, 1, 1), column(1, 2, 3), column(2, 3, 4), NO, NO, gamma=0.5, lam=0.5)
    assert advantage.flatten().tolist() == [1.125, 0.5, 0.0]
    assert returns.flatten().tolist() == [2.125, 2.5, 3.0]


def test_gae_stops_at_a_fall():
    # fall in step 1: delta1 = 1 - 2 = -1 (nothing follows), and step 2 does not leak back
    fell = column(False, True, False, dtype=torch.bool)
    _, advantage = gae(column(1, 1, 1), column(1, 2, 3), column(2, 3, 4), fell, NO, gamma=0.5, lam=0.5)
    assert advantage.flatten().tolist() == [1 + 0.25 * -1, -1.0, 0.0]


def test_gae_bootstraps_from_the_final_observation_at_a_time_out():
    # the clock ends step 1: delta1 = 1 + 0.5·V(final) - 2 with V(final) = 10, and step 2 does not leak back
    cut = column(False, True, False, dtype=torch.bool)
    _, advantage = gae(column(1, 1, 1), column(1, 2, 3), column(2, 10, 4), NO, cut, gamma=0.5, lam=0.5)
    assert advantage.flatten().tolist() == [1 + 0.25 * 4.0, 4.0, 0.0]


def test_both_flags_mean_terminated():
    both = column(False, True, False, dtype=torch.bool)
    one = gae(column(1, 1, 1), column(1, 2, 3), column(2, 10, 4), both, both, gamma=0.5, lam=0.5)
    other = gae(column(1, 1, 1), column(1, 2, 3), column(2, 10, 4), both, NO, gamma=0.5, lam=0.5)
    assert torch.equal(one[1], other[1])


def episodes(max_steps=12, max_envs=3):
    return st.tuples(st.integers(1, max_steps), st.integers(1, max_envs), st.integers(0, 2**20))


def random_data(num_steps, num_envs, seed):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(num_steps, num_envs, generator=generator, dtype=torch.float64)  # noqa: E731
    flag = lambda p: torch.rand(num_steps, num_envs, generator=generator) < p  # noqa: E731
    return draw(), draw(), draw(), flag(0.2), flag(0.2), flag(0.85)


@given(episodes(), st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_its_definition(sizes, gamma, lam):
    reward, value, next_value, terminated, truncated, valid = random_data(*sizes)
    num_steps, num_envs, _ = sizes
    _, advantage = gae(reward, value, next_value, terminated, truncated, gamma=gamma, lam=lam, valid=valid)
    for env in range(num_envs):
        for start in range(num_steps):
            total, weight = 0.0, 1.0
            for t in range(start, num_steps):
                if not valid[t, env]:
                    break
                bootstrap = 0.0 if terminated[t, env] else gamma * next_value[t, env]
                total += weight * (reward[t, env] + bootstrap - value[t, env])
                if terminated[t, env] or truncated[t, env]:
                    break
                weight *= gamma * lam
            assert float(advantage[start, env]) == pytest.approx(float(total), abs=1e-9)


@given(episodes(), st.floats(0, 1))
def test_lambda_one_is_the_discounted_return(sizes, gamma):
    reward, value, next_value, terminated, truncated, _ = random_data(*sizes)
    # for the identity the value of a step must be the next_value of the step before it
    going = ~(terminated | truncated)
    next_value[:-1] = torch.where(going[:-1], value[1:], next_value[:-1])
    returns, _ = gae(reward, value, next_value, terminated, truncated, gamma=gamma, lam=1.0)
    direct = discounted_returns(reward, next_value, terminated, truncated, gamma=gamma)
    assert torch.allclose(returns, direct, atol=1e-9)


@pytest.mark.slow
@given(episodes(), st.floats(0, 1), st.integers(1, 5))
def test_n_step_equals_its_definition(sizes, gamma, n):
    reward, _, next_value, terminated, truncated, _ = random_data(*sizes)
    num_steps, num_envs, _ = sizes
    found = n_step_returns(reward, next_value, terminated, truncated, gamma=gamma, n=n)
    for env in range(num_envs):
        for start in range(num_steps):
            total = 0.0
            for k in range(n):
                t = start + k
                total += gamma**k * float(reward[t, env])
                last = k == n - 1 or t == num_steps - 1 or bool(truncated[t, env])
                if terminated[t, env]:
                    break
                if last:
                    total += gamma ** (k + 1) * float(next_value[t, env])
                    break
            assert float(found[start, env]) == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (7, 1), (128, 64), (24, 4096), (100, 2, 3)])
def test_both_ways_of_scanning_agree(shape):
    from striderl.ops.returns import _scan_by_doubling

    generator = torch.Generator().manual_seed(1)
    first = torch.randn(shape, generator=generator, dtype=torch.float64)
    carry = torch.rand(shape, generator=generator, dtype=torch.float64)
    wanted = torch.zeros_like(first)
    running = torch.zeros_like(first[0])
    for t in range(shape[0] - 1, -1, -1):
        running = first[t] + carry[t] * running
        wanted[t] = running
    assert torch.allclose(backward_scan(first, carry), wanted, atol=1e-12)
    assert torch.allclose(_scan_by_doubling(first, carry), wanted, atol=1e-12)


def test_nan_in_invalid_samples_does_no_harm():
    reward, value, next_value, terminated, truncated, _ = random_data(6, 2, 3)
    valid = torch.ones(6, 2, dtype=torch.bool)
    valid[3, 1] = False
    clean = gae(reward, value, next_value, terminated, truncated, gamma=0.9, lam=0.9, valid=valid)[1]
    reward[3, 1] = float("nan")
    dirty = gae(reward, value, next_value, terminated, truncated, gamma=0.9, lam=0.9, valid=valid)[1]
    assert torch.equal(clean, dirty) and float(clean[3, 1]) == 0


def test_several_values_share_the_flags():
    reward, value, next_value, terminated, truncated, valid = random_data(8, 2, 4)
    flags = {"terminated": terminated, "truncated": truncated, "valid": valid}
    one = gae(reward, value, next_value, gamma=0.9, lam=0.8, **flags)[1]
    two = gae(2 * reward, 2 * value, 2 * next_value, gamma=0.9, lam=0.8, **flags)[1]
    stack = [torch.stack([x, 2 * x], dim=-1) for x in (reward, value, next_value)]
    both = gae(*stack, gamma=0.9, lam=0.8, **flags)[1]
    assert torch.allclose(both, torch.stack([one, two], dim=-1))


# -- V-trace -----------------------------------------------------------------------------------------------------------


def log(*numbers):
    return column(*numbers).log()


def test_vtrace_by_hand():
    # gamma 0.5; V = (1, 2, 3), then 4; rewards 1: one-step errors (1, 0.5, 0) as for GAE. Ratios 4, 1/2, 1.
    # rho = c = (1, 1/2, 1): delta = (1, 0.25, 0)
    # v2 = 3 + 0 = 3;  v1 = 2 + 0.25 + 0.5·0.5·0 = 2.25;  v0 = 1 + 1 + 0.5·1·(2.25 - 2) = 2.125
    # A = r + 0.5·v' - V: A0 = 1 + 1.125 - 1 = 1.125;  A1 = 1 + 1.5 - 2 = 0.5;  A2 = 1 + 2 - 3 = 0
    found = vtrace(column(1, 1, 1), column(1, 2, 3), column(2, 3, 4), log(4, 0.5, 1), NO, NO, gamma=0.5)
    assert found.returns.flatten().tolist() == pytest.approx([2.125, 2.25, 3.0])
    assert found.advantage.flatten().tolist() == pytest.approx([1.125, 0.5, 0.0])
    assert found.rho.flatten().tolist() == pytest.approx([1.0, 0.5, 1.0])


def test_vtrace_clips_errors_and_traces_apart():
    # ratio 4 in both steps, rho_bar 2, c_bar 1, gamma 0.5; V = (1, 2), then 4; errors (1 + 1 - 1, 1 + 2 - 2) = (1, 1)
    # v1 = 2 + 2·1 = 4; v0 = 1 + 2·1 + 0.5·1·(4 - 2) = 4
    two = NO[:2]
    found = vtrace(column(1, 1), column(1, 2), column(2, 4), log(4, 4), two, two, gamma=0.5, rho_bar=2.0, c_bar=1.0)
    assert found.returns.flatten().tolist() == pytest.approx([4.0, 4.0])
    assert found.rho.flatten().tolist() == [2.0, 2.0]


def test_vtrace_bootstraps_from_the_final_observation_at_a_time_out():
    # the clock ends step 1, V(final) = 10: A1 = 1 + 0.5·10 - 2 = 4, v1 = 2 + 4 = 6, v0 = 1 + 1 + 0.5·4 = 4
    cut = column(False, True, False, dtype=torch.bool)
    found = vtrace(column(1, 1, 1), column(1, 2, 3), column(2, 10, 4), log(1, 1, 1), NO, cut, gamma=0.5)
    assert found.advantage.flatten().tolist() == pytest.approx([1 + 0.5 * 6 - 1, 4.0, 0.0])
    assert found.returns.flatten().tolist() == pytest.approx([4.0, 6.0, 3.0])


@given(episodes(), st.floats(0, 1), st.floats(0, 1), st.floats(0.5, 3), st.floats(0.1, 1))
def test_vtrace_equals_its_definition(sizes, gamma, lam, rho_bar, share):
    reward, value, next_value, terminated, truncated, valid = random_data(*sizes)
    num_steps, num_envs, seed = sizes
    c_bar = share * rho_bar
    log_ratio = torch.randn(num_steps, num_envs, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    found = vtrace(
        reward, value, next_value, log_ratio, terminated, truncated,
        gamma=gamma, lam=lam, rho_bar=rho_bar, c_bar=c_bar, valid=valid,
    )  # fmt: skip
    ratio = log_ratio.exp()

    def target(start, env):  # the sum of the paper: no recursion
        total, weight = float(value[start, env]), 1.0
        for t in range(start, num_steps):
            if not valid[t, env]:
                break
            bootstrap = 0.0 if terminated[t, env] else gamma * float(next_value[t, env])
            delta = float(reward[t, env]) + bootstrap - float(value[t, env])
            total += weight * min(rho_bar, float(ratio[t, env])) * delta
            if terminated[t, env] or truncated[t, env]:
                break
            weight *= gamma * lam * min(c_bar, float(ratio[t, env]))
        return total

    for env in range(num_envs):
        for t in range(num_steps):
            if not valid[t, env]:
                assert found.returns[t, env] == 0 and found.advantage[t, env] == 0
                continue
            assert float(found.returns[t, env]) == pytest.approx(target(t, env), abs=1e-9)
            last = t == num_steps - 1 or bool(terminated[t, env] | truncated[t, env]) or not valid[t + 1, env]
            # what the next value target corrects of the next value, on top of V after the step
            more = 0.0 if last else target(t + 1, env) - float(value[t + 1, env])
            following = 0.0 if terminated[t, env] else float(next_value[t, env]) + more
            wanted = float(reward[t, env]) + gamma * following - float(value[t, env])
            assert float(found.advantage[t, env]) == pytest.approx(wanted, abs=1e-9)
            assert float(found.rho[t, env]) == pytest.approx(min(rho_bar, float(ratio[t, env])))


@given(episodes(), st.floats(0, 1), st.floats(0, 1))
def test_on_policy_vtrace_is_gae(sizes, gamma, lam):
    *data, valid = random_data(*sizes)
    reward, value, next_value, terminated, truncated = data
    same = torch.zeros_like(reward)
    flags = {"gamma": gamma, "lam": lam, "valid": valid}
    found = vtrace(reward, value, next_value, same, terminated, truncated, **flags)
    returns, advantage = gae(reward, value, next_value, terminated, truncated, **flags)
    assert torch.allclose(found.returns, torch.where(valid, returns, 0.0), atol=1e-9)
    if lam == 1.0:
        assert torch.allclose(found.advantage, advantage, atol=1e-9)


def test_bad_numbers_in_invalid_samples_reach_no_target_of_vtrace():
    reward, value, next_value, terminated, truncated, _ = random_data(6, 2, 3)
    valid = torch.ones(6, 2, dtype=torch.bool)
    valid[3, 1] = False
    log_ratio = torch.randn(6, 2, dtype=torch.float64)
    clean = vtrace(reward, value, next_value, log_ratio, terminated, truncated, gamma=0.9, valid=valid)
    for column_, bad in ((reward, float("nan")), (value, float("inf")), (log_ratio, 1e30), (next_value, float("nan"))):
        column_[3, 1] = bad
    dirty = vtrace(reward, value, next_value, log_ratio, terminated, truncated, gamma=0.9, valid=valid)
    for one, other in zip(clean[:2], dirty[:2]):
        assert torch.equal(one, other)


def test_several_values_of_vtrace_share_flags_and_ratios():
    reward, value, next_value, terminated, truncated, valid = random_data(8, 2, 4)
    ratio = torch.randn(8, 2, dtype=torch.float64)
    rest = (ratio, terminated, truncated)
    one = vtrace(reward, value, next_value, *rest, gamma=0.9, valid=valid)
    stack = [torch.stack([x, 2 * x], dim=-1) for x in (reward, value, next_value)]
    both = vtrace(*stack, *rest, gamma=0.9, valid=valid)
    assert torch.allclose(both.returns, torch.stack([one.returns, 2 * one.returns], dim=-1))
    assert torch.allclose(both.advantage, torch.stack([one.advantage, 2 * one.advantage], dim=-1))
    assert torch.equal(both.rho, one.rho)
