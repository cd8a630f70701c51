"""What can be wrong with the settings of `Estimate` and `Adapt`, found when they are built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, ObsSpec


class Prediction(Protocol):
    """The settings that both recipes have."""

    @property
    def obs_components(self) -> tuple[str, ...]:
        """What is read."""
        ...

    @property
    def target_components(self) -> tuple[str, ...]:
        """What is predicted."""
        ...

    @property
    def truth_components(self) -> tuple[str, ...]:
        """Where the truth is."""
        ...

    @property
    def replace_state_prob(self) -> float:
        """How often the prediction is used."""
        ...


def check_order(recipes: Sequence[object]) -> None:
    """Raise when an adaptor comes after an estimator, which would not see what the adaptor adds."""
    kinds = [type(recipe).__name__ for recipe in recipes]
    if "Adapt" in kinds and "Estimate" in kinds[: len(kinds) - 1 - kinds[::-1].index("Adapt")]:
        raise ValueError(f"Adapt comes before Estimate in a list of stages, found {kinds}; swap the two")


def check_prediction(stage: str, recipe: Prediction, spec: ObsSpec, *, reads: tuple[str, ...]) -> None:
    """Raise for settings that contradict each other or what comes in; `reads` are the components that are wanted."""
    if not recipe.target_components:
        raise ValueError(f"{stage} predicts nothing: name its target components, or leave the stage out")
    if not 0.0 <= recipe.replace_state_prob <= 1.0:
        raise ValueError(f"{stage}: replace_state_prob is a probability from 0 to 1, found {recipe.replace_state_prob}")
    if not reads:
        raise ValueError(f"{stage} reads nothing: name its observation components out of {list(spec)}")
    truths = recipe.truth_components
    if truths and len(truths) != len(recipe.target_components):
        raise ValueError(
            f"{stage} has {len(truths)} truth components for {len(recipe.target_components)} targets; "
            "give one per target, or none when every target is its own truth"
        )
    for name in reads:
        if name not in spec:
            hint = " Everything has become 'memory' already: put the stage before Remember." if "memory" in spec else ""
            raise KeyError(unknown("component", name, spec, where=f"what comes in to {stage}") + hint)
    copied = [name for name in reads if name in (truths or recipe.target_components)]
    if copied:
        raise ValueError(
            f"{stage} reads {copied}, which it is to predict: it would learn to copy. Take them out of the observation "
            "components, or name a clean copy in truth_components"
        )


def target_specs(stage: str, recipe: Prediction, spec: ObsSpec, whole: ObsSpec) -> ObsSpec:
    """Return the targets as real numbers, in the order of the observation, not in that of the setting."""
    found: dict[str, ComponentSpec] = {}
    truths = dict(zip(recipe.target_components, recipe.truth_components or recipe.target_components))
    for name in recipe.target_components:
        for wanted in (name, truths[name]):
            if wanted not in whole:
                raise KeyError(unknown("component", wanted, whole, where=f"the observation for {stage}"))
        if whole[truths[name]].shape != whole[name].shape:
            raise ValueError(
                f"{stage}: the target {name!r} has shape {whole[name].shape} and its truth {truths[name]!r} "
                f"{whole[truths[name]].shape}; they must be the same quantity"
            )
        if name in spec and spec[name].shape != whole[name].shape:
            raise ValueError(
                f"{stage}: {name!r} has been encoded before this stage and cannot be predicted; "
                f"put {stage} before Encode, or give the critic encoders of its own instead of shared ones"
            )
        found[name] = replace(whole[name], dtype="float32")
    return ObsSpec({name: found[name] for name in whole if name in found})
