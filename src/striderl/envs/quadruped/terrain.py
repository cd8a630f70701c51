"""Grounds to walk on: an endless plane, or a field of patches that get harder from level to level.

    y ▲    column = kind of patch           column 4   blocks       ▢   ▢   ▢
      │                                         ⋮        ⋮
      │                                     column 0   rough        ▢   ▢   ▢
      └──▶ x                                                     level 0  1  2 …      each patch 8 m × 8 m

A robot starts in the middle of a patch. The whole field is one height field, made from a seed of its own, so that every
process builds the same one; a flat border surrounds it, and a robot that leaves the border has its episode cut short.

The ground as a table of heights, looked up for many points at once.

heights[row, column]      x = corner_x + column · cell,   y = corner_y + row · cell

(r+1, c) ────── (r+1, c+1)         each cell is two triangles, cut as MuJoCo cuts its height fields,
   │  upper  ╱  │                  so the surface is the one that the robot stands on
   │      ╱     │
   │   ╱  lower │
 (r, c) ────── (r, c+1)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.data.naming import unknown
from striderl.envs.mujoco.simulation import Bool, Float, Int
from striderl.envs.quadruped.robot import PLANE, GroundXml


@dataclass(frozen=True, kw_only=True)
class TerrainConfig:
    """What the ground looks like."""

    kinds: tuple[str, ...] = ("flat",)
    """Kinds of patches, one column each: names in `PATCHES`. Only 'flat' means an endless plane."""
    levels: int = 6
    """How many difficulties each kind has, from 0 (easy) up."""
    patch_size: float = 8.0
    """Side of a patch, m."""
    cell: float = 0.1
    """Distance of grid points, m; the physics of 0.05 costs a third more than that of 0.1."""
    border: float = 2.0
    """Width of the flat border, m."""
    seed: int = 0
    """Where the random heights come from."""

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ValueError("TerrainConfig.kinds wants at least one kind of patch")
        for kind in self.kinds:
            if kind not in PATCHES:
                raise ValueError(unknown("kind", kind, PATCHES, where="TerrainConfig.kinds"))
        if self.levels < 1 or self.cell <= 0.0 or self.patch_size < 20 * self.cell:
            raise ValueError(
                "TerrainConfig wants levels >= 1, cell > 0 and patch_size >= 20 cells, "
                f"found {self.levels}, {self.cell} and {self.patch_size}"
            )


class Ground(ABC):
    """Interface of the ground for a task."""

    xml: GroundXml
    """Its part of the model's text."""
    num_levels: int
    """How many difficulties there are."""
    num_columns: int
    """How many places of each difficulty there are."""

    def finish(self, model: Any) -> None:  # noqa: B027  (a ground made of geoms has nothing to add)
        """Write into the compiled model what its text cannot hold."""

    @abstractmethod
    def height(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the height of the ground at points of any shape."""

    def coarse_height(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return approximate heights at less cost, for scans of many points."""
        return self.height(x, y)

    @abstractmethod
    def origin(self, level: Int, column: Int) -> Float:
        """Return x and y of where robots start, [n, 2]."""

    @abstractmethod
    def outside(self, x: Float, y: Float) -> Bool:
        """Return which points are off the field, [n]."""


class Plane(Ground):
    """Endless flat ground at height zero."""

    def __init__(self) -> None:
        self.xml, self.num_levels, self.num_columns = PLANE, 1, 1

    def height(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return zeros."""
        return np.zeros(np.broadcast_shapes(x.shape, y.shape), x.dtype)

    def origin(self, level: Int, column: Int) -> Float:
        """Return zeros."""
        return np.zeros((len(level), 2))

    def outside(self, x: Float, y: Float) -> Bool:
        """Return all false."""
        return np.zeros(len(x), np.bool_)


class Field(Ground):
    """A height field of patches."""

    def __init__(self, config: TerrainConfig) -> None:
        self.config = config
        self.num_levels, self.num_columns = config.levels, len(config.kinds)
        self.map = HeightMap(_field_heights(config), cell=config.cell, corner=(-config.border, -config.border))
        rows, columns = self.map.heights.shape
        self._size = ((columns - 1) * config.cell, (rows - 1) * config.cell)
        self._low = float(self.map.heights.min())
        self._span = max(float(self.map.heights.max()) - self._low, 1e-3)
        half_x, half_y = 0.5 * self._size[0], 0.5 * self._size[1]
        self.xml = GroundXml(
            assets=f'<hfield name="field" nrow="{rows}" ncol="{columns}" size="{half_x} {half_y} {self._span} 0.5"/>',
            geoms=f'<geom name="ground" class="ground" type="hfield" hfield="field" material="floor" '
            f'pos="{half_x - config.border} {half_y - config.border} {self._low}"/>',
        )

    def finish(self, model: Any) -> None:
        """Write the heights into the compiled model; MuJoCo needs them between 0 and 1."""
        model.hfield_data[:] = ((self.map.heights - self._low) / self._span).reshape(-1)

    def height(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the height of the surface in the physics."""
        return self.map.at(x, y)

    def coarse_height(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the height of the nearest grid point."""
        return self.map.nearest(x, y)

    def origin(self, level: Int, column: Int) -> Float:
        """Return the middle of a patch."""
        return np.asarray((np.stack([level, column], axis=1) + 0.5) * self.config.patch_size, np.float64)

    def outside(self, x: Float, y: Float) -> Bool:
        """Return which points are less than half a metre from the field's end, or beyond."""
        low = 0.5 - self.config.border
        return np.asarray((x < low) | (y < low) | (x > self._size[0] + low - 1.0) | (y > self._size[1] + low - 1.0))


def build_ground(config: TerrainConfig) -> Ground:
    """Return the plane if every kind is 'flat', else a field."""
    return Plane() if set(config.kinds) == {"flat"} else Field(config)


def _field_heights(config: TerrainConfig) -> NDArray[np.float64]:
    """Make the heights [rows, columns] of the whole field; level runs along x, kind along y."""
    patch, border = round(config.patch_size / config.cell), round(config.border / config.cell)
    heights = np.zeros((len(config.kinds) * patch + 2 * border + 1, config.levels * patch + 2 * border + 1))
    for column, kind in enumerate(config.kinds):
        for level in range(config.levels):
            random = np.random.default_rng([config.seed, column, level])
            difficulty = level / max(config.levels - 1, 1)
            row, left = border + column * patch, border + level * patch
            heights[row : row + patch, left : left + patch] = PATCHES[kind](patch, config.cell, difficulty, random)
    return heights


# -- kinds of patches: (grid points per side, cell in m, difficulty 0 to 1, random numbers) -> heights [side, side] ---

Patch = Callable[[int, float, float, np.random.Generator], NDArray[np.float64]]


def flat_patch(side: int, cell: float, difficulty: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Make level ground."""
    return np.zeros((side, side))


def rough_patch(side: int, cell: float, difficulty: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Make bumps of up to 2 cm (easy) or 10 cm (hard), a hand's breadth wide."""
    height = 0.02 + 0.08 * difficulty
    coarse = random.uniform(0.0, height, (side // 2 + 2, side // 2 + 2))
    bumps = HeightMap(coarse, cell=2.0 * cell, corner=(0.0, 0.0))
    place = np.arange(side) * cell
    return np.asarray(bumps.at(*np.meshgrid(place, place)), np.float64)


def slope_patch(side: int, cell: float, difficulty: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Make a pyramid with a flat top, 6° (easy) to 22° (hard) steep."""
    return (0.1 + 0.3 * difficulty) * np.maximum(_inward(side, cell), 0.0)


def stairs_down_patch(side: int, cell: float, difficulty: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Make stairs that lead down from the middle on all sides; risers of 5 cm (easy) to 17 cm (hard)."""
    tread = max(0.3, 3.0 * cell)
    return (0.05 + 0.12 * difficulty) * np.ceil(np.maximum(_inward(side, cell), 0.0) / tread - 1e-9)


def stairs_up_patch(side: int, cell: float, difficulty: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Make stairs that lead up from the middle on all sides."""
    return -stairs_down_patch(side, cell, difficulty, random)


def blocks_patch(side: int, cell: float, difficulty: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Make rectangular blocks and pits, up to 5 cm (easy) or 20 cm (hard) high, around a free place in the middle."""
    heights = np.zeros((side, side))
    limit = 0.05 + 0.15 * difficulty
    for _ in range(40):
        width, depth = (random.uniform(0.4, 1.6, 2) / cell).astype(int) + 1
        row, column = random.integers(0, side - depth), random.integers(0, side - width)
        heights[row : row + depth, column : column + width] = random.choice([-1.0, -0.5, 0.5, 1.0]) * limit
    middle = slice(side // 2 - round(0.8 / cell), side // 2 + round(0.8 / cell) + 1)
    heights[middle, middle] = 0.0
    return heights


def _inward(side: int, cell: float) -> NDArray[np.float64]:
    """Return how far inside the patch's edge each point is, in m, up to the flat place in the middle."""
    edge = np.minimum(np.arange(side), side - np.arange(side)) * cell
    return np.minimum(np.minimum(edge[:, None], edge) - 0.2, 0.5 * side * cell - 1.2)


PATCHES: dict[str, Patch] = {
    "flat": flat_patch,
    "rough": rough_patch,
    "slope": slope_patch,
    "stairs_down": stairs_down_patch,
    "stairs_up": stairs_up_patch,
    "blocks": blocks_patch,
}
"""Every kind of patch by name."""
ROUGH_KINDS = ("rough", "slope", "stairs_down", "stairs_up", "blocks")
"""The kinds that the rough tasks use."""


# -- heights -----------------------------------------------------------------------------------------------------------


class HeightMap:
    """Heights on a regular grid; points outside have the height of the nearest edge."""

    def __init__(self, heights: NDArray[np.floating], *, cell: float, corner: tuple[float, float]) -> None:
        """Keep the heights [rows, columns] in float32, which is what MuJoCo stores."""
        self.heights: NDArray[np.float32] = np.ascontiguousarray(heights, np.float32)
        self.cell, self.corner = cell, corner
        self._flat = self.heights.reshape(-1)
        rows, columns = self.heights.shape
        # just inside the last vertex, so that the cell to the right and above always exists
        self._last_x, self._last_y = (columns - 1) * (1.0 - 1e-7), (rows - 1) * (1.0 - 1e-7)
        self._columns = columns

    def at(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the height of the surface at points of any shape, in the precision of x."""
        u = np.clip((x - self.corner[0]) * (1.0 / self.cell), 0.0, self._last_x)
        v = np.clip((y - self.corner[1]) * (1.0 / self.cell), 0.0, self._last_y)
        column, row = u.astype(np.int32), v.astype(np.int32)
        u -= column
        v -= row
        place = row * self._columns + column
        near, far = self._flat[place], self._flat[place + (self._columns + 1)]
        corner = self._flat[place + np.where(u > v, 1, self._columns)]
        return np.asarray(near + np.maximum(u, v) * (corner - near) + np.minimum(u, v) * (far - corner))

    def nearest(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the height of the grid point nearest to each point: half the cost of `at`."""
        column = np.clip((x - self.corner[0]) * (1.0 / self.cell) + 0.5, 0.0, self._columns - 0.5).astype(np.int32)
        row = np.clip((y - self.corner[1]) * (1.0 / self.cell) + 0.5, 0.0, len(self.heights) - 0.5).astype(np.int32)
        return np.asarray(self._flat[row * self._columns + column])
