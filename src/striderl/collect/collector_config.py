"""The settings of a collector."""

from __future__ import annotations

import math
from dataclasses import dataclass

from striderl.collect.schedules import SCHEDULES
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class CollectorConfig:
    """How experience is collected."""

    seed: int = 0
    """The seed of env resets and of the actor's noise."""
    schedule: str = "together"
    """'together', 'alternating' (two halves, simulation overlaps inference) or 'asynchronous' (whoever is ready)."""
    num_groups: int = 2
    """How many groups of envs the asynchronous schedule steps on their own."""
    wait_reset: bool = False
    """After an end the env's column is not valid until the next call of `collect`, which starts a new episode."""
    previous_step: bool = False
    """Show the actor its last action and reward as components 'prev_action' and 'prev_reward', zero after a reset."""
    decorrelation_steps: int = 0
    """Before the first step, age each env by up to this many steps of its time limit, so that time-outs come apart."""
    limit: float = 1e10
    """Numbers beyond this magnitude, like NaN and infinity, put their env into quarantine."""
    window: int = 100
    """Over how many finished episodes the statistics go."""
    noise_block: int = 64
    """For how many steps the actor's noise is drawn at once; changing it changes the numbers."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(unknown("schedule", self.schedule, SCHEDULES, where="CollectorConfig"))
        if isinstance(self.limit, float) and not 0.0 < self.limit < math.inf:
            raise ValueError(f"CollectorConfig.limit is a positive magnitude, found {self.limit}")
        check_field_types(self)
        lowest = {"seed": 0, "num_groups": 1, "decorrelation_steps": 0, "window": 1, "noise_block": 1}
        for name, value in (
            ("seed", self.seed),
            ("num_groups", self.num_groups),
            ("decorrelation_steps", self.decorrelation_steps),
            ("window", self.window),
            ("noise_block", self.noise_block),
        ):
            if value < lowest[name]:
                raise ValueError(f"CollectorConfig.{name} is at least {lowest[name]}, found {value}")
        if self.limit <= 0:
            raise ValueError(f"CollectorConfig.limit is a positive magnitude, found {self.limit}")
        if self.wait_reset and self.schedule == "asynchronous":
            raise ValueError("wait_reset has no meaning in an asynchronous schedule: envs do not wait for each other")
