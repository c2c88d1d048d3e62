"""Keeps a process with pyarrow small: without pandas, which pyarrow loads if installed, and with
memory that is released.

pyarrow asks pandas about every list that becomes a column whether that is a series, which costs 40
MiB and a second. By default its memory pool keeps what was needed once. pyarrow reads the choice of
the pool from the environment when it is loaded: a pool that is set later applies to Python's arrays
and not to the code that writes Parquet. So this comes before anything that loads pyarrow. Only for
the processes of services: readers of an archive may want either.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_POOL = "ARROW_DEFAULT_MEMORY_POOL"


class _NotHere:
    """Reports that pandas is not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out of this process", name=name)
        return None


def keep_small(pool: str) -> None:
    """Choose pyarrow's memory pool, unless the user has, and keep pandas out."""
    os.environ.setdefault(_POOL, pool)
    # Before the finders that would find it.
    sys.meta_path.insert(0, _NotHere())


def give_back() -> None:
    """Release unused memory to the system, and not only to malloc's lists."""
    import pyarrow as pa  # noqa: PLC0415  # not before `keep_small`

    pa.default_memory_pool().release_unused()
