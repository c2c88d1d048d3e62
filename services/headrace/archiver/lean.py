"""A small process: without pandas, which pyarrow loads where it is installed, and with memory that goes back.

pyarrow asks pandas of every list that becomes a column whether that is a series, which costs 30 MiB and a second. Its
own pool of memory keeps what a file needed; malloc gives pieces of that size back. For the archiver's process alone:
whoever reads an archive may want either.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


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
    pa.set_memory_pool(pa.system_memory_pool())
