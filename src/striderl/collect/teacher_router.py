"""Several teachers, of whom one is heard in each env: skills that were learned apart, for one student.

'skill'   env 0: (1, 0)   env 1: (0, 1)   env 2: (1, 0)        one-hot, or one whole number
          └ teacher 0     └ teacher 1     └ teacher 0          all look in every step, so memories are kept up
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from striderl.collect.teacher import BoundTeacher, Label, Sight, Teacher, TeacherPolicy
from striderl.data.actions import ActionSpec
from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec


class TeacherRouter:
    """Several teachers for one kind of action; an observation component says whose turn it is."""

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
    """Bound teachers that all look, of whom one is heard in each env; all keep up their memories."""

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
        """Ask all and take, in each env, the words of the one whose turn it is."""
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
    """Return in each env what the teacher said whose turn it is; dicts entry by entry."""
    if isinstance(choices[0], Mapping):
        return {name: _chosen(turn, [choice[name] for choice in choices]) for name in choices[0]}
    stacked = torch.stack(list(choices))
    index = turn.view(1, -1, *[1] * (stacked.dim() - 2)).expand(1, *stacked.shape[1:])
    return stacked.gather(0, index).squeeze(0)


def _inner(values: Mapping[str, Tensor], at: int) -> dict[str, Tensor]:
    prefix = f"{at}/"
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
