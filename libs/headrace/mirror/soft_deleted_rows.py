"""The statements about rows that are marked as deleted, where SQL has placeholders.

Promises: they change no row that is not marked, except that a TRUNCATE marks all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.mirror.table import Table
from headrace.mirror.target import CarryOver, RemoveSoftDeleted, Step, TargetError, TruncateTable
from headrace.postgres.quoting import quote_name

# Keys of one statement, whose number of parameters the servers limit.
_KEYS_MAX = 500


def unmarked_in_sql(table: Table, quoted: Callable[[str], str] = quote_name) -> str:
    """The condition for rows that the source has, too."""
    if not table.rules.soft_delete:
        return "true"
    return f"{quoted(table.rules.soft_delete)} IS NULL"


@dataclass(frozen=True, slots=True)
class MarkedSql:
    """The parts in which a target's SQL differs from others."""

    table_name: Callable[[Table], str]
    # The placeholder for a value of a column.
    placeholder: Callable[[Table, str], str]
    # A value of a column as the driver takes it.
    stored: Callable[[Table, str, Any], Any]
    # The expression for a column of the old table as the new one has it.
    converted: Callable[[CarryOver, str], str]
    quoted: Callable[[str], str] = quote_name
    # The word before a list of rows.
    rows_word: str = ""

    def statements(self, step: Step) -> Iterator[tuple[str, list[Any]]]:
        """Each with its parameters."""
        table = step.table
        mark = self.quoted(table.rules.soft_delete)
        match step:
            case TruncateTable(_, at):
                time = self.placeholder(table, table.rules.soft_delete)
                sets = f"SET {mark} = {time} WHERE {mark} IS NULL"
                given = [self.stored(table, table.rules.soft_delete, at)]
                yield f"UPDATE {self.table_name(table)} {sets}", given
            case RemoveSoftDeleted(_, rows):
                names = ", ".join(map(self.quoted, table.key))
                each = ", ".join(self.placeholder(table, name) for name in table.key)
                for start in range(0, len(rows), _KEYS_MAX):
                    some = rows[start : start + _KEYS_MAX]
                    listed = self.rows_word + ", ".join([f"({each})"] * len(some))
                    found = f"{mark} IS NOT NULL AND ({names}) IN ({listed})"
                    given = [
                        self.stored(table, name, row[name]) for row in some for name in table.key
                    ]
                    yield f"DELETE FROM {self.table_name(table)} WHERE {found}", given
            case CarryOver(at=at):
                values = {one.name: self.converted(step, one.name) for one in step.columns}
                name = table.rules.soft_delete
                time = ""
                given = []
                # A history has neither a mark nor a key.
                if name and table.key:
                    time = self.placeholder(table, name)
                    given = [self.stored(table, name, at)]
                yield carried_over(step, self.table_name, values, time, self.quoted), given


def carried_over(
    step: CarryOver,
    table_name: Callable[[Table], str],
    values: Mapping[str, str],
    time: str,
    quoted: Callable[[str], str],
) -> str:
    """The statement that gives a table's new copy the rows that only the old one has; `values` are
    expressions for its columns, and `time` is one for rows that are not marked.
    """
    table = step.table
    mark = table.rules.soft_delete
    found = f"old.{quoted(mark)} IS NOT NULL" if mark else "true"
    if not values.keys() >= set(table.key):
        raise TargetError(
            f"{table.schema}.{table.name} has another key now than its deleted rows",
            remedy="Start the sink once without `soft_delete`, which gives these rows up.",
        )
    if table.key:
        # A row that only the old table has was deleted, whether or not an event showed it.
        values = {**values, mark: f"COALESCE({values[mark]}, {time})"}
        same = " AND ".join(f"it.{quoted(name)} = {values[name]}" for name in table.key)
        found = f"NOT EXISTS (SELECT 1 FROM {table_name(table)} AS it WHERE {same})"
    return (
        f"INSERT INTO {table_name(table)} ({', '.join(map(quoted, values))}) "
        f"SELECT {', '.join(values.values())} FROM {table_name(step.before)} AS old WHERE {found}"
    )
