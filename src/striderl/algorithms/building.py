"""Building an algorithm from a config: the interface that a class needs to be used by name.

    class TRPO:
        Config = TRPOConfig                     frozen dataclass; its fields are flags of the command line
        summary = "trust-region policy optimisation, on-policy"
        loop = "on_policy"                      or "off_policy", "offline"

        @classmethod
        def build_policy(cls, config, context): return build_actor_critic(context)

        @classmethod
        def build(cls, config, context, terms):
            return cls(cls.build_policy(config, context), config, mode=context.mode, reduce=context.reduce)

`striderl train cartpole --algorithm my_pkg.trpo:TRPO` then trains it, with run folder, resume, evaluation and export.
`build_policy` alone is called where a policy is loaded to act or to be exported: there is no env, only its specs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch

from striderl.data.actions import ActionSpec, BoxSpec, DiscreteSpec
from striderl.data.checked_fields import refuse_overrides
from striderl.data.naming import unknown
from striderl.data.registry import ALGORITHMS, TERMS
from striderl.data.specs import ObsSpec
from striderl.execution.modes import ExecutionConfig
from striderl.ops.moments import AllReduce
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.settings import PolicySettings, actor_config, build_policy, head_settings, q_function_config
from striderl.policies.stage import StageRecipe
from striderl.policies.value_functions import QFunction

ConfigT = TypeVar("ConfigT")

ON_POLICY, OFF_POLICY, OFFLINE = LOOPS = ("on_policy", "off_policy", "offline")
"""The training loops: fresh rollouts, replay, a dataset."""
POLICY_SEED, CRITIC_SEED, DISCRIMINATOR_SEED = 0, 1, 2
"""Offsets to the seed of a run for initial weights: of a policy, of critics and terms, of discriminators."""
REPLAY_NETWORKS: Mapping[str, Any] = {
    "normalize_obs": False,
    "actor_hidden_dims": (256, 256),
    "critic_hidden_dims": (256, 256),
    "activation": "relu",
}
"""The networks that learners from replay and datasets have by default."""


def _no_object(what: str) -> Any:
    raise ValueError(f"there is no {what}: this build has none to hand over")


@dataclass(frozen=True, kw_only=True)
class RolloutData:
    """What an on-policy algorithm needs stored, besides the columns of its actor; `storage_requirements` returns it."""

    next_components: tuple[str, ...] = ()
    """Components of which the value after every step is stored, where the env gives final observations."""
    num_rollouts: float = 1.0
    """How many of the newest rollouts are learned from."""
    takes_old: bool = False
    """Whether older rollouts may be among them: labels stay valid, ratios and returns do not."""
    one_update_old: bool = False
    """Whether a rollout may be one of the policy before the last update: losses take its log-probabilities as they were
    stored, and its values need no statistics of the moment they were predicted in."""


class BuildContext(NamedTuple):
    """The inputs from which an algorithm or a term is built."""

    obs_spec: ObsSpec
    """The observations."""
    action_spec: ActionSpec
    """The actions."""
    policy: PolicySettings | PolicyConfig
    """The networks: a few settings, or stage by stage, for algorithms with actor and critic."""
    name: str = ""
    """The name of the algorithm, for errors."""
    num_envs: int = 1
    """Envs that learn together in this process."""
    device: str = "cpu"
    """The device of the networks."""
    mode: str | ExecutionConfig = "eager"
    """How gradient steps are run."""
    seed: int = 0
    """The seed of the run."""
    reduce: AllReduce | None = None
    """Sums tensors over all processes of a run; None with one process."""
    stages: tuple[StageRecipe, ...] = ()
    """Stages that terms put in front of the actor."""
    load: Callable[[str], Any] = _no_object
    """Returns the 'teacher' or the 'expert' of the run, or raises with the flag that names one."""
    objects: Mapping[str, Any] = {}
    """Live parts that were passed in: among others a 'policy' to learn with, or a 'discriminator'."""

    @property
    def networks(self) -> PolicySettings:
        """The settings of the networks, for algorithms that build several from them."""
        if isinstance(self.policy, PolicySettings):
            return self.policy
        raise TypeError(f"{self.name} wants PolicySettings; a PolicyConfig describes one actor and one critic")

    @contextmanager
    def seeded(self, role: int = POLICY_SEED) -> Iterator[None]:
        """Seed torch from the run inside this context only."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + role)
            yield

    def own_mode(self, config: ConfigT) -> ConfigT:
        """Return the config of an off-policy algorithm with the run's mode, unless it sets its own."""
        mode: str = vars(config)["mode"]
        usual = self.mode if isinstance(self.mode, str) else self.mode.mode
        return replace(config, mode=mode or usual)  # type: ignore[type-var]


class TermsBesidePPO:
    """Base of algorithms that only put terms beside PPO: what the class returns is a `PPO` or `DAgger`.

    There is never an object of the class, so methods of a subclass would have no effect; they raise.
    """

    loop = ON_POLICY
    learns_in_ranks = True
    takes_terms = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        methods = [name for name, each in vars(cls).items() if inspect.isfunction(each) or isinstance(each, property)]
        base = cls.__base__ or cls
        reason = (
            f"{base.__name__}(…) returns a PPO with terms; derive from PPO, and give it the terms of {base.__name__}"
        )
        refuse_overrides(cls, dict.fromkeys(methods, reason))


