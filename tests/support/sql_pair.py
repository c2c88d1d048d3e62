"""A PostgreSQL with rows, and DuckDB tables with the same rows: the same statement on both.

The PostgreSQL is the oracle, and gives the trees. Values are compared as the text that it prints;
`text_of` writes DuckDB's values in that form and shares no code with the SQL server.
"""

from __future__ import annotations

import math
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import time
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import psycopg
import pyarrow as pa

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.sql import duckdb_session
from headrace.sql.builtins import QUERY, Builtins
from headrace.sql.duckdb_errors import OVERFLOWS, postgres_error
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.query_tree import Node, parse_tree
from headrace.sql.relations import LakeRelation, RelationColumn
from headrace.sql.storage_types import storage
from headrace.sql.translation import Translation, translate

_SETTINGS = "SET log_min_messages = panic; SET debug_print_rewritten = on; SET debug_pretty_print = off; SET client_min_messages = log; SET TimeZone = 'UTC'"
_COLUMNS = """
SELECT a.attnum, a.attname, a.atttypid::int8, a.atttypmod, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_BC = re.compile(r"(.*) BC\Z")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a statement: rows as texts, or an SQLSTATE; `refused` names the unproven feature."""

    rows: tuple[tuple[str | None, ...], ...] = ()
    sqlstate: str = ""
    refused: str = ""
    message: str = ""


