"""A mirror in another PostgreSQL: the source's types if every server has them, text for others.

Tables have the same names and schemas as at the source; the mirror's own state is in the schema
`headrace_mirror`. Values are sent as text, which PostgreSQL parses as the column's type.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from headrace.contract.scalars import SESSION_SETTINGS
from headrace.mirror import target
from headrace.mirror.folding import FoldedChanges, Folding, is_of_rows
from headrace.mirror.postgres_additions import Additions, additions
from headrace.mirror.postgres_groups import TableTexts, WriteOrder, write_orders
from headrace.mirror.postgres_statements import (
    MARKED,
    SCHEMA,
    check_names,
    placeholder,
    row_test,
    safe,
    safe_table,
    table_name,
    texts,
)
from headrace.mirror.postgres_values import type_in
from headrace.mirror.postgres_wait_for import ensure_wait_for
from headrace.mirror.table import Column, Table
from headrace.postgres.quoting import escape_literal, quote_name, quote_table
from headrace.process.failpoint import failpoint

# The mark that identifies the writer: each transaction locks it.
WRITER = "writer"
# How long to wait for another writer's transaction, which may be committing, before reporting it.
TAKE_OVER_S = 10
# Sent without waiting for each answer. The answers wait in memory at both ends, so the number is
# limited.
PIPELINED_MAX = 500
_CONNECT_TIMEOUT_S = 10
# Fewer steps are faster one by one: what folding needs to know takes a query.
FOLDED_MIN = 16
# Temporary errors: connections, resources, an operator's actions, and a deadlock with a reader.
_AWAY = frozenset({"08", "57", "53", "40"})
# A lock held longer than the role's lock_timeout, or a table in use.
_BUSY = frozenset({"55P03", "55006"})
INDEX_KINDS = ("key", "identity")
_Statement = tuple[Table, str, Sequence[str | None]]


class PostgresTarget:
    """`url` is libpq's; its variables apply for parts that are missing."""

    def __init__(self, url: str, password: str = "") -> None:
        self.url = url
        if password:
            self.url = make_conninfo(url, password=password)
        self._connection: psycopg.AsyncConnection[Any] | None = None
        # A mark in the target names its writer, and each transaction checks it. A second mirror of
        # the same target takes over when it opens, and this one is refused at its next transaction.
        self._writer = uuid.uuid4().hex
        self._has_opened = False
        # Of the tables that the open transaction replaces.
        self._replaced: list[Additions] = []
        self._texts: dict[str, TableTexts] = {}

    async def load(self) -> dict[str, str]:
        # Closing the old connection rolls back its uncommitted changes.
        await self.close()
        self._replaced.clear()
        async with explained():
            connection = await connected(self.url, "headrace mirror")
            self._connection = connection
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {SCHEMA}.marks (key text PRIMARY KEY, value text)"
            )
            await connection.commit()
            await self._take_over(connection)
            await ensure_wait_for(connection, SCHEMA)
            marks = await marks_in(connection)
            await connection.commit()
            self._has_opened = True
            return marks

    async def _take_over(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """From here on no other mirror writes; its last commit is complete, or never will be."""
        await connection.execute(f"SET LOCAL lock_timeout = '{TAKE_OVER_S}s'")
        # The first time it takes over from any writer; later only a mirror that is still the writer
        # may continue.
        if self._has_opened:
            await self._check_writer(connection)
        await connection.execute(
            f"INSERT INTO {SCHEMA}.marks VALUES (%s, %s) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [WRITER, self._writer],
        )

    async def _check_writer(self, connection: psycopg.AsyncConnection[Any]) -> None:
        query = f"SELECT value FROM {SCHEMA}.marks WHERE key = %s FOR UPDATE"
        found = await (await connection.execute(query, [WRITER])).fetchone()
        if found != (self._writer,):
            await connection.rollback()
            raise target.TakenOverError("the mirror's PostgreSQL")

    async def _begin(self) -> None:
        if self._open.info.transaction_status is TransactionStatus.IDLE:
            await self._check_writer(self._open)

    async def write(self, steps: Sequence[target.Step]) -> None:
        async with explained():
            await self._begin()
            writer = _Writer(self._open, self._replaced, self._texts_of)
            # A table that takes another one's place takes over its additions, too.
            if len(steps) >= FOLDED_MIN and target.SwapTables not in {*map(type, steps)}:
                await writer.do_folded(steps)
            else:
                for step in steps:
                    await writer.do(step)
            await writer.flush()

    def _texts_of(self, table: Table) -> TableTexts:
        found = self._texts.get(table_name(table))
        if found is None or found.table != table:
            found = self._texts[table_name(table)] = TableTexts(table)
        return found

    async def commit(self, marks: Mapping[str, str | None]) -> None:
        async with explained():
            await self._begin()
            replaced = self._replaced[:]
            self._replaced.clear()
            for additions_of_one in replaced:
                await additions_of_one.check()
            async with self._open.cursor() as cursor:
                removed = [(key,) for key, value in marks.items() if value is None]
                kept = [(key, value) for key, value in marks.items() if value is not None]
                await cursor.executemany(f"DELETE FROM {SCHEMA}.marks WHERE key = %s", removed)
                await cursor.executemany(
                    f"INSERT INTO {SCHEMA}.marks VALUES (%s, %s) "
                    "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                    kept,
                )
            await _commit(self._open)

    async def close(self) -> None:
        if self._connection is not None:
            connection = self._connection
            self._connection = None
            with contextlib.suppress(psycopg.Error):
                await connection.close()

    @contextlib.asynccontextmanager
    async def reading(self, table: Table | None = None) -> AsyncIterator[PostgresReading]:
        async with explained():
            connection = await connected(self.url, "headrace verify")
        try:
            # Watermarks and rows must be of one moment, because a verification compares them with
            # the source at that LSN.
            await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await connection.set_read_only(True)
            async with explained():
                if table is not None:
                    await _lock(connection, table)
                marks = await _kept_marks(connection)
            yield PostgresReading(connection, marks)
        finally:
            await connection.close()

    @property
    def _open(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            # Another task lost it, and could not connect again.
            raise target.TargetAwayError("the mirror's PostgreSQL: the connection was lost")
        return self._connection


async def connected(url: str, application: str) -> psycopg.AsyncConnection[Any]:
    options = " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())
    return await psycopg.AsyncConnection.connect(
        url, application_name=application, options=options, connect_timeout=_CONNECT_TIMEOUT_S
    )


async def _lock(connection: psycopg.AsyncConnection[Any], table: Table) -> None:
    """Before the snapshot is taken: a later TRUNCATE or DROP would be visible in it."""
    try:
        await connection.execute(f"LOCK TABLE {table_name(table)} IN ACCESS SHARE MODE".encode())
    except psycopg.errors.UndefinedTable:
        # It was just dropped; the marks will show it.
        await connection.rollback()


async def marks_in(connection: psycopg.AsyncConnection[Any]) -> dict[str, str]:
    query = f"SELECT key, value FROM {SCHEMA}.marks WHERE key <> %s"
    return dict(await (await connection.execute(query, [WRITER])).fetchall())


async def _kept_marks(connection: psycopg.AsyncConnection[Any]) -> dict[str, str]:
    """The marks of a mirror, which must exist."""
    cursor = await connection.execute("SELECT to_regclass(%s) IS NULL", [f"{SCHEMA}.marks"])
    if await cursor.fetchone() == (True,):
        raise target.TargetError(
            "the database contains no mirror",
            remedy="Check --to; `headrace mirror` creates a mirror there.",
        )
    return await marks_in(connection)


@contextlib.asynccontextmanager
async def explained() -> AsyncIterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise error_of(error) from error


def error_of(error: psycopg.Error) -> target.TargetError:
    """The mirror's error for a server error."""
    message = error.diag.message_primary or str(error).splitlines()[0]
    state = error.sqlstate or "08"
    if state[:2] in _AWAY or state in _BUSY:
        return target.TargetAwayError(f"the mirror's PostgreSQL: {message}")
    return target.TargetError(
        f"the mirror's PostgreSQL: {message}",
        remedy="Check the role's permissions there, and which other programs use its tables.",
    )


async def _commit(connection: psycopg.AsyncConnection[Any]) -> None:
    """Commit what is written; only here PostgreSQL checks deferred constraints."""
    try:
        await connection.commit()
    except psycopg.Error as error:
        known = error_of(error)
        if known.retry:
            raise known from error
        schema, table = error.diag.schema_name, error.diag.table_name
        message = error.diag.message_primary or str(error)
        raise target.CommitRefusedError(
            f"the mirror's PostgreSQL: {message}", (schema, table) if schema and table else None
        ) from error


class _Writer:
    """The steps in SQL; many changes of single rows are sent together."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        replaced: list[Additions],
        texts_of: Callable[[Table], TableTexts],
    ) -> None:
        self._connection = connection
        self._replaced = replaced
        self._texts_of = texts_of
        self._waiting: list[_Statement] = []

    async def do_folded(self, steps: Sequence[target.Step]) -> None:
        """Many steps by their net changes, where nobody can tell the difference."""
        # By id: they are few, and each is hashed by all of its columns.
        tables = {id(step.table): step.table for step in steps if is_of_rows(step)}
        names = {number: table_name(table) for number, table in tables.items()}
        by_name = {names[number]: table for number, table in tables.items()}
        orders = await write_orders(self._connection, by_name)
        found = {number: orders[name] for number, name in names.items()}
        net = WriteOrder.WATCHED not in orders.values()
        folding = Folding(lambda table: self._texts_of(table).key_of)
        for step in steps:
            if not is_of_rows(step):
                await self._apply(folding)
                await self.do(step)
            elif net and found[id(step.table)] is WriteOrder.NET:
                folding.add(step)
            else:
                await self.do(step)
        await self._apply(folding)

    async def _apply(self, folding: Folding) -> None:
        for parts in folding.take():
            nets = [part for part in parts if isinstance(part, FoldedChanges)]
            # Statements first: COPY waits for all answers before it.
            for net in nets:
                for sql, values in self._texts_of(net.table).grouped(net, safe_table(net.table)):
                    self._waiting.append((net.table, sql, values))
            for part in parts:
                if not isinstance(part, FoldedChanges):
                    await self.do(part)
            failpoint("mirror.in_group")
            for net in nets:
                if rows := [*net.inserted.values(), *net.appended]:
                    await self.do(target.InsertRows(net.table, rows))

    async def do(self, step: target.Step) -> None:
        match step:
            case target.UpdateRow(table, where, data):
                if data:
                    sets = ", ".join(f"{safe(name)} = {placeholder(table, name)}" for name in data)
                    await self._one(
                        table,
                        f"UPDATE {safe_table(table)} SET {sets}",
                        texts(table, data),
                        where,
                    )
            case target.DeleteRow(table, where):
                await self._one(table, f"DELETE FROM {safe_table(table)}", [], where)
            case target.InsertRows(table, rows):
                # COPY can't be part of a pipeline; the changes before it must be applied first.
                await self.flush()
                await self._insert(table, rows)
            case target.TruncateTable(table, None):
                # PostgreSQL's TRUNCATE shows in readers' older snapshots, and locks them out.
                await self._run(f"DELETE FROM {table_name(table)}")
            case target.CreateTable(table, replaces):
                await self._create(table, replaces=replaces)
            case target.DropTable(table):
                await self._run(f"DROP TABLE IF EXISTS {table_name(table)}")
            case target.AlterTable():
                await self._alter(step)
            case target.SwapTables(table, replaces):
                await self._swap(table, replaces=replaces)
            case _:
                await self.flush()
                for sql, given in MARKED.statements(step):
                    await self._connection.execute(sql.encode(), given)

    async def flush(self) -> None:
        waiting = self._waiting
        self._waiting = []
        if not waiting:
            return
        async with self._connection.pipeline():
            done = [await self._connection.execute(sql, values) for _, sql, values in waiting]
        for (table, _, _), cursor in zip(waiting, done, strict=True):
            # The mirror's table differs from the source's: continuing would hide that.
            if cursor.rowcount != 1:
                raise target.RowMissingError(table, target.NOT_ONE)

    async def _run(self, sql: str) -> None:
        await self.flush()
        await self._connection.execute(sql.encode())

    async def _one(
        self, table: Table, head: str, values: list[str | None], where: Mapping[str, Any]
    ) -> None:
        """The statement for one row with these values."""
        found, given = row_test(table, where)
        self._waiting.append((table, f"{head} WHERE {found}", [*values, *given]))
        if len(self._waiting) >= PIPELINED_MAX:
            await self.flush()

    async def _insert(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        names = ", ".join(quote_name(column.name) for column in table.columns)
        sql = f"COPY {table_name(table)} ({names}) FROM STDIN".encode()
        async with self._connection.cursor() as cursor:
            async with cursor.copy(sql) as copy:
                for lines in self._texts_of(table).lines(rows):
                    await copy.write(lines)
            if cursor.rowcount != len(rows):
                raise target.RowMissingError(table, target.NOT_INSERTED)

    async def _create(self, table: Table, *, replaces: bool) -> None:
        check_names(table)
        if not replaces:
            await self._check_free(table)
        await self.do(target.DropTable(table))
        await self._run(f"CREATE SCHEMA IF NOT EXISTS {quote_name(table.place[0])}")
        body = ", ".join(
            f"{quote_name(column.name)} {type_in(column.data_type)}" for column in table.columns
        )
        await self._run(f"CREATE TABLE {table_name(table)} ({body})")
        # PostgreSQL would refuse to change its rows once somebody publishes it: it has no key.
        await self._run(f"ALTER TABLE {table_name(table)} REPLICA IDENTITY FULL")
        await self._index(table)

    async def _check_free(self, table: Table) -> None:
        await self.flush()
        name = quote_table(*table.place)
        cursor = await self._connection.execute("SELECT to_regclass(%s) IS NULL", [name])
        if await cursor.fetchone() != (True,):
            raise target.ForeignTableError(table)

    async def _index(self, table: Table) -> None:
        for number, key in enumerate(table.finders):
            names = ", ".join(map(quote_name, key))
            await self._run(
                f"CREATE INDEX {_index_name(table, number)} ON {table_name(table)} ({names})"
            )

    async def _drop_indexes(self, table: Table) -> None:
        schema = SCHEMA if table.staging else quote_name(table.place[0])
        for number in range(len(table.finders)):
            await self._run(f"DROP INDEX IF EXISTS {schema}.{_index_name(table, number)}")

    async def _swap(self, staged: Table, *, replaces: bool) -> None:
        live = replace(staged, staging=False)
        if not replaces:
            await self._check_free(live)
        await self.flush()
        name, draft = table_name(live), table_name(staged)
        own = [_index_name(live, number) for number in range(len(INDEX_KINDS))]
        kept = await additions(self._connection, name, draft, own)
        await kept.prepare()
        await self.do(target.DropTable(live))
        schema = quote_name(live.place[0])
        await self._run(f"ALTER TABLE {draft} SET SCHEMA {schema}")
        moved = f"{schema}.{draft.removeprefix(f'{SCHEMA}.')}"
        await self._run(f"ALTER TABLE {moved} RENAME TO {quote_name(live.place[1])}")
        # An index is named after its table.
        for number in range(len(live.finders)):
            before, after = _index_name(staged, number), _index_name(live, number)
            await self._run(f"ALTER INDEX {schema}.{before} RENAME TO {after}")
        await kept.complete()
        self._replaced.append(kept)

    async def _alter(self, step: target.AlterTable) -> None:
        before = step.before
        after = step.after
        renamed = step.renamed
        name = table_name(after)
        # Their columns may be renamed, dropped or get another type.
        await self._drop_indexes(before)
        for new, old in renamed.items():
            await self._run(
                f"ALTER TABLE {name} RENAME COLUMN {quote_name(old)} TO {quote_name(new)}"
            )
        old_names = {old: new for new, old in renamed.items()}
        there = {old_names.get(column.name, column.name): column for column in before.columns}
        for lost in sorted(there.keys() - {column.name for column in after.columns}):
            await self._run(f"ALTER TABLE {name} DROP COLUMN {quote_name(lost)}")
        for column in after.columns:
            kind = type_in(column.data_type)
            known = there.get(column.name)
            if known is None:
                await self._add(name, quote_name(column.name), kind, step.filled.get(column.name))
            elif type_in(known.data_type) != kind:
                body = (
                    f"{quote_name(column.name)} TYPE {kind} USING "
                    f"{quote_name(column.name)}::text::{kind}"
                )
                await self._run(f"ALTER TABLE {name} ALTER COLUMN {body}")
        await self._index(after)

    async def _add(self, table: str, column: str, kind: str, filled: target.Filled | None) -> None:
        """As a default, existing rows get the value without being rewritten."""
        value = "NULL" if filled is None else escape_literal(filled.text)
        await self._run(f"ALTER TABLE {table} ADD COLUMN {column} {kind} DEFAULT {value}")
        await self._run(f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT")


def _index_name(table: Table, number: int) -> str:
    place = f"{table.schema}\0{table.name}\0{table.staging}"
    return f"headrace_{INDEX_KINDS[number]}_{hashlib.sha256(place.encode()).hexdigest()[:24]}"


@dataclass(eq=False)
class PostgresReading:
    """One moment of the database: a read-only transaction."""

    connection: psycopg.AsyncConnection[Any]
    marks: Mapping[str, str]

    @staticmethod
    def relation(table: Table) -> str:
        """The SQL name of a mirrored table."""
        return table_name(table)

    async def rows(
        self, table: Table, columns: Sequence[Column]
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        """As the server's own text."""
        names = ", ".join(quote_name(column.name) for column in columns)
        query = f"COPY (SELECT {names} FROM {table_name(table)}) TO STDOUT"
        async with (
            explained(),
            self.connection.cursor() as cursor,
            cursor.copy(query.encode()) as copy,
        ):
            async for row in copy.rows():
                yield [tuple(row)]
