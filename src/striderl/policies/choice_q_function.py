"""`ChoiceQFunction`: the value of every choice in a state, several times over.

obs ─ stages ─▶ features ─▶ K networks ─▶ [K, B, n]
"""

from __future__ import annotations

from torch import Tensor, nn

from striderl.data.actions import ActionSpec, DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.networks.ensemble import EnsembleMlp
from striderl.ops.moments import AllReduce
from striderl.policies.policy import masked
from striderl.policies.q_function import QFunctionConfig, critic_pipeline
from striderl.policies.stage import Obs, StageInput, StageOutput, flat_features, only


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
            wanted = tuple(name for name in wanted if name in obs_spec or name in obs_spec.groups)
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
        """Let normalisers learn from raw observations."""
        self.pipeline.update_normalization(obs, valid, all_reduce)

    def forward(self, obs: Obs, valid: Tensor | None = None) -> Tensor:
        """Return [K, B, n] for observations [B, …]."""
        given = masked(obs, valid)
        stage_input = StageInput(only(given, self.inputs, who="the Q-function"), {}, {}, None, valid)
        passed: StageOutput = self.pipeline(stage_input._replace(whole=given))
        values: Tensor = self.members(flat_features(passed.obs, self.pipeline.output_spec, self))
        return values
