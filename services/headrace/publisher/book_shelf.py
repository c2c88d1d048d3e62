"""Where the schema book is kept: one key a table in the state bucket, written by compare-and-set."""

from __future__ import annotations

import msgpack
from nats.js.kv import KeyValue

from headrace.jetstream.state import Cell
from headrace.publisher.schemas import Entry, SchemaBook


class BookShelf:
    def __init__(self, bucket: KeyValue, source: str) -> None:
        self._bucket = bucket
        self._prefix = f"shape.{source}."
        self._cells: dict[str, Cell] = {}

    async def load(self) -> SchemaBook:
        """The book as it was kept last."""
        entries = []
        watcher = await self._bucket.watch(f"{self._prefix}>", ignore_deletes=True)
        try:
            async for kept in watcher:
                if kept is None:
                    break
                value = msgpack.unpackb(kept.value)
                token = kept.key.removeprefix(self._prefix)
                self._cells[token] = Cell(self._bucket, kept.key, value, kept.revision)
                entries.append(Entry.decode(value))
        finally:
            await watcher.stop()  # type: ignore[no-untyped-call]  # nats-py leaves it untyped
        return SchemaBook(entries)

    async def keep(self, token: str, entry: Entry) -> None:
        cell = self._cells.setdefault(token, Cell(self._bucket, f"{self._prefix}{token}"))
        await cell.write(entry.encode())
