"""A scan of the ground around the robot: heights on a grid that turns with the robot's heading.

(1, 17, 11)     row 0 is behind the robot, the last row ahead; column 0 is on its right, the last on its left

                · · · · ·     ahead
                · · ▲ · ·     the robot
                · · · · ·

value = 5 · clip(trunk height - standing height - ground height, -1 m, 1 m):  0 over level ground, negative where
the ground is higher than that under the robot's feet
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from striderl.data.specs import ComponentSpec
from striderl.envs.mujoco.base import Float, Rows
from striderl.envs.mujoco.quadruped_state import RobotState
from striderl.envs.mujoco.terrain import Ground

SCAN_SCALE = 5.0


@dataclass(frozen=True, kw_only=True)
class HeightScanConfig:
    """Where the points of the scan are."""

    ahead: tuple[float, float] = (-0.8, 0.8)
    """Range along the robot's x axis, m."""
    aside: tuple[float, float] = (-0.5, 0.5)
    """Range along its y axis, m."""
    size: tuple[int, int] = (17, 11)
    """Points along x and along y."""

    def spec(self, group: str) -> ComponentSpec:
        """Describe the component."""
        return ComponentSpec(shape=(1, *self.size), group=group, scale=SCAN_SCALE)


class HeightScan:
    """Looks up the ground's heights around N robots."""

    def __init__(self, config: HeightScanConfig, ground: Ground, standing_height: float) -> None:
        self._ground, self._standing_height, self._size = ground, standing_height, config.size
        x, y = np.linspace(*config.ahead, config.size[0]), np.linspace(*config.aside, config.size[1])
        grid_x, grid_y = np.meshgrid(x, y, indexing="ij")
        # float32 halves the memory traffic, and a hundredth of a millimetre does not matter here
        self._x, self._y = grid_x.reshape(-1).astype(np.float32), grid_y.reshape(-1).astype(np.float32)

    def read(self, robot: RobotState, rows: Rows) -> Float:
        """Return the scan of these robots, [n, 1, rows, columns]."""
        ahead = robot.rotation[rows, :2, 0]
        ahead = (ahead / np.maximum(np.sqrt(np.square(ahead).sum(axis=1, keepdims=True)), 1e-9)).astype(np.float32)
        position = robot.position[rows].astype(np.float32)
        cos, sin = ahead[:, :1], ahead[:, 1:]
        x = position[:, :1] + cos * self._x - sin * self._y
        y = position[:, 1:2] + sin * self._x + cos * self._y
        height = self._ground.coarse_height(x, y)
        depth = np.clip(position[:, 2:] - (self._standing_height + height), -1.0, 1.0)
        return np.asarray(SCAN_SCALE * depth).reshape(-1, 1, *self._size)
