"""Load weights into a policy with other observation components than the saved one, by component name.

    saved with   joints [2] | command [1]                  first layer   [ j j c ]
    loaded into  command [1] | joints [2] | scan [3]       first layer   [ c j j 0 0 0 ]       new="zero"

Components in both are copied to their new place; columns of new components are zeroed, so that the policy acts as
it did, or kept as they are; removed components are dropped. The rest must be equal. Everything is computed before
anything is written: a load that raises has changed nothing. `TransferReport` lists what happened to each weight.

The policy that saved the weights is built again so that its layout can be read. Best is that policy itself, or its
observation and config. Where only its observation is given, it is taken to have been like the policy that takes the
weights over, without what that has for components that are new.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.parameter_layout import ParameterPlace, Slices, input_columns, places
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.spaces import Segments, Spaces, make_spaces
from striderl.policies.stage import StageRecipe
from striderl.policies.stages import NormalizeObs, Override


class WeightDifference(NamedTuple):
    """One mismatch."""

    what: str
    """The component or parameter."""
    old: str
    """The value in the source."""
    new: str
    """The value in the policy."""


class TransferError(ValueError):
    """Weights that do not fit a policy; the message is a table of what, old and new. Nothing was changed."""

    def __init__(
        self, differences: Sequence[WeightDifference], hint: str = "", *, columns: tuple[str, str] = ("old", "new")
    ) -> None:
        """Compose the table; `columns` are the headings of the second and the third column."""
        self.differences = tuple(differences)
        rows = [WeightDifference("", *columns), *self.differences]
        wide = [max(len(row[column]) for row in rows) for column in range(2)]
        lines = [f"  {row.what:<{wide[0]}}  {row.old:<{wide[1]}}  {row.new}".rstrip() for row in rows]
        super().__init__(
            "the weights do not fit, and nothing was changed:\n" + "\n".join(lines) + (hint and f"\n{hint}")
        )


@dataclass(frozen=True, kw_only=True)
class TransferReport:
    """Where the numbers of a policy come from after a load."""

    copied: tuple[str, ...] = ()
    """Parameters that are as the source had them."""
    rearranged: tuple[str, ...] = ()
    """Parameters whose columns were put where this policy has the components."""
    kept: tuple[str, ...] = ()
    """Parameters that stayed as they were."""
    added: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Components that the source did not have, with the parameters that got columns for them."""
    dropped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Components that this policy does not have, with the parameters whose columns for them were left behind."""
    unused: tuple[str, ...] = ()
    """Parameters of the source that this policy has no place for."""

    def __str__(self) -> str:
        """Return the report as text, a line for everything that is not simply copied."""
        lines = [f"{len(self.copied)} parameters copied"]
        lines += [f"rearranged: {name}" for name in self.rearranged]
        lines += [f"new component {name!r} in {', '.join(where)}" for name, where in self.added.items()]
        lines += [f"dropped component {name!r} of {', '.join(where)}" for name, where in self.dropped.items()]
        lines += [f"kept as it was: {name}" for name in self.kept]
        lines += [f"not used: {name}" for name in self.unused]
        return "\n".join(lines)


def shape_text(value: Tensor | Iterable[int]) -> str:
    """Return a shape as '[256, 45]'."""
    return str([*(value.shape if isinstance(value, Tensor) else value)])


# -- the policy that saved them ----------------------------------------------------------------------------------------


Source = Policy | ObsSpec | Spaces | tuple[ObsSpec, PolicyConfig]
"""The source of the weights: the policy; its observation (a spec, or sizes and segments); or that and its config."""


def source_spec(source: Source) -> ObsSpec:
    """Return the observation spec of the source."""
    if isinstance(source, Policy):
        return source.obs_spec
    if isinstance(source, tuple):
        return source[0]
    return source.obs if isinstance(source, Spaces) else source


def source_policy(policy: Policy, source: Source) -> Policy:
    """Return a policy with the layout of the source; its weights are arbitrary."""
    if isinstance(source, Policy):
        return source
    if isinstance(source, tuple):
        return _built(source[0], policy, source[1])
    old = source_spec(source)
    config = policy.config
    actor = source.actor if isinstance(source, Spaces) else _seen(old, policy.actor_inputs, policy.obs_spec)
    critic = source.critic if isinstance(source, Spaces) else _seen(old, policy.critic_inputs, policy.obs_spec)
    return _built(
        old,
        policy,
        replace(
            config,
            actor_obs=actor,
            critic_obs=critic,
            trunk=_restricted(config.trunk, old),
            actor=_restricted(config.actor, old),
            critic=_restricted(config.critic, old),
        ),
    )


def _built(old: ObsSpec, policy: Policy, config: PolicyConfig) -> Policy:
    with torch.random.fork_rng(devices=[]):  # loading weights does not change any random stream
        return Policy(old, policy.action_spec, config)


def _seen(old: ObsSpec, now: ObsSpec, whole: ObsSpec) -> tuple[str, ...]:
    """Return a list's old components: its present ones that existed, and removed ones of the same groups."""
    groups = {component.group for component in now.values()}
    return tuple(name for name in old if name in now or (name not in whole and old[name].group in groups))


