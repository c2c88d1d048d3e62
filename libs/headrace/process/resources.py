"""A process's own version, uptime, memory and processor time."""

from __future__ import annotations

import platform
import resource
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path

from headrace import log as logs
from headrace.metrics.counters import Counters

_PAGES = Path("/proc/self/statm")
_PAGE_BYTES = resource.getpagesize()
_started = time.monotonic()


@cache
def _build() -> str:
    return f"{version('headrace')} {platform.python_version()}"


def refresh(stats: Counters) -> None:
    """Refresh these metrics."""
    stats.set_series("build_info", {_build(): 1.0})
    stats.set("uptime_seconds", round(time.monotonic() - _started, 3))
    stats.set("cpu_seconds", round(time.process_time(), 3))
    stats.set_series("errors", dict(logs.told))
    memory = resident_bytes()
    if memory is not None:
        stats.set("memory_bytes", memory)


def resident_bytes() -> int | None:
    """Resident memory; None where the system doesn't report it the way Linux does."""
    try:
        return int(_PAGES.read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return None
