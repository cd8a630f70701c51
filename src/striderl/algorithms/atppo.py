"""Adversarial teacher PPO: `ATPPO(policy, teacher, expert)` is teacher PPO with a `MotionPrior`.

The student learns what a teacher would do, is paid for the task and for moving like the expert. Labels, motions and
rewards are columns of their own: none takes the place of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from striderl.algorithms.appo import motion_terms
from striderl.algorithms.building import DISCRIMINATOR_SEED, ON_POLICY, BuildContext
from striderl.algorithms.ppo import PPO
from striderl.algorithms.terms.mimic import MimicConfig
from striderl.algorithms.terms.motion_prior import prior_expert
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


class ATPPO:
    """PPO with a teacher and a motion prior; what `ATPPO(…)` returns is a `PPO`."""

    Config = ATPPOConfig
    summary = "PPO with a teacher that is also rewarded for moving like an expert, on-policy"
    loop = ON_POLICY
    takes_terms = True
    objects = ("teacher", "expert")

    def __new__(  # type: ignore[misc]
        cls,
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

    @classmethod
    def build_policy(cls, config: ATPPOConfig, context: BuildContext) -> Policy:
        """Build the policy alone."""
        return PPO.build_policy(config.tppo.ppo, context)

    @classmethod
    def build(cls, config: ATPPOConfig, context: BuildContext, terms: Sequence[Term] = ()) -> PPO:
        """Build the learner from its config and the run's teacher and expert."""
        policy, expert = cls.build_policy(config, context), prior_expert(context, config.prior)
        teacher = context.load("teacher")
        with context.seeded(DISCRIMINATOR_SEED):
            return ATPPO(policy, teacher, expert, config, terms, mode=context.mode, reduce=context.reduce)
