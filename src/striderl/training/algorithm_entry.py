"""What the table of algorithms holds for each of them: `AlgorithmEntry`, and the `Learner` that it builds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from striderl.collect.actors.base import Actor
from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.envs.vec_env import VecEnv
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.policy import Policy
from striderl.training.consumers.consumer import Consumer
from striderl.training.distributed import Ranks
from striderl.training.trainer import Trainer

if TYPE_CHECKING:
    from striderl.training.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Learner:
    """What an algorithm needs beside consumers."""

    policy: Policy | ActorPolicy
    """What is learned."""
    greedy: Actor
    """Plays it without exploring, for evaluations and videos."""
    trainer: Callable[[Sequence[Consumer]], Trainer]
    """Makes the trainer that calls these consumers."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmEntry:
    """One algorithm of the table."""

    summary: str
    """What it is, in a line."""
    config: type[Any]
    """The type of its settings."""
    plan: type[Any]
    """The type of its plan."""
    policy: Callable[[RunConfig[Any, Any], ObsSpec, ActionSpec], Policy | ActorPolicy]
    """Builds the policy alone: for playing, evaluating and exporting."""
    learner: Callable[[RunConfig[Any, Any], VecEnv, Ranks], Learner]
    """Builds everything around an env, for one process or one of several."""
    learns_in_ranks: bool = False
    """Whether several processes can learn together."""
    weights: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda state: state["algorithm"]["policy"]
    """Finds what the policy loads in the state of a trainer."""
