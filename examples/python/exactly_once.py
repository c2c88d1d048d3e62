"""Maintains a copy of a table in SQLite exactly once: no change is lost or duplicated, even if the
process is killed.

    python exactly_once.py nats://127.0.0.1:4222 users copy.db        Ctrl-C stops it

The trick takes one line: it stores the position of the last change in the same transaction as the
data. Kill it at any moment, start it again, compare the tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys

import nats

from headrace.consumer import Event, Subscription, Watermark, follow
from headrace.lsn import Position


class Copy:
    """The copy and its position. With its two methods, it is also the consumer's store of
    watermarks.
    """

    def __init__(self, path: str, key: str = "id") -> None:
        self._key = key
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.executescript("""
            CREATE TABLE IF NOT EXISTS copy (key TEXT PRIMARY KEY, data TEXT NOT NULL);
            CREATE TABLE IF NOT EXISTS marks (lane TEXT PRIMARY KEY, lsn INT, seq INT, stream_seq INT);
        """)

    async def load(self) -> dict[str, Watermark]:
        rows = self._db.execute("SELECT lane, lsn, seq, stream_seq FROM marks")
        return {
            lane: Watermark(Position(lsn, seq), stream_seq) for lane, lsn, seq, stream_seq in rows
        }

    async def save(self, lane: str, watermark: Watermark) -> None:
        """Called by `done`, after `apply`: both are one transaction of SQLite."""
        self._db.execute(
            "REPLACE INTO marks VALUES (?, ?, ?, ?)",
            (lane, *watermark.position, watermark.stream_seq),
        )
        self._db.execute("COMMIT")

    def apply(self, event: Event) -> None:
        if not event.advances:
            # A change of the table's shape. This copy keeps rows as JSON and needs nothing of it.
            return
        self._db.execute("BEGIN")
        old_key = (event.old or {}).get(self._key)
        if event.operation == "TRUNCATE":
            self._db.execute("DELETE FROM copy")
        elif event.operation == "DELETE":
            self._delete(event.data[self._key])
        else:
            kept = self._row(event.data[self._key] if old_key is None else old_key)
            if old_key not in (None, event.data[self._key]):
                self._delete(old_key)
            # A large value that did not change is not sent: it is the one that is here.
            row = {**{name: kept[name] for name in event.unchanged if name in kept}, **event.data}
            self._db.execute("REPLACE INTO copy VALUES (?, ?)", (_text(row[self._key]), _text(row)))

    def _row(self, key: object) -> dict[str, object]:
        found = self._db.execute("SELECT data FROM copy WHERE key = ?", (_text(key),)).fetchone()
        return dict(json.loads(found[0])) if found else {}

    def _delete(self, key: object) -> None:
        self._db.execute("DELETE FROM copy WHERE key = ?", (_text(key),))


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=bytes.hex)


async def main(url: str, table: str, path: str) -> None:
    copy = Copy(path)
    client = await nats.connect(url)
    try:
        async with follow(client, Subscription(filters=(f"cdc.{table}.>",)), copy) as consumer:
            async for event in consumer:
                copy.apply(event)
                await consumer.done(event)
    finally:
        await client.close()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:4]))
