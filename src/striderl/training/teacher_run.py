"""The teacher of a run: the folder of another run, which holds its policy, its normalisers and what it observes.

striderl train quadruped_blind --algorithm tppo --teacher.run runs/quadruped_blind/2026-01-31_12-00-00
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from striderl.checkpoint.errors import CheckpointError
from striderl.collect.teacher import Teacher
from striderl.data.checked_fields import check_field_types


@dataclass(frozen=True, kw_only=True)
class TeacherRun:
    """Whose actions a student learns."""

    run: str = ""
    """The folder of the teacher's run; tppo wants one, and no other algorithm takes one."""
    checkpoint: str = "best"
    """Which of its policies: the 'best', the 'last', or that of a number of env steps."""
    components: Mapping[str, str] = field(default_factory=dict)
    """Other names that the student's task has for what the teacher observes."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.checkpoint not in ("best", "last") and not self.checkpoint.isdigit():
            raise ValueError(
                f"teacher.checkpoint is 'best', 'last' or a number of env steps, found {self.checkpoint!r}"
            )
        if not self.run and (self.checkpoint != "best" or self.components):
            raise ValueError("teacher.checkpoint and teacher.components have no effect without teacher.run")

    def load(self) -> Teacher:
        """Freeze the policy of the run; what is missing or damaged is named."""
        from striderl.training.loading import load_run  # a run knows all algorithms, and one of them has a teacher

        if not self.run:
            raise ValueError("tppo learns from a teacher; name its run: --teacher.run FOLDER")
        which = int(self.checkpoint) if self.checkpoint.isdigit() else self.checkpoint
        try:
            # of the policy alone nothing is imported that the run names, so there is nothing to trust
            policy = load_run(self.run, which, trust=True).policy
        except (OSError, CheckpointError, ValueError) as error:
            raise ValueError(f"teacher.run: {error}") from error
        return Teacher(policy, self.components)
