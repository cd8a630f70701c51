"""Teacher PPO and its relatives: PPO or DAgger with `Distill`, with the settings of st_rl.

    TPPO(policy, teacher)                                   PPO and distillation, the teacher acts ever less
    TPPO(policy, teacher, TPPOConfig(using_ppo=False))      DAgger
    EstimatorTPPO(policy, teacher)                          … with the losses of estimators and adaptors

They combine parts into a `PPO` or a `DAgger`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from striderl.algorithms.building import BuildContext, TermsBesidePPO
from striderl.algorithms.on_policy.dagger import DAgger, DAggerConfig
from striderl.algorithms.on_policy.estimator_ppo import build_estimator_policy, estimations
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.terms.distill import Distill, DistillConfig
from striderl.algorithms.terms.estimation import Estimation, EstimatorConfig
from striderl.algorithms.terms.resample_memory import ResampleMemory
from striderl.algorithms.terms.term import Term
from striderl.collect.teacher import Teacher, TeacherRouter
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.execution.modes import ExecutionConfig
from striderl.ops.moments import AllReduce
from striderl.policies.policy import Policy

_log = logging.getLogger(__name__)


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class TPPOConfig:
    """Settings of teacher PPO, with the names used in st_rl."""

    ppo: PPOConfig = field(default_factory=PPOConfig)
    """Settings of PPO; without PPO, epochs, minibatches, optimiser and learning rate are taken from it."""
    label_action_with_critic_obs: bool = True
    """Whether the teacher may read components of the student's critic alone."""
    teacher_act_prob: float | str = "exp"
    """How often the teacher acts: a number, or 'linear', 'exp' or 'tanh'."""
    update_times_scale: float = 100.0
    """Iterations in which schedules fall most of their way."""
    using_ppo: bool = True
    """False leaves only the losses of the terms: DAgger."""
    distillation_loss_coef: float | str = 1.0
    """Weight of the distillation loss: a number or a schedule."""
    distill_target: str = "real"
    """How actions are compared with labels; see `DISTILL_TARGETS`."""
    distill_latent_coef: float = 1.0
    """Weight of each latent's loss."""
    distill_latent_target: str = "real"
    """How latents are compared."""
    distill_latent_obs_component_mapping: Mapping[str, str] = field(default_factory=dict)
    """Student's component → teacher's component whose latents are made alike."""
    buffer_dilation_ratio: float = 1.0
    """How many rollouts are kept to learn from; more than 1 only without PPO."""
    hidden_state_resample_prob: float = 0.0
    """How often a trajectory begins with a random memory."""
    action_labels_from_sample: bool = False
    """Whether labels are samples of the teacher."""
    teacher_samples: str = "leave"
    """'leave': samples in which the teacher acted leave the surrogate; 'keep': by the executed action's log-prob."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.using_ppo and self.buffer_dilation_ratio != 1.0:
            raise ValueError(
                f"buffer_dilation_ratio={self.buffer_dilation_ratio} keeps old rollouts, whose ratios and returns mean "
                "nothing to PPO; set it to 1, or using_ppo=False"
            )
        self.distill()
        self.dagger()

    def distill(self) -> DistillConfig:
        """Return the settings of the term."""
        return DistillConfig(
            target=self.distill_target,
            weight=self.distillation_loss_coef,
            teacher_act_prob=self.teacher_act_prob,
            update_times_scale=self.update_times_scale,
            label_action_with_critic_obs=self.label_action_with_critic_obs,
            action_labels_from_sample=self.action_labels_from_sample,
            teacher_samples=self.teacher_samples,
            latents=self.distill_latent_obs_component_mapping,
            latent_target=self.distill_latent_target,
            latent_weight=self.distill_latent_coef,
        )

    def dagger(self) -> DAggerConfig:
        """Return the settings for learning without PPO."""
        shared = {each.name for each in fields(DAggerConfig)} & {each.name for each in fields(PPOConfig)}
        given = {each.name: value for each in fields(PPOConfig) if (value := vars(self.ppo)[each.name]) is not None}
        return DAggerConfig(
            buffer_dilation_ratio=self.buffer_dilation_ratio,
            **{name: value for name, value in given.items() if name in shared},
        )

    def without_effect(self) -> list[str]:
        """Return the changed settings that have no effect without PPO."""
        shared = {each.name for each in fields(DAggerConfig)}
        usual = PPOConfig()
        changed = [name for name, value in vars(self.ppo).items() if value != vars(usual)[name] and name not in shared]
        return [*changed, *(["teacher_samples"] if self.teacher_samples != "leave" else [])]


class TPPO(TermsBesidePPO):
    """The teacher PPO of st_rl: `TPPO(…)` returns a `PPO` with `Distill`, or a `DAgger` without `using_ppo`."""

    Config = TPPOConfig
    summary = "PPO and imitation of a teacher, or imitation alone (using_ppo False), on-policy"
    objects = ("teacher",)

    def __new__(  # type: ignore[misc]
        cls,
        policy: Policy,
        teacher: Teacher | TeacherRouter,
        config: TPPOConfig | None = None,
        terms: Sequence[Term] = (),
        *,
        mode: str | ExecutionConfig = "eager",
        reduce: AllReduce | None = None,
    ) -> PPO | DAgger:
        """Build teacher PPO, or DAgger where `using_ppo` is false; further terms come before distillation."""
        config = config or TPPOConfig()
        resample = config.hidden_state_resample_prob
        memory = [ResampleMemory(probability=resample)] if resample != 0.0 else []
        all_terms = [*terms, *memory, Distill(teacher, config.distill())]
        if config.using_ppo:
            return PPO(policy, config.ppo, all_terms, mode=mode, reduce=reduce)
        unused = config.without_effect()
        if unused:
            _log.warning(
                "using_ppo=False: %s have no effect, because nothing but imitation is learned", ", ".join(unused)
            )
        return DAgger(policy, config.dagger(), all_terms, mode=mode, reduce=reduce)

    @classmethod
    def build_policy(cls, config: TPPOConfig, context: BuildContext) -> Policy:
        """Build the policy alone."""
        return PPO.build_policy(config.ppo, context)

    @classmethod
    def build(cls, config: TPPOConfig, context: BuildContext, terms: Sequence[Term] = ()) -> PPO | DAgger:
        """Build the learner from its config and the run's teacher."""
        policy = cls.build_policy(config, context)
        return cls(policy, context.load("teacher"), config, terms, mode=context.mode, reduce=context.reduce)


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class EstimatorTPPOConfig(TPPOConfig):
    """Settings of teacher PPO with an estimator."""

    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    """The estimator and its loss."""


