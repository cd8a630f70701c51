"""Collection: env times actor gives experience."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.collect.actors import Acted as Acted
    from striderl.collect.actors import Actor as Actor
    from striderl.collect.actors import RandomActor as RandomActor
    from striderl.collect.actors import ScriptedActor as ScriptedActor
    from striderl.collect.collector import Collected as Collected
    from striderl.collect.collector import Collector as Collector
    from striderl.collect.collector import CollectorConfig as CollectorConfig
    from striderl.collect.delivery import Storage as Storage
    from striderl.collect.quarantine import Fault as Fault
    from striderl.collect.quarantine import Quarantine as Quarantine
    from striderl.collect.statistics import EpisodeStatistics as EpisodeStatistics

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "actors": [
            "Acted",
            "Actor",
            "RandomActor",
            "ScriptedActor",
        ],
        "collector": [
            "Collected",
            "Collector",
            "CollectorConfig",
        ],
        "delivery": [
            "Storage",
        ],
        "quarantine": [
            "Fault",
            "Quarantine",
        ],
        "statistics": [
            "EpisodeStatistics",
        ],
    },
)
