"""`PolicySettings`: the networks of a run in a few settings, and how they become a `Policy`.

observation ─ normalise ─ encode some components ─ remember (lstm, gru) ─ hidden layers ─ head
              optional    'encoders', a CNN for    'kind'                 actor's and critic's own
                          other images, one-hot
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import nn

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec
from striderl.data.checked_fields import check_field_types
from striderl.data.naming import unknown
from striderl.data.registry import NETWORKS
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.actor_policy import ActorConfig
from striderl.policies.encode import Encode
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stage import Stage, StageInput, StageOutput, StageRecipe, flat_features
from striderl.policies.stages import NormalizeObs, Remember
from striderl.policies.value_functions import QFunctionConfig

_STD_HEADS = ("gaussian", "squashed_gaussian")


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """A network that makes a short vector out of one component: an image, a height scan."""

    component: str
    """Which component of the observation."""
    model: Literal["mlp", "conv"] = "mlp"
    """Layers over the flat component ('mlp'), or convolutions over an image ('conv')."""
    channels: tuple[int, ...] = (16, 32)
    """Channels of the convolutions."""
    kernel_sizes: tuple[int, ...] = (5, 3)
    """Their kernels."""
    strides: tuple[int, ...] = (2, 2)
    """Their strides."""
    hidden_sizes: tuple[int, ...] = (64,)
    """Layers between them and the output."""
    output_size: int = 32
    """The length of the vector."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not len(self.channels) == len(self.kernel_sizes) == len(self.strides):
            raise ValueError(
                "EncoderSettings wants as many channels as kernel_sizes and strides, found "
                f"{len(self.channels)}, {len(self.kernel_sizes)} and {len(self.strides)}"
            )


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """The networks of a run."""

    kind: Literal["mlp", "lstm", "gru"] = "mlp"
    """Layers alone ('mlp'), or with a memory before them ('lstm', 'gru')."""
    actor_obs: tuple[str, ...] = ("policy",)
    """Components or groups that the actor reads."""
    critic_obs: tuple[str, ...] = ("policy", "critic")
    """Components or groups that the critic reads; a group 'critic' that the task does not have is left out."""
    normalize_obs: bool = True
    """Shift and scale observations by the mean and deviation of the data so far."""
    actor_hidden_dims: tuple[int, ...] = (128, 128)
    """Hidden layers of the actor."""
    critic_hidden_dims: tuple[int, ...] = (128, 128)
    """Hidden layers of the critic."""
    activation: str = "elu"
    """The nonlinearity: elu, tanh, relu, selu, …"""
    head: Literal["gaussian", "squashed_gaussian", "beta", "deterministic"] = "gaussian"
    """The distribution of real-valued actions; choices have their own."""
    init_std: float = 1.0
    """The first standard deviation of a Gaussian head; 0.3 to 1 is usual."""
    memory_size: int = 256
    """The width of the memory, when there is one."""
    memory_layers: int = 1
    """The number of its layers."""
    encoders: tuple[EncoderSettings, ...] = ()
    """Networks for single components; the critic, where it reads the component, has one of its own."""
    flatten_images: bool = False
    """Give images to the layers as plain numbers; otherwise each without an encoder gets a CNN of its own."""
    one_hot: bool = True
    """Turn Discrete and MultiDiscrete components into one-hot vectors; otherwise they enter as the numbers they are."""
    network: str = ""
    """Your own network before the hidden layers, 'module:Class': an nn.Module that is made with the number of
    inputs and has `output_size`; actor and critic have one each."""

    def __post_init__(self) -> None:
        check_field_types(self)
        defaults = (PolicySettings.memory_size, PolicySettings.memory_layers)
        if self.kind == "mlp" and (self.memory_size, self.memory_layers) != defaults:
            raise ValueError("memory_size and memory_layers have no effect with kind='mlp'; choose 'lstm' or 'gru'")
        if self.init_std <= 0.0:
            raise ValueError(f"init_std is positive, found {self.init_std}")
        if self.head not in _STD_HEADS and self.init_std != PolicySettings.init_std:
            raise ValueError(f"init_std has no effect with head={self.head!r}")


@dataclass(frozen=True, kw_only=True)
class OwnNetwork:
    """A network from outside the library, by the name it has in `NETWORKS` or by 'module:Class'."""

    SAVED_NAME: ClassVar[str] = "OwnNetwork"

    network: str
    """Its name."""

    def build(self, spec: ObsSpec, whole: ObsSpec) -> OwnNetworkStage:
        """Build the stage."""
        return OwnNetworkStage(self.network, spec)


class OwnNetworkStage(Stage):
    """All components in a row through that network: [.., inputs] → [.., output_size]."""

    def __init__(self, name: str, spec: ObsSpec) -> None:
        super().__init__()
        self.input_spec = spec
        made = NETWORKS.get(name)(spec.size)
        size = getattr(made, "output_size", None)
        if not isinstance(made, nn.Module) or not isinstance(size, int):
            raise TypeError(
                f"policy.network={name!r} is an nn.Module made with the number of inputs that has an int attribute "
                f"output_size, found {type(made).__name__} with output_size={size!r}"
            )
        self.network = made
        self.output_spec = ObsSpec({"features": ComponentSpec(shape=(size,))})

    def forward(self, stage_input: StageInput) -> StageOutput:
        """Return the network's output as the one component."""
        return StageOutput(
            {"features": self.network(flat_features(stage_input.obs, self.input_spec, self.network))}, {}, {}
        )


