"""Frozen teachers: a policy with its own normalisers, and its observation components, by name.

    teacher = Teacher(policy)                          the components are found by name in what the env gives
    teacher = Teacher(policy, {"scan": "clean_scan"})  … 'scan' is what this env calls 'clean_scan'
    several = TeacherRouter([walk, climb], "skill")    several of them

                 ┌ bound to an env's observations: names, shapes and actions are checked once
    Teacher ─────┴▶ BoundTeacher.label(obs, memory, noise) ─▶ actions, memory, parameters of the distribution, latents

The normalisers of a policy are stages of it, so the teacher gets raw observations, never the student's normalised ones.

Several teachers, one of them used in each env: separately learned skills for one student.

'skill'   env 0: (1, 0)   env 1: (0, 1)   env 2: (1, 0)        one-hot, or one whole number
          └ teacher 0     └ teacher 1     └ teacher 0          all run in every step, so memories are up to date

`RecordedTeacher`: the teacher is a recording. Its labels are read from disk and set step by step.

    teacher = RecordedTeacher()
    algorithm = TPPO(policy, teacher, TPPOConfig(teacher_act_prob=1.0))
    teacher.tell(actions)                what was recorded for the observations that are acted on next
    actor.act(obs, state, noise)         label = executed action = what was set

With an inner policy, the teacher's distribution and latents are that policy's, and its actions still the recorded.

Labels from a teacher that also acts in some of the envs.

    env 0   ──────────── episode ────────────┐ ┌── episode ──
            draw: the teacher acts           │ │ draw: the student acts
                                             └─┘ a new draw with the first act of each episode
    stored  label (in every env)   acted: where the teacher acted   dist, latent: if configured

The acting policy is drawn with the probability at the start of an episode; an env's draw and the teacher's memory are
part of the actor's memory, so they end with the episode and are saved with it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from striderl.collect.actors.base import Noise, Obs, Played
from striderl.collect.group import where_env
from striderl.data import tree
from striderl.data.actions import ActionSpec
from striderl.data.arena import Columns
from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.distributions.base import Distribution
from striderl.networks.heads.base import Head
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.encode import EncodeStage
from striderl.policies.facade.routed import policy_of
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.heads import ModeHead
from striderl.policies.mutex.facade import StatefulMutex
from striderl.policies.mutex.policy import MutexPolicy
from striderl.policies.policy import Policy
from striderl.policies.stage import inner, outer

TeacherPolicy = Policy | ActorPolicy | MutexPolicy
"""The policies that can teach."""

_ACTION = "action"


class Label(NamedTuple):
    """A teacher's output for one step of N envs."""

    actions: Any
    """Its actions: a tensor [N, …], or a dict of them."""
    state: dict[str, Tensor]
    """Its memory after the step."""
    params: dict[str, Tensor]
    """The parameters of its distribution."""
    latents: dict[str, Tensor]
    """Component → latent [N, size] of its encoders."""


class Sight(NamedTuple):
    """The observations available to a teacher."""

    spec: ObsSpec
    """Everything the env gives."""
    student: Collection[str]
    """The components that the student's actor reads."""
    privileged: bool
    """Whether the teacher may read components of the critic alone, and the critic's copy of a component, if any."""


