"""Creates a table of restored rows in a live database, in one transaction and under a free name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from headrace.backup.errors import RestoreError
from headrace.mirror import Table
from headrace.mirror.postgres_statements import NAME_BYTES
from headrace.process.failpoint import failpoint

_DOMAINS = """
SELECT format_type(oid, NULL), format_type(typbasetype, typtypmod) FROM pg_type WHERE typtype = 'd'
"""
# Types that have another meaning without a length in a definition.
_UNLIMITED = {"character": "bpchar", "character[]": "bpchar[]"}


@dataclass(frozen=True, slots=True)
class NewTable:
    """What was created."""

    rows: int
    # The columns whose type the database does not have.
    as_text: tuple[str, ...]


def domains(session: psycopg.Connection[Any]) -> Mapping[str, str]:
    """The base types of the database's domains, by name."""
    return dict(session.execute(_DOMAINS).fetchall())


def require_free(session: psycopg.Connection[Any], schema: str, name: str) -> None:
    """Raise if the database can't have a new table of this name."""
    # PostgreSQL cuts a longer name without an error.
    if len(name.encode()) > NAME_BYTES:
        raise RestoreError(
            f"the name {name} is too long for PostgreSQL", remedy="Name a shorter one with --as."
        )
    quoted = sql.Identifier(schema, name).as_string(session)
    row = session.execute("SELECT to_regclass(%s) IS NULL", (quoted,)).fetchone()
    if row is None or not row[0]:
        raise RestoreError(
            f"{schema}.{name} exists already",
            remedy="Nothing was changed. Name another table with --as, or another database with "
            "--into.",
        )


def create(
    session: psycopg.Connection[Any],
    table: Table,
    name: str,
    rows: Callable[[Sequence[str]], Iterable[Sequence[str | None]]],
) -> NewTable:
    """Create the table with its rows and its primary key."""
    place = sql.Identifier(table.schema, name)
    names = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
    definitions = []
    as_text = []
    for column in table.columns:
        kind = column.data_type
        row = session.execute("SELECT to_regtype(%s) IS NOT NULL", (kind,)).fetchone()
        if row is None or not row[0]:
            as_text.append(column.name)
            kind = "text"
        kind = _UNLIMITED.get(kind, kind)
        # PostgreSQL has just read it as the name of a type, and of nothing else.
        definitions.append(sql.SQL(f"{{}} {_escaped(kind)}").format(sql.Identifier(column.name)))
    with session.transaction():
        body = sql.SQL(", ").join(definitions)
        session.execute(sql.SQL("CREATE TABLE {} ({})").format(place, body))
        with session.cursor() as cursor:
            with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(place, names)) as copy:
                for values in rows([column.name for column in table.columns]):
                    copy.write_row(values)
            count = cursor.rowcount
        if table.primary_key:
            key = sql.SQL(", ").join(map(sql.Identifier, table.primary_key))
            session.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(place, key))
        failpoint("restore.before_commit")
    return NewTable(count, tuple(as_text))


def _escaped(text: str) -> str:
    """For a template, in which braces have a meaning."""
    return text.replace("{", "{{").replace("}", "}}")
