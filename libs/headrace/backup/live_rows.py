"""Brings rows of a live table back to how they were, from a restored cluster or the archive.

Only rows change, so everything that hangs on the table stays: foreign keys, views, sequences,
privileges, publications. Promises that exactly the rows of a difference that was shown are written,
in one transaction, or none; rows that were inserted later stay unless they are named. PostgreSQL
checks constraints and foreign keys; triggers of users don't fire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from headrace.backup.errors import RestoreError
from headrace.process.failpoint import failpoint

_RESTORED, _SHOWN, _NOW = "headrace_restored", "headrace_shown", "headrace_now"
_INSERT, _UPDATE, _DELETE = "insert", "update", "delete"
# A waiting lock blocks every later one, also of the application.
_LOCK_TIMEOUT = "10s"

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, nullif(a.atttypmod, -1)), a.attgenerated <> '',
       a.attidentity = 'a', coalesce(a.attnum = ANY(i.indkey), false)
FROM pg_attribute a
LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_TRIGGERS = """
SELECT tgname, tgenabled FROM pg_trigger
WHERE tgrelid = %s::regclass AND NOT tgisinternal AND tgenabled <> 'D'
"""
_ENABLE = {"O": "ENABLE", "A": "ENABLE ALWAYS", "R": "ENABLE REPLICA"}
# Keys of other tables whose rows would be deleted or changed together with ours.
_CASCADES = """
SELECT conrelid::regclass::text || ' ' || conname FROM pg_constraint
WHERE contype = 'f' AND confrelid = %s::regclass AND conparentid = 0
  AND (confdeltype IN ('c', 'n', 'd') OR confupdtype IN ('c', 'n', 'd'))
