"""The SQL that undoes changes, and the checks of a row against the trail. Does no I/O.

Promises: a change that can't be undone from what the trail knows is refused, never guessed. Values
are written as literals that the column's input function reads, documents from PostgreSQL's own
text. A row is compared in the form of the stream: its text converted like an event's, against the
trail.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from headrace.audit.rows import REDACTED
from headrace.audit.values import row_json
from headrace.errors import HeadraceError
from headrace.postgres.quoting import escape_literal, quote_literal, quote_name, quote_table
from headrace.terminal.text import one_line

# Numbers that a double can't hold are strings in the JSON of documents.
_LARGE_NUMBER = re.compile(r"-?[0-9][0-9.]{14,}|-?[0-9.]+[eE][+-]?[0-9]+")


class IrreversibleError(HeadraceError):
    """The trail lacks what undoing this change takes, or the row has changed since."""

    remedy = "With ALTER TABLE … REPLICA IDENTITY FULL later changes can always be undone."


class ValueForm(StrEnum):
    """The form in which a column's value is written; a domain is as its base type."""

    DOCUMENT = "document"
    BINARY = "binary"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of the table as it is now; `told` makes of its text what an event has, `listed` with
    arrays as lists.
    """

    name: str
    number: int
    kind: ValueForm = ValueForm.OTHER
    generated: bool = False
    told: Callable[[bytes], object] = bytes.decode
    listed: Callable[[bytes], object] = bytes.decode
    # The user excluded it: it is neither compared nor written into an existing row.
    left: bool = False
    # HEADRACE_JSON_VALUES=text: a document is its text.
    as_text: bool = False


@dataclass(frozen=True, slots=True)
class SourceTable:
    """The table as it is now, and the columns that tell its rows apart."""

    schema: str
    name: str
    columns: Mapping[str, SourceColumn]
    key: Sequence[str]

    @property
    def quoted(self) -> str:
        return quote_table(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class RowImage:
    """A row as the trail has it; `exact` has PostgreSQL's text of what `values` has not all of."""

    values: Mapping[str, Any]
    exact: Mapping[str, str] = field(default_factory=dict)
    # Columns for which it is unknown whether such a text exists: an earlier version wrote the
    # change.
    unsure: Collection[str] = ()

    def of(self, name: str) -> tuple[Any, str | None]:
        return self.values[name], self.exact.get(name)


@dataclass(frozen=True, slots=True)
class Step:
    """How to undo one change: the expected row before, the statement, the expected row after."""

    change: Mapping[str, Any]
    table: SourceTable
    now: RowImage | None
    then: RowImage | None
    statement: str
    # Nothing to write: a comment says why.
    idle: bool = False

    @property
    def found_by(self) -> RowImage:
        """The values that identify the row before the statement."""
        side = self.then if self.now is None else self.now
        assert side is not None, "a change has at least one side"
        return side


def parsed(text: str) -> dict[str, Any]:
    """A row of the trail, its numbers with every digit."""
    found: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return found


def undo_insert(change: Mapping[str, Any], table: SourceTable, after: RowImage) -> Step:
    # By the key: `Step.now` says what the rest of the row has to be.
    where = located(table, after)
    return Step(change, table, after, None, f"DELETE FROM {table.quoted} AS t WHERE {where};")


def undo_delete(change: Mapping[str, Any], table: SourceTable, was: RowImage) -> Step:
    values = _written(table, was, was.values)
    columns = ", ".join(quote_name(name) for name in values)
    literals = ", ".join(values.values())
    # An identity column gets its former value back.
    sql = f"INSERT INTO {table.quoted} ({columns}) OVERRIDING SYSTEM VALUE VALUES ({literals});"
    # Only to refuse: without a key, the check after the statement couldn't find the row.
    located(table, was)
    return Step(change, table, None, was, sql)


def undo_update(
    change: Mapping[str, Any], table: SourceTable, was: RowImage, after: RowImage
) -> Step:
    # Without REPLICA IDENTITY FULL, an UPDATE contains the old values of key columns only.
    unknown = [name for name in after.values if name not in was.values]
    if unknown:
        raise IrreversibleError(
            f"the former values of a row of {table.name} are not known{_named(unknown)}"
        )
    hidden = [name for name in after.values if REDACTED in (after.values[name], was.values[name])]
    if hidden:
        raise IrreversibleError(
            f"HEADRACE_AUDIT_REDACT keeps values of {table.name} out of the trail{_named(hidden)}",
            remedy="Undo it manually.",
        )
    # Columns that didn't change are left out: another change may have written them since.
    changed = [
        name for name in was.values if name in after.values and was.of(name) != after.of(name)
    ]
    values = _written(table, was, [name for name in changed if not table.columns[name].left])
    kept = {name: text for name, text in after.exact.items() if name not in was.values}
    then = RowImage({**after.values, **was.values}, {**kept, **was.exact})
    if not values:
        # A name may have several lines, but a comment ends with the first.
        text = f"-- nothing to undo in {one_line(table.quoted)}: the row was written unchanged"
        return Step(change, table, after, then, text, idle=True)
    sets = ", ".join(f"{quote_name(name)} = {literal}" for name, literal in values.items())
    sql = f"UPDATE {table.quoted} AS t SET {sets} WHERE {located(table, after)};"
    return Step(change, table, after, then, sql)


