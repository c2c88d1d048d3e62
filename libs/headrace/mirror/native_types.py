"""PostgreSQL's values in a database with other types: native ones if nothing is lost.

Promises: a stored value is equal to PostgreSQL's, to the digit, or it is refused by name.
Nothing is rounded, clamped, or replaced by NULL. A column that the user chose is stored as text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from headrace.contract.table_patterns import column_named
from headrace.mirror.mirror_state import TABLE, tables_of
from headrace.mirror.sqlite import stored
from headrace.mirror.table import Column, Phase, Table
from headrace.mirror.target import TargetError
from headrace.mirror.value_kinds import as_bytes, base_of

_SCALED = re.compile(r"numeric\((\d+),(\d+)\)")
_MOMENT = re.compile(r"(\d{4,6}-\d\d-\d\d)(?:[T ](\d\d:\d\d:\d\d(?:\.\d+)?))?(?:Z|\+00)?")
_PLAIN_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)(\+00)?")
_TIME = re.compile(r"\d\d:\d\d:\d\d(?:\.\d+)?")
_UNUSUAL = frozenset({"NaN", "Infinity", "-Infinity"})


class Native(StrEnum):
    """A type that another database may have, too."""

    BOOL = "bool"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    OID = "oid"
    FLOAT = "float"
    BYTES = "bytes"
    DECIMAL = "decimal"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    TIME = "time"
    UUID = "uuid"
    TEXT = "text"


_NATIVE = {
    "boolean": Native.BOOL,
    "smallint": Native.INT2,
    "integer": Native.INT4,
    "bigint": Native.INT8,
    "oid": Native.OID,
    "real": Native.FLOAT,
    "double precision": Native.FLOAT,
    "bytea": Native.BYTES,
    "date": Native.DATE,
    "timestamp without time zone": Native.TIMESTAMP,
    "timestamp with time zone": Native.TIMESTAMPTZ,
    "time without time zone": Native.TIME,
    "uuid": Native.UUID,
}
# The patterns of the columns that the target has as text.
TEXT_MARK = "text columns"
# Types with values that another database may lack; for these, text may be chosen.
CHOOSABLE = frozenset(
    {
        Native.FLOAT,
        Native.DECIMAL,
        Native.DATE,
        Native.TIMESTAMP,
        Native.TIMESTAMPTZ,
        Native.TIME,
    }
)


class ValueRefusedError(TargetError):
    """The target's type lacks this value, which would otherwise be changed silently."""

    def __init__(self, name: str, type_name: str) -> None:
        """The value itself is not named: messages are logged."""
        super().__init__(
            f"the column {name} has a value that {type_name} can't hold",
            remedy=(
                f'Store the column as text, which is exact: options = {{text = ["{name}"]}}, then '
                "restart the sink."
            ),
        )


@dataclass(frozen=True, slots=True)
class Dialect:
    """The types of a database, and their limits."""

    # Its type for each kind; that of decimals has the place {scale}.
    types: dict[Native, str]
    digits_max: int
    scale_max: int
    # Whether its floats have NaN and infinities, and its dates infinities.
    unusual_floats: bool
    infinite_dates: bool
    year_max: int


@dataclass(frozen=True, slots=True)
class NativeColumn:
    """A column as the target stores it."""

    name: str
    native: Native
    # The type in the target's SQL.
    sql_type: str
    # The value that is not NULL, as text (bytes for bytes) that the target parses without loss.
    text: Callable[[Any], str | bytes]
    # Whether it is text only because the user chose that; then, what its type would be.
    chosen: Native | None = None


@dataclass(frozen=True, slots=True)
class NativeTypes:
    """The columns of tables in one database; `text` are patterns of columns stored as text."""

    dialect: Dialect
    text: Sequence[str] = ()

    def column(self, table: Table, column: Column) -> NativeColumn:
        """A column as the target stores it."""
        kind = native_of(column.data_type, self.dialect)
        shown = f"{table.schema}.{table.name}.{column.name}".removeprefix("public.")
        # Other types lose nothing in their native form, so a pattern that covers them changes
        # nothing.
        if kind in CHOOSABLE and self._is_text(table, column.name):
            return NativeColumn(
                column.name,
                Native.TEXT,
                self.dialect.types[Native.TEXT],
                _as_text(column.data_type),
                kind,
            )
        sql_type = self.dialect.types[kind]
        if kind is Native.DECIMAL:
            digits, scale = scaled(column.data_type) or (0, 0)
            sql_type = sql_type.format(digits=digits, scale=scale)
        return NativeColumn(
            column.name, kind, sql_type, self._reader(kind, column.data_type, shown, sql_type)
        )

    def columns(self, table: Table) -> list[NativeColumn]:
        """Each column of a table, as the target stores it."""
        return [self.column(table, column) for column in table.columns]

    def sql_types(self, table: Table) -> list[str]:
        """The type of each column."""
        return [column.sql_type for column in self.columns(table)]

    def limits(self, table: Table) -> list[str]:
        """The columns whose type lacks some of PostgreSQL's values, with these values."""
        return [
            f"{column.name} ({column.sql_type}): {missing}"
            for column in self.columns(table)
            if (missing := self._missing(column.native))
        ]

    def _missing(self, kind: Native) -> str:
        """The values that the type of this kind lacks; empty: none."""
        dialect = self.dialect
        missing = []
        if kind is Native.FLOAT and not dialect.unusual_floats:
            missing = ["NaN", "infinities"]
        elif kind is Native.DECIMAL:
            missing = ["NaN"]
        elif kind in {Native.DATE, Native.TIMESTAMP, Native.TIMESTAMPTZ}:
            missing = ["years before Christ", f"years after {dialect.year_max}"]
            if not dialect.infinite_dates:
                missing.append("infinities")
        return ", ".join(missing)

    def _is_text(self, table: Table, name: str) -> bool:
        return any(
            column_named(pattern, table.schema, table.name) in {name, "*"} for pattern in self.text
        )

    def _reader(
        self, kind: Native, data_type: str, shown: str, sql_type: str
    ) -> Callable[[Any], str | bytes]:
        refused = ValueRefusedError(shown, sql_type)
        if kind is Native.BYTES:
            return as_bytes
        if kind is Native.BOOL:
            return lambda value: str(int(value))
        if kind is Native.FLOAT:
            return _float(refused, unusual=self.dialect.unusual_floats)
        if kind is Native.DECIMAL:
            return _decimal(refused)
        if kind is Native.TIME:
            return _time(refused)
        if kind in {Native.DATE, Native.TIMESTAMP, Native.TIMESTAMPTZ}:
            return _moment(refused, self.dialect)
        return _as_text(data_type)


