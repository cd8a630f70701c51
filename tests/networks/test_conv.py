"""Convolutions: sizes against torch itself, norm layers that do something, bytes, leading dimensions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from striderl.networks.conv import NORM_LAYERS, Conv2dHeadModel, Conv2dModel, as_float_image, conv2d_output_shape


def test_hand_worked_sizes():
    # (10 + 2*1 - 1*(3-1) - 1) // 2 + 1 = 9 // 2 + 1 = 5 and (7 + 0 - 2*(2-1) - 1) // 1 + 1 = 5
    assert conv2d_output_shape(10, 10, 3, 2, 1) == (5, 5)
    assert conv2d_output_shape(10, 7, (3, 2), (2, 1), (1, 0), (1, 2)) == (5, 5)


@given(
    st.tuples(st.integers(6, 20), st.integers(6, 20)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_sizes_against_torch(size, kernel, stride, padding, dilation):
    conv = nn.Conv2d(1, 1, kernel, stride, padding, dilation)
    assert conv2d_output_shape(*size, kernel, stride, padding, dilation) == tuple(
        conv(torch.zeros(1, 1, *size)).shape[-2:]
    )


@pytest.mark.parametrize("use_maxpool", [False, True])
def test_predicted_resolution_is_the_real_one(use_maxpool):
    model = Conv2dModel(2, [4, 6], [3, 3], [2, 1], [1, 0], use_maxpool=use_maxpool)
    maps = model(torch.randn(3, 2, 17, 12))
    assert model.conv_out_resolution(17, 12) == tuple(maps.shape[-2:])
    assert model.conv_out_size(17, 12) == maps[0].numel()
    assert any(isinstance(layer, nn.MaxPool2d) for layer in model.conv) == use_maxpool
    assert model.conv[0].stride == ((1, 1) if use_maxpool else (2, 2))


@pytest.mark.parametrize("use_maxpool", [False, True])
@pytest.mark.parametrize("output_size", [None, 5])
def test_head_for_any_leading_dimensions(use_maxpool, output_size):
    model = Conv2dHeadModel((1, 12, 10), [4, 4], [3, 3], [2, 1], [16], output_size, use_maxpool=use_maxpool)
    assert model.output_size == (output_size or 16)
    x = torch.randn(3, 5, 1, 12, 10)
    sequence = model(x)
    assert sequence.shape == (3, 5, model.output_size)
    assert torch.allclose(sequence, torch.stack([model(step) for step in x]), atol=1e-6)
    assert torch.allclose(model(x[0, 0]), sequence[0, 0], atol=1e-6)


def test_no_hidden_layer_leaves_the_flat_maps():
    model = Conv2dHeadModel((1, 5, 5), [2], [3], [1])
    assert model.output_size == 2 * 3 * 3


@pytest.mark.parametrize("name", NORM_LAYERS)
def test_norm_layers_are_applied(name):
    torch.manual_seed(0)
    model = Conv2dModel(1, [4], [3], [1], nonlinearity="identity", normlayer=name)
    maps = model(100.0 + 5.0 * torch.randn(8, 1, 9, 9)).detach()
    # every kind brings the whole output to mean 0 and spread 1
    assert maps.mean().abs() < 0.1
    assert maps.std() == pytest.approx(1.0, abs=0.1)
    plain = Conv2dModel(1, [4], [3], [1], nonlinearity="identity")
    assert plain(100.0 + 5.0 * torch.randn(8, 1, 9, 9)).std() > 3.0


def test_a_norm_function_of_ones_own():
    model = Conv2dModel(1, [6], [3], [1], normlayer=lambda channels: nn.GroupNorm(3, channels))
    assert model.conv[1].num_groups == 3
    with pytest.raises(ValueError, match="Did you mean 'layer'"):
        Conv2dModel(1, [6], [3], [1], normlayer="layr")


def test_bytes_are_cast_and_scaled_on_use():
    image = torch.randint(0, 256, (2, 1, 6, 6), dtype=torch.uint8)
    scaled = Conv2dHeadModel((1, 6, 6), [2], [3], [1], [4])
    assert torch.allclose(scaled(image), scaled(image.float() / 255.0), atol=1e-6)
    raw = Conv2dHeadModel((1, 6, 6), [2], [3], [1], [4], scale_uint8=False)
    assert torch.allclose(raw(image), raw(image.float()), atol=1e-5)
    # other integers are numbers, not pixels
    assert as_float_image(torch.tensor([7], dtype=torch.int32)).tolist() == [7.0]
    assert scaled.double()(image).dtype == torch.float64


def test_errors_say_what_was_wanted():
    with pytest.raises(ValueError, match="kernel_sizes has 1"):
        Conv2dModel(1, [4, 4], [3], [1, 1])
    with pytest.raises(ValueError, match="nothing left"):
        Conv2dHeadModel((1, 4, 4), [4], [5], [1])
    with pytest.raises(ValueError, match="channels, height, width"):
        Conv2dHeadModel((4, 4), [4], [3], [1])
    with pytest.raises(ValueError, match=r"\(1, 6, 6\)"):
        Conv2dHeadModel((1, 6, 6), [4], [3], [1])(torch.zeros(2, 1, 6, 7))
    with pytest.raises(ValueError, match=r"\[\.\.\., 1, H, W\]"):
        Conv2dModel(1, [4], [3], [1])(torch.zeros(2, 3, 6, 6))
