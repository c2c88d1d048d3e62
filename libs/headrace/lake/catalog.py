"""The lake's catalog: which metadata is current for each table, and the cuts.

The tables `iceberg_tables` and `iceberg_namespace_properties` are those of Iceberg's JDBC and SQL
catalogs, which other engines read. A cut changes all pointers and adds its row to `headrace_cuts`
in one transaction, so no reader sees a part of it, and of two writers one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.lake.errors import LakeError

CATALOG_NAME = "headrace"
CREATE = (
    """CREATE TABLE IF NOT EXISTS iceberg_tables (
    catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
    table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000),
    previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name))""",
    """CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
    catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL,
    property_key VARCHAR(255) NOT NULL, property_value VARCHAR(1000),
    PRIMARY KEY (catalog_name, namespace, property_key))""",
    """CREATE TABLE IF NOT EXISTS headrace_cuts (
    source VARCHAR(255) NOT NULL, cut BIGINT NOT NULL, attempt VARCHAR(64) NOT NULL,
    system_id VARCHAR(64) NOT NULL, archive VARCHAR(64) NOT NULL, archive_file BIGINT NOT NULL,
    lsn BIGINT NOT NULL, ordinal BIGINT NOT NULL,
    made_us BIGINT NOT NULL, commit_us BIGINT, tables TEXT NOT NULL,
    PRIMARY KEY (source, cut))""",
    # Messages between a lake's programs: requests, folders that nothing refers to.
    """CREATE TABLE IF NOT EXISTS headrace_notes (
    source VARCHAR(255) NOT NULL, kind VARCHAR(64) NOT NULL, name VARCHAR(1000) NOT NULL,
    body TEXT NOT NULL, PRIMARY KEY (source, kind, name))""",
)


@dataclass(frozen=True, slots=True)
class TableName:
    """A table in the lake: the source's schema is its namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class Cut:
    """A moment of the source that the lake shows: all tables at one LSN."""

    # The replication slot: several suites may write to one lake.
    source: str
    number: int
    # Made once per try, so that a commit whose answer was lost is recognised.
    attempt: str
    # PostgreSQL's system identifier; empty if the archive had no file yet.
    system_id: str
    # The archive's ID, and the last of its files that was applied.
    archive: str
    archive_file: int
    # Every change that committed before this LSN is in the cut, and no later one.
    lsn: int
    # The ordinal of the last change; 0 if none.
    ordinal: int
    made_us: int
    # The commit time of the last transaction, in microseconds since 1970.
    commit_us: int | None = None
    # The snapshot of each table, by its name.
    tables: Mapping[str, int] = field(default_factory=dict)

    def tables_json(self) -> str:
        """The tables as the catalog stores them."""
        return json.dumps(self.tables, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Move:
    """A table's pointer before and after a cut; None where there is no table."""

    table: TableName
    before: str | None
    after: str | None


class PointerMovedError(LakeError):
    """Another program has changed a table since it was read: nothing of the cut was written."""

    retry = True

    def __init__(self, table: TableName) -> None:
        super().__init__(f"another program changed {table} in the catalog")
        self.table = table


class Catalog(Protocol):
    """A lake's catalog in a database. Blocking; used by one thread at a time."""

    def prepare(self) -> None:
        """Create the catalog's tables where they don't exist."""

    def last_cut(self, source: str) -> Cut | None:
        """The last cut of a source."""

    def cuts(self, source: str, limit: int) -> Sequence[Cut]:
        """The last cuts of a source, the newest first."""

    def tables(self) -> Mapping[TableName, str]:
        """The location of each table's current metadata."""

    def commit(
        self, cut: Cut, moves: Sequence[Move], first_kept: int, kept_since_us: int = 0
    ) -> None:
        """Make a cut, and forget those before `first_kept`, and those made before a time.

        Raises `CutRefusedError` if its number is taken, and `PointerMovedError` if a pointer is not
        what it was: both prove that nothing was written. Another error leaves the outcome in doubt,
        which `last_cut` shows.
        """

    def advance(self, cut: Cut) -> None:
        """Note that the last cut also shows a later LSN: nothing has changed since.

        Raises `CutRefusedError` if it is not the last cut any more, or already shows a later LSN.
        """

    def notes(self, source: str, kind: str) -> Mapping[str, str]:
        """The bodies of a source's notes of a kind, by their names."""

    def note(self, source: str, kind: str, name: str, body: str | None) -> None:
        """Store a note in place of the one with its name, or remove that."""

    def close(self) -> None:
        """Close the connection."""


CUT_COLUMNS = (
    "source, cut, attempt, system_id, archive, archive_file, lsn, ordinal, made_us, commit_us, "
    "tables"
)
CUT_VALUES = 11
INSERT_CUT = (
    f"INSERT INTO headrace_cuts ({CUT_COLUMNS}) "  # noqa: S608  # a constant
    f"VALUES ({', '.join(['{}'] * CUT_VALUES)})"
)
ADVANCE_CUT = (
    "UPDATE headrace_cuts SET lsn = {}, archive_file = {} "
    "WHERE source = {} AND cut = {} AND attempt = {} AND lsn <= {} AND NOT EXISTS "
    "(SELECT 1 FROM headrace_cuts later "
    "WHERE later.source = headrace_cuts.source AND later.cut > headrace_cuts.cut)"
)
ADVANCE_VALUES = 6
_INSERT_POINTER = (
    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, "
    "iceberg_type) VALUES ({}, {}, {}, {}, 'TABLE') ON CONFLICT DO NOTHING"
)
READ_NOTES = "SELECT name, body FROM headrace_notes WHERE source = {} AND kind = {}"
WRITE_NOTE = (
    "INSERT INTO headrace_notes (source, kind, name, body) VALUES ({}, {}, {}, {}) "
    "ON CONFLICT (source, kind, name) DO UPDATE SET body = excluded.body"
)
DELETE_NOTE = "DELETE FROM headrace_notes WHERE source = {} AND kind = {} AND name = {}"
# Cuts whose snapshots are no longer kept.
DELETE_CUTS = (
    "DELETE FROM headrace_cuts WHERE source = {} AND (cut < {} OR made_us < {}) AND cut < {}"
)
# Iceberg's catalogs know a namespace by its properties.
NAMESPACE_PROPERTIES = (("exists", "true"),)


def row_of(cut: Cut) -> tuple[object, ...]:
    """A cut as a row of `headrace_cuts`."""
    return (
        cut.source,
        cut.number,
        cut.attempt,
        cut.system_id,
        cut.archive,
        cut.archive_file,
        cut.lsn,
        cut.ordinal,
        cut.made_us,
        cut.commit_us,
        cut.tables_json(),
    )


def advance_of(cut: Cut) -> tuple[object, ...]:
    """The values of `ADVANCE_CUT`: only forward, and only while it is the last cut."""
    return (cut.lsn, cut.archive_file, cut.source, cut.number, cut.attempt, cut.lsn)


def cut_of(row: Sequence[Any]) -> Cut:
    """A row of `headrace_cuts` as a cut."""
    facts: dict[str, Any] = dict(zip(Cut.__slots__, row, strict=True))
    return Cut(**{**facts, "tables": json.loads(facts["tables"])})


def pointer_change(move: Move) -> tuple[str, tuple[object, ...]]:
    """The statement that moves a pointer only from where it was, with a brace for each value."""
    table = move.table
    key = (CATALOG_NAME, table.namespace, table.name)
    if move.before is None:
        # No row is changed if the name is taken, which the caller notices.
        return _INSERT_POINTER, (*key, move.after)
    where = (
        "WHERE catalog_name = {} AND table_namespace = {} AND table_name = {} "
        "AND metadata_location = {}"
    )
    if move.after is None:
        return f"DELETE FROM iceberg_tables {where}", (*key, move.before)  # noqa: S608
    change = "UPDATE iceberg_tables SET metadata_location = {}, previous_metadata_location = {}"
    return f"{change} {where}", (move.after, move.before, *key, move.before)
