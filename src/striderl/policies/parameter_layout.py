"""The layout of a state dict: the part of the policy of each entry, and the components along its axes.

    "actor_body.model.0.weight"  [256, 45]        part 'actor/body', axis 1: joints 0:12, command 12:15, scan 15:45
    "actor.stages.0_Encode.encoders.of_scan…"     part 'actor/Encode/scan'
    "actor.stages.1_Estimate.network.model.2…"    part 'actor/Estimate', axis 0: what is predicted

Parts have names without positions, so that they are found again in a policy with more or fewer stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from striderl.data.specs import ObsSpec
from striderl.networks.conv import Conv2dHeadModel
from striderl.networks.memory import Memory
from striderl.networks.mlp import MlpModel
from striderl.policies.encode import EncodeStage
from striderl.policies.estimate import PredictStage
from striderl.policies.stage import Pipeline, Stage
from striderl.policies.stages import NormalizeStage, RememberStage, module_key

Slices = Mapping[str, slice]
Axes = Mapping[int, Slices]
"""Axis of a tensor to where the components lie along it."""


class ParameterPlace(NamedTuple):
    """Where an entry of a state dict belongs."""

    part: str
    """The part of the policy: 'actor/Encode/scan', 'actor/Remember', 'actor/body', 'actor/head', 'critic/head', …"""
    rest: str
    """The name within that part: 'model.0.weight'."""
    axes: Axes
    """Where components lie along its axes; empty when it has no order to keep."""


@runtime_checkable
class KnowsAxes(Protocol):
    """The interface of a custom stage with weights that can be moved to other observations."""

    def parameter_axes(self) -> Mapping[str, Axes]:
        """Return, by the name of an entry of the stage's state dict, where components lie along its axes."""
        ...


