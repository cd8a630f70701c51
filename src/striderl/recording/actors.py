"""Actors for recording demonstrations: wrap any policy as an actor.

Policy, ActorPolicy, MutexPolicy, a model such as ActorCritic, an Agent, a Teacher ──▶ LabelActor   mode or sample
an object with act, act_inference and reset(dones), of another library           ──▶ FlatActor    flat observations
a function of the observation                                                    ──▶ ScriptedActor
an Actor                                                                         ──▶ itself
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from striderl.collect.actors.base import Actor, ActorOutput, Noise, Obs, ScriptedActor
from striderl.collect.teacher import BoundTeacher, Label, Sight, Teacher, TeacherRouter
from striderl.data.arena import Columns
from striderl.data.checked_fields import overridden
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec
from striderl.envs.vec_env import VecEnv
from striderl.envs.wrap_env import wrap_env
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.mutex.facade import StatefulMutex
from striderl.policies.mutex.policy import MutexPolicy
from striderl.policies.policy import Policy

CRITIC = "critic"
"""The group of components that only a critic sees."""

ACTING = ("policy", "actor", "state")
"""Groups that a policy reads; the first that an env has is taken."""
CRITIC_ARGUMENTS = ("critic_obs", "critic_observations", "privileged_obs", "privileged_observations")
"""What the second argument of an old-style policy's method is called where it wants the critic's observations."""

_OWN = (Policy, ActorPolicy, MutexPolicy, StatefulPolicy, StatefulMutex)


@runtime_checkable
class HasPolicy(Protocol):
    """An object that runs a policy: an `Agent`."""

    policy: Any


@runtime_checkable
class FlatPolicy(Protocol):
    """A policy in the old style: flat observations in, actions out, a memory inside."""

    def act(self, observations: Tensor) -> Any:
        """Return sampled actions."""
        ...

    def act_inference(self, observations: Tensor) -> Any:
        """Return the most likely actions."""
        ...

    def reset(self, dones: Tensor) -> Any:
        """Reset the state of envs whose episode ended."""
        ...


class LabelActor:
    """Act by a bound teacher: its most likely actions, or samples."""

    def __init__(self, teacher: BoundTeacher, *, sample: bool) -> None:
        self._teacher, self._sample = teacher, sample

    def columns(self) -> Columns:
        """Return nothing."""
        return {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise specs of samples."""
        return self._teacher.noise(self._sample)

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return the memory at the start of an episode."""
        return self._teacher.initial_state(num_envs, device)

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Return the teacher's actions."""
        said = self._teacher.label(obs, state, noise, sample=self._sample)
        return ActorOutput(said.actions, said.state, {})


