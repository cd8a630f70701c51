"""Plans: how much is collected, how long it is kept, and when the run is over.

On-policy, off-policy and offline training differ in the plan, not in the trainer:

                     collect per iteration      before that       learn from
    on-policy        num_steps_per_env          clear             the whole rollout, some epochs
"""

from __future__ import annotations

from dataclasses import dataclass

from striderl.data.checked_fields import check_field_types


@dataclass(frozen=True, kw_only=True)
class OnPolicyPlan:
    """Collect a rollout, learn from all of it, throw it away."""

    num_steps_per_env: int = 24
    """Length of a rollout; 16 to 64 with thousands of envs, up to 2048 with one."""
    total_iterations: int = 0
    """The run is over after this many iterations; 0 means no limit."""
    total_steps: int = 0
    """The run is over when the envs have made this many steps, warm-up included; 0 means no limit."""
    warmup_steps: int = 0
    """Steps per env before the first rollout, from which only the normalisers learn."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.num_steps_per_env < 1:
            raise ValueError(f"OnPolicyPlan.num_steps_per_env is at least 1, found {self.num_steps_per_env}")
        for name, value in (
            ("total_iterations", self.total_iterations),
            ("total_steps", self.total_steps),
            ("warmup_steps", self.warmup_steps),
        ):
            if value < 0:
                raise ValueError(f"OnPolicyPlan.{name} is not negative, found {value}")

    def is_over(self, iteration: int, env_steps: int) -> bool:
        """Tell whether a run that has come so far is at its end."""
        too_long = bool(self.total_iterations) and iteration >= self.total_iterations
        return too_long or (bool(self.total_steps) and env_steps >= self.total_steps)

    def remaining_iterations(self, iteration: int, env_steps: int, num_envs: int) -> int | None:
        """Return how many iterations are still to come, or None when there is no limit."""
        limits: list[int] = []
        if self.total_iterations:
            limits.append(self.total_iterations - iteration)
        if self.total_steps:
            limits.append(-((env_steps - self.total_steps) // (self.num_steps_per_env * num_envs)))
        return max(0, min(limits)) if limits else None


Plan = OnPolicyPlan
"""Any plan."""
