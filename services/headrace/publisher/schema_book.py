"""The book of shapes: which shape of each table the stream contains, so that a change is reported
once. Pure.

An entry applies from a position on. Replays of earlier changes modify nothing. Entries are written
to the state bucket before their schema event is published (`schema_book_store`); events that the
stream turns out to lack are published again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from headrace.contract import schemas
from headrace.contract.schemas import Change, TableShape
from headrace.contract.subjects_and_ids import table_token
from headrace.errors import DecodeError
from headrace.lsn import ORIGIN, Position
from headrace.postgres.ddl_trigger import Ddl, DdlTable
from headrace.postgres.facts import UNKNOWN_SERVER, CatalogSnapshot, RelationNow, ServerIdentity
from headrace.postgres.type_definitions import redefined
from headrace.publisher import storage as files

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A table's shape from `since` on; `told`: whether the stream has its schema event."""

    shape: TableShape
    version: int
    since: Position
    told: bool = True
    # The schema event's id, by which it is recognized in the stream's tail.
    msg_id: str = ""
    # The catalog's last word on the table's storage: a rewrite leaves no other trace. Empty: not
    # read yet.
    storage: str = ""
    # The transaction it came with, until a catalog reading has seen it: one that missed it says
    # nothing.
    xid: int = 0
    # The LSN that the catalog was not beyond when `storage` was read, likewise: an earlier reading
    # says nothing new.
    read_lsn: int = 0
    # Stored before its event, which a catalog reading caused: no row shows whether that was stored
    # too.
    pending: bool = False

    def encode(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "shape": self.shape.encode(),
            "version": self.version,
            "since": list(self.since),
            "msg_id": self.msg_id,
            "storage": self.storage,
            "pending": self.pending,
        }

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> Entry:
        if value.get("format") != FORMAT:
            raise DecodeError(
                f"a table shape of format {value.get('format')}, this version reads {FORMAT}"
            )
        return cls(
            TableShape.decode(value["shape"]),
            int(value["version"]),
            Position(*value["since"]),
            msg_id=str(value["msg_id"]),
            storage=str(value["storage"]),
            # Earlier versions had none.
            pending=bool(value.get("pending", False)),
        )


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A published table in the catalog."""

    shape: TableShape
    storage: str


@dataclass(frozen=True, slots=True)
class CatalogReading:
    """All published tables at one moment, which the stream has passed once it is beyond `lsn`."""

    lsn: int
    tables: tuple[CatalogTable, ...]
    # Relations of the book that still exist, published or not.
    existing: frozenset[int]
    snapshot: CatalogSnapshot
    # The LSN where it was read, independent of the stream's position.
    read_lsn: int = 0
    # Whose catalog was read.
    server: ServerIdentity = UNKNOWN_SERVER


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """A change of a table to report before the current row, or when the stream has passed a
    position.
    """

    token: str
    shape: TableShape
    msg_id: str
    version: int
    changes: list[Change]
    resync: bool


class FilesReading(NamedTuple):
    """A catalog reading's facts about a table's files, the LSN that it is not beyond, and the
    transaction id that would have come next.
    """

    storage: str
    read_lsn: int
    next_xid: int


NO_READING = FilesReading("", 0, 0)


class TriggerMessage(NamedTuple):
    """The position of a message with the event trigger's prefix."""

    position: Position
    lsn: int
    xid: int


