"""A file's metadata, in its Parquet footer under the key `headrace`.

The last file's metadata is enough to continue the archive. Owns the format, version 1: a later
version may add keys, which this one ignores, at every level. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from headrace.archive.errors import WalFileCorruptError
from headrace.lsn import ORIGIN, Gap, Position

FORMAT = 1
KEY = b"headrace"


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column of a table, as the log describes it; `type_name` is the catalog's name.

    `filled`: adding it may have given existing rows a value, which no change reports. `number`: its
    place in the table's history (`attnum`), which it keeps when it is renamed; 0 if it is unknown.
    """

    name: str
    type_oid: int
    type_modifier: int
    type_name: str
    is_key: bool
    filled: bool = True
    number: int = 0

    @classmethod
    def decode(cls, body: Mapping[str, Any]) -> ColumnInfo:
        """A column as JSON has it; a later version may know more about it."""
        return cls(**_known(cls.__slots__, body))


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table's shape: the columns of rows with its name and this schema version."""

    schema: str
    table: str
    relation_id: int
    version: int
    key: tuple[str, ...]
    columns: tuple[ColumnInfo, ...]


@dataclass(frozen=True, slots=True)
class WalFileInfo:
    """A file's metadata: positions, tables, checksums, gap."""

    # The file's number.
    id: int
    # The archive's ID.
    archive: str
    # The epoch of the frames that it was written from.
    epoch: int
    # The archiver's ID.
    writer: str
    # The replication slot.
    source: str
    # The database in PostgreSQL.
    database: str
    # PostgreSQL's system identifier.
    system_id: str
    # PostgreSQL's timeline.
    timeline: int
    # The file covers the log from here on, as far as the publication includes it.
    from_lsn: int
    # The file covers the log to before here.
    end_lsn: int
    # The number of rows.
    rows: int
    # The position of the first row.
    first: Position = ORIGIN
    # The position of the last row; in a file without rows, of the last one in earlier files.
    last: Position = ORIGIN
    # The last row of the earlier files.
    after: Position | None = None
    # Whether it ends at the end of a transaction.
    whole: bool = True
    # The latest commit so far, in this file or earlier; microseconds since 1970.
    time_us: int = 0
    # The gap that this file records in its only row.
    gap: Gap | None = None
    # The shapes of the tables whose rows it contains.
    tables: tuple[TableInfo, ...] = ()
    # For every table so far: its version, and a digest of that version's shape.
    versions: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    # The previous file's checksum, so that the files form a chain.
    previous: str = ""
    # The SHA-256 of the file's first `checksum_bytes` bytes.
    checksum: str = ""
    # The number of bytes that the checksum covers.
    checksum_bytes: int = 0
    # Whether each page has a checksum too, so that a part of the file can be read and trusted.
    page_checksums: bool = False
    # The bounds and SHA-256 of each row group, to verify a part of the file that is read on its
    # own.
    groups: tuple[tuple[int, int, str], ...] = ()
    # Whether the footer has a checksum, which precedes it directly.
    footer_checksum: bool = False
    # The version of the archive's format.
    format: int = FORMAT

    @property
    def next_id(self) -> int:
        """The number of the next file."""
        return self.id + 1

    def table(self, schema: str, name: str, version: int) -> TableInfo | None:
        """Return the shape of a table's rows of this schema version, or None if it has none."""
        wanted = (schema, name, version)
        return next(
            (
                table
                for table in self.tables
                if (table.schema, table.table, table.version) == wanted
            ),
            None,
        )


def encode(info: WalFileInfo) -> bytes:
    return orjson.dumps(info, default=list)  # positions are tuples


def decode(data: bytes) -> WalFileInfo:
    try:
        body: dict[str, Any] = orjson.loads(data)
        if body["format"] > FORMAT:
            raise WalFileCorruptError(
                f"it has format {body['format']}, this version reads formats up to {FORMAT}",
                remedy="Read this archive with a newer Headrace.",
            )
        tables = tuple(decode_table(table) for table in body.pop("tables"))
        gap = body.pop("gap")
        versions = {
            name: (version, shape) for name, (version, shape) in body.pop("versions").items()
        }
        first = Position(*body.pop("first"))
        last = Position(*body.pop("last"))
        after = body.pop("after", None)
        groups = tuple((start, stop, digest) for start, stop, digest in body.pop("groups", ()))
        return WalFileInfo(
            **_known(WalFileInfo.__slots__, body),
            tables=tables,
            gap=Gap(**_known(Gap.__slots__, gap)) if gap else None,
            versions=versions,
            first=first,
            last=last,
            after=None if after is None else Position(*after),
            groups=groups,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WalFileCorruptError(f"its metadata is malformed: {error}") from error


def decode_table(body: Mapping[str, Any]) -> TableInfo:
    """A table's shape as JSON has it; a later version may know more about it."""
    columns = tuple(ColumnInfo.decode(column) for column in body["columns"])
    known = _known(TableInfo.__slots__, body)
    return TableInfo(**{**known, "key": tuple(body["key"]), "columns": columns})


def _known(names: Iterable[str], body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in names if name in body}
