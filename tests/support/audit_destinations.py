"""The audit trail's destination without a suite, and what is written to it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from headrace.audit.destination import Destination, connect
from headrace.audit.rows import RowMaker
from headrace.audit.settings import load_audit
from headrace.audit.stitching import Batch, Stitcher
from headrace.audit.table_book import Noted, TableBook
from headrace.consumer import Event
from headrace.lsn import Position
from headrace.settings import PostgresSettings
from headrace.testing.database import Database


class Destinations:
    """Opens destinations in one database, as audit-writers would."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._opened: list[Any] = []

    async def open(self, writes: str = "source", **settings: str) -> Destination:
        audit = load_audit(settings)
        database = self._database
        source = PostgresSettings(
            host="127.0.0.1", port=database.port, database=database.name, user=database.user
        )
        connection = await connect(audit, source, "test")
        self._opened.append(connection)
        destination = Destination(connection, audit, writes)
        await destination.prepare()
        return destination

    def close(self) -> None:
        for connection in self._opened:
            connection.terminate()


def batch(
    lsn: int, at: datetime, rows: int = 3, source: str = "source", parts: int = 1000
) -> Batch:
    """A transaction of some inserts; of a longer one than `parts`, the first part."""
    maker = RowMaker("db", source, TableBook({("public", "users"): Noted(("id",))}))
    stitcher = Stitcher(parts, 1 << 20)
    for seq in range(rows):
        tx = {
            "xid": 5,
            "lsn": lsn,
            "ts": at.isoformat(),
            "seq": seq,
            "last": seq == rows - 1 < parts,
        }
        payload = {"operation": "INSERT", "data": {"id": seq}, "tx": tx, "relation_id": 1}
        where = Position(lsn, seq)
        event = Event(
            source, "public", "users", "INSERT", where, payload, "s", lsn + seq, source, closes=True
        )
        stitcher.add(event, maker.line(event, b"2026-01-01"))
    made = stitcher.cut()
    assert made is not None
    return made
