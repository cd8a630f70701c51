"""MountainCar-v0 and MountainCarContinuous-v0: rock an underpowered car out of a valley (Moore 1990)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.envs.classic_control.base import (
    BLACK,
    GREY,
    WHITE,
    YELLOW,
    Array,
    Canvas,
    ClassicConfig,
    ClassicControl,
    StateLayout,
)

_LEFT, _RIGHT, _MAX_SPEED = -1.2, 0.6, 0.07
_PUSH = np.array([-0.001, 0.0, 0.001])


@dataclass(frozen=True, kw_only=True)
class MountainCarConfig(ClassicConfig):
    """What may be changed in MountainCar; the defaults are those of MountainCar-v0."""

    max_episode_length: int = 200
    """Steps after which an episode is truncated; 0 for never."""
    goal_velocity: float = 0.0
    """The least speed at the flag that counts as arrival; at most 0.07."""


class MountainCar(ClassicControl[MountainCarConfig]):
    """N cars with three choices: push left, coast, push right; state and observation are position and velocity."""

    layout = StateLayout(
        name="MountainCar-v0", state_size=2, obs_size=2, num_draws=1, action_spec=DiscreteSpec(n=3), step_dt=0.0
    )
    default_config = MountainCarConfig()

    def _start(self, draws: Array) -> Array:
        return np.stack([-0.6 + 0.2 * draws[:, 0], np.zeros(len(draws))])

    def _observe(self, state: Array) -> Array:
        return state.T.astype(np.float32, "C")

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        """Move the cars; a car that hits the left wall stops."""
        position, velocity = self._state
        velocity += self._chosen(_PUSH, actions) + _scalar_cosine(3 * position) * -0.0025
        velocity[:], position[:] = _move(position, velocity)
        terminated = (position >= 0.5) & (velocity >= self.config.goal_velocity)
        return np.full(self.num_envs, -1.0, np.float32), terminated

    def _picture(self, state: Array) -> Array:
        return _valley(float(state[0]), flag=0.5)


@dataclass(frozen=True, kw_only=True)
class MountainCarContinuousConfig(ClassicConfig):
    """What may be changed in MountainCarContinuous; the defaults are those of MountainCarContinuous-v0."""

    max_episode_length: int = 999
    """Steps after which an episode is truncated; 0 for never."""
    goal_velocity: float = 0.0
    """The least speed at the flag that counts as arrival; at most 0.07."""


class MountainCarContinuous(ClassicControl[MountainCarContinuousConfig]):
    """N cars with a throttle between -1 and 1; 100 for arriving, less a tenth of the squared throttle per step.

    Gymnasium keeps this state in float64 until the first step and in float32 from then on, and its sums follow suit. A
    third state number, 1 until the first step, remembers which rule holds.
    """

    layout = StateLayout(
        name="MountainCarContinuous-v0",
        state_size=3,
        obs_size=2,
        num_draws=1,
        action_spec=BoxSpec(shape=(1,), low=-1.0, high=1.0, names=("throttle",)),
        step_dt=0.0,
    )
    default_config = MountainCarContinuousConfig()

    def _start(self, draws: Array) -> Array:
        return np.stack([-0.6 + 0.2 * draws[:, 0], np.zeros(len(draws)), np.ones(len(draws))])

    def _observe(self, state: Array) -> Array:
        return state[:2].T.astype(np.float32, "C")

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        """Move the cars in float32, and those in their first step in float64."""
        throttle = actions[:, 0]
        moved = self._roll(self._state[:2].astype(np.float32), throttle)
        fresh = self._state[2].nonzero()[0]
        if len(fresh):
            exact = self._roll(self._state[:2].take(fresh, 1), throttle[fresh])
            for every, some in zip(moved, exact, strict=True):
                every[fresh] = some
        self._state[0], self._state[1], terminated = moved
        self._state[2] = 0.0
        reward = 100.0 * terminated - np.square(throttle.astype(np.float64)) * 0.1
        return reward.astype(np.float32), terminated

    def _roll(self, state: Array, throttle: Array) -> tuple[Array, Array, Array]:
        """Return new positions, velocities and arrivals in the state's dtype."""
        position, velocity = state
        kind = state.dtype.type
        slope = 0.0025 * _scalar_cosine(3 * position)
        # Beyond the bounds Gymnasium has a Python float, within them a float32; they round at different places.
        beyond = np.copysign(0.0015, throttle.astype(np.float64)) - slope
        within = throttle * np.float32(0.0015) - slope.astype(np.float32)
        velocity = velocity + np.where(np.abs(throttle) > 1.0, beyond.astype(kind), within.astype(kind))
        velocity, position = _move(position, velocity)
        terminated = (position >= kind(0.45)) & (velocity >= kind(self.config.goal_velocity))
        return position, velocity, terminated

    def _picture(self, state: Array) -> Array:
        return _valley(float(state[0]), flag=0.45)


def _move(position: Array, velocity: Array) -> tuple[Array, Array]:
    """Return velocity and position after a step, kept within their bounds, in the dtype they came in."""
    kind = position.dtype.type
    velocity = np.minimum(np.maximum(velocity, kind(-_MAX_SPEED)), kind(_MAX_SPEED))
    position = np.minimum(np.maximum(position + velocity, kind(_LEFT)), kind(_RIGHT))
    velocity[(position == kind(_LEFT)) & (velocity < 0)] = 0.0
    return velocity, position


def _scalar_cosine(angle: Array) -> Array:
    """Take cosines by libm one by one, as Gymnasium does here; numpy's own may differ in the last bit on some CPUs."""
    return np.array([math.cos(number) for number in angle.tolist()])


def _valley(position: float, *, flag: float) -> Array:
    """Draw the hills, the flag and the car."""
    canvas = Canvas(width=600, height=400, left=_LEFT, bottom=0.0, metres=_RIGHT - _LEFT)
    height = 0.45 * math.sin(3 * position) + 0.55
    slope = math.atan(1.35 * math.cos(3 * position))
    pole = 0.45 * math.sin(3 * flag) + 0.55
    canvas.fill(WHITE)
    canvas.graph(lambda x: 0.45 * np.sin(3 * x) + 0.55, 0.006, BLACK)
    canvas.bar((flag, pole), (flag, pole + 0.15), 0.006, BLACK)
    canvas.box((flag + 0.035, pole + 0.13), 0.07, 0.04, YELLOW)
    along, across = (math.cos(slope), math.sin(slope)), (-math.sin(slope), math.cos(slope))
    ends = [(position + side * 0.05 * along[0], height + side * 0.05 * along[1]) for side in (-1, 1)]
    body = [(x + 0.045 * across[0], y + 0.045 * across[1]) for x, y in ends]
    canvas.bar(body[0], body[1], 0.05, BLACK)
    for x, y in ends:
        canvas.disc((x + 0.02 * across[0], y + 0.02 * across[1]), 0.02, GREY)
    return canvas.pixels
