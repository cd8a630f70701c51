"""Every part that must be capturable, one line each: add a stage, head, distribution, actor or policy to its table.

A part is built for a device and gives (function, inputs): what `check_capture` wants. Inputs are random but fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.collect.actors.base import RandomActor, ScriptedActor
from striderl.collect.actors.policy_actor import GreedyActor, PolicyActor
from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.noise import NoiseSpec, draw_all
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec, torch_dtype
from striderl.networks.distributions import (
    BetaDistribution,
    Categorical,
    Deterministic,
    DiagonalGaussian,
    Hybrid,
    MultiDiscrete,
    QValues,
    SquashedGaussian,
)
from striderl.networks.distributions.base import Distribution
from striderl.networks.heads.base import Head
from striderl.networks.heads.gaussian import GaussianHead, SquashedGaussianHead
from striderl.networks.heads.table import BetaHead, CategoricalHead, DeterministicHead, HybridHead, MultiDiscreteHead
from striderl.networks.heads.value import QHead, ValueHead
from striderl.networks.memory import Memory
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stage import StageInput, StageRecipe
from striderl.policies.stages import NormalizeObs, Override, Remember

B, T = 4, 3


class Part(NamedTuple):
    """What is checked."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    atol: float = 0.0


Build = Callable[[torch.device], Part]

OBS = ObsSpec(
    {
        "command": ComponentSpec(shape=(3,)),
        "joints": ComponentSpec(shape=(6,)),
        "image": ComponentSpec(shape=(1, 10, 12), dtype="uint8"),
        "allowed": ComponentSpec(shape=(5,), dtype="bool", group="action_mask"),
        "velocity": ComponentSpec(shape=(2,), group="critic"),
    }
)
FLAT = OBS.select(["command", "joints"])
CONV = {"channels": (4,), "kernel_sizes": (3,), "strides": (2,)}
ESTIMATE = {"obs_components": ("joints",), "target_components": ("command",), "hidden_sizes": (7,)}
ADAPT = {"obs_components": ("joints",), "target_components": ("velocity",), "hidden_sizes": (7,)}
IMAGE = Encode(components=("image",), model="Conv2dHeadModel", settings=CONV, output_size=5)


def random(spec: TensorSpec, *lead: int, seed: int = 0) -> Tensor:
    """Random numbers of a spec's kind."""
    generator = torch.Generator().manual_seed(seed)
    shape, dtype = (*lead, *spec.shape), torch_dtype(spec.dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)


def observation(spec: ObsSpec, device: torch.device, *lead: int) -> dict[str, Tensor]:
    return {name: random(part, *lead, seed=at).to(device) for at, (name, part) in enumerate(spec.items())}


def drawn(specs: NoiseSpec | dict[str, NoiseSpec], device: torch.device, num_steps: int = 1) -> Any:
    """Noise [B, …], or [T, B, …] for several steps."""
    named = {"": specs} if isinstance(specs, NoiseSpec) else dict(specs)
    values = draw_all(named, seed=1, iteration=0, env_index=torch.arange(B, device=device), num_steps=num_steps)
    values = values if num_steps > 1 else {name: value[0] for name, value in values.items()}
    return values[""] if isinstance(specs, NoiseSpec) else values


def memory_of(part: Any, device: torch.device) -> dict[str, Tensor]:
    return {name: random(spec, B, seed=7).to(device) for name, spec in part.state_spec().items()}


def resets_and_valid(device: torch.device) -> tuple[Tensor, Tensor]:
    """One env starts anew in the middle, one at the start, one is padding at the end."""
    resets, valid = torch.zeros(T, B, dtype=torch.bool), torch.ones(T, B, dtype=torch.bool)
    resets[1, 0] = resets[0, 2] = True
    valid[2, 3] = False
    return resets.to(device), valid.to(device)


# -- stages ------------------------------------------------------------------------------------------------------------


def stage(recipe: StageRecipe, spec: ObsSpec, *, sequence: bool) -> Build:
    def build(device: torch.device) -> Part:
        torch.manual_seed(0)
        module = recipe.build(spec, OBS).to(device)
        module.update_normalization(observation(spec, device, 2, B))
        lead = (T, B) if sequence else (B,)
        noise = drawn(dict(module.noise()), device, T if sequence else 1)
        stage_draws = module.decide(noise)
        flags = resets_and_valid(device) if sequence else (None, None)
        whole = observation(OBS, device, *lead)

        def run(obs: Any, state: Any, stage_draws: Any, resets: Any, valid: Any, whole: Any) -> Any:
            return module(StageInput(obs, state, stage_draws, resets, valid, whole))

        obs = {name: whole[name] for name in spec}
        return Part(run, (obs, memory_of(module, device), stage_draws, *flags, whole))

    return build


