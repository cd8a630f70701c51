"""How much a file may ask for, decided before anything is allocated.

The same limits hold when a checkpoint is written, so that what was saved can always be read again.
"""

from __future__ import annotations

import os
import resource

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