def located(table: SourceTable, side: RowImage) -> str:
    """The condition that finds the row."""
    # A row with a redacted or missing key can't be found, and a condition on its other columns
    # could match several rows.
    if not table.key or any(side.values.get(name) in {None, REDACTED} for name in table.key):
        raise IrreversibleError(
            f"a row of {table.name} can't be found again without a key", remedy="Undo it manually."
        )
    parts = (f"t.{quote_name(name)} = {_value(table, name, *side.of(name))}" for name in table.key)
    return " AND ".join(parts)


def differing(table: SourceTable, row: Mapping[str, str | None], side: RowImage) -> list[str]:
    """The columns in which a row of the source, as texts, is not what the trail says."""
    return [
        name
        for name in side.values
        if not table.columns[name].left
        and side.values[name] != REDACTED
        and not _is(table.columns[name], row[name], *side.of(name))
    ]


def agree(table: SourceTable, one: RowImage | None, other: RowImage | None) -> bool:
    """Whether a row is the same in two changes, as far as both have it."""
    if one is None or other is None:
        return one is other
    both = [name for name in one.values if name in other.values and not table.columns[name].left]
    return all(one.of(name) == other.of(name) for name in both)


def gone(table: SourceTable, side: RowImage) -> list[str]:
    """Columns that the table does not have any more."""
    return [name for name in side.values if name not in table.columns]


def _is(column: SourceColumn, text: str | None, value: Any, exact: str | None) -> bool:
    if exact is not None:
        return text == exact
    if text is None or value is None:
        return text is None and value is None
    # Compared as text: PostgreSQL's hex form is unique, base64 is not.
    if column.kind is ValueForm.BINARY:
        return text == _hex(value)
    if column.kind is ValueForm.DOCUMENT:
        if column.as_text:
            return bool(text == value)
        return bool(_document(text) == _document(json_text(value)))
    told = (column.listed if isinstance(value, list) else column.told)(text.encode())
    # As the audit-writer converts a row of it.
    shown = parsed(row_json({"told": getattr(told, "native", told)}).decode())["told"]
    # int8 may come as text.
    return bool(shown == value or (isinstance(value, str) and str(shown) == value))


def _document(text: str) -> Any:
    # Equal documents may be written differently (spaces, the order of keys), but their numbers must
    # have the same digits.
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


def _written(table: SourceTable, side: RowImage, names: Iterable[str]) -> dict[str, str]:
    """Each column's literal; generated ones make themselves."""
    wanted = [name for name in names if not table.columns[name].generated]
    if hidden := [name for name in wanted if side.values[name] == REDACTED]:
        raise IrreversibleError(
            f"a redacted value is not in the trail{_named(hidden)}", remedy="Undo it manually."
        )
    lossy = [
        name
        for name in wanted
        if name in side.unsure and _may_lack(table.columns[name], side.values[name])
    ]
    if lossy:
        raise IrreversibleError(
            f"the former values of a row of {table.name} are not known exactly: the earlier "
            "version that wrote the change stored neither JSON's null nor every digit "
            f"of numbers{_named(lossy)}",
            remedy="Undo it manually; `headrace audit diff` shows the values.",
        )
    return {name: _value(table, name, *side.of(name)) for name in wanted}


def _may_lack(column: SourceColumn, value: Any) -> bool:
    """Whether a value may have been another, where no text of it was kept."""
    if column.kind is ValueForm.DOCUMENT:
        return not column.as_text and (value is None or _has_uncertain_number(value))
    return isinstance(value, list)


def _has_uncertain_number(value: Any) -> bool:
    """Whether a number may have had more digits: a long one, or zeros behind the point."""
    if isinstance(value, Mapping):
        return any(_has_uncertain_number(one) for one in value.values())
    if isinstance(value, list):
        return any(_has_uncertain_number(one) for one in value)
    if isinstance(value, str):
        return _LARGE_NUMBER.fullmatch(value) is not None
    return isinstance(value, Decimal)


def _value(table: SourceTable, name: str, value: Any, exact: str | None) -> str:
    column = table.columns[name]
    if exact is not None:
        return _literal(exact)
    if value is None:
        return "NULL"
    if column.kind is ValueForm.BINARY:
        return _literal(_hex(value))
    if column.kind is ValueForm.DOCUMENT and not (column.as_text and isinstance(value, str)):
        return _literal(json_text(value))
    if isinstance(value, list):
        # PostgreSQL converts the list to an array of the column's type.
        row = _literal(json_text({name: value}))
        return f"(jsonb_populate_record(NULL::{table.quoted}, {row}::jsonb)).{quote_name(name)}"
    return _literal(value if isinstance(value, str) else json_text(value))


def _hex(value: Any) -> str:
    """bytea as PostgreSQL writes it; base64, from JSON events, contains no backslash."""
    text = str(value)
    if text.startswith("\\"):
        return text
    return "\\x" + base64.b64decode(text).hex()


def json_text(value: Any) -> str:
    """JSON with every digit of the value."""
    if isinstance(value, Mapping):
        fields = (
            f"{json.dumps(name, ensure_ascii=False)}: {json_text(one)}"
            for name, one in value.items()
        )
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, list):
        return f"[{', '.join(json_text(one) for one in value)}]"
    # json.dumps can't write it, and a float would lose digits.
    if isinstance(value, Decimal):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _literal(text: str) -> str:
    """A literal that is read the same with any standard_conforming_strings."""
    if "\\" not in text:
        return quote_literal(text)
    return f" {escape_literal(text)}"


def _named(names: Sequence[str]) -> str:
    if names:
        return f": {', '.join(names)}"
    return ""
