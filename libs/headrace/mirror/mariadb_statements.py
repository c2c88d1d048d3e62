"""The SQL of a mirror in MariaDB or MySQL: it makes statements and runs none.

Values are literals in the statements, so that a statement can be stored and run later. Numbers are
not quoted: the server would compare a number with a string as floats, which are not exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.mirror import target
from headrace.mirror.mirror_state import STALE
from headrace.mirror.native_types import Dialect, Native, NativeColumn, NativeTypes
from headrace.mirror.soft_deleted_rows import carried_over
from headrace.mirror.table import Table

MARKS = "headrace_mirror"
JOURNAL = f"{MARKS}_journal"
_RESERVED = "headrace_"
# A server accepts 16 MiB by default; a statement ends before a row that would make it longer.
STATEMENT_BYTES = 1 << 20
# InnoDB's limit for all columns of a key, of which a character takes four.
_KEY_BYTES = 3072
_FIXED_KEY_BYTES = 36 * 4
_PREFIX_CHARACTERS = 128
_NAME_CHARACTERS = 64
DIALECT = Dialect(
    types={
        Native.BOOL: "TINYINT(1)",
        Native.INT2: "SMALLINT",
        Native.INT4: "INT",
        Native.INT8: "BIGINT",
        Native.OID: "INT UNSIGNED",
        # FLOAT is printed with six digits.
        Native.FLOAT: "DOUBLE",
        Native.BYTES: "LONGBLOB",
        Native.DECIMAL: "DECIMAL({digits},{scale})",
        Native.DATE: "DATE",
        Native.TIMESTAMP: "DATETIME(6)",
        # TIMESTAMP ends in 2038 (or 2106); this one is in UTC.
        Native.TIMESTAMPTZ: "DATETIME(6)",
        Native.TIME: "TIME(6)",
        Native.UUID: "CHAR(36)",
        # JSON would refuse documents that are deeper than 32.
        Native.TEXT: "LONGTEXT",
    },
    digits_max=65,
    scale_max=38,
    unusual_floats=False,
    infinite_dates=False,
    year_max=9999,
)
_NUMBERS = frozenset(
    {Native.BOOL, Native.INT2, Native.INT4, Native.INT8, Native.OID, Native.DECIMAL}
)


@dataclass(frozen=True, slots=True)
class RowStatement:
    """One statement about rows; `expected` is how many it must match."""

    table: Table
    sql: str
    expected: int | None = None


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def plain_name(table: Table) -> str:
    """The table's name in the database: a table outside `public` is named `schema.table`."""
    if table.staging:
        digest = hashlib.sha256(f"{table.schema}\0{table.name}".encode()).hexdigest()[:24]
        return f"{_RESERVED}new_{digest}"
    schema, name = table.place
    if schema == "public":
        return name
    return f"{schema}.{name}"


def table_name(table: Table) -> str:
    """The same, quoted."""
    return quoted(plain_name(table))


def literal(text: str) -> str:
    """A text as a literal, with the session's sql_mode."""
    return "'" + text.translate(_ESCAPES) + "'"


_ESCAPES = str.maketrans(
    {"\\": "\\\\", "'": "\\'", "\0": "\\0", "\n": "\\n", "\r": "\\r", "\x1a": "\\Z"}
)


def _binary(value: str | bytes) -> str:
    assert isinstance(value, bytes)
    # A hexadecimal literal: bytes in a string would be read in the session's character set.
    return f"X'{value.hex()}'"


def _float(value: str | bytes) -> str:
    # Without an exponent the server takes it as a decimal.
    text = str(value)
    if "e" in text:
        return text
    return f"{text}e0"


def _quoted_text(value: str | bytes) -> str:
    return literal(str(value))


def literal_of(column: NativeColumn) -> Callable[[Any], str]:
    """A value's literal in this column."""
    form = stored_literal(column)
    text = column.text
    return lambda value: "NULL" if value is None else form(text(value))


def stored_literal(column: NativeColumn) -> Callable[[str | bytes], str]:
    """The literal of a value as the server has it."""
    form: Callable[[str | bytes], str] = _quoted_text
    if column.native in _NUMBERS:
        form = str
    elif column.native is Native.FLOAT:
        form = _float
    elif column.native is Native.BYTES:
        form = _binary
    return form


