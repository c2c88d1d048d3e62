"""A trail written as the audit-writer writes it, from events as the contract has them: without a
suite.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from headrace.audit.destination import Destination, connect
from headrace.audit.rows import RowMaker
from headrace.audit.settings import load_audit
from headrace.audit.stitching import Stitcher
from headrace.audit.table_book import TableBook
from headrace.cli.audit import read
from headrace.consumer import Event
from headrace.contract.selection import Selection
from headrace.lsn import Position
from headrace.postgres import catalog
from headrace.settings import PostgresSettings
from headrace.testing.database import Database
from headrace.testing.line import Line
from headrace.testing.names import Names


class Trail:
    """The trail of a table `t`, in the source's own database."""

    def __init__(self, database: Database, destination: Destination) -> None:
        self.database = database
        self.destination = destination
        self._lsn = 100
        self._book = TableBook()
        self.redact = Selection()

    async def change(
        self, operation: str, context: str = "{}", table: str = "t", /, **payload: Any
    ) -> str:
        """A transaction of one change; its id."""
        event = await self._event(operation, table, payload)
        maker = RowMaker(self.database.name, "s", self._book, redact=self.redact)
        self._book.hear(event)
        await self._read_files()
        stitcher = Stitcher(1000, 1 << 20)
        stitcher.add(event, maker.line(event, b"2026-01-01"))
        made = stitcher.cut()
        assert made is not None
        made.contexts = [context.encode()]
        await self.destination.write(made, self._book.tables)
        return str(
            await self.database.fetchval("SELECT id FROM changes ORDER BY position DESC LIMIT 1")
        )

    async def skip(self, operation: str, table: str = "t", /, **payload: Any) -> None:
        """A change of a table that is not audited."""
        self._book.skip(await self._event(operation, table, payload))
        await self._read_files()

    def forget(self) -> None:
        """As a writer begins that an earlier version's trail tells nothing of its tables."""
        self._book.tables.clear()

    def tx(self, xid: int) -> dict[str, Any]:
        """A transaction of one change."""
        return {
            "xid": xid,
            "lsn": self._lsn,
            "ts": "2026-01-01T00:00:00Z",
            "seq": 0,
            "last": True,
        }

    async def _event(self, operation: str, table: str, payload: Mapping[str, Any]) -> Event:
        self._lsn += 100
        relation_id = await self.database.fetchval(
            "SELECT coalesce(to_regclass($1)::oid::int8, 1)", table
        )
        body = {
            "operation": operation,
            "tx": self.tx(self._lsn),
            "relation_id": relation_id,
            "key": ["id"],
            **payload,
        }
        return Event(
            "s",
            "public",
            table,
            operation,
            Position(self._lsn, 0),
            body,
            "cdc.t",
            self._lsn,
            "s",
            closes=True,
        )

    async def schema(self, *changes: str, resync: bool = False) -> None:
        """A schema event of `t`."""
        self._lsn += 100
        columns = await self.database.fetch(
            "SELECT attname AS name, format_type(atttypid, atttypmod) AS data_type FROM pg_attribute"
            " WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped"
        )
        payload = {
            "schema": "public",
            "table": "t",
            "relation_id": await self.database.fetchval("SELECT 't'::regclass::oid::int8"),
            "primary_key": ["id"],
            "replica_identity": "d",
            "columns": [dict(column) for column in columns],
            "changes": [{"change": change} for change in changes],
            "resync": resync,
            "tx": {"xid": self._lsn},
        }
        self._book.learn(Position(self._lsn, 0), payload)
        await self._read_files()

    async def _read_files(self) -> None:
        """As the audit-writer does, a little behind this trail's place instead of at the server's."""
        connection = await self.database.connect()
        wanted = self._book.without_files()
        found = await catalog.files(connection, wanted)
        for relation_id, names in wanted.items():
            files = found.get(relation_id)
            self._book.take_files(names, files and replace(files, lsn=self._lsn + 50))

    async def text(self) -> list[str]:
        """The table's rows as PostgreSQL writes them."""
        return [
            row["text"]
            for row in await self.database.fetch("SELECT t::text AS text FROM t ORDER BY id")
        ]


async def undo(
    change: str | None = None,
    context: str | None = None,
    *,
    leave: Sequence[str] = (),
    apply: bool = True,
) -> None:
    """The command, in this process."""
    await read.revert(change, None, context, None, leave=leave, apply=apply)


@contextlib.asynccontextmanager
async def opened_trail(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trail]:
    """One whose database is what the command's variables name."""
    named = {
        "HOST": "127.0.0.1",
        "PORT": str(database.port),
        "NAME": database.name,
        "USER": database.user,
    }
    for name, value in named.items():
        monkeypatch.setenv(f"DB_{name}", value)
    source = PostgresSettings(
        host="127.0.0.1", port=database.port, database=database.name, user=database.user
    )
    connection = await connect(load_audit({}), source, "test")
    destination = Destination(connection, load_audit({}), "s")
    await destination.prepare()
    try:
        yield Trail(database, destination)
    finally:
        connection.terminate()


async def written(line: Line, count: int) -> list[str]:
    """The ids of so many changes, once they are in the trail."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Exception):
                found = await line.database.fetch(
                    "SELECT id::text FROM changes ORDER BY position, ordinal"
                )
                if len(found) >= count:
                    return [row["id"] for row in found]
            await asyncio.sleep(0.1)


def bemi_variables(database: Database, names: Names) -> dict[str, str]:
    """Settings by the names that Bemi's worker gives them."""
    return {
        "DB_HOST": "127.0.0.1",
        "DB_PORT": str(database.port),
        "DB_NAME": database.name,
        "DB_USER": database.user,
        "SLOT_NAME": names.slot,
        "PUBLICATION_NAME": names.publication,
        "CLEANUP_ON_SHUTDOWN": "true",
    }
