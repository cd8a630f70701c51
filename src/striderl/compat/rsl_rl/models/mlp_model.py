"""`MLPModel`: observation groups, joined and normalised, through layers to an output or to a distribution of it.

    obs {"policy": [N, 48], …} ─▶ get_latent: cat, obs_normalizer ─▶ mlp ─▶ distribution ─▶ sample, or its mean

A subclass overrides `get_latent` and the size that the layers read, `_get_latent_dim`; `RNNModel` and `CNNModel` do.
Exports are plain modules with copies of the parts: `as_jit` for `torch.jit.script`, `as_onnx` for `torch.onnx.export`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from striderl.compat.rsl_rl.modules.distribution import Distribution, Params
from striderl.compat.rsl_rl.modules.mlp import MLP
from striderl.compat.rsl_rl.modules.normalization import EmpiricalNormalization
from striderl.compat.rsl_rl.modules.rnn import HiddenState
from striderl.compat.rsl_rl.utils.utils import resolve_class, unpad_trajectories


class MLPModel(nn.Module):
    """Vectors to an output, deterministic or sampled; see the top of this module."""

    is_recurrent: bool = False
    """Whether there is a memory."""

    def __init__(
        self,
        obs: Any,
        obs_groups: dict[str, list[str]],
        obs_set: str,
        output_dim: int,
        hidden_dims: Sequence[int] = (256, 256, 256),
        activation: str = "elu",
        obs_normalization: bool = False,
        distribution_cfg: dict[str, Any] | None = None,
    ) -> None:
        """Build a model of the groups `obs_groups[obs_set]` of observations like `obs`.

        distribution_cfg: class_name and arguments of a distribution; without it the output is that of the layers.
        """
        super().__init__()
        self.obs_groups, self.obs_dim = self._get_obs_dim(obs, obs_groups, obs_set)
        self.obs_normalization = obs_normalization
        self.obs_normalizer: nn.Module = EmpiricalNormalization(self.obs_dim) if obs_normalization else nn.Identity()
        self.distribution: Distribution | None = None
        if distribution_cfg is not None:
            kind, settings = resolve_class(distribution_cfg)
            self.distribution = kind(output_dim, **settings)
        shape = output_dim if self.distribution is None else self.distribution.input_dim
        self.mlp = MLP(self._get_latent_dim(), shape, hidden_dims, activation)
        if self.distribution is not None:
            self.distribution.init_mlp_weights(self.mlp)

    def forward(
        self,
        obs: Any,
        masks: Tensor | None = None,
        hidden_state: HiddenState = None,
        stochastic_output: bool = False,
    ) -> Tensor:
        """Return the output; with `stochastic_output` a sample, whose distribution is kept.

        masks: of padded trajectories, with the hidden states before them.
        """
        if masks is not None and not self.is_recurrent:
            obs = unpad_trajectories(obs, masks)
        raw = self.mlp(self.get_latent(obs, masks, hidden_state))
        if self.distribution is None:
            return raw  # type: ignore[no-any-return]
        if not stochastic_output:
            return self.distribution.deterministic_output(raw)
        self.distribution.update(raw)
        return self.distribution.sample()

    def get_latent(self, obs: Any, masks: Tensor | None = None, hidden_state: HiddenState = None) -> Tensor:
        """Return what the layers read."""
        return self.obs_normalizer(self._joined(obs))  # type: ignore[no-any-return]

    def _joined(self, obs: Any) -> Tensor:
        return torch.cat([obs[group] for group in self.obs_groups], dim=-1)

    # -- the memory, of which there is none here -----------------------------------------------------------------------

    def reset(self, dones: Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Reset the memory where `dones` is 1, or replace it."""

    def get_hidden_state(self) -> HiddenState:
        """Return the memory."""
        return None

    def detach_hidden_state(self, dones: Tensor | None = None) -> None:
        """Cut the memory off its graph."""

    # -- the distribution of the last sample ---------------------------------------------------------------------------

    @property
    def output_mean(self) -> Tensor:
        """The mean [.., A]."""
        return self._sampled().mean

    @property
    def output_std(self) -> Tensor:
        """The standard deviation [.., A]."""
        return self._sampled().std

    @property
    def output_entropy(self) -> Tensor:
        """The entropy [..]."""
        return self._sampled().entropy

    @property
    def output_distribution_params(self) -> Params:
        """The parameters, which a storage keeps."""
        return self._sampled().params

    def get_output_log_prob(self, outputs: Tensor) -> Tensor:
        """Return the log-probability [..] of outputs."""
        return self._sampled().log_prob(outputs)

    def get_kl_divergence(self, old_params: Params, new_params: Params) -> Tensor:
        """Return KL(old ‖ new) [..]."""
        return self._sampled().kl_divergence(old_params, new_params)

    def _sampled(self) -> Distribution:
        if self.distribution is None:
            raise AttributeError(f"this {type(self).__name__} is deterministic: it was built without distribution_cfg")
        return self.distribution

    # -- normalising and exporting -------------------------------------------------------------------------------------

    def update_normalization(self, obs: Any) -> None:
        """Learn the statistics of observations [B, …], where the model normalises."""
        if isinstance(self.obs_normalizer, EmpiricalNormalization):
            self.obs_normalizer.update(self._joined(obs))

    def as_jit(self) -> nn.Module:
        """Return a module for `torch.jit.script`: joined observations [B, F] to outputs."""
        return ScriptedModel(self)

    def as_onnx(self, verbose: bool = False) -> nn.Module:
        """Return a module for `torch.onnx.export`, with the names of inputs and outputs."""
        return OnnxModel(self, verbose)

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def _get_obs_dim(self, obs: Any, obs_groups: dict[str, list[str]], obs_set: str) -> tuple[list[str], int]:
        """Return the groups of vectors, and how many numbers they have together."""
        groups = obs_groups[obs_set]
        for group in groups:
            if obs[group].dim() != 2:
                raise ValueError(
                    f"{type(self).__name__} reads vectors [N, F]; the group '{group}' has the shape "
                    f"{tuple(obs[group].shape)}. Use a CNNModel for images"
                )
        return groups, sum(obs[group].shape[-1] for group in groups)

    def _get_latent_dim(self) -> int:
        """Return how many numbers the layers read."""
        return self.obs_dim


class ModelParts(nn.Module):
    """Copies of a model's parts, on the CPU."""

    def __init__(self, model: MLPModel) -> None:
        super().__init__()
        self.obs_normalizer = copy.deepcopy(model.obs_normalizer).cpu()
        self.mlp = copy.deepcopy(model.mlp).cpu()
        self.deterministic_output: nn.Module = nn.Identity()
        if model.distribution is not None:
            self.deterministic_output = model.distribution.as_deterministic_output_module()


class ScriptedModel(ModelParts):
    """forward(obs [B, F]) -> outputs."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return self.deterministic_output(self.mlp(self.obs_normalizer(x)))  # type: ignore[no-any-return]

    @torch.jit.export
    def reset(self) -> None:
        """Do nothing: there is no memory."""


class OnnxModel(ModelParts):
    """forward(obs [1, F]) -> actions, with names."""

    is_recurrent: bool = False

    def __init__(self, model: MLPModel, verbose: bool) -> None:
        super().__init__(model)
        self.verbose, self.input_size = verbose, model.obs_dim

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return self.deterministic_output(self.mlp(self.obs_normalizer(x)))  # type: ignore[no-any-return]

    def get_dummy_inputs(self) -> tuple[Tensor, ...]:
        """Return inputs of one env."""
        return (torch.zeros(1, self.input_size),)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order."""
        return ["obs"]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return ["actions"]
