"""Streams of changes written by hand, and a mirror's follower that reads them, with a target that
remembers commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nats.aio.client import Client

from headrace.consumer import Watermark
from headrace.contract.events import encode
from headrace.contract.values import Encoding
from headrace.metrics.counters import Counters
from headrace.mirror import (
    AlterTable,
    CreateTable,
    DeleteRow,
    DropTable,
    InsertRows,
    Step,
    Streams,
    SwapTables,
    Table,
    TruncateTable,
)
from headrace.mirror.follower import Follower
from headrace.mirror.mirror_state import SEEN, STALE, Book
from headrace.mirror.table import BootstrapRun, Column, Phase, TableState
from headrace.mirror.verify_hold import VerifyHold

PATIENCE_S = 60.0
Body = dict[str, Any]
Rows = list[dict[str, Any]]


class Shown:
    """A target; `tables` are what readers see, `shown` the ids that they saw by table after each
    commit.
    """

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}
        self.tables: dict[str, Rows] = {}
        self.shown: list[dict[str, list[Any]]] = []
        self._kept: dict[tuple[str, bool], Rows] = {}
        self._written: dict[tuple[str, bool], Rows] = {}
        self._news = asyncio.Condition()

    @property
    def rows(self) -> list[Any]:
        """The ids of all rows that readers see."""
        return _ids(self.tables)

    @property
    def commits(self) -> list[list[Any]]:
        """The ids of all rows after each commit that changed any."""
        return [[one for ids in seen.values() for one in ids] for seen in self.shown]

    async def load(self) -> dict[str, str]:
        self._written = copy.deepcopy(self._kept)
        return dict(self.marks)

    async def write(self, steps: Sequence[Step]) -> None:
        for step in steps:
            table = step.after if isinstance(step, AlterTable) else step.table
            key = (table.name, table.staging)
            match step:
                case CreateTable() | TruncateTable():
                    self._written[key] = []
                case DropTable():
                    self._written.pop(key, None)
                case SwapTables():
                    self._written[table.name, False] = self._written.pop(key)
                case InsertRows(_, rows):
                    self._written.setdefault(key, []).extend(dict(row) for row in rows)
                case DeleteRow(_, where):
                    self._written[key].remove(dict(where))

    async def commit(self, marks: Mapping[str, str | None]) -> None:
        self.marks = {
            key: value for key, value in {**self.marks, **marks}.items() if value is not None
        }
        self._kept = copy.deepcopy(self._written)
        self.tables = {name: rows for (name, staging), rows in self._kept.items() if not staging}
        seen = {
            name: _ids({name: rows}) for name, rows in self.tables.items() if name != STALE.name
        }
        if any(seen.values()) and (not self.shown or seen != self.shown[-1]):
            self.shown.append(seen)
        async with self._news:
            self._news.notify_all()

    async def shows(self, rows: set[Any]) -> None:
        """Until readers see these."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: rows <= set(self.rows))

    def shown_once(self, *rows: Any) -> None:
        """Readers see these rows, each once, and no other."""
        assert sorted(self.rows) == sorted(rows)


def _ids(tables: Mapping[str, Rows]) -> list[Any]:
    return [row["id"] for name, rows in tables.items() if name != STALE.name for row in rows]


def _tx(lsn: int, seq: int, *, last: bool, xid: int | None = None) -> Body:
    return {"xid": lsn if xid is None else xid, "lsn": lsn, "ts": None, "seq": seq, "last": last}


def row(name: str, lsn: int, seq: int, *, last: bool = False, source: str = "s") -> Body:
    """An INSERT whose id names it: table, LSN and ordinal."""
    names = {"table": name, "schema": "public", "source": source, "operation": "INSERT"}
    return {**names, "data": {"id": f"{name}{lsn}.{seq}"}, "tx": _tx(lsn, seq, last=last)}