class EstimatorTPPO(TermsBesidePPO):
    """Teacher PPO with the losses of estimators; what `EstimatorTPPO(…)` returns is a `PPO` or a `DAgger`."""

    Config = EstimatorTPPOConfig
    summary = "PPO with a teacher whose policy also estimates what it cannot observe, on-policy"
    objects = ("teacher",)

    def __new__(  # type: ignore[misc]
        cls,
        policy: Policy,
        teacher: Teacher | TeacherRouter,
        config: TPPOConfig | None = None,
        terms: Sequence[Term] = (),
        *,
        estimation: Estimation | None = None,
        mode: str | ExecutionConfig = "eager",
        reduce: AllReduce | None = None,
    ) -> PPO | DAgger:
        """Build teacher PPO with the losses of the policy's estimators and adaptors, all with the settings of one."""
        added = [*estimations(policy.config, estimation), *terms]
        return TPPO(policy, teacher, config, added, mode=mode, reduce=reduce)

    @classmethod
    def build_policy(cls, config: EstimatorTPPOConfig, context: BuildContext) -> Policy:
        """Build the policy with its estimator."""
        return build_estimator_policy(config.estimator, config.ppo, context)

    @classmethod
    def build(cls, config: EstimatorTPPOConfig, context: BuildContext, terms: Sequence[Term] = ()) -> PPO | DAgger:
        """Build the learner from its config and the run's teacher."""
        policy, teacher = cls.build_policy(config, context), context.load("teacher")
        estimation = config.estimator.term()
        return cls(policy, teacher, config, terms, estimation=estimation, mode=context.mode, reduce=context.reduce)
