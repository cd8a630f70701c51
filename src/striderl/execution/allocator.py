"""Keep memory that one gradient step frees for the next one.

glibc gives the top of its heap back to the system whenever enough of it is free, which is after every backward pass of
a large network, and asks for it again in the next forward pass: a hundred thousand page faults per update, 15 % of its
time for [512, 256, 128] on 6,144 samples. With a higher threshold the memory stays. It costs nothing but what the
process had at its peak anyway. Other allocators and systems are left alone, and STRIDERL_KEEP_MEMORY=0 leaves glibc's.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform

_log = logging.getLogger(__name__)

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # the names of mallopt's parameters are numbers
_KEPT = 512 * 2**20
_LARGEST_MMAP = 32 * 2**20
"""The highest that glibc takes; larger blocks are mapped one by one."""
_done = False


def keep_freed_memory() -> bool:
    """Raise glibc's thresholds, once per process; tells whether they are raised."""
    global _done
    if _done or os.environ.get("STRIDERL_KEEP_MEMORY") == "0" or platform.libc_ver()[0] != "glibc":
        return _done
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    _done = bool(mallopt(_TRIM_THRESHOLD, _KEPT)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP))
    _log.debug("glibc keeps up to %d MiB of freed memory", _KEPT // 2**20)
    return _done
