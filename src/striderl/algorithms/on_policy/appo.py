"""Adversarial PPO and adversarial teacher PPO: PPO with a `MotionPrior`, with the settings of st_rl.

    model = AmpActorCritic(…, amp_discriminator={…})
    APPO(model.policy, AMPLoader(clips), discriminator=model.discriminator)
    APPO(policy, EnvExpert(shape=(60,)), APPOConfig(prior=MotionPriorConfig(components=("ref_obs",), frames=1)))
    ATPPO(policy, teacher, expert)                          teacher PPO with a `MotionPrior`

Functions that combine parts into a `PPO`. With `ATPPO` the student learns a teacher's actions, and is rewarded for the
task and for moving like the expert. Labels, motions and rewards are columns of their own: none takes the place of
another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from striderl.algorithms.building import DISCRIMINATOR_SEED, BuildContext, TermsBesidePPO
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.on_policy.tppo import TPPO, TPPOConfig
from striderl.algorithms.terms.mimic import Mimic, MimicConfig
from striderl.algorithms.terms.motion_prior import MotionPrior, MotionPriorConfig, prior_expert
from striderl.algorithms.terms.term import Term
from striderl.collect.teacher import Teacher, TeacherRouter
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.specs import ObsSpec
from striderl.execution.modes import ExecutionConfig
from striderl.networks.discriminator import AMPDiscriminator
from striderl.ops.moments import AllReduce
from striderl.policies.policy import Policy


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class APPOConfig:
    """Settings of adversarial PPO."""

    ppo: PPOConfig = field(default_factory=PPOConfig)
    """Settings of PPO."""
    prior: MotionPriorConfig = field(default_factory=MotionPriorConfig)
    """Settings of the motion prior; a discriminator that is passed in has its own weights and penalty."""
    mimic: MimicConfig | None = None
    """A reward for following the env's reference motion; None for none."""

    def __post_init__(self) -> None:
        check_field_types(self)


class APPO(TermsBesidePPO):
    """PPO with a motion prior; what `APPO(…)` returns is a `PPO`."""

    Config = APPOConfig
    summary = "PPO that is also rewarded for moving like an expert (adversarial motion prior), on-policy"
    objects = ("expert",)

    def __new__(  # type: ignore[misc]
        cls,
        policy: Policy,
        expert: Any,
        config: APPOConfig | None = None,
        terms: Sequence[Term] = (),
        *,
        discriminator: AMPDiscriminator | None = None,
        obs_spec: ObsSpec | None = None,
        mode: str | ExecutionConfig = "eager",
        reduce: AllReduce | None = None,
    ) -> PPO:
        """Build PPO with a motion prior, which comes before further terms.

        expert: an Expert, a loader of clips, a tensor [M, F] of motions, or an EnvExpert.
        discriminator: that of an `AmpActorCritic`; its `task_reward_lerp`, `style_reward_coef` and
            `discriminator_grad_pen` replace the weights of `config.prior`.
        obs_spec: the env's observations, motions included; that of the policy where it is the same.
        """
        config = config or APPOConfig()
        added = motion_terms(policy, expert, config.prior, config.mimic, discriminator, obs_spec)
        return PPO(policy, config.ppo, [*added, *terms], mode=mode, reduce=reduce)

    @classmethod
    def build_policy(cls, config: APPOConfig, context: BuildContext) -> Policy:
        """Build the policy alone."""
        return PPO.build_policy(config.ppo, context)

    @classmethod
    def build(cls, config: APPOConfig, context: BuildContext, terms: Sequence[Term] = ()) -> PPO:
        """Build the learner from its config and the run's expert."""
        policy, expert = cls.build_policy(config, context), prior_expert(context, config.prior)
        with context.seeded(DISCRIMINATOR_SEED):
            return cls(policy, expert, config, terms, mode=context.mode, reduce=context.reduce)


def motion_terms(
    policy: Policy,
    expert: Any,
    prior: MotionPriorConfig,
    mimic: MimicConfig | None = None,
    discriminator: AMPDiscriminator | None = None,
    obs_spec: ObsSpec | None = None,
) -> list[Term]:
    """Return the motion prior and, if configured, the reward for following a reference."""
    if discriminator is not None:
        prior = prior.of_discriminator(discriminator)
        own = {id(parameter) for parameter in policy.parameters()}
        if any(id(parameter) in own for parameter in discriminator.parameters()):
            raise ValueError("the discriminator is a part of the policy, and would be trained and exported with it")
    spec, device = obs_spec or policy.obs_spec, next(policy.parameters()).device
    terms: list[Term] = [MotionPrior(spec, expert, prior, network=discriminator, device=device)]
    if mimic is not None:
        terms.append(Mimic(obs_spec=spec, config=mimic))
    return terms


# -- with a teacher ----------------------------------------------------------------------------------------------------


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class ATPPOConfig:
    """Settings of adversarial teacher PPO."""

    tppo: TPPOConfig = field(default_factory=TPPOConfig)
    """Settings of teacher PPO; those of PPO are in it."""
    prior: MotionPriorConfig = field(default_factory=MotionPriorConfig)
    """Settings of the motion prior; a discriminator that is passed in has its own weights and penalty."""
    mimic: MimicConfig | None = None
    """A reward for following the env's reference motion; None for none."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not self.tppo.using_ppo:
            raise ValueError("using_ppo=False reads no reward, so a motion prior has no effect; use TPPO for DAgger")


class ATPPO(TermsBesidePPO):
    """PPO with a teacher and a motion prior; what `ATPPO(…)` returns is a `PPO`."""

    Config = ATPPOConfig
    summary = "PPO with a teacher that is also rewarded for moving like an expert, on-policy"
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
            return cls(policy, teacher, expert, config, terms, mode=context.mode, reduce=context.reduce)
