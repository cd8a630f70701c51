"""What can go wrong with recorded trajectories; every message names the file, the place in it and the reason."""

from __future__ import annotations

from pathlib import Path


class TrajectoryError(Exception):
    """A recording could not be written or read."""


class TrajectoryCorrupt(TrajectoryError):  # noqa: N818  (says what is wrong)
    """Bytes of a recording are not those that were written, or not what this library writes."""

    def __init__(self, path: str | Path, reason: str) -> None:
        """Name the file and the reason."""
        super().__init__(f"{str(path)!r} is damaged: {reason}")
        self.path = Path(path)
        self.reason = reason


class TrajectoryRefused(TrajectoryError):  # noqa: N818  (says what is wrong)
    """A foreign file wants more than to be read."""

    def __init__(self, path: str | Path, reason: str) -> None:
        """Name the file and the reason."""
        super().__init__(f"{str(path)!r} is refused: {reason}")
        self.path = Path(path)
        self.reason = reason


class TrajectoryVersion(TrajectoryError):  # noqa: N818  (says what is wrong)
    """A recording is in a version of the format that this library does not know."""


class TrajectoryMissing(TrajectoryError):  # noqa: N818  (says what is wrong)
    """There is no recording, or it went away while it was read."""


class TrajectoryTimeout(TrajectoryError):  # noqa: N818  (says what is wrong)
    """A reader waited for trajectories that did not come."""


class TrajectoryMismatch(TrajectoryError):  # noqa: N818  (says what is wrong)
    """A folder holds trajectories with other columns."""
