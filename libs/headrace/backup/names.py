"""Names of relations, by their numbers, as the catalog had them at an LSN.

A commit record names a dropped relation only by its number. Each object adds what changed since
the one before. Promises nothing about a relation that lived less than a moment: no look at the
catalog saw it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from headrace.backup import layout
from headrace.backup.errors import TakenError
from headrace.backup.sealed import seal
from headrace.backup.store import BackupStore


@dataclass(frozen=True, slots=True)
class RelationName:
    """A table, a partitioned table or a materialized view."""

    # As the catalog has them, without quotes.
    schema: str
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Naming:
    """From an LSN on, a relation had this name."""

    lsn: int
    # Their numbers, which commit records use.
    database: int
    oid: int
    relation: RelationName


class NamesBook:
    """The names in a store."""

    def __init__(self, store: BackupStore) -> None:
        self._store = store
        # Empty at the start, so the first look stores all names again.
        self._known: dict[int, RelationName] = {}

    def note(self, lsn: int, database: int, found: Mapping[int, RelationName]) -> None:
        """Store the names that are new since the last call; all of them at the first one."""
        new = {oid: one for oid, one in found.items() if self._known.get(oid) != one}
        # Nothing is stored if nothing has changed, which is the usual case.
        if new:
            body = {
                "database": database,
                "names": [[oid, one.schema, one.name, one.kind] for oid, one in new.items()],
            }
            try:
                self._store.put_new(layout.NAMES, f"{lsn:016X}.zst", seal(orjson.dumps(body)))
            except TakenError:
                # Another look at the same LSN; the next one has a later one.
                return
        self._known = dict(found)

    def read(self) -> list[Naming]:
        """Every name that was stored, the oldest first."""
        found = []
        for name in self._store.names(layout.NAMES):
            body = orjson.loads(self._store.get_sealed(layout.NAMES, name))
            lsn = int(name.removesuffix(".zst"), 16)
            found += [
                Naming(lsn, body["database"], oid, RelationName(schema, relation, kind))
                for oid, schema, relation, kind in body["names"]
            ]
        return found
