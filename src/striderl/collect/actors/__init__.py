"""Actors, which choose the actions during collection: policies, behaviours on top of them, noise in weights."""

from __future__ import annotations

from striderl._lazy import lazy

__getattr__ = lazy(__name__, {"base": ["Actor", "ActorOutput", "RandomActor", "ScriptedActor"]})[0]
