"""The book of shapes: which shape of each table the stream has told about, so that a change is told once. Pure.

An entry holds from a position on. Replays of what lies before it change nothing. Entries are written to the state
bucket before their schema event is published (`book_shelf`); what the stream turns out to lack is told again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.contract import schemas
from headrace.contract.naming import table_token
from headrace.contract.schemas import Change, TableShape
from headrace.errors import DecodeError
from headrace.lsn import ORIGIN, Position
from headrace.postgres.ddl_trigger import Ddl, DdlTable
from headrace.postgres.facts import Snapshot

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A table's shape from `since` on; `told` is False while the stream may lack its schema event."""

    shape: TableShape
    version: int
    since: Position
    told: bool = True
    # The schema event's id, by which it is recognised in the stream's tail.
    msg_id: str = ""
    # What the catalog said of the table's storage last: a rewrite leaves no other trace. Empty: not looked at yet.
    storage: str = ""
    # The transaction it came with, as long as this process lives: a catalog reading that missed it says nothing.
    xid: int = 0

    def encode(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "shape": self.shape.encode(),
            "version": self.version,
            "since": list(self.since),
            "msg_id": self.msg_id,
            "storage": self.storage,
        }

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> Entry:
        if value.get("format") != FORMAT:
            raise DecodeError(f"a table shape of format {value.get('format')}, this version reads {FORMAT}")
        return cls(
            TableShape.decode(value["shape"]),
            int(value["version"]),
            Position(*value["since"]),
            msg_id=str(value["msg_id"]),
            storage=str(value["storage"]),
        )


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A published table as the catalog has it."""

    shape: TableShape
    storage: str


@dataclass(frozen=True, slots=True)
class CatalogReading:
    """All published tables at one moment, which the stream has passed once it is beyond `lsn`."""

    lsn: int
    tables: tuple[CatalogTable, ...]
    # Relations of the book that still exist, published or not.
    existing: frozenset[int]
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Told:
    """A change of a table that must be told before the row at hand, or when the stream has passed a place."""

    token: str
    shape: TableShape
    msg_id: str
    version: int
    changes: list[Change]
    resync: bool


class SchemaBook:
    def __init__(self, entries: Iterable[Entry] = (), reached: Position = ORIGIN) -> None:
        self._entries = {table_token(e.shape.schema, e.shape.name): e for e in entries}
        self._reached = reached
        # Entries that took the catalog's word without anything to tell.
        self.adopted: set[str] = set()
        self._by_relation = {e.shape.relation_id: token for token, e in self._entries.items()}

    def entry(self, token: str) -> Entry | None:
        return self._entries.get(token)

    def key_of(self, relation_id: int) -> tuple[str, ...] | None:
        """The relation's primary key as it was told last; None of one that the stream has no rows of."""
        entry = self._entries.get(self._by_relation.get(relation_id, ""))
        return entry.shape.primary_key if entry is not None and entry.shape.columns else None

    def entries(self) -> dict[str, Entry]:
        return dict(self._entries)

    def replays(self, shape: TableShape, position: Position) -> bool:
        """Whether the stream has this row, and so what had to be told before it: by now the catalog may say more."""
        return position <= self._reached and table_token(shape.schema, shape.name) in self._entries

    def check(self, shape: TableShape, position: Position, lsn: int, xid: int) -> Told | None:
        """What must be told before the row at `position`, which has this shape; None when it is known."""
        token = table_token(shape.schema, shape.name)
        known = self._entries.get(token)
        if known is None:
            return self._first(token, Entry(shape, 1, position, msg_id=_msg_id(lsn, token), xid=xid))
        if position < known.since:
            return None
        if not shape.seen and shape.relation_id == known.shape.relation_id:
            shape = shape.with_catalog_of(known.shape)
        if known.told and known.shape.same_in_stream(shape):
            return None
        changes, resync = schemas.differences(known.shape, shape)
        entry = Entry(shape, known.version, position, msg_id=_msg_id(lsn, token), storage=known.storage, xid=xid)
        return self._next(token, known, entry, changes, resync=resync)

    def _first(self, token: str, entry: Entry) -> Told:
        earlier = self._entries.get(self._by_relation.get(entry.shape.relation_id, ""))
        if earlier is not None and not earlier.shape.columns and earlier.since <= entry.since:
            # The event trigger told in its place that the table went on under another name.
            before = f"{earlier.shape.schema}.{earlier.shape.name}"
            changes, resync = [{"change": "table_renamed", "from": before}], True
        elif earlier is not None and earlier.since <= entry.since:
            changes, resync = schemas.differences(earlier.shape, entry.shape)
        else:
            changes, resync = [{"change": "table_first_seen"}], False
        return self._enter(token, entry, changes, resync=resync)

    def _next(self, token: str, known: Entry, entry: Entry, changes: list[Change], *, resync: bool) -> Told:
        # What exactly was lost with the stream's tail is not known any more: a mirror must not rely on it.
        resync = resync or not known.told
        entry = replace(
            entry,
            version=known.version + 1 if known.told else known.version,
            # A change that rewrites the table must not be told a second time as a rewrite.
            storage="" if resync and entry.storage == known.storage else entry.storage,
        )
        return self._enter(token, entry, changes, resync=resync)

    def _enter(self, token: str, entry: Entry, changes: list[Change], *, resync: bool) -> Told:
        self._entries[token] = entry
        self._by_relation[entry.shape.relation_id] = token
        return Told(token, entry.shape, entry.msg_id, entry.version, changes, resync)

    def hear(self, ddl: Ddl, position: Position, lsn: int, xid: int) -> list[Told]:
        """What the event trigger wrote at this place: drops, renames and rewrites, in order."""
        if position <= self._reached:
            return []
        told = [self._heard(ddl.event, table, position, lsn, xid) for table in ddl.tables]
        return [item for item in told if item is not None]

    def _heard(self, event: str, table: DdlTable, position: Position, lsn: int, xid: int) -> Told | None:
        token = self._by_relation.get(table.relation_id, "")
        known = self._entries.get(token)
        if known is None or known.shape.relation_id != table.relation_id or not known.shape.columns:
            return None
        entry = replace(known, since=position, msg_id=_msg_id(lsn, token), xid=xid)
        if event == "table_rewrite":
            return self._next(token, known, entry, [{"change": "table_rewritten"}], resync=True)
        if event == "sql_drop":
            change: Change = {"change": "table_dropped"}
        elif (table.schema, table.name) != (known.shape.schema, known.shape.name):
            change = {"change": "table_renamed", "to": f"{table.schema}.{table.name}"}
        else:
            return None
        gone = replace(entry, shape=replace(known.shape, columns=(), primary_key=(), membership=-1), storage="")
        return self._next(token, known, gone, [change], resync=False)

    def compare(self, reading: CatalogReading) -> list[Told]:
        """What the catalog shows and no row has told; called when the stream has passed the reading."""
        position = Position(reading.lsn, 0)
        told = [self._compare(table, position, reading) for table in reading.tables]
        return [item for item in (*told, *self._gone(reading, position)) if item is not None]

    def _compare(self, table: CatalogTable, position: Position, reading: CatalogReading) -> Told | None:
        token = table_token(table.shape.schema, table.shape.name)
        known = self._entries.get(token)
        entry = Entry(table.shape, 1, position, msg_id=_msg_id(reading.lsn, token), storage=table.storage)
        if known is None:
            return self._first(token, entry)
        # The stream may have this table under a newer name by now.
        newest = self._entries[self._by_relation.get(table.shape.relation_id, token)]
        if not (reading.snapshot.sees(known.xid) and reading.snapshot.sees(newest.xid)):
            return None
        entry = replace(entry, shape=schemas.with_keys_of(table.shape, known.shape))
        changes, resync = schemas.differences(known.shape, entry.shape)
        rewritten = _rewritten(known.storage, table.storage)
        if rewritten:
            changes.append({"change": "table_rewritten"})
        moved = _partitions_moved(known.storage, table.storage)
        if moved:
            changes.append({"change": "partitions_changed"})
        if changes or not known.told:
            return self._next(token, known, entry, changes, resync=resync or rewritten or moved)
        if known.storage != table.storage:
            self._entries[token] = replace(known, storage=table.storage)
            self.adopted.add(token)
        return None

    def _gone(self, reading: CatalogReading, position: Position) -> list[Told]:
        """Tables that the publication no longer has."""
        there = {table_token(table.shape.schema, table.shape.name) for table in reading.tables}
        renamed = {table.shape.relation_id: table.shape for table in reading.tables}
        gone = []
        for token, known in list(self._entries.items()):
            told_gone = known.told and not known.shape.columns
            if token in there or told_gone or not reading.snapshot.sees(known.xid):
                continue
            relation = known.shape.relation_id
            change: Change = {"change": "table_removed" if relation in reading.existing else "table_dropped"}
            if relation in renamed:
                change = {"change": "table_renamed", "to": f"{renamed[relation].schema}.{renamed[relation].name}"}
            empty = replace(known.shape, columns=(), primary_key=(), membership=-1)
            entry = Entry(empty, known.version, position, msg_id=_msg_id(reading.lsn, token))
            gone.append(self._next(token, known, entry, [change], resync=False))
        return gone


def _msg_id(lsn: int, token: str) -> str:
    return f"{lsn:x}-{token}-schema"


def _rewritten(before: str, now: str) -> bool:
    """Both the table's file and a column's definition are new: TRUNCATE and VACUUM FULL change only the file."""
    if not before or not now:
        return False
    file_before, columns_before, _ = before.split("/")
    file_now, columns_now, _ = now.split("/")
    return file_before != file_now and columns_before != columns_now


def _partitions_moved(before: str, now: str) -> bool:
    """Rows came or went with a partition: one is gone, or one is there that was a table before."""
    if not before or not now:
        return False
    were, are = (set(filter(None, storage.split("/")[2].split(","))) for storage in (before, now))
    known = {partition.removesuffix("a") for partition in were}
    gone = known - {partition.removesuffix("a") for partition in are}
    return bool(gone) or any(partition.endswith("a") and partition.removesuffix("a") not in known for partition in are)
