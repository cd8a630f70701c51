"""`Mimic`: a reward for tracking a reference motion.

    the frame after the step ──┐
                               ├─▶ distance ─▶ 'exp'       weight · exp(-scale · mean squared difference)      0 to 1
    info['ref_motion'] ────────┘               'distance'  -weight · |difference|                      never positive

Neither side depends on any parameter, so as a loss it would have no gradient; it is a
reward. With 'distance' every step has a cost; a policy that can end episodes early does so; prefer 'exp' there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.building import BuildContext
from striderl.algorithms.terms.discriminator import flat_state, mended, rollout_steps
from striderl.algorithms.terms.expert import EnvExpert
from striderl.algorithms.terms.term import Read, Term
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec, TensorSpec

KINDS = ("exp", "distance")
"""How a distance becomes a reward."""


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class MimicConfig:
    """Settings of the reward for following a reference."""

    weight: float = 1.0
    """Weight of the reward."""
    kind: str = "exp"
    """'exp' or 'distance'."""
    scale: float = 1.0
    """With 'exp': how fast the reward falls; 1 over the squared error at which it has fallen to 0.37."""
    components: tuple[str, ...] = ("motion",)
    """Observation components or groups that are compared, in the order of the env's spec."""
    column: str = "ref_motion"
    """The info column with the reference."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.kind not in KINDS:
            raise ValueError(unknown("kind", self.kind, KINDS, where="MimicConfig"))
        if self.scale <= 0.0 or self.weight < 0.0:
            raise ValueError(f"scale is positive and weight not negative, found {self.scale} and {self.weight}")
        if self.kind == "distance" and self.scale != 1.0:
            raise ValueError("scale has no effect with kind='distance'; change the weight")


@dataclass(frozen=True, kw_only=True)
class Mimic(Term):
    """Rewards closeness to the reference that the env provides in each step."""

    obs_spec: ObsSpec
    """The env's observations."""
    config: MimicConfig = field(default_factory=MimicConfig)
    """The settings."""

    capturable = True
    learns_in_ranks = True

    Config: ClassVar[type[Any]] = MimicConfig
    summary: ClassVar[str] = "rewards nearness to the reference motion that the env shows"

    @classmethod
    def build(cls, config: MimicConfig, context: BuildContext) -> Mimic:
        """Build the term from its config."""
        return cls(obs_spec=context.obs_spec, config=config)

    @property
    def name(self) -> str:
        """Its name among the terms."""
        return "mimic"

    @property
    def reference(self) -> EnvExpert:
        """What the env must provide."""
        return EnvExpert(shape=(self._spec.size,), column=self.config.column)

    @property
    def _spec(self) -> ObsSpec:
        return self.obs_spec.select(self.config.components)

    def columns(self) -> Mapping[str, TensorSpec]:
        """Return the reference's column."""
        return {self.config.column: self.reference.spec}

    def following(self) -> tuple[str, ...]:
        """Return the compared components: they are read after the step."""
        return self._spec.names

    def reward_names(self) -> tuple[str, ...]:
        """Return the one name."""
        return ("mimic_reward",)

    @torch.no_grad()
    def reward(self, read: Read) -> dict[str, Tensor]:
        """Return the tracking reward of each step; an end with unknown final state gets that of the step before."""
        steps, columns, config = rollout_steps(read.columns, read.last_obs), read.columns, self.config
        assert steps.following is not None, "a rollout and a replay both know what followed"
        known = steps.valid & steps.follows
        shown = self.reference.rows(steps.info, steps.valid.shape)
        gap = torch.where(known.unsqueeze(-1), flat_state(steps.following, self._spec) - shown, 0.0)
        if config.kind == "exp":
            reward = torch.exp(-config.scale * gap.square().mean(dim=-1))
        else:
            reward = -torch.linalg.vector_norm(gap, dim=-1)
        reward = mended(torch.where(known, reward, 0.0), known, columns["terminated"] | columns["truncated"])
        return {"mimic_reward": torch.where(steps.valid, config.weight * reward, 0.0).to(columns["rew"].dtype)}
