"""Small tasks with known answers, for tests: every optimal return and value is a formula.

task               actions             ends by                  best return          value
Bandit             k choices           termination, 1 step      1
ContinuousBandit   a number            termination, 1 step      1
HybridActions      a dict of both      truncation               1 per step
Chain              left, right         either or both           1, or 1 per step     value(gamma) per state
Grid               4 moves, masked     termination, a limit     -shortest path       value(gamma) per cell
MemoryCue          k choices           termination              1; 1/k blind
RepeatObs          k choices           termination              steps - lag
TimeLimit          2, no effect        truncation only          steps                1 / (1 - gamma)
Terminator         2, no effect        termination only         steps                (1 - gamma^k) / (1 - gamma)
Counting           echoed              either, pseudo-random    L (L - 1) / 2        every transition is predictable
Scripted           recorded            as the tables say        as the tables say
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.envs.toy.bandits import Bandit as Bandit
    from striderl.envs.toy.bandits import BanditConfig as BanditConfig
    from striderl.envs.toy.bandits import ContinuousBandit as ContinuousBandit
    from striderl.envs.toy.bandits import ContinuousBanditConfig as ContinuousBanditConfig
    from striderl.envs.toy.bandits import HybridActions as HybridActions
    from striderl.envs.toy.bandits import HybridActionsConfig as HybridActionsConfig
    from striderl.envs.toy.base import ToyEnv as ToyEnv
    from striderl.envs.toy.chains import Chain as Chain
    from striderl.envs.toy.chains import ChainConfig as ChainConfig
    from striderl.envs.toy.chains import ProbeConfig as ProbeConfig
    from striderl.envs.toy.chains import Terminator as Terminator
    from striderl.envs.toy.chains import TimeLimit as TimeLimit
    from striderl.envs.toy.grid import Grid as Grid
    from striderl.envs.toy.grid import GridConfig as GridConfig
    from striderl.envs.toy.memory import MemoryCue as MemoryCue
    from striderl.envs.toy.memory import MemoryCueConfig as MemoryCueConfig
    from striderl.envs.toy.memory import RepeatObs as RepeatObs
    from striderl.envs.toy.memory import RepeatObsConfig as RepeatObsConfig
    from striderl.envs.toy.probes import Counting as Counting
    from striderl.envs.toy.probes import CountingConfig as CountingConfig
    from striderl.envs.toy.probes import ProbeEpisode as ProbeEpisode
    from striderl.envs.toy.probes import Script as Script
    from striderl.envs.toy.probes import Scripted as Scripted

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "bandits": [
            "Bandit",
            "BanditConfig",
            "ContinuousBandit",
            "ContinuousBanditConfig",
            "HybridActions",
            "HybridActionsConfig",
        ],
        "base": [
            "ToyEnv",
        ],
        "chains": [
            "Chain",
            "ChainConfig",
            "ProbeConfig",
            "Terminator",
            "TimeLimit",
        ],
        "grid": [
            "Grid",
            "GridConfig",
        ],
        "memory": [
            "MemoryCue",
            "MemoryCueConfig",
            "RepeatObs",
            "RepeatObsConfig",
        ],
        "probes": [
            "Counting",
            "CountingConfig",
            "ProbeEpisode",
            "Script",
            "Scripted",
        ],
    },
)
