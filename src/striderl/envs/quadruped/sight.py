"""A scan of the ground around the robot: heights on a grid that turns with the robot's heading.

(1, 17, 11)     row 0 is behind the robot, the last row ahead; column 0 is on its right, the last on its left

                · · · · ·     ahead
                · · ▲ · ·     the robot
                · · · · ·

value = 5 · clip(trunk height - standing height - ground height, -1 m, 1 m):  0 over level ground, negative where
the ground is higher than that under the robot's feet

A depth camera on the robot's head, drawn by looking along the ground instead of casting every ray through it.

Seen from above, all rays of a picture fan out from the camera. Along each direction of the fan the ground is sampled
once, at growing distances; the steepest view angle so far decides what hides what. A pixel then only has to find where
its own steepness is first exceeded, by bisection, and interpolates between the two samples there.

      camera ●╲╲ pixel rays: steepness s = dz/dx                   steepness of the ground, (height - camera) / distance
             │ ╲ ╲                                                 running maximum   -3.1 -2.0 -1.3 -0.9 -0.9 -0.4
             │  ╲  ╲      ___                                      s = -1.0  ──────▶              ▲ between these two
      ───────┴───╲───╲___|            samples  · · ·  ·   ·     ·   distance           0.1  0.2  0.3  0.4  0.6  0.8

    picture   uint8 (1, height, width): 0 at `near` or closer, 255 at `far` or beyond; row 0 is the top, column 0 left
    depth     along the camera's axis, as depth cameras report it, not along the ray

It is exact up to the sampling for a ground that is a function of x and y; the robot's own legs are not seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from striderl.data.specs import ComponentSpec
from striderl.envs.mujoco.base import Rows
from striderl.envs.mujoco.simulation import Float, Int
from striderl.envs.quadruped.robot import RobotState
from striderl.envs.quadruped.terrain import Ground

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
    """Look up the ground's heights around N robots."""

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


# -- the depth camera --------------------------------------------------------------------------------------------------


Float32 = NDArray[np.float32]

_FIRST_SAMPLE = 0.08  # m ahead of the camera; the ground nearer than this is below the picture
_MARGIN = 1.4  # the fan is this much wider than the picture, because a tilted camera sees further to the side


