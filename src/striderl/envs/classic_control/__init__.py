"""The classic-control tasks, vectorised, equal to Gymnasium's step for step; `tasks.py` has the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.envs.classic_control.acrobot import Acrobot as Acrobot
    from striderl.envs.classic_control.acrobot import AcrobotConfig as AcrobotConfig
    from striderl.envs.classic_control.base import ClassicControl as ClassicControl
    from striderl.envs.classic_control.cartpole import CartPole as CartPole
    from striderl.envs.classic_control.cartpole import CartPoleConfig as CartPoleConfig
    from striderl.envs.classic_control.mountain_car import MountainCar as MountainCar
    from striderl.envs.classic_control.mountain_car import MountainCarConfig as MountainCarConfig
    from striderl.envs.classic_control.mountain_car import MountainCarContinuous as MountainCarContinuous
    from striderl.envs.classic_control.mountain_car import MountainCarContinuousConfig as MountainCarContinuousConfig
    from striderl.envs.classic_control.pendulum import Pendulum as Pendulum
    from striderl.envs.classic_control.pendulum import PendulumConfig as PendulumConfig
    from striderl.envs.classic_control.tasks import CLASSIC_TASKS as CLASSIC_TASKS

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "acrobot": [
            "Acrobot",
            "AcrobotConfig",
        ],
        "base": [
            "ClassicControl",
        ],
        "cartpole": [
            "CartPole",
            "CartPoleConfig",
        ],
        "mountain_car": [
            "MountainCar",
            "MountainCarConfig",
            "MountainCarContinuous",
            "MountainCarContinuousConfig",
        ],
        "pendulum": [
            "Pendulum",
            "PendulumConfig",
        ],
        "tasks": [
            "CLASSIC_TASKS",
        ],
    },
)
