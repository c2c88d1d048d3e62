"""Stores the schema book: one key per table in the state bucket, written by compare-and-set.

A shape is stored before its event is published, with earlier ones: after a crash the book matches
the stream, whichever of the last shapes were stored. If it were stored later, a replay would have
to decide again what was reported, from a catalog that has changed since.

An event that a row or a message of the log causes is published by every publisher that passes that
position. One that a catalog reading causes is not: a publisher that lost its lease while suspended
may store its shape behind a successor that has passed the position, and its event is rejected.
Such a shape is pending until its event was acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import msgpack
import zstandard
from nats.js.kv import KeyValue

from headrace.jetstream.state import Cell
from headrace.lsn import Position
from headrace.publisher.schema_book import Entry, SchemaBook

# More shapes of one table than this, none of them stored when the publisher dies, end in a
# `resync`.
HISTORY_MAX = 8


class BookShelf:
    def __init__(self, bucket: KeyValue, source: str) -> None:
        self._bucket = bucket
        self._prefix = f"shape.{source}."
        self._cells: dict[str, Cell] = {}
        self._histories: dict[str, list[Entry]] = {}

    async def load(
        self, position: Position, ids_after: Collection[str], lanes: Mapping[str, Position]
    ) -> SchemaBook:
        """The book for a stream that is complete up to `position`, with these ids after it, and
        single tables up to there.
        """
        acknowledged = []
        watcher = await self._bucket.watch(f"{self._prefix}>", ignore_deletes=True)
        try:
            async for kept in watcher:
                if kept is None:
                    break
                token = kept.key.removeprefix(self._prefix)
                self._cells[token] = Cell(self._bucket, kept.key, {}, kept.revision)
                history = _decode(kept.value)
                if any(entry.pending and entry.msg_id in ids_after for entry in history):
                    acknowledged.append(token)
                self._histories[token] = in_stream(history, position, ids_after)
        finally:
            await watcher.stop()  # type: ignore[no-untyped-call]  # nats-py leaves it untyped
        for token in acknowledged:
            # Before anything is published: later, nobody finds the event in the stream's tail.
            await self._write(token)
        # Of each table the last shape that the stream contains, which may be none.
        entries = [history[-1] for history in self._histories.values() if history]
        return SchemaBook(entries, position, lanes)

    async def keep(self, token: str, entry: Entry) -> None:
        history = self._histories.setdefault(token, [])
        # The same version is described again with more facts, such as its storage.
        if history and history[-1].version == entry.version:
            history.pop()
        history.append(entry)
        del history[:-HISTORY_MAX]
        await self._write(token)

    async def _write(self, token: str) -> None:
        cell = self._cells.setdefault(token, Cell(self._bucket, f"{self._prefix}{token}"))
        await cell.write(
            {
                "entries": zstandard.compress(
                    msgpack.packb([one.encode() for one in self._histories[token]])
                )
            }
        )


def _decode(value: bytes) -> list[Entry]:
    packed = zstandard.decompress(msgpack.unpackb(value)["entries"])
    return [Entry.decode(entry) for entry in msgpack.unpackb(packed)]


def in_stream(history: list[Entry], position: Position, ids_after: Collection[str]) -> list[Entry]:
    """The entries whose events are in the stream; if it lost them all, the oldest known one, not
    reported.
    """
    stored = [
        replace(entry, pending=False)
        for entry in history
        if entry.msg_id in ids_after or (entry.since <= position and not entry.pending)
    ]
    if stored or not history or history[0].version == 1:
        return stored
    return [replace(history[0], told=False)]
