"""Labels from a teacher, who also acts in some of the envs.

    env 0   ──────────── episode ────────────┐ ┌── episode ──
            draw: the teacher acts           │ │ draw: the student acts
                                             └─┘ a new draw with the first act of each episode
    stored  label (in every env)   acted: where the teacher acted   dist, latent: where they are wanted

Who acts is drawn with the probability that holds when an episode begins; an env's draw and the teacher's memory are
part of the actor's memory, so they end with the episode and are saved with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.collect.actors.base import Noise, Obs, Played
from striderl.collect.group import where_env
from striderl.collect.teacher import BoundTeacher, head_of, latent_sizes
from striderl.data.actions import ActionSpec
from striderl.data.arena import Columns
from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec
from striderl.networks.distributions.base import Distribution
from striderl.policies.stage import inner, outer

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
        """Ask a teacher in every step.

        probability: 0-d, how often the teacher acts; who owns it may change it with `copy_`.
        sample: label with samples of the teacher in place of its most likely actions.
        store_params: store the parameters of the teacher's distribution.
        latents: the components whose latents are stored.
        """
        self.teacher, self.action_spec, self.probability = teacher, action_spec, probability
        self.sample, self.store_params, self.latents = sample, store_params, latents
        self._name = name

    @property
    def name(self) -> str:
        """Under which columns, noise and memory are kept."""
        return self._name

    def columns(self) -> Columns:
        """Return the label, who acted, and what else is wanted of the teacher."""
        found: dict[str, Any] = {"label": self.action_spec.tensor, "acted": TensorSpec(dtype="bool")}
        head = head_of(self.teacher.policies[0]) if self.store_params else None
        if head is not None:
            found["dist"] = dict(head.params_spec())
        if self.latents:
            sizes = latent_sizes(self.teacher.policies[0])
            found["latent"] = {name: TensorSpec(shape=(sizes[name],)) for name in self.latents}
        return found

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return one number for the draw, and the teacher's own."""
        return {"choose": NoiseSpec(kind="uniform"), **_outer_noise(self.teacher.noise(self.sample))}

    def initial_state(self, num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """Return that nothing is drawn yet, and the teacher's fresh memory."""
        nobody = torch.zeros(num_envs, dtype=torch.bool, device=device)
        return {"drawn": nobody, "acts": nobody, **outer(self.teacher.initial_state(num_envs, device), _TEACHER)}

    def __call__(
        self, obs: Obs, state: Mapping[str, Tensor], actions: Any, distribution: Distribution[Any], noise: Noise
    ) -> Played:
        """Label the step, and put the teacher's action where the teacher acts."""
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
