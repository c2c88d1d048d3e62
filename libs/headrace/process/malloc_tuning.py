"""Tunes glibc's malloc to keep memory that the process frees.

Frames of half a megabyte come and go a hundred times a second. By default glibc returns each to the
kernel, and every page of the next one causes a fault: half of the wal-reader's processor time with
rows of 10 kB. So the memory of a few frames is kept. Does nothing with other C libraries.
"""

from __future__ import annotations

import ctypes

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
KEPT_BYTES = 8 << 20
# Larger blocks come from the kernel automatically, and are returned immediately.
PIECE_BYTES = 4 << 20


def keep_freed_memory() -> bool:
    """Keep some freed memory; returns whether the C library can."""
    # musl, for example, has no mallopt.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Setting either one ends glibc's dynamic adjustment of both, so both are set.
    return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)) and bool(
        mallopt(_M_MMAP_THRESHOLD, PIECE_BYTES)
    )
