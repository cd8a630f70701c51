"""Who acts while a student is corrected: the student, with the teacher beside it; before there is one, the teacher.

    obs ──student──▶ action ──TeacherActing──▶ executed: the teacher's in the episodes that were drawn for it
                                   └────────▶ label: what the teacher would do, in every env

`TeacherActing` is the part that the `Distill` term uses in training. The memory has the same names in both actors, so
that episodes go on when the first student comes: they stay the teacher's until they end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.collect.actors import Acted, Noise, Obs
from striderl.collect.saver_actors import CRITIC
from striderl.collect.teacher_acting import TeacherActing
from striderl.data.actions import BoxSpec
from striderl.data.arena import Columns
from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.envs.vec_env import VecEnv
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.policy import Policy
from striderl.policies.stage import inner, outer

StudentPolicy = Policy | ActorPolicy
"""What can be a student."""

_PART, _STUDENT, _TEACHER = "distill", "student", "teacher"
_ACTION, _EXPLORE = "action", "explore"


class Student(NamedTuple):
    """A student as it was saved."""

    policy: StudentPolicy
    iteration: int
    """After how many learning iterations; the schedule of the teacher's acting follows it."""
    name: str
    """Which checkpoint it is; another name means another one."""


LoadStudent = Callable[[Path, str], Student | None]
"""(folder, name of the student at hand or '') → the newest student; None while there is no other one to be read."""


class StudentActor:
    """Plays a student, lets the teacher act in some episodes, and notes what the teacher would do."""

    def __init__(self, policy: StudentPolicy, part: TeacherActing, *, std: float = 0.0) -> None:
        """Sample from the policy, or with `std` above zero, from a Gaussian of that width around its mean."""
        self.policy, self.part, self._std = policy, part, std

    def columns(self) -> Columns:
        """Return label and who acted."""
        return self.part.columns()

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the student's stages and of its sample, and that of the teacher's part."""
        spec = self.policy.head.noise_spec()
        sample = {_ACTION: spec} if isinstance(spec, NoiseSpec) else {f"{_ACTION}/{k}": v for k, v in spec.items()}
        if self._std > 0.0:
            sample = {_EXPLORE: NoiseSpec(shape=_box_shape(self.part))}
        theirs = {f"{_PART}/{name}": each for name, each in self.part.noise().items()}
        return {**self.policy.noise(), **sample, **theirs}

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return the memory of both at the start of an episode."""
        return {
            **outer(self.policy.initial_state(num_envs, device), _STUDENT),
            **outer(self.part.initial_state(num_envs, device), _PART),
        }

    def act(self, obs: Obs, state: Any, noise: Noise) -> Acted:
        """Let the student choose, and the teacher where it acts."""
        memo = self.policy.decide(noise)
        distribution, memory, _ = self.policy.act(obs, inner(state, _STUDENT), memo)
        if self._std > 0.0:
            actions = distribution.mode() + self._std * noise[_EXPLORE]
        else:
            actions = distribution.sample(noise[_ACTION] if _ACTION in noise else inner(noise, _ACTION))
        played = self.part(obs, inner(state, _PART), actions, distribution, inner(noise, _PART))
        new_state = {**outer(memory, _STUDENT), **outer(played.state, _PART)}
        return Acted(played.actions, new_state, played.columns)


class TeacherOnlyActor:
    """Plays the teacher in every env, with the columns and the memory of a `StudentActor`."""

    def __init__(self, part: TeacherActing) -> None:
        self.part = part

    def columns(self) -> Columns:
        """Return label and who acted."""
        return self.part.columns()

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the teacher's part."""
        return {f"{_PART}/{name}": each for name, each in self.part.noise().items()}

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return that the teacher acts, and its memory."""
        own = self.part.initial_state(num_envs, device)
        everywhere = torch.ones(num_envs, dtype=torch.bool, device=device)
        return outer({**own, "drawn": everywhere, "acts": everywhere}, _PART)

    def act(self, obs: Obs, state: Any, noise: Noise) -> Acted:
        """Do what the label says."""
        before = inner(state, _PART)
        said = self.part.teacher.label(
            obs, inner(before, _TEACHER), inner(inner(noise, _PART), _TEACHER), sample=self.part.sample
        )
        after = {"drawn": before["drawn"], "acts": before["acts"], **outer(said.state, _TEACHER)}
        return Acted(said.actions, outer(after, _PART), {"label": said.actions, "acted": before["acts"]})


def acting_mask(state: Mapping[str, Tensor]) -> Tensor:
    """Return in which envs the teacher acts, bool [N], from the memory of either actor."""
    return state[f"{_PART}/acts"] & state[f"{_PART}/drawn"]


def check_student(policy: StudentPolicy, env: VecEnv) -> None:
    """Raise unless an env gives what a student observes, and takes what it does."""
    if not isinstance(policy, (Policy, ActorPolicy)):
        raise TypeError(f"a student is a Policy or an ActorPolicy, found {type(policy).__name__}")
    for name, part in policy.actor_inputs.items():
        if name not in env.obs_spec:
            raise KeyError(
                unknown("component", name, env.obs_spec, where="the student reads what is not there: the env")
            )
        if env.obs_spec[name].shape != part.shape:
            raise ValueError(
                f"the student wants component {name!r} of shape {part.shape}, the env's has {env.obs_spec[name].shape}"
            )
        if env.obs_spec[name].group == CRITIC:
            raise ValueError(f"the student's actor reads {name!r}, which only a critic may see")
    if policy.action_spec.tensor != env.action_spec.tensor:
        raise ValueError(f"the student's actions are {policy.action_spec}, the env's {env.action_spec}")


def _box_shape(part: TeacherActing) -> tuple[int, ...]:
    spec = part.action_spec
    if not isinstance(spec, BoxSpec):
        raise TypeError(f"action_sample_std wants real-valued actions, found {type(spec).__name__}")
    return spec.shape
