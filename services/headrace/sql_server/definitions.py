"""The lake's tables in the private PostgreSQL: columns, keys, rights, and the guard. Blocking.

A table there has no rows, and below it a foreign table whose wrapper can't read: PostgreSQL
analyzes and describes statements on it, and refuses to run them. A change of a table keeps its OID
and its grants where it can. `Lake`, which sessions read, changes
before the commit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql as composed
from psycopg.errors import LockNotAvailable

from headrace import log as logs
from headrace.lake.catalog import Cut, TableName
from headrace.lake.tables import LakeTable
from headrace.lsn import format_lsn
from headrace.sql.private_server import READERS
from headrace.sql.relations import Defined, RelationColumn
from headrace.sql_server.lake_run import SharedLake
from headrace.sql_server.private_postgres import GUARD, PrivatePostgres

log = logs.logger("sql-server")

TEXT: Final = 25
# FirstNormalObjectId: PostgreSQL gives the numbers below to its own types only.
_BUILT_IN_MAX: Final = 16384
_LOCK_TIMEOUT: Final = "200ms"
# Schemas of the SQL server itself.
_RESERVED: Final = frozenset({GUARD, "information_schema"})
_KNOWN: Final = f"""
SELECT t.relid, n.nspname, c.relname, t.source_relation, t.columns
FROM {GUARD}.tables t JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n
    ON n.oid = c.relnamespace"""
_COLUMNS: Final = """
SELECT attnum, attname, atttypid::int8, atttypmod FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
_KEY: Final = """
SELECT conname, ARRAY(SELECT attname::text FROM unnest(conkey) WITH ORDINALITY k(number, place)
    JOIN pg_attribute ON attrelid = conrelid AND attnum = number ORDER BY place)
FROM pg_constraint WHERE conrelid = %s AND contype = 'p'"""
# On the whole table the column is null.
_GRANTS: Final = """
SELECT CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END, a.attname
FROM pg_class c CROSS JOIN LATERAL (
    SELECT NULL::name, c.relacl UNION ALL SELECT attname, attacl FROM pg_attribute
    WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) a(attname, acl)
CROSS JOIN LATERAL aclexplode(a.acl) g
WHERE c.oid = %s AND g.grantee <> c.relowner AND g.privilege_type = 'SELECT'"""
_ROW_SECURITY: Final = "SELECT relrowsecurity FROM pg_class WHERE oid = %s"
_BLOCKERS: Final = """
SELECT pg_terminate_backend(pid) FROM (SELECT DISTINCT l.pid FROM pg_locks l
    JOIN headrace_guard.tables t ON t.relid = l.relation
    WHERE l.pid <> pg_backend_pid() AND l.granted) blocking"""


@dataclass(frozen=True, slots=True)
class _Known:
    """A table as it was defined before."""

    relid: int
    name: TableName
    source_relation: int
    # The number of each column by its field ID in the lake.
    numbers: Mapping[int, int]


class Definitions:
    """Defines the tables of each cut. One thread uses it at a time."""

    def __init__(self, server: PrivatePostgres, lake: SharedLake, schema_wait_s: float) -> None:
        self._server = server
        self._lake = lake
        self._wait_s = schema_wait_s

    def load(self) -> None:
        """Learn which tables an earlier process has defined, so that none passes unnoticed."""
        with self._server.connect() as connection:
            # Before the first client: a table that nobody knows would pass for one of PostgreSQL's
            # own, and show no rows.
            self._lake.relids.update(each.relid for each in _known(connection))

    def define(self, tables: Mapping[TableName, LakeTable]) -> Mapping[TableName, Defined]:
        """Bring the private PostgreSQL's tables to the form of a cut's."""
        wanted = {name: table for name, table in tables.items() if _may_define(name)}
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                with self._server.connect() as connection, connection.transaction():
                    # Short: while it waits, every new statement on the table waits behind it.
                    connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                    found = _Change(connection, self._lake).make(wanted)
            except LockNotAvailable:
                # Transactions of clients use a table that has to change. They had their time. The
                # next cut can't be shown before the change.
                if time.monotonic() > deadline:
                    self._end_blockers()
                continue
            return found

    def publish(self, cut: Cut) -> None:
        """Show a cut's LSN to `headrace.lsn()` and `headrace.wait_for()`, once it can be read."""
        with self._server.connect() as connection:
            connection.execute(
                f"INSERT INTO {GUARD}.cut (number, lsn) VALUES (%s, %s) ON CONFLICT (one) DO "
                "UPDATE SET number = excluded.number, lsn = excluded.lsn",
                [cut.number, format_lsn(cut.lsn)],
            )

    def _end_blockers(self) -> None:
        with self._server.connect() as connection:
            ended = connection.execute(_BLOCKERS).fetchall()
        self._lake.stats.count("sql_ended_sessions", len(ended))
        log.warning("sessions_ended", count=len(ended), reason="a table's columns have changed")


