"""Acting as one compiled program: where gradient steps are compiled, a few envs on the CPU are acted for so too.

    obs, state, noise ──▶ policy, value, sample, log-prob, acting parts ──▶ actions, state, columns

For eight envs and two small networks, sixty small operations take three times as long as their arithmetic. Who can be
compiled is who can be recorded on a GPU: an actor that keeps nothing, and says by `recording()` what it decides in
Python. Other actors, and those that a program cannot be made of, act as they are written.
"""

from __future__ import annotations

from typing import Any

import torch

from striderl.collect.actors import Acted, Actor, Noise, Obs
from striderl.collect.recorded_steps import RecordedActor
from striderl.execution.modes import Mode
from striderl.execution.traced import PureFunction


class CompiledActing:
    """What an actor does, as compiled programs."""

    def __init__(self, actor: Actor) -> None:
        """Compile nothing yet."""
        assert isinstance(actor, RecordedActor)
        self._recording = actor.recording
        self._act = PureFunction("acting", actor.act)

    def __call__(self, obs: Obs, state: Any, noise: Noise) -> Acted:
        """Choose actions."""
        acted: Acted = self._act(self._recording(), obs, state, noise)
        return acted


def compiled_acting(actor: Actor, mode: Mode, device: torch.device) -> CompiledActing | None:
    """Return what an actor does, compiled where the mode compiles and the actor can be; None elsewhere."""
    possible = mode.joint and device.type == "cpu" and isinstance(actor, RecordedActor)
    return CompiledActing(actor) if possible else None
