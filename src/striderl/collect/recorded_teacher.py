"""`RecordedTeacher`: the teacher is a recording. Its labels are read from disk and told, step by step.

    teacher = RecordedTeacher()
    algorithm = TPPO(policy, teacher, TPPOConfig(teacher_act_prob=1.0))
    teacher.tell(actions)                what was recorded for the observations that are acted on next
    actor.act(obs, state, noise)         label = executed action = what was told

With a policy behind it, the teacher's distribution and latents are that policy's, and its actions still the recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from striderl.collect.teacher import BoundTeacher, Label, Sight, Teacher, TeacherPolicy
from striderl.collect.teacher_router import TeacherRouter
from striderl.data import tree
from striderl.data.actions import ActionSpec
from striderl.data.noise import NoiseSpec


class RecordedTeacher(Teacher):
    """Says what it was told."""

    def __init__(self, behind: Teacher | TeacherRouter | None = None) -> None:
        """Take the teacher whose latents are wanted, if any."""
        self.behind = behind
        self.told: Any = None
        """The actions of the next step, [N, …]; None before the first."""

    def tell(self, actions: Any) -> None:
        """Take what was recorded for the next step; it is copied to one place, so that a recorded graph reads it."""
        if self.told is None:
            self.told = tree.copy(actions)
        else:
            tree.map(lambda place, value: place.copy_(value), self.told, actions)

    def bound(self, sight: Sight, action_spec: ActionSpec, device: torch.device) -> BoundTeacher:
        """Bind the teacher behind, if there is one."""
        return RecordedLabels(self, None if self.behind is None else self.behind.bound(sight, action_spec, device))


class RecordedLabels:
    """A recorded teacher that knows who is behind it."""

    def __init__(self, teacher: RecordedTeacher, behind: BoundTeacher | None) -> None:
        self._teacher, self._behind = teacher, behind

    @property
    def policies(self) -> Sequence[TeacherPolicy]:
        """Those behind it."""
        return () if self._behind is None else self._behind.policies

    def noise(self, sample: bool) -> dict[str, NoiseSpec]:
        """Return the noise of those behind it."""
        return {} if self._behind is None else self._behind.noise(sample)

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return the memory of those behind it."""
        return {} if self._behind is None else self._behind.initial_state(num_envs, device)

    def label(
        self, obs: Mapping[str, Tensor], state: Mapping[str, Tensor], noise: Mapping[str, Tensor], *, sample: bool
    ) -> Label:
        """Say what was recorded."""
        told = self._teacher.told
        if told is None:
            raise RuntimeError("a RecordedTeacher says what it is told: call tell(actions) before each step")
        if self._behind is None:
            return Label(tree.copy(told), {}, {}, {})
        return self._behind.label(obs, state, noise, sample=sample)._replace(actions=tree.copy(told))
