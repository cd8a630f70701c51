"""One head of every kind, with observations and noise that fit them."""

from __future__ import annotations

import torch

from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.noise import NoiseSpec
from striderl.networks.heads.gaussian import GaussianHead, SquashedGaussianHead
from striderl.networks.heads.table import BetaHead, CategoricalHead, DeterministicHead, MultiDiscreteHead, head_for
from striderl.networks.heads.value import QHead

BOX = BoxSpec(shape=(3,), low=(-1.0, 0.0, -2.0), high=(1.0, 5.0, 2.0))
MIXED = DictActionSpec(
    {"steer": BOX, "gear": DiscreteSpec(n=4, mask="gears"), "lights": MultiDiscreteSpec(nvec=(2, 3), mask="bulbs")}
)


def every_head():
    torch.manual_seed(0)
    return [
        GaussianHead(5, 3),
        GaussianHead(5, (2, 3), std_type="softplus", mu_activation="tanh"),
        GaussianHead(5, ()),
        GaussianHead(5, 3, std_type="log", state_dependent_std=True),
        SquashedGaussianHead(5, 3, BOX.low, BOX.high),
        BetaHead(5, 3, BOX.low, BOX.high),
        BetaHead(5, (2, 2)),
        CategoricalHead(5, 4, mask="gears"),
        MultiDiscreteHead(5, (2, 3), mask="bulbs"),
        DeterministicHead(5, 3, -1.0, 1.0),
        DeterministicHead(5, 3),
        QHead(5, 4, dueling=True, mask="gears"),
        head_for(MIXED, 5),
    ]


def observation(*leading: int) -> dict[str, torch.Tensor]:
    gears, bulbs = torch.rand(*leading, 4) < 0.5, torch.rand(*leading, 5) < 0.5
    return {"gears": gears | (torch.arange(4) == 1), "bulbs": bulbs | (torch.arange(5) % 3 == 1)}


def noise(head, *leading: int):
    spec = head.noise_spec()
    make = {"normal": torch.randn, "gumbel": torch.randn}
    if isinstance(spec, NoiseSpec):
        return make[spec.kind](*leading, *spec.shape)
    return {name: make[one.kind](*leading, *one.shape) for name, one in spec.items()}