class SqlPair:
    """A connection to PostgreSQL, and a DuckDB with the same tables."""

    def __init__(self, dsn: str) -> None:
        self.postgres = psycopg.connect(dsn, autocommit=True)
        self._trees: list[str] = []
        self.postgres.add_notice_handler(self._noticed)
        self.builtins = Builtins.of(self.postgres.execute(QUERY).fetchall())
        self.relations: dict[int, LakeRelation] = {}
        self.duck = duckdb.connect()
        duckdb_session.prepare(self.duck)
        self.duck.execute("SET threads = 2")

    def close(self) -> None:
        self.postgres.close()
        self.duck.close()

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.message_primary == "rewritten parse tree:":
            self._trees.append(notice.message_detail or "")

    def define(self, *statements: str) -> None:
        """Run DDL and DML in PostgreSQL, before `copy`."""
        for statement in statements:
            self.postgres.execute(statement)

    def copy(self) -> None:
        """Copy all tables of the schema public to DuckDB."""
        tables = self.postgres.execute(
            "SELECT oid::int8, relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        ).fetchall()
        for relid, name in tables:
            self._copy_table(relid, name)
        self.postgres.execute(_SETTINGS)

    def _copy_table(self, relid: int, name: str) -> None:
        columns = self.postgres.execute(_COLUMNS, (relid,)).fetchall()
        copy = f'"r{relid}"'
        lake = tuple(
            RelationColumn(number, column, oid, modifier, f'"k{number}"')
            for number, column, oid, modifier, _ in columns
        )
        types = [storage(column.type_oid, column.modifier).duckdb for column in lake]
        listed = ", ".join(f"{c.copy} {t}" for c, t in zip(lake, types, strict=True))
        self.duck.execute(f"CREATE TABLE {copy} ({listed})")
        texts = ", ".join(f'"{column.name}"' for column in lake)
        rows = self.expected(f'SELECT {texts} FROM public."{name}"').rows
        marks = ", ".join(
            "from_hex(substr(?, 3))" if t == "BLOB" else f"CAST(? AS {t})" for t in types
        )
        prepared = [[_duck_text(cell) for cell in row] for row in rows]
        if prepared:
            self.duck.executemany(f"INSERT INTO {copy} VALUES ({marks})", prepared)
        self.relations[relid] = LakeRelation(relid, "public", name, lake, copy)

    def tree(self, sql: str) -> Node:
        """The statement's tree, after rewriting."""
        self._trees.clear()
        result = self.postgres.pgconn.prepare(b"", sql.encode())
        if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
            raise StatementError(
                (result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b"").decode()
            )
        (query,) = parse_tree(self._trees[-1])
        return query

    def translation(
        self,
        sql: str,
        numerics: Mapping[int, tuple[int, int]] | None = None,
        *,
        narrow: bool = False,
    ) -> Translation:
        """The statement for DuckDB."""
        query = self.tree(sql)
        return translate(
            query,
            self.relations,
            self.builtins,
            utc=True,
            iso_dates=True,
            numerics=numerics,
            narrow=narrow,
        )

    def planning_error(self, sql: str) -> str:
        """The SQLSTATE of an error that PostgreSQL raises while it plans, of constant expressions. The
        private server raises it too, even if DuckDB would answer.
        """
        result = self.postgres.pgconn.exec_params(b"EXPLAIN " + sql.encode(), [])
        if result.status == psycopg.pq.ExecStatus.TUPLES_OK:
            return ""
        return (result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b"").decode()

    def expected(self, sql: str, values: Sequence[str | None] = ()) -> Outcome:
        """PostgreSQL's answer."""
        result = self.postgres.pgconn.exec_params(
            sql.encode(), [None if v is None else v.encode() for v in values]
        )
        if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
            code = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b""
            return Outcome(sqlstate=code.decode(), message=result.get_error_message())
        rows = []
        for row in range(result.ntuples):
            cells = (result.get_value(row, column) for column in range(result.nfields))
            rows.append(tuple(None if cell is None else cell.decode() for cell in cells))
        return Outcome(tuple(rows))

    def answered(self, sql: str, values: Sequence[Any] = ()) -> Outcome:
        """DuckDB's answer, or the refusal: in 64 bits if they are enough, as the SQL server does."""
        found = self._answered(sql, values, narrow=True)
        return (
            found if found is not None else self._answered(sql, values, narrow=False) or Outcome()
        )

    def _answered(self, sql: str, values: Sequence[Any], *, narrow: bool) -> Outcome | None:
        """None if a number doesn't fit into 64 bits."""
        numerics = {
            number: _digits(value)
            for number, value in enumerate(values, 1)
            if isinstance(value, Decimal)
        }
        try:
            translation = self.translation(sql, numerics, narrow=narrow)
        except NotProvenEqualError as refusal:
            return Outcome(refused=refusal.feature)
        except StatementError as error:
            return Outcome(sqlstate=str(error), message="by PostgreSQL's analyzer")
        session = [self._session_value(v.expression) for v in translation.session_values]
        try:
            table = self.duck.execute(translation.sql, [*values, *session]).to_arrow_table()
        except duckdb.Error as error:
            if translation.narrow and isinstance(error, OVERFLOWS):
                return None
            known = postgres_error(str(error))
            if known.sqlstate == "0A000":
                return Outcome(refused=known.message)
            return Outcome(sqlstate=known.sqlstate, message=known.message)
        oids = [column.type_oid for column in translation.columns]
        columns = [
            [text_of(cell, oid) for cell in _plain(column)]
            for column, oid in zip(table.columns, oids, strict=False)
        ]
        return Outcome(tuple(zip(*columns, strict=True)) if columns else ((),) * table.num_rows)

    def _session_value(self, expression: str) -> Any:
        row = self.postgres.execute(f"SELECT {expression}").fetchone()
        assert row is not None
        return row[0]


class StatementError(Exception):
    """PostgreSQL's analyzer refuses the statement."""


def _digits(value: Decimal) -> tuple[int, int]:
    """Digits before and after the point."""
    parts = value.as_tuple()
    assert isinstance(parts.exponent, int), "a finite number"
    return max(len(parts.digits) + parts.exponent, 1), -parts.exponent


def _plain(column: Any) -> list[Any]:
    """The values; of dates and timestamps the numbers, because Python has fewer of them."""
    if pa.types.is_date32(column.type):
        return list(column.cast(pa.int32()).to_pylist())
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def _duck_text(cell: str | None) -> str | None:
    """DuckDB puts years before Christ in brackets."""
    if cell is None:
        return None
    match = _BC.match(cell)
    if match is None:
        return cell
    day, _, clock = match[1].partition(" ")
    return f"{day} (BC) {clock}".strip()


def text_of(value: Any, oid: int) -> str | None:  # noqa: PLR0911  # a case for each type  # a case for each type
    """A value of DuckDB as PostgreSQL prints it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, float):
        return _float_text(value, single=oid == 700)
    if isinstance(value, Decimal):
        return format(value, "f") if value else format(abs(value), "f")
    if oid == 1082:
        return _date_text(value)
    if oid in (1114, 1184):
        return _moment_text(value, zoned=oid == 1184)
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, dict):
        return _interval_text(value["months"], value["days"], value["us"])
    if isinstance(value, list):
        return _array_text(value, oid)
    assert isinstance(value, int | str | UUID), f"a value of {type(value)}"
    return str(value)


def _float_text(value: float, *, single: bool) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    digits = _shortest_single(value) if single else repr(value)
    mantissa, _, exponent = digits.partition("e")
    number = Decimal(digits)
    places = number.adjusted()
    limit = 6 if single else 15
    if not number or -4 <= places < limit:
        text = format(number.normalize(), "f")
        return f"-{text.lstrip('-')}" if math.copysign(1, value) < 0 else text
    shown = format(number.normalize(), "e")
    mantissa, _, exponent = shown.partition("e")
    sign = exponent[0] if exponent[0] in "+-" else "+"
    return f"{mantissa}e{sign}{exponent.lstrip('+-').rjust(2, '0')}"


def _shortest_single(value: float) -> str:
    import numpy as np

    return str(np.float32(value))


def _interval_text(months: int, days: int, micros: int) -> str:
    """In the style `postgres`, as EncodeInterval writes it."""
    text = ""
    negative = False
    years, months = (
        (abs(months) // 12, abs(months) % 12)
        if months >= 0
        else (-(-months // 12), -(-months % 12))
    )
    for count, unit in ((years, "year"), (months, "mon"), (days, "day")):
        if count:
            sign = "+" if negative and count > 0 else ""
            text += f"{' ' if text else ''}{sign}{count} {unit}{'' if count == 1 else 's'}"
            negative = count < 0
    if text and not micros:
        return text
    seconds, fraction = divmod(abs(micros), 1_000_000)
    sign = "-" if micros < 0 else "+" if negative else ""
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    shown = f".{fraction:06}".rstrip("0") if fraction else ""
    return f"{text}{' ' if text else ''}{sign}{clock}{shown}"


def _date_text(days: int) -> str:
    """Days since 1970."""
    infinite = {2**31 - 1: "infinity", -(2**31) + 1: "-infinity"}
    if days in infinite:
        return infinite[days]
    day, era = _day_text(days)
    return day + era


def _moment_text(micros: int, *, zoned: bool) -> str:
    """Microseconds since 1970."""
    infinite = {2**63 - 1: "infinity", -(2**63) + 1: "-infinity"}
    if micros in infinite:
        return infinite[micros]
    days, rest = divmod(micros, 86_400_000_000)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction:
        clock += f".{fraction:06}".rstrip("0")
    day, era = _day_text(days)
    return f"{day} {clock}{'+00' if zoned else ''}{era}"


def _day_text(days: int) -> tuple[str, str]:
    """By the algorithm of Howard Hinnant's civil_from_days, for all years."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    if year > 0:
        return f"{year:04}-{month:02}-{day:02}", ""
    return f"{1 - year:04}-{month:02}-{day:02}", " BC"


def _array_text(values: list[Any], oid: int) -> str:
    cells = []
    for value in values:
        text = text_of(value, 0)
        if text is None:
            cells.append("NULL")
        elif not text or text.upper() == "NULL" or re.search(r'[{}",\\\s]', text):
            escaped = text.replace("\\", "\\\\").replace('"', '\\"')
            cells.append(f'"{escaped}"')
        else:
            cells.append(text)
    return "{" + ",".join(cells) + "}"


@contextmanager
def sql_pair(server: EmbeddedPostgres, *statements: str) -> Iterator[SqlPair]:
    """A pair in a new database, with these tables and rows."""
    name = f"pair_{secrets.token_hex(6)}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        pair = SqlPair(server.dsn(name))
        try:
            pair.define(*statements)
            pair.copy()
            yield pair
        finally:
            pair.close()
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@dataclass(slots=True)
class Tally:
    """How statements ended. `different` has those whose answers differ, and `open` those where only one
    side fails: PostgreSQL's planner decides for which rows it computes an expression, too.
    """

    equal: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    open: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.equal + self.refused.total() + len(self.open) + len(self.different)

    def compare(self, pair: SqlPair, sql: str, *, ordered: bool, strict: bool = False) -> None:
        """Run the statement on both sides; `strict` if they have to fail alike."""
        expected = pair.expected(sql)
        assert expected.sqlstate[:2] != "42", (
            f"the grammar made an invalid statement: {expected.message} {sql}"
        )
        found = pair.answered(sql)
        if found.refused:
            self.refused[found.refused.partition("\n")[0][:90]] += 1
        elif same(expected, found, ordered=ordered) or (
            expected.sqlstate and expected.sqlstate == pair.planning_error(sql)
        ):
            self.equal += 1
        elif not strict and bool(expected.sqlstate) != bool(found.sqlstate):
            self.open.append(sql)
        else:
            self.different.append(difference(sql, expected, found))


def same(expected: Outcome, found: Outcome, *, ordered: bool) -> bool:
    """Whether the answers are equal. If both fail with data exceptions, another expression may have
    failed first.
    """
    if expected.sqlstate or found.sqlstate:
        return (
            expected.sqlstate == found.sqlstate
            or expected.sqlstate[:2] == found.sqlstate[:2] == "22"
        )
    if ordered:
        return expected.rows == found.rows
    return sorted(expected.rows, key=str) == sorted(found.rows, key=str)


def difference(sql: str, expected: Outcome, found: Outcome) -> str:
    pairs = zip(expected.rows, found.rows, strict=False)
    first = next(((one, other) for one, other in pairs if one != other), None)
    return (
        f"{sql}\n  PostgreSQL: {len(expected.rows)} rows {expected.sqlstate} {expected.message}"
        f"\n  DuckDB: {len(found.rows)} rows {found.sqlstate} {found.message}\n  {first}"
    )