@dataclass(frozen=True, slots=True)
class Statements:
    """Makes the statements of steps for one server."""

    types: NativeTypes
    # Compares texts byte for byte, and does not ignore blanks at the end.
    collation: str

    # Rows.

    def rows(self, step: target.Step) -> Iterator[RowStatement]:
        """The statements of a step that changes rows."""
        match step:
            case target.InsertRows(table, rows):
                yield from self._insert(table, rows)
            case target.UpdateRow(table, where, data) if data:
                makers = self._literals(table)
                sets = ", ".join(
                    f"{quoted(name)} = {makers[name](value)}" for name, value in data.items()
                )
                yield self._one(table, f"UPDATE {table_name(table)} SET {sets}", where)
            case target.DeleteRow(table, where):
                yield self._one(table, f"DELETE FROM {table_name(table)}", where)
            case target.TruncateTable(table, None):
                # TRUNCATE would commit.
                yield RowStatement(table, f"DELETE FROM {table_name(table)}")
            case target.TruncateTable(table, at):
                mark = quoted(table.rules.soft_delete)
                time = self._literals(table)[table.rules.soft_delete](at)
                sql = f"UPDATE {table_name(table)} SET {mark} = {time} WHERE {mark} IS NULL"
                yield RowStatement(table, sql)
            case target.RemoveSoftDeleted(table, rows):
                yield from self._remove_marked(table, rows)
            case target.CarryOver(table):
                values = {column.name: f"old.{quoted(column.name)}" for column in step.columns}
                mark = table.rules.soft_delete
                time = self._literals(table)[mark](step.at) if mark else ""
                sql = carried_over(step, table_name, values, time, quoted)
                yield RowStatement(table, sql)

    def _literals(self, table: Table) -> dict[str, Callable[[Any], str]]:
        return {column.name: literal_of(column) for column in self.types.columns(table)}

    def _insert(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> Iterator[RowStatement]:
        makers = list(self._literals(table).items())
        names = ", ".join(quoted(name) for name, _ in makers)
        head = f"INSERT INTO {table_name(table)} ({names}) VALUES "
        for parts in _together(
            "(" + ",".join([make(row.get(name)) for name, make in makers]) + ")" for row in rows
        ):
            yield RowStatement(table, head + ",".join(parts), len(parts))

    def _remove_marked(
        self, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> Iterator[RowStatement]:
        makers = self._literals(table)
        # Rows by their key only: the rest of a marked row may differ.
        names = ", ".join(map(quoted, table.key))
        head = f"DELETE FROM {table_name(table)} WHERE {quoted(table.rules.soft_delete)}"
        for part in _together(
            "(" + ",".join([makers[name](row[name]) for name in table.key]) + ")" for row in rows
        ):
            listed = ",".join(part)
            yield RowStatement(table, f"{head} IS NOT NULL AND ({names}) IN ({listed})")

    def _one(self, table: Table, head: str, where: Mapping[str, Any]) -> RowStatement:
        """The statement for one row with these values."""
        named, rest = target.split(table, where)
        found = self._tests(table, named)
        if target.finds_one(table, where, named, rest):
            return RowStatement(table, f"{head} WHERE {found}", 1)
        if rest:
            # By its key if that identifies one row; a deferrable key may belong to several rows
            # within a transaction. The server reads the changed table only through another one.
            count = f"SELECT count(*) AS n FROM {table_name(table)} WHERE {found}"
            alone = f"(SELECT n FROM ({count}) AS counted) = 1"
            found = f"{found} AND ({alone} OR ({self._tests(table, rest)}))"
        return RowStatement(table, f"{head} WHERE {found} LIMIT 1", 1)

    def _tests(self, table: Table, values: Mapping[str, Any]) -> str:
        makers = self._literals(table)
        return " AND ".join(
            f"{quoted(name)} <=> {makers[name](value)}" for name, value in values.items()
        )

    # Tables.

    def create(self, table: Table) -> str:
        """Create the table, unless a first attempt has done so."""
        self.check(table)
        # All in one statement, so that an unfinished table never exists.
        body = [self.definition(table, column) for column in self.types.columns(table)]
        if key := primary_key(table):
            body.append(f"PRIMARY KEY ({_names(key)})")
        body += [self._index(table, *index) for index in indexes(table)]
        return (
            f"CREATE TABLE IF NOT EXISTS {table_name(table)} ({', '.join(body)}) "
            f"ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARACTER SET utf8mb4 COLLATE {self.collation}"
        )

    def check(self, table: Table) -> None:
        """Raise if the server could not hold the table."""
        if table.staging:
            self.check(replace(table, staging=False))
            return
        shown = f"{table.schema}.{table.name}"
        if plain_name(table).startswith(_RESERVED) and table != STALE:
            raise target.TargetError(f"{shown}: names with {_RESERVED} are the mirror's own")
        if len(plain_name(table)) > _NAME_CHARACTERS:
            raise target.TargetError(
                f"{shown} has a name of more than {_NAME_CHARACTERS} characters",
                remedy="Rename the table, or leave it out of `tables`.",
            )
        # The server compares names of columns without case in any collation.
        folded = [column.name.lower() for column in table.columns]
        if len(set(folded)) != len(folded):
            raise target.TargetError(
                f"{shown} has columns that differ only by case, which the server can't have",
                remedy="Leave one of them out at the source (HEADRACE_EXCLUDE_COLUMNS).",
            )

    def definition(self, table: Table, column: NativeColumn) -> str:
        """The column's definition."""
        in_key = column.name in primary_key(table)
        kind = self.kind(table, column)
        if column.native is Native.UUID:
            # One byte for each character: an index of UUIDs is a quarter as large.
            kind += " CHARACTER SET ascii COLLATE ascii_bin"
        elif column.native is Native.TEXT:
            kind += f" CHARACTER SET utf8mb4 COLLATE {self.collation}"
        if in_key:
            kind += " NOT NULL"
        return f"{quoted(column.name)} {kind}"

    def kind(self, table: Table, column: NativeColumn) -> str:
        """The column's type."""
        # A key can't contain a column without a length.
        if column.name in primary_key(table) and column.native in {Native.TEXT, Native.BYTES}:
            return self._key_type(table, column)
        return column.sql_type

    def _key_type(self, table: Table, column: NativeColumn) -> str:
        """A key's text has a length, as long as the key allows; longer values are refused."""
        key = primary_key(table)
        columns = [one for one in self.types.columns(table) if one.name in key]
        long = [one for one in columns if one.native in {Native.TEXT, Native.BYTES}]
        # The other columns take less than assumed here; the limit holds in any case.
        each = (_KEY_BYTES - _FIXED_KEY_BYTES * (len(columns) - len(long))) // len(long)
        if column.native is Native.BYTES:
            return f"VARBINARY({each})"
        return f"VARCHAR({each // 4})"

    def _index(self, table: Table, name: str, columns: Sequence[str]) -> str:
        kinds = {one.name: one for one in self.types.columns(table)}
        key = primary_key(table)
        parts = []
        for column in columns:
            long = kinds[column].native in {Native.TEXT, Native.BYTES} and column not in key
            # An index can't have whole texts; the rest of the condition compares them.
            prefix = f"({_PREFIX_CHARACTERS // len(columns)})" * long
            parts.append(quoted(column) + prefix)
        return f"INDEX {quoted(name)} ({', '.join(parts)})"

    def alter(self, step: target.AlterTable, comment: str) -> str:
        """One statement for all changes; the comment shows that it was executed."""
        self.check(step.after)
        before = {one.name: one for one in self.types.columns(step.before)}
        # One statement for all of it: each ALTER TABLE commits and may copy the table.
        old_names = {step.renamed.get(one.name, one.name) for one in step.after.columns}
        clauses = [
            f"DROP INDEX {quoted(name)}"
            for name, columns in indexes(step.before)
            if (name, columns) not in indexes(step.after)
        ]
        same_key = [step.renamed.get(n, n) for n in primary_key(step.after)] == list(
            primary_key(step.before)
        )
        # Indexes first: a column in one can't be dropped.
        if not same_key and primary_key(step.before):
            clauses.append("DROP PRIMARY KEY")
        clauses += [f"DROP COLUMN {quoted(name)}" for name in before if name not in old_names]
        for column in self.types.columns(step.after):
            old = step.renamed.get(column.name, column.name)
            made = self.definition(step.after, column)
            if old not in before:
                clauses.append(f"ADD COLUMN {made}")
            elif old != column.name or made != self.definition(step.before, before[old]):
                clauses.append(f"CHANGE COLUMN {quoted(old)} {made}")
        if not same_key and primary_key(step.after):
            clauses.append(f"ADD PRIMARY KEY ({_names(primary_key(step.after))})")
        clauses += [
            f"ADD {self._index(step.after, *index)}"
            for index in indexes(step.after)
            if index not in indexes(step.before)
        ]
        # In the same statement, so that it is there exactly if the change is (ADR 0040).
        clauses.append(f"COMMENT = {literal(comment)}")
        return f"ALTER TABLE {table_name(step.after)} {', '.join(clauses)}"

    def filled(self, step: target.AlterTable) -> Iterator[RowStatement]:
        """Give existing rows the values of added columns."""
        makers = self._literals(step.after)
        for name, filled in step.filled.items():
            sql = f"UPDATE {table_name(step.after)} SET {quoted(name)} = "
            yield RowStatement(step.after, sql + makers[name](filled.value))


def _together(parts: Iterable[str]) -> Iterator[list[str]]:
    """As many as fit into a statement: a long one saves round trips, and the server refuses a very
    long one.
    """
    some: list[str] = []
    size = 0
    for part in parts:
        if some and size + len(part) > STATEMENT_BYTES:
            yield some
            some = []
            size = 0
        some.append(part)
        size += len(part)
    if some:
        yield some


def primary_key(table: Table) -> tuple[str, ...]:
    """The columns of a primary key in the target; none where two rows may share a key for a moment.

    A deferrable key can't be the replica identity, which is the whole row then.
    """
    known = {column.name for column in table.source_columns}
    key = table.primary_key
    if key and key == table.identity and len(key) < len(known) and set(key) <= known:
        return key
    return ()


def indexes(table: Table) -> list[tuple[str, tuple[str, ...]]]:
    """The other columns that find rows, each with the name of its index."""
    others = [names for names in table.finders if names != primary_key(table)]
    return [(f"{_RESERVED}{number}", names) for number, names in enumerate(others)]


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
