"""Frozen teachers: a policy with its own normalisers, and what it observes, by name.

    teacher = Teacher(policy)                          the components are found by name in what the env gives
    teacher = Teacher(policy, {"scan": "clean_scan"})  … 'scan' is what this env calls 'clean_scan'
    several = TeacherRouter([walk, climb], "skill")    several of them: `teacher_router.py`

                 ┌ bound to an env's observations: names, shapes and actions are checked once
    Teacher ─────┴▶ BoundTeacher.label(obs, memory, noise) ─▶ actions, memory, parameters of the distribution, latents

The normalisers of a policy are stages of it, so the teacher sees raw observations, never what a student made of them.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from striderl.data.actions import ActionSpec
from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec
from striderl.networks.heads.base import Head
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.encode import EncodeStage
from striderl.policies.facade.routed import policy_of
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.mode_head import ModeHead
from striderl.policies.mutex.facade import StatefulMutex
from striderl.policies.mutex.policy import MutexPolicy
from striderl.policies.policy import Policy

TeacherPolicy = Policy | ActorPolicy | MutexPolicy
"""What can teach."""

_ACTION = "action"


class Label(NamedTuple):
    """What a teacher says about one step of N envs."""

    actions: Any
    """What it would do: a tensor [N, …], or a dict of them."""
    state: dict[str, Tensor]
    """Its memory after the step."""
    params: dict[str, Tensor]
    """The parameters of its distribution."""
    latents: dict[str, Tensor]
    """Component → latent [N, size] of its encoders."""


class Sight(NamedTuple):
    """What there is for a teacher to see."""

    spec: ObsSpec
    """Everything the env gives."""
    student: Collection[str]
    """The components that the student's actor sees."""
    privileged: bool
    """Whether the teacher sees what only the critic sees, and the critic's copy of a component where there is one."""


class BoundTeacher(Protocol):
    """A teacher, or several, that knows where its components are in an env's observation."""

    @property
    def policies(self) -> Sequence[TeacherPolicy]:
        """The policies behind it."""
        ...

    def noise(self, sample: bool) -> dict[str, NoiseSpec]:
        """Return the random numbers that labels want for each env and step."""
        ...

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return the memory at the start of an episode."""
        ...

    def label(
        self, obs: Mapping[str, Tensor], state: Mapping[str, Tensor], noise: Mapping[str, Tensor], *, sample: bool
    ) -> Label:
        """Say what to do: the most likely action, or a sample."""
        ...


class Teacher:
    """One frozen policy; the given one is copied, and what happens to it later does not change the teacher."""

    def __init__(
        self, policy: TeacherPolicy | StatefulPolicy | StatefulMutex, components: Mapping[str, str] | None = None
    ) -> None:
        """Freeze a copy; `components` are other names that the env has for what the policy calls so."""
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
        """Find the teacher's components in what there is to see, or say what does not fit."""
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
        """Return what the env calls a component, or None where there is nothing that fits."""
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
    """A teacher that knows where its components are."""

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
        memo = self._policy.decide(noise) if sample else self._policy.settled(like.new_zeros(like.shape[0]))
        distribution, new_state, aux = self._policy.act(seen, state, memo)
        actions = distribution.sample(_sample_noise(noise)) if sample else distribution.mode()
        return Label(actions, new_state, distribution.params(), latents_in(aux))


def latents_in(aux: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return component → latent of the encoders that an actor reads, from what a policy gave as aux."""
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
    """Return what makes the distribution; a mutex, which mixes those of others, has none."""
    if isinstance(policy, MutexPolicy):
        return None
    return policy.head.inner if isinstance(policy.head, ModeHead) else policy.head


def _sample_noise(noise: Mapping[str, Tensor]) -> Any:
    if _ACTION in noise:
        return noise[_ACTION]
    prefix = f"{_ACTION}/"
    return {name.removeprefix(prefix): value for name, value in noise.items() if name.startswith(prefix)}
