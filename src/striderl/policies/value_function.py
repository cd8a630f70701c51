"""`ValueFunction`: the value of a state, without an actor beside it."""

from __future__ import annotations

from torch import Tensor, nn

from striderl.data.specs import ObsSpec
from striderl.networks.heads.value import ValueHead
from striderl.networks.mlp import MlpModel
from striderl.ops.moments import AllReduce
from striderl.policies.policy import masked
from striderl.policies.q_function import QFunctionConfig, critic_pipeline
from striderl.policies.stage import Obs, StageInput, StageOutput, flat_features, only


class ValueFunction(nn.Module):
    """Stages, layers and one value; its settings are those of a Q-function with one member and one output."""

    def __init__(self, obs_spec: ObsSpec, config: QFunctionConfig | None = None) -> None:
        """Build it for these observations."""
        super().__init__()
        config = config or QFunctionConfig()
        wanted = config.obs
        if wanted == QFunctionConfig.obs:
            wanted = tuple(name for name in wanted if name in obs_spec or name in obs_spec.groups)
        self.inputs = obs_spec.select(wanted)
        self.pipeline = critic_pipeline(self.inputs, obs_spec, config, "value")
        self.body = MlpModel(self.pipeline.output_spec.size, config.hidden_dims, None, config.activation)
        self.head = ValueHead(self.body.output_size)

    def update_normalization(self, obs: Obs, valid: Tensor | None = None, all_reduce: AllReduce | None = None) -> None:
        """Let normalisers learn from raw observations."""
        self.pipeline.update_normalization(obs, valid, all_reduce)

    def forward(self, obs: Obs, valid: Tensor | None = None) -> Tensor:
        """Return the values [B] of states [B, …]."""
        given = masked(obs, valid)
        stage_input = StageInput(only(given, self.inputs, who="the value function"), {}, {}, None, valid)
        passed: StageOutput = self.pipeline(stage_input._replace(whole=given))
        value: Tensor = self.head(self.body(flat_features(passed.obs, self.pipeline.output_spec, self)))
        return value
