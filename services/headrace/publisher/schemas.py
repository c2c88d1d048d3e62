"""The book of shapes: which shape of each table the stream has told about, so that a change is told once. Pure.

An entry holds from a position on. Replays of what lies before it change nothing; what the stream lost is told again
(`rewind`). Entries that changed are written to the state bucket only after their schema event is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.contract import schemas
from headrace.contract.naming import table_token
from headrace.contract.schemas import Change, TableShape
from headrace.errors import DecodeError
from headrace.lsn import Position

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A table's shape from `since` on; `told` is False while the stream may lack its schema event."""

    shape: TableShape
    version: int
    since: Position
    told: bool = True

    def encode(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "shape": self.shape.encode(),
            "version": self.version,
            "since": list(self.since),
        }

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> Entry:
        if value.get("format") != FORMAT:
            raise DecodeError(f"a table shape of format {value.get('format')}, this version reads {FORMAT}")
        return cls(TableShape.decode(value["shape"]), int(value["version"]), Position(*value["since"]))


@dataclass(frozen=True, slots=True)
class Told:
    """A change of a table that must be told before the row at hand."""

    token: str
    version: int
    changes: list[Change]
    resync: bool


class SchemaBook:
    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = {table_token(e.shape.schema, e.shape.name): e for e in entries}
        self._by_relation = {e.shape.relation_id: token for token, e in self._entries.items()}

    def rewind(self, position: Position) -> None:
        """The stream reaches no further than `position`: what was told later may be missing from it."""
        for token, entry in self._entries.items():
            if entry.since > position:
                self._entries[token] = replace(entry, told=False)

    def entry(self, token: str) -> Entry | None:
        return self._entries.get(token)

    def entries(self) -> dict[str, Entry]:
        return dict(self._entries)

    def check(self, shape: TableShape, position: Position) -> Told | None:
        """What must be told before the row at `position`, which has this shape; None when it is known."""
        token = table_token(shape.schema, shape.name)
        known = self._entries.get(token)
        if known is None:
            return self._first(token, shape, position)
        if position < known.since:
            return None
        if known.told and known.shape.same_in_stream(shape):
            return None
        return self._next(token, known, shape, position)

    def _first(self, token: str, shape: TableShape, position: Position) -> Told:
        earlier = self._entries.get(self._by_relation.get(shape.relation_id, ""))
        if earlier is not None and earlier.since <= position:
            changes, resync = schemas.differences(earlier.shape, shape)
        else:
            changes, resync = [{"change": "table_first_seen"}], False
        self._enter(token, Entry(shape, 1, position))
        return Told(token, 1, changes, resync)

    def _next(self, token: str, known: Entry, shape: TableShape, position: Position) -> Told:
        changes, resync = schemas.differences(known.shape, shape)
        version = known.version + 1 if known.told else known.version
        if not known.told:
            # What exactly was lost with the stream's tail is not known any more: a mirror must not rely on it.
            resync = resync or not known.shape.same_in_stream(shape)
        self._enter(token, Entry(shape, version, position))
        return Told(token, version, changes, resync)

    def _enter(self, token: str, entry: Entry) -> None:
        self._entries[token] = entry
        self._by_relation[entry.shape.relation_id] = token
