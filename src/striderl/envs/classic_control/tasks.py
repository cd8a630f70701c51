"""The classic-control tasks, vectorised: what Gymnasium's own classes compute, step for step, bit for bit.

    task                      observation                       actions          reward              ends at
    CartPole                  x, x_dot, theta, theta_dot        0, 1             1                   a fall, 500
    Pendulum                  cos, sin, speed                   torque [-2, 2]   -(angle² + …)       200
    Acrobot                   cos, sin (twice), two speeds      0, 1, 2          -1, 0 at the end    the line, 500
    MountainCar               position, velocity                0, 1, 2          -1                  the flag, 200
    MountainCarContinuous     position, velocity                throttle [-1, 1] 100 at the flag     the flag, 999

Only the start of an episode is drawn differently: from streams keyed by (seed, env, episode), so an env's data does not
depend on how many others there are. All run with numpy on the CPU; with another `device` the tensors are copied there.
"""

from __future__ import annotations

from typing import Any

from striderl.envs.classic_control.acrobot import Acrobot, AcrobotConfig
from striderl.envs.classic_control.base import ClassicControl
from striderl.envs.classic_control.cartpole import CartPole, CartPoleConfig
from striderl.envs.classic_control.mountain_car import (
    MountainCar,
    MountainCarConfig,
    MountainCarContinuous,
    MountainCarContinuousConfig,
)
from striderl.envs.classic_control.pendulum import Pendulum, PendulumConfig

__all__ = [
    "CLASSIC_TASKS",
    "Acrobot",
    "AcrobotConfig",
    "CartPole",
    "CartPoleConfig",
    "ClassicControl",
    "MountainCar",
    "MountainCarConfig",
    "MountainCarContinuous",
    "MountainCarContinuousConfig",
    "Pendulum",
    "PendulumConfig",
]

CLASSIC_TASKS: dict[str, type[ClassicControl[Any]]] = {
    "CartPole-v1": CartPole,
    "Pendulum-v1": Pendulum,
    "Acrobot-v1": Acrobot,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
}
"""Gymnasium's id of each task and the class that is its equal."""
