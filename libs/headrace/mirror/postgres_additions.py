"""Everything that users added to a table of a PostgreSQL target, for its new copy.

A new copy of a table replaces the old one. Promises: indexes, constraints, foreign keys from and to
the table, views, triggers, rules, policies, privileges, the owner and comments are as they were, in
the transaction that replaces the table; only what needs a column that the table no longer has is
left out, with a warning, as PostgreSQL itself leaves it out of a table without that column. A view,
trigger, rule or policy is never left out: then the table keeps its old copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from headrace import log as logs
from headrace.mirror.target import TargetError

log = logs.logger("mirror")

# The temporary name of an index: its own belongs to the old copy until that is dropped.
_NAME = "headrace_kept_"
_UNCHECKED = " NOT VALID"
_LIVE = """
SELECT c.oid, quote_ident(n.nspname), quote_ident(c.relname), current_setting('search_path')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%(live)s)
"""
# With the part of the definition after the table's name.
_INDEXES = """
SELECT quote_ident(x.relname), i.indisunique, substr(pg_get_indexdef(x.oid), 1 + length(format(
    'CREATE %%sINDEX %%I ON %%s', CASE WHEN i.indisunique THEN 'UNIQUE ' END, x.relname,
    %(live)s::text)))
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
WHERE i.indrelid = %(oid)s AND i.indisvalid AND x.relname <> ALL (%(own)s)
    AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = x.oid
        AND c.contype IN ('p', 'u', 'x'))
ORDER BY x.relname
"""
# Not-null constraints first, as a primary key would create them under another name.
_CONSTRAINTS = """
SELECT quote_ident(c.conname), c.contype::text, pg_get_constraintdef(c.oid)
FROM pg_constraint c WHERE c.conrelid = %(oid)s AND c.conparentid = 0
    AND c.contype IN ('n', 'p', 'u', 'x', 'c', 'f')
ORDER BY position(c.contype::text IN 'npuxcf'), c.conname
"""
_NOT_NULL = """
SELECT format('ALTER COLUMN %%I SET NOT NULL', a.attname) FROM pg_attribute a
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND a.attnotnull AND NOT a.attisdropped
    AND current_setting('server_version_num')::int < 180000 ORDER BY a.attnum
"""
# Foreign keys of other tables, which refer to this one.
_REFERRING = """
SELECT c.conrelid::regclass::text, quote_ident(c.conname), pg_get_constraintdef(c.oid)
FROM pg_constraint c WHERE c.confrelid = %(oid)s AND c.conrelid <> c.confrelid
    AND c.contype = 'f' AND c.conparentid = 0 ORDER BY c.conrelid::regclass::text, c.conname
"""
_VIEWS = """
WITH RECURSIVE depending AS (
    SELECT %(oid)s::oid AS oid, 0 AS depth
    UNION ALL
    SELECT r.ev_class, depending.depth + 1 FROM depending
        JOIN pg_depend d ON d.refobjid = depending.oid AND d.refclassid = 'pg_class'::regclass
            AND d.classid = 'pg_rewrite'::regclass
        JOIN pg_rewrite r ON r.oid = d.objid AND r.ev_class <> depending.oid
), views AS (SELECT oid, max(depth) AS depth FROM depending WHERE depth > 0 GROUP BY oid)
SELECT c.oid, c.oid::regclass::text,
    format('CREATE VIEW %%s%%s AS %%s', c.oid::regclass,
        ' WITH (' || array_to_string(c.reloptions, ', ') || ')', pg_get_viewdef(c.oid)),
    c.relkind = 'v' AND NOT c.relhastriggers
        AND NOT EXISTS (SELECT FROM pg_attrdef d WHERE d.adrelid = c.oid)
        AND NOT EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid
            AND r.rulename <> '_RETURN')
FROM views JOIN pg_class c USING (oid) ORDER BY views.depth, c.oid
"""
# Statements about the table; one without a name may be left out.
_TABLE = """
SELECT 1, 'trigger ' || quote_ident(t.tgname), pg_get_triggerdef(t.oid) FROM pg_trigger t
WHERE t.tgrelid = %(oid)s AND NOT t.tgisinternal
UNION ALL
SELECT 2, 'trigger ' || quote_ident(t.tgname),
    format('ALTER TABLE %%s %%s TRIGGER %%I', %(live)s::text,
        CASE t.tgenabled WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA'
        ELSE 'ENABLE ALWAYS' END, t.tgname)
FROM pg_trigger t
WHERE t.tgrelid = %(oid)s AND NOT t.tgisinternal AND t.tgenabled <> 'O'
UNION ALL
SELECT 3, 'rule ' || quote_ident(r.rulename), pg_get_ruledef(r.oid) FROM pg_rewrite r
WHERE r.ev_class = %(oid)s
UNION ALL
SELECT 4, 'policy ' || quote_ident(p.polname),
    format('CREATE POLICY %%I ON %%s AS %%s FOR %%s TO %%s%%s%%s', p.polname,
    %(live)s::text, CASE WHEN p.polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
    CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE'
        WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
    (SELECT string_agg(CASE WHEN u = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(u)) END,
        ', ') FROM unnest(p.polroles) u),
    ' USING (' || pg_get_expr(p.polqual, p.polrelid) || ')',
    ' WITH CHECK (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')')
