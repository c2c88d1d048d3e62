"""Patterns whose meaning is the same in PostgreSQL and DuckDB: formats of to_char, and regular
expressions. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headrace.sql.constants import text_literal

# Templates of to_char that are numbers of fixed width, and DuckDB's SQL of the number. The longest
# names come first.
_TEMPLATES: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "YYYY": ("year({0})", 4),
        "HH24": ("hour({0})", 2),
        "IYYY": ("isoyear({0})", 4),
        "DDD": ("dayofyear({0})", 3),
        "MM": ("month({0})", 2),
        "DD": ("day({0})", 2),
        "MI": ("minute({0})", 2),
        "SS": ("second({0})", 2),
        "MS": ("(microsecond({0}) // 1000 % 1000)", 3),
        "US": ("(microsecond({0}) % 1000000)", 6),
        "IW": ("week({0})", 2),
        "YY": ("(year({0}) % 100)", 2),
        "ID": ("isodow({0})", 1),
        "Q": ("quarter({0})", 1),
        "D": ("(dayofweek({0}) + 1)", 1),
    }
)
_TEMPLATE: Final = re.compile("|".join(_TEMPLATES))
_SEPARATORS: Final = re.compile(r'[-/.,:;_ ]+|"[^"\\]*"')
# Years of four digits after Christ.
_FIRST: Final = "CAST('0001-01-01' AS TIMESTAMP)"
_LAST: Final = "CAST('9999-12-31 23:59:59.999999' AS TIMESTAMP)"

# Letters, digits, and signs without a special meaning in either language. A bound is small.
_PLAIN = r"[A-Za-z0-9 _/,:;=@#%&!<>~'\"-]|[^\x00-\x7f]"
_ATOM = (
    rf"(?:{_PLAIN}|\.|\\[.^$*+?()\[\]{{}}|\\/d-]|\[\^?[A-Za-z0-9_/,:;=@#%&]+(?:-[A-Za-z0-9])?\])"
)
_PIECE = rf"{_ATOM}(?:[*+?]|\{{\d{{1,2}}(?:,\d{{0,2}})?\}})?"
_BRANCH = rf"\^?(?:{_PIECE})*\$?"
_EXPRESSION: Final = re.compile(rf"(?:{_BRANCH})\Z")


def formatted_moment(template: str, moment: str) -> str | None:
    """to_char() of a timestamp; None if the template isn't one of fixed numbers and separators."""
    parts = []
    at = 0
    while at < len(template):
        separator = _SEPARATORS.match(template, at)
        found = separator or _TEMPLATE.match(template, at)
        if found is None:
            return None
        if separator is not None:
            parts.append(text_literal(found[0].strip('"') if '"' in found[0] else found[0]))
        else:
            number, width = _TEMPLATES[found[0]]
            parts.append(f"lpad(CAST({number.format(moment)} AS VARCHAR), {width}, '0')")
        at = found.end()
    return " || ".join(parts) or None


def within_four_digits(moment: str) -> str:
    """Whether a timestamp is of the years 1 to 9999."""
    return f"{moment} BETWEEN {_FIRST} AND {_LAST}"


def same_expression(pattern: str) -> bool:
    """Whether a regular expression matches the same texts in both languages: characters, any
    character, simple classes and bounds, anchored at the ends only. PostgreSQL's full stop matches
    a line end too, which DuckDB's does with the option `s`.
    """
    return _EXPRESSION.match(pattern) is not None
