"""Pendulum-v1: swing a pendulum up and hold it there with a motor that is too weak to lift it at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from striderl.data.actions import BoxSpec
from striderl.envs.classic_control.base import (
    BLACK,
    RED,
    WHITE,
    Array,
    Canvas,
    ClassicConfig,
    ClassicControl,
    StateLayout,
    scalar_square,
)

_SECONDS = 0.05
_MAX_SPEED = 8.0
_MAX_TORQUE = np.float32(2.0)


@dataclass(frozen=True, kw_only=True)
class PendulumConfig(ClassicConfig):
    """What may be changed in Pendulum; the defaults are those of Pendulum-v1."""

    max_episode_length: int = 200
    """Steps after which an episode is truncated; 0 for never."""
    gravity: float = 10.0
    """Metres per second squared."""


class Pendulum(ClassicControl[PendulumConfig]):
    """N pendulums; the state is the angle from upright and its speed, the observation cos, sin and speed."""

    layout = StateLayout(
        name="Pendulum-v1",
        state_size=2,
        obs_size=3,
        num_draws=2,
        action_spec=BoxSpec(shape=(1,), low=-2.0, high=2.0, names=("torque",)),
        step_dt=_SECONDS,
    )
    default_config = PendulumConfig()

    def _start(self, draws: Array) -> Array:
        return np.stack([math.pi * (2.0 * draws[:, 0] - 1.0), 2.0 * draws[:, 1] - 1.0])

    def _observe(self, state: Array) -> Array:
        seen = np.empty((state.shape[1], 3), np.float32)
        seen[:, 0] = np.cos(state[0])
        seen[:, 1] = np.sin(state[0])
        seen[:, 2] = state[1]
        return seen

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        """Integrate semi-implicitly; the torque is float32 until it meets the state, as in Gymnasium."""
        angle, speed = self._state
        torque = np.minimum(np.maximum(actions[:, 0], -_MAX_TORQUE), _MAX_TORQUE)
        from_upright = (angle + math.pi) % (2.0 * math.pi) - math.pi
        cost = scalar_square(from_upright) + 0.1 * scalar_square(speed) + 0.001 * scalar_square(torque)
        push = 3.0 * self.config.gravity / 2.0 * np.sin(angle) + 3.0 * torque
        speed[:] = np.minimum(np.maximum(speed + push * _SECONDS, -_MAX_SPEED), _MAX_SPEED)
        angle += speed * _SECONDS
        return (-cost).astype(np.float32), self._false.copy()

    def _picture(self, state: Array) -> Array:
        canvas = Canvas(width=500, height=500, left=-2.2, bottom=-2.2, metres=4.4)
        angle = float(state[0])
        canvas.fill(WHITE)
        canvas.bar((0.0, 0.0), (-math.sin(angle), math.cos(angle)), 0.2, RED)
        canvas.disc((0.0, 0.0), 0.05, BLACK)
        return canvas.pixels
