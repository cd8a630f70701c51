"""`QFunction`: the value of an action in a state, several times over.

obs ─ stages ─▶ features ─┐
                          ├─▶ K networks ─▶ [K, B] (or [K, B, O]: quantiles, atoms)
action ───────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from striderl.data.actions import ActionSpec, BoxSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.ensemble import EnsembleMlp
from striderl.networks.mlp import as_sizes
from striderl.ops.moments import AllReduce
from striderl.policies.arguments import as_names
from striderl.policies.policy import masked
from striderl.policies.stage import (
    Flow,
    Obs,
    Passed,
    Pipeline,
    StageRecipe,
    State,
    as_stages,
    flat_features,
    only,
)


@dataclass(frozen=True, kw_only=True)
class QFunctionConfig:
    """What a Q-function is made of; plain data, saved with a run."""

    obs: tuple[str, ...] = ("policy", "critic")
    """Components or groups that it sees; groups the env does not have are left out of the default only."""
    stages: tuple[StageRecipe, ...] = ()
    """Its stages, in order; shared by all members."""
    hidden_dims: tuple[int, ...] = (256, 256)
    """Hidden layers of each member."""
    activation: str = "relu"
    """The nonlinearity."""
    num_members: int = 2
    """How many networks there are."""
    num_outputs: int = 1
    """Numbers per member: 1 for a value, more for quantiles or atoms."""
    layer_norm: bool = False
    """Normalise each hidden layer before its nonlinearity."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "obs", as_names(self.obs, "QFunctionConfig.obs"))
        object.__setattr__(self, "hidden_dims", as_sizes(self.hidden_dims))
        object.__setattr__(self, "stages", as_stages(self.stages, "QFunctionConfig.stages"))


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
            wanted = tuple(name for name in wanted if name in obs_spec or name in obs_spec.groups)
        self.inputs = obs_spec.select(wanted)
        self.pipeline = Pipeline(self.inputs, config.stages, obs_spec, name="critic")
        size = self.pipeline.output_spec.size + action_spec.tensor.size
        self.members = EnsembleMlp(
            config.num_members,
            size,
            config.hidden_dims,
            config.num_outputs,
            config.activation,
            layer_norm=config.layer_norm,
        )
        self._event_dims = len(action_spec.shape)

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return what one env's memory is made of."""
        return self.pipeline.state_spec()

    def absorb(self, obs: Obs, valid: Tensor | None = None, all_reduce: AllReduce | None = None) -> None:
        """Let normalisers learn from raw observations."""
        self.pipeline.absorb(obs, valid, all_reduce)

    def features(
        self, obs: Obs, state: State, resets: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the stages on one step or a sequence; returns (features, the new memory)."""
        given = masked(obs, valid)
        flow = Flow(only(given, self.inputs, who="the Q-function"), state, {}, resets, valid)
        passed: Passed = self.pipeline(flow._replace(whole=given))
        return flat_features(passed.obs, self.pipeline.output_spec, self), passed.state

    def value(self, features: Tensor, action: Tensor) -> Tensor:
        """Return [K, ...] (or [K, ..., O]) for features [..., F] and actions [..., …]."""
        flat = action.flatten(-self._event_dims) if self._event_dims else action.unsqueeze(-1)
        joined = torch.cat([features, flat.to(features.dtype)], dim=-1)
        leading = joined.shape[:-1]
        output: Tensor = self.members(joined.reshape(-1, joined.shape[-1]))
        output = output.reshape(output.shape[0], *leading, output.shape[-1])
        return output.squeeze(-1) if self.config.num_outputs == 1 else output

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the values of actions in single steps [B, …], for Q-functions without memory."""
        return self.value(self.features(obs, {})[0], action)
