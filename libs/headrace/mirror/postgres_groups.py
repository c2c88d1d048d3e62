"""Net changes in a PostgreSQL target: statements for many rows, and which tables take them.

Promises the rows that the changes would leave one by one. A table whose additions could notice the
difference (a trigger, a rule, a foreign key, a constraint that a moment in between must fulfill)
gets every single change, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from typing import Any

import psycopg

from headrace.mirror.folding import FoldedChanges, Key, KeyOf, folds
from headrace.mirror.postgres_statements import safe
from headrace.mirror.postgres_values import text_of, type_in
from headrace.mirror.table import Table

Text = Callable[[Any], str]
# A statement with its parameters.
Grouped = tuple[str, list[str]]
# Rows are sent in pieces of about this size.
COPY_CHARACTERS = 256 * 1024
_COPY_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
# By place in the parameter: whether a table has triggers or rules of users; any triggers, such as
# those of foreign keys on both sides; exclusion constraints; the columns of its unique indexes.
_ADDITIONS = """
SELECT asked.place, c.relhasrules OR c.relrowsecurity OR EXISTS (
        SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal),
    EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid),
    EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisexclusion),
    (SELECT json_agg((SELECT json_agg(a.attname)
            FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
            WHERE k.place <= i.indnkeyatts))
        FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique)
