"""CartPole-v1: balance a pole on a cart by pushing the cart left or right (Barto, Sutton and Anderson 1983)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from striderl.data.actions import DiscreteSpec
from striderl.envs.classic_control.base import (
    BLACK,
    BLUE,
    BROWN,
    WHITE,
    Array,
    Canvas,
    ClassicConfig,
    ClassicControl,
    StateLayout,
)

# Constants are 0-d arrays because numpy would convert a Python float anew in every call, at the price of the operation.
_GRAVITY = np.array(9.8)
_TOTAL_MASS = np.array(0.1 + 1.0)
_POLE_MOMENT = np.array(0.1 * 0.5)
_TWO_THIRDS = np.array(4.0 / 3.0 / 2.0)
_SECONDS = np.array(0.02)
_FORCE = np.array([-10.0, 10.0])
_FARTHEST = (2.4, 12 * 2 * math.pi / 360)


@dataclass(frozen=True, kw_only=True)
class CartPoleConfig(ClassicConfig):
    """What may be changed in CartPole; the defaults are those of CartPole-v1."""

    max_episode_length: int = 500
    """Steps after which an episode is truncated; 0 for never. CartPole-v0 has 200."""
    sutton_barto_reward: bool = False
    """Reward 0 per step and -1 for the fall, instead of 1 per step."""
    start_range: float = 0.05
    """Each of the four numbers starts uniformly within plus and minus this."""


class CartPole(ClassicControl[CartPoleConfig]):
    """N cart-poles; state and observation are x, x_dot, theta, theta_dot."""

    layout = StateLayout(
        name="CartPole-v1", state_size=4, obs_size=4, num_draws=4, action_spec=DiscreteSpec(n=2), step_dt=0.02
    )
    default_config = CartPoleConfig()

    def _allocate_work(self) -> None:
        """Make the arrays and, because making one costs half an operation, the views of them."""
        block, pair, change, distances = (np.zeros((rows, self.num_envs)) for rows in (6, 2, 4, 2))
        outside, scratch = np.zeros((2, self.num_envs), np.bool_), np.zeros(self.num_envs)
        # state, cosine and sine are one block, so that theta_dot and the cosine are neighbours
        self._state, x, theta, theta_dot_and_cosine, cosine, sine = (
            block[:4],
            block[0],
            block[2],
            block[3:5],
            *block[4:],
        )
        self._velocities, self._moves = self._state[1::2], change[0::2]
        self._derivatives = (theta, cosine, sine, theta_dot_and_cosine, pair, *pair, scratch, change[1], change[3])
        self._bounds = (x, theta, distances, *distances, outside, *outside)
        self._change = change
        self._ones = np.ones(self.num_envs, np.float32)
        self._limits = np.repeat(np.array(_FARTHEST)[:, None], self.num_envs, axis=1)

    def _start(self, draws: Array) -> Array:
        return np.asarray((2.0 * draws - 1.0).T * self.config.start_range)

    def _observe(self, state: Array) -> Array:
        return state.T.astype(np.float32, "C")

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        """Integrate with Euler's method, in Gymnasium's order of operations, so that every bit agrees."""
        state, change = self._state, self._change
        self._moves[...] = self._velocities
        self._accelerate(self._chosen(_FORCE, actions))
        np.multiply(change, _SECONDS, change)
        np.add(state, change, state)
        x, theta, distances, distance, tilt, outside, too_far, too_steep = self._bounds
        np.absolute(x, distance)
        np.absolute(theta, tilt)
        np.greater(distances, self._limits, outside)
        terminated = np.logical_or(too_far, too_steep)
        if self.config.sutton_barto_reward:
            return -terminated.astype(np.float32), terminated
        return self._ones.copy(), terminated

    def _accelerate(self, force: Array) -> None:
        """Fill in the accelerations.

        Gymnasium multiplies by the half length, 0.5, in two places. Halving loses no bits, so the factor may move: the
        pole's moment 0.1 * 0.5 serves both, and theta_dot² and cos² go the first steps of their ways together.
        """
        theta, cosine, sine, theta_dot_and_cosine, pair, push, inertia, scratch, x_acc, theta_acc = self._derivatives
        np.cos(theta, cosine)
        np.sin(theta, sine)
        # push = (force + pole_moment * theta_dot² * sin) / total_mass;  inertia = pole_mass / 2 * cos² / total_mass
        np.square(theta_dot_and_cosine, pair)
        np.multiply(pair, _POLE_MOMENT, pair)
        np.multiply(push, sine, push)
        np.add(push, force, push)
        np.divide(pair, _TOTAL_MASS, pair)
        # theta_acc = (gravity * sin - cos * push) / (half of 4/3 - inertia)
        np.subtract(_TWO_THIRDS, inertia, inertia)
        np.multiply(sine, _GRAVITY, sine)
        np.multiply(cosine, push, scratch)
        np.subtract(sine, scratch, scratch)
        np.divide(scratch, inertia, theta_acc)
        # x_acc = push - pole_moment * theta_acc * cos / total_mass
        np.multiply(theta_acc, _POLE_MOMENT, scratch)
        np.multiply(scratch, cosine, scratch)
        np.divide(scratch, _TOTAL_MASS, scratch)
        np.subtract(push, scratch, x_acc)

    def _picture(self, state: Array) -> Array:
        canvas = Canvas(width=600, height=400, left=-2.4, bottom=-0.8, metres=4.8)
        x, theta = float(state[0]), float(state[2])
        axle = (x, 0.06)
        tip = (x + math.sin(theta), 0.06 + math.cos(theta))
        canvas.fill(WHITE)
        canvas.bar((-3.0, 0.0), (3.0, 0.0), 0.01, BLACK)
        canvas.box((x, 0.0), 0.4, 0.24, BLACK)
        canvas.bar(axle, tip, 0.08, BROWN)
        canvas.disc(axle, 0.04, BLUE)
        return canvas.pixels
