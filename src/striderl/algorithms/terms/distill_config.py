"""Settings of distillation: what is copied from a teacher, how much it counts, and how often the teacher acts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.ops.imitation import TARGETS
from striderl.ops.ramps import TeacherSchedule

MAX_LOG_PROB, KL = "max_log_prob", "kl"
DISTILL_TARGETS = (*TARGETS, MAX_LOG_PROB, KL)
"""What an action may be compared by: distances of `ops.imitation`, -log π(label), or KL(teacher ‖ student)."""

LEAVE, KEEP = "leave", "keep"
TEACHER_SAMPLES = (LEAVE, KEEP)
"""What becomes of samples in which the teacher acted."""


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Settings of `Distill`."""

    target: str = "real"
    """How the student's action is compared with the label; see `DISTILL_TARGETS`."""
    weight: float | str = 1.0
    """Weight of that loss: a number, or a schedule 'linear', 'exp' or 'tanh'."""
    teacher_act_prob: float | str = "exp"
    """How often the teacher acts, drawn once per episode and env: a number, or a schedule."""
    update_times_scale: float = 100.0
    """Iterations in which the schedules fall most of their way."""
    label_action_with_critic_obs: bool = True
    """Whether the teacher sees what only the student's critic sees; False restricts it to what the student sees."""
    action_labels_from_sample: bool = False
    """Whether labels are samples of the teacher; otherwise its most likely actions."""
    teacher_samples: str = LEAVE
    """'leave': where the teacher acted there is no policy gradient; 'keep': by the executed action's log-prob."""
    latents: Mapping[str, str] = field(default_factory=dict)
    """Student's component → teacher's component whose latents are made alike."""
    latent_target: str = "real"
    """How latents are compared: a distance of `ops.imitation`."""
    latent_weight: float = 1.0
    """Weight of each latent's loss."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.target not in DISTILL_TARGETS:
            raise ValueError(unknown("distillation target", self.target, DISTILL_TARGETS, where="DistillConfig"))
        if self.latent_target not in TARGETS:
            raise ValueError(unknown("latent target", self.latent_target, TARGETS, where="DistillConfig"))
        if self.teacher_samples not in TEACHER_SAMPLES:
            raise ValueError(unknown("choice", self.teacher_samples, TEACHER_SAMPLES, where="teacher_samples"))
        if not math.isfinite(self.latent_weight) or self.latent_weight < 0.0:
            raise ValueError(f"latent_weight is finite and not negative, found {self.latent_weight}")
        if not isinstance(self.weight, str) and self.weight < 0.0:
            raise ValueError(f"the weight of distillation is not negative, found {self.weight}")
        self.act_schedule.require_probability("teacher_act_prob")
        TeacherSchedule(self.weight, self.update_times_scale)

    @property
    def act_schedule(self) -> TeacherSchedule:
        """How often the teacher acts, by iteration."""
        return TeacherSchedule(self.teacher_act_prob, self.update_times_scale)

    @property
    def weight_schedule(self) -> TeacherSchedule:
        """The weight of the loss, by iteration."""
        return TeacherSchedule(self.weight, self.update_times_scale)
