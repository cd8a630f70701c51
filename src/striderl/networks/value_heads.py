"""Features to values: of a state, or of every choice in it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec
from striderl.networks.deterministic import QValues
from striderl.networks.fused_layers import last_linear
from striderl.networks.head import NO_OBS, Head, read_mask
from striderl.networks.noisy import QLayer


class ValueHead(nn.Module):
    """Features [..., F] to one value [...], or to several [..., num_values] for several rewards.

    One value has no trailing dimension: [T, B, 1] minus rewards [T, B] would broadcast to [T, T, B] in silence.
    """

    def __init__(self, input_size: int, num_values: int = 1) -> None:
        super().__init__()
        if num_values < 1:
            raise ValueError(f"ValueHead wants at least one value, found {num_values}")
        self.layer = nn.Linear(input_size, num_values)
        self.num_values = num_values

    def forward(self, features: Tensor) -> Tensor:
        """Return the values."""
        values = last_linear(self.layer, features)
        return values.squeeze(-1) if self.num_values == 1 else values


class QHead(Head[Tensor]):
    """Features to one Q-value per choice; `mask` names the component with the allowed choices.

    Dueling (Wang et al. 2016): Q = V + A - mean(A), with both parts linear in the features. Noisy: see `noisy.py`.
    """

    def __init__(
        self, input_size: int, num_actions: int, dueling: bool = False, mask: str = "", noisy: bool = False
    ) -> None:
        super().__init__()
        self.layer = QLayer(input_size, num_actions, 1, dueling=dueling, noisy=noisy)
        self.num_actions, self.mask = num_actions, mask
        self.mask_components = (mask,) if mask else ()

    def head_noise(self) -> dict[str, NoiseSpec]:
        """Return the noise of noisy layers."""
        return self.layer.noise()

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> QValues:
        """Return the Q-values for features [..., F], as the greedy choice over them."""
        return QValues.from_values(self.layer.single(features, obs), read_mask(obs, self.mask))

    def noise_spec(self) -> NoiseSpec:
        """Want nothing: noise of size zero."""
        return NoiseSpec(shape=(0,), kind="normal")

    def params_spec(self) -> dict[str, TensorSpec]:
        """Store the Q-values."""
        return {"values": TensorSpec(shape=(self.num_actions,))}

    def from_params(self, params: Mapping[str, Tensor]) -> QValues:
        """Make the greedy choice over these values."""
        return QValues(params["values"])