def _restricted(recipes: tuple[StageRecipe, ...], old: ObsSpec) -> tuple[StageRecipe, ...]:
    """Return the stages without components that the old observation does not have; a stage left empty is left out."""
    kept: list[StageRecipe] = []
    for recipe in recipes:
        if isinstance(recipe, Encode):
            kept += _restricted_encode(recipe, old)
        elif isinstance(recipe, NormalizeObs) and recipe.components:
            names = _there(recipe.components, old)
            kept += [replace(recipe, components=names)] if names else []
        elif isinstance(recipe, (Estimate, Adapt)):
            kept += _restricted_prediction(recipe, old)
        elif not (isinstance(recipe, Override) and recipe.component not in old):
            kept.append(recipe)
    return tuple(kept)


def _there(names: tuple[str, ...], old: ObsSpec) -> tuple[str, ...]:
    return tuple(name for name in names if name in old)


def _restricted_encode(recipe: Encode, old: ObsSpec) -> list[Encode]:
    places = [at for at, name in enumerate(recipe.components) if name in old]
    if not places:
        return []

    def each(setting: Any) -> Any:
        return tuple(setting[at] for at in places) if isinstance(setting, (tuple, list)) else setting

    names = tuple(recipe.components[at] for at in places)
    copies = tuple((name, copy) for name, copy in recipe.copies if name in names and copy in old)
    model, settings = each(recipe.model), each(recipe.settings)
    return [replace(recipe, components=names, model=model, settings=settings, copies=copies)]


def _restricted_prediction(recipe: Estimate | Adapt, old: ObsSpec) -> list[Estimate | Adapt]:
    truths = recipe.truth_components or recipe.target_components
    pairs = [pair for pair in zip(recipe.target_components, truths) if all(name in old for name in pair)]
    if not pairs:
        return []
    targets, found = tuple(target for target, _ in pairs), tuple(truth for _, truth in pairs)
    reads = _there(recipe.obs_components, old)
    return [
        replace(
            recipe,
            obs_components=reads,
            target_components=targets,
            truth_components=found if recipe.truth_components else (),
        )
    ]


# -- loading -----------------------------------------------------------------------------------------------------------


__all__ = [
    "TransferError",
    "TransferReport",
    "input_columns",
    "load_exactly",
    "load_from_segments",
    "load_misaligned_state_dict",
]

NEW = ("zero", "keep")
"""How columns of new components are set."""

_HINT = (
    "Give the policy that saved these weights as the source, or (its observation spec, its config), "
    "when it differed in more than its components."
)


class HasStateDict(Protocol):
    """A module, or a stateful wrapper around one."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the weights by name."""
        ...


