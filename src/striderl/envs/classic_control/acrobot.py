"""Acrobot-v1: swing a two-link arm above a line with a motor at the middle joint only (Sutton 1996)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from striderl.data.actions import DiscreteSpec
from striderl.envs.classic_control.base import (
    BLACK,
    TEAL,
    WHITE,
    YELLOW,
    Array,
    Canvas,
    ClassicConfig,
    ClassicControl,
    StateLayout,
    scalar_square,
)

_SECONDS = 0.2
_TORQUE = np.array([-1.0, 0.0, 1.0])
_MAX_SPEEDS = np.array([[4.0 * math.pi], [9.0 * math.pi]])
_GRAVITY = 9.8


@dataclass(frozen=True, kw_only=True)
class AcrobotConfig(ClassicConfig):
    """What may be changed in Acrobot; the defaults are those of Acrobot-v1."""

    max_episode_length: int = 500
    """Steps after which an episode is truncated; 0 for never."""


class Acrobot(ClassicControl[AcrobotConfig]):
    """N acrobots; the state is two angles and their speeds, the observation cos and sin of each angle, and the speeds.

    Gymnasium rounds the first state of an episode to float32 and takes its sines in float32 as well. A fifth state
    number, 1 until the first step, remembers where that holds.
    """

    layout = StateLayout(
        name="Acrobot-v1", state_size=5, obs_size=6, num_draws=4, action_spec=DiscreteSpec(n=3), step_dt=_SECONDS
    )
    default_config = AcrobotConfig()

    def _start(self, draws: Array) -> Array:
        rounded = (0.1 * (2.0 * draws.T - 1.0)).astype(np.float32)
        return np.concatenate([rounded, np.ones((1, len(draws)), np.float32)]).astype(np.float64)

    def _observe(self, state: Array) -> Array:
        seen = np.empty((state.shape[1], 6), np.float32)
        seen[:, 0:4:2] = np.cos(state[:2]).T
        seen[:, 1:4:2] = np.sin(state[:2]).T
        seen[:, 4:] = state[2:4].T
        fresh = state[4].nonzero()[0]
        if len(fresh):
            angles = state[:2].take(fresh, 1).astype(np.float32)
            seen[fresh, 0:4:2] = np.cos(angles).T
            seen[fresh, 1:4:2] = np.sin(angles).T
        return seen

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        """Integrate one step of Runge and Kutta's fourth-order method."""
        torque = self._chosen(_TORQUE, actions)
        start = self._state[:4]
        k1 = _derivatives(start, torque)
        k2 = _derivatives(start + _SECONDS / 2.0 * k1, torque)
        k3 = _derivatives(start + _SECONDS / 2.0 * k2, torque)
        k4 = _derivatives(start + _SECONDS * k3, torque)
        state = start + _SECONDS / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        _wrap(state[:2])
        state[2:] = np.minimum(np.maximum(state[2:], -_MAX_SPEEDS), _MAX_SPEEDS)
        self._state[:4] = state
        self._state[4] = 0.0
        terminated = -np.cos(state[0]) - np.cos(state[1] + state[0]) > 1.0
        return terminated.astype(np.float32) - np.float32(1.0), terminated

    def _picture(self, state: Array) -> Array:
        canvas = Canvas(width=500, height=500, left=-2.2, bottom=-2.2, metres=4.4)
        first, second = float(state[0]), float(state[0] + state[1])
        elbow = (math.sin(first), -math.cos(first))
        hand = (elbow[0] + math.sin(second), elbow[1] - math.cos(second))
        canvas.fill(WHITE)
        canvas.bar((-2.2, 1.0), (2.2, 1.0), 0.01, BLACK)
        for start, end in (((0.0, 0.0), elbow), (elbow, hand)):
            canvas.bar(start, end, 0.2, TEAL)
            canvas.disc(start, 0.1, YELLOW)
        return canvas.pixels


def _derivatives(state: Array, torque: Array) -> Array:
    """Return the time derivatives [4, N] by the book's equations (Sutton and Barto 2018, section 11.3).

    All masses and lengths are 1 and the centres of mass lie half-way, so factors that change no bit are left out.
    """
    angle1, angle2, speed1, speed2 = state
    cosine, sine = np.cos(angle2), np.sin(angle2)
    d1 = 0.25 + (1.25 + cosine) + 1.0 + 1.0
    d2 = 0.25 + 0.5 * cosine + 1.0
    phi2 = 0.5 * _GRAVITY * np.cos(angle1 + angle2 - math.pi / 2.0)
    phi1 = (
        -0.5 * scalar_square(speed2) * sine
        - speed2 * speed1 * sine
        + 1.5 * _GRAVITY * np.cos(angle1 - math.pi / 2.0)
        + phi2
    )
    turning = torque + d2 / d1 * phi1 - 0.5 * scalar_square(speed1) * sine - phi2
    acceleration2 = turning / (1.25 - scalar_square(d2) / d1)
    acceleration1 = -(d2 * acceleration2 + phi1) / d1
    return np.stack([speed1, speed2, acceleration1, acceleration2])


def _wrap(angles: Array) -> None:
    """Bring angles into [-pi, pi] in place, one turn at a time like Gymnasium, so that the rounding agrees."""
    while (above := angles > math.pi).any():
        angles[above] -= 2.0 * math.pi
    while (below := angles < -math.pi).any():
        angles[below] += 2.0 * math.pi