FROM unnest(%s::text[]) WITH ORDINALITY AS asked (name, place)
JOIN pg_class c ON c.oid = to_regclass(asked.name)
"""


class WriteOrder(IntEnum):
    """The order in which a table gets its changes."""

    # Net changes, in any order with those of other such tables.
    NET = 0
    # Every change, in order with those of other such tables.
    SINGLE = 1
    # As before, and all that is written with it is in order, too: it may look at other tables.
    WATCHED = 2


@dataclass(frozen=True, slots=True)
class ColumnTexts:
    """A column in statements: its name, its type, its values as text."""

    name: str
    make: Text
    # The column's type in the target.
    type_name: str
    # Its name, for a statement with placeholders.
    safe: str


class TableTexts:
    """A table's rows as text, in statements and in COPY."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.columns = tuple(
            ColumnTexts(
                column.name,
                text_of(column.data_type),
                type_in(column.data_type),
                safe(column.name),
            )
            for column in table.columns
        )
        self._by_name = {column.name: column for column in self.columns}
        self._makers = [(column.name, column.make) for column in self.columns]
        self.key_of = self._keys()

    def _keys(self) -> KeyOf:
        makers = [
            (name, self._by_name[name].make)
            for name in self.table.identity
            if name in self._by_name
        ]

        def key_of(row: Mapping[str, Any]) -> Key:
            return tuple(
                [None if (value := row.get(name)) is None else make(value) for name, make in makers]
            )

        return key_of

    def lines(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """The rows as COPY reads them, in pieces."""
        lines: list[str] = []
        size = 0
        for row in rows:
            line = self._line(row)
            lines.append(line)
            size += len(line)
            if size >= COPY_CHARACTERS:
                yield "\n".join(lines) + "\n"
                lines = []
                size = 0
        if lines:
            yield "\n".join(lines) + "\n"

    def _line(self, row: Mapping[str, Any]) -> str:
        texts = [
            None if (value := row.get(name)) is None else make(value) for name, make in self._makers
        ]
        nulls = texts.count(None)
        line = "\t".join(["\\N" if text is None else text for text in texts])
        # Looking at the whole line is faster than escaping each value, of which few need it.
        if (
            line.count("\\") == nulls
            and line.count("\t") == len(texts) - 1
            and "\n" not in line
            and "\r" not in line
        ):
            return line
        return "\t".join(
            ["\\N" if text is None else text.translate(_COPY_ESCAPES) for text in texts]
        )

    def grouped(self, net: FoldedChanges, name: str) -> Iterator[Grouped]:
        """The deletions, then the updates; each statement returns one row if each row of it was
        found exactly once. `name` is the table's, for a statement with placeholders.
        """
        if net.deleted:
            keys = [self._by_name[one] for one in self.table.identity]
            values = list(net.deleted)
            found = self._found(keys)
            yield (
                _checked(f"DELETE FROM {name} AS t USING {_unnest(keys)} WHERE {found}"),
                [*_arrays(values), *_counts(values)],
            )
        by_names: dict[tuple[str, ...], list[tuple[Key, dict[str, Any]]]] = {}
        for key, (_, data) in net.updated.items():
            by_names.setdefault(tuple(data), []).append((key, data))
        for names, rows in by_names.items():
            yield self._update(name, names, rows)

    def _update(
        self, table: str, names: tuple[str, ...], rows: Sequence[tuple[Key, Mapping[str, Any]]]
    ) -> Grouped:
        keys = [self._by_name[one] for one in self.table.identity]
        # A key that stays is not written, unless there is nothing else: the row must exist.
        written = [name for name in names if name not in self.table.identity] or list(names)
        columns = [self._by_name[name] for name in written]
        sets = ", ".join(
            f"{column.safe} = v.v{number}::{column.type_name}"
            for number, column in enumerate(columns, len(keys))
        )
        pick = itemgetter(*written)
        makers = [column.make for column in columns]
        if len(written) == 1:
            picked = [(pick(data),) for _, data in rows]
        else:
            picked = [pick(data) for _, data in rows]
        values = [
            (
                *key,
                *[
                    None if value is None else make(value)
                    for value, make in zip(data, makers, strict=True)
                ],
            )
            for (key, _), data in zip(rows, picked, strict=True)
        ]
        all_columns = [*keys, *columns]
        sql = (
            f"UPDATE {table} AS t SET {sets} FROM {_unnest(all_columns)} WHERE {self._found(keys)}"
        )
        return _checked(sql), [*_arrays(values), *_counts(values)]

    @staticmethod
    def _found(keys: Sequence[ColumnTexts]) -> str:
        return " AND ".join(
            f"t.{column.safe} = v.v{number}::{column.type_name}"
            for number, column in enumerate(keys)
        )


def _unnest(columns: Collection[ColumnTexts]) -> str:
    arrays = ", ".join(["%s::text[]"] * len(columns))
    names = ", ".join(f"v{number}" for number in range(len(columns)))
    return f"unnest({arrays}) WITH ORDINALITY AS v ({names}, place)"


def _checked(change: str) -> str:
    # Two rows found for one, and none for another, would be the right number as well.
    return (
        f"WITH done AS ({change} RETURNING v.place) SELECT FROM done "
        "HAVING count(*) = %s::bigint AND count(DISTINCT place) = %s::bigint"
    )


def _counts(values: Sequence[object]) -> list[str]:
    return [str(len(values))] * 2


def _arrays(values: Sequence[Key]) -> list[str]:
    """The values of each column, as an array's text."""
    return [_array(texts) for texts in zip(*values, strict=True)]


def _array(texts: Sequence[str | None]) -> str:
    if None not in texts:
        inside = '","'.join(texts)  # type: ignore[arg-type]  # none of them is None
        # Looking at all of them is faster than escaping each, of which few need it.
        if "\\" not in inside and inside.count('"') == 2 * (len(texts) - 1):
            return '{"' + inside + '"}'
    return "{" + ",".join(map(_element, texts)) + "}"


def _element(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


async def write_orders(
    connection: psycopg.AsyncConnection[Any], tables: Mapping[str, Table]
) -> dict[str, WriteOrder]:
    """The order of each table, by the name in the target."""
    found = dict.fromkeys(tables, WriteOrder.NET)
    names = list(tables)
    # Nobody else's additions are on a table that is only being copied.
    asked = [name for name in names if not tables[name].staging]
    if not asked:
        return found
    cursor = await connection.execute(_ADDITIONS.encode(), [asked])
    for place, watches, triggers, excludes, unique in await cursor.fetchall():
        name = asked[place - 1]
        if watches:
            found[name] = WriteOrder.WATCHED
        elif triggers or excludes or not _implied(unique, tables[name]):
            found[name] = WriteOrder.SINGLE
    return found


def _implied(unique: Iterable[Sequence[str] | None] | None, table: Table) -> bool:
    """Whether rows with different identities fulfill these unique indexes at every moment."""
    # Nothing of such a table is reordered.
    if not folds(table):
        return True
    return all(set(table.identity) <= set(names or ()) for names in unique or ())
