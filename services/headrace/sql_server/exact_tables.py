"""Tables with rows in the private PostgreSQL, for statements that it runs itself. Blocking.

A schema has tables of one cut under their names in the lake, with the same column numbers, filled
from the copy with the columns that a statement reads. Nothing in it ever changes: a statement that
needs other columns gets another schema. The rows are frozen, so that a transaction's older snapshot
sees them too. Unused schemas are dropped; a process that starts drops those of an earlier one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import psycopg
from psycopg import sql as composed
from psycopg.errors import LockNotAvailable

from headrace import log as logs
from headrace.errors import HeadraceError
from headrace.sql.copy_from_stdin import CopyLines, rows_query
from headrace.sql.exact_text import Replaced, without_schemas
from headrace.sql.relations import LakeRelation, RelationColumn
from headrace.sql.translation import RequiredPrivilege
from headrace.sql_server.lake_run import BATCH_ROWS, Pinned, SharedLake
from headrace.sql_server.private_postgres import PrivatePostgres

log = logs.logger("sql-server")

PREFIX: Final = "pg_headrace_"
"""Of the schemas' names: tools take them for PostgreSQL's own, and don't list them."""
PLANNED: Final = (-1, "")
"""In place of a cut: tables without rows, on which statements are only planned."""

_KEEP_S: Final = 60.0
# A block may run several statements at an older cut.
_KEEP_OLDER_S: Final = 5.0
# All schemas together may hold so many times the rows of one statement.
_SHARE: Final = 4
_DROP_LOCK_TIMEOUT: Final = "20ms"
_LEFTOVERS: Final = f"SELECT nspname FROM pg_namespace WHERE nspname LIKE '{PREFIX}%'"
_VIEWS: Final = """
SELECT c.oid::int8, n.nspname, c.relname, pg_get_viewdef(c.oid),
    ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0
        ORDER BY attnum),
    EXISTS (SELECT FROM pg_options_to_table(c.reloptions)
        WHERE option_name = 'security_barrier' AND option_value::boolean)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%s::oid[]) AND c.relkind = 'v'
    AND n.nspname NOT IN ('pg_catalog', 'information_schema')"""
_TYPES: Final = """
SELECT c.oid::int8, t.oid::int8, t.typarray::int8
FROM pg_class c JOIN pg_type t ON t.oid = c.reltype WHERE c.oid = ANY(%s::oid[])"""
_KEY: Final = """
SELECT conkey::int[] FROM pg_constraint WHERE conrelid = %s AND contype = 'p'"""
_READABLE: Final = """
SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
    AND has_column_privilege(%s, attrelid, attnum, 'SELECT') ORDER BY attnum LIMIT 1"""


class NotExactError(HeadraceError):
    """The private PostgreSQL can't hold a statement's tables."""


@dataclass(frozen=True, slots=True)
class Use:
    """The needs of a statement: columns of each table of the lake, and rights on its relations."""

    columns: Mapping[int, frozenset[int]]
    needs: Sequence[RequiredPrivilege]
    role: str


@dataclass(slots=True)
class ExactSchema:
    """Tables of one cut, or of none."""

    name: str
    # The cut's number, and the attempt that made it.
    cut: tuple[int, str]
    # The columns that are filled in each table, and the form that the table had.
    filled: dict[int, frozenset[int]] = field(default_factory=dict)
    forms: dict[int, tuple[RelationColumn, ...]] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    relations: dict[int, int] = field(default_factory=dict)
    types: dict[int, int] = field(default_factory=dict)
    # The schemas and names that its relations have in the lake.
    names: set[tuple[str, str]] = field(default_factory=set)
    granted: set[tuple[str, RequiredPrivilege]] = field(default_factory=set)
    # The roles and needs for which nothing is missing.
    complete: set[tuple[str, tuple[RequiredPrivilege, ...]]] = field(default_factory=set)
    users: int = 0
    used: float = field(default_factory=time.monotonic)
    # Something outside has changed, such as a view: no other statement may use it.
    stale: bool = False

    @property
    def replaced(self) -> Replaced:
        """The tables that stand for the lake's."""
        return Replaced(dict(self.relations), dict(self.types))

    def fits(self, cut: tuple[int, str], use: Use, tables: Mapping[int, LakeRelation]) -> bool:
        """Whether a statement may use it, perhaps with more tables."""
        return (
            # Another cut has other rows: a statement must see those of its transaction.
            self.cut == cut
            and not self.stale
            and all(self._has(relid, each, tables[relid]) for relid, each in use.columns.items())
        )

    def _has(self, relid: int, columns: frozenset[int], table: LakeRelation) -> bool:
        """Whether the table is there as the statement needs it, or can be added."""
        if relid not in self.filled:
            return table.name not in {name for _, name in self.names}
        # A column that isn't filled contains nulls only, which would be a wrong answer.
        return columns <= self.filled[relid] and self.forms[relid] == table.columns


