"""`Estimate` and `Adapt`: networks that predict components, and put the prediction where the actor reads.

    Estimate   the target is a component the actor reads (or one only a loss needs):
               {"imu": [B, 6], "velocity": [B, 3]} ──▶ {"imu": [B, 6], "velocity": estimate or the given one}
    Adapt      the target is privileged, the actor does not observe it; the stage adds it:
               {"imu": [B, 6]} ──▶ {"imu": [B, 6], "friction": estimate or the true one}

Which of the two an env's actor reads in a step is drawn once, in the rollout, with the probability
`replace_state_prob`. The decision 'replace' is stored with the step, so that the update repeats it and the ratio stays
1. In deterministic inference (`settled`) the estimate always replaces when that probability is above zero, and never
when it is zero. What replaces is cut off from the graph: the network learns from its own loss, on `aux`:

    aux["estimate"] [.., K] with gradient, aux["estimate/<component>"] [.., *shape], aux["target"] [.., K] the truth
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.networks.memory import Memory
from striderl.networks.mlp import MlpModel, Nonlinearity
from striderl.policies.arguments import as_names
from striderl.policies.stage import Stage, StageInput, StageOutput, flat_features
from striderl.policies.stages import Remember

MEMORY = "memory"
"""The component that `Remember` leaves."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Predict components from others; with some probability the actor reads the prediction instead."""

    SAVED_NAME: ClassVar[str] = "Estimate"

    obs_components: tuple[str, ...] = ()
    """The components the estimator reads; empty with `use_actor_rnn`."""
    target_components: tuple[str, ...]
    """The components it predicts. Only those the actor reads can be replaced; others are predicted for a loss."""
    truth_components: tuple[str, ...] = ()
    """Where the true values are, one per target, when not in the target itself: a clean copy that the critic has."""
    hidden_sizes: tuple[int, ...] = (128, 64)
    """Hidden layers of the estimator; none makes it linear."""
    nonlinearity: Nonlinearity = "elu"
    """The nonlinearity between them."""
    memory: Remember | None = None
    """A memory of its own, before the hidden layers."""
    use_actor_rnn: bool = False
    """Read the actor's memory; the stage then comes after `Remember`, and nothing can be replaced any more."""
    replace_state_prob: float = 0.0
    """How often the estimate replaces the observation, per env and step."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "obs_components", as_names(self.obs_components, "Estimate.obs_components"))
        object.__setattr__(self, "target_components", as_names(self.target_components, "Estimate.target_components"))
        object.__setattr__(self, "truth_components", as_names(self.truth_components, "Estimate.truth_components"))

    def build(self, spec: ObsSpec, whole: ObsSpec) -> PredictStage:
        """Build the stage."""
        if self.use_actor_rnn:
            _check_actor_memory(self, spec)
        reads = (MEMORY,) if self.use_actor_rnn else self.obs_components
        check_prediction("Estimate", self, spec, reads=reads)
        unseen = [name for name in self.target_components if name not in spec]
        if self.replace_state_prob > 0.0 and unseen:
            raise ValueError(
                f"Estimate replaces {unseen} with probability {self.replace_state_prob}, but the actor sees only "
                f"{list(spec)}; add the targets to the actor's components, use Adapt, which adds privileged "
                "components, or set replace_state_prob to 0"
            )
        return PredictStage(self, spec, whole, spec.select(reads), adds=False)


@dataclass(frozen=True, kw_only=True)
class Adapt:
    """Predict privileged components, which the actor then reads: the prediction, or with some probability the truth.

    Stands before `Estimate`. Where an observation lacks the privileged component, as on a robot, the prediction is used
    in its place. With a probability of zero the actor reads the truth only, and requires it.
    """

    SAVED_NAME: ClassVar[str] = "Adapt"

    obs_components: tuple[str, ...]
    """The components the adaptor reads."""
    target_components: tuple[str, ...]
    """The components it predicts for the actor."""
    truth_components: tuple[str, ...] = ()
    """Where the true values are, one per target, when not in the target itself."""
    hidden_sizes: tuple[int, ...] = (128, 64)
    """Hidden layers of the adaptor; none makes it linear."""
    nonlinearity: Nonlinearity = "elu"
    """The nonlinearity between them."""
    memory: Remember | None = None
    """A memory of its own, before the hidden layers."""
    replace_state_prob: float = 1.0
    """How often the actor reads the prediction instead of the truth, per env and step."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "obs_components", as_names(self.obs_components, "Adapt.obs_components"))
        object.__setattr__(self, "target_components", as_names(self.target_components, "Adapt.target_components"))
        object.__setattr__(self, "truth_components", as_names(self.truth_components, "Adapt.truth_components"))

    def build(self, spec: ObsSpec, whole: ObsSpec) -> PredictStage:
        """Build the stage."""
        check_prediction("Adapt", self, spec, reads=self.obs_components)
        return PredictStage(self, spec, whole, spec.select(self.obs_components), adds=True)


