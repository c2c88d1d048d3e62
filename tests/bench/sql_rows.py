"""The rows of the SQL server's benchmark: TPC-H's tables by DuckDB's extension, and a table that
changes. The same rows are in DuckDB, in a PostgreSQL that is the lake's source, and in the lake.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
from psycopg import sql

from headrace.archive.metadata import ColumnInfo, TableInfo
from headrace.contract.values import SESSION_SETTINGS
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.lake import data_files
from headrace.lake.catalog import TableName
from headrace.lake.copy_rows import CopyRows
from headrace.lake.tables import new_table
from tests.support import tpch
from tests.support.local_lake import LocalLake

TABLE = "measured"
CHANGED = 10_000
# The benchmark's usual additions: without them some queries take PostgreSQL hours.
INDEXES = (
    "CREATE INDEX ON lineitem (l_partkey, l_suppkey)",
    "CREATE INDEX ON orders (o_custkey)",
    "CREATE INDEX ON partsupp (ps_suppkey)",
    "CREATE INDEX ON customer (c_nationkey)",
    "CREATE INDEX ON supplier (s_nationkey)",
    "CREATE INDEX ON nation (n_regionkey)",
)
_MEASURED = f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, n integer, name text, amount numeric(12,2), at timestamptz)"
_ROWS = f"""
INSERT INTO {TABLE} SELECT g, g % 1000, 'name of row ' || g, g * 1.25,
    timestamptz '2026-01-01' + g * interval '1 second' FROM generate_series(1, {{rows}}) g
"""
_TABLES = "SELECT relname, oid::int8 FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY oid"
_COLUMNS = """
SELECT attname, atttypid::int8, atttypmod, format_type(atttypid, atttypmod), attnum,
    coalesce(attnum = ANY(conkey), false) FROM pg_attribute
    LEFT JOIN pg_constraint ON conrelid = attrelid AND contype = 'p'
WHERE attrelid = %s AND attnum > 0 ORDER BY attnum"""
_BLOCK_BYTES = 16 << 20
_FILE_BLOCKS = 16


def generated(scale: float) -> duckdb.DuckDBPyConnection:
    """Plain DuckDB: TPC-H's tables in memory, with its defaults."""
    database = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    found = find_spec("duckdb_extension_tpch")
    assert found is not None
    assert found.submodule_search_locations
    place = next(Path(next(iter(found.submodule_search_locations))).rglob("*.duckdb_extension"))
    database.execute(f"LOAD '{place}'")
    database.execute(f"CALL dbgen(sf = {scale})")
    return database


def queries(database: duckdb.DuckDBPyConnection) -> list[str]:
    """The 22 queries with the parameters by which the specification validates answers."""
    found = database.execute("SELECT query FROM tpch_queries() ORDER BY query_nr").fetchall()
    return [query for (query,) in found]


@contextmanager
def source(
    folder: Path, database: duckdb.DuckDBPyConnection, rows: int
) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL with its default settings that has all rows, analyzed."""
    server = EmbeddedPostgres(folder / "source")
    server.start_blocking()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            for definition in tpch.TABLES:
                connection.execute(definition)
                _fill(connection, database, definition.split()[2], folder)
            for index in INDEXES:
                connection.execute(index)
            connection.execute(_MEASURED)
            connection.execute(_ROWS.format(rows=rows))
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
        yield server
    finally:
        server.stop_blocking("immediate")


def _fill(
    connection: psycopg.Connection, database: duckdb.DuckDBPyConnection, table: str, folder: Path
) -> None:
    path = folder / "rows.csv"
    database.execute(f"COPY {table} TO '{path}' (FORMAT csv, HEADER false)")
    wanted = sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(sql.Identifier(table))
    with path.open("rb") as rows, connection.cursor().copy(wanted) as copy:
        while block := rows.read(1 << 20):
            copy.write(block)
    path.unlink()


class MeasuredLake:
    """The lake's side: the tables of the source, and changes of one of them."""

    def __init__(self, lake: LocalLake) -> None:
        self._lake = lake
        self._changed: TableInfo | None = None
        self._rounds = 0

    def copy(self, server: EmbeddedPostgres) -> int:
        """Copy the tables as lake-writer does; returns the number of rows, which no cut shows yet."""
        count = 0
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            for name, value in SESSION_SETTINGS.items():
                connection.execute("SELECT set_config(%s, %s, false)", [name, value])
            for name, relid in connection.execute(_TABLES).fetchall():
                count += self._copy(connection, name, relid)
        # Each cut needs another LSN.
        self._lake.update([0], "note 0")
        return count

    def _copy(self, connection: psycopg.Connection, name: str, relid: int) -> int:
        found = connection.execute(_COLUMNS, [relid]).fetchall()
        columns = tuple(
            ColumnInfo(column, oid, modifier, kind, key, number=number)
            for column, oid, modifier, kind, number, key in found
        )
        keys = tuple(column.name for column in columns if column.is_key)
        table = new_table(TableName("public", name), relid, columns, keys, 100)
        if name == TABLE:
            self._changed = TableInfo("public", name, relid, 1, keys, columns)
        folder, schema = self._lake.writer.prepare_copy(table)
        parts = _copied(connection, name, CopyRows(columns, {}))
        files = []
        # Several files, as lake-writer's tasks write them.
        while some := list(islice(parts, _FILE_BLOCKS)):
            file = data_files.write_parts(self._lake.files, folder, schema, iter(some))
            if file is not None:
                files.append(file)
        self._lake.writer.adopt(table, folder, files)
        return sum(file.record_count for file in files)

    def change(self, rows: int) -> int:
        """An update of 10,000 rows that no cut shows yet; returns the value that they have now."""
        assert self._changed is not None, "the table was copied"
        self._rounds += 1
        step = max(1, rows // CHANGED)
        keys = range(self._rounds, rows + 1, step)[:CHANGED]
        after = [_document(key, -self._rounds) for key in keys]
        self._lake.take(self._changed, "update", keys, after)
        return -self._rounds

    def cut(self) -> str:
        """Show the changes; returns the LSN before which all of them were committed."""
        return f"0/{self._lake.cut().lsn:X}"


def _document(key: int, number: int) -> str:
    """A row as the archive has it."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_767_225_600 + key))
    row = {"id": key, "n": number, "name": f"name of row {key}", "amount": f"{key * 1.25:.2f}"}
    return json.dumps({**row, "at": moment})


def _copied(connection: psycopg.Connection, name: str, reader: CopyRows) -> Iterator[pa.Table]:
    wanted = sql.SQL("COPY {} TO STDOUT (FORMAT csv)").format(sql.Identifier(name))
    with connection.cursor().copy(wanted) as copy:
        block = bytearray()
        # psycopg gives whole rows.
        for row in copy:
            block += row
            if len(block) > _BLOCK_BYTES:
                yield reader.read(bytes(block))
                block.clear()
        yield reader.read(bytes(block))
