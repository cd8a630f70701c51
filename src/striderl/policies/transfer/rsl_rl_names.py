"""From a checkpoint of rsl_rl to a policy here: the same network, the same numbers, our names.

    rsl_rl (neutral, see checkpoint/foreign.py)         here
    actor   rnn.weight_ih_l0                            actor.stages.<n>_Remember.memory.rnn.weight_ih_l0
            mlp.0.weight, mlp.2.weight                  actor_body.model.0.weight, actor_body.model.2.weight
            mlp.4.weight, the last one                  head.mean_layer.linear.weight
    critic  mlp.4.weight, the last one                  value_head.layer.weight
    std     [actions]                                   head.std_param, in the head's own form
    normaliser  mean, std, count of the flat vector     actor.stages.<n>_NormalizeObs.normalizers.<name>.statistics.mean
    encoders.0.…                                        actor.stages.<n>_Encode.encoders.<name>.…, or trunk.… if shared
    critic_encoders.0.…                                 critic.stages.<n>_Encode.encoders.<name>.…
    state_estimator.…, memory_s.…                       actor.stages.<n>_Estimate.network.…, .memory.…
    state_adaptor.…, memory_adaptor.…                   actor.stages.<n>_Adapt.network.…, .memory.…

rsl_rl's observation is one flat vector; here it is the actor's (or critic's) components in a row, in the spec's order.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from striderl.checkpoint.foreign import EPSILON, ForeignNormalizer, ForeignPolicy, Weights, read_rsl_rl
from striderl.data.actions import BoxSpec
from striderl.networks.heads.gaussian import STD_TYPES, GaussianHead
from striderl.networks.mlp import MlpModel
from striderl.policies.encode import EncodeStage
from striderl.policies.estimate import PredictStage
from striderl.policies.heads import ModeHead
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.spaces import Segments, make_spaces
from striderl.policies.stage import Pipeline, StageRecipe
from striderl.policies.stages import NormalizeObs, NormalizeStage, Remember, RememberStage, module_key
from striderl.policies.transfer.load import TransferError, WeightDifference, load_exactly, shape_text

PREDICTORS = {"Estimate": ("state_estimator", "memory_s"), "Adapt": ("state_adaptor", "memory_adaptor")}
"""What the network and the memory of a predicting stage are called in st_rl."""


def policy_from_rsl_rl(
    foreign: ForeignPolicy,
    *,
    activation: str = "elu",
    obs_segments: Segments | None = None,
    critic_obs_segments: Segments | None = None,
    action: BoxSpec | None = None,
) -> Policy:
    """Build the policy that a checkpoint describes and load it; all sizes are read from the weights.

    The checkpoint contains neither the activation nor the meaning of its observations.
    """
    if foreign.std is None:
        raise ValueError(
            "the checkpoint has no standard deviation of its own: it depends on the observation, or the policy is "
            "deterministic; which of the two is only in the run's config. Build the policy and load its parts by hand."
        )
    if not foreign.critic:
        raise ValueError("the checkpoint has no critic (a distilled student); use load_rsl_rl(policy, …, critic=False)")
    spaces = make_spaces(
        _input_size(foreign.actor),
        _input_size(foreign.critic),
        foreign.std.numel() if action is None else action,
        obs_segments,
        critic_obs_segments,
    )
    config = PolicyConfig(
        actor_obs=spaces.actor,
        critic_obs=spaces.critic,
        actor=_stages(foreign.actor, foreign.actor_normalizer),
        critic=_stages(foreign.critic, foreign.critic_normalizer),
        actor_hidden_dims=_hidden_sizes(foreign.actor),
        critic_hidden_dims=_hidden_sizes(foreign.critic),
        activation=activation,
        head_settings={"std_type": foreign.std_type},
        flatten_images=True,  # a checkpoint of flat vectors
    )
    policy = Policy(spaces.obs, spaces.action, config)
    load_rsl_rl(policy, foreign)
    return policy


def with_weights(policy: Policy, path: str | Path, weights: Weights) -> Policy:
    """Return the policy with the weights of a file, under this library's names or an older library's.

    weights: those that were read from the file; an older library's normalisers are read with them, and become stages
    of the policy that is returned.
    """
    if set(weights) & set(policy.state_dict()):
        load_exactly(policy, weights, source=str(path))
        return policy
    foreign = read_rsl_rl(path)
    config = policy.config
    front = NormalizeObs(eps=EPSILON)
    if foreign.actor_normalizer is not None and not any(isinstance(each, NormalizeObs) for each in config.actor):
        config = replace(config, actor=(front, *config.actor))
    if foreign.critic_normalizer is not None and not any(isinstance(each, NormalizeObs) for each in config.critic):
        config = replace(config, critic=(front, *config.critic))
    if config != policy.config:
        with torch.random.fork_rng(devices=[]):
            policy = Policy(policy.obs_spec, policy.action_spec, config)
    load_rsl_rl(policy, foreign)
    return policy


def load_rsl_rl(policy: Policy, foreign: ForeignPolicy, *, critic: bool = True) -> None:
    """Load a checkpoint into a policy of the same architecture; raise for every difference before anything changes."""
    translated = translate(policy, foreign, critic=critic)
    state = policy.state_dict()
    differences = [
        WeightDifference(name, shape_text(value), shape_text(state[name]) if name in state else "not there")
        for name, value in translated.items()
        if name not in state or state[name].shape != value.shape
    ]
    own = {name for name, _ in policy.named_parameters()}
    wanted = {name for name in own if critic or (not name.startswith("critic") and not name.startswith("value_head"))}
    differences += [
        WeightDifference(name, "not there", shape_text(state[name])) for name in sorted(wanted - set(translated))
    ]
    if differences:
        raise TransferError(differences, columns=("in the checkpoint", "in the policy"))
    policy.load_state_dict({**state, **translated})


def translate(policy: Policy, foreign: ForeignPolicy, *, critic: bool = True) -> dict[str, Tensor]:
    """Return a checkpoint's tensors under the names of a policy's state dict; shapes are not compared here."""
    if any(not isinstance(stage, EncodeStage) for _, stage in policy.trunk.named_stages()):
        raise ValueError("older policies share nothing but encoders between actor and critic; this trunk has more")
    inside = "head.inner" if isinstance(policy.head, ModeHead) else "head"
    head = policy.head.inner if isinstance(policy.head, ModeHead) else policy.head
    if not isinstance(head, GaussianHead) or head.state_dependent_std:
        raise ValueError(f"wanted a Gaussian head with one std per action, found {type(head).__name__}")
    found = {
        **_stage_weights(policy.actor, "actor", foreign.actor, foreign.actor_normalizer),
        **_layer_weights(policy.actor_body, "actor_body", f"{inside}.mean_layer.linear", foreign.actor),
        **_further_weights(policy, foreign.further, critic=critic),
    }
    if foreign.std is not None:
        found[f"{inside}.std_param"] = STD_TYPES[head.std_type].to_raw(foreign.std)
    if critic:
        found |= _stage_weights(policy.critic, "critic", foreign.critic, foreign.critic_normalizer)
        found |= _layer_weights(policy.critic_body, "critic_body", "value_head.layer", foreign.critic)
    return found


# -- names -------------------------------------------------------------------------------------------------------------


def _stage_weights(
    pipeline: Pipeline, name: str, weights: Weights, normalizer: ForeignNormalizer | None
) -> dict[str, Tensor]:
    """Return memory and statistics; one that only one side has is an error, because it would be left out silently."""
    found: dict[str, Tensor] = {}
    memory = {key.removeprefix("rnn."): value for key, value in weights.items() if key.startswith("rnn.")}
    kinds = []
    for stage_name, stage in pipeline.named_stages():
        prefix = f"{name}.stages.{stage_name}"
        if isinstance(stage, RememberStage):
            found |= {f"{prefix}.memory.rnn.{key}": value for key, value in memory.items()}
        elif isinstance(stage, NormalizeStage) and normalizer is not None:
            found |= _statistics(stage, prefix, normalizer)
        if not isinstance(stage, (EncodeStage, PredictStage)):  # of which `_further_weights` asks
            kinds.append(type(stage))
    wanted: list[Any] = [NormalizeStage] * (normalizer is not None) + [RememberStage] * bool(memory)
    if kinds != wanted:
        raise ValueError(
            f"the checkpoint's {name} has the stages {[kind.__name__ for kind in wanted]}, "
            f"the policy's has {[kind.__name__ for kind in kinds]}; build it with policy_from_rsl_rl, or alike"
        )
    return found


def _further_weights(policy: Policy, weights: Weights, *, critic: bool) -> dict[str, Tensor]:
    """Return the weights of encoders, estimators and adaptors; what has no place here raises."""
    places: dict[str, str] = {}
    for part, pipeline in (("trunk", policy.trunk), ("actor", policy.actor), ("critic", policy.critic)):
        for stage_name, stage in pipeline.named_stages():
            prefix = f"{part}.stages.{stage_name}"
            if isinstance(stage, EncodeStage):
                old = "critic_encoders" if part == "critic" else "encoders"
                for number, key in enumerate(stage.encoders):
                    places[f"{old}.{number}."] = f"{prefix}.encoders.{key}."
            elif isinstance(stage, PredictStage):
                network, memory = PREDICTORS[stage_name.partition("_")[2]]
                places |= {f"{network}.": f"{prefix}.network.", f"{memory}.": f"{prefix}.memory."}
    if any(name.startswith("visual_encoder.") for name in weights):
        raise ValueError(
            "the checkpoint has a 'visual_encoder', whose latent has no nonlinearity, and that of an encoder here has "
            "one: the numbers would differ. Load it into striderl.compat.st_rl.VisualDeterministicAC, or train again"
        )
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        place = next((each for each in places if name.startswith(each)), "")
        if place:
            found[places[place] + name.removeprefix(place)] = value
        elif critic or not name.startswith("critic_"):
            raise ValueError(
                f"the checkpoint has {name!r}, and the policy no such part; build it with the encoders and estimators "
                f"of the checkpoint. Its own parts: {sorted(places) or 'none'}"
            )
    return found


def _statistics(stage: NormalizeStage, prefix: str, normalizer: ForeignNormalizer) -> dict[str, Tensor]:
    """Cut the statistics of the flat vector into those of the components."""
    if stage.input_spec.size != normalizer.mean.numel() or len(stage.normalizers) != len(stage.input_spec):
        raise ValueError(
            f"the checkpoint normalises a vector of {normalizer.mean.numel()} numbers, the policy "
            f"{sorted(stage.normalizers)} of {stage.input_spec}; normalise all components, of the same total size"
        )
    found: dict[str, Tensor] = {}
    for component, place in stage.input_spec.slices().items():
        start = f"{prefix}.normalizers.{module_key(component)}.statistics"
        shape = stage.input_spec[component].shape
        variance = normalizer.std[place].double().square().reshape(shape)
        found[f"{start}.mean"] = normalizer.mean[place].double().reshape(shape)
        found[f"{start}.m2"] = variance * normalizer.count
        found[f"{start}.count"] = torch.tensor(float(normalizer.count), dtype=torch.float64)
    return found


def _layer_weights(body: MlpModel, body_name: str, last_name: str, weights: Weights) -> dict[str, Tensor]:
    """Give the hidden layers to the body and the last one to the head."""
    layers = _layers(weights)
    own = [f"{body_name}.model.{at}" for at, layer in enumerate(body.model) if isinstance(layer, nn.Linear)]
    if len(layers) != len(own) + 1:
        raise ValueError(
            f"the checkpoint has {len(layers) - 1} hidden layers for {body_name}, the policy has {len(own)}"
        )
    return {
        f"{name}.{kind}": weights[f"mlp.{at}.{kind}"]
        for name, at in zip([*own, last_name], layers)
        for kind in ("weight", "bias")
    }


# -- sizes -------------------------------------------------------------------------------------------------------------


def _layers(weights: Weights) -> list[int]:
    """Return the positions of the linear layers, in order."""
    names = [key.split(".") for key in weights if key.startswith("mlp.")]
    positions = sorted({int(name[1]) for name in names if len(name) == 3 and name[1].isdecimal()})
    plain = all(weights.get(f"mlp.{at}.weight", torch.empty(0)).dim() == 2 for at in positions)
    if not positions or len(names) != 2 * len(positions) or not plain:
        raise ValueError(f"wanted linear layers with weight and bias, found {sorted(weights)}")
    return positions


def _hidden_sizes(weights: Weights) -> tuple[int, ...]:
    return tuple(int(weights[f"mlp.{at}.weight"].shape[0]) for at in _layers(weights)[:-1])


def _input_size(weights: Weights) -> int:
    first = weights.get("rnn.weight_ih_l0")
    return int((weights[f"mlp.{_layers(weights)[0]}.weight"] if first is None else first).shape[1])


def _stages(weights: Weights, normalizer: ForeignNormalizer | None) -> tuple[StageRecipe, ...]:
    stages: list[StageRecipe] = [] if normalizer is None else [NormalizeObs(eps=EPSILON)]
    if "rnn.weight_hh_l0" in weights:
        rows, hidden_size = weights["rnn.weight_hh_l0"].shape
        kinds = {4: "lstm", 3: "gru"}
        if rows % hidden_size or rows // hidden_size not in kinds:
            raise ValueError(f"a memory of shape {(rows, hidden_size)} is neither an LSTM nor a GRU")
        layers = sum(name.startswith("rnn.weight_hh_l") for name in weights)
        stages.append(Remember(type=kinds[rows // hidden_size], hidden_size=hidden_size, num_layers=layers))
    return tuple(stages)
