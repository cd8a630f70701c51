"""The ground as a table of heights that can be asked about many points at once.

heights[row, column]      x = corner_x + column · cell,   y = corner_y + row · cell

(r+1, c) ────── (r+1, c+1)         each cell is two triangles, cut as MuJoCo cuts its height fields,
   │  upper  ╱  │                  so the surface is the one that the robot stands on
   │      ╱     │
   │   ╱  lower │
 (r, c) ────── (r, c+1)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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
