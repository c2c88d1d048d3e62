"""Spark data sources: a table by consistent, parallel COPY, the archive, and a table from it.

    from headrace.spark import TableSource

    spark.dataSource.register(TableSource)
    users = spark.read.format("headrace.table").option("table", "users").load()

The snapshot-responder's job is built on the same parts: the snapshot that is held, its plan, its
rows.

Any program may import it. It needs Spark (`pip install 'headrace[spark]'`), and `ArchiveSource`
needs `headrace[archive]`. It never writes to PostgreSQL's tables or to the archive, and importing
the package never loads Spark: its names are loaded when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.spark.archive_source import ArchiveSource
    from headrace.spark.archive_state import current_state
    from headrace.spark.table_source import TableSource

__all__ = ["ArchiveSource", "TableSource", "current_state"]

_MODULES = {
    "ArchiveSource": "archive_source",
    "TableSource": "table_source",
    "current_state": "archive_state",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
