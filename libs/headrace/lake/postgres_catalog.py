"""A lake's catalog in a PostgreSQL database, for lakes that several machines use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from headrace.lake import catalog
from headrace.lake.catalog import CATALOG_NAME, Cut, Move, PointerMovedError, TableName
from headrace.lake.errors import CutRefusedError, LakeUnreachableError

# A transaction that waits for another program's must not hold up cuts silently, and a writer that
# was suspended in one must not hold up the next writer. A peer that is gone is noticed.
_SESSION = (
    "SET statement_timeout = '60s'; SET lock_timeout = '15s'; "
    "SET idle_in_transaction_session_timeout = '30s'"
)
_CONNECTION: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_TABLES = ("iceberg_tables", "iceberg_namespace_properties", "headrace_cuts", "headrace_notes")
_REMEDY = "Check HEADRACE_LAKE_CATALOG, its server and the network."
_RIGHTS_REMEDY = (
    "Grant the role of HEADRACE_LAKE_CATALOG the right to CREATE in the schema, or SELECT, INSERT, "
    "UPDATE and DELETE on the tables {tables}."
).format(tables=", ".join(_TABLES))


class PostgresCatalog:
    """Implements `Catalog` in a PostgreSQL database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def prepare(self) -> None:
        with self._session() as session:
            # A role without the right to create tables may write to those that exist.
            query = "SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) name"
            if session.execute(query, (list(_TABLES),)).fetchall() == [(True,)]:
                return
        with self._session() as session, session.transaction():
            # Two services that start at the same moment would both create the tables.
            session.execute("SELECT pg_advisory_xact_lock(hashtext('headrace lake'))")
            for statement in catalog.CREATE:
                session.execute(statement)

    def last_cut(self, source: str) -> Cut | None:
        return next(iter(self.cuts(source, 1)), None)

    def cuts(self, source: str, limit: int) -> Sequence[Cut]:
        with self._session() as session:
            rows = session.execute(
                f"SELECT {catalog.CUT_COLUMNS} FROM headrace_cuts WHERE source = %s "  # noqa: S608
                "ORDER BY cut DESC LIMIT %s",
                (source, limit),
            ).fetchall()
        return [catalog.cut_of(row) for row in rows]

    def tables(self) -> Mapping[TableName, str]:
        with self._session() as session:
            rows = session.execute(
                "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables "
                "WHERE catalog_name = %s",
                (CATALOG_NAME,),
            ).fetchall()
        return {TableName(namespace, name): location for namespace, name, location in rows}

    def commit(
        self, cut: Cut, moves: Sequence[Move], first_kept: int, kept_since_us: int = 0
    ) -> None:
        with self._session() as session:
            try:
                with session.transaction():
                    session.execute(
                        catalog.INSERT_CUT.format(*["%s"] * catalog.CUT_VALUES),
                        catalog.row_of(cut),
                    )
                    session.execute(
                        catalog.DELETE_CUTS.format(*["%s"] * 4),
                        (cut.source, first_kept, kept_since_us, cut.number),
                    )
                    for move in moves:
                        _move(session, move)
            except psycopg.errors.UniqueViolation as error:
                raise CutRefusedError(f"cut {cut.number} was made by another process") from error

    def advance(self, cut: Cut) -> None:
        values = catalog.advance_of(cut)
        with self._session() as session:
            query = catalog.ADVANCE_CUT.format(*["%s"] * catalog.ADVANCE_VALUES)
            changed = session.execute(query, values).rowcount
        if changed != 1:
            raise CutRefusedError(f"cut {cut.number} is another process's")

    def notes(self, source: str, kind: str) -> Mapping[str, str]:
        with self._session() as session:
            query = catalog.READ_NOTES.format("%s", "%s")
            return dict(session.execute(query, (source, kind)).fetchall())

    def note(self, source: str, kind: str, name: str, body: str | None) -> None:
        with self._session() as session:
            if body is None:
                query = catalog.DELETE_NOTE.format(*["%s"] * 3)
                session.execute(query, (source, kind, name))
            else:
                query = catalog.WRITE_NOTE.format(*["%s"] * 4)
                session.execute(query, (source, kind, name, body))

    @contextmanager
    def _session(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """The connection, opened again if it was lost."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            yield self._connection
        except psycopg.errors.InsufficientPrivilege as error:
            raise LakeUnreachableError(
                f"the lake's catalog: {_first_line(error)}", remedy=_RIGHTS_REMEDY
            ) from error
        except psycopg.Error as error:
            self.close()
            raise LakeUnreachableError(
                f"the lake's catalog: {_first_line(error)}", remedy=_REMEDY
            ) from error

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        session = psycopg.connect(
            self._url, autocommit=True, application_name="headrace lake", **_CONNECTION
        )
        session.execute(_SESSION)
        return session

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().partition("\n")[0]


def _move(session: psycopg.Connection[tuple[Any, ...]], move: Move) -> None:
    table = move.table
    for entry in catalog.NAMESPACE_PROPERTIES:
        session.execute(
            "INSERT INTO iceberg_namespace_properties VALUES (%s, %s, %s, %s) "
            "ON CONFLICT DO NOTHING",
            (CATALOG_NAME, table.namespace, *entry),
        )
    statement, values = catalog.pointer_change(move)
    changed = session.execute(
        statement.format(*["%s"] * len(values)),
        values,
    ).rowcount
    if changed != 1:
        raise PointerMovedError(table)
