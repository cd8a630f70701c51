"""Load weights into a policy that observes other things than the one that saved them, by the names of components.

    saved with   joints [2] | command [1]                  first layer   [ j j c ]
    loaded into  command [1] | joints [2] | scan [3]       first layer   [ c j j 0 0 0 ]       new="zero"

What both have is copied to where this policy has it; columns of new components are zeroed, so that the policy acts as
it did, or kept as they are; what is gone is left behind. The rest must be equal. Everything is worked out before
anything is written: a load that raises has changed nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.policies.parameter_layout import Place, Slices, input_columns, places
from striderl.policies.policy import Policy
from striderl.policies.spaces import Segments, make_spaces
from striderl.policies.transfer.report import Difference, TransferError, TransferReport, shape_text
from striderl.policies.transfer.source import Source, source_policy, source_spec

__all__ = [
    "TransferError",
    "TransferReport",
    "input_columns",
    "load_exactly",
    "load_from_segments",
    "load_misaligned_state_dict",
]

NEW = ("zero", "keep")
"""What columns of new components become."""

_HINT = (
    "Give the policy that saved these weights as the source, or (its observation spec, its config), "
    "when it differed in more than its components."
)


class HasStateDict(Protocol):
    """A module, or a stateful shell around one."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the weights by name."""
        ...


def load_misaligned_state_dict(
    policy: Policy, state_dict: Mapping[str, Tensor], source: Source, *, new: str = "zero"
) -> TransferReport:
    """Load weights that were saved with other observation components; `source` says what was observed then.

    `new` says what the columns of components become that the source did not have: 'zero' or 'keep'.
    """
    if new not in NEW:
        raise ValueError(unknown("choice", new, NEW, where="new"))
    # before the source is built: what its stages say about a component of another shape is harder to read
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


def _component_differences(old: ObsSpec, new: ObsSpec) -> list[Difference]:
    """Return the components of one name and two shapes."""
    return [
        Difference(f"component {name!r}", shape_text(old[name].shape), shape_text(new[name].shape))
        for name in new
        if name in old and old[name].shape != new[name].shape
    ]


def _content_differences(policy: Policy, state_dict: Mapping[str, Tensor]) -> list[Difference]:
    """Return what is missing, superfluous or of another shape in a state dict; `policy` says what should be there."""
    wanted, where = policy.state_dict(), places(policy)
    found: list[Difference] = []
    for name, value in wanted.items():
        if name not in state_dict:
            found.append(Difference(name, "missing", shape_text(value)))
        elif state_dict[name].shape != value.shape:
            found.append(Difference(name, shape_text(state_dict[name]), shape_text(value) + _reads(where[name])))
    superfluous = [name for name in state_dict if name not in wanted]
    return found + [Difference(name, shape_text(state_dict[name]), "not there") for name in superfluous]


def _reads(place: Place) -> str:
    """Return what the columns of a parameter read, ' (joints 12, command 3)'."""
    if 1 not in place.axes:
        return ""
    return " (" + ", ".join(f"{name} {part.stop - part.start}" for name, part in place.axes[1].items()) + ")"


class _Shared(NamedTuple):
    """One component along one axis of a parameter, in both policies."""

    here: slice
    there: slice


class _Move:
    """Works out the new values of all parameters, and what does not fit."""

    def __init__(self, policy: Policy, old: Policy, state_dict: Mapping[str, Tensor], *, zero: bool) -> None:
        self.obs_spec, self.old_obs_spec, self.zero = policy.obs_spec, old.obs_spec, zero
        self._own = policy.state_dict()
        self.values: dict[str, Tensor] = {}
        self.differences: list[Difference] = []
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
                self.differences.append(Difference(name, "not there", shape_text(self._own[name])))
            else:  # an encoder, a normaliser or a whole stage that the source did not have
                self._kept.append(name)

    def report(self) -> TransferReport:
        """Return what was done."""
        return TransferReport(
            copied=tuple(name for name in self.values if name not in self._rearranged),
            rearranged=tuple(self._rearranged),
            kept=tuple(self._kept),
            added={name: tuple(where) for name, where in self._added.items()},
            dropped={name: tuple(where) for name, where in self._dropped.items()},
            unused=self._unused,
        )

    def _move(self, name: str, here: Place, there: Place, value: Tensor) -> None:
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
            self.differences.append(Difference(name, shape_text(value), shape_text(own) + _reads(here)))
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
                self.differences.append(Difference(f"{name}, which reads", ", ".join(there), ", ".join(here)))
        for component in self._new(there, here):
            self._dropped.setdefault(component, []).append(name)
            if component not in self.old_obs_spec:
                self.differences.append(Difference(f"{name}, which reads", ", ".join(there), ", ".join(here)))
        found: list[_Shared] = []
        for component in [component for component in here if component in there]:
            wide, was = _span(here[component])[1], _span(there[component])[1]
            if wide != was:
                what = f"component {component!r} in {name}"
                self.differences.append(Difference(what, f"{was} columns", f"{wide} columns"))
            found.append(_Shared(here[component], there[component]))
        return found

    def _new(self, here: Slices, there: Slices) -> list[str]:
        return [component for component in here if component not in there]


def _span(part: slice) -> tuple[int, int]:
    """Return start and length."""
    return part.start, part.stop - part.start


def _left_over(here: Mapping[str, Place], there: Mapping[str, Place], differences: list[Difference]) -> tuple[str, ...]:
    """Return what the source has for parts that are gone; a part that is there must have a place for everything."""
    parts = {place.part for place in here.values()}
    keys = {(place.part, place.rest) for place in here.values()}
    unused: list[str] = []
    for name, place in there.items():
        if (place.part, place.rest) in keys:
            continue
        if place.part in parts:
            differences.append(Difference(name, "there", "not there"))
        else:
            unused.append(name)
    return tuple(unused)
