"""A table of PostgreSQL in a lake's copy, by COPY as the lake copies it; and what PostgreSQL itself
sends for its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow as pa
from psycopg.pq import Format

from headrace.archive.metadata import ColumnInfo
from headrace.contract.values import SESSION_SETTINGS
from headrace.lake.catalog import TableName
from headrace.lake.copy_rows import CopyRows
from headrace.lake.files import LakeFiles
from headrace.lake.sqlite_catalog import SqliteCatalog
from headrace.lake.tables import new_table
from headrace.lake.writer import LakeWriter, Source
from headrace.postgres import catalog
from headrace.sql.result_rows import ResultColumn, RowMessages
from headrace.sql.storage_types import exported, storage
from headrace.testing.database import Database
from tests.support.copied_lake import ReadableCopy
from tests.support.local_lake import written

_COLUMNS = """
SELECT attname, atttypid::int8, atttypmod, attnum FROM pg_attribute
WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


@dataclass(frozen=True)
class Described:
    """A column of a result."""

    name: str
    type_oid: int
    modifier: int


async def lake_of(database: Database, folder: Path, table: str) -> ReadableCopy:
    """The copy of a lake that has the table."""
    connection = await database.connect()
    for name, value in SESSION_SETTINGS.items():
        await connection.execute("SELECT set_config($1, $2, false)", name, value)
    columns = tuple(
        ColumnInfo(name, oid, modifier, "?", False, number=number)
        for name, oid, modifier, number in await connection.fetch(_COLUMNS, f'public."{table}"')
    )
    types = await catalog.types(connection, {column.type_oid for column in columns})
    data = bytearray()

    async def receive(part: bytes) -> None:
        data.extend(part)

    await connection.copy_from_query(
        f'SELECT * FROM public."{table}"', output=receive, format="csv", encoding="utf8"
    )
    files = LakeFiles(f"file://{folder}")
    writer = LakeWriter(
        files,
        SqliteCatalog(folder / "catalog.db"),
        Source("headrace", "1", 1, "archive"),
        1 << 20,
        10,
    )
    writer.open()
    known = new_table(TableName("public", table), 1000, columns, (), 100)
    place, schema = writer.prepare_copy(known)
    rows = CopyRows(columns, types).read(bytes(data))
    writer.adopt(known, place, written(files, place, schema, rows))
    writer.cut(101, 0, 0, None)
    copy = ReadableCopy(folder)
    copy.copy.advance()
    return copy


def sent_by_copy(
    copy: ReadableCopy,
    table: str,
    columns: Sequence[str],
    binary: bool,
    settings: Mapping[str, str],
    order: str = "id",
) -> list[tuple[bytes | None, ...]]:
    """The values of all rows, as the copy's rows have them on the wire."""
    with copy.copy.pin() as pin, pin.using() as cursor:
        relation = copy.relation(pin, TableName("public", table))
        by_name = {column.name: column for column in relation.columns}
        shown = [by_name[name] for name in columns]
        values = ", ".join(
            exported(column.copy, storage(column.type_oid, column.modifier).duckdb)
            for column in shown
        )
        cursor.execute(f"SELECT {values} FROM {relation.copy} ORDER BY {by_name[order].copy}")
        found = cursor.to_arrow_table()
    return parsed(data_rows(found, shown, [int(binary)] * len(shown), settings))


def sent_by_postgres(
    dsn: str, query: str, binary: bool, settings: Mapping[str, str]
) -> tuple[list[Described], list[tuple[bytes | None, ...]]]:
    """The result of a query as a server sends it."""
    with psycopg.connect(dsn) as connection:
        for name, value in settings.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        cursor = connection.cursor(binary=binary)
        cursor.execute(query)
        result = cursor.pgresult
        assert result is not None
        described = [
            Described(
                str((result.fname(place) or b"").decode()), result.ftype(place), result.fmod(place)
            )
            for place in range(result.nfields)
        ]
        assert all(result.fformat(place) == Format(binary) for place in range(result.nfields))
        rows = [
            tuple(result.get_value(row, place) for place in range(result.nfields))
            for row in range(result.ntuples)
        ]
    return described, rows


def data_rows(
    found: pa.Table,
    columns: Sequence[ResultColumn],
    formats: Sequence[int],
    settings: Mapping[str, str] | None = None,
) -> bytes:
    """The messages of all rows."""
    return RowMessages(columns, formats, settings).of(found)


def parsed(messages: bytes) -> list[tuple[bytes | None, ...]]:
    """The values in DataRow messages."""
    rows = []
    at = 0
    while at < len(messages):
        assert messages[at : at + 1] == b"D"
        end = at + 1 + int.from_bytes(messages[at + 1 : at + 5], "big")
        count = int.from_bytes(messages[at + 5 : at + 7], "big")
        at += 7
        values: list[bytes | None] = []
        for _ in range(count):
            size = int.from_bytes(messages[at : at + 4], "big", signed=True)
            at += 4
            values.append(None if size < 0 else messages[at : at + size])
            at += max(size, 0)
        assert at == end
        rows.append(tuple(values))
    return rows