def types_in(marks: Mapping[str, str], types: NativeTypes) -> NativeTypes:
    """The types with the columns as text that the target really has as text."""
    return NativeTypes(types.dialect, json.loads(marks.get(TEXT_MARK, "[]")))


def kept_as_chosen(marks: Mapping[str, str], types: NativeTypes) -> dict[str, str | None]:
    """Changes of the marks if other columns are to be text than those that the target has: their
    tables are copied again.
    """
    now = json.dumps(sorted(types.text))
    if marks.get(TEXT_MARK) == now:
        return {}
    changed: dict[str, str | None] = {TEXT_MARK: now}
    before = types_in(marks, types)
    for state in tables_of(marks).values():
        there = [table for table in (state.live, state.run and state.run.staged) if table]
        if any(before.sql_types(table) != types.sql_types(table) for table in there):
            wanted = replace(
                state,
                phase=Phase.WANTED,
                run=None,
                why="other columns are stored as text",
                awaited=state.live is not None,
            )
            # Its rows have the other type, and would be converted without a check.
            changed[TABLE + state.token] = wanted.encode()
    return changed


def scaled(data_type: str) -> tuple[int, int] | None:
    """Digits and scale of a numeric type that has both, and no negative scale."""
    found = _SCALED.fullmatch(data_type)
    if found is None:
        return None
    return int(found[1]), int(found[2])


def native_of(data_type: str, dialect: Dialect) -> Native:
    """The kind of a type of PostgreSQL; text if no other kind holds all of its digits."""
    # Without digits, a numeric keeps the zeros at its end, which no other type does.
    if found := scaled(data_type):
        digits, scale = found
        if scale <= min(digits, dialect.scale_max) and digits <= dialect.digits_max:
            return Native.DECIMAL
    return _NATIVE.get(base_of(data_type), Native.TEXT)


def _as_text(data_type: str) -> Callable[[Any], str]:
    make = stored(data_type)

    def text(value: Any) -> str:
        made = make(value)
        if isinstance(made, bytes):
            return "\\x" + made.hex()
        return str(made)

    return text


def _float(refused: ValueRefusedError, *, unusual: bool) -> Callable[[Any], str]:
    def text(value: Any) -> str:
        number = float(value)
        if not unusual and not math.isfinite(number):
            raise refused
        return repr(number)

    return text


def _decimal(refused: ValueRefusedError) -> Callable[[Any], str]:
    def text(value: Any) -> str:
        if str(value) in _UNUSUAL:
            raise refused
        return str(value)

    return text


def _time(refused: ValueRefusedError) -> Callable[[Any], str]:
    def text(value: Any) -> str:
        if not _TIME.fullmatch(value):
            raise refused
        return str(value)

    return text


def _moment(refused: ValueRefusedError, dialect: Dialect) -> Callable[[Any], str]:
    """A date or timestamp, whose year the target has; timestamps with a zone are in UTC."""

    def text(value: Any) -> str:
        if dialect.infinite_dates and value in {"infinity", "-infinity"}:
            return str(value)
        found = _MOMENT.fullmatch(value)
        # Years before Christ don't match: some databases drop the era without an error.
        if found is None or int(found[1].split("-")[0]) > dialect.year_max:
            raise refused
        if found[2] is None:
            return found[1]
        return f"{found[1]} {found[2]}"

    return text


def as_sqlite_float(value: Any) -> Any:
    """As SQLite has it, where NaN is text."""
    number = float(value)
    if math.isnan(number):
        return "NaN"
    return number


def as_contract_moment(text: str) -> str:
    """A timestamp in the contract's form, from a database's text of it; `+00` means a zone."""
    found = _PLAIN_MOMENT.fullmatch(text)
    # Other years, and infinities, have PostgreSQL's own form.
    if found is None:
        return text
    return f"{found[1]}T{trimmed(found[2])}{'Z' if found[3] else ''}"


def trimmed(text: str) -> str:
    """Without the zeros at the end of a fraction, which PostgreSQL does not print."""
    if "." not in text:
        return text
    return text.rstrip("0").rstrip(".")
