"""The lake's tables as DuckDB's Iceberg extension reads them."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import duckdb
import psycopg
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog


def connect(*more: str) -> duckdb.DuckDBPyConnection:
    """DuckDB with its extensions from their wheels."""
    database = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", *more, "iceberg"):
        found = find_spec(f"duckdb_extension_{name}")
        assert found is not None
        assert found.submodule_search_locations
        folder = Path(next(iter(found.submodule_search_locations)))
        database.execute(f"LOAD '{next(folder.rglob('*.duckdb_extension'))}'")
    return database


@dataclass(frozen=True)
class LakeCut:
    """A cut as the catalog has it."""

    number: int
    lsn: int
    tables: dict[str, int]


class ReadableLake(Protocol):
    """A lake as another engine reads it."""

    def cut(self) -> LakeCut | None: ...
    def locations(self) -> dict[str, str]: ...
    def rows(self, table: str, columns: str = "*", location: str | None = None) -> list[Any]: ...


class ForeignLake:
    """Reads a lake in a local folder with its catalog in SQLite."""

    def __init__(self, folder: Path) -> None:
        self._catalog = folder / "catalog.db"
        self._duckdb = connect()

    def cut(self) -> LakeCut | None:
        """The last cut."""
        return next(iter(self.cuts()), None)

    def cuts(self) -> list[LakeCut]:
        """All cuts, the last one first."""
        rows = self._query("SELECT cut, lsn, tables FROM headrace_cuts ORDER BY made_us DESC")
        return [LakeCut(cut, lsn, json.loads(tables)) for cut, lsn, tables in rows]

    def locations(self) -> dict[str, str]:
        """Each table's metadata, all read in one transaction."""
        rows = self._query(
            "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables"
        )
        return {f"{schema}.{name}": location for schema, name, location in rows}

    def rows(self, table: str, columns: str = "*", location: str | None = None) -> list[Any]:
        """A table's rows, by a select list."""
        place = location or self.locations()[table]
        query = f"SELECT {columns} FROM iceberg_scan('{place.removeprefix('file://')}')"
        return self._duckdb.execute(query).fetchall()

    def arrow(self, table: str, query: str) -> pa.Table:
        """The result of a query, which calls the table `lake`."""
        place = self.locations()[table].removeprefix("file://")
        view = f"WITH lake AS (SELECT * FROM iceberg_scan('{place}')) {query}"
        return self._duckdb.execute(view).to_arrow_table()

    def query(self, query: str) -> list[Any]:
        """Any query by DuckDB."""
        return self._duckdb.execute(query).fetchall()

    def _query(self, query: str) -> list[Any]:
        # As any program with an Iceberg catalog in SQLite: a reader may have to finish what a
        # killed writer began, which a read-only connection can't.
        if not self._catalog.exists():
            return []
        with closing(sqlite3.connect(self._catalog, timeout=30)) as database:
            try:
                return database.execute(query).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                raise


class QueriedBucket:
    """Reads a lake in a bucket or a folder with its catalog in PostgreSQL: DuckDB's extension reads,
    over S3, in another process. It aborts if the store dies while it reads.
    """

    def __init__(self, catalog_url: str, s3: dict[str, str]) -> None:
        self._url = catalog_url
        endpoint = s3["endpoint"].removeprefix("http://")
        self._secret = (
            f"CREATE SECRET (TYPE s3, KEY_ID '{s3['access_key_id']}', "
            f"SECRET '{s3['secret_access_key']}', REGION '{s3['region']}', "
            f"ENDPOINT '{endpoint}', URL_STYLE 'path', USE_SSL false)"
        )
        self._process: ProcessPoolExecutor | None = None

    def cut(self) -> LakeCut | None:
        """The last cut."""
        rows = self._query("SELECT cut, lsn, tables FROM headrace_cuts ORDER BY cut DESC LIMIT 1")
        return next((LakeCut(cut, lsn, json.loads(tables)) for cut, lsn, tables in rows), None)

    def locations(self) -> dict[str, str]:
        """Each table's metadata, all read in one transaction."""
        rows = self._query(
            "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables"
        )
        return {f"{schema}.{name}": location for schema, name, location in rows}

    def rows(self, table: str, columns: str = "*", location: str | None = None) -> list[Any]:
        """A table's rows, by a select list."""
        place = location or self.locations()[table]
        return self.query(f"SELECT {columns} FROM iceberg_scan('{place.removeprefix('file://')}')")

    def query(self, query: str) -> list[Any]:
        """Any query by DuckDB; raises `BrokenExecutor` if it has aborted, and begins again."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._process = ProcessPoolExecutor(1, context, _begin, (self._secret,))
        try:
            return self._process.submit(_answer, query).result()
        except BrokenExecutor:
            self._process = None
            raise

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.shutdown()

    def _query(self, query: str) -> list[Any]:
        return _of_catalog(self._url, query)


_session: list[duckdb.DuckDBPyConnection] = []


def _begin(secret: str) -> None:
    database = connect("httpfs")
    database.execute(secret)
    _session.append(database)


def _answer(query: str) -> list[Any]:
    return _session[0].execute(query).fetchall()


class BucketLake:
    """Reads a lake in a bucket with its catalog in PostgreSQL: PyIceberg reads, over S3."""

    def __init__(self, catalog_url: str, properties: dict[str, str]) -> None:
        self._url = catalog_url
        self._catalog = SqlCatalog(
            "headrace",
            uri=catalog_url.replace("postgresql:", "postgresql+psycopg:"),
            **properties,
        )
        self._duckdb = duckdb.connect()

    def cut(self) -> LakeCut | None:
        """The last cut."""
        rows = self._query("SELECT cut, lsn, tables FROM headrace_cuts ORDER BY cut DESC LIMIT 1")
        return next((LakeCut(cut, lsn, json.loads(tables)) for cut, lsn, tables in rows), None)

    def locations(self) -> dict[str, str]:
        """Each table's metadata, as PyIceberg's catalog lists and loads them."""
        names = [
            name
            for namespace in self._catalog.list_namespaces()
            for name in self._catalog.list_tables(namespace)
        ]
        return {".".join(name): self._catalog.load_table(name).metadata_location for name in names}

    def rows(self, table: str, columns: str = "*", location: str | None = None) -> list[Any]:
        """A table's rows, by a select list of DuckDB over what PyIceberg has read."""
        loaded = self._catalog.load_table(table)
        assert location in {None, loaded.metadata_location}
        found = loaded.scan().to_arrow()
        self._duckdb.register("found", found)
        return self._duckdb.execute(f"SELECT {columns} FROM found").fetchall()

    def create(self, table: str, location: str, rows: pa.Table) -> None:
        """A table that PyIceberg makes."""
        self._catalog.create_namespace_if_not_exists(table.split(".", maxsplit=1)[0])
        made = self._catalog.create_table(table, rows.schema, location)
        made.append(rows)

    def close(self) -> None:
        """Close the connections."""
        self._catalog.close()
        self._duckdb.close()

    def _query(self, query: str) -> list[Any]:
        return _of_catalog(self._url, query)


def _of_catalog(url: str, query: str) -> list[Any]:
    with psycopg.connect(url, connect_timeout=5) as database:
        try:
            return database.execute(query).fetchall()
        except psycopg.errors.UndefinedTable:
            return []
