"""`headrace load`: inserts, updates and deletes on a demo table, at a given rate.

Promises: creates the table if it is missing and touches no other; keeps the rate by the clock, so
that a slow moment is caught up; shows a bar on a terminal, one line elsewhere.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass

import asyncpg
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.cli.session import postgres
from headrace.postgres.quoting import quote_name
from headrace.settings import Settings
from headrace.terminal.text import plain

_DENIED_REMEDY = (
    "Run it as a role that may create and change tables here, or name a table of that "
    "role with --table."
)

TICK_S = 0.02
# After a stall the whole backlog would otherwise be one transaction.
_STATEMENTS_MAX = 2000
_UPDATE_SHARE = 0.25
_DELETE_SHARE = 0.1
# Updates and deletes choose among these rows; a long run must not fill the memory.
_KEPT_ROWS_MAX = 100_000

_PUBLISHED = (
    "SELECT 1 FROM pg_publication_tables WHERE pubname = $1 AND schemaname = 'public' "
    "AND tablename = $2"
)


@dataclass(slots=True)
class ChangesMade:
    """The numbers of changes so far."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0

    @property
    def total(self) -> int:
        return self.inserts + self.updates + self.deletes


class Load:
    """Random changes on one table; remembers the rows it inserted, up to a limit."""

    def __init__(self, session: asyncpg.Connection, table: str) -> None:
        self._session = session
        self._name = quote_name(table)
        self._rows: list[int] = []
        self._random = random.Random()  # noqa: S311  # which row changes is no secret
        self.made = ChangesMade()

    async def prepare(self) -> None:
        await self._session.execute(
            f"CREATE TABLE IF NOT EXISTS {self._name} (id bigint GENERATED ALWAYS AS IDENTITY "
            "PRIMARY KEY, "
            "name text NOT NULL, amount numeric(12,2), tags text[], details jsonb, "
            "updated_at timestamptz NOT NULL DEFAULT now())"
        )

    async def step(self, changes: int) -> None:
        """Make this many changes in one transaction."""
        async with self._session.transaction():
            for _ in range(changes):
                await self._change()
        if len(self._rows) > _KEPT_ROWS_MAX:
            del self._rows[: _KEPT_ROWS_MAX // 2]

    async def _change(self) -> None:
        dice = self._random.random()
        if self._rows and dice < _DELETE_SHARE:
            await self._session.execute(f"DELETE FROM {self._name} WHERE id = $1", self._take())
            self.made.deletes += 1
        elif self._rows and dice < _DELETE_SHARE + _UPDATE_SHARE:
            update = f"UPDATE {self._name} SET amount = $2, updated_at = now() WHERE id = $1"
            await self._session.execute(update, self._random.choice(self._rows), self._amount())
            self.made.updates += 1
        else:
            number = self.made.inserts + 1
            insert = (
                f"INSERT INTO {self._name} (name, amount, tags, details) "
                "VALUES ($1, $2, ARRAY['demo', 'load'], jsonb_build_object('number', $3::int)) "
                "RETURNING id"
            )
            self._rows.append(
                await self._session.fetchval(insert, f"row {number}", self._amount(), number)
            )
            self.made.inserts += 1

    def _take(self) -> int:
        index = self._random.randrange(len(self._rows))
        # Removing from the middle would move all ids behind it.
        self._rows[index], self._rows[-1] = self._rows[-1], self._rows[index]
        return self._rows.pop()

    def _amount(self) -> str:
        return f"{self._random.randrange(10_000_000) / 100:.2f}"


async def run(settings: Settings, *, rate: float, seconds: float, table: str) -> None:
    """Make changes for this long, then report their numbers."""
    async with postgres(settings, "load", _DENIED_REMEDY) as session:
        await session.set_type_codec(
            "numeric", schema="pg_catalog", encoder=str, decoder=str, format="text"
        )
        load = Load(session, table)
        await load.prepare()
        # Changes of an unpublished table never arrive, which would look like a fault of the suite.
        if not await session.fetchval(_PUBLISHED, settings.source.publication, table):
            hint = f"headrace init --pub {settings.source.publication} --tables {table}"
            typer.echo(
                f"{plain(table)} is not in publication {settings.source.publication}: {hint}",
                err=True,
            )
        began = time.monotonic()
        await _steadily(load, rate, seconds)
        took = max(time.monotonic() - began, 0.001)
    made = load.made
    typer.echo(
        f"{made.total} changes on {table} in {took:.1f} s ({made.total / took:.0f}/s): "
        f"{made.inserts} inserts, {made.updates} updates, {made.deletes} deletes"
    )


async def _steadily(load: Load, rate: float, seconds: float) -> None:
    goal = max(1, round(rate * seconds))
    columns = (
        TextColumn("changes"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}/s"),
    )
    began = time.monotonic()
    with Progress(
        *columns, TimeRemainingColumn(), disable=not sys.stdout.isatty(), transient=True
    ) as progress:
        task = progress.add_task("changes", total=goal, speed=0)
        while load.made.total < goal:
            elapsed = time.monotonic() - began
            # +1: the first change comes immediately, at low rates too.
            due = min(goal, int(rate * elapsed) + 1) - load.made.total
            if due > 0:
                await load.step(min(due, _STATEMENTS_MAX))
                speed = round(load.made.total / max(time.monotonic() - began, TICK_S))
                progress.update(task, completed=load.made.total, speed=speed)
            if time.monotonic() - began >= seconds:
                # If the server is too slow for the rate, the run still ends on time.
                return
            await asyncio.sleep(TICK_S)