class PredictStage(Stage):
    """The network of `Estimate` and `Adapt`: perhaps a memory, then an MLP."""

    def __init__(self, recipe: Estimate | Adapt, spec: ObsSpec, whole: ObsSpec, reads: ObsSpec, *, adds: bool) -> None:
        super().__init__()
        self.input_spec, self.reads = spec, reads
        self.targets = target_specs(type(recipe).__name__, recipe, spec, whole)
        truths = dict(zip(recipe.target_components, recipe.truth_components or recipe.target_components))
        self.truths = {name: truths[name] for name in self.targets}
        self.probability = recipe.replace_state_prob
        self.used = adds or self.probability > 0.0
        own = recipe.memory
        self.memory = None if own is None else Memory(reads.size, own.type, own.num_layers, own.hidden_size)
        width = reads.size if self.memory is None else self.memory.output_size
        self.network = MlpModel(width, recipe.hidden_sizes, self.targets.size, recipe.nonlinearity)
        self.output_spec = spec
        if self.used:
            kept = {name: self.targets.get(name, part) for name, part in spec.items()}
            self.output_spec = ObsSpec({**kept, **self.targets})

    def forward(self, stage_input: StageInput) -> StageOutput:
        """Return the components with the estimate, or the true value, in place of the targets."""
        features = flat_features(stage_input.obs, self.reads, self.network)
        state: dict[str, Tensor] = {}
        if self.memory is not None:
            features, state = self.memory(features, stage_input.state, stage_input.resets, stage_input.valid)
        estimate: Tensor = self.network(features)
        parts = self.targets.split(estimate)
        aux = {"estimate": estimate, **{f"estimate/{name}": part for name, part in parts.items()}}
        truth = self._truth(stage_input)
        if len(truth) == len(self.targets):
            aux["target"] = self.targets.flatten(truth).to(estimate.dtype).detach()
        obs = dict(stage_input.obs)
        if self.used:
            obs |= {name: self._chosen(name, parts[name].detach(), stage_input) for name in self.targets}
        return StageOutput(obs, state, aux)

    def _truth(self, stage_input: StageInput) -> dict[str, Tensor]:
        """Return the available true values: of the stage's input, else of the policy's input."""
        found: dict[str, Tensor] = {}
        for name, source in self.truths.items():
            if source in stage_input.obs:
                found[name] = stage_input.obs[source]
            elif source in stage_input.whole:
                found[name] = stage_input.whole[source]
        return found

    def _chosen(self, name: str, estimate: Tensor, stage_input: StageInput) -> Tensor:
        """Return what the actor reads as this target."""
        given = stage_input.obs[name] if name in stage_input.obs else self._truth(stage_input).get(name)
        if self.probability == 1.0:
            return estimate
        if given is None:
            if self.probability > 0.0:
                return estimate
            raise KeyError(
                f"the actor reads {self.truths[name]!r} itself, because replace_state_prob is 0, and the observation "
                f"has only {sorted(stage_input.whole)}; give it, or let the prediction replace it"
            )
        given = given.to(estimate.dtype)
        if self.probability == 0.0:
            return given
        if "replace" not in stage_input.stage_draws:
            raise KeyError(
                f"the estimate of {name!r} replaces it with probability {self.probability}, and the memo does not say "
                "where; give policy.decide(noise) while collecting, what was stored then in the update, and "
                "policy.settled(like) in deterministic inference"
            )
        replace = stage_input.stage_draws["replace"].bool()
        return torch.where(replace.view(*replace.shape, *[1] * len(self.targets[name].shape)), estimate, given)

    @property
    def wanted_truths(self) -> tuple[str, ...]:
        """The components, besides those that come in, which the actor may have to read for lack of a replacement."""
        if not self.used or self.probability == 1.0:
            return ()
        return tuple(truth for name, truth in self.truths.items() if name not in self.input_spec)

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return the memory of one env."""
        return {} if self.memory is None else self.memory.zero_state_spec()

    def noise(self) -> dict[str, NoiseSpec]:
        """Return one uniform number if there is something to decide."""
        return {"replace": NoiseSpec(kind="uniform")} if 0.0 < self.probability < 1.0 else {}

    def stage_draw_spec(self) -> dict[str, TensorSpec]:
        """Store whether the estimate replaced."""
        return {"replace": TensorSpec(dtype="bool")} if 0.0 < self.probability < 1.0 else {}

    def decide(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Replace where the number is below the probability."""
        return {name: noise[name] < self.probability for name in self.noise()}

    def settled(self, like: Tensor) -> dict[str, Tensor]:
        """Replace everywhere."""
        return {name: torch.ones_like(like, dtype=torch.bool) for name in self.noise()}


def _check_actor_memory(recipe: Estimate, spec: ObsSpec) -> None:
    """Raise unless the stage can and may read the actor's memory."""
    if recipe.replace_state_prob > 0.0:
        raise ValueError(
            "Estimate: replace_state_prob > 0 contradicts use_actor_rnn=True, because the memory has already read what "
            "would be replaced; set replace_state_prob=0, or use_actor_rnn=False"
        )
    if recipe.memory is not None or recipe.obs_components:
        raise ValueError(
            "Estimate: with use_actor_rnn=True the estimator reads the actor's memory and nothing else; "
            "leave obs_components and memory away, or set use_actor_rnn=False"
        )
    if MEMORY not in spec:
        raise ValueError(
            f"Estimate with use_actor_rnn=True wants the component {MEMORY!r} and finds {list(spec)}; put the stage "
            "after Remember (a recurrent class such as StateAcRecurrent), or set use_actor_rnn=False"
        )


# -- checks of their settings, when they are built ---------------------------------------------------------------------


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
    """Raise when an adaptor comes after an estimator, which would not read what the adaptor adds."""
    kinds = [type(recipe).__name__ for recipe in recipes]
    if "Adapt" in kinds and "Estimate" in kinds[: len(kinds) - 1 - kinds[::-1].index("Adapt")]:
        raise ValueError(f"Adapt comes before Estimate in a list of stages, found {kinds}; swap the two")


def check_prediction(stage: str, recipe: Prediction, spec: ObsSpec, *, reads: tuple[str, ...]) -> None:
    """Raise for settings that contradict each other or the input; `reads` are the required components."""
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
