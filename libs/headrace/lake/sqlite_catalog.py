"""A lake's catalog in a SQLite file, for lakes that one machine writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.lake import catalog
from headrace.lake.catalog import CATALOG_NAME, Cut, Move, PointerMovedError, TableName
from headrace.lake.errors import CutRefusedError, LakeUnreachableError

_BUSY_TIMEOUT_S = 30.0


class SqliteCatalog:
    """Implements `Catalog` in a SQLite file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(
                path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            # Readers see the last cut while one is being written.
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
        except (sqlite3.Error, OSError) as error:
            raise LakeUnreachableError(f"the catalog {path} can't be opened: {error}") from error

    def prepare(self) -> None:
        for statement in catalog.CREATE:
            self._execute(statement)

    def last_cut(self, source: str) -> Cut | None:
        return next(iter(self.cuts(source, 1)), None)

    def cuts(self, source: str, limit: int) -> Sequence[Cut]:
        rows = self._execute(
            f"SELECT {catalog.CUT_COLUMNS} FROM headrace_cuts WHERE source = ? "  # noqa: S608
            "ORDER BY cut DESC LIMIT ?",
            source,
            limit,
        )
        return [catalog.cut_of(row) for row in rows]

    def tables(self) -> Mapping[TableName, str]:
        rows = self._execute(
            "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables "
            "WHERE catalog_name = ?",
            CATALOG_NAME,
        )
        return {TableName(namespace, name): location for namespace, name, location in rows}

    def commit(
        self, cut: Cut, moves: Sequence[Move], first_kept: int, kept_since_us: int = 0
    ) -> None:
        self._execute("BEGIN IMMEDIATE")
        try:
            self._execute(
                catalog.INSERT_CUT.format(*"?" * catalog.CUT_VALUES), *catalog.row_of(cut)
            )
            kept = (cut.source, first_kept, kept_since_us, cut.number)
            self._execute(catalog.DELETE_CUTS.format(*"?" * 4), *kept)
            for move in moves:
                self._move(move)
        except BaseException as error:
            self._rollback()
            if isinstance(error.__cause__, sqlite3.IntegrityError):
                raise CutRefusedError(f"cut {cut.number} was made by another process") from error
            raise
        self._execute("COMMIT")

    def advance(self, cut: Cut) -> None:
        values = catalog.advance_of(cut)
        if (
            self._cursor(
                catalog.ADVANCE_CUT.format(*"?" * catalog.ADVANCE_VALUES), *values
            ).rowcount
            != 1
        ):
            raise CutRefusedError(f"cut {cut.number} is another process's")

    def notes(self, source: str, kind: str) -> Mapping[str, str]:
        return dict(self._execute(catalog.READ_NOTES.format("?", "?"), source, kind))

    def note(self, source: str, kind: str, name: str, body: str | None) -> None:
        if body is None:
            self._execute(catalog.DELETE_NOTE.format(*"?" * 3), source, kind, name)
        else:
            self._execute(catalog.WRITE_NOTE.format(*"?" * 4), source, kind, name, body)

    def _move(self, move: Move) -> None:
        table = move.table
        for namespace in catalog.NAMESPACE_PROPERTIES:
            self._execute(
                "INSERT OR IGNORE INTO iceberg_namespace_properties VALUES (?, ?, ?, ?)",
                CATALOG_NAME,
                table.namespace,
                *namespace,
            )
        statement, values = catalog.pointer_change(move)
        changed = self._cursor(statement.format(*"?" * len(values)), *values).rowcount
        if changed != 1:
            raise PointerMovedError(table)

    def _rollback(self) -> None:
        if self._database.in_transaction:
            self._execute("ROLLBACK")

    def _execute(self, statement: str, *values: object) -> list[Any]:
        return self._cursor(statement, *values).fetchall()

    def _cursor(self, statement: str, *values: object) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise LakeUnreachableError(f"the catalog {self._path}: {error}") from error

    def close(self) -> None:
        self._database.close()
