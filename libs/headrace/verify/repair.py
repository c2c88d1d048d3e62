"""Writes the rows that differ into a mirror in PostgreSQL: those and no others, in one transaction.

`headrace.verify.row_repair` does that for the other databases.

Promises: the mirror is where the comparison saw it, and nothing that it has applied since is
overwritten, because its writer's lock is held and its position compared. A row is changed only if
it is still the one that was compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import psycopg

from headrace.errors import HeadraceError
from headrace.mirror.mirror_state import LANE, SEEN, TABLE
from headrace.mirror.postgres import TAKE_OVER_S, WRITER, error_of
from headrace.mirror.postgres_statements import SCHEMA, table_name
from headrace.mirror.table import Table
from headrace.postgres.quoting import quote_name
from headrace.verify.comparison import Comparison
from headrace.verify.digest import Row, key_of
from headrace.verify.sql_rows import settle

_TYPES = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
"""


class MovedError(HeadraceError):
    """The mirror has changed since the comparison, so nothing was repaired."""

    retry = True
    remedy = "Run the command again."


async def repair(url: str, marks: Mapping[str, str], table: Table, found: Comparison) -> int:
    """Write the differences into the mirror, which must be where these marks say; returns the
    number of rows.
    """
    try:
        async with _locked(url, marks, table) as connection:
            types = dict(await (await connection.execute(_TYPES, [table_name(table)])).fetchall())
            writer = _Writer(connection, table, types)
            count = await writer.write(found)
            await connection.commit()
    except psycopg.Error as error:
        raise error_of(error) from error
    return count


@contextlib.asynccontextmanager
async def _locked(
    url: str, marks: Mapping[str, str], table: Table
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A transaction during which the mirror writes nothing; rolled back unless committed."""
    connection = await psycopg.AsyncConnection.connect(url, application_name="headrace verify")
    try:
        await connection.execute(f"SET LOCAL lock_timeout = '{TAKE_OVER_S}s'")
        await connection.execute(f"SELECT FROM {SCHEMA}.marks WHERE key = %s FOR UPDATE", [WRITER])
        await settle(connection)
        cursor = await connection.execute(f"SELECT key, value FROM {SCHEMA}.marks")
        now: dict[str, str] = dict(await cursor.fetchall())
        if place_of_mirror(now, table) != place_of_mirror(marks, table):
            raise MovedError(
                f"the mirror's {table.schema}.{table.name} has continued in the meantime"
            )
        yield connection
    finally:
        await connection.close()


def place_of_mirror(marks: Mapping[str, str], table: Table) -> dict[str, str]:
    """The marks that the mirror changes when it applies something; it may have seen more."""
    wanted = TABLE + table.token
    return {
        key: value
        for key, value in marks.items()
        if key == wanted or (key.startswith(LANE) and key != LANE + SEEN)
    }


class _Writer:
    def __init__(
        self, connection: psycopg.AsyncConnection[Any], table: Table, types: Mapping[str, str]
    ) -> None:
        self._connection = connection
        self._table = table
        self._names = [column.name for column in table.source_columns]
        self._quoted = [quote_name(name).replace("%", "%%") for name in self._names]
        self._marks = ["%s::" + types[name].replace("%", "%%") for name in self._names]
        self._key = [self._names.index(name) for name in table.key]
        self._relation = table_name(table).replace("%", "%%")
        # Marked rows were not compared.
        self._marked = quote_name(table.rules.soft_delete).replace("%", "%%") + " IS "
        self._has_marks = bool(table.rules.soft_delete)

    async def write(self, found: Comparison) -> int:
        """Change rows with the same key, delete and insert the others."""
        # A key belongs to one row on each side, unless somebody added rows to the mirror.
        wanted = dict(enumerate(found.missing))
        by_key = {key_of(row, self._key): place for place, row in wanted.items() if self._key}
        changed = []
        extra = []
        for row in found.extra:
            place = by_key.pop(key_of(row, self._key), None)
            if place is None:
                extra.append(row)
            else:
                changed.append((row, wanted.pop(place)))
        for row in extra:
            await self._one(f"DELETE FROM {self._relation}", [], row)
        sets = ", ".join(
            f"{name} = {mark}" for name, mark in zip(self._quoted, self._marks, strict=True)
        )
        for before, after in changed:
            await self._one(f"UPDATE {self._relation} SET {sets}", after, before)
        listed = ", ".join(self._quoted)
        insert = f"INSERT INTO {self._relation} ({listed}) VALUES ({', '.join(self._marks)})"
        for row in wanted.values():
            await self._remove_marked(row)
            await self._connection.execute(insert.encode(), row)
        return len(extra) + len(changed) + len(wanted)

    async def _remove_marked(self, row: Row) -> None:
        """A row that comes back takes the place of the marked one."""
        if not self._has_marks or not self._key:
            return
        tests = [f"{self._quoted[place]} = {self._marks[place]}" for place in self._key]
        found = " AND ".join([*tests, f"{self._marked}NOT NULL"])
        sql = f"DELETE FROM {self._relation} WHERE {found}"
        await self._connection.execute(sql.encode(), [row[place] for place in self._key])

    async def _one(self, head: str, values: Sequence[Any], row: Row) -> None:
        """The statement for one row that has these texts."""
        tests = [
            f"{self._quoted[place]} = {self._marks[place]}"
            for place in self._key
            if row[place] is not None
        ]
        given = [row[place] for place in self._key if row[place] is not None]
        # A record's text is written by its types' output functions, as the comparison read it.
        names, marks = ", ".join(self._quoted), ", ".join(self._marks)
        tests.append(f"ROW({names})::text = ROW({marks})::text")
        if self._has_marks:
            tests.append(f"{self._marked}NULL")
        found = f"SELECT ctid FROM {self._relation} WHERE {' AND '.join(tests)} LIMIT 1"
        cursor = await self._connection.execute(
            f"{head} WHERE ctid = ({found})".encode(), [*values, *given, *row]
        )
        if cursor.rowcount != 1:
            raise MovedError(
                f"a row of {self._table.schema}.{self._table.name} is not as it was compared"
            )
