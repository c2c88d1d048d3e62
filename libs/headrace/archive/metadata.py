"""What a file says of itself, in its Parquet footer under the key `headrace`: enough to go on from
the last file alone.

Owns the metadata's form, version 1. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from headrace.archive.errors import WalFileCorruptError
from headrace.lsn import ORIGIN, Position

FORMAT = 1
KEY = b"headrace"


@dataclass(frozen=True, slots=True)
class Gap:
    """Changes that PostgreSQL no longer has and the archive does not have.

    Those of transactions whose commit LSN is `after` or greater, and less than `up_to`: `after` is
    where the last commit record that the archive has ended, and the next one may begin right there.
    """

    after: int
    up_to: int
    reason: str


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column of a table, as the log describes it; `type_name` as the catalog calls it.

    `filled`: adding it may have given existing rows a value, which no change tells.
    """

    name: str
    type_oid: int
    type_modifier: int
    type_name: str
    is_key: bool
    filled: bool = True


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table's shape: what rows with its name and this schema version have."""

    schema: str
    table: str
    relation_id: int
    version: int
    key: tuple[str, ...]
    columns: tuple[ColumnInfo, ...]


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A file's own account."""

    id: int
    archive: str
    epoch: int
    writer: str
    source: str
    database: str
    system_id: str
    timeline: int
    # The log from here on, to before there, is in this file, as far as the publication goes.
    from_lsn: int
    end_lsn: int
    rows: int
    # Of the rows; where there are none, `last` is that of the files before.
    first: Position = ORIGIN
    last: Position = ORIGIN
    # The last row of the files before.
    after: Position | None = None
    # Whether it ends where a transaction does.
    whole: bool = True
    # The latest commit so far, in this file or before; microseconds since 1970.
    time_us: int = 0
    gap: Gap | None = None
    tables: tuple[TableInfo, ...] = ()
    # Of every table so far: its version, and what that version's shape comes down to.
    versions: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    # The previous file's, so that the files are a chain.
    previous: str = ""
    checksum: str = ""
    checksum_bytes: int = 0
    # Whether each page has a checksum too, so that a part of the file can be read and trusted.
    page_checksums: bool = False
    # Where each row group begins and ends, and its SHA-256: what a part of the file is held to that
    # is read alone.
    groups: tuple[tuple[int, int, str], ...] = ()
    # Whether the footer has a checksum, which stands right before it.
    footer_checksum: bool = False
    format: int = FORMAT

    @property
    def next_id(self) -> int:
        return self.id + 1

    def table(self, schema: str, name: str, version: int) -> TableInfo | None:
        """The shape of rows of this file."""
        wanted = (schema, name, version)
        return next(
            (
                table
                for table in self.tables
                if (table.schema, table.table, table.version) == wanted
            ),
            None,
        )


def encode(info: SegmentInfo) -> bytes:
    return orjson.dumps(info, default=list)  # positions are tuples


def decode(data: bytes) -> SegmentInfo:
    try:
        body: dict[str, Any] = orjson.loads(data)
        if body["format"] > FORMAT:
            raise WalFileCorruptError(
                f"it has the format {body['format']}, this version reads formats up to {FORMAT}",
                remedy="Read this archive with a newer Headrace.",
            )
        tables = tuple(_table(table) for table in body.pop("tables"))
        gap = body.pop("gap")
        versions = {
            name: (version, shape) for name, (version, shape) in body.pop("versions").items()
        }
        first = Position(*body.pop("first"))
        last = Position(*body.pop("last"))
        after = body.pop("after", None)
        groups = tuple((start, stop, digest) for start, stop, digest in body.pop("groups", ()))
        known = {name: body[name] for name in SegmentInfo.__slots__ if name in body}
        return SegmentInfo(
            **known,
            tables=tables,
            gap=Gap(**gap) if gap else None,
            versions=versions,
            first=first,
            last=last,
            after=None if after is None else Position(*after),
            groups=groups,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WalFileCorruptError(f"its metadata is malformed: {error}") from error


def _table(body: dict[str, Any]) -> TableInfo:
    columns = tuple(ColumnInfo(**column) for column in body["columns"])
    return TableInfo(**{**body, "key": tuple(body["key"]), "columns": columns})