def schema(name: str, lsn: int, *, resync: bool = False, seq: int = 0, **more: Any) -> Body:
    """A schema event; by default of a table that was rewritten."""
    names = {
        "table": name,
        "schema": "public",
        "source": "s",
        "operation": "SCHEMA",
        "version": lsn,
    }
    shape = {
        "columns": [{"name": "id", "data_type": "text"}],
        "primary_key": ["id"],
        "identity": ["id"],
    }
    told = {"replica_identity": "d", "changes": [{"change": "table_rewritten"}], "resync": resync}
    return {**names, **shape, **told, "tx": _tx(lsn, seq, last=False), **more}


def gap(up_to: int, source: str = "s", reason: str = "slot_moved") -> Body:
    places = {"after": "0/1", "up_to": f"0/{up_to:X}", "reason": reason}
    return {"operation": "GAP", "source": source, "tx": _tx(up_to, 0, last=False, xid=0), **places}


async def publish(client: Client, *bodies: Body) -> int:
    """A message for each event; the last one's sequence."""
    stored = 0
    for body in bodies:
        subject = (
            f"cdc.{body['table']}.{body['operation'].lower()}" if "table" in body else "cdc._gap"
        )
        stored = (await client.jetstream().publish(subject, encode(body, Encoding.MSGPACK))).seq
    return stored


async def publish_array(client: Client, *bodies: Body, complete: int = 0) -> None:
    headers = {
        "Headrace-Position": "s 0 0",
        **({"Headrace-Complete": str(complete)} if complete else {}),
    }
    subject = f"cdc.{bodies[0]['table']}.batch"
    await client.jetstream().publish(
        subject, encode(list(bodies), Encoding.MSGPACK), headers=headers
    )


def table(name: str, *, staging: bool = False) -> Table:
    return Table("public", name, (Column("id", "text"),), ("id",), ("id",), staging=staging)


async def book_of(target: Shown, tables: Mapping[str, str], *, fresh: bool = False) -> Book:
    """A mirror's account in which these tables (each with its source) are followed."""
    book = Book(target, fresh=fresh)
    await book.open()
    for name, source in tables.items():
        if name not in book.tables:
            await book.write([CreateTable(table(name))])
            book.put(TableState("public", name, Phase.FOLLOWING, live=table(name), source=source))
    if not book.lanes:
        book.keep_lanes({SEEN: Watermark()})
    await book.commit()
    return book


@dataclass
class Running:
    book: Book
    hold: VerifyHold


@contextlib.asynccontextmanager
async def following(
    client: Client,
    target: Shown,
    *tables: str,
    every: bool = False,
    fresh: bool = False,
    sources: Mapping[str, str] | None = None,
) -> AsyncIterator[Running]:
    """A mirror of these tables that runs, without its bootstraps."""
    book = await book_of(
        target, {name: (sources or {}).get(name, "s") for name in tables}, fresh=fresh
    )
    running = Running(book, VerifyHold())
    follower = Follower(book, client, Streams(), running.hold, Counters(), every_table=every)
    task = asyncio.create_task(follower.run(asyncio.Event()), name="follower")
    try:
        yield running
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def consumed(client: Client, stream_seq: int) -> None:
    """Until the mirror's consumer was given everything up to there."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            infos = await client.jetstream().consumers_info("CDC")
            if any(info.delivered and info.delivered.stream_seq >= stream_seq for info in infos):
                return
            await asyncio.sleep(0.02)


async def phase(book: Book, name: str, wanted: Phase) -> None:
    """Wait until a table is in this phase."""
    async with asyncio.timeout(PATIENCE_S):
        while name not in book.tables or book.tables[name].phase is not wanted:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.02)


async def copied(book: Book, name: str, lsn: int, *rows: str, source: str = "s") -> None:
    """A bootstrap up to where it leaves the table to the follower."""
    staged = table(name, staging=True)
    run = BootstrapRun(
        f"snap-{lsn}", lsn, 1, len(rows), staged, chunks=1, rows=len(rows), version=9, source=source
    )
    async with book.lock:
        await book.write(
            [CreateTable(staged), InsertRows(staged, [{"id": value} for value in rows])]
        )
        book.put(replace(book.tables[name], phase=Phase.LOADED, run=run))
        await book.commit()
