"""What can go wrong with a checkpoint; a training loop that catches `CheckpointError` can go on without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class CheckpointError(Exception):
    """A checkpoint could not be written or read; the message says what was tried, where, and what the system said."""


class CheckpointMissing(CheckpointError):  # noqa: N818  (says what is wrong)
    """There is no such checkpoint."""


class CheckpointCorrupt(CheckpointError):  # noqa: N818  (says what is wrong)
    """A file of a checkpoint is not what was written, or not what this library writes."""

    def __init__(self, path: str | Path, reason: str) -> None:
        """Name the file and the reason."""
        super().__init__(f"{str(path)!r} is damaged: {reason}")
        self.path = Path(path)
        self.reason = reason


class FileRefused(CheckpointCorrupt, ValueError):  # noqa: N818  (says what is wrong)
    """A file of a run folder or a dataset is not read or written: a link, too large, not text, not JSON, not ours."""

    def __init__(self, path: str | Path, reason: str) -> None:
        """Name the file and the reason."""
        super().__init__(path, reason)
        self.args = (f"{str(path)!r} is refused: {reason}",)


class CheckpointUnreadable(CheckpointError):  # noqa: N818  (says what is wrong)
    """The system would not let a file be read; the file itself may be good."""

    def __init__(self, path: str | Path, error: OSError) -> None:
        """Name the file and what the system said."""
        super().__init__(f"cannot read {str(path)!r}: {error.strerror or error}")
        self.path = Path(path)
        self.errno = error.errno


class CheckpointVersion(CheckpointError):  # noqa: N818  (says what is wrong)
    """A checkpoint was written by a newer version in a format that this one does not know."""


class LayoutMismatch(CheckpointError):  # noqa: N818  (says what is wrong)
    """A checkpoint was made for other observations or actions."""

    def __init__(self, differences: Sequence[str], *, where: str = "the checkpoint") -> None:
        """List every difference on a line of its own."""
        lines = "".join(f"\n  - {line}" for line in differences)
        super().__init__(f"{where} was made for another layout of observations or actions:{lines}")
        self.differences = tuple(differences)