def load_misaligned_state_dict(
    policy: Policy, state_dict: Mapping[str, Tensor], source: Source, *, new: str = "zero"
) -> TransferReport:
    """Load weights that were saved with other observation components; `source` is the observation at that time.

    `new` sets the columns of components that the source did not have: 'zero' or 'keep'.
    """
    if new not in NEW:
        raise ValueError(unknown("choice", new, NEW, where="new"))
    # before the source is built: errors of its stages about a component of another shape are harder to read
    differences = _component_differences(source_spec(source), policy.obs_spec)
    if differences:
        raise TransferError(differences)
    old = source_policy(policy, source)
    differences = _content_differences(old, state_dict)
    if differences:
        raise TransferError(differences, _HINT, columns=("in the weights", "in the source"))
    move = _Move(policy, old, state_dict, zero=new == "zero")
    if move.differences:
        raise TransferError(move.differences, _HINT)
    write(policy, move.values)
    return move.report()


def load_from_segments(
    policy: Policy,
    module: HasStateDict | Mapping[str, Tensor],
    obs_segments: Segments,
    critic_obs_segments: Segments | None = None,
    *,
    new: str = "zero",
) -> TransferReport:
    """Load the weights of a module, or a state dict, that was built for flat vectors with these segments."""
    state_dict = module if isinstance(module, Mapping) else module.state_dict()
    num_actor = ObsSpec.from_segments(obs_segments).size
    num_critic = None if critic_obs_segments is None else ObsSpec.from_segments(critic_obs_segments).size
    spaces = make_spaces(num_actor, num_critic, policy.action_spec, obs_segments, critic_obs_segments)
    return load_misaligned_state_dict(policy, state_dict, spaces, new=new)


def load_exactly(policy: Policy, state_dict: Mapping[str, Tensor], *, source: str = "") -> TransferReport:
    """Load weights of an equal policy; what differs is shown as a table, and then nothing is changed."""
    differences = _content_differences(policy, state_dict)
    if differences:
        raise TransferError(differences, f"The weights come from {source}." if source else "")
    write(policy, state_dict)
    return TransferReport(copied=tuple(policy.state_dict()))


def write(policy: Policy, values: Mapping[str, Tensor]) -> None:
    """Copy values that fit into the policy's own tensors."""
    own = policy.state_dict()
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)


def _component_differences(old: ObsSpec, new: ObsSpec) -> list[WeightDifference]:
    """Return the components of one name and two shapes."""
    return [
        WeightDifference(f"component {name!r}", shape_text(old[name].shape), shape_text(new[name].shape))
        for name in new
        if name in old and old[name].shape != new[name].shape
    ]


def _content_differences(policy: Policy, state_dict: Mapping[str, Tensor]) -> list[WeightDifference]:
    """Return what is missing, superfluous or of another shape in a state dict; `policy` is the reference."""
    wanted, where = policy.state_dict(), places(policy, partly=True)
    found: list[WeightDifference] = []
    for name, value in wanted.items():
        if name not in state_dict:
            found.append(WeightDifference(name, "missing", shape_text(value)))
        elif state_dict[name].shape != value.shape:
            found.append(WeightDifference(name, shape_text(state_dict[name]), shape_text(value) + _reads(where[name])))
    superfluous = [name for name in state_dict if name not in wanted]
    return found + [WeightDifference(name, shape_text(state_dict[name]), "not there") for name in superfluous]


def _reads(place: ParameterPlace) -> str:
    """Return what the columns of a parameter read, ' (joints 12, command 3)'."""
    if 1 not in place.axes:
        return ""
    return " (" + ", ".join(f"{name} {part.stop - part.start}" for name, part in place.axes[1].items()) + ")"


class _Shared(NamedTuple):
    """One component along one axis of a parameter, in both policies."""

    here: slice
    there: slice