@dataclass(frozen=True, kw_only=True)
class DepthCameraConfig:
    """Pose and optics of the camera."""

    size: tuple[int, int] = (48, 64)
    """Rows and columns of the picture."""
    position: tuple[float, float, float] = (0.27, 0.0, 0.03)
    """Where it is in the robot's frame, m."""
    pitch: float = 0.45
    """How far it looks down, rad."""
    field_of_view: float = 1.5
    """Horizontal angle of view, rad; pixels are square, so the vertical one follows."""
    near: float = 0.1
    """Depth that becomes 0, m."""
    far: float = 3.0
    """Depth that becomes 255, m."""
    interval: int = 5
    """Steps between two pictures of one env; 5 make 10 pictures per second. Envs take turns."""
    directions: int = 64
    """Directions of the fan in which the ground is sampled."""
    samples: int = 63
    """Samples of the ground along each direction."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.near < self.far or not 0.0 < self.field_of_view < 3.0:
            raise ValueError(
                "DepthCameraConfig wants 0 <= near < far and a field of view between 0 and 3 rad, "
                f"found {self.near}, {self.far} and {self.field_of_view}"
            )
        if min(*self.size, self.directions, self.samples) < 2 or self.interval < 1:
            raise ValueError("DepthCameraConfig wants at least 2 rows, columns, directions, samples, and interval >= 1")

    def spec(self, group: str) -> ComponentSpec:
        """Describe the component."""
        return ComponentSpec(shape=(1, *self.size), dtype="uint8", group=group, scale=255.0 / (self.far - self.near))


class DepthCamera:
    """Render the depth images of N robots."""

    def __init__(self, config: DepthCameraConfig, ground: Ground) -> None:
        self.config, self._ground = config, ground
        self.rays = _rays(config)
        reach = 1.3 * config.far
        self._distance = np.geomspace(_FIRST_SAMPLE, reach, config.samples).astype(np.float32)
        self._widest = np.float32(_MARGIN * np.tan(0.5 * config.field_of_view))
        self._tangent = np.linspace(-self._widest, self._widest, config.directions, dtype=np.float32)

    def pictures(self, robot: RobotState, ids: Int) -> NDArray[np.uint8]:
        """Render the depth images of these robots, uint8 [n, 1, height, width]."""
        config = self.config
        depth = self.depths(robot, ids)
        depth -= np.float32(config.near)
        depth *= np.float32(255.0 / (config.far - config.near))
        np.clip(depth + np.float32(0.5), 0.0, 255.0, out=depth)
        return depth.astype(np.uint8).reshape(len(ids), 1, *config.size)

    def depths(self, robot: RobotState, ids: Int) -> Float32:
        """Return the depth in metres of every pixel, [n, height · width]; large where there is no ground."""
        rotation = robot.rotation[ids]
        heading = np.arctan2(rotation[:, 1, 0], rotation[:, 0, 0])
        cos, sin = np.cos(heading), np.sin(heading)
        camera = robot.position[ids] + (rotation * np.asarray(self.config.position)).sum(axis=2)
        steepness = self._ground_steepness(camera, cos, sin)
        # each env's product is its own, so the result does not depend on how many there are
        rays = np.matmul(_turned_back(rotation, cos, sin).astype(np.float32), self.rays)
        forward = np.maximum(rays[:, 0], np.float32(1e-3))
        side, slope = rays[:, 1] / forward, rays[:, 2] / forward
        return np.asarray(self._first_hit(steepness, side, slope) / forward)

    def _ground_steepness(self, camera: Float, cos: Float, sin: Float) -> Float32:
        """Return (ground height - camera height) / distance, [n, directions, samples]."""
        cos32, sin32 = cos.astype(np.float32)[:, None], sin.astype(np.float32)[:, None]
        x, y, z = camera.astype(np.float32).T[:, :, None, None]
        along_x, along_y = (cos32 - self._tangent * sin32)[..., None], (sin32 + self._tangent * cos32)[..., None]
        height = self._ground.height(x + along_x * self._distance, y + along_y * self._distance)
        return np.asarray((height - z) / self._distance, np.float32)

    def _first_hit(self, steepness: Float32, side: Float32, slope: Float32) -> Float32:
        """Return the distance ahead, [n, pixels], at which rays of these tangents and slopes meet the ground."""
        count, directions, samples = steepness.shape
        hidden = np.maximum.accumulate(steepness, axis=2).reshape(-1)
        place = (side + self._widest) * np.float32((directions - 1) / (2.0 * self._widest)) + np.float32(0.5)
        row = np.clip(place, 0.0, directions - 0.5).astype(np.int32)
        row += np.arange(count, dtype=np.int32)[:, None] * directions
        row *= samples
        index = _bisect(hidden, row, slope, samples)
        after = np.minimum(index, samples - 1)
        before = np.maximum(after - 1, 0)
        above = self._distance[before] * (slope - steepness.reshape(-1)[row + before])
        below = self._distance[after] * (slope - steepness.reshape(-1)[row + after])
        share = above / np.maximum(above - below, np.float32(1e-9))
        hit = self._distance[before] + share * (self._distance[after] - self._distance[before])
        hit = np.where(index == 0, self._distance[0], hit)
        return np.where(index == samples, np.float32(1e3), hit)


def _bisect(sorted_rows: Float32, start: NDArray[np.int32], wanted: Float32, length: int) -> NDArray[np.int32]:
    """Return for each wanted number how many of the `length` numbers from `start` on are below it."""
    found = np.zeros(start.shape, np.int32)
    step = 1 << (length.bit_length() - 1)
    while step:
        probe = found + np.int32(step)
        # a probe beyond the row reads its last number and is then rejected
        below = sorted_rows[start + np.minimum(probe, length) - 1] < wanted
        found = np.where(below & (probe <= length), probe, found)
        step >>= 1
    return found


def _rays(config: DepthCameraConfig) -> Float32:
    """Return the directions of all pixels in the robot's frame, [3, height · width], one unit deep along the axis."""
    rows, columns = config.size
    wide = np.tan(0.5 * config.field_of_view)
    left = wide * (1.0 - 2.0 * (np.arange(columns) + 0.5) / columns)
    up = wide * rows / columns * (1.0 - 2.0 * (np.arange(rows) + 0.5) / rows)
    up, left = np.meshgrid(up, left, indexing="ij")
    cos, sin = np.cos(config.pitch), np.sin(config.pitch)
    return np.stack([cos + sin * up, left, cos * up - sin]).reshape(3, -1).astype(np.float32)


def _turned_back(rotation: Float, cos: Float, sin: Float) -> Float:
    """Return the rotations without their heading, [n, 3, 3]."""
    cos, sin = cos[:, None], sin[:, None]
    result = rotation.copy()
    result[:, 0] = cos * rotation[:, 0] + sin * rotation[:, 1]
    result[:, 1] = cos * rotation[:, 1] - sin * rotation[:, 0]
    return result