ORDER BY 1
"""


def _agree(session: psycopg.Connection[Any]) -> None:
    """The settings that decide the text of values, on both sides."""
    session.execute("SET DateStyle = ISO; SET IntervalStyle = postgres; SET TimeZone = 'UTC'")
    # Row security would hide rows silently; with this setting, PostgreSQL raises an error instead.
    session.execute("SET extra_float_digits = 1; SET bytea_output = hex; SET row_security = off")


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: str
    # Computed by PostgreSQL: never written, and equal when the others are.
    generated: bool
    # GENERATED ALWAYS AS IDENTITY can be inserted, but not updated.
    identity: bool
    key: bool


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row of the difference: what will happen to it."""

    # insert, update or delete.
    kind: str
    key: dict[str, str | None]
    # For an update the columns that change; for the others all of them.
    before: dict[str, str | None]
    after: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The size of a difference."""

    inserts: int
    updates: int
    # Rows that were inserted since the moment.
    later: int


class LiveRows:
    """One live table next to its earlier rows, in one session; `where` restricts both."""

    def __init__(
        self, session: psycopg.Connection[Any], table: tuple[str, str], where: str | None
    ) -> None:
        """`session` is in autocommit mode; its temporary tables live as long as it does."""
        self._session = session
        self._name = sql.Identifier(*table)
        self._text = self._name.as_string(session)
        self._where = sql.SQL("true")
        if where is not None:
            # The operator's own SQL, as in psql.
            self._where = sql.SQL(f"({where})")
        self._columns: list[_Column] = []
        # Whether `json` is compared as documents: the archive does not have its whitespace.
        self._by_document = False
        # The columns of which that moment has no value: an inserted row gets their default.
        self.newer: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        """Whether there is such a table in the live database."""
        row = self._session.execute("SELECT to_regclass(%s) IS NOT NULL", (self._text,)).fetchone()
        return bool(row and row[0])

    def take(self, restored: psycopg.Connection[Any]) -> None:
        """Copy the rows of the restored cluster's table into a temporary table."""
        _agree(restored)
        former = {one.name: one.type for one in self._read_columns(restored)}
        names = self._prepare(former)
        out = sql.SQL("COPY (SELECT {} FROM ONLY {}) TO STDOUT").format(names, self._name)
        with restored.cursor().copy(out) as rows, self._copying(names) as copy:
            for data in rows:
                copy.write(data)
        self._taken()

    def take_rows(
        self,
        former: Mapping[str, str],
        rows: Callable[[Sequence[str]], Iterable[Sequence[str | None]]],
    ) -> None:
        """Copy rows from elsewhere; `former` are the types of the columns by name, `rows` gives the
        texts of such columns.
        """
        self._by_document = True
        names = self._prepare(former)
        with self._copying(names) as copy:
            for row in rows([one.name for one in self._columns]):
                copy.write_row(row)
        self._taken()

    def _prepare(self, former: Mapping[str, str]) -> sql.Composable:
        _agree(self._session)
        self._session.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
        self._columns = self._common(former)
        # Without constraints: a column that is newer may be NOT NULL.
        self._run("CREATE TEMP TABLE {restored} AS SELECT * FROM ONLY {live} WITH NO DATA")
        return self._list(one.name for one in self._columns)

    def _copying(self, names: sql.Composable) -> AbstractContextManager[psycopg.Copy]:
        into = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(_RESTORED), names)
        return self._session.cursor().copy(into)

    def _taken(self) -> None:
        # Autovacuum never looks at a temporary table, and the comparison needs statistics.
        self._run("ANALYZE {restored}")

    def _read_columns(self, session: psycopg.Connection[Any]) -> list[_Column]:
        return [_Column(*row) for row in session.execute(_COLUMNS, (self._text,)).fetchall()]

    def _common(self, former: Mapping[str, str]) -> list[_Column]:
        """The columns to bring back: those of that moment, which must still be there."""
        live = {one.name: one for one in self._read_columns(self._session)}
        for name, kind in former.items():
            # Values of a dropped or converted column have no place any more.
            if name not in live or live[name].type != kind:
                raise RestoreError(
                    f"{self._text}.{name} was {kind} at that moment, and the live table "
                    "has no such column",
                    remedy="Restore the table under another name with --as, without --replace.",
                )
        if not any(live[name].key for name in former):
            raise RestoreError(
                f"{self._text} has no primary key, so its rows can't be distinguished",
                remedy="Restore the table under another name with --as, without --replace.",
            )
        self.newer = tuple(
            name for name, one in live.items() if not (name in former or one.generated)
        )
        return [live[name] for name in former if not live[name].generated]

    # The difference

    def compare(self) -> RowCounts:
        """Compare both, and remember the difference as the one that is shown."""
        self._compare(_SHOWN)
        counted = dict(self._run("SELECT kind, count(*) FROM {shown} GROUP BY kind").fetchall())
        return RowCounts(counted.get(_INSERT, 0), counted.get(_UPDATE, 0), counted.get(_DELETE, 0))

    def _compare(self, into: str) -> None:
        joined = sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier("l", one.name), sql.Identifier("r", one.name))
            for one in self._columns
            if one.key
        )
        # As text: some types have no equality, and 1.0 is not 1.00.
        statement = """
            CREATE TEMP TABLE {into} AS
            SELECT CASE WHEN l.headrace_at IS NULL THEN 'insert'
                        WHEN r.headrace_at IS NULL THEN 'delete' ELSE 'update' END AS kind,
                   {before} AS before, {after} AS after, r.headrace_at AS source
            FROM (SELECT ctid AS headrace_at, {where} AS headrace_match, * FROM ONLY {live}) l
            FULL JOIN (SELECT ctid AS headrace_at, {where} AS headrace_match, * FROM {restored}) r
              ON {joined}
            WHERE {before} IS DISTINCT FROM {after} AND (l.headrace_match OR r.headrace_match)
        """
        self._run(
            statement,
            into=sql.Identifier(into),
            before=self._texts("l"),
            after=self._texts("r"),
            joined=joined,
        )

    def changes(self, limit: int) -> Iterator[RowChange]:
        """The first rows of the difference."""
        names = [one.name for one in self._columns]
        keys = [one.name for one in self._columns if one.key]
        query = "SELECT kind, before, after FROM {shown} ORDER BY coalesce(before, after) LIMIT "
        for kind, before, after in self._run(query + str(int(limit))).fetchall():
            old = dict(zip(names, before, strict=True))
            new = dict(zip(names, after, strict=True))
            whole = old if kind == _DELETE else new
            key = {name: whole[name] for name in keys}
            if kind == _UPDATE:
                changed = [name for name in names if old[name] != new[name]]
                old = {name: old[name] for name in changed}
                new = {name: new[name] for name in changed}
            yield RowChange(kind, key, old, new)

    # The change

    def apply(self, *, discard_later: bool) -> RowCounts:
        """Write exactly the difference that was shown; raises, and changes nothing, if it is
        another one by now.
        """
        with self._session.transaction():
            # Nobody writes from here on, while readers continue.
            self._run("LOCK TABLE ONLY {live} IN SHARE ROW EXCLUSIVE MODE")
            self._compare(_NOW)
            self._require_shown()
            if discard_later:
                self._refuse_cascades()
            triggers = self._session.execute(_TRIGGERS, (self._text,)).fetchall()
            for name, _ in triggers:
                # In the transaction: an error leaves them enabled, as they were.
                self._run("ALTER TABLE {live} DISABLE TRIGGER {name}", name=sql.Identifier(name))
            counts = self._write(discard_later=discard_later)
            for name, state in triggers:
                enable = f"ALTER TABLE {{live}} {_ENABLE[state]} TRIGGER {{name}}"
                self._run(enable, name=sql.Identifier(name))
            self._require_equal(discard_later=discard_later)
            failpoint("restore.before_commit")
        return counts

    def _require_shown(self) -> None:
        row = self._run(
            "SELECT count(*) FROM ("
            "(SELECT kind, before, after FROM {shown} EXCEPT ALL SELECT kind, before, after "
            "FROM {now}) UNION ALL (SELECT kind, before, after FROM {now} EXCEPT ALL "
            "SELECT kind, before, after FROM {shown})) d"
        ).fetchone()
        if row and row[0]:
            raise RestoreError(
                f"{row[0]} rows of {self._text} have changed since the difference was shown",
                remedy="Nothing was changed. Run the command again.",
            )

    def _refuse_cascades(self) -> None:
        found = [row[0] for row in self._session.execute(_CASCADES, (self._text,)).fetchall()]
        later = self._run("SELECT count(*) FROM {shown} WHERE kind = 'delete'").fetchone()
        if found and later and later[0]:
            raise RestoreError(
                f"deleting rows of {self._text} would change rows of other tables: "
                f"{', '.join(found)}",
                remedy="Nothing was changed. Leave --discard-later out, or restore with --as.",
            )

    def _write(self, *, discard_later: bool) -> RowCounts:
        columns = [one for one in self._columns if not (one.key or one.identity)]
        keys = sql.SQL(" AND ").join(
            sql.SQL("l.{0} = r.{0}").format(sql.Identifier(one.name))
            for one in self._columns
            if one.key
        )
        deleted = updated = 0
        # First, because a later row may have a unique value that a former one needs.
        if discard_later:
            deleted = self._run(
                "DELETE FROM ONLY {live} l WHERE {row} IN "
                "(SELECT before FROM {shown} WHERE kind = 'delete')",
                row=self._texts("l"),
            ).rowcount
        # A table that consists of its key has nothing to update.
        if columns:
            updated = self._run(
                "UPDATE ONLY {live} l SET {set} FROM {restored} r JOIN {shown} d "
                "ON d.source = r.ctid WHERE d.kind = 'update' AND {keys}",
                set=sql.SQL(", ").join(
                    sql.SQL("{0} = r.{0}").format(sql.Identifier(one.name)) for one in columns
                ),
                keys=keys,
            ).rowcount
        names = self._list(one.name for one in self._columns)
        inserted = self._run(
            "INSERT INTO {live} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM {restored} r "
            "WHERE r.ctid IN (SELECT source FROM {shown} WHERE kind = 'insert')",
            names=names,
        ).rowcount
        return RowCounts(inserted, updated, deleted)

    def _require_equal(self, *, discard_later: bool) -> None:
        """A rule or a default may have changed what was written."""
        self._run("DROP TABLE {now}")
        self._compare(_NOW)
        counted = dict(self._run("SELECT kind, count(*) FROM {now} GROUP BY kind").fetchall())
        if not discard_later:
            counted.pop(_DELETE, None)
        if counted:
            raise RestoreError(
                f"{sum(counted.values())} rows of {self._text} would not be as they were",
                remedy="Nothing was changed. Restore the table with --as, and merge it by hand.",
            )

    # SQL

    def _texts(self, side: str) -> sql.Composable:
        parts = []
        for one in self._columns:
            kind = "::jsonb::text" if self._by_document and one.type == "json" else "::text"
            parts.append(sql.SQL(f"{{}}{kind}").format(sql.Identifier(side, one.name)))
        return sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(parts))

    def _list(self, names: Iterator[str]) -> sql.Composable:
        return sql.SQL(", ").join(sql.Identifier(name) for name in names)

    def _run(self, statement: str, **parts: sql.Composable) -> psycopg.Cursor[Any]:
        given = {
            "live": self._name,
            "restored": sql.Identifier(_RESTORED),
            "shown": sql.Identifier(_SHOWN),
            "now": sql.Identifier(_NOW),
            "where": self._where,
            **parts,
        }
        # The statements are constants of this module.
        return self._session.execute(sql.SQL(statement).format(**given))
