"""The comparisons that DuckDB makes as PostgreSQL does, and the order of sorting. Pure.

NaN equals itself and is greater than all other numbers, texts compare by their bytes, and false is
less than true, in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from headrace.contract import type_oids
from headrace.sql.calls import Call, Functions, Handler, c_template, refuse_texts, template
from headrace.sql.constants import text_literal
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.forms import Expression, value
from headrace.sql.storage_types import (
    BPCHAR_OID,
    NAME_OID,
    TEXT_OID,
    TIME_OID,
    UUID_OID,
    VARCHAR_OID,
    Meaning,
)

# A type modifier of characters is their number, and this.
_HEADER_BYTES: Final = 4
_OPERATORS: Final = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INTEGERS: Final = {"int2": "2", "int4": "4", "int8": "8"}
_FLOATS: Final = {"float4": "4", "float8": "8"}
_FLOAT_OIDS: Final = (type_oids.FLOAT4, type_oids.FLOAT8)
# DuckDB's order of these types is PostgreSQL's.
_ORDERED: Final = frozenset(
    {
        type_oids.BOOL,
        type_oids.INT2,
        type_oids.INT4,
        type_oids.INT8,
        type_oids.OID,
        type_oids.FLOAT4,
        type_oids.FLOAT8,
        type_oids.NUMERIC,
        type_oids.BYTEA,
        type_oids.DATE,
        type_oids.TIMESTAMP,
        type_oids.TIMESTAMPTZ,
        TEXT_OID,
        VARCHAR_OID,
        BPCHAR_OID,
        NAME_OID,
        TIME_OID,
        UUID_OID,
    }
)


def sort_key(expression: Expression, operator: str, *, nulls_first: bool) -> str:
    """A term of ORDER BY, for a sort operator."""
    directions = {"<": "ASC", ">": "DESC"}
    if operator not in directions:
        raise NotProvenEqualError(f"ORDER BY USING {operator}")
    # Always written out: DuckDB's default differs from PostgreSQL's for DESC.
    nulls = "FIRST" if nulls_first else "LAST"
    return f"{ordered(expression)} {directions[operator]} NULLS {nulls}"


def ordered(expression: Expression) -> str:
    """SQL whose order and equality in DuckDB are those of the values in PostgreSQL."""
    require_order(expression)
    if expression.form.type_oid == BPCHAR_OID:
        return f"rtrim({expression.sql}, ' ')"
    if expression.form.type_oid in _FLOAT_OIDS:
        # DuckDB shows a column that it sorts by from the sort's key, in which -0 is 0.
        return f"({expression.kept} + CAST(0 AS FLOAT))"
    return expression.kept


def require_order(expression: Expression) -> None:
    form = expression.form
    if form.type_oid not in _ORDERED or form.meaning is Meaning.TEXT:
        raise NotProvenEqualError(f"the order of values of type {form.type_oid}")


def require_groups(expression: Expression) -> None:
    """Refuse values of which equal ones can print differently: groups show one of them."""
    require_order(expression)
    form = expression.form
    # 1.0 and 1.00 are one group, which would show either of them.
    if form.varies:
        raise NotProvenEqualError("grouping of numerics whose display scales differ")
    # With a length, equal values are padded alike and look the same; without one, they may not.
    if form.type_oid == BPCHAR_OID and form.modifier < 0:
        raise NotProvenEqualError("grouping of character without a length")


def _bpchar(operator: str) -> Handler:
    def handle(call: Call) -> Expression:
        call.require_c()
        refuse_texts(call)
        left, right = call.args
        sides = None
        if operator in ("=", "<>"):
            sides = _padded(left, right) or _padded(right, left)
        one, other = sides or (f"rtrim({left.sql}, ' ')", f"rtrim({right.sql}, ' ')")
        return value(f"({one} {operator} {other})", type_oids.BOOL)

    return handle


def _padded(left: Expression, right: Expression) -> tuple[str, str] | None:
    """Both sides of an equality of values of one length, without a look at their blanks: DuckDB
    skips row groups by the values of a column, and compares short texts as numbers.
    """
    length = left.form.modifier
    # All values of character(n) have n characters, but those of two lengths may be equal.
    if length < 0:
        return None
    if right.form.modifier == length:
        return left.sql, right.sql
    if not isinstance(right.constant, str):
        return None
    characters = right.constant.rstrip(" ").ljust(length - _HEADER_BYTES)
    return left.sql, text_literal(characters)


def _numbers(types: dict[str, str], prefix: str) -> Iterator[tuple[str, Handler]]:
    for left, left_size in types.items():
        for right, right_size in types.items():
            sizes = left_size if left == right else left_size + right_size
            for name, operator in _OPERATORS.items():
                signature = f"{prefix}{sizes}{name}({left},{right})"
                yield signature, template(f"{{0}} {operator} {{1}}")


def _same(prefix: str, type_name: str) -> Iterator[tuple[str, Handler]]:
    for name, operator in _OPERATORS.items():
        yield f"{prefix}{name}({type_name},{type_name})", template(f"{{0}} {operator} {{1}}")


def _texts() -> Iterator[tuple[str, Handler]]:
    names = {
        "texteq": "=", "textne": "<>", "text_lt": "<",
        "text_le": "<=", "text_gt": ">", "text_ge": ">=",
    }  # fmt: skip
    for name, operator in names.items():
        yield f"{name}(text,text)", c_template(f"{{0}} {operator} {{1}}")
    for name, operator in _OPERATORS.items():
        yield f"bpchar{name}(bpchar,bpchar)", _bpchar(operator)
        yield f"name{name}(name,name)", c_template(f"{{0}} {operator} {{1}}")
        for left, right in (("name", "text"), ("text", "name")):
            yield f"{left}{name}{right}({left},{right})", c_template(f"{{0}} {operator} {{1}}")


def _moments() -> Iterator[tuple[str, Handler]]:
    for name, operator in _OPERATORS.items():
        pattern = f"{{0}} {operator} {{1}}"
        yield f"date_{name}_timestamp(date,timestamp)", template(pattern)
        yield f"timestamp_{name}_date(timestamp,date)", template(pattern)


COMPARISONS: Final[Functions] = MappingProxyType(
    dict(
        [
            *_numbers(_INTEGERS, "int"),
            *_numbers(_FLOATS, "float"),
            *_same("oid", "oid"),
            *_same("bool", "bool"),
            *_same("bytea", "bytea"),
            *_same("numeric_", "numeric"),
            *_same("date_", "date"),
            *_same("timestamp_", "timestamp"),
            *_same("timestamptz_", "timestamptz"),
            *_same("time_", "time"),
            *_same("uuid_", "uuid"),
            *_texts(),
            *_moments(),
        ]
    )
)
