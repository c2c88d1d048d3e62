"""A call of a built-in function or operator, and the helpers that the lists of functions use.

A list maps PostgreSQL's signature, `int4div(int4,int4)`, to a handler that gives DuckDB's SQL.
Everything else is refused. An error that DuckDB doesn't raise itself is `error('HR22012: …')`,
which `duckdb_errors` reads. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from headrace.sql.builtins import Builtins
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.forms import Expression, Form, form_of, value
from headrace.sql.storage_types import Meaning


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of the client's session on which answers depend."""

    utc: bool = False
    iso_dates: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments in the order of the signature, and the type of the result."""

    signature: str
    args: tuple[Expression, ...]
    result_oid: int
    collation: int
    builtins: Builtins
    session: SessionSettings
    # Whether the result may be a DECIMAL of 64 bits, which fails if a value doesn't fit.
    narrow: bool = False

    def sql(self, number: int) -> str:
        return self.args[number].sql

    def kept(self) -> list[str]:
        """The arguments as they are, for comparisons."""
        return [arg.kept for arg in self.args]

    def refuse(self, why: str = "") -> NotProvenEqualError:
        return NotProvenEqualError(self.signature, why)

    def require_c(self) -> None:
        """The result depends on the order or the classes of characters."""
        if self.collation and self.collation not in self.builtins.c_collations:
            raise self.refuse("Its collation is not C.")

    def require_utc(self) -> None:
        if not self.session.utc:
            raise self.refuse("Set TimeZone to UTC.")

    def text_constant(self, number: int) -> str:
        constant = self.args[number].constant
        if not isinstance(constant, str):
            raise self.refuse(f"Its argument {number + 1} has to be a constant.")
        return constant

    def integer_constant(self, number: int) -> int:
        constant = self.args[number].constant
        if isinstance(constant, bool) or not isinstance(constant, int):
            raise self.refuse(f"Its argument {number + 1} has to be a constant.")
        return constant


Handler: TypeAlias = Callable[[Call], Expression]
Functions: TypeAlias = Mapping[str, Handler]


def template(pattern: str) -> Handler:
    """SQL with {0}, {1}, … for the arguments, whose type in DuckDB is the result's."""

    def handle(call: Call) -> Expression:
        refuse_texts(call)
        return value("(" + pattern.format(*call.kept()) + ")", call.result_oid)

    return handle


def c_template(pattern: str) -> Handler:
    """As `template`, for functions that depend on the collation or the class of characters."""
    plain = template(pattern)

    def handle(call: Call) -> Expression:
        call.require_c()
        return plain(call)

    return handle


def refuse_texts(call: Call) -> None:
    """Refuse arguments that stand in the copy as the text of another type."""
    for arg in call.args:
        if arg.form.meaning is Meaning.TEXT and not arg.is_null:
            name = call.builtins.type_name(arg.form.type_oid)
            raise NotProvenEqualError(f"{call.signature} of {name} without a type in the copy")


def unchanged(call: Call) -> Expression:
    """The argument, in the type of the result."""
    first = call.args[0]
    return Expression(first.sql, form_of(call.result_oid), constant=first.constant)


def error_sql(sqlstate: str, message: str) -> str:
    """SQL that fails with PostgreSQL's error."""
    return f"error('HR{sqlstate}: {message}')"


def guarded(condition: str, error: str, sql: str) -> str:
    return f"(CASE WHEN {condition} THEN {error} ELSE {sql} END)"


def cast(sql: str, form: Form) -> str:
    return f"CAST({sql} AS {form.duckdb})"