FROM pg_policy p WHERE p.polrelid = %(oid)s
UNION ALL
SELECT 5, 'row level security',
    format('ALTER TABLE %%s %%s ROW LEVEL SECURITY', %(live)s::text, word)
FROM pg_class c, LATERAL (VALUES (c.relrowsecurity, 'ENABLE'), (c.relforcerowsecurity, 'FORCE'))
    AS security (wanted, word) WHERE c.oid = %(oid)s AND wanted
UNION ALL
SELECT 6, '', pg_get_statisticsobjdef(s.oid) FROM pg_statistic_ext s
WHERE s.stxrelid = %(oid)s
ORDER BY 1, 2
"""
# Of the table or of a view. Privileges come last: they are lost with a change of the owner.
_RIGHTS = """
WITH relation AS (SELECT c.*, c.oid::regclass::text AS shown,
    CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind
    FROM pg_class c WHERE c.oid = %(oid)s)
SELECT 1, format('COMMENT ON %%s %%s IS %%L', kind, shown, d.description)
FROM relation JOIN pg_description d ON d.objoid = relation.oid
    AND d.classoid = 'pg_class'::regclass AND d.objsubid = 0
UNION ALL
SELECT 1, format('COMMENT ON COLUMN %%s.%%I IS %%L', shown, a.attname, d.description)
FROM relation JOIN pg_description d ON d.objoid = relation.oid
    AND d.classoid = 'pg_class'::regclass
