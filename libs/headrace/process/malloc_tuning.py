"""What the process does with memory that it gave back.

Frames of half a megabyte come and go a hundred times a second. By its defaults glibc returns each
to the kernel, and every page of the next is a fault: half of the wal-reader's processor time with
rows of 10 kB. So as much as a few frames need is kept. Does nothing where the C library is another.
"""

from __future__ import annotations

import ctypes

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
KEPT_BYTES = 8 << 20
# What is larger comes from the kernel by itself, and goes back at once.
PIECE_BYTES = 4 << 20


def keep_freed_memory() -> bool:
    """Keep a little of what was freed; whether the C library can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)) and bool(
        mallopt(_M_MMAP_THRESHOLD, PIECE_BYTES)
    )