class SchemaBook:
    def __init__(
        self,
        entries: Iterable[Entry] = (),
        reached: Position = ORIGIN,
        lanes: Mapping[str, Position] = MappingProxyType({}),
    ) -> None:
        self._entries = {table_token(e.shape.schema, e.shape.name): e for e in entries}
        self._reached = reached
        # How far single tables go beyond, by token.
        self._lanes = lanes
        # Entries that took facts from the catalog without anything to report.
        self.adopted: set[str] = set()
        # Of several names of one table, the newest.
        self._by_relation = {
            e.shape.relation_id: token
            for token, e in sorted(self._entries.items(), key=lambda item: item[1].since)
        }
        # Transactions whose TRUNCATE of a relation has its event: it explains a new file.
        self._truncated: dict[int, set[int]] = {}

    def entry(self, token: str) -> Entry | None:
        return self._entries.get(token)

    def key_of(self, relation_id: int) -> tuple[str, ...] | None:
        """The relation's primary key as last reported; None if the stream has no rows of it."""
        entry = self._entries.get(self._by_relation.get(relation_id, ""))
        if entry is not None and entry.shape.columns:
            return entry.shape.primary_key
        return None

    def entries(self) -> dict[str, Entry]:
        return dict(self._entries)

    def reach(self, position: Position) -> None:
        """An epoch begins with a replay up to this position: the stream contains it, or will."""
        self._reached = max(self._reached, position)

    def replays(self, shape: TableShape, position: Position) -> bool:
        """Whether the stream contains this row, and so everything reported before it: by now the
        catalog may say more, and an event at this position would be skipped.
        """
        token = table_token(shape.schema, shape.name)
        return token in self._entries and self._contains(token, position)

    def _contains(self, token: str, position: Position) -> bool:
        return position <= max(self._reached, self._lanes.get(token, ORIGIN))

    def truncated(self, relation_id: int, xid: int) -> None:
        """The stream reports a TRUNCATE."""
        if relation_id in self._by_relation:
            self._truncated.setdefault(relation_id, set()).add(xid)

    def check(
        self,
        shape: TableShape,
        position: Position,
        lsn: int,
        xid: int,
        catalog: FilesReading = NO_READING,
    ) -> SchemaReport | None:
        """The change to report before the row at `position`, which has this shape; None if it is
        known.

        `catalog` contains the reading's facts about the table's files.
        """
        token = table_token(shape.schema, shape.name)
        known = self._entries.get(token)
        if known is None:
            # Nobody has to copy a table that is reported for the first time: only facts of this
            # position are known.
            storage = files.as_of(catalog.storage, xid, catalog.next_xid)
            entry = Entry(
                shape, 1, position, True, _msg_id(lsn, token), storage, xid, catalog.read_lsn
            )
            return self._first(token, entry)
        if position < known.since:
            return None
        if not shape.seen and shape.relation_id == known.shape.relation_id:
            shape = shape.with_catalog_of(known.shape)
        same = self._other_name(token, known) is None and known.shape.same_in_stream(shape)
        if known.told and same:
            return None
        changes, resync = self._differences(token, known, shape)
        msg_id = _msg_id(lsn, token)
        entry = Entry(
            shape, known.version, position, True, msg_id, catalog.storage, xid, catalog.read_lsn
        )
        return self._next(token, known, entry, changes, resync=resync)

    def _differences(
        self, token: str, known: Entry, shape: TableShape
    ) -> tuple[list[Change], bool]:
        changes, resync = schemas.differences(known.shape, shape)
        other = self._other_name(token, known)
        if other is None:
            return changes, resync
        # Rows that were written under the other name have no events under this one.
        return [schemas.renamed("from", other.schema, other.name), *changes], True

    def _other_name(self, token: str, known: Entry) -> TableShape | None:
        """The name under which the stream has rows of the same table since it had this one."""
        relation_id = known.shape.relation_id
        other = self._entries[self._by_relation.get(relation_id, token)]
        there = other.shape.relation_id == relation_id and other.shape.columns
        if there and other.since > known.since:
            return other.shape
        return None

    def _first(self, token: str, entry: Entry) -> SchemaReport:
        earlier = self._entries.get(self._by_relation.get(entry.shape.relation_id, ""))
        if earlier is not None and not earlier.shape.columns and earlier.since <= entry.since:
            # The event trigger reported at its position that the table was renamed.
            changes = [schemas.renamed("from", earlier.shape.schema, earlier.shape.name)]
            resync = True
        elif earlier is not None and earlier.since <= entry.since:
            changes, resync = schemas.differences(earlier.shape, entry.shape)
        else:
            changes = [{"change": "table_first_seen"}]
            resync = False
        return self._enter(token, entry, changes, resync=resync)

    def _next(
        self, token: str, known: Entry, entry: Entry, changes: list[Change], *, resync: bool
    ) -> SchemaReport:
        # It is no longer known what exactly was lost with the stream's tail: a mirror must not rely
        # on it.
        resync = resync or not known.told
        entry = replace(
            entry,
            shape=_with_facts_of(known.shape, entry.shape),
            version=known.version + 1 if known.told else known.version,
            # Consumers that copy the table now get everything that the catalog showed: it is not
            # reported a second time. Others have yet to learn what happened to its files.
            storage=entry.storage if resync or entry.xid == 0 else known.storage,
        )
        if known.told and known.msg_id.startswith(entry.msg_id):
            # The catalog showed another change at the same LSN.
            entry = replace(entry, msg_id=f"{entry.msg_id}-{entry.version}")
        return self._enter(token, entry, changes, resync=resync)

    def _enter(
        self, token: str, entry: Entry, changes: list[Change], *, resync: bool
    ) -> SchemaReport:
        self._entries[token] = entry
        self._by_relation[entry.shape.relation_id] = token
        return SchemaReport(token, entry.shape, entry.msg_id, entry.version, changes, resync)

    def concerns(self, ddl: Ddl, position: Position) -> set[int]:
        """The relations of this book about which a message with the event trigger's prefix says
        something new.
        """
        if position <= self._reached:
            return set()
        return {
            table.relation_id
            for table in ddl.tables
            if self._heard_of(table.relation_id) is not None
        }

    def hear(
        self, ddl: Ddl, position: Position, lsn: int, xid: int, now: Mapping[int, RelationNow]
    ) -> list[SchemaReport]:
        """Changes that the event trigger reported at this position: drops, renames and rewrites, in
        order.

        Anybody may write such a message. It is believed if the catalog, read after that
        transaction, agrees (`now`: the relations that exist).
        """
        if position <= self._reached:
            return []
        told = [
            self._heard(ddl.event, table, TriggerMessage(position, lsn, xid), now)
            for table in ddl.tables
        ]
        return [item for item in told if item is not None]

    def _heard_of(self, relation_id: int) -> Entry | None:
        known = self._entries.get(self._by_relation.get(relation_id, ""))
        there = known is not None and known.shape.relation_id == relation_id and known.shape.columns
        if there:
            return known
        return None

    def _heard(
        self, event: str, table: DdlTable, at: TriggerMessage, relations: Mapping[int, RelationNow]
    ) -> SchemaReport | None:
        known = self._heard_of(table.relation_id)
        now = relations.get(table.relation_id)
        if known is None:
            return None
        token = self._by_relation[table.relation_id]
        if self._contains(token, at.position):
            return None
        entry = replace(known, since=at.position, msg_id=_msg_id(at.lsn, token), xid=at.xid)
        if event == "table_rewrite":
            if now is None or files.same_files(known.storage, now.storage):
                return None
            entry = replace(entry, storage=now.storage, read_lsn=now.lsn)
            return self._next(token, known, entry, [{"change": "table_rewritten"}], resync=True)
        if event == "sql_drop" and now is None:
            change: Change = {"change": "table_dropped"}
        elif event != "sql_drop" and _moved(known, table, now):
            change = schemas.renamed("to", table.schema, table.name)
        else:
            return None
        gone = replace(
            entry, shape=replace(known.shape, columns=(), primary_key=(), membership=-1), storage=""
        )
        return self._next(token, known, gone, [change], resync=False)

    def compare(self, reading: CatalogReading) -> list[SchemaReport]:
        """Changes that the catalog shows and no row has reported; called when the stream has passed
        the reading.
        """
        position = Position(reading.lsn, 0)
        self._settle(reading)
        told = [self._compare(table, position, reading) for table in reading.tables]
        return [item for item in (*told, *self._gone(reading, position)) if item is not None]

    def _settle(self, reading: CatalogReading) -> None:
        """All later readings see what one reading saw, even if their numbers no longer say anything
        about it.
        """
        for token, entry in self._entries.items():
            if entry.xid and reading.snapshot.sees(entry.xid):
                self._entries[token] = replace(entry, xid=0)

    def _compare(
        self, table: CatalogTable, position: Position, reading: CatalogReading
    ) -> SchemaReport | None:
        token = table_token(table.shape.schema, table.shape.name)
        known = self._entries.get(token)
        entry = Entry(
            table.shape, 1, position, msg_id=_msg_id(reading.lsn, token), storage=table.storage
        )
        if known is None:
            return self._first(token, entry)
        if reading.read_lsn < known.read_lsn:
            return None
        # The stream may have this table under a newer name by now.
        newest = self._entries[self._by_relation.get(table.shape.relation_id, token)]
        if known.xid or newest.xid:
            return None
        entry = replace(entry, shape=schemas.with_keys_of(table.shape, known.shape))
        changes, resync = self._differences(token, known, entry.shape)
        truncated = self._truncates(table.shape.relation_id, reading)
        rewritten = files.rewritten(known.storage, table.storage, truncated) or redefined(
            known.shape.definitions, table.shape.definitions
        )
        if rewritten:
            changes.append({"change": "table_rewritten"})
        moved = files.partitions_moved(known.storage, table.storage, truncated)
        if moved:
            changes.append({"change": "partitions_changed"})
        if changes or not known.told:
            return self._next(token, known, entry, changes, resync=resync or rewritten or moved)
        self._adopt(token, known, table)
        return None

    def _truncates(self, relation_id: int, reading: CatalogReading) -> set[int]:
        """Transactions that the reading may show; it is the last one that has to know them."""
        truncated = self._truncated.pop(relation_id, set())
        if later := {xid for xid in truncated if not reading.snapshot.sees(xid)}:
            self._truncated[relation_id] = later
        return truncated

    def _adopt(self, token: str, known: Entry, table: CatalogTable) -> None:
        """Store the catalog's facts if there is nothing to report."""
        shape = replace(
            known.shape,
            publication=table.shape.publication,
            last_number=table.shape.last_number or known.shape.last_number,
            definitions=table.shape.definitions,
        )
        facts = (shape.publication, shape.last_number, shape.definitions, table.storage)
        before = known.shape
        if facts != (before.publication, before.last_number, before.definitions, known.storage):
            self._entries[token] = replace(known, shape=shape, storage=table.storage)
            self.adopted.add(token)

    def _gone(self, reading: CatalogReading, position: Position) -> list[SchemaReport]:
        """Tables that the publication no longer contains."""
        there = {table_token(table.shape.schema, table.shape.name) for table in reading.tables}
        renamed = {table.shape.relation_id: table.shape for table in reading.tables}
        gone = []
        for token, known in list(self._entries.items()):
            told_gone = known.told and not known.shape.columns
            if token in there or told_gone or known.xid:
                continue
            relation = known.shape.relation_id
            change: Change = {
                "change": "table_removed" if relation in reading.existing else "table_dropped"
            }
            if relation in renamed:
                change = schemas.renamed("to", renamed[relation].schema, renamed[relation].name)
            empty = replace(known.shape, columns=(), primary_key=(), membership=-1)
            entry = Entry(empty, known.version, position, msg_id=_msg_id(reading.lsn, token))
            gone.append(self._next(token, known, entry, [change], resync=False))
        return gone


def _with_facts_of(known: TableShape, shape: TableShape) -> TableShape:
    """A shape with facts that a row doesn't tell: what the catalog showed last is still what rows
    were read by, and numbers of columns only rise.
    """
    same = known.relation_id == shape.relation_id
    last_number = shape.last_number or (known.last_number if same else 0)
    definitions = shape.definitions or known.definitions
    return replace(shape, last_number=last_number, definitions=definitions)


def _msg_id(lsn: int, token: str) -> str:
    return f"{lsn:x}-{token}-schema"


def _moved(known: Entry, table: DdlTable, now: RelationNow | None) -> bool:
    """Whether a table's name differs from the one in the stream, and is the claimed one."""
    claimed = (table.schema, table.name)
    return (
        claimed != (known.shape.schema, known.shape.name)
        and now is not None
        and claimed == (now.schema, now.name)
    )
