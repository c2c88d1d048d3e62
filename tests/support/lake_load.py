"""Load on a lake whose sum is the same at every moment, and a foreign reader that adds it up."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from concurrent.futures import BrokenExecutor
from typing import Any, Protocol

import duckdb
import psycopg

from headrace.testing.database import Database

TABLES = 10
ROWS = 20
BALANCE = 1000


async def create_accounts(database: Database) -> None:
    """Tables with money, in place of the others."""
    await database.execute("DROP TABLE orders, items, full_rows")
    for number in range(TABLES):
        await database.execute(
            f"CREATE TABLE account_{number} (id int PRIMARY KEY, money bigint); "
            f"INSERT INTO account_{number} SELECT g, {BALANCE} FROM generate_series(0, {ROWS - 1}) g"
        )


async def transfers(database: Database, seed: int) -> None:
    """Move money until cancelled: between tables, to new rows, and all of a row's money away."""
    rng = random.Random(seed)
    while True:
        source, target = rng.sample(range(TABLES), 2)
        amount, row, other = rng.randrange(50), rng.randrange(ROWS), rng.randrange(ROWS)
        add = f"ON CONFLICT (id) DO UPDATE SET money = account_{target}.money + excluded.money"
        exists = f"EXISTS (SELECT FROM account_{source} WHERE id = {row})"
        take = f"UPDATE account_{source} SET money = money - {amount} WHERE id = {row}"
        give = f"INSERT INTO account_{target} SELECT {other}, {amount} WHERE {exists} {add}"
        statements = [take, give]
        if rng.random() < 0.1:
            gone = f"DELETE FROM account_{source} WHERE id = {row} RETURNING money"
            new = f"SELECT {1000 + rng.randrange(100)}, money FROM gone"
            statements = [f"WITH gone AS ({gone}) INSERT INTO account_{target} {new} {add}"]
        if rng.random() < 0.05:
            statements.append(
                f"UPDATE account_{source} SET id = id + 2000 WHERE id = {row} AND NOT EXISTS "
                f"(SELECT FROM account_{source} WHERE id = {row + 2000})"
            )
        await database.execute("; ".join(statements))
        await asyncio.sleep(0.005)


class QueriedLake(Protocol):
    """A lake that answers queries of its tables' locations."""

    def locations(self) -> dict[str, str]: ...
    def query(self, query: str) -> list[Any]: ...


class SumReader:
    """Adds up the money in every cut that it sees.

    While `outage` is entered, the servers that it needs may be down, and a reading may fail.
    """

    def __init__(self, lake: QueriedLake) -> None:
        self._lake = lake
        self._outages = 0
        self._down = False
        self.cuts: set[str] = set()
        self.wrong: list[str] = []

    @contextlib.asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self._outages += 1
        self._down = True
        try:
            yield
        finally:
            self._down = False

    async def read(self) -> None:
        while True:
            outages = self._outages
            expected = self._down
            try:
                await asyncio.to_thread(self._read)
            except (duckdb.Error, psycopg.Error, BrokenExecutor) as error:
                # Only a reading that an outage touches may fail.
                if not expected and outages == self._outages:
                    self.wrong.append(str(error))
            await asyncio.sleep(0.05)

    def _read(self) -> None:
        locations = self._lake.locations()
        if len(locations) < TABLES or str(locations) in self.cuts:
            return
        scans = " UNION ALL ".join(
            f"SELECT money FROM iceberg_scan('{place.removeprefix('file://')}')"
            for place in locations.values()
        )
        total = self._lake.query(f"SELECT sum(money) FROM ({scans})")[0][0]
        self.cuts.add(str(locations))
        if total != TABLES * ROWS * BALANCE:
            self.wrong.append(f"{total}: {locations}")


@contextlib.asynccontextmanager
async def running(*work: object) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(each) for each in work]  # type: ignore[call-overload]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, asyncio.CancelledError), error
