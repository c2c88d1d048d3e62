"""A small process: without pandas, which pyarrow loads where it is installed, and with memory that
goes back.

pyarrow asks pandas of every list that becomes a column whether that is a series, which costs 30 MiB
and a second. Its own pool of memory keeps what a file needed; malloc gives pieces of that size
back. Which pool it is, pyarrow asks the environment once, when it is loaded: a pool that is set
later holds for Python's arrays and not for what writes Parquet. So this is loaded first. For the
archiver's process alone: whoever reads an archive may want either.
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
    """Says of pandas that it is not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out of the archiver", name=name)
        return None


def keep_small() -> None:
    """Before the first file is made."""
    sys.meta_path.insert(0, _NotHere())


def give_back() -> None:
    """What a file needed goes back to the system, and not only to malloc's lists."""
    pa.default_memory_pool().release_unused()
