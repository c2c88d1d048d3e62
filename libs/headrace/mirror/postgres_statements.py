"""The names and conditions in the statements of a mirror in PostgreSQL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.mirror import target
from headrace.mirror.mirror_state import STALE
from headrace.mirror.postgres_values import text_of, type_in
from headrace.mirror.soft_deleted_rows import MarkedSql
from headrace.mirror.table import Table
from headrace.postgres.quoting import quote_name, quote_table

SCHEMA = "headrace_mirror"
# A name's length in PostgreSQL, unless somebody built it otherwise.
NAME_BYTES = 63


def table_name(table: Table) -> str:
    """The table's name in SQL."""
    if table.staging:
        # A name may have 63 bytes already, so nothing fits in front of it.
        digest = hashlib.sha256(f"{table.schema}\0{table.name}".encode()).hexdigest()[:24]
        return f"{SCHEMA}.new_{digest}"
    return quote_table(*table.place)


def check_names(table: Table) -> None:
    """Raise if the server could not have the table under its name."""
    schema, name = table.place
    if schema == SCHEMA and table != STALE:
        raise target.TargetError(
            f"{SCHEMA}.{name}: the schema {SCHEMA} is reserved for the mirror's state",
            remedy=f"Leave it out at the source: HEADRACE_EXCLUDE={SCHEMA}.*",
        )
    for part in (schema, name):
        # The server would cut it off, and two tables could get the same name.
        if len(part.encode()) > NAME_BYTES:
            raise target.TargetError(
                f"{schema}.{name} has a name of more than {NAME_BYTES} bytes",
                remedy="Shorten `destination`, or leave the table out of `tables`.",
            )


def safe(name: str) -> str:
    """For a statement with placeholders, where % has a meaning."""
    return quote_name(name).replace("%", "%%")


def safe_table(table: Table) -> str:
    """Like `safe`, of a whole table."""
    return table_name(table).replace("%", "%%")


def placeholder(table: Table, name: str) -> str:
    """The placeholder of a column's value."""
    return f"%s::{type_in(table.type_of(name))}"


def row_test(table: Table, where: Mapping[str, Any]) -> tuple[str, list[str | None]]:
    """The condition that only the row with these values fulfills, and its parameters."""
    named, rest = target.split(table, where)
    finds_one = target.finds_one(table, where, named, rest)
    # Without a usable key the row is found by all its values, and LIMIT 1 chooses one of several
    # equal rows: the source has changed exactly one of them, and they can't be distinguished.
    mark = table.rules.soft_delete
    unmarked = f" AND {safe(mark)} IS NULL" if mark in named else ""
    if named is where or None in [value for name, value in named.items() if name != mark]:
        found = f"SELECT ctid FROM {safe_table(table)} WHERE {_same_text(table, where)} LIMIT 1"
        return f"ctid = ({found})", texts(table, where)
    named = {name: value for name, value in named.items() if name != mark}
    by_key = " AND ".join(f"{safe(name)} = {placeholder(table, name)}" for name in named) + unmarked
    if finds_one:
        return by_key, texts(table, named)
    if not rest:
        found = f"SELECT ctid FROM {safe_table(table)} WHERE {by_key} LIMIT 1"
        return f"ctid = ({found})", texts(table, named)
    # By its key if that identifies one row; a deferrable key may belong to several rows within a
    # transaction.
    whole = f"(array_agg(ctid) FILTER (WHERE {_same_text(table, rest)}))[1]"
    what = f"CASE WHEN count(*) = 1 THEN (array_agg(ctid))[1] ELSE {whole} END"
    found = f"SELECT {what} FROM {safe_table(table)} WHERE {by_key}"
    return f"ctid = ({found})", [*texts(table, rest), *texts(table, named)]


def _same_text(table: Table, names: Iterable[str]) -> str:
    return " AND ".join(
        f"{safe(name)}::text IS NOT DISTINCT FROM ({placeholder(table, name)})::text"
        for name in names
    )


def texts(table: Table, values: Mapping[str, Any]) -> list[str | None]:
    """The values as PostgreSQL reads them."""
    return [
        None if value is None else text_of(table.type_of(name))(value)
        for name, value in values.items()
    ]


def _carried(step: target.CarryOver, name: str) -> str:
    before, after = (type_in(table.type_of(name)) for table in (step.before, step.table))
    if before == after:
        return f"old.{safe(name)}"
    return f"old.{safe(name)}::text::{after}"


MARKED = MarkedSql(
    safe_table,
    placeholder=placeholder,
    stored=lambda table, name, value: text_of(table.type_of(name))(value),
    converted=_carried,
    quoted=safe,
)
