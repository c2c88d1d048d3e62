"""Opens the DuckDB database in which the copy stands: in memory, bounded, and locked.

Promises that no statement reaches a file, the network, an extension or a setting: the feed hands
rows in as Arrow tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

from headrace.sql import duckdb_session

_LOCKED = (
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET python_enable_replacements = false",
    "SET allow_persistent_secrets = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """What the copy may use."""

    memory_mb: int
    threads: int
    # Where what doesn't fit into memory goes, and how much of it.
    spill: Path
    spill_mb: int
    # How long a reader may hold a cut.
    pin_s: float


def open_database(limits: CopyLimits) -> duckdb.DuckDBPyConnection:
    """An empty database; its cursors are sessions of it."""
    database = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{limits.memory_mb}MiB",
            "threads": str(limits.threads),
            "temp_directory": str(limits.spill),
        },
    )
    # DuckDB shows this setting if it is among the others, but doesn't enforce it.
    database.execute(f"SET max_temp_directory_size = '{limits.spill_mb}MiB'")
    duckdb_session.prepare(database)
    for statement in _LOCKED:
        database.execute(statement)
    return database
