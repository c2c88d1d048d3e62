"""Keeping out what the archiver does not need: pandas, which pyarrow loads where it is installed.

pyarrow asks it of every list that becomes a column whether that is a series, which costs some 60 MiB and a second. For
the process of the archiver alone: whoever reads an archive may want pandas.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NotHere:
    """Says of pandas that it is not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out of the archiver", name=name)
        return None


def keep_pandas_out() -> None:
    sys.meta_path.insert(0, _NotHere())
