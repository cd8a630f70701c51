"""Plans: how much is collected, how long it is kept, and when the run is over.

On-policy, off-policy and offline training differ in the plan, not in the trainer:

                     collect per iteration      before that       learn from
    on-policy        num_steps_per_env          clear             the whole rollout, some epochs
    off-policy       num_steps_per_env          keep              samples of the replay, every few steps
    offline          nothing                    -                 samples of a dataset
"""

from __future__ import annotations

from dataclasses import dataclass

from striderl.data.checked_fields import check_field_types, suggests_fields


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class OnPolicyPlan:
    """Collect a rollout, learn from all of it, discard it."""

    num_steps_per_env: int = 24
    """Length of a rollout; 16 to 64 with thousands of envs, up to 2048 with one."""
    total_iterations: int = 0
    """The run is over after this many iterations; 0 means no limit."""
    total_steps: int = 0
    """The run is over when the envs have made this many steps, warm-up included; 0 means no limit."""
    warmup_steps: int = 0
    """Steps per env before the first rollout, from which only the normalisers learn."""
    overlap: bool = False
    """Step envs during updates: the next rollout is simulated while this one is learned from, with the policy before
    the update. Rollouts are then one update old, which the importance ratio accounts for. On the CPU; worth it where
    simulating takes as long as learning."""

    def __post_init__(self) -> None:
        check_field_types(self)
        _at_least(self, 1, "num_steps_per_env")
        _at_least(self, 0, "total_iterations", "total_steps", "warmup_steps")

    def is_over(self, iteration: int, env_steps: int) -> bool:
        """Return whether the plan is fulfilled at this point of a run."""
        return _is_over(self.total_iterations, self.total_steps, iteration, env_steps)

    def remaining_iterations(self, iteration: int, env_steps: int, num_envs: int) -> int | None:
        """Return how many iterations are left, or None when there is no limit."""
        steps = self.num_steps_per_env * num_envs
        return _remaining(self.total_iterations, self.total_steps, iteration, env_steps, steps)


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class OffPolicyPlan:
    """Collect into a replay, and take gradient steps on samples of it in between."""

    num_steps_per_env: int = 100
    """Steps of each env in an iteration, after which there is a record."""
    train_every: int = 1
    """Steps of each env between two rounds of gradient steps."""
    num_updates_per_round: int = 1
    """Gradient steps in a round."""
    batch_size: int = 256
    """Samples of a gradient step."""
    learning_starts: int = 1000
    """Env steps, over all envs, that are collected at random before the first gradient step."""
    buffer_size: int = 1_000_000
    """How many steps are kept, over all envs."""
    overlap: bool = False
    """Step envs during updates: the envs begin the first step of a round before the gradient steps of the last one are
    taken, with the policy of that moment. On the CPU; worth it where simulating takes as long as learning."""
    total_iterations: int = 0
    """The run is over after this many iterations; 0 means no limit."""
    total_steps: int = 0
    """The run is over when the envs have made this many steps, the random ones included; 0 means no limit."""

    def __post_init__(self) -> None:
        check_field_types(self)
        _at_least(self, 1, "num_steps_per_env", "train_every", "num_updates_per_round", "batch_size", "buffer_size")
        _at_least(self, 0, "learning_starts", "total_iterations", "total_steps")
        if self.num_steps_per_env % self.train_every:
            raise ValueError(
                f"OffPolicyPlan.num_steps_per_env={self.num_steps_per_env} is not a multiple of "
                f"train_every={self.train_every}"
            )
        if 0 < self.total_steps <= self.learning_starts:
            raise ValueError(
                f"OffPolicyPlan.total_steps={self.total_steps} are over before learning begins, after "
                f"learning_starts={self.learning_starts} random steps: nothing would be learned. Give more steps, or "
                "fewer random ones (plan.learning_starts)"
            )
        if self.overlap and self.num_steps_per_env == self.train_every:
            raise ValueError(
                "OffPolicyPlan.overlap wants several rounds in an iteration, between which envs and learner overlap; "
                f"num_steps_per_env={self.num_steps_per_env} is one round of train_every={self.train_every}"
            )

    def is_over(self, iteration: int, env_steps: int) -> bool:
        """Return whether the plan is fulfilled at this point of a run."""
        return _is_over(self.total_iterations, self.total_steps, iteration, env_steps)

    def remaining_iterations(self, iteration: int, env_steps: int, num_envs: int) -> int | None:
        """Return how many iterations are left, or None when there is no limit."""
        steps = self.num_steps_per_env * num_envs
        return _remaining(self.total_iterations, self.total_steps, iteration, env_steps, steps)


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class OfflinePlan:
    """Take gradient steps on samples of a dataset; no env is stepped."""

    num_updates_per_iteration: int = 1000
    """Gradient steps in an iteration, after which there is a record."""
    batch_size: int = 256
    """Samples of a gradient step."""
    total_iterations: int = 0
    """The run is over after this many iterations; 0 means no limit."""

    def __post_init__(self) -> None:
        check_field_types(self)
        _at_least(self, 1, "num_updates_per_iteration", "batch_size")
        _at_least(self, 0, "total_iterations")

    def is_over(self, iteration: int) -> bool:
        """Return whether the plan is fulfilled at this point of a run."""
        return _is_over(self.total_iterations, 0, iteration, 0)

    def remaining_iterations(self, iteration: int) -> int | None:
        """Return how many iterations are left, or None when there is no limit."""
        return _remaining(self.total_iterations, 0, iteration, 0, 1)


Plan = OnPolicyPlan | OffPolicyPlan | OfflinePlan
"""Any plan."""


def _at_least(plan: object, lowest: int, *names: str) -> None:
    for name in names:
        value = getattr(plan, name)  # a field of the plan, named a few lines above
        if value < lowest:
            wanted = "is not negative" if lowest == 0 else f"is at least {lowest}"
            raise ValueError(f"{type(plan).__name__}.{name} {wanted}, found {value}")


def _is_over(total_iterations: int, total_steps: int, iteration: int, env_steps: int) -> bool:
    too_long = bool(total_iterations) and iteration >= total_iterations
    return too_long or (bool(total_steps) and env_steps >= total_steps)


def _remaining(total_iterations: int, total_steps: int, iteration: int, env_steps: int, steps: int) -> int | None:
    """Return the smaller of what both limits leave, in iterations of so many steps; None without a limit."""
    limits: list[int] = []
    if total_iterations:
        limits.append(total_iterations - iteration)
    if total_steps:
        limits.append(-((env_steps - total_steps) // steps))
    return max(0, min(limits)) if limits else None