def build_policy(
    settings: PolicySettings | PolicyConfig,
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    num_values: int = 1,
    *,
    estimators: tuple[StageRecipe, ...] = (),
) -> Policy:
    """Build the policy for these observations and actions; torch's generator sets its initial weights.

    settings: a few settings, or a policy stage by stage.
    estimators: stages of the actor that come first.
    """
    if isinstance(settings, PolicyConfig):
        if estimators:
            raise ValueError(
                "this policy is described stage by stage: put the estimator among its stages, and name it with "
                "terms.estimation.stage in place of targets"
            )
        given = settings if num_values == 1 else replace(settings, num_values=num_values)
        return Policy(obs_spec, action_spec, given)
    critic_obs = _critic_obs(settings, obs_spec)
    _check_encoders(settings, obs_spec.select([*settings.actor_obs, *critic_obs]))
    config = PolicyConfig(
        actor_obs=settings.actor_obs,
        critic_obs=critic_obs,
        actor=_stages(settings, obs_spec.select(settings.actor_obs), estimators),
        critic=_stages(settings, obs_spec.select(critic_obs)),
        actor_hidden_dims=settings.actor_hidden_dims,
        critic_hidden_dims=settings.critic_hidden_dims,
        activation=settings.activation,
        head=settings.head,
        head_settings=head_settings(settings, action_spec),
        num_values=num_values,
        flatten_images=settings.flatten_images,
        one_hot=settings.one_hot,
    )
    return Policy(obs_spec, action_spec, config)


def actor_config(
    settings: PolicySettings, obs_spec: ObsSpec, given: Mapping[str, Any], *, memory: bool = False
) -> ActorConfig:
    """Return an actor without a critic, for off-policy algorithms; most learn from single steps, without `memory`."""
    if memory and settings.kind == "mlp":
        raise ValueError("learning from sequences is for policies with memory: choose policy.kind 'lstm' or 'gru'")
    if not memory and settings.kind != "mlp":
        raise ValueError(
            f"policy.kind={settings.kind!r}: this algorithm learns from single steps of a replay, without memory; "
            "r2d2 and recurrent_sac learn from sequences"
        )
    return ActorConfig(
        obs=settings.actor_obs,
        stages=_stages(settings, obs_spec.select(settings.actor_obs)),
        hidden_dims=settings.actor_hidden_dims,
        activation=settings.activation,
        head=settings.head,
        head_settings=given,
        flatten_images=settings.flatten_images,
        one_hot=settings.one_hot,
    )


def q_function_config(settings: PolicySettings, obs_spec: ObsSpec) -> QFunctionConfig:
    """Return the critics of such an algorithm."""
    critic_obs = _critic_obs(settings, obs_spec)
    return QFunctionConfig(
        obs=critic_obs,
        stages=_stages(settings, obs_spec.select(critic_obs)),
        hidden_dims=settings.critic_hidden_dims,
        activation=settings.activation,
        flatten_images=settings.flatten_images,
        one_hot=settings.one_hot,
    )


def _critic_obs(settings: PolicySettings, obs_spec: ObsSpec) -> tuple[str, ...]:
    """Leave out a group 'critic' that the task does not have."""
    return tuple(name for name in settings.critic_obs if name != "critic" or obs_spec.resolve(name) is not None)


def _stages(
    settings: PolicySettings, seen: ObsSpec, estimators: tuple[StageRecipe, ...] = ()
) -> tuple[StageRecipe, ...]:
    """Return the stages before the hidden layers, for the components of one of the two."""
    stages: list[StageRecipe] = []
    if settings.normalize_obs and any(part.dtype.startswith("float") for part in seen.values()):
        stages.append(NormalizeObs())
    stages += [_encode(encoder) for encoder in settings.encoders if encoder.component in seen]
    stages += estimators
    if settings.network:
        stages.append(OwnNetwork(network=settings.network))
    if settings.kind != "mlp":
        stages.append(Remember(type=settings.kind, hidden_size=settings.memory_size, num_layers=settings.memory_layers))
    return tuple(stages)


def _check_encoders(settings: PolicySettings, seen: ObsSpec) -> None:
    for encoder in settings.encoders:
        if encoder.component not in seen:
            raise KeyError(unknown("component", encoder.component, seen, where="policy.encoders: what is observed"))


def _encode(encoder: EncoderSettings) -> Encode:
    settings: dict[str, Any] = {"hidden_sizes": encoder.hidden_sizes}
    if encoder.model == "conv":
        settings |= {
            "channels": encoder.channels,
            "kernel_sizes": encoder.kernel_sizes,
            "strides": encoder.strides,
        }
    return Encode(
        components=(encoder.component,),
        model="Conv2dHeadModel" if encoder.model == "conv" else "MlpModel",
        settings=settings,
        output_size=encoder.output_size,
    )


def head_settings(settings: PolicySettings, action_spec: ActionSpec) -> dict[str, Any]:
    """Return the first deviation where there is one; a setting without effect is an error."""
    parts = action_spec.parts.values() if isinstance(action_spec, DictActionSpec) else [action_spec]
    if any(isinstance(part, BoxSpec) for part in parts):
        return {"init_std": settings.init_std} if settings.head in _STD_HEADS else {}
    if settings.init_std != PolicySettings.init_std:
        raise ValueError(f"policy.init_std={settings.init_std} has no effect: the actions of this task are choices")
    return {}
