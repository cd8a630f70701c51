"""`CNNModel`: an MLPModel whose image groups go through convolutions, which two models may share."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from striderl.compat.rsl_rl.models.mlp_model import MLPModel, ModelParts
from striderl.compat.rsl_rl.modules.cnn import CNN
from striderl.compat.rsl_rl.modules.rnn import HiddenState

_log = logging.getLogger(__name__)


class CNNModel(MLPModel):
    """Groups [N, C, H, W] through a CNN each, groups [N, F] normalised; joined, vectors first, for the layers."""

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
        cnn_cfg: Mapping[str, Any] | None = None,
        cnns: nn.ModuleDict | Mapping[str, nn.Module] | None = None,
    ) -> None:
        """Build a model as `MLPModel` does.

        cnn_cfg: the arguments of a CNN, for all image groups, or by group.
        cnns: encoders of another model, which are shared; then cnn_cfg has no effect.
        """
        self._get_obs_dim(obs, obs_groups, obs_set)
        made = self._encoders(cnn_cfg) if cnns is None else cnns
        if cnns is not None and set(cnns.keys()) != set(self.obs_groups_2d):
            raise ValueError(
                f"shared encoders read the images {sorted(cnns.keys())}, this model has {sorted(self.obs_groups_2d)}; "
                "the image groups of all models that share encoders must be the same"
            )
        if cnns is not None and cnn_cfg is not None:
            _log.warning("the model shares the encoders of another one: its own cnn_cfg has no effect")
        self.cnn_latent_dim = 0
        for name, cnn in made.items():
            size = getattr(cnn, "output_dim", None)
            if not isinstance(size, int):
                raise ValueError(f"the CNN of '{name}' must flatten its output: set flatten=True")
            self.cnn_latent_dim += size
        super().__init__(
            obs, obs_groups, obs_set, output_dim, hidden_dims, activation, obs_normalization, distribution_cfg
        )
        self.cnns = made if isinstance(made, nn.ModuleDict) else nn.ModuleDict(dict(made))

    def _encoders(self, cnn_cfg: Mapping[str, Any] | None) -> dict[str, nn.Module]:
        if cnn_cfg is None:
            raise ValueError("a CNNModel wants cnn_cfg, the arguments of its CNN, or cnns of a model that shares them")
        by_group = cnn_cfg
        if not all(isinstance(each, Mapping) for each in cnn_cfg.values()):
            by_group = dict.fromkeys(self.obs_groups_2d, cnn_cfg)
        if set(by_group) != set(self.obs_groups_2d):
            raise ValueError(f"cnn_cfg has settings of {sorted(by_group)}, the images are {sorted(self.obs_groups_2d)}")
        sizes = zip(self.obs_groups_2d, self.obs_dims_2d, self.obs_channels_2d, strict=True)
        return {name: CNN(input_dim=size, input_channels=count, **by_group[name]) for name, size, count in sizes}

    def get_latent(self, obs: Any, masks: Tensor | None = None, hidden_state: HiddenState = None) -> Tensor:
        """Return vectors and encoded images, joined."""
        encoded = [self._encode(name, obs[name]) for name in self.obs_groups_2d]
        vectors = [super().get_latent(obs)] if self.obs_groups else []
        return torch.cat([*vectors, *encoded], dim=-1)

    def _encode(self, name: str, image: Tensor) -> Tensor:
        """Encode images [.., C, H, W], also of whole rollouts [T, N, …]."""
        lead = image.shape[:-3]
        encoded: Tensor = self.cnns[name](image.reshape(-1, *image.shape[-3:]))
        return encoded.reshape(*lead, -1)

    def as_jit(self) -> nn.Module:
        """Return a module for `torch.jit.script`: forward(vectors [B, F], [images])."""
        return ScriptedCnn(self)

    def as_onnx(self, verbose: bool = False) -> nn.Module:
        """Return a module for `torch.onnx.export`: forward(vectors, image, …)."""
        return OnnxCnn(self, verbose)

    def _get_obs_dim(self, obs: Any, obs_groups: dict[str, list[str]], obs_set: str) -> tuple[list[str], int]:
        """Note the image groups, and return those of vectors."""
        vectors: list[str] = []
        images: list[str] = []
        for group in obs_groups[obs_set]:
            dims = obs[group].dim()
            if dims not in (2, 4):
                raise ValueError(
                    f"a CNNModel reads vectors [N, F] and images [N, C, H, W]; the group '{group}' has the shape "
                    f"{tuple(obs[group].shape)}"
                )
            (images if dims == 4 else vectors).append(group)
        if not images:
            raise ValueError(f"none of the groups {obs_groups[obs_set]} is an image [N, C, H, W]; use an MLPModel")
        self.obs_groups_2d = images
        self.obs_dims_2d = [tuple(obs[group].shape[2:4]) for group in images]
        self.obs_channels_2d = [obs[group].shape[1] for group in images]
        return vectors, sum(obs[group].shape[-1] for group in vectors)

    def _get_latent_dim(self) -> int:
        return self.obs_dim + self.cnn_latent_dim


class _WithEncoders(ModelParts):
    def __init__(self, model: CNNModel) -> None:
        super().__init__(model)
        self.cnns = nn.ModuleList([copy.deepcopy(model.cnns[name]).cpu() for name in model.obs_groups_2d])


class ScriptedCnn(_WithEncoders):
    """forward(obs_1d [B, F], obs_2d: a list of images) -> outputs."""

    def forward(self, obs_1d: Tensor, obs_2d: list[Tensor]) -> Tensor:
        """Return the outputs."""
        latents = [self.obs_normalizer(obs_1d)]
        for at, cnn in enumerate(self.cnns):
            latents.append(cnn(obs_2d[at]))
        return self.deterministic_output(self.mlp(torch.cat(latents, dim=-1)))  # type: ignore[no-any-return]

    @torch.jit.export
    def reset(self) -> None:
        """Do nothing: there is no memory."""


class OnnxCnn(_WithEncoders):
    """forward(obs [1, F], image, …) -> actions."""

    is_recurrent: bool = False

    def __init__(self, model: CNNModel, verbose: bool) -> None:
        super().__init__(model)
        self.verbose, self.input_size = verbose, model.obs_dim
        self.obs_groups_2d = model.obs_groups_2d
        self.image_shapes = [
            (count, *size) for count, size in zip(model.obs_channels_2d, model.obs_dims_2d, strict=True)
        ]

    def forward(self, obs_1d: Tensor, *obs_2d: Tensor) -> Tensor:
        """Return the outputs."""
        encoded = [cnn(image) for cnn, image in zip(self.cnns, obs_2d, strict=True)]
        latent = torch.cat([self.obs_normalizer(obs_1d), *encoded], dim=-1)
        return self.deterministic_output(self.mlp(latent))  # type: ignore[no-any-return]

    def get_dummy_inputs(self) -> tuple[Tensor, ...]:
        """Return inputs of one env."""
        return (torch.zeros(1, self.input_size), *(torch.zeros(1, *shape) for shape in self.image_shapes))

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order."""
        return ["obs", *self.obs_groups_2d]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return ["actions"]