def _may_define(name: TableName) -> bool:
    if name.namespace in _RESERVED or name.namespace.startswith("pg_"):
        log.warning("table_not_defined", table=str(name), reason="its schema's name is reserved")
        return False
    return True


def _known(connection: psycopg.Connection) -> list[_Known]:
    return [
        _Known(
            int(relid),
            TableName(schema, name),
            source_relation,
            {int(field): number for field, number in columns.items()},
        )
        for relid, schema, name, source_relation, columns in connection.execute(_KNOWN)
    ]


class _Change:
    """One transaction that changes definitions."""

    def __init__(self, connection: psycopg.Connection, lake: SharedLake) -> None:
        self._connection = connection
        self._lake = lake

    def make(self, tables: Mapping[TableName, LakeTable]) -> dict[TableName, Defined]:
        known = _known(self._connection)
        matched = _matched(known, tables)
        for each in known:
            # Before anything is renamed: its name may be taken by another table.
            if each.relid not in {found.relid for found in matched.values()}:
                self._drop(each)
        self._rename({name: found for name, found in matched.items() if found.name != name})
        defined = {}
        for name, table in tables.items():
            defined[name] = self._define(table, matched.get(name))
        for name, found in defined.items():
            # Before the commit: from the moment at which a client sees the table, the front knows
            # it.
            self._lake.relids.add(found.relid)
            shape = tuple((each.number, each.type_oid, each.modifier) for each in found.columns)
            self._lake.shapes[found.relid] = shape
            self._lake.names[found.relid] = str(name)
        # Before the commit, too, while the changed tables are locked: a statement that is analyzed
        # after this sees the new definitions.
        self._lake.definitions += 1
        return defined

    def _run(self, text: str, *names: str, values: Sequence[object] = ()) -> psycopg.Cursor[Any]:
        """A statement with names in braces."""
        quoted = [composed.Identifier(name) for name in names]
        return self._connection.execute(composed.SQL(text).format(*quoted), values)

    def _drop(self, table: _Known) -> None:
        self._run("DROP TABLE {}.{} CASCADE", table.name.namespace, table.name.name)
        self._run(f"DELETE FROM {GUARD}.tables WHERE relid = %s", values=[table.relid])

    def _rename(self, renamed: Mapping[TableName, _Known]) -> None:
        """In two steps: two tables may have swapped their names."""
        for found in renamed.values():
            names = (found.name.namespace, found.name.name, f"headrace {found.relid}")
            self._run("ALTER TABLE {}.{} RENAME TO {}", *names)
        for name, found in renamed.items():
            draft = f"headrace {found.relid}"
            if name.namespace != found.name.namespace:
                self._schema(name.namespace)
                self._run(
                    "ALTER TABLE {}.{} SET SCHEMA {}", found.name.namespace, draft, name.namespace
                )
            self._run("ALTER TABLE {}.{} RENAME TO {}", name.namespace, draft, name.name)

    def _schema(self, name: str) -> None:
        self._run("CREATE SCHEMA IF NOT EXISTS {}", name)
        self._run("GRANT USAGE ON SCHEMA {} TO {}", name, READERS)

    def _define(self, table: LakeTable, known: _Known | None) -> Defined:
        if known is None:
            return self._create(table, [(READERS, None)])
        types = self._types(table)
        numbers = dict(known.numbers)
        present = {number: (name, kind) for number, name, *kind in self._columns(known.relid)}
        names = (table.name.namespace, table.name.name)
        kept = {}
        for field_id, number in numbers.items():
            if number not in present:
                continue
            # A column of another type is another column: PostgreSQL would have to convert views
            # that read it.
            if types.get(field_id) == tuple(present[number][1]):
                kept[field_id] = number
        order = [each.field_id for each in table.columns]
        fitting = [field for field in order if field in kept]
        if order[: len(fitting)] != fitting or fitting != sorted(fitting, key=kept.__getitem__):
            # SELECT * has to give the columns in the source's order.
            return self._create_again(table, known)
        # Before columns: a column of the key can't be dropped while the key exists.
        self._drop_key(known.relid, names, table)
        for number, (name, _) in present.items():
            if number not in kept.values():
                self._run("ALTER TABLE {}.{} DROP COLUMN {} CASCADE", *names, name)
        self._rename_columns(table, kept, present)
        # Kept columns stand before all new ones; otherwise the table was created again above.
        for column in table.columns[len(fitting) :]:
            self._add_column(names, column.info.name, types[column.field_id])
        return self._finished(table, known.relid)

    def _rename_columns(
        self,
        table: LakeTable,
        kept: Mapping[int, int],
        present: Mapping[int, tuple[str, object]],
    ) -> None:
        names = (table.name.namespace, table.name.name)
        changed = [
            (present[kept[column.field_id]][0], f"headrace {column.field_id}", column.info.name)
            for column in table.columns
            if column.field_id in kept and present[kept[column.field_id]][0] != column.info.name
        ]
        # In two steps, because two columns may have swapped their names.
        for before, draft, _ in changed:
            self._run("ALTER TABLE {}.{} RENAME COLUMN {} TO {}", *names, before, draft)
        for _, draft, after in changed:
            self._run("ALTER TABLE {}.{} RENAME COLUMN {} TO {}", *names, draft, after)

    def _create_again(self, table: LakeTable, known: _Known) -> Defined:
        """Nobody gets a right that an administrator has taken away."""
        grants = self._connection.execute(_GRANTS, [known.relid]).fetchall()
        secured = self._connection.execute(_ROW_SECURITY, [known.relid]).fetchone()
        self._drop(_Known(known.relid, table.name, known.source_relation, {}))
        present = {column.info.name for column in table.columns}
        defined = self._create(
            table, [(grantee, name) for grantee, name in grants if name is None or name in present]
        )
        if secured is not None and secured[0]:
            names = (table.name.namespace, table.name.name)
            self._run("ALTER TABLE {}.{} ENABLE ROW LEVEL SECURITY", *names)
        return defined

    def _create(self, table: LakeTable, grants: Sequence[tuple[str, str | None]]) -> Defined:
        """The table with these grants: a role, and a column or the whole table."""
        names = (table.name.namespace, table.name.name)
        self._schema(names[0])
        self._run("CREATE TABLE {}.{} ()", *names)
        types = self._types(table)
        for column in table.columns:
            self._add_column(names, column.info.name, types[column.field_id])
        row = self._connection.execute(
            "SELECT c.oid::int8 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE nspname = %s AND relname = %s",
            names,
        ).fetchone()
        assert row is not None, "it was just created"
        relid = int(row[0])
        self._run(
            "CREATE FOREIGN TABLE {}.{} () INHERITS ({}.{}) SERVER headrace",
            GUARD,
            f"of {relid}",
            *names,
        )
        # PostgreSQL quotes the role's name.
        for grantee, granted in grants:
            if granted is None:
                self._run(f"GRANT SELECT ON {{}}.{{}} TO {grantee}", *names)
            else:
                self._run(f"GRANT SELECT ({{}}) ON {{}}.{{}} TO {grantee}", granted, *names)
        return self._finished(table, relid)

    def _finished(self, table: LakeTable, relid: int) -> Defined:
        names = (table.name.namespace, table.name.name)
        if table.unique_key and not self._key(relid):
            listed = ", ".join(["{}"] * len(table.unique_key))
            self._run(
                f"ALTER TABLE {{}}.{{}} ADD PRIMARY KEY ({listed})", *names, *table.unique_key
            )
        columns = tuple(
            RelationColumn(number, name, type_oid, modifier)
            for number, name, type_oid, modifier in self._columns(relid)
        )
        numbers = {
            column.field_id: each.number
            for column, each in zip(table.columns, columns, strict=True)
        }
        self._run(
            f"INSERT INTO {GUARD}.tables (relid, source_relation, columns) VALUES (%s, %s, %s) "
            "ON CONFLICT (relid) DO UPDATE SET source_relation = excluded.source_relation, "
            "columns = excluded.columns",
            values=[relid, table.relation_id, json.dumps(numbers)],
        )
        self._comment(table)
        return Defined(relid, columns)

    def _comment(self, table: LakeTable) -> None:
        """A column of a user's type says which one it was."""
        for column in table.columns:
            if column.info.type_oid >= _BUILT_IN_MAX:
                self._connection.execute(
                    composed.SQL("COMMENT ON COLUMN {}.{}.{} IS {}").format(
                        composed.Identifier(table.name.namespace),
                        composed.Identifier(table.name.name),
                        composed.Identifier(column.info.name),
                        composed.Literal(f"{column.info.type_name} in the source"),
                    )
                )

    def _add_column(self, names: tuple[str, str], name: str, kind: tuple[int, int]) -> None:
        row = self._connection.execute("SELECT format_type(%s, %s)", kind).fetchone()
        assert row is not None, "a function's result"
        # PostgreSQL quotes the type's name.
        self._run(f"ALTER TABLE {{}}.{{}} ADD COLUMN {{}} {row[0]}", *names, name)

    def _drop_key(self, relid: int, names: tuple[str, str], table: LakeTable) -> None:
        found = self._key(relid)
        if found is not None and tuple(found[1]) != table.unique_key:
            self._run("ALTER TABLE {}.{} DROP CONSTRAINT {} CASCADE", *names, found[0])

    def _key(self, relid: int) -> tuple[str, list[str]] | None:
        row = self._connection.execute(_KEY, [relid]).fetchone()
        return None if row is None else (row[0], row[1])

    def _columns(self, relid: int) -> list[tuple[int, str, int, int]]:
        return [tuple(row) for row in self._connection.execute(_COLUMNS, [relid])]

    def _types(self, table: LakeTable) -> dict[int, tuple[int, int]]:
        """Each column's type: a user's type is text, as the lake has it."""
        known = {
            row[0]
            for row in self._connection.execute(
                "SELECT oid::int8 FROM pg_type WHERE oid < %s AND typtype IN ('b', 'r', 'm')",
                [_BUILT_IN_MAX],
            )
        }
        types = {}
        for column in table.columns:
            types[column.field_id] = (TEXT, -1)
            if column.info.type_oid in known:
                types[column.field_id] = (column.info.type_oid, column.info.type_modifier)
        return types


def _matched(
    known: Sequence[_Known], tables: Mapping[TableName, LakeTable]
) -> dict[TableName, _Known]:
    """The former definition of each table: that of the same relation, else that of its name."""
    found: dict[TableName, _Known] = {}
    left = list(known)

    def take(fits: Callable[[_Known, TableName, LakeTable], bool]) -> None:
        for name, table in tables.items():
            if name not in found:
                # Each definition serves one table; those that are left over are dropped.
                match = next((each for each in left if fits(each, name, table)), None)
                if match is not None:
                    found[name] = match
                    left.remove(match)

    # The surest match first: a renamed table must not take the definition of one that stayed.
    take(lambda each, name, table: each.name == name and _is_of(each, table))
    take(lambda each, _, table: _is_of(each, table))
    take(lambda each, name, _: each.name == name)
    return found


def _is_of(known: _Known, table: LakeTable) -> bool:
    return known.source_relation == table.relation_id