class _Move:
    """Works out the new values of all parameters, and the mismatches."""

    def __init__(self, policy: Policy, old: Policy, state_dict: Mapping[str, Tensor], *, zero: bool) -> None:
        self.obs_spec, self.old_obs_spec, self.zero = policy.obs_spec, old.obs_spec, zero
        self._own = policy.state_dict()
        self.values: dict[str, Tensor] = {}
        self.differences: list[WeightDifference] = []
        self._rearranged: list[str] = []
        self._kept: list[str] = []
        self._added: dict[str, list[str]] = {}
        self._dropped: dict[str, list[str]] = {}
        here, there = places(policy), places(old)
        self._names = {(place.part, place.rest): name for name, place in there.items()}
        self._unused = _left_over(here, there, self.differences)
        parts = {place.part for place in there.values()}
        for name, place in here.items():
            source = self._names.get((place.part, place.rest))
            if source is not None:
                self._move(name, place, there[source], state_dict[source])
            elif place.part in parts:
                self.differences.append(WeightDifference(name, "not there", shape_text(self._own[name])))
            else:  # an encoder, a normaliser or a whole stage that the source did not have
                self._kept.append(name)

    def report(self) -> TransferReport:
        """Return the report."""
        return TransferReport(
            copied=tuple(name for name in self.values if name not in self._rearranged),
            rearranged=tuple(self._rearranged),
            kept=tuple(self._kept),
            added={name: tuple(where) for name, where in self._added.items()},
            dropped={name: tuple(where) for name, where in self._dropped.items()},
            unused=self._unused,
        )

    def _move(self, name: str, here: ParameterPlace, there: ParameterPlace, value: Tensor) -> None:
        own = self._own[name]
        result, blocks = own.detach().clone(), []
        for axis in range(own.dim()):
            if axis in here.axes and axis in there.axes:
                blocks.append(self._shared(name, here.axes[axis], there.axes[axis]))
                for component in self._new(here.axes[axis], there.axes[axis]):
                    if self.zero and axis == 1:  # a new prediction, on axis 0, has to begin somewhere
                        result.narrow(axis, *_span(here.axes[axis][component])).zero_()
            else:
                blocks.append([_Shared(slice(None), slice(None))])
        fixed = [axis for axis in range(own.dim()) if axis not in here.axes or axis not in there.axes]
        if value.dim() != own.dim() or any(value.shape[axis] != own.shape[axis] for axis in fixed):
            self.differences.append(WeightDifference(name, shape_text(value), shape_text(own) + _reads(here)))
            return
        if not self.differences:
            for block in itertools.product(*blocks):
                result[tuple(part.here for part in block)] = value[tuple(part.there for part in block)].to(result)
        if here.axes != there.axes:
            self._rearranged.append(name)
        self.values[name] = result

    def _shared(self, name: str, here: Slices, there: Slices) -> list[_Shared]:
        """Return where the components of both lie; one that changed its width, or is no component, does not fit."""
        for component in self._new(here, there):
            self._added.setdefault(component, []).append(name)
            if component not in self.obs_spec:
                self.differences.append(WeightDifference(f"{name}, which reads", ", ".join(there), ", ".join(here)))
        for component in self._new(there, here):
            self._dropped.setdefault(component, []).append(name)
            if component not in self.old_obs_spec:
                self.differences.append(WeightDifference(f"{name}, which reads", ", ".join(there), ", ".join(here)))
        found: list[_Shared] = []
        for component in [component for component in here if component in there]:
            wide, was = _span(here[component])[1], _span(there[component])[1]
            if wide != was:
                what = f"component {component!r} in {name}"
                self.differences.append(WeightDifference(what, f"{was} columns", f"{wide} columns"))
            found.append(_Shared(here[component], there[component]))
        return found

    def _new(self, here: Slices, there: Slices) -> list[str]:
        return [component for component in here if component not in there]


def _span(part: slice) -> tuple[int, int]:
    """Return start and length."""
    return part.start, part.stop - part.start


def _left_over(
    here: Mapping[str, ParameterPlace], there: Mapping[str, ParameterPlace], differences: list[WeightDifference]
) -> tuple[str, ...]:
    """Return what the source has for parts that are gone; a part that is there must have a place for everything."""
    parts = {place.part for place in here.values()}
    keys = {(place.part, place.rest) for place in here.values()}
    unused: list[str] = []
    for name, place in there.items():
        if (place.part, place.rest) in keys:
            continue
        if place.part in parts:
            differences.append(WeightDifference(name, "there", "not there"))
        else:
            unused.append(name)
    return tuple(unused)
