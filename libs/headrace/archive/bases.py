"""Base snapshots in the archive: the rows of one table at one LSN, from which a replay can start.

Owns their form: a folder of parts, which are files as the log's (an insert for each row), and a
record, which is created last. Promises that a base without its record is never used or listed, and
that a part with other bytes than those that were written raises. Taking one is another package's
(`headrace.bases`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from headrace.archive import columns, file_format, layout
from headrace.archive.entry import RowEntry
from headrace.archive.errors import (
    BaseDamagedError,
    BaseMissingError,
    WalFileCorruptError,
)
from headrace.archive.metadata import TableInfo, WalFileInfo, decode_table
from headrace.archive.store import Fetched, Get, Names, ObjectMetadata, Store
from headrace.lsn import format_lsn

FORMAT = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BasePart:
    """A part of the rows: a Parquet file."""

    name: str
    rows: int
    size: int
    # The SHA-256 of all its bytes.
    checksum: str


@dataclass(frozen=True, slots=True)
class BaseRecord:
    """A complete base snapshot: the rows of transactions that committed before its LSN."""

    id: str
    # The archive that it belongs to; its LSN has no meaning in another one.
    archive: str
    # The replication slot.
    source: str
    system_id: str
    table: TableInfo
    lsn: int
    # The source's clock after the snapshot was taken: microseconds since 1970. Every transaction in
    # it had committed by then.
    time_us: int
    # The first file with changes that the snapshot lacks.
    next_id: int
    rows: int
    parts: tuple[BasePart, ...]
    format: int = FORMAT

    @property
    def name(self) -> tuple[str, str]:
        """The table's schema and name."""
        return self.table.schema, self.table.table

    @property
    def bytes(self) -> int:
        """The size of its parts."""
        return sum(part.size for part in self.parts)

    @property
    def time(self) -> datetime:
        """`time_us` as a time."""
        return _EPOCH + timedelta(microseconds=self.time_us)

    def __str__(self) -> str:
        return f"the base {self.id} of {'.'.join(self.name)} at {format_lsn(self.lsn)}"


@dataclass(frozen=True, slots=True)
class ListedBase:
    """A base, and when the store received its record."""

    record: BaseRecord
    stored_at: datetime


@dataclass(frozen=True, slots=True)
class UnfinishedBase:
    """Parts without a record: a base that is being taken, or was interrupted."""

    id: str
    objects: tuple[ObjectMetadata, ...]

    @property
    def begun_at(self) -> datetime:
        """When its first object was stored, before its snapshot was taken."""
        return min(item.last_modified for item in self.objects)

    @property
    def written_at(self) -> datetime:
        """When its last object was stored."""
        return max(item.last_modified for item in self.objects)


class Bases:
    """The base snapshots of an archive; blocking."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By location: a record never changes.
        self._known: dict[str, BaseRecord] = {}

    def all(self) -> list[ListedBase]:
        """The complete ones, by LSN."""
        found = (self._listed(item) for item in self._objects() if _completes(item))
        return sorted(
            (each for each in found if each is not None),
            key=lambda each: (each.record.lsn, each.record.id),
        )

    def unfinished(self) -> list[UnfinishedBase]:
        """Those without a record."""
        objects: dict[str, list[ObjectMetadata]] = {}
        complete = set()
        for item in self._objects():
            base = layout.base_of(item.location)
            if base is None:
                continue
            objects.setdefault(base, []).append(item)
            if _completes(item):
                complete.add(base)
        return [
            UnfinishedBase(base, tuple(items))
            for base, items in objects.items()
            if base not in complete
        ]

    def begin(self, base: str) -> None:
        """Call before the snapshot is taken: from now on, a garbage collection leaves the files
        that may contain later changes.
        """
        self._store.put_new(layout.base_beginning(base), b"")

    def complete(self, record: BaseRecord) -> None:
        """Create the record: from now on, the base counts. Its parts are stored."""
        self._store.put_new(layout.base_record(record.id), encode(record))

    def entries(self, record: BaseRecord, part: BasePart) -> Iterator[tuple[WalFileInfo, RowEntry]]:
        """The rows of a part, as inserts."""
        fetched: Fetched | None = self._store.ask(Get(part.name))
        if fetched is None:
            raise BaseMissingError(f"{record} has lost its part {part.name}")
        if checksum(fetched.data) != part.checksum:
            raise BaseDamagedError(f"{record}: {part.name} is not the file that was written")
        try:
            info = file_format.info_of(file_format.footer_of(fetched.data))
            rows = 0
            for batch in file_format.batches(fetched.data):
                rows += batch.num_rows
                for entry in columns.entries(batch):
                    yield info, entry
        except WalFileCorruptError as error:
            raise BaseDamagedError(f"{record}: {part.name}: {error.args[0]}") from error
        if rows != part.rows:
            raise BaseDamagedError(f"{record}: {part.name} has {rows} rows, expected {part.rows}")

    def remove(self, record: BaseRecord) -> None:
        """Remove a base: its record first, so that no reader starts with what is left."""
        self._store.delete(layout.base_record(record.id))
        # The whole folder: attempts that were repeated left parts that no record names.
        self._delete(self._objects(layout.base_folder(record.id)))

    def remove_unfinished(self, base: UnfinishedBase) -> None:
        """Remove what an interrupted one left."""
        self._delete(base.objects)

    def _delete(self, objects: Iterable[ObjectMetadata]) -> None:
        for item in objects:
            self._store.delete(item.location)

    def _objects(self, folder: str = layout.BASES) -> list[ObjectMetadata]:
        # A listing continues after the folder.
        found: list[ObjectMetadata] = self._store.ask(Names(f"{folder}/")) or []
        return [item for item in found if item.location.startswith(f"{folder}/")]

    def _listed(self, item: ObjectMetadata) -> ListedBase | None:
        if (known := self._known.get(item.location)) is not None:
            return ListedBase(known, item.last_modified)
        fetched: Fetched | None = self._store.ask(Get(item.location))
        # Removed since it was listed.
        if fetched is None:
            return None
        record = decode(fetched.data, item.location)
        if layout.base_record(record.id) != item.location:
            raise BaseDamagedError(f"{item.location} contains the record of the base {record.id}")
        self._known[item.location] = record
        return ListedBase(record, item.last_modified)


def _completes(item: ObjectMetadata) -> bool:
    return layout.is_base_record(item.location)


def checksum(data: bytes) -> str:
    """As records have it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def encode(record: BaseRecord) -> bytes:
    """A record's object: the record, and a checksum of its bytes."""
    body = orjson.dumps(record)
    return orjson.dumps({"base": orjson.Fragment(body), "checksum": checksum(body)})


def decode(data: bytes, location: str) -> BaseRecord:
    """The record in an object."""
    try:
        outer: dict[str, Any] = orjson.loads(data)
        body: Mapping[str, Any] = outer["base"]
        if body["format"] > FORMAT:
            raise BaseDamagedError(
                f"{location} has format {body['format']}, this version reads formats up to "
                f"{FORMAT}",
                remedy="Use this archive with a newer Headrace.",
            )
        # Keys keep their order, so the bytes are the same again.
        if checksum(orjson.dumps(body)) != outer["checksum"]:
            raise BaseDamagedError(f"{location} is not the record that was written")
        known = {name: body[name] for name in BaseRecord.__slots__ if name in body}
        return BaseRecord(
            **{
                **known,
                "table": decode_table(body["table"]),
                "parts": tuple(BasePart(**part) for part in body["parts"]),
            }
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BaseDamagedError(f"{location} is malformed: {error}") from error