class LaidOut(Protocol):
    """The parts of a policy that hold parameters."""

    trunk: Pipeline
    actor: Pipeline
    critic: Pipeline
    actor_body: MlpModel
    critic_body: MlpModel
    head: Any
    value_head: Any

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters by name."""
        ...


def input_columns(policy: LaidOut) -> dict[str, dict[str, slice]]:
    """Return which columns of which parameter read which component: parameter name -> component -> slice.

    After an encoder the columns are those of the component's latent, after a memory they are those of 'memory'.
    Statistics of a normaliser, which have no columns, are listed with all their entries.
    """
    found: dict[str, dict[str, slice]] = {}
    for name, place in places(policy).items():
        axis = 0 if place.rest.startswith("statistics.") else 1
        if axis in place.axes:
            found[name] = dict(place.axes[axis])
    return found


def places(policy: LaidOut, *, partly: bool = False) -> dict[str, ParameterPlace]:
    """Return where every entry of the policy's state dict belongs.

    A custom stage whose weights cannot be told apart by component raises; with `partly` they have no axes.
    """
    found: dict[str, ParameterPlace] = {}
    for list_name, pipeline in (("trunk", policy.trunk), ("actor", policy.actor), ("critic", policy.critic)):
        for name, part, stage in _numbered(list_name, pipeline):
            for rest in stage.state_dict():
                found[f"{list_name}.stages.{name}.{rest}"] = _stage_place(part, rest, stage, partly)
    for list_name, body_name, head_name in (("actor", "actor_body", "head"), ("critic", "critic_body", "value_head")):
        pipeline = policy.actor if list_name == "actor" else policy.critic
        body, head = (
            (policy.actor_body, policy.head) if list_name == "actor" else (policy.critic_body, policy.value_head)
        )
        read_by_body = _mlp_axes(body, pipeline.output_spec.slices())
        # without hidden layers the head reads the components itself
        read_by_head = {} if read_by_body else _linear_axes(head, pipeline.output_spec)
        found |= {
            f"{body_name}.{key}": ParameterPlace(f"{list_name}/body", key, read_by_body.get(key, {}))
            for key in body.state_dict()
        }
        found |= {
            f"{head_name}.{key}": ParameterPlace(f"{list_name}/head", key, read_by_head.get(key, {}))
            for key in head.state_dict()
        }
    return {name: found[name] for name in policy.state_dict()}


def _numbered(list_name: str, pipeline: Pipeline) -> Iterator[tuple[str, str, Stage]]:
    """Yield (name, part, stage); a second stage of a kind is called 'actor/Encode_2'."""
    seen: dict[str, int] = {}
    for name, stage in pipeline.named_stages():
        kind = name.partition("_")[2]
        seen[kind] = seen.get(kind, 0) + 1
        yield name, f"{list_name}/{kind}" + (f"_{seen[kind]}" if seen[kind] > 1 else ""), stage


def _stage_place(part: str, rest: str, stage: Stage, partly: bool) -> ParameterPlace:
    if isinstance(stage, (EncodeStage, NormalizeStage)):
        _, key, inside = rest.split(".", 2)
        components = {module_key(name): name for name in stage.input_spec}
        module = (stage.encoders if isinstance(stage, EncodeStage) else stage.normalizers)[key]
        axes = _module_axes(module, stage.input_spec, components[key])
        return ParameterPlace(f"{part}/{components[key]}", inside, axes.get(inside, {}))
    return ParameterPlace(part, rest, _axes_of(stage, partly).get(rest, {}))


def _module_axes(module: nn.Module, spec: ObsSpec, component: str) -> dict[str, Axes]:
    """Return the axes of a network or normaliser that belongs to one component."""
    whole = {component: slice(0, spec[component].size)}
    if isinstance(module, MlpModel):
        return dict(_mlp_axes(module, whole))
    if isinstance(module, Conv2dHeadModel):
        return {"conv.conv.0.weight": {1: {component: slice(0, module.image_shape[0])}}}
    rows = {component: slice(0, spec[component].shape[0])} if spec[component].shape else {}
    return {"statistics.mean": {0: rows}, "statistics.m2": {0: rows}} if rows else {}


def _axes_of(stage: Stage, partly: bool) -> Mapping[str, Axes]:
    if isinstance(stage, RememberStage):
        return _memory_axes("memory.", stage.memory, stage.input_spec.slices())
    if isinstance(stage, PredictStage):
        return _predict_axes(stage)
    if isinstance(stage, KnowsAxes):
        return stage.parameter_axes()
    if stage.state_dict() and not partly:
        raise TypeError(
            f"{type(stage).__name__} has weights and does not say which components they read; give it a method "
            "parameter_axes() -> {entry of its state dict: {axis: {component: slice}}}"
        )
    return {}


def _memory_axes(prefix: str, memory: Memory, slices: Slices) -> dict[str, Axes]:
    return {f"{prefix}rnn.weight_ih_l0": {1: slices}}


def _predict_axes(stage: PredictStage) -> dict[str, Axes]:
    """Return the components read by the first layer and predicted by the last, which may be the same layer."""
    reads, targets = stage.reads.slices(), stage.targets.slices()
    found: dict[str, dict[int, Slices]] = {}
    if stage.memory is not None:
        found |= {key: dict(axes) for key, axes in _memory_axes("memory.", stage.memory, reads).items()}
    else:
        found |= {f"network.{key}": dict(axes) for key, axes in _mlp_axes(stage.network, reads).items()}
    last = f"network.model.{len(stage.network.model) - 1}"
    found.setdefault(f"{last}.weight", {})[0] = targets
    found[f"{last}.bias"] = {0: targets}
    return dict(found)


def _mlp_axes(network: MlpModel, slices: Slices) -> dict[str, Axes]:
    return {"model.0.weight": {1: slices}} if len(network.model) else {}


def _linear_axes(head: nn.Module, spec: ObsSpec) -> dict[str, Axes]:
    """Return the axes of a head that reads components: all its linear layers read the features."""
    return {
        f"{name}.weight": {1: spec.slices()} for name, module in head.named_modules() if isinstance(module, nn.Linear)
    }


# -- actor and critic --------------------------------------------------------------------------------------------------


def _is_critics(name: str) -> bool:
    return name.partition(".")[0] in ("critic", "critic_body", "value_head")


def networks_apart(policy: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters of the actor, shared ones included, and those of the critic."""
    named = list(policy.named_parameters())
    actors = [parameter for name, parameter in named if not _is_critics(name)]
    return actors, [parameter for name, parameter in named if _is_critics(name)]


def places_apart(policy: nn.Module) -> tuple[Tensor, Tensor]:
    """Return where the numbers of both lie in one block of all trained parameters."""
    none = torch.empty(0, dtype=torch.int64)
    found: tuple[list[Tensor], list[Tensor]] = ([none], [none])
    start = 0
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad:
            found[_is_critics(name)].append(torch.arange(start, start + parameter.numel()))
            start += parameter.numel()
    return torch.cat(found[0]), torch.cat(found[1])