class ExactTables:
    """All schemas. Any thread may use it."""

    def __init__(self, server: PrivatePostgres, lake: SharedLake, rows_max: int) -> None:
        self.rows_max = rows_max
        self._server = server
        self._lake = lake
        # Held while tables are filled: two statements would otherwise fill the same ones.
        self._lock = threading.Lock()
        # Held for moments: the event loop must not wait until other tables are filled.
        self._counting = threading.Lock()
        self._schemas: list[ExactSchema] = []
        self._numbers = count(1)

    def clear(self) -> None:
        """Drop what an earlier process has left."""
        with self._server.connect() as connection:
            # Nobody knows which cut the tables of an earlier process show, or whether they are
            # complete.
            for (name,) in connection.execute(_LEFTOVERS).fetchall():
                _run(connection, "DROP SCHEMA {} CASCADE", name)

    def take(self, pinned: Pinned, use: Use, *, planned: bool = False) -> ExactSchema:
        """A schema with the tables that a statement needs, until `release`."""
        cut = PLANNED if planned else pinned.identity
        with self._lock:
            tables = {relid: pinned.relations[relid] for relid in use.columns}
            # All tables of a statement are in one schema, in which a name stands once.
            if len({table.name for table in tables.values()}) < len(tables):
                raise NotExactError("two of its tables have the same name")
            if planned:
                use = Use(dict.fromkeys(tables, frozenset()), use.needs, use.role)
            schema = next((each for each in self._schemas if each.fits(cut, use, tables)), None)
            if schema is not None:
                try:
                    self._complete(schema, pinned, tables, use)
                except NotExactError:
                    # A view that was dropped and created again still has its name there.
                    schema = None
            if schema is None:
                schema = ExactSchema(f"{PREFIX}{next(self._numbers)}", cut)
                self._complete(schema, pinned, tables, use)
                # The transaction has committed: other statements may find it now.
                self._schemas.append(schema)
            with self._counting:
                schema.users += 1
            return schema

    def _complete(
        self,
        schema: ExactSchema,
        pinned: Pinned,
        tables: Mapping[int, LakeRelation],
        use: Use,
    ) -> None:
        # Rights are granted for each role and need; one that is known needs no transaction.
        key = (use.role, tuple(use.needs))
        if key in schema.complete:
            return
        left = self._left(schema, tables.keys())
        try:
            with self._server.connect() as connection, connection.transaction():
                _Filling(connection, self._lake, schema).complete(pinned, tables, use, left)
        # Of an interrupted transaction nobody knows how far it came. No statement uses the schema
        # again.
        except BaseException:
            schema.stale = True
            raise
        schema.complete.add(key)

    def _left(self, schema: ExactSchema, relids: Collection[int]) -> int:
        """How many rows more may be held for a statement on these tables."""
        if schema.cut == PLANNED:
            return 0
        # The tables are real rows on disk and in PostgreSQL's cache: their number is bounded (ADR
        # 0039).
        held = sum(rows for each in self._schemas for rows in each.rows.values())
        if held > (_SHARE - 1) * self.rows_max:
            self._drop([each for each in self._schemas if each is not schema and not each.users])
            held = sum(rows for each in self._schemas for rows in each.rows.values())
        known = sum(schema.rows.get(relid, 0) for relid in relids)
        return min(self.rows_max - known, _SHARE * self.rows_max - held)

    def release(self, schema: ExactSchema, *, stale: bool = False) -> None:
        """A statement doesn't use it any more."""
        with self._counting:
            schema.users -= 1
            schema.used = time.monotonic()
            schema.stale = schema.stale or stale

    def tidy(self, cut: tuple[int, str] | None) -> None:
        """Drop what nobody will use."""
        now = time.monotonic()

        def is_old(each: ExactSchema) -> bool:
            current = each.cut in (cut, PLANNED)
            return each.stale or now - each.used > (_KEEP_S if current else _KEEP_OLDER_S)

        with self._lock:
            self._drop([each for each in self._schemas if not each.users and is_old(each)])

    def _drop(self, schemas: Iterable[ExactSchema]) -> None:
        for each in schemas:
            try:
                with self._server.connect() as connection, connection.transaction():
                    connection.execute(f"SET LOCAL lock_timeout = '{_DROP_LOCK_TIMEOUT}'")
                    _run(connection, "DROP SCHEMA IF EXISTS {} CASCADE", each.name)
            except LockNotAvailable:
                # A transaction has read it, and may continue; the next round tries again.
                each.stale = True
                continue
            self._schemas.remove(each)
            self._lake.exact_relids.difference_update(each.relations.values())