class BoundTeacher(Protocol):
    """A teacher, or several, bound to the components of an env's observation."""

    @property
    def policies(self) -> Sequence[TeacherPolicy]:
        """The policies behind it."""
        ...

    def noise(self, sample: bool) -> dict[str, NoiseSpec]:
        """Return the random numbers that labels need for each env and step."""
        ...

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return the memory at the start of an episode."""
        ...

    def label(
        self, obs: Mapping[str, Tensor], state: Mapping[str, Tensor], noise: Mapping[str, Tensor], *, sample: bool
    ) -> Label:
        """Return labels: the most likely action, or a sample."""
        ...


class Teacher:
    """One frozen policy; the given one is copied, so later changes to it do not affect the teacher."""

    def __init__(
        self, policy: TeacherPolicy | StatefulPolicy | StatefulMutex, components: Mapping[str, str] | None = None
    ) -> None:
        """Freeze a copy; `components` maps the policy's component names to the env's."""
        pure = policy.policy if isinstance(policy, StatefulMutex) else policy
        pure = policy_of(policy, deterministic=True) if isinstance(policy, StatefulPolicy) else pure
        if not isinstance(pure, (Policy, ActorPolicy, MutexPolicy)):
            raise TypeError(
                f"Teacher wants a policy (Policy, ActorPolicy, or a model such as ActorCritic), found "
                f"{type(policy).__name__}; load_teacher reads one from the folder of a run"
            )
        self.policy: TeacherPolicy = copy.deepcopy(pure).eval().requires_grad_(False)
        self.components = dict(components or {})
        for name in self.components:
            if name not in self.policy.obs_spec:
                raise KeyError(unknown("component", name, self.policy.obs_spec, where="the teacher's observation"))

    def bound(self, sight: Sight, action_spec: ActionSpec, device: torch.device) -> BoundTeacher:
        """Find the teacher's components in the available observations, or raise for those that do not fit."""
        theirs = self.policy.action_spec
        if theirs.tensor != action_spec.tensor:
            raise ValueError(f"the teacher's actions are {theirs}, the student's {action_spec}")
        names = {name: place for name in self.policy.obs_spec if (place := self._place(name, sight)) is not None}
        head = head_of(self.policy)
        required = (*self.policy.actor_inputs, *(() if head is None else head.mask_components))
        for name in required:
            if name not in names:
                raise KeyError(self._missing(name, sight))
        self.policy.to(device)
        return OneTeacher(self.policy, names)

    def _place(self, name: str, sight: Sight) -> str | None:
        """Return the env's name of a component, or None where nothing fits."""
        given = self.components.get(name)
        if given is not None:
            choices, visible = [given], sight.spec
            if given not in sight.spec:
                raise KeyError(unknown("component", given, sight.spec, where="the teacher's components: the env"))
        else:
            choices = [f"critic/{name}", name] if sight.privileged else [name]
            visible = sight.spec if sight.privileged else sight.spec.select(sight.student)
        for choice in choices:
            if choice in visible:
                wanted, found = self.policy.obs_spec[name], sight.spec[choice]
                if wanted.shape != found.shape:
                    raise ValueError(
                        f"the teacher wants component {name!r} of shape {wanted.shape}, the env's {choice!r} has "
                        f"{found.shape}"
                    )
                return choice
        return None

    def _missing(self, name: str, sight: Sight) -> str:
        if name in sight.spec:
            return (
                f"the teacher reads {name!r}, which only the student's critic sees; set "
                "label_action_with_critic_obs=True to label with it"
            )
        return unknown("component", name, sight.spec, where="the teacher reads what the env does not give: it")


class OneTeacher:
    """A teacher bound to an env's components."""

    def __init__(self, policy: TeacherPolicy, names: Mapping[str, str]) -> None:
        self._policy, self._names = policy, dict(names)

    @property
    def policies(self) -> Sequence[TeacherPolicy]:
        """The one policy."""
        return (self._policy,)

    def noise(self, sample: bool) -> dict[str, NoiseSpec]:
        """Return the noise of the policy's stages and of a sample; nothing for the most likely action."""
        if not sample:
            return {}
        policy = self._policy
        spec = (
            NoiseSpec(shape=policy.action_spec.shape) if isinstance(policy, MutexPolicy) else policy.head.noise_spec()
        )
        parts = {_ACTION: spec} if isinstance(spec, NoiseSpec) else {f"{_ACTION}/{k}": v for k, v in spec.items()}
        return {**self._policy.noise(), **parts}

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return the policy's memory at the start of an episode."""
        return self._policy.initial_state(num_envs, device)

    @torch.no_grad()
    def label(
        self, obs: Mapping[str, Tensor], state: Mapping[str, Tensor], noise: Mapping[str, Tensor], *, sample: bool
    ) -> Label:
        """Run the policy on its own components."""
        seen = {name: obs[place] for name, place in self._names.items()}
        like = next(iter(seen.values()))
        stage_draws = self._policy.decide(noise) if sample else self._policy.settled(like.new_zeros(like.shape[0]))
        distribution, new_state, aux = self._policy.act(seen, state, stage_draws)
        actions = distribution.sample(_sample_noise(noise)) if sample else distribution.mode()
        return Label(actions, new_state, distribution.params(), latents_in(aux))


