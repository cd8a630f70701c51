"""Action noise in the words of Tianshou: a function of a shape that returns an array.

noise = OUNoise(sigma=0.3)          noise((4, 2)) → array [4, 2]; noise.reset() begins anew
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from striderl.data.naming import AssertedValueError

__path__: list[str] = []  # Tianshou's modules exploration.… are below, see compat/original_paths.py

Array = np.ndarray[Any, Any]


class BaseNoise(ABC):
    """Noise that is added to actions; drawn from numpy's global generator, so `np.random.seed` fixes it."""

    def reset(self) -> None:
        """Begin anew."""
        return

    @abstractmethod
    def __call__(self, size: Sequence[int]) -> Array:
        """Return noise of this shape."""


class GaussianNoise(BaseNoise):
    """Independent normal numbers."""

    def __init__(self, mu: float = 0.0, sigma: float = 1.0) -> None:
        """Take the mean and the standard deviation."""
        if sigma < 0:
            raise AssertedValueError(f"sigma is 0 or more, found {sigma}")
        self._mu, self._sigma = mu, sigma

    def __call__(self, size: Sequence[int]) -> Array:
        """Return noise of this shape."""
        return np.random.normal(self._mu, self._sigma, tuple(size))


class OUNoise(BaseNoise):
    """An Ornstein-Uhlenbeck process: x ← x + theta (mu - x) dt + sigma √dt N(0, 1)."""

    def __init__(
        self,
        mu: float = 0.0,
        sigma: float = 0.3,
        theta: float = 0.15,
        dt: float = 1e-2,
        x0: float | Array | None = None,
    ) -> None:
        """Begin at `x0`, or at 0."""
        if sigma < 0:
            raise AssertedValueError(f"sigma is 0 or more, found {sigma}")
        self._mu, self._pull, self._spread, self._start = mu, theta * dt, sigma * np.sqrt(dt), x0
        self.reset()

    def reset(self) -> None:
        """Go back to the start."""
        self._x: Any = self._start

    def __call__(self, size: Sequence[int], mu: float | None = None) -> Array:
        """Return the next values of this shape; another shape than before begins anew at 0."""
        shape = tuple(size)
        if self._x is None or (isinstance(self._x, np.ndarray) and self._x.shape != shape):
            self._x = 0.0
        centre = self._mu if mu is None else mu
        self._x = self._x + self._pull * (centre - self._x) + self._spread * np.random.normal(size=shape)
        return np.array(self._x)