class _Filling:
    """One transaction that completes a schema."""

    def __init__(
        self, connection: psycopg.Connection[Any], lake: SharedLake, schema: ExactSchema
    ) -> None:
        self._connection = connection
        self._lake = lake
        self._schema = schema

    def complete(
        self, pinned: Pinned, tables: Mapping[int, LakeRelation], use: Use, rows_left: int
    ) -> None:
        """Add what a statement needs and the schema lacks."""
        schema = self._schema
        # A crash may lose the schema, but only as a whole; statements then get another one.
        self._connection.execute("SET LOCAL synchronous_commit = off")
        # For the schema's name.
        self._connection.execute("SET LOCAL allow_system_table_mods = on")
        _run(self._connection, "CREATE SCHEMA IF NOT EXISTS {}", schema.name)
        missing = {relid: table for relid, table in tables.items() if relid not in schema.filled}
        # Copies: after an error, the schema must not claim columns that the rollback took away.
        filled = dict(schema.filled)
        rows = dict(schema.rows)
        for relid, table in missing.items():
            columns = [each for each in table.columns if each.number in use.columns[relid]]
            self._create(table)
            if schema.cut != PLANNED:
                rows[relid] = self._fill(pinned, table, columns, rows_left)
                rows_left -= rows[relid]
            self._key(table, use.columns[relid])
            filled[relid] = use.columns[relid]
        views = [need.relid for need in use.needs if need.relid not in tables]
        self._create_views([each for each in views if each not in schema.relations], tables)
        self._grant(use, tables)
        self._learn([*missing, *views])
        schema.filled.update(filled)
        schema.rows.update(rows)
        schema.forms.update({relid: table.columns for relid, table in missing.items()})

    def _create(self, table: LakeRelation) -> None:
        """The table with the same numbers of columns: dropped ones leave holes."""
        # The analyzer's tree names columns by number, so the numbers have to be those of the lake's
        # table.
        last = max((each.number for each in table.columns), default=0)
        by_number = {each.number: each for each in table.columns}
        definitions: list[composed.Composable] = []
        holes = []
        for number in range(1, last + 1):
            column = by_number.get(number)
            if column is None:
                holes.append(f"headrace {number}")
                hole = composed.Identifier(holes[-1])
                definitions.append(composed.SQL("{} int").format(hole))
                continue
            row = self._connection.execute(
                "SELECT format_type(%s, %s)", [column.type_oid, column.modifier]
            ).fetchone()
            assert row is not None, "a function's result"
            # PostgreSQL quotes the type's name.
            kind = composed.SQL(row[0])
            definitions.append(composed.SQL("{} {}").format(composed.Identifier(column.name), kind))
        self._connection.execute(
            composed.SQL("CREATE TABLE {}.{} ({})").format(
                composed.Identifier(self._schema.name),
                composed.Identifier(table.name),
                composed.SQL(", ").join(definitions),
            )
        )
        for hole_name in holes:
            names = (self._schema.name, table.name, hole_name)
            _run(self._connection, "ALTER TABLE {}.{} DROP COLUMN {}", *names)

    def _fill(
        self,
        pinned: Pinned,
        table: LakeRelation,
        columns: Sequence[RelationColumn],
        rows_max: int,
    ) -> int:
        """Copy the rows of the cut; returns how many they are."""
        # Raises for types that PostgreSQL reads differently here, before anything is copied.
        lines = CopyLines(columns)
        # Rows without a column are rows of nulls.
        written = columns or table.columns[:1]
        if not written:
            raise NotExactError(f"{table.name} has no columns")
        names = composed.SQL(", ").join(composed.Identifier(each.name) for each in written)
        # Frozen rows are visible to every snapshot, also to the older one of a REPEATABLE READ
        # block.
        statement = composed.SQL("COPY {}.{} ({}) FROM STDIN (FREEZE)").format(
            composed.Identifier(self._schema.name), composed.Identifier(table.name), names
        )
        copied = 0
        with pinned.using() as cursor, self._connection.cursor() as target:
            row = cursor.execute(f"SELECT count(*) FROM {table.copy}").fetchone()
            assert row is not None, "a count is a row"
            # Counted before anything is copied: a table that is too large is refused immediately.
            if row[0] > rows_max:
                raise NotExactError(f"{table.name} has {row[0]} rows")
            reader = cursor.execute(rows_query(table, columns)).to_arrow_reader(BATCH_ROWS)
            with target.copy(statement) as copy:
                for batch in reader:
                    copy.write(lines.of(batch))
                    copied += batch.num_rows
        # Fewer rows would be a wrong answer that nobody notices.
        if copied != row[0]:
            raise NotExactError(f"{table.name} was not copied completely")
        # Without statistics, PostgreSQL plans joins of these tables badly.
        _run(self._connection, "ANALYZE {}.{}", self._schema.name, table.name)
        return copied

    def _key(self, table: LakeRelation, filled: Collection[int]) -> None:
        """The primary key, on which GROUP BY may rely, and by which rows are found."""
        row = self._connection.execute(_KEY, [table.relid]).fetchone()
        if row is None:
            return
        # A statement that relies on the key groups by its columns, so it reads them.
        # Columns that aren't filled are null, which a primary key forbids.
        if self._schema.cut != PLANNED and not set(row[0]) <= set(filled):
            return
        by_number = {each.number: each.name for each in table.columns}
        names = [by_number.get(number, "") for number in row[0]]
        listed = ", ".join(["{}"] * len(names))
        target = (self._schema.name, table.name, *names)
        _run(self._connection, f"ALTER TABLE {{}}.{{}} ADD PRIMARY KEY ({listed})", *target)

    def _create_views(self, relids: Collection[int], tables: Mapping[int, LakeRelation]) -> None:
        """Views of the statement, in any order in which they can be created."""
        # pg_get_viewdef leaves out the schemas that the path contains; with this path it writes all
        # others, so that none stays in a text by mistake.
        self._connection.execute("SET LOCAL search_path = pg_catalog")
        left = self._connection.execute(_VIEWS, [list(relids)]).fetchall()
        names = {(table.schema, table.name) for table in tables.values()}
        names |= {(schema, name) for _, schema, name, *_ in left}
        self._connection.execute(
            "SELECT set_config('search_path', %s, true)", [f'"{self._schema.name}"']
        )
        # A view may read another one of them: each round creates those whose views exist.
        while left:
            failed = [each for each in left if not self._create_view(names, *each)]
            if len(failed) == len(left):
                raise NotExactError(f"the view {left[0][2]} can't be created")
            left = failed
        self._connection.execute("SET LOCAL search_path = pg_catalog")

    def _create_view(
        self,
        names: Collection[tuple[str, str]],
        _relid: int,
        _schema: str,
        name: str,
        definition: str,
        columns: Sequence[str],
        barrier: bool,
    ) -> bool:
        options = composed.SQL(" WITH (security_barrier = {})").format(composed.Literal(barrier))
        text = without_schemas(definition.rstrip("; \n").encode(), names).decode()
        listed = composed.SQL(", ").join(map(composed.Identifier, columns))
        try:
            # A savepoint: a view that can't be created yet must not fail the whole transaction.
            with self._connection.transaction():
                self._connection.execute(
                    composed.SQL("CREATE VIEW {}.{} ({}){} AS {}").format(
                        composed.Identifier(self._schema.name),
                        composed.Identifier(name),
                        listed,
                        options,
                        composed.SQL(text),
                    )
                )
        except psycopg.Error:
            return False
        return True

    def _grant(self, use: Use, tables: Mapping[int, LakeRelation]) -> None:
        """Give the role here the rights that it has in the lake, for this statement's columns."""
        schema = self._schema
        _run(self._connection, "GRANT USAGE ON SCHEMA {} TO {}", schema.name, use.role)
        for need in use.needs:
            table = tables.get(need.relid)
            # A view reads with its owner's rights: here that is the superuser.
            if need.user or (use.role, need) in schema.granted:
                continue
            if table is None:
                self._grant_view(need.relid, use.role)
            else:
                names = self._granted_columns(table, need, use.role)
                listed = ", ".join(["{}"] * len(names))
                target = (*names, schema.name, table.name, use.role)
                _run(self._connection, f"GRANT SELECT ({listed}) ON {{}}.{{}} TO {{}}", *target)
            schema.granted.add((use.role, need))

    def _grant_view(self, relid: int, role: str) -> None:
        row = self._connection.execute(
            "SELECT relname FROM pg_class WHERE oid = %s "
            "AND to_regclass(%s || quote_ident(relname)) IS NOT NULL",
            [relid, f"{self._schema.name}."],
        ).fetchone()
        if row is not None:
            target = (self._schema.name, row[0], role)
            _run(self._connection, "GRANT SELECT ON {}.{} TO {}", *target)

    def _granted_columns(
        self, table: LakeRelation, need: RequiredPrivilege, role: str
    ) -> list[str]:
        if 0 in need.columns:
            return [each.name for each in table.columns]
        if need.columns:
            return [each.name for each in table.columns if each.number in need.columns]
        # PostgreSQL asks for the right on any column.
        row = self._connection.execute(_READABLE, [table.relid, role]).fetchone()
        if row is None:
            raise NotExactError(f"no column of {table.name} may be read")
        return [row[0]]

    def _learn(self, relids: Collection[int]) -> None:
        """Know the new relations before anybody can see them."""
        if not relids:
            return
        schema = self._schema
        rows = self._connection.execute(
            "SELECT old.oid::int8, new.oid::int8, o.nspname, old.relname FROM pg_class old "
            "JOIN pg_namespace o ON o.oid = old.relnamespace "
            "JOIN pg_class new ON new.relname = old.relname "
            "JOIN pg_namespace n ON n.oid = new.relnamespace "
            "WHERE old.oid = ANY(%s::oid[]) AND n.nspname = %s",
            [list(relids), schema.name],
        ).fetchall()
        found = {before: after for before, after, _, _ in rows}
        schema.names.update((namespace, name) for _, _, namespace, name in rows)
        # Before the commit: clients are refused a table from the moment at which they can see it.
        self._lake.exact_relids.update(found.values())
        schema.relations.update(found)
        wanted = [*found, *found.values()]
        kinds = {
            relid: (row_type, array)
            for relid, row_type, array in self._connection.execute(_TYPES, [wanted])
        }
        for before, after in found.items():
            schema.types.update(zip(kinds[before], kinds[after], strict=True))


def _run(connection: psycopg.Connection[Any], text: str, *names: str) -> None:
    """A statement with names in braces."""
    connection.execute(composed.SQL(text).format(*map(composed.Identifier, names)))
