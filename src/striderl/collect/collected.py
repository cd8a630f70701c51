"""What one call of `Collector.collect` did."""

from __future__ import annotations

from dataclasses import dataclass, field

from striderl.collect.quarantine import Fault


@dataclass(frozen=True)
class Collected:
    """What one call of `collect` did."""

    num_steps: int
    """Transitions handed over."""
    seconds: float
    """How long it took."""
    returns: list[float] = field(default_factory=list)
    """With n_episode: each episode's undiscounted return, env by env in order."""
    lengths: list[int] = field(default_factory=list)
    """With n_episode: each episode's length."""
    faults: list[Fault] = field(default_factory=list)
    """The first bad number of each component, if there were any."""
