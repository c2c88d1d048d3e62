"""The trail's knowledge of each table: its key, its columns of bytea, and since when the trail has
every change of the table's rows. Pure.

Promises: `since` is never too early. From that place on all rows of this name are of one relation
with one key and the same columns, and no row changed without an event, as long as the relation's
files are `files`. Before it the table may have been swapped by a rename, rewritten, or outside the
publication, so earlier rows are not taken for a row's old values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.consumer.event import Event
from headrace.lsn import Position
from headrace.postgres.facts import RelationFiles

_BINARY = frozenset({"bytea", "bytea[]"})

Names = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Noted:
    """The known facts of a table: its key (the primary key, or the replica identity), its bytea
    columns, and since when the trail has every change of its rows.
    """

    key: tuple[str, ...] = ()
    # None where only the key is known: an earlier version noted the table.
    binary: tuple[str, ...] | None = ()
    # None: an earlier version noted the table.
    relation_id: int | None = None
    # None: nothing is certain until the catalog has been read.
    since: Position | None = None
    # As the catalog had them at `since` or before; None: not read yet.
    files: str | None = None
    # The transaction at `since`, until the files are read; 0: not known. Not stored.
    xid: int = 0


UNKNOWN = Noted()
_NOT_NOTED = Noted(binary=None)


@dataclass(slots=True)
class TableBook:
    """The tables as of the position up to which the trail is read."""

    tables: dict[Names, Noted] = field(default_factory=dict)

    def learn(self, position: Position, payload: Mapping[str, Any]) -> Names:
        """Take it from a schema event."""
        names = (str(payload["schema"]), str(payload["table"]))
        key = tuple(payload.get("primary_key") or ())
        if not key and payload.get("replica_identity") == "i":
            key = tuple(payload.get("identity") or ())
        columns = payload.get("columns") or ()
        binary = tuple(
            str(one["name"])
            for one in columns
            if (one.get("base_type") or one["data_type"]) in _BINARY
        )
        noted = replace(self.tables.get(names, UNKNOWN), key=key, binary=binary)
        self.tables[names] = _after_schema(noted, self.tables.get(names), position, payload)
        return names

    def hear(self, event: Event) -> bool:
        """Take a table's key and relation from one of its changes, which knows them best; whether
        it is news.
        """
        names = (event.schema, event.table)
        noted = self.tables.get(names, UNKNOWN)
        key = event.payload.get("key")
        key = noted.key if key is None else tuple(key)
        relation_id = event.payload["relation_id"]
        truncated = event.operation == "TRUNCATE"
        # By far the most changes say nothing new.
        if noted.key == key and noted.relation_id == relation_id and not truncated:
            return False
        since: Position | None = event.position
        if noted.relation_id == relation_id:
            since = _later(noted.since, event.position)
        # A TRUNCATE gives the table new files.
        xid = int(event.payload["tx"]["xid"])
        self.tables[names] = Noted(key, noted.binary, relation_id, since, xid=xid)
        return True

    def skip(self, event: Event) -> bool:
        """A change that is not audited: the trail lacks it; whether that is news."""
        names = (event.schema, event.table)
        noted = self.tables.get(names)
        if noted is None or noted.since is None:
            return False
        # A later revert must not take earlier rows for what this change left.
        self.tables[names] = replace(noted, since=None, files=None)
        return True

    def missing(self, events: Iterable[Event]) -> set[Names]:
        """Tables of these events of which nothing is known where their first change comes."""
        found: set[Names] = set()
        told: set[Names] = set()
        for one in events:
            names = (one.schema, one.table)
            if one.operation == "SCHEMA":
                told.add(names)
            elif (
                one.table
                and self.tables.get(names, _NOT_NOTED).binary is None
                and names not in told
            ):
                found.add(names)
        return found

    def complete(self, found: Mapping[Names, Noted]) -> None:
        """Take what was missing from the catalog; a key that was noted is that of the changes, and
        not today's.
        """
        for names, noted in found.items():
            known = self.tables.get(names)
            if known is None:
                self.tables[names] = noted
            else:
                self.tables[names] = replace(known, binary=noted.binary)

    def without_files(self) -> dict[int, Names]:
        """Relations whose files have to be read before anything of them is certain."""
        return {
            noted.relation_id: names
            for names, noted in self.tables.items()
            if noted.relation_id is not None and noted.files is None
        }

    def take_files(self, names: Names, files: RelationFiles | None) -> None:
        """Take what the catalog says of a relation; None where it is gone."""
        noted = self.tables[names]
        if files is None:
            # Not None, which would ask for the files again.
            self.tables[names] = replace(noted, since=None, files="")
            return
        since = noted.since
        if since is None or not files.first or files.joined_after(noted.xid):
            # A rewrite, or a time outside the publication, may have come before the reading. Later
            # commits write into these files, and another membership has its event.
            since = Position(files.lsn, 0)
        self.tables[names] = replace(noted, since=since, files=files.text, xid=0)


def _after_schema(
    noted: Noted, known: Noted | None, position: Position, payload: Mapping[str, Any]
) -> Noted:
    """Take from a schema event how far back the trail is certain."""
    changes = {change["change"] for change in payload.get("changes") or ()}
    relation_id = payload["relation_id"]
    if known is None or known.relation_id != relation_id:
        xid = int(payload["tx"]["xid"])
        return replace(noted, relation_id=relation_id, since=position, files=None, xid=xid)
    if payload["resync"] or "table_first_seen" in changes or not payload.get("columns"):
        # The publisher may have read the catalog ahead of this position: the rows may have changed
        # after it.
        return replace(noted, since=None, files=None)
    if not changes & {"column_added", "key_changed"}:
        return noted
    # Earlier rows lack the column; those of another key may be other rows.
    return replace(noted, since=_later(known.since, position))


def _later(since: Position | None, position: Position) -> Position | None:
    return None if since is None else max(since, position)
