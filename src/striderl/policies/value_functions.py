"""Value functions without an actor: of an action in a state, of every choice in it, of the state itself.

QFunction         obs ─ stages ─▶ features ─┐
                                            ├─▶ K networks ─▶ [K, B] (or [K, B, O]: quantiles, atoms)
                  action ───────────────────┘
ChoiceQFunction   obs ─ stages ─▶ features ───▶ K networks ─▶ [K, B, n]
ValueFunction     obs ─ stages ─▶ features ───▶ one network ─▶ [B]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from striderl.data.actions import ActionSpec, BoxSpec, DiscreteSpec
from striderl.data.checked_fields import suggests_fields
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.ensemble import EnsembleMlp, RenormEnsembleMlp
from striderl.networks.heads.value import ValueHead
from striderl.networks.mlp import MlpModel, as_sizes, weight_dtype
from striderl.ops.moments import AllReduce
from striderl.policies.actor_policy import plain_component
from striderl.policies.arguments import as_names
from striderl.policies.component_defaults import component_defaults
from striderl.policies.policy import masked
from striderl.policies.stage import (
    Obs,
    Pipeline,
    StageInput,
    StageOutput,
    StageRecipe,
    State,
    as_stages,
    flat_features,
    only,
)


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class QFunctionConfig:
    """The configuration of a Q-function; plain data, saved with a run."""

    obs: tuple[str, ...] = ("policy", "critic")
    """Components or groups that it reads; groups the env does not have are left out of the default only."""
    stages: tuple[StageRecipe, ...] = ()
    """Its stages, in order; shared by all members."""
    hidden_dims: tuple[int, ...] = (256, 256)
    """Hidden layers of each member."""
    activation: str = "relu"
    """The nonlinearity."""
    num_members: int = 2
    """Number of networks."""
    num_outputs: int = 1
    """Numbers per member: 1 for a value, more for quantiles or atoms."""
    layer_norm: bool = False
    """Normalise each hidden layer before its nonlinearity."""
    batch_renorm: bool = False
    """Renormalise the input and each hidden layer over the batch; for `CrossQ` only, which keeps the statistics."""
    renorm_warmup: int = 100_000
    """Gradient steps in which that is plain batch normalisation."""
    flatten_images: bool = False
    """Give images to the layers as plain numbers; otherwise each that no stage encodes gets a CNN of its own."""
    one_hot: bool = True
    """Turn Discrete and MultiDiscrete components into one-hot vectors; otherwise they enter as the numbers they are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "obs", as_names(self.obs, "QFunctionConfig.obs"))
        object.__setattr__(self, "hidden_dims", as_sizes(self.hidden_dims))
        object.__setattr__(self, "stages", as_stages(self.stages, "QFunctionConfig.stages"))
        if self.batch_renorm and self.layer_norm:
            raise ValueError("QFunctionConfig: layer_norm and batch_renorm exclude each other")