class AlgorithmFacts(NamedTuple):
    """The class attributes of an algorithm; optional ones have defaults."""

    build: type[Any]
    """The class."""
    config: type[Any]
    """`Config`: the type of its settings."""
    summary: str
    """`summary`: what it is, in a line."""
    loop: str
    """`loop`: 'on_policy', 'off_policy' or 'offline'."""
    actions: frozenset[str] = frozenset({"box", "discrete", "dict"})
    """`actions`: kinds of actions that it learns."""
    takes_terms: bool = False
    """`takes_terms`: whether `build` uses terms."""
    learns_in_ranks: bool = False
    """`learns_in_ranks`: whether several processes can learn together."""
    corrects_staleness: bool = False
    """`corrects_staleness`: whether it learns from rollouts of an older policy."""
    policy_settings: Mapping[str, Any] = {}
    """`policy_settings`: fields of `PolicySettings` with other defaults: its head, its memory."""
    loop_settings: Callable[[int], Mapping[str, Any]] = lambda num_envs: {}
    """`loop_settings`: fields of the loop's plan with other defaults, for a number of envs."""
    min_envs: int = 1
    """`min_envs`: the smallest number of envs for its settings; off-policy algorithms use one env otherwise."""
    objects: tuple[str, ...] = ()
    """`objects`: the objects it requires: 'teacher', 'expert'."""


_OPTIONAL = tuple(AlgorithmFacts._field_defaults)


def facts_of(name: str) -> AlgorithmFacts:
    """Return the attributes of an algorithm by name; raise with what a class lacks."""
    found = ALGORITHMS.get(name)
    missing = [each for each in ("Config", "summary", "loop", "build", "build_policy") if not hasattr(found, each)]
    if missing:
        raise TypeError(
            f"algorithm {name!r} is {found!r}, which has no {', '.join(missing)}; striderl/algorithms/building.py "
            "shows what the class of an algorithm has"
        )
    if not (isinstance(found.Config, type) and is_dataclass(found.Config)):
        raise TypeError(f"algorithm {name!r}: its Config is a frozen dataclass, found {found.Config!r}")
    if found.loop not in LOOPS:
        raise ValueError(unknown("loop", found.loop, LOOPS, where=f"{found.__name__}.loop"))
    given = {each: getattr(found, each) for each in _OPTIONAL if hasattr(found, each)}
    return AlgorithmFacts(build=found, config=found.Config, summary=found.summary, loop=found.loop, **given)


def term_class(name: str) -> type[Any]:
    """Return the class of a term by name, 'rnd' or, for the second of a kind, 'rnd_2'; raise with what it lacks."""
    found: type[Any] = TERMS.get(_NUMBERED.sub("", name))
    missing = [each for each in ("Config", "summary", "build") if not hasattr(found, each)]
    if missing:
        raise TypeError(f"term {name!r} is {found!r}, which has no {', '.join(missing)}; see algorithms/terms/term.py")
    return found


_NUMBERED = re.compile(r"_[2-9]$")


def kind_of_actions(spec: ActionSpec) -> str:
    """Return 'box', 'discrete' (one choice) or 'dict' (everything else)."""
    return "box" if isinstance(spec, BoxSpec) else "discrete" if isinstance(spec, DiscreteSpec) else "dict"


_KINDS = {"box": "real-valued actions", "discrete": "one choice", "dict": "actions of several parts"}


def check_actions(name: str, facts: AlgorithmFacts, spec: ActionSpec) -> None:
    """Raise when an algorithm does not support such actions; the error lists some that can."""
    kind = kind_of_actions(spec)
    if kind in facts.actions:
        return
    able = [each for each in ALGORITHMS.names() if kind in facts_of(each).actions and facts_of(each).loop == facts.loop]
    wanted = " or ".join(_KINDS[each] for each in sorted(facts.actions))
    raise ValueError(f"{name} learns {wanted}; this task has {_KINDS[kind]}, which {', '.join(able)} learn")


# -- networks ----------------------------------------------------------------------------------------------------------


def build_actor_critic(context: BuildContext, num_values: int = 1) -> Policy:
    """Build actor and critic of an on-policy algorithm; the run's seed sets their initial weights."""
    if "policy" in context.objects:
        given: Policy = context.objects["policy"]
        return given
    with context.seeded():
        return build_policy(
            context.policy, context.obs_spec, context.action_spec, num_values, estimators=context.stages
        ).to(context.device)


def build_actor(context: BuildContext, head: str = "", *, memory: bool = False) -> ActorPolicy:
    """Build an actor without a critic; `head` is the one that the algorithm requires, if any."""
    settings = context.networks
    if head and settings.head != head:
        raise ValueError(f"{context.name} learns with policy.head={head!r}, found {settings.head!r}")
    config = actor_config(settings, context.obs_spec, head_settings(settings, context.action_spec), memory=memory)
    with context.seeded():
        return ActorPolicy(context.obs_spec, context.action_spec, config).to(context.device)


def build_critics(context: BuildContext, **changes: Any) -> QFunction:
    """Build the Q-functions of an off-policy algorithm; `changes` are fields of their `QFunctionConfig`."""
    config = replace(q_function_config(context.networks, context.obs_spec), **changes)
    with context.seeded(CRITIC_SEED):
        return QFunction(context.obs_spec, context.action_spec, config).to(context.device)


def refuse_terms(context: BuildContext, terms: Sequence[object]) -> None:
    """Raise for terms that an algorithm does not support."""
    if terms:
        found = [type(term).__name__ for term in terms]
        raise ValueError(f"{context.name} takes no terms, found {found}; ppo does")
