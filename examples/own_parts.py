"""Train with parts of one's own: a Gymnasium env, a term that adds a reward, and a callback that logs and stops.

    python examples/own_parts.py                       a few seconds; stops as soon as the point stays near the origin
    python examples/own_parts.py --bonus 0 --steps 20000

The parts are plain classes that the library has never seen. Here they are handed over as objects; from the command line
the same classes are named by module: striderl train my_pkg:Point --terms my_pkg:Near --callbacks my_pkg:Watch.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

import striderl
from striderl.algorithms import Term
from striderl.algorithms.building import BuildContext
from striderl.algorithms.terms.term import Read
from striderl.training.record import Record


class Point(gymnasium.Env[np.ndarray, np.ndarray]):
    """A point that is to go to the origin of a plane; the reward is minus its distance."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw a place in the square around the origin."""
        super().reset(seed=seed)
        self.place, self.time = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32), 0
        return self.place, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move by a tenth of the action; 30 steps are an episode, which a clock ends and not the task."""
        self.place = self.place + np.float32(0.1) * np.asarray(action, np.float32)
        self.time += 1
        return self.place, -float(np.linalg.norm(self.place)), False, self.time >= 30, {}


@dataclass(frozen=True, kw_only=True)
class NearConfig:
    """Settings of the term."""

    bonus: float = 0.5
    """Reward of each step that begins near the origin."""
    radius: float = 0.2
    """How near that is, in the units of the observation."""


class Near(Term):
    """A further reward near the origin, added when a rollout is read; the env's own reward stays what it is."""

    Config = NearConfig
    summary = "rewards nearness to the origin"
    name = "near"

    def __init__(self, config: NearConfig) -> None:
        self.config = config

    @classmethod
    def build(cls, config: NearConfig, context: BuildContext) -> Near:
        """Build the term from its settings."""
        return cls(config)

    def reward_names(self) -> tuple[str, ...]:
        """Return the name of the reward, which is logged."""
        return ("near",)

    def reward(self, read: Read) -> dict[str, Tensor]:
        """Return the reward of each step, [T, N]; zero in samples that are not valid."""
        near = read.columns["obs"]["obs"].norm(dim=-1) < self.config.radius
        return {"near": torch.where(near & read.columns["valid"], self.config.bonus, 0.0)}


class Watch:
    """A callback: it logs the best return so far, and stops the run when that is good enough."""

    def __init__(self, enough: float) -> None:
        self.enough, self.best = enough, -float("inf")

    def __call__(self, record: Record) -> Mapping[str, float] | str:
        """Return metrics to log, or the reason to stop."""
        self.best = max(self.best, record.metrics.get("collect/return_mean", self.best))
        return f"a return of {self.best:.1f} is enough" if self.best > self.enough else {"watch/best": self.best}


def main() -> None:
    """Train, and print what the policy does at two places."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60_000, help="env steps at most")
    parser.add_argument("--bonus", type=float, default=0.5, help="reward of the term, per step near the origin")
    parser.add_argument("--enough", type=float, default=-7.0, help="mean return that stops the run")
    options = parser.parse_args()

    striderl.register("terms", "near", Near)
    quiet = {"logging.console": "off", "evaluation.every": 0}
    terms, watch = {"near": {"bonus": options.bonus}}, Watch(options.enough)
    with tempfile.TemporaryDirectory() as runs:
        agent = striderl.train(
            "ppo", env=Point, steps=options.steps, terms=terms, settings=quiet, callbacks=[watch], runs=runs
        )
    print(f"best mean return while collecting: {watch.best:.1f}")
    for place in ([1.0, 0.0], [0.0, -1.0]):
        across, up = agent.predict(place)
        print(f"at {place} the policy acts [{across:.1f}, {up:.1f}]")


if __name__ == "__main__":
    main()