def latents_in(aux: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return component → latent of the encoders that an actor reads, from the policy's aux."""
    found = {}
    for path, value in aux.items():
        stage, separator, component = path.partition("/latent/")
        if separator and stage.partition("/")[0] in ("trunk", "actor"):
            found[component] = value
    return found


def latent_sizes(policy: TeacherPolicy) -> dict[str, int]:
    """Return component → size of the latents of the encoders that an actor reads."""
    if not isinstance(policy, Policy):
        return {}
    stages = [stage for part in (policy.trunk, policy.actor) for _, stage in part.named_stages()]
    return {
        name: stage.output_spec[name].size
        for stage in stages
        if isinstance(stage, EncodeStage)
        for name in stage.network_of
    }


def head_of(policy: TeacherPolicy) -> Head[Any] | None:
    """Return the head of the distribution; a mutex, which mixes distributions of others, has none."""
    if isinstance(policy, MutexPolicy):
        return None
    return policy.head.inner if isinstance(policy.head, ModeHead) else policy.head


def _sample_noise(noise: Mapping[str, Tensor]) -> Any:
    if _ACTION in noise:
        return noise[_ACTION]
    prefix = f"{_ACTION}/"
    return {name.removeprefix(prefix): value for name, value in noise.items() if name.startswith(prefix)}


# -- several teachers --------------------------------------------------------------------------------------------------


class TeacherRouter:
    """Several teachers for one kind of action; an observation component selects one per env."""

    def __init__(self, teachers: Sequence[Teacher], component: str) -> None:
        """Take them in the order of the component: one number per teacher, the largest wins, or one whole number."""
        if len(teachers) < 2:
            raise ValueError(f"TeacherRouter wants at least two teachers, found {len(teachers)}")
        self.teachers, self.component = tuple(teachers), component

    def bound(self, sight: Sight, action_spec: ActionSpec, device: torch.device) -> RoutedTeachers:
        """Bind every teacher."""
        if self.component not in sight.spec:
            where = "the teachers are chosen by what the env does not give: it"
            raise KeyError(unknown("component", self.component, sight.spec, where=where))
        shape = sight.spec[self.component].shape
        if shape not in ((), (1,), (len(self.teachers),)):
            raise ValueError(
                f"component {self.component!r} chooses among {len(self.teachers)} teachers: wanted one whole number or "
                f"{len(self.teachers)} numbers, found shape {shape}"
            )
        return RoutedTeachers([each.bound(sight, action_spec, device) for each in self.teachers], self.component)


class RoutedTeachers:
    """Bound teachers that all run, one of them selected in each env; all update their memories."""

    def __init__(self, teachers: Sequence[BoundTeacher], component: str) -> None:
        self._teachers, self._component = tuple(teachers), component

    @property
    def policies(self) -> Sequence[TeacherPolicy]:
        """All policies, in order."""
        return tuple(policy for teacher in self._teachers for policy in teacher.policies)

    def noise(self, sample: bool) -> dict[str, NoiseSpec]:
        """Return the noise of all."""
        return {
            f"{at}/{name}": spec for at, each in enumerate(self._teachers) for name, spec in each.noise(sample).items()
        }

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return the memory of all."""
        return {
            f"{at}/{name}": value
            for at, each in enumerate(self._teachers)
            for name, value in each.initial_state(num_envs, device).items()
        }

    @torch.no_grad()
    def label(
        self, obs: Mapping[str, Tensor], state: Mapping[str, Tensor], noise: Mapping[str, Tensor], *, sample: bool
    ) -> Label:
        """Run all teachers and return the output of the selected one in each env."""
        said = [
            each.label(obs, _inner(state, at), _inner(noise, at), sample=sample)
            for at, each in enumerate(self._teachers)
        ]
        turn = self.turn(obs)
        new_state = {f"{at}/{name}": value for at, one in enumerate(said) for name, value in one.state.items()}
        latents = [one.latents for one in said]
        common = set(latents[0]).intersection(*latents)
        return Label(
            _chosen(turn, [one.actions for one in said]),
            new_state,
            _chosen(turn, [one.params for one in said]) if _alike([one.params for one in said]) else {},
            _chosen(turn, [{name: one[name] for name in sorted(common)} for one in latents]),
        )

    def turn(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the number of the teacher in each env, int64 [N]; a number that no teacher has becomes the nearest."""
        value = obs[self._component]
        if value.dim() == 2 and value.shape[1] == len(self._teachers):
            return value.to(torch.float32).argmax(dim=1)
        return value.reshape(value.shape[0]).long().clamp(0, len(self._teachers) - 1)


def _alike(params: Sequence[Mapping[str, Tensor]]) -> bool:
    shapes = [{name: value.shape for name, value in each.items()} for each in params]
    return all(each == shapes[0] for each in shapes)


def _chosen(turn: Tensor, choices: Sequence[Any]) -> Any:
    """Return the output of the selected teacher in each env; dicts entry by entry."""
    if isinstance(choices[0], Mapping):
        return {name: _chosen(turn, [choice[name] for choice in choices]) for name in choices[0]}
    stacked = torch.stack(list(choices))
    index = turn.view(1, -1, *[1] * (stacked.dim() - 2)).expand(1, *stacked.shape[1:])
    return stacked.gather(0, index).squeeze(0)


def _inner(values: Mapping[str, Tensor], at: int) -> dict[str, Tensor]:
    prefix = f"{at}/"
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


# -- a recording as the teacher ----------------------------------------------------------------------------------------


class RecordedTeacher(Teacher):
    """Returns recorded labels that were set before."""

    def __init__(self, behind: Teacher | TeacherRouter | None = None) -> None:
        """Use this teacher for distribution and latents, if given."""
        self.behind = behind
        self.told: Any = None
        """The actions of the next step, [N, …]; None before the first."""

    def tell(self, actions: Any) -> None:
        """Set the recorded actions of the next step; copied to a fixed address for captured graphs."""
        if self.told is None:
            self.told = tree.copy(actions)
        else:
            tree.map(lambda place, value: place.copy_(value), self.told, actions)

    def bound(self, sight: Sight, action_spec: ActionSpec, device: torch.device) -> BoundTeacher:
        """Bind the inner teacher, if there is one."""
        return RecordedLabels(self, None if self.behind is None else self.behind.bound(sight, action_spec, device))


class RecordedLabels:
    """A recorded teacher with its bound inner teacher."""

    def __init__(self, teacher: RecordedTeacher, behind: BoundTeacher | None) -> None:
        self._teacher, self._behind = teacher, behind

    @property
    def policies(self) -> Sequence[TeacherPolicy]:
        """The policies of the inner teacher."""
        return () if self._behind is None else self._behind.policies

    def noise(self, sample: bool) -> dict[str, NoiseSpec]:
        """Return the noise of the inner teacher."""
        return {} if self._behind is None else self._behind.noise(sample)

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return the memory of the inner teacher."""
        return {} if self._behind is None else self._behind.initial_state(num_envs, device)

    def label(
        self, obs: Mapping[str, Tensor], state: Mapping[str, Tensor], noise: Mapping[str, Tensor], *, sample: bool
    ) -> Label:
        """Return the recorded actions."""
        told = self._teacher.told
        if told is None:
            raise RuntimeError("a RecordedTeacher says what it is told: call tell(actions) before each step")
        if self._behind is None:
            return Label(tree.copy(told), {}, {}, {})
        return self._behind.label(obs, state, noise, sample=sample)._replace(actions=tree.copy(told))


# -- a teacher that acts -----------------------------------------------------------------------------------------------


_TEACHER = "teacher"


class TeacherActing:
    """The acting part of distillation; `DaggerSaver` uses it as well."""

    def __init__(
        self,
        teacher: BoundTeacher,
        action_spec: ActionSpec,
        *,
        probability: Tensor,
        sample: bool = False,
        store_params: bool = False,
        latents: tuple[str, ...] = (),
        name: str = "distill",
    ) -> None:
        """Run a teacher in every step.

        probability: 0-d, how often the teacher acts; its owner may change it with `copy_`.
        sample: label with samples of the teacher in place of its most likely actions.
        store_params: store the parameters of the teacher's distribution.
        latents: the components whose latents are stored.
        """
        self.teacher, self.action_spec, self.probability = teacher, action_spec, probability
        self.sample, self.store_params, self.latents = sample, store_params, latents
        self._name = name

    @property
    def name(self) -> str:
        """The name of its columns, noise and memory."""
        return self._name

    def columns(self) -> Columns:
        """Return the label, whether the teacher acted, and the other stored outputs of the teacher."""
        found: dict[str, Any] = {"label": self.action_spec.tensor, "acted": TensorSpec(dtype="bool")}
        head = head_of(self.teacher.policies[0]) if self.store_params else None
        if head is not None:
            found["dist"] = dict(head.params_spec())
        if self.latents:
            sizes = latent_sizes(self.teacher.policies[0])
            found["latent"] = {name: TensorSpec(shape=(sizes[name],)) for name in self.latents}
        return found

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the draw, and of the teacher."""
        return {"choose": NoiseSpec(kind="uniform"), **_outer_noise(self.teacher.noise(self.sample))}

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return the state before the first draw, and the teacher's initial memory."""
        nobody = torch.zeros(num_envs, dtype=torch.bool, device=device)
        return {"drawn": nobody, "acts": nobody, **outer(self.teacher.initial_state(num_envs, device), _TEACHER)}

    def __call__(
        self, obs: Obs, state: Mapping[str, Tensor], actions: Any, distribution: Distribution[Any], noise: Noise
    ) -> Played:
        """Label the step, and replace the action where the teacher acts."""
        said = self.teacher.label(obs, inner(state, _TEACHER), inner(noise, _TEACHER), sample=self.sample)
        acts = torch.where(state["drawn"], state["acts"], noise["choose"] < self.probability)
        columns: dict[str, Any] = {"label": said.actions, "acted": acts}
        if self.store_params:
            columns["dist"] = said.params
        if self.latents:
            columns["latent"] = {name: said.latents[name] for name in self.latents}
        new_state = {"drawn": torch.ones_like(acts), "acts": acts, **outer(said.state, _TEACHER)}
        return Played(where_env(acts, said.actions, actions), new_state, columns)


def _outer_noise(specs: Mapping[str, NoiseSpec]) -> dict[str, NoiseSpec]:
    return {f"{_TEACHER}/{name}": spec for name, spec in specs.items()}
