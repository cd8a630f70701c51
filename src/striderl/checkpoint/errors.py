"""Errors of files, and limits of their sizes, checked before anything is allocated.

A training loop that catches `CheckpointError` can continue without a checkpoint. The same limits hold when one is
written, so that what was saved can always be read again.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path


class CheckpointError(Exception):
    """A checkpoint could not be written or read; the message has the operation, the path and the system's error."""


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
        """Name the file and the system's error."""
        super().__init__(f"cannot read {str(path)!r}: {error.strerror or error}")
        self.path = Path(path)
        self.errno = error.errno


class CheckpointVersion(CheckpointError):  # noqa: N818  (says what is wrong)
    """A checkpoint was written by a newer version in a format that is unknown to this one."""


class LayoutMismatch(CheckpointError):  # noqa: N818  (says what is wrong)
    """A checkpoint was made for other observations or actions."""

    def __init__(self, differences: Sequence[str], *, where: str = "the checkpoint") -> None:
        """List every difference on a line of its own."""
        lines = "".join(f"\n  - {line}" for line in differences)
        super().__init__(f"{where} was made for another layout of observations or actions:{lines}")
        self.differences = tuple(differences)


# -- limits ------------------------------------------------------------------------------------------------------------


MAX_MANIFEST_BYTES = 64 * 1024
"""A manifest has two short entries; more is not ours."""

MAX_JSON_BYTES = 64 * 1024 * 1024
"""Plain values are settings and counters; arrays belong into tensors."""

MAX_HEADER_BYTES = 32 * 1024 * 1024
"""The table of tensors in front of their bytes."""

MAX_JSON_NODES = 1_000_000
"""Values in one JSON text; each costs up to about 200 bytes of memory once parsed."""

MAX_JSON_DEPTH = 3 * 100 + 10
"""Levels of one JSON text: each level of a state takes up to three."""

MAX_LINE_BYTES = 4 * 1024 * 1024
"""One line of a file of lines, such as a row of metrics."""

MAX_TENSORS = 50_000
"""Tensors in one checkpoint."""

MAX_DEPTH = 100
"""How deeply a state may be nested."""

MAX_DIMENSIONS = 32
"""Dimensions of one tensor."""

MAX_ELEMENTS = 2**48
"""The product of the nonzero sizes of one tensor, so that not even strides can overflow."""


def memory_limit() -> int:
    """Return how many bytes this process could ever hold: the machine's memory, or less where it is limited."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return physical if soft == resource.RLIM_INFINITY else min(physical, soft)
