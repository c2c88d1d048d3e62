"""Keeps the process small: without pandas, which pyarrow loads if installed, and with memory that
is released.

pyarrow asks pandas about every list that becomes a column whether that is a series, which costs 30
MiB and a second. Its own memory pool keeps what a file needed; malloc releases blocks of that size.
pyarrow reads the choice of the pool from the environment once, when it is loaded: a pool that is
set later applies to Python's arrays and not to the code that writes Parquet. So this is loaded
first. Only for the archiver's process: readers of an archive may want either.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_POOL = "ARROW_DEFAULT_MEMORY_POOL"

os.environ.setdefault(_POOL, "system")

import pyarrow as pa  # noqa: E402  # behind what it reads


class _NotHere:
    """Reports that pandas is not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out of the archiver", name=name)
        return None


def keep_small() -> None:
    """Before the first file is written."""
    # Before the finders that would find it.
    sys.meta_path.insert(0, _NotHere())


def give_back() -> None:
    """Release a file's memory to the system, and not only to malloc's lists."""
    pa.default_memory_pool().release_unused()
