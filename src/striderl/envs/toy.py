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

from striderl.envs.toy_bandits import (
    Bandit,
    BanditConfig,
    ContinuousBandit,
    ContinuousBanditConfig,
    HybridActions,
    HybridActionsConfig,
)
from striderl.envs.toy_base import ToyEnv
from striderl.envs.toy_chains import Chain, ChainConfig, ProbeConfig, Terminator, TimeLimit
from striderl.envs.toy_grid import Grid, GridConfig
from striderl.envs.toy_memory import MemoryCue, MemoryCueConfig, RepeatObs, RepeatObsConfig
from striderl.envs.toy_probes import Counting, CountingConfig, Episode, Script, Scripted

__all__ = [
    "Bandit",
    "BanditConfig",
    "Chain",
    "ChainConfig",
    "ContinuousBandit",
    "ContinuousBanditConfig",
    "Counting",
    "CountingConfig",
    "Episode",
    "Grid",
    "GridConfig",
    "HybridActions",
    "HybridActionsConfig",
    "MemoryCue",
    "MemoryCueConfig",
    "ProbeConfig",
    "RepeatObs",
    "RepeatObsConfig",
    "Script",
    "Scripted",
    "Terminator",
    "TimeLimit",
    "ToyEnv",
]
