"""Memory: equal to torch's LSTM and GRU, step = sequence = slots = padded for any resets, NaN stays where it is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from striderl.networks.memory import Memory
from striderl.ops.trajectories import split_and_pad_trajectories, unpad_trajectories

KINDS = ("lstm", "gru")


def make(kind: str, num_layers: int = 1, input_size: int = 3, hidden_size: int = 4, seed: int = 0) -> Memory:
    torch.manual_seed(seed)
    return Memory(input_size, kind, num_layers, hidden_size)


def random_state(memory: Memory, batch: int) -> dict[str, torch.Tensor]:
    return {name: torch.randn(batch, *spec.shape) for name, spec in memory.zero_state_spec().items()}


def difference(one, other) -> float:
    return max(float((one[name] - other[name]).detach().abs().max()) for name in one)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_equal_to_torch(kind, num_layers):
    memory = make(kind, num_layers)
    reference = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](3, 4, num_layers)
    reference.load_state_dict(memory.rnn.state_dict())
    x, state = torch.randn(6, 5, 3), random_state(memory, 5)
    parts = [state[name].transpose(0, 1).contiguous() for name in state]
    wanted, finals = reference(x, tuple(parts) if kind == "lstm" else parts[0])
    finals = finals if kind == "lstm" else (finals,)
    no_resets = torch.zeros(6, 5, dtype=torch.bool)
    for outputs, after in (memory.sequence(x, state), memory.sequence(x, state, no_resets)):
        assert (outputs - wanted).abs().max() <= 1e-6
        for name, final in zip(after, finals):
            assert (after[name] - final.transpose(0, 1)).abs().max() <= 1e-6


def test_hand_worked_gru_step():
    # all weights 0 except the fresh part's input weight 1: r = z = sigma(0) = 1/2, n = tanh(x), h' = (n + h) / 2
    memory = Memory(1, "gru", 1, 1)
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.zero_()
        memory.rnn.layers()[0][0][2] = 1.0
    output, state = memory.step(torch.tensor([[0.5]]), {"hidden": torch.tensor([[[0.2]]])})
    assert output.item() == pytest.approx((torch.tensor(0.5).tanh().item() + 0.2) / 2)
    assert state["hidden"].item() == output.item()


def test_hand_worked_lstm_step():
    # all weights 0: every gate is 1/2 and g = 0, so c' = c / 2 and h' = tanh(c / 2) / 2; a reset makes both 0
    memory = Memory(1, "LSTM", 1, 1)
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.zero_()
    state = {"hidden": torch.zeros(2, 1, 1), "cell": torch.full((2, 1, 1), 0.8)}
    output, after = memory.step(torch.ones(2, 1), state, torch.tensor([False, True]))
    assert output[0].item() == pytest.approx(torch.tensor(0.4).tanh().item() / 2)
    assert after["cell"].flatten().tolist() == pytest.approx([0.4, 0.0])
    assert output[1].item() == 0.0


@st.composite
def windows(draw):
    num_steps, num_envs = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    size = num_steps * num_envs
    resets = torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))).view(num_steps, num_envs)
    valid = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))).view(num_steps, num_envs) > 0
    return resets, valid, draw(st.sampled_from(KINDS)), draw(st.integers(1, 2)), draw(st.integers(0, 5))


@pytest.mark.slow
@given(windows())
def test_step_sequence_slots_and_padded_agree(window):
    resets, _, kind, num_layers, seed = window
    num_steps, num_envs = resets.shape
    memory = make(kind, num_layers, seed=seed)
    x, start = torch.randn(num_steps, num_envs, 3), random_state(memory, num_envs)

    state, outputs = start, []
    for step in range(num_steps):
        output, state = memory.step(x[step], state, resets[step])
        outputs.append(output)
    wanted = torch.stack(outputs)

    sequence, after = memory.sequence(x, start, resets)
    assert (sequence - wanted).abs().max() <= 1e-6
    assert difference(after, state) <= 1e-6

    slots, covered = memory.sequence_by_slots(x, start, resets, num_envs + num_steps * num_envs)
    assert covered.all()
    assert (slots - wanted).abs().max() <= 1e-6

    # a reset at t ends the trajectory at t - 1; the initial state of the pieces that begin later is zero
    ends = torch.cat([resets[1:], torch.ones_like(resets[:1])])
    begin = memory.reset(start, resets[0])
    columns = {name: torch.zeros(num_steps, *begin[name].shape) for name in begin}
    for name in begin:
        columns[name][0] = begin[name]
    (padded, states), masks = split_and_pad_trajectories((x, columns), ends)
    result = memory.padded(padded, {name: states[name][0] for name in states}, masks)
    assert (unpad_trajectories(result, masks) - wanted).abs().max() <= 1e-6


@pytest.mark.slow
@given(windows())
def test_invalid_steps_are_dead_in_every_mode(window):
    resets, valid, kind, num_layers, seed = window
    num_steps, num_envs = resets.shape
    memory = make(kind, num_layers, seed=seed)
    x, start = torch.randn(num_steps, num_envs, 3), random_state(memory, num_envs)
    x = torch.where(valid.unsqueeze(-1), x, torch.nan)
    start = {name: torch.where((resets[0] | ~valid[0]).view(-1, 1, 1), torch.nan, start[name]) for name in start}

    state, outputs = start, []
    for step in range(num_steps):
        output, state = memory.step(x[step], state, resets[step], valid[step])
        outputs.append(output)
    wanted = torch.stack(outputs)
    assert wanted.isfinite().all()
    assert (wanted[~valid] == 0).all()

    sequence, after = memory.sequence(x, start, resets, valid)
    assert (sequence - wanted).abs().max() <= 1e-6
    assert difference(after, state) <= 1e-6
    slots, covered = memory.sequence_by_slots(x, start, resets, num_envs * (num_steps + 1), valid)
    assert torch.equal(covered, valid)
    assert (slots - wanted).abs().max() <= 1e-6

    for run in (
        lambda: memory.sequence(x, start, resets, valid)[0],
        lambda: memory.sequence_by_slots(x, start, resets, num_envs * (num_steps + 1), valid)[0],
    ):
        memory.zero_grad()
        run().square().sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in memory.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_all_modes_agree(kind):
    memory = make(kind, 2)
    x, start = torch.randn(7, 3, 3, requires_grad=True), random_state(memory, 3)
    resets = torch.rand(7, 3, generator=torch.Generator().manual_seed(1)) < 0.3
    weights = torch.randn(7, 3, 4)
    runs = (memory.sequence(x, start, resets)[0], memory.sequence_by_slots(x, start, resets, 30)[0])
    gradients = [torch.autograd.grad((outputs * weights).sum(), [x, *memory.parameters()]) for outputs in runs]
    for one, other in zip(*gradients):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_slots_give_zero_and_say_so(kind):
    memory = make(kind)
    x = torch.randn(4, 2, 3)
    resets = torch.tensor([[0, 0], [1, 0], [0, 1], [0, 0]]).bool()
    outputs, covered = memory.sequence_by_slots(x, memory.initial_state(2), resets, 3)
    wanted, _ = memory.sequence(x, memory.initial_state(2), resets)
    assert covered.tolist() == [[True, True], [True, True], [True, False], [True, False]]
    assert (outputs[~covered] == 0).all()
    assert (outputs - wanted)[covered].abs().max() <= 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_nan_in_padding_touches_nothing(kind):
    memory = make(kind)
    masks = torch.tensor([[1, 1], [1, 0], [1, 0]]).bool()
    clean = torch.randn(3, 2, 3)
    x = torch.where(masks.unsqueeze(-1), clean, torch.nan)
    outputs = memory.padded(x, memory.initial_state(2), masks)
    assert torch.equal(outputs, memory.padded(clean, memory.initial_state(2), masks))
    outputs.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in memory.parameters())


def test_nan_in_a_dead_state_does_not_survive_a_reset():
    memory = make("lstm")
    state = {name: torch.full((2, 1, 4), torch.nan) for name in ("hidden", "cell")}
    output, after = memory.step(torch.randn(2, 3), state, torch.tensor([True, True]))
    assert output.isfinite().all()
    assert all(value.isfinite().all() for value in after.values())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.uint8, torch.float32])
def test_dones_of_any_dtype_reset_exactly_the_finished_envs(dtype):
    memory = make("lstm", 2)
    state = random_state(memory, 4)
    after = memory.reset(state, torch.tensor([0, 0, 1, 0]).to(dtype))
    for name in state:
        assert (after[name][2] == 0).all()
        assert torch.equal(after[name][[0, 1, 3]], state[name][[0, 1, 3]])
        assert (state[name][2] != 0).any()  # the argument is not changed


def test_states_specs_and_detaching():
    memory = make("lstm", 2, hidden_size=5)
    state = memory.initial_state(3)
    assert list(state) == ["hidden", "cell"] == list(memory.zero_state_spec())
    assert all(value.shape == (3, 2, 5) and not value.any() for value in state.values())
    assert memory.zero_state_spec()["cell"].shape == (2, 5)
    assert list(make("gru").initial_state(1)) == ["hidden"]
    _, after = memory.step(torch.randn(3, 3), state)
    assert after["cell"].requires_grad
    assert not any(value.requires_grad for value in memory.detach_hidden_states(after).values())
    assert memory.output_size == 5


def test_forward_takes_steps_and_sequences():
    memory = make("gru")
    x, state = torch.randn(2, 3, 3), memory.initial_state(3)
    assert torch.allclose(memory(x, state)[0][0], memory(x[0], state)[0], atol=1e-6)


def test_gradients_flow_in_eval_mode_too():
    memory = make("lstm").eval()
    memory.sequence(torch.randn(2, 3, 3), memory.initial_state(3))[0].sum().backward()
    assert all(parameter.grad is not None for parameter in memory.parameters())


def test_compacted_weights_are_the_weights():
    memory = make("lstm", 2)
    compacted = memory.rnn.compacted()
    assert all(torch.equal(one, other) for one, other in zip(compacted, memory.rnn.parameters()))
    assert len({view.untyped_storage().data_ptr() for view in compacted}) == 1


def test_bad_settings_raise():
    with pytest.raises(ValueError, match="Did you mean 'lstm'"):
        Memory(3, "lsmt")
    with pytest.raises(ValueError, match="hidden_size=0"):
        Memory(3, "gru", 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_step_and_a_sequence_compile_whole(kind):
    memory = make(kind, 2)
    x, state = torch.randn(3, 2, 3), random_state(memory, 2)
    resets = torch.tensor([[0, 1], [0, 0], [1, 0]]).bool()
    step = torch.compile(memory.step, fullgraph=True, backend="eager")
    assert torch.allclose(step(x[0], state, resets[0])[0], memory.step(x[0], state, resets[0])[0], atol=1e-6)
    sequence = torch.compile(memory.sequence, fullgraph=True, backend="aot_eager")
    assert torch.allclose(sequence(x, state, resets)[0], memory.sequence(x, state, resets)[0], atol=1e-6)
    slots = torch.compile(memory.sequence_by_slots, fullgraph=True, backend="eager")
    assert torch.allclose(slots(x, state, resets, 5)[0], memory.sequence(x, state, resets)[0], atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cudnn_agrees_and_can_be_captured(kind):
    memory = make(kind, 2, hidden_size=16).cuda()
    x, state = torch.randn(8, 32, 3, device="cuda"), memory.initial_state(32)
    resets = torch.rand(8, 32, device="cuda") < 0.2
    wanted, _ = memory.sequence(x, state, resets)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        outputs, covered = _captured(memory, x, state, resets)
    assert covered.all()
    assert (outputs - wanted).abs().max() <= 1e-5


def _captured(memory, x, state, resets):
    """Run the slots once through a CUDA graph, which refuses any host synchronisation."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            memory.sequence_by_slots(x, state, resets, 160)[0].sum().backward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs, covered = memory.sequence_by_slots(x, state, resets, 160)
    graph.replay()
    torch.cuda.synchronize()
    return outputs, covered
