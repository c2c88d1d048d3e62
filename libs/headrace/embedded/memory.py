"""The memory that is available to this machine, or to the container around this process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

# Of control groups, version 2 and 1; without a limit, the first says `max`, the second a number
# beyond all memory.
_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes(root: Path = Path("/")) -> int:
    """The machine's memory, or the container's limit if that is lower."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in _LIMITS:
        # Without a control group the file is missing; `max` is not a number.
        with contextlib.suppress(OSError, ValueError):
            found = min(found, int((root / name).read_text()))
    return found
