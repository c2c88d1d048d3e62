"""Window functions, and the OVER clauses of PostgreSQL's window definitions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from headrace.contract import type_oids
from headrace.sql.constants import null
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.forms import Expression, as_decimal, common_decimal, value
from headrace.sql.query_tree import QueryTreeError

# Bits of frameOptions.
_NONDEFAULT = 0x1
_MODES: Final = {0x2: "RANGE", 0x4: "ROWS", 0x8: "GROUPS"}
_STARTS: Final = {
    0x20: "UNBOUNDED PRECEDING",
    0x200: "CURRENT ROW",
    0x800: "{start} PRECEDING",
    0x2000: "{start} FOLLOWING",
}
_ENDS: Final = {
    0x100: "UNBOUNDED FOLLOWING",
    0x400: "CURRENT ROW",
    0x1000: "{end} PRECEDING",
    0x4000: "{end} FOLLOWING",
}
_EXCLUSIONS: Final = {0x8000: "CURRENT ROW", 0x10000: "GROUP", 0x20000: "TIES"}
_OFFSETS = 0x800 | 0x1000 | 0x2000 | 0x4000
# Of a start and an end with an offset.
_PRECEDING = 0x800 | 0x1000
_FOLLOWING = 0x2000 | 0x4000
_RANGE = 0x2


def frame(options: int, start: Expression | None, end: Expression | None) -> str:
    """The frame clause; empty if it is the default."""
    if not options & _NONDEFAULT:
        return ""
    if options & _RANGE and options & _OFFSETS:
        raise NotProvenEqualError("RANGE with an offset")
    if _ends_before_start(options, start, end):
        # DuckDB counts less than no rows in it.
        raise NotProvenEqualError("a window frame that ends before its start")
    first = _chosen(options, _STARTS).format(start=_offset(start))
    last = _chosen(options, _ENDS).format(end=_offset(end))
    excluded = [f" EXCLUDE {words}" for bit, words in _EXCLUSIONS.items() if options & bit]
    return f" {_chosen(options, _MODES)} BETWEEN {first} AND {last}{''.join(excluded)}"


def _ends_before_start(options: int, start: Expression | None, end: Expression | None) -> bool:
    if options & _PRECEDING == _PRECEDING:
        return int(_offset(start)) < int(_offset(end))
    if options & _FOLLOWING == _FOLLOWING:
        return int(_offset(start)) > int(_offset(end))
    return False


def _chosen(options: int, words: Mapping[int, str]) -> str:
    found = [word for bit, word in words.items() if options & bit]
    if len(found) != 1:
        raise QueryTreeError("a window has an impossible frame")
    return found[0]


def _offset(offset: Expression | None) -> str:
    if offset is None:
        return ""
    count = offset.constant
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise NotProvenEqualError("a window's offset that is not a constant")
    return str(count)


@dataclass(frozen=True, slots=True)
class WindowCall:
    """A window function that is not an aggregate; `suffix` has OVER."""

    signature: str
    args: tuple[Expression, ...]
    result_oid: int
    suffix: str

    def refuse(self, why: str) -> NotProvenEqualError:
        return NotProvenEqualError(f"window function {self.signature}", why)

    def positive(self, number: int) -> int:
        """An argument that has to be a constant above zero."""
        count = self.args[number].constant
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise self.refuse(f"Its argument {number + 1} has to be a positive constant.")
        return count


WindowFunction: TypeAlias = Callable[[WindowCall], Expression]


def _numbering(function: str, duckdb: str) -> WindowFunction:
    def handle(call: WindowCall) -> Expression:
        return value(f"CAST({function}(){call.suffix} AS {duckdb})", call.result_oid)

    return handle


def _tiles(call: WindowCall) -> Expression:
    sql = f"CAST(ntile({call.positive(0)}){call.suffix} AS INTEGER)"
    return value(sql, type_oids.INT4)


def _shifted(function: str) -> WindowFunction:
    def handle(call: WindowCall) -> Expression:
        argument = call.args[0]
        distance = 1
        if len(call.args) > 1:
            distance = call.positive(1)
        if len(call.args) > 2:
            default = call.args[2]
        else:
            default = null(argument.form.type_oid)
        if argument.form.is_decimal:
            form = common_decimal([argument.form] + ([] if default.is_null else [default.form]))
            argument, default = as_decimal(argument, form), as_decimal(default, form)

        def moved(sql: str, otherwise: str) -> str:
            return f"{function}({sql}, {distance}, {otherwise}){call.suffix}"

        scale = None
        if argument.scale is not None:
            scale = moved(argument.scale, default.scale_sql)
        form = argument.form
        if not default.is_null:
            # The default may be a character of another length.
            form = replace(form, modifier=-1)
        return Expression(moved(argument.sql, default.sql), form, scale)

    return handle


def _of_frame(function: str) -> WindowFunction:
    def handle(call: WindowCall) -> Expression:
        argument = call.args[0]
        number = f", {call.positive(1)}" if len(call.args) > 1 else ""

        def taken(sql: str) -> str:
            return f"{function}({sql}{number}){call.suffix}"

        scale = None if argument.scale is None else taken(argument.scale)
        return Expression(taken(argument.sql), argument.form, scale)

    return handle


WINDOW_FUNCTIONS: Final[Mapping[str, WindowFunction]] = MappingProxyType(
    {
        "row_number()": _numbering("row_number", "BIGINT"),
        "rank()": _numbering("rank", "BIGINT"),
        "dense_rank()": _numbering("dense_rank", "BIGINT"),
        "percent_rank()": _numbering("percent_rank", "DOUBLE"),
        "cume_dist()": _numbering("cume_dist", "DOUBLE"),
        "ntile(int4)": _tiles,
        "lag(anyelement)": _shifted("lag"),
        "lag(anyelement,int4)": _shifted("lag"),
        "lag(anycompatible,int4,anycompatible)": _shifted("lag"),
        "lead(anyelement)": _shifted("lead"),
        "lead(anyelement,int4)": _shifted("lead"),
        "lead(anycompatible,int4,anycompatible)": _shifted("lead"),
        "first_value(anyelement)": _of_frame("first_value"),
        "last_value(anyelement)": _of_frame("last_value"),
        "nth_value(anyelement,int4)": _of_frame("nth_value"),
    }
)
"""All window functions that may be called, by signature."""