STAGES: dict[str, tuple[StageRecipe, ObsSpec]] = {
    "NormalizeObs": (NormalizeObs(), OBS),
    "Encode mlp": (Encode(components=("joints",), settings={"hidden_sizes": 8}, output_size=4), FLAT),
    "Encode conv": (IMAGE, OBS.select(["joints", "image"])),
    "Remember gru": (Remember(type="gru", hidden_size=5), FLAT),
    "Remember lstm": (Remember(type="lstm", hidden_size=5, num_layers=2), FLAT),
    "Estimate": (Estimate(**ESTIMATE, replace_state_prob=0.5), FLAT),
    "Estimate with memory": (Estimate(**ESTIMATE, replace_state_prob=0.5, memory=Remember(hidden_size=5)), FLAT),
    "Adapt": (Adapt(**ADAPT, replace_state_prob=0.5), FLAT),
    "Adapt with memory": (Adapt(**ADAPT, memory=Remember(type="gru", hidden_size=5)), FLAT),
    "Override": (Override(component="command", values=(0.5, 0.0), entries=(0, 2)), FLAT),
}


# -- distributions and heads -------------------------------------------------------------------------------------------


def positive(*shape: int, seed: int) -> Tensor:
    return random(TensorSpec(shape=shape), seed=seed).abs() + 0.3


def parameters(family: str, device: torch.device, seed: int) -> Distribution[Any]:
    """A distribution of a family over [B]; the seed changes its parameters, not its bounds and masks."""
    mean = random(TensorSpec(shape=(B, 3)), seed=seed).to(device)
    std = positive(B, 3, seed=seed + 1).to(device)
    low, high = torch.full((3,), -2.0, device=device), torch.full((3,), 1.5, device=device)
    logits = random(TensorSpec(shape=(B, 5)), seed=seed + 2).to(device)
    mask = torch.ones(B, 5, dtype=torch.bool, device=device)
    mask[1, 2] = mask[2, 0] = False
    table: dict[str, Distribution[Any]] = {
        "DiagonalGaussian": DiagonalGaussian(mean, std),
        "SquashedGaussian": SquashedGaussian(mean, std, low, high),
        "BetaDistribution": BetaDistribution(std + 1.0, positive(B, 3, seed=seed + 3).to(device), low, high),
        "Categorical": Categorical.from_logits(logits),
        "Categorical masked": Categorical.from_logits(logits, mask),
        "MultiDiscrete masked": MultiDiscrete.from_logits(logits, (2, 3), mask | mask.roll(1, 0)),
        "Deterministic": Deterministic(mean),
        "QValues masked": QValues.from_values(logits, mask),
    }
    table["Hybrid"] = Hybrid({"arm": table["DiagonalGaussian"], "gear": table["Categorical masked"]})
    return table[family]


FAMILIES = (
    "DiagonalGaussian",
    "SquashedGaussian",
    "BetaDistribution",
    "Categorical",
    "Categorical masked",
    "MultiDiscrete masked",
    "Deterministic",
    "QValues masked",
    "Hybrid",
)

QUESTIONS: dict[str, Callable[[Distribution[Any], Distribution[Any], Any], Any]] = {
    "sample": lambda one, other, noise: one.sample(noise),
    "log_prob": lambda one, other, noise: one.log_prob(other.mode()),
    "sample_with_log_prob": lambda one, other, noise: one.sample_with_log_prob(noise),
    "entropy": lambda one, other, noise: one.entropy(),
    "kl": lambda one, other, noise: one.kl(other),
    "mode": lambda one, other, noise: one.mode(),
}


def questions(family: str) -> Build:
    def build(device: torch.device) -> Part:
        example, other = parameters(family, device, 0), parameters(family, device, 10)

        def run(params: Any, other_params: Any, noise: Any) -> Any:
            one, two = example.from_params(params), example.from_params(other_params)
            return {name: ask(one, two, noise) for name, ask in QUESTIONS.items()}

        learned = {key: value.requires_grad_() for key, value in example.params().items()}
        return Part(run, (learned, other.params(), drawn(example.noise_spec(), device)))

    return build


