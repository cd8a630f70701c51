"""What chooses the actions while experience is collected: policies, behaviours on top of them, noise in weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.collect.actors.base import Acted as Acted
    from striderl.collect.actors.base import Actor as Actor
    from striderl.collect.actors.base import RandomActor as RandomActor
    from striderl.collect.actors.base import ScriptedActor as ScriptedActor

__getattr__, __dir__, __all__ = lazy(__name__, {"base": ["Acted", "Actor", "RandomActor", "ScriptedActor"]})
