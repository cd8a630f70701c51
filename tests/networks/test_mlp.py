"""MLPs, activations by name, and initialisation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from striderl.networks.heads.gaussian import GaussianHead
from striderl.networks.mlp import ACTIVATIONS, MlpModel, get_activation_Cls, resolve_nn_activation


def test_hand_worked_forward():
    # hidden: relu([1, -2] . x) for x = (3, 1): relu(3 - 2) = 1 and relu(-3 + 2) = 0; output 5 * 1 + 7 * 0 + 1 = 6
    model = MlpModel(2, 2, 1)
    with torch.no_grad():
        model.model[0].weight.copy_(torch.tensor([[1.0, -2.0], [-1.0, 2.0]]))
        model.model[0].bias.zero_()
        model.model[2].weight.copy_(torch.tensor([[5.0, 7.0]]))
        model.model[2].bias.fill_(1.0)
    assert model(torch.tensor([3.0, 1.0])).tolist() == [6.0]


@pytest.mark.parametrize(
    ("hidden", "output", "size", "kinds"),
    [
        ([8, 6], 3, 3, "LALAL"),
        ((8, 6), None, 6, "LALA"),
        (8, None, 8, "LA"),
        (None, 3, 3, "L"),
        ([], 3, 3, "L"),
        (None, None, 4, ""),
    ],
)
def test_every_form_of_sizes(hidden, output, size, kinds):
    model = MlpModel(4, hidden, output, nonlinearity="elu")
    assert model.output_size == size
    assert "".join("L" if isinstance(layer, nn.Linear) else "A" for layer in model.model) == kinds
    for leading in ((5,), (3, 5), ()):
        assert model(torch.randn(*leading, 4)).shape == (*leading, size)


def test_step_and_sequence_agree():
    model = MlpModel(4, [8], 2, nonlinearity=nn.Tanh)
    x = torch.randn(3, 5, 4)
    assert torch.allclose(model(x), torch.stack([model(step) for step in x]), atol=1e-6)


def test_integers_are_cast_and_wrong_widths_named():
    assert MlpModel(3, [4])(torch.ones(2, 3, dtype=torch.uint8)).dtype == torch.float32
    assert MlpModel(3, [4]).double()(torch.ones(2, 3, dtype=torch.int64)).dtype == torch.float64
    with pytest.raises(ValueError, match=r"\[\.\.\., 3\], found \(2, 4\)"):
        MlpModel(3, [4])(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="at least one unit"):
        MlpModel(3, [4, 0])


def test_activation_names():
    assert get_activation_Cls("elu") is nn.ELU
    assert get_activation_Cls("LeakyReLU") is get_activation_Cls("lrelu") is nn.LeakyReLU
    assert get_activation_Cls(nn.GELU) is nn.GELU
    assert isinstance(resolve_nn_activation("silu"), nn.SiLU)
    for name in ACTIVATIONS:
        assert resolve_nn_activation(name)(torch.tensor([0.5])).isfinite().all()


def test_unknown_activations_raise_with_a_suggestion():
    with pytest.raises(ValueError, match="Did you mean 'softplus'"):
        get_activation_Cls("sofplus")
    with pytest.raises(ValueError, match=r"'relu'.*'celu'"):
        MlpModel(3, [4], nonlinearity="crelu")


def test_the_std_layer_starts_constant_and_so_again_after_a_reset():
    head = GaussianHead(5, 2, std_type="log", init_std=0.5, state_dependent_std=True)
    assert torch.allclose(head(torch.randn(3, 5)).std, torch.tensor(0.5))
    nn.init.ones_(head.std_layer.weight)
    head.std_layer.reset_parameters()
    assert torch.allclose(head(torch.randn(3, 5)).std, torch.tensor(0.5))
