"""Ensembles: each member is a network of its own."""

from __future__ import annotations

import pytest
import torch

from striderl.networks.ensemble import EnsembleMlp


@pytest.mark.parametrize("layer_norm", [False, True])
def test_members_equal_networks_one_by_one(layer_norm):
    torch.manual_seed(0)
    ensemble = EnsembleMlp(3, 5, (7, 6), 2, "tanh", layer_norm=layer_norm)
    x = torch.randn(11, 5)
    together = ensemble(x)
    assert together.shape == (3, 11, 2)
    for member in range(3):
        h = x
        for layer in ensemble.model:
            if hasattr(layer, "weight") and layer.weight.dim() == 3:
                h = h @ layer.weight[member] + layer.bias[member]
            else:
                h = layer(h)
        assert torch.allclose(together[member], h, atol=1e-6)


def test_members_begin_differently_and_learn_alone():
    torch.manual_seed(0)
    ensemble = EnsembleMlp(2, 3, (4,), 1)
    output = ensemble(torch.randn(5, 3))
    assert not torch.allclose(output[0], output[1])
    output[0].sum().backward()
    assert all(float(p.grad[1].abs().sum()) == 0.0 for p in ensemble.parameters())


def test_one_input_per_member():
    torch.manual_seed(0)
    ensemble = EnsembleMlp(2, 3, (4,), 1)
    x = torch.randn(2, 5, 3)
    assert torch.allclose(ensemble(x)[1], ensemble(x[1])[1], atol=1e-6)


def test_first_weights_have_torch_linears_range():
    torch.manual_seed(0)
    weight = EnsembleMlp(8, 16, (64,), 1).model[0].weight.detach()
    assert float(weight.abs().max()) <= 0.25 and float(weight.std()) == pytest.approx(0.25 / 3**0.5, rel=0.03)


def test_an_empty_ensemble_is_refused():
    with pytest.raises(ValueError, match="at least one member, found 0"):
        EnsembleMlp(0, 3, (4,), 1)