def head(make: Callable[[], torch.nn.Module]) -> Build:
    def build(device: torch.device) -> Part:
        torch.manual_seed(0)
        module = make().to(device)
        features = random(TensorSpec(shape=(8,)), B).to(device)
        if not isinstance(module, Head):
            return Part(module, (features,))
        mask = observation(OBS.select(["allowed"]), device, B)
        noise = drawn(module.noise_spec(), device)

        def run(features: Any, obs: Any, noise: Any) -> Any:
            distribution = module(features, obs)
            return distribution.sample_with_log_prob(noise), distribution.params(), distribution.entropy()

        return Part(run, (features, mask, noise))

    return build


HEADS: dict[str, Callable[[], torch.nn.Module]] = {
    "GaussianHead scalar": lambda: GaussianHead(8, 3),
    "GaussianHead log": lambda: GaussianHead(8, 3, std_type="log", mu_activation="tanh", min_std=0.1),
    "GaussianHead softplus": lambda: GaussianHead(8, (2, 2), std_type="softplus", state_dependent_std=True),
    "SquashedGaussianHead": lambda: SquashedGaussianHead(8, 3, -2.0, 1.0),
    "BetaHead": lambda: BetaHead(8, 3),
    "CategoricalHead": lambda: CategoricalHead(8, 5, "allowed"),
    "MultiDiscreteHead": lambda: MultiDiscreteHead(8, (2, 3), "allowed"),
    "DeterministicHead": lambda: DeterministicHead(8, 3, -1.0, 1.0),
    "DeterministicHead unbounded": lambda: DeterministicHead(8, 3),
    "HybridHead": lambda: HybridHead({"arm": GaussianHead(8, 3), "gear": CategoricalHead(8, 5, "allowed")}),
    "QHead": lambda: QHead(8, 5, dueling=True, mask="allowed"),
    "ValueHead": lambda: ValueHead(8, 2),
}


# -- actors without a policy -------------------------------------------------------------------------------------------


def random_actor(spec: ActionSpec) -> Build:
    def build(device: torch.device) -> Part:
        actor = RandomActor(spec, device)
        return Part(actor.act, (observation(OBS, device, B), (), drawn(dict(actor.noise()), device)))

    return build


def scripted_actor(device: torch.device) -> Part:
    return Part(ScriptedActor(lambda obs: obs["joints"] * 2.0).act, (observation(OBS, device, B), (), {}))


# -- whole policies ----------------------------------------------------------------------------------------------------


def policy(config: PolicyConfig, action: ActionSpec, *, sequence: bool) -> Build:
    """One acting step (forward, sample, log-prob), or the evaluation of a stored sequence with resets inside."""

    def build(device: torch.device) -> Part:
        torch.manual_seed(0)
        module = Policy(OBS, action, config).to(device)
        lead = (T, B) if sequence else (B,)
        obs, state = observation(OBS, device, *lead), memory_of(module, device)
        stage_draws = module.decide(drawn(module.noise(), device, T if sequence else 1))
        noise = drawn(module.head.noise_spec(), device, T if sequence else 1)

        def step(obs: Any, state: Any, stage_draws: Any, noise: Any) -> Any:
            out = module(obs, state, stage_draws)
            return out.distribution.sample_with_log_prob(noise), out.value, out.state, out.aux

        def update(obs: Any, state: Any, stage_draws: Any, actions: Any, resets: Any, valid: Any) -> Any:
            out = module(obs, state, stage_draws, resets, valid)
            return out.distribution.log_prob(actions), out.distribution.entropy(), out.value, out.distribution.params()

        if not sequence:
            return Part(step, (obs, state, stage_draws, noise))
        with torch.no_grad():
            actions = module(obs, state, stage_draws, *resets_and_valid(device)).distribution.sample(noise)
        return Part(update, (obs, state, stage_draws, actions, *resets_and_valid(device)))

    return build


SMALL = {"actor_hidden_dims": (8,), "critic_hidden_dims": (8,), "critic_obs": ("policy", "critic")}
BODY = {**SMALL, "actor_obs": ("command", "joints"), "critic_obs": ("command", "joints", "velocity")}
BOX = BoxSpec(shape=(3,), low=-1.0, high=1.0)
GRU, LSTM = Remember(type="gru", hidden_size=6), Remember(type="lstm", hidden_size=6)