JOIN pg_attribute a ON a.attrelid = relation.oid AND a.attnum = d.objsubid AND a.attnum > 0
UNION ALL
SELECT 2, format('ALTER %%s %%s OWNER TO %%I', kind, shown, pg_get_userbyid(relowner))
FROM relation WHERE pg_get_userbyid(relowner) <> current_user
UNION ALL
SELECT 3, format('GRANT %%s%%s ON %%s TO %%s%%s', g.privilege_type, g.of_column, shown,
    CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END,
    CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' END)
FROM relation, LATERAL (
    SELECT a.privilege_type, a.grantee, a.is_grantable, '' AS of_column
    FROM aclexplode(relation.relacl) a
    UNION ALL
    SELECT e.privilege_type, e.grantee, e.is_grantable, format(' (%%I)', a.attname)
    FROM pg_attribute a, aclexplode(a.attacl) e
    WHERE a.attrelid = relation.oid AND NOT a.attisdropped
) g WHERE g.grantee <> relowner
ORDER BY 1, 2
"""
# The new copy lacks a column, or its type has no such index.
_WITHOUT_COLUMN = (
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedObject,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.DatatypeMismatch,
    psycopg.errors.InvalidColumnReference,
)


# The new copy can't have it: a row or a column contradicts it, or the role has no right to do it.
_REFUSED = ("0A", "23", "2B", "42")


@dataclass(frozen=True, slots=True)
class _Statement:
    sql: str
    # The object's name in errors.
    name: str
    # Whether it may be left out if the new copy lacks a column.
    optional: bool = False
    # A later statement, if this one was not left out.
    then: str = ""


@dataclass(eq=False)
class Additions:
    """Statements that give a table's new copy what its old copy has."""

    connection: psycopg.AsyncConnection[Any]
    table: str
    # About the new copy, which still has its temporary name.
    on_new: list[_Statement] = field(default_factory=list)
    # Before the old copy can be dropped.
    dropped: list[_Statement] = field(default_factory=list)
    # About the new copy, under the table's name.
    after: list[_Statement] = field(default_factory=list)
    # At the end of the transaction: the tables that foreign keys connect may all be replaced in it.
    at_commit: list[_Statement] = field(default_factory=list)

    async def prepare(self) -> None:
        """Add to the new copy what takes long, so that readers don't wait for it; then drop what
        refers to the old copy.
        """
        self.after[:0] = [
            _Statement(statement.then, statement.name)
            for statement in self.on_new
            if await self._run(statement) and statement.then
        ]
        for statement in self.dropped:
            await self._run(statement)

    async def complete(self) -> None:
        """Add the rest."""
        for statement in self.after:
            await self._run(statement)

    async def check(self) -> None:
        """Check what was added without a check, with all rows of the transaction."""
        for statement in self.at_commit:
            await self._run(statement)

    async def _run(self, statement: _Statement) -> bool:
        try:
            async with self.connection.transaction():
                await self.connection.execute(statement.sql.encode())
        except psycopg.Error as error:
            said = error.diag.message_primary
            if statement.optional and isinstance(error, _WITHOUT_COLUMN):
                log.warning("not_kept", table=self.table, object=statement.name, reason=said)
                return False
            if (error.sqlstate or "").startswith(_REFUSED):
                raise TargetError(
                    f"the new copy of {self.table} can't have the {statement.name}: {said}",
                    remedy="Drop or change it there, then restart the mirror.",
                ) from error
            raise
        return True


class _Reader:
    """Reads the additions to one table, with the schema of every object that they name."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], live: str, staged: str) -> None:
        self._connection = connection
        self._given: dict[str, object] = {"live": live}
        self._staged = staged
        self._count = 0

    async def _asked(self, query: str, **more: object) -> list[tuple[Any, ...]]:
        cursor = await self._connection.execute(query.encode(), self._given | more)
        return await cursor.fetchall()

    async def read(self, own: Sequence[str]) -> Additions:
        """Everything; `own` are the names of the mirror's indexes."""
        found = await self._asked(_LIVE)
        if not found:
            return Additions(self._connection, str(self._given["live"]))
        ((oid, schema, name, path),) = found
        live = f"{schema}.{name}"
        self._given = {"oid": oid, "live": live, "own": list(own)}
        # Nobody adds anything from here on; readers continue.
        await self._asked_nothing(f"LOCK TABLE {live} IN SHARE UPDATE EXCLUSIVE MODE")
        await self._asked("SELECT set_config('search_path', 'pg_catalog', true)")
        made = Additions(self._connection, live)
        await self._constraints(made)
        await self._indexes(made, schema)
        await self._of_others(made)
        for _, label, sql in await self._asked(_TABLE):
            made.after.append(_Statement(sql, label or "statistics", optional=not label))
        await self._rights(made, oid)
        await self._views(made)
        await self._asked("SELECT set_config('search_path', %(path)s, true)", path=path)
        return made

    async def _asked_nothing(self, sql: str) -> None:
        await self._connection.execute(sql.encode())

    def _temporary(self) -> str:
        self._count += 1
        return f"{_NAME}{self._count}"

    async def _constraints(self, made: Additions) -> None:
        live = made.table
        for name, contype, definition in await self._asked(_CONSTRAINTS):
            label = f"constraint {name}"
            if contype in {"p", "u", "x"}:
                temporary = self._temporary()
                sql = f"ALTER TABLE {self._staged} ADD CONSTRAINT {temporary} {definition}"
                then = f"ALTER TABLE {live} RENAME CONSTRAINT {temporary} TO {name}"
                made.on_new.append(_Statement(sql, label, optional=True, then=then))
                continue
            if contype == "f":
                self._foreign_key(made, live, name, definition, f"foreign key {name}")
                continue
            sql = f"ALTER TABLE {self._staged} ADD CONSTRAINT {name} {definition}"
            made.on_new.append(_Statement(sql, label, optional=True))
        for (change,) in await self._asked(_NOT_NULL):
            sql = f"ALTER TABLE {self._staged} {change}"
            made.on_new.append(_Statement(sql, "constraint NOT NULL", optional=True))

    async def _indexes(self, made: Additions, schema: str) -> None:
        for name, unique, definition in await self._asked(_INDEXES):
            temporary = self._temporary()
            kind = "UNIQUE INDEX" if unique else "INDEX"
            sql = f"CREATE {kind} {temporary} ON {self._staged}{definition}"
            then = f"ALTER INDEX {schema}.{temporary} RENAME TO {name}"
            made.on_new.append(_Statement(sql, f"index {name}", optional=True, then=then))

    async def _of_others(self, made: Additions) -> None:
        """Foreign keys of other tables."""
        for child, name, definition in await self._asked(_REFERRING):
            label = f"foreign key {name} of {child}"
            made.dropped.append(_Statement(f"ALTER TABLE {child} DROP CONSTRAINT {name}", label))
            self._foreign_key(made, child, name, definition, label)

    @staticmethod
    def _foreign_key(made: Additions, table: str, name: str, definition: str, label: str) -> None:
        optional = table == made.table
        add = f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}"
        if not definition.endswith(_UNCHECKED):
            add += _UNCHECKED
            check = f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}"
            made.at_commit.append(_Statement(check, label, optional=optional))
        made.after.append(_Statement(add, label, optional=optional))

    async def _rights(self, made: Additions, oid: int) -> None:
        for _, sql in await self._asked(_RIGHTS, oid=oid):
            made.after.append(_Statement(sql, "comments and privileges", optional=True))

    async def _views(self, made: Additions) -> None:
        drops = []
        for oid, name, create, is_plain in await self._asked(_VIEWS):
            if not is_plain:
                raise TargetError(
                    f"{name} depends on {made.table}, and only plain views can be created again",
                    remedy="Drop it there, then restart the mirror.",
                )
            drops.append(_Statement(f"DROP VIEW {name}", f"view {name}"))
            made.after.append(_Statement(create, f"view {name}"))
            await self._rights(made, oid)
        made.dropped[:0] = drops[::-1]


async def additions(
    connection: psycopg.AsyncConnection[Any], live: str, staged: str, own: Sequence[str]
) -> Additions:
    """Read the additions to a table; there are none if it doesn't exist. `own` are the names of the
    mirror's indexes.
    """
    return await _Reader(connection, live, staged).read(own)
