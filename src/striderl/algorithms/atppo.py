"""Adversarial teacher PPO: `ATPPO(policy, teacher, expert)` is teacher PPO with a `MotionPrior`.

The student learns what a teacher would do, is paid for the task and for moving like the expert. Labels, motions and
rewards are columns of their own: none takes the place of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from striderl.algorithms.appo import motion_terms
from striderl.algorithms.ppo import PPO
from striderl.algorithms.terms.mimic import MimicConfig
from striderl.algorithms.terms.motion_prior_config import MotionPriorConfig
from striderl.algorithms.terms.term import Term
from striderl.algorithms.tppo import TPPO, TPPOConfig
from striderl.collect.teacher import Teacher, TeacherRouter
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.specs import ObsSpec
from striderl.execution.modes import ExecutionConfig
from striderl.networks.discriminator import AMPDiscriminator
from striderl.ops.moments import AllReduce
from striderl.policies.policy import Policy


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class ATPPOConfig:
    """Settings of adversarial teacher PPO."""

    tppo: TPPOConfig = field(default_factory=TPPOConfig)
    """Settings of teacher PPO; those of PPO are in it."""
    prior: MotionPriorConfig = field(default_factory=MotionPriorConfig)
    """Settings of the motion prior; a discriminator that is handed over brings its own weights and penalty."""
    mimic: MimicConfig | None = None
    """A reward for following the env's reference motion; None for none."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not self.tppo.using_ppo:
            raise ValueError("using_ppo=False reads no reward, so a motion prior has no effect; use TPPO for DAgger")


def ATPPO(  # noqa: N802  (the name is public API of the seeds)
    policy: Policy,
    teacher: Teacher | TeacherRouter,
    expert: Any,
    config: ATPPOConfig | None = None,
    terms: Sequence[Term] = (),
    *,
    discriminator: AMPDiscriminator | None = None,
    obs_spec: ObsSpec | None = None,
    mode: str | ExecutionConfig = "eager",
    reduce: AllReduce | None = None,
) -> PPO:
    """Build teacher PPO with a motion prior; `expert`, `discriminator` and `obs_spec` are those of `APPO`."""
    config = config or ATPPOConfig()
    added = motion_terms(policy, expert, config.prior, config.mimic, discriminator, obs_spec)
    built = TPPO(policy, teacher, config.tppo, [*added, *terms], mode=mode, reduce=reduce)
    assert isinstance(built, PPO), "using_ppo is true"
    return built