POLICIES: dict[str, tuple[PolicyConfig, ActionSpec]] = {
    "mlp": (PolicyConfig(actor=(NormalizeObs(),), critic=(NormalizeObs(),), **BODY), BOX),
    "cnn": (PolicyConfig(actor=(IMAGE,), critic=(IMAGE,), **SMALL), BOX),
    "gru": (PolicyConfig(actor=(GRU,), critic=(GRU,), **BODY), BOX),
    "lstm": (PolicyConfig(actor=(NormalizeObs(), LSTM), critic=(LSTM,), **BODY), BOX),
    "cnn lstm": (PolicyConfig(actor=(IMAGE, LSTM), critic=(IMAGE,), **SMALL), BOX),
    "estimator": (PolicyConfig(actor=(Estimate(**ESTIMATE, replace_state_prob=0.5), LSTM), **BODY), BOX),
    "adaptor and estimator": (
        PolicyConfig(
            actor=(
                Adapt(**ADAPT, replace_state_prob=0.5),
                Estimate(**ESTIMATE, replace_state_prob=0.5, memory=GRU),
                GRU,
            ),
            **BODY,
        ),
        BOX,
    ),
    "estimate from the actor's memory": (
        PolicyConfig(actor=(LSTM, Estimate(target_components=("velocity",), use_actor_rnn=True)), **BODY),
        BOX,
    ),
    "shared trunk": (PolicyConfig(trunk=(IMAGE, GRU), **{**SMALL, "critic_obs": ("policy",)}), BOX),
    "squashed": (PolicyConfig(head="squashed_gaussian", **BODY), BOX),
    "discrete": (PolicyConfig(actor=(GRU,), **BODY), DiscreteSpec(n=5, mask="allowed")),
    "hybrid": (PolicyConfig(**BODY), DictActionSpec({"arm": BOX, "gear": DiscreteSpec(n=5, mask="allowed")})),
}

IN_SEQUENCE = ("mlp", "lstm", "cnn lstm", "adaptor and estimator", "discrete")
"""Those whose update over a stored sequence is checked as well; the stages above are, all of them."""


# -- all actors --------------------------------------------------------------------------------------------------------


def policy_actor(kind: type[PolicyActor] | type[GreedyActor]) -> Build:
    def build(device: torch.device) -> Part:
        torch.manual_seed(0)
        module = Policy(OBS, *POLICIES["estimator"][::-1]).to(device)
        actor = kind(module)
        noise = drawn(dict(actor.noise()), device)
        return Part(actor.act, (observation(OBS, device, B), memory_of(module, device), noise))

    return build


ACTORS: dict[str, Build] = {
    "RandomActor box": random_actor(BoxSpec(shape=(3,), low=(-1.0, 0.0, -float("inf")), high=1.0)),
    "RandomActor discrete": random_actor(DiscreteSpec(n=5, mask="allowed")),
    "RandomActor multi": random_actor(MultiDiscreteSpec(nvec=(2, 3))),
    "RandomActor dict": random_actor(DictActionSpec({"arm": BoxSpec(shape=(2,)), "gear": DiscreteSpec(n=3)})),
    "ScriptedActor": scripted_actor,
    "PolicyActor": policy_actor(PolicyActor),
    "GreedyActor": policy_actor(GreedyActor),
}


# -- other parts -------------------------------------------------------------------------------------------------------


def memory_by_slots(device: torch.device) -> Part:
    """One library call over a static number of slots although episodes begin inside; traced it runs cell by cell."""
    torch.manual_seed(0)
    module = Memory(6, "lstm", hidden_size=5).to(device)
    state = {name: random(spec, B, seed=7).to(device) for name, spec in module.zero_state_spec().items()}

    def run(x: Any, state: Any, resets: Any, valid: Any) -> Any:
        return module.sequence_by_slots(x, state, resets, B + 2, valid)

    inputs = (random(TensorSpec(shape=(6,)), T, B).to(device), state, *resets_and_valid(device))
    return Part(run, inputs, atol=1e-6)


PARTS: dict[str, Build] = {
    **{f"{name}, step": stage(*made, sequence=False) for name, made in STAGES.items()},
    **{f"{name}, sequence": stage(*made, sequence=True) for name, made in STAGES.items()},
    **{family: questions(family) for family in FAMILIES},
    **{name: head(make) for name, make in HEADS.items()},
    **ACTORS,
    **{f"policy {name}, step": policy(*made, sequence=False) for name, made in POLICIES.items()},
    **{f"policy {name}, sequence": policy(*POLICIES[name], sequence=True) for name in IN_SEQUENCE},
    "Memory.sequence_by_slots": memory_by_slots,
}