class FlatActor:
    """Act by an old-style policy, which keeps its own memory; the saver resets it where episodes ended."""

    def __init__(self, policy: FlatPolicy, spec: ObsSpec, *, sample: bool, critic: ObsSpec | None = None) -> None:
        """Flatten the components of a spec into one vector for the policy, and those of the critic where it asks."""
        self.policy, self._spec, self._critic = policy, spec, critic
        self._call: Callable[..., Any] = policy.act if sample else policy.act_inference
        self._asks_critic = critic is not None and _takes_critic(self._call)

    def columns(self) -> Columns:
        """Return nothing."""
        return {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing: it samples by itself."""
        return {}

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return nothing: it keeps its own memory."""
        return ()

    def act(self, obs: Obs, state: Any, noise: Noise) -> ActorOutput:
        """Call the policy."""
        shown = [self._spec.flatten(obs)]
        if self._asks_critic and self._critic is not None:
            shown.append(self._critic.flatten(obs))
        actions = self._call(*shown)
        return ActorOutput(actions.detach() if isinstance(actions, Tensor) else actions, state, {})


class FlatTeacher:
    """An old-style policy as a teacher: an object with act, act_inference and reset, which keeps its own memory."""

    policies: tuple[Any, ...] = ()

    def __init__(self, policy: FlatPolicy, spec: ObsSpec, *, use_critic_obs: bool) -> None:
        """Show the policy the vector of an env, and the critic's where it asks for it."""
        shown, seen = flat_spec(spec, critic=use_critic_obs), flat_spec(spec, critic=True)
        self.policy = policy
        self._greedy, self._sampling = (FlatActor(policy, shown, sample=each, critic=seen) for each in (False, True))

    def noise(self, sample: bool) -> dict[str, NoiseSpec]:
        """Return nothing: it samples by itself."""
        return {}

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return nothing: it keeps its own memory."""
        return {}

    def label(
        self, obs: Mapping[str, Tensor], state: Mapping[str, Tensor], noise: Mapping[str, Tensor], *, sample: bool
    ) -> Label:
        """Call the policy."""
        actor = self._sampling if sample else self._greedy
        return Label(actor.act(dict(obs), (), {}).actions, {}, {}, {})


def demonstrator(policy: Any, env: VecEnv, *, use_critic_obs: bool, sample: bool) -> Actor:
    """Return any policy as an actor in an env.

    use_critic_obs: give it the critic's components, and the critic's copy of a component where there is one.
    sample: let it act by samples in place of its most likely actions.
    """
    if isinstance(policy, StatefulPolicy) and overridden(policy, StatefulPolicy, "act", "act_inference", "reset"):
        own = list(policy.policy.actor_inputs)
        there = all(name in env.obs_spec for name in own)
        shown = env.obs_spec.select(own) if there else flat_spec(env.obs_spec, critic=use_critic_obs)
        return FlatActor(policy, shown, sample=sample)
    if isinstance(policy, (*_OWN, Teacher, TeacherRouter)):
        return LabelActor(bound_teacher(policy, env, use_critic_obs=use_critic_obs), sample=sample)
    if isinstance(policy, HasPolicy) and isinstance(policy.policy, _OWN):
        return demonstrator(policy.policy, env, use_critic_obs=use_critic_obs, sample=sample)
    if isinstance(policy, Actor):
        _require_plain("an actor", use_critic_obs, sample)
        return policy
    if isinstance(policy, FlatPolicy):
        spec = env.obs_spec
        shown, seen = flat_spec(spec, critic=use_critic_obs), flat_spec(spec, critic=True)
        return FlatActor(policy, shown, sample=sample, critic=seen)
    if callable(policy):
        _require_plain("a function", use_critic_obs, sample)
        return ScriptedActor(policy)
    raise TypeError(
        f"{type(policy).__name__} cannot act: wanted a policy, an Agent, an actor, a function of the observation, or "
        "an object with act, act_inference and reset"
    )


def bound_teacher(policy: Any, env: VecEnv, *, use_critic_obs: bool) -> BoundTeacher:
    """Find a policy's components in an env's observation."""
    given: Any = policy
    if not isinstance(policy, (*_OWN, Teacher, TeacherRouter, HasPolicy)) and isinstance(policy, FlatPolicy):
        return FlatTeacher(policy, env.obs_spec, use_critic_obs=use_critic_obs)
    teacher = given if isinstance(given, (Teacher, TeacherRouter)) else Teacher(given)
    visible = [name for name, part in env.obs_spec.items() if part.group != CRITIC]
    if isinstance(teacher, Teacher) and not use_critic_obs:
        hidden = [name for name in teacher.policy.actor_inputs if name in env.obs_spec and name not in visible]
        if hidden:
            raise ValueError(f"the policy reads {hidden}, which only the critic sees; set use_critic_obs=True")
    return teacher.bound(Sight(env.obs_spec, visible, use_critic_obs), env.action_spec, env.device)


def as_vec_env(env: Any, who: str) -> VecEnv:
    """Return a VecEnv as it is, and any other env wrapped; raise for what is no env."""
    if isinstance(env, VecEnv):
        return env
    if not callable(getattr(env, "step", None)):
        raise TypeError(
            f"{who} wants a VecEnv, found {type(env).__name__}; a Gymnasium vector env or an env of rsl_rl is wrapped"
        )
    return wrap_env(env, device=getattr(env, "device", None) or "cpu")


def flat_spec(spec: ObsSpec, *, critic: bool) -> ObsSpec:
    """Return the components of an old-style policy's vector, or of its critic's; motions are neither."""
    acting = next(([group] for group in ACTING if group in spec.groups), None)
    if critic:
        theirs = [name for name, part in spec.items() if part.group == CRITIC]
        theirs = theirs or [name for name, part in spec.items() if acting is None or part.group in acting]
    elif acting is not None:
        theirs = [name for name, part in spec.items() if part.group in acting]
    else:
        theirs = [name for name, part in spec.items() if part.group != CRITIC]
    return spec.select(theirs) if theirs else spec


def _takes_critic(call: Callable[..., Any]) -> bool:
    """Return whether a method takes the critic's observations as its second argument."""
    names = list(inspect.signature(call).parameters)
    return len(names) > 1 and names[1] in CRITIC_ARGUMENTS


def _require_plain(what: str, use_critic_obs: bool, sample: bool) -> None:
    """Raise for settings that have no effect for this kind of policy."""
    if use_critic_obs or sample:
        setting = "use_critic_obs" if use_critic_obs else "demo_by_sample"
        raise ValueError(f"{setting} means nothing for {what}: it sees all components and chooses by itself")
