"""Windows with resets on the CPU: blank steps before them, and fused calls that equal cell after cell."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from striderl.networks.memory import Memory
from striderl.ops.trajectories import shapes_may_depend_on_values, space_trajectories, static_shapes


@pytest.mark.slow
@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["lstm", "gru"]), layers=st.integers(1, 2))
def test_the_fused_call_equals_cells(seed, kind, layers):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    steps, envs = 1 + seed % 7, 1 + seed % 4
    torch.manual_seed(seed)
    memory = Memory(3, kind, layers, 5).double()
    resets = random(steps, envs) > (0.0 if seed % 3 == 0 else 1.0)
    valid = random(steps, envs) < (1.0 if seed % 5 else -9.0)
    # what is dead holds NaN: it must not be read, forward or backward
    x = torch.where(valid.unsqueeze(-1), random(steps, envs, 3), torch.nan)
    state = {name: random(envs, layers, 5) for name in memory.initial_state(1)}

    def run() -> list[torch.Tensor]:
        inputs = [x.clone().requires_grad_(), *(value.clone().requires_grad_() for value in state.values())]
        outputs, ends = memory.sequence(inputs[0], dict(zip(state, inputs[1:])), resets, valid)
        total = outputs.square().sum() + sum(end.sum() for end in ends.values())
        wanted = [*inputs, *memory.parameters()]
        grads = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
        return [outputs, *(ends[name] for name in state), *grads]

    fused = run()
    with static_shapes():
        cells = run()
    for one, other in zip(fused, cells):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-12)


def test_a_blank_step_comes_before_each_reset():
    resets = torch.tensor([[True, False], [False, False], [True, False], [False, True]])
    valid = torch.tensor([[True, True], [True, True], [True, False], [True, True]])
    spaced = space_trajectories(resets, valid)
    # env 0: p q CLEAR r s; env 1: its third step is dead, clears by itself, and the last one is held until the end
    assert spaced.num_steps == 5
    assert (spaced.place // 2).tolist() == [[0, 0], [1, 1], [3, 2], [4, 3]]
    assert spaced.gates[:, 0].tolist() == [[False, False]] * 2 + [[True, False]] + [[False, False]] * 2
    assert spaced.gates[:, 1].tolist() == [[False, False]] * 2 + [[True, False], [False, False], [False, True]]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_an_episode_that_is_not_finite_does_not_reach_the_next_one(kind):
    torch.manual_seed(0)
    memory, resets = Memory(2, kind, 1, 4), torch.tensor([[False], [False], [True], [False]])
    x = torch.randn(4, 1, 2)
    wanted, _ = memory.sequence(x[2:], memory.initial_state(1))
    x[0] = torch.nan
    outputs, _ = memory.sequence(x, memory.initial_state(1), resets, torch.ones_like(resets))
    assert outputs[:2].isnan().all()
    torch.testing.assert_close(outputs[2:], wanted)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_single_precision_agrees_to_rounding(kind):
    torch.manual_seed(0)
    memory = Memory(6, kind, 1, 32)
    x, state = torch.randn(24, 8, 6), {name: torch.randn(8, 1, 32) for name in memory.initial_state(1)}
    resets = torch.rand(24, 8) < 0.05
    fused, ends = memory.sequence(x, state, resets, None)
    with static_shapes():
        cells, wanted = memory.sequence(x, state, resets, None)
    torch.testing.assert_close(fused, cells, rtol=0.0, atol=1e-6)
    for name in wanted:
        torch.testing.assert_close(ends[name], wanted[name], rtol=0.0, atol=1e-6)


def test_values_are_read_only_where_that_is_free():
    x = torch.zeros(2)
    assert shapes_may_depend_on_values(x)
    with static_shapes():
        assert not shapes_may_depend_on_values(x)
    assert not shapes_may_depend_on_values(torch.zeros(2, device="meta"))
    assert shapes_may_depend_on_values(x)
    with pytest.raises(ValueError), static_shapes():
        raise ValueError
    assert shapes_may_depend_on_values(x)
