"""Draw simple pictures with numpy alone: bars, boxes, discs and graphs in world coordinates, with smooth edges.

(0, height)                                  a shape is a signed distance in pixels, negative inside;
    ▲                                        coverage = clip(1/2 - distance, 0, 1) smooths its edge
    │    ●────── bar from a to b
    └───────▶ metres
(left, bottom)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Pixels = np.ndarray[Any, np.dtype[Any]]
Point = tuple[float, float]
Colour = tuple[int, int, int]

WHITE, BLACK, GREY = (255, 255, 255), (0, 0, 0), (130, 130, 130)
RED, BLUE, BROWN, YELLOW, TEAL = (204, 77, 77), (129, 132, 203), (202, 152, 101), (204, 204, 0), (0, 190, 190)


class Canvas:
    """A picture that shows `metres` of the world across its width, from (left, bottom) upwards."""

    def __init__(self, *, width: int, height: int, left: float, bottom: float, metres: float) -> None:
        self.pixels: Pixels = np.zeros((height, width, 3), np.uint8)
        self._scale = width / metres
        self._x = (left + (np.arange(width) + 0.5) / self._scale)[None, :]
        self._y = (bottom + (height - 0.5 - np.arange(height)) / self._scale)[:, None]

    def fill(self, colour: Colour) -> None:
        """Paint everything in one colour."""
        self.pixels[...] = colour

    def disc(self, centre: Point, radius: float, colour: Colour) -> None:
        """Draw a filled circle."""
        self._paint(np.hypot(self._x - centre[0], self._y - centre[1]) - radius, colour)

    def bar(self, start: Point, end: Point, width: float, colour: Colour) -> None:
        """Draw a straight bar with round ends."""
        along_x, along_y = end[0] - start[0], end[1] - start[1]
        length_squared = max(along_x * along_x + along_y * along_y, 1e-12)
        x, y = self._x - start[0], self._y - start[1]
        along = np.clip((x * along_x + y * along_y) / length_squared, 0.0, 1.0)
        self._paint(np.hypot(x - along * along_x, y - along * along_y) - 0.5 * width, colour)

    def box(self, centre: Point, width: float, height: float, colour: Colour) -> None:
        """Draw a filled, upright rectangle."""
        outside_x = np.abs(self._x - centre[0]) - 0.5 * width
        outside_y = np.abs(self._y - centre[1]) - 0.5 * height
        self._paint(np.maximum(outside_x, outside_y), colour)

    def graph(self, height: Callable[[Pixels], Pixels], width: float, colour: Colour) -> None:
        """Draw the line y = height(x)."""
        line = height(self._x[0])
        steepness = np.gradient(line, self._x[0])
        self._paint(np.abs(self._y - line) / np.sqrt(1.0 + steepness**2) - 0.5 * width, colour)

    def _paint(self, distance: Pixels, colour: Colour) -> None:
        coverage = np.clip(0.5 - distance * self._scale, 0.0, 1.0)[..., None]
        mixed = self.pixels * (1.0 - coverage) + np.asarray(colour, np.float64) * coverage
        self.pixels[...] = np.rint(mixed)