class QFunction(nn.Module):
    """Values of real-valued actions; see the picture at the top of this module."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, config: QFunctionConfig | None = None) -> None:
        """Build all members for these observations and actions."""
        super().__init__()
        if not isinstance(action_spec, BoxSpec):
            raise TypeError(f"QFunction wants real-valued actions, found {type(action_spec).__name__}")
        self.config = config = config or QFunctionConfig()
        wanted = config.obs
        if wanted == QFunctionConfig.obs:
            wanted = tuple(name for name in wanted if obs_spec.resolve(name) is not None)
        self.inputs = obs_spec.select(wanted)
        self.pipeline = critic_pipeline(self.inputs, obs_spec, config, "critic")
        self._plain = plain_component(self.pipeline)
        size = self.pipeline.output_spec.size + action_spec.tensor.size
        self.members: EnsembleMlp | RenormEnsembleMlp = _members(config, size)
        self._event_dims = len(action_spec.shape)

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return the spec of one env's memory."""
        return self.pipeline.state_spec()

    def update_normalization(self, obs: Obs, valid: Tensor | None = None, all_reduce: AllReduce | None = None) -> None:
        """Update the normalisers from raw observations."""
        self.pipeline.update_normalization(obs, valid, all_reduce)

    def features(
        self, obs: Obs, state: State, resets: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the stages on one step or a sequence; returns (features, the new memory)."""
        if self._plain in obs and valid is None and obs[self._plain].dtype is weight_dtype(self.members):
            return obs[self._plain], {}
        given = masked(obs, valid)
        stage_input = StageInput(only(given, self.inputs, who="the Q-function"), state, {}, resets, valid)
        passed: StageOutput = self.pipeline(stage_input._replace(whole=given))
        return flat_features(passed.obs, self.pipeline.output_spec, self), passed.state

    def value(self, features: Tensor, action: Tensor) -> Tensor:
        """Return [K, ...] (or [K, ..., O]) for features [..., F] and actions [..., …]."""
        joined = self.joined(features, action)
        leading = joined.shape[:-1]
        output: Tensor = self.members(joined.reshape(-1, joined.shape[-1]))
        output = output.reshape(output.shape[0], *leading, output.shape[-1])
        return output.squeeze(-1) if self.config.num_outputs == 1 else output

    def joined(self, features: Tensor, action: Tensor) -> Tensor:
        """Return the input of the members, [..., F + A]."""
        flat = action.flatten(-self._event_dims) if self._event_dims else action.unsqueeze(-1)
        return torch.cat([features, flat.to(features.dtype)], dim=-1)

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the values of actions in single steps [B, …], for Q-functions without memory."""
        return self.value(self.features(obs, {})[0], action)


def critic_pipeline(inputs: ObsSpec, obs_spec: ObsSpec, config: QFunctionConfig, name: str) -> Pipeline:
    """Build the stages of a critic, with the default stages for images and discrete components."""
    defaults = component_defaults(inputs, config.stages, flatten_images=config.flatten_images, one_hot=config.one_hot)
    defaults.log(name)
    return Pipeline(inputs, config.stages, obs_spec, name=name, defaults=defaults)


def _members(config: QFunctionConfig, size: int) -> EnsembleMlp | RenormEnsembleMlp:
    shape = (config.num_members, size, config.hidden_dims, config.num_outputs, config.activation)
    if config.batch_renorm:
        return RenormEnsembleMlp(*shape, warmup=config.renorm_warmup)
    return EnsembleMlp(*shape, layer_norm=config.layer_norm)


# -- of every choice ---------------------------------------------------------------------------------------------------


class ChoiceQFunction(nn.Module):
    """Values of all choices; takes the config of a `QFunction`, with one number per choice and member."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, config: QFunctionConfig | None = None) -> None:
        """Build all members for these observations and choices."""
        super().__init__()
        if not isinstance(action_spec, DiscreteSpec):
            raise TypeError(f"ChoiceQFunction wants one discrete action, found {type(action_spec).__name__}")
        self.config = config = config or QFunctionConfig()
        if config.num_outputs != 1 or config.batch_renorm:
            raise ValueError("ChoiceQFunction has one number per choice and no batch_renorm; leave both away")
        wanted = config.obs
        if wanted == QFunctionConfig.obs:
            wanted = tuple(name for name in wanted if obs_spec.resolve(name) is not None)
        self.inputs = obs_spec.select(wanted)
        self.pipeline = critic_pipeline(self.inputs, obs_spec, config, "critic")
        self.members = EnsembleMlp(
            config.num_members,
            self.pipeline.output_spec.size,
            config.hidden_dims,
            action_spec.n,
            config.activation,
            layer_norm=config.layer_norm,
        )

    def update_normalization(self, obs: Obs, valid: Tensor | None = None, all_reduce: AllReduce | None = None) -> None:
        """Update the normalisers from raw observations."""
        self.pipeline.update_normalization(obs, valid, all_reduce)

    def forward(self, obs: Obs, valid: Tensor | None = None) -> Tensor:
        """Return [K, B, n] for observations [B, …]."""
        given = masked(obs, valid)
        stage_input = StageInput(only(given, self.inputs, who="the Q-function"), {}, {}, None, valid)
        passed: StageOutput = self.pipeline(stage_input._replace(whole=given))
        values: Tensor = self.members(flat_features(passed.obs, self.pipeline.output_spec, self))
        return values


# -- of a state --------------------------------------------------------------------------------------------------------


class ValueFunction(nn.Module):
    """Stages, layers and one value; its settings are those of a Q-function with one member and one output."""

    def __init__(self, obs_spec: ObsSpec, config: QFunctionConfig | None = None) -> None:
        """Build it for these observations."""
        super().__init__()
        config = config or QFunctionConfig()
        wanted = config.obs
        if wanted == QFunctionConfig.obs:
            wanted = tuple(name for name in wanted if obs_spec.resolve(name) is not None)
        self.inputs = obs_spec.select(wanted)
        self.pipeline = critic_pipeline(self.inputs, obs_spec, config, "value")
        self.body = MlpModel(self.pipeline.output_spec.size, config.hidden_dims, None, config.activation)
        self.head = ValueHead(self.body.output_size)

    def update_normalization(self, obs: Obs, valid: Tensor | None = None, all_reduce: AllReduce | None = None) -> None:
        """Update the normalisers from raw observations."""
        self.pipeline.update_normalization(obs, valid, all_reduce)

    def forward(self, obs: Obs, valid: Tensor | None = None) -> Tensor:
        """Return the values [B] of states [B, …]."""
        given = masked(obs, valid)
        stage_input = StageInput(only(given, self.inputs, who="the value function"), {}, {}, None, valid)
        passed: StageOutput = self.pipeline(stage_input._replace(whole=given))
        value: Tensor = self.head(self.body(flat_features(passed.obs, self.pipeline.output_spec, self)))
        return value
