"""Actors for recording demonstrations: wrap any policy as an actor.

Policy, ActorPolicy, MutexPolicy, a model such as ActorCritic, an Agent, a Teacher ──▶ LabelActor   mode or sample
an object with act, act_inference and reset(dones), of another library           ──▶ FlatActor    flat observations
a function of the observation                                                    ──▶ ScriptedActor
an Actor                                                                         ──▶ itself
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from striderl.collect.actors.base import Actor, ActorOutput, Noise, Obs, ScriptedActor
from striderl.collect.teacher import BoundTeacher, Sight, Teacher, TeacherRouter
from striderl.data.arena import Columns
from striderl.data.checked_fields import overridden
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec
from striderl.envs.vec_env import VecEnv
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.mutex.facade import StatefulMutex
from striderl.policies.mutex.policy import MutexPolicy
from striderl.policies.policy import Policy

CRITIC = "critic"
"""The group of components that only a critic sees."""

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

    def __init__(self, policy: FlatPolicy, spec: ObsSpec, *, sample: bool) -> None:
        """Flatten the components of a spec into one vector for the policy."""
        self.policy, self._spec = policy, spec
        self._call: Callable[[Tensor], Any] = policy.act if sample else policy.act_inference

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
        actions = self._call(self._spec.flatten(obs))
        return ActorOutput(actions.detach() if isinstance(actions, Tensor) else actions, state, {})


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
        return FlatActor(policy, flat_spec(env.obs_spec, critic=use_critic_obs), sample=sample)
    if callable(policy):
        _require_plain("a function", use_critic_obs, sample)
        return ScriptedActor(policy)
    raise TypeError(
        f"{type(policy).__name__} cannot act: wanted a policy, an Agent, an actor, a function of the observation, or "
        "an object with act, act_inference and reset"
    )


def bound_teacher(policy: Any, env: VecEnv, *, use_critic_obs: bool) -> BoundTeacher:
    """Find a policy's components in an env's observation."""
    teacher = policy if isinstance(policy, (Teacher, TeacherRouter)) else Teacher(policy)
    visible = [name for name, part in env.obs_spec.items() if part.group != CRITIC]
    if isinstance(teacher, Teacher) and not use_critic_obs:
        hidden = [name for name in teacher.policy.actor_inputs if name in env.obs_spec and name not in visible]
        if hidden:
            raise ValueError(f"the policy reads {hidden}, which only the critic sees; set use_critic_obs=True")
    return teacher.bound(Sight(env.obs_spec, visible, use_critic_obs), env.action_spec, env.device)


def require_vec_env(env: Any, who: str) -> None:
    """Raise unless an env is a VecEnv."""
    if not isinstance(env, VecEnv):
        raise TypeError(
            f"{who} wants a VecEnv, found {type(env).__name__}; wrap a Gymnasium env in GymnasiumEnv, an rsl_rl env in "
            "RslRlEnv, or take runner.vec_env"
        )


def flat_spec(spec: ObsSpec, *, critic: bool) -> ObsSpec:
    """Return the components of an old-style policy's, or its critic's, vector."""
    theirs = [name for name, part in spec.items() if (part.group == CRITIC) == critic]
    return spec.select(theirs) if theirs else spec


def _require_plain(what: str, use_critic_obs: bool, sample: bool) -> None:
    """Raise for settings that have no effect for this kind of policy."""
    if use_critic_obs or sample:
        setting = "use_critic_obs" if use_critic_obs else "demo_by_sample"
        raise ValueError(f"{setting} means nothing for {what}: it sees all components and chooses by itself")
