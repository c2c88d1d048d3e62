"""Parses PostgreSQL's array literal, `{{1,2},{3,NULL}}`, to nested lists.

Owns the form that `array_out` prints, and no other: anything else is a `DecodeError`, not a guess.
A list has no lower bounds (`[0:1]={…}`): `Lists` adds the literal for this, as for everything that
a list can't express. Pure, and without recursion.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from headrace.contract.exact import Inexact
from headrace.contract.scalars import text
from headrace.errors import DecodeError

# `array_out` prints the bounds of all dimensions if one of them does not start at 1.
_BOUNDS = re.compile(rb"(?:\[-?\d+:-?\d+\])+=")
# Within quotes `array_out` escapes only a quote and a backslash.
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lists:
    """The conversion of an array: its list, or `Inexact` if the list doesn't determine the array.

    That is the case for bounds that don't start at 1, for a delimiter other than the comma, and for
    documents that could be mistaken for a dimension (`[1]`) or for SQL's NULL (`null`), or that
    lose information themselves.
    """

    element: Callable[[bytes], object]
    delimiter: bytes
    documents: bool = False

    def __call__(self, literal: bytes) -> object:
        # A list can't say where its bounds start, or which character separates its elements.
        unclear = self.delimiter != b"," or literal[:1] == b"["

        def document(value: bytes) -> object:
            nonlocal unclear
            # A document that is a list looks like a further dimension, and the document `null` like
            # SQL's NULL (docs/adr/0019).
            found = self.element(value)
            unclear = unclear or isinstance(found, Inexact) or value.lstrip()[:1] == b"["
            if isinstance(found, Inexact):
                return found.native
            return found

        array = parse_array(literal, document if self.documents else self.element, self.delimiter)
        if unclear:
            return Inexact(array, text(literal))
        return array


def parse_array(
    literal: bytes, element: Callable[[bytes], object], delimiter: bytes = b","
) -> list[Any]:
    """The list that the literal denotes: NULL becomes None, `element` converts other texts."""
    bounds = _BOUNDS.match(literal)
    body = literal[bounds.end() :] if bounds else literal
    # The split below would yield one empty element, which no array has without quotes.
    if body == b"{}":
        return []
    # One dimension without quotes is by far the usual array, and splitting it is much faster.
    if (
        b'"' not in body
        and body[:1] == b"{"
        and body.find(b"{", 1) < 0
        and body.find(b"}") == len(body) - 1
    ):
        return [_plain(part, element) for part in body[1:-1].split(delimiter)]
    return _parse_nested(body, element, delimiter)


def _plain(part: bytes, element: Callable[[bytes], object]) -> object:
    # Only without quotes: PostgreSQL quotes a text that reads NULL, in upper or lower case.
    if part == b"NULL":
        return None
    # PostgreSQL quotes an empty element, and one that contains a backslash.
    if not part or b"\\" in part:
        raise DecodeError("an array literal has an element that needs quotes and has none")
    return element(part)


# One pattern for each delimiter, of which there are few: a comma, a semicolon for box, and those of
# extensions.
@lru_cache
def _tokens(delimiter: bytes) -> re.Pattern[bytes]:
    """An element or a brace, then its terminator; possessive, to prevent backtracking."""
    mark = re.escape(delimiter)
    value = rb'"(?P<quoted>[^"\\]*(?:\\.[^"\\]*)*)"|(?P<plain>[^{}"\\' + mark + rb"]++)"
    return re.compile(
        rb"(?P<open>\{*+)(?:" + value + rb")(?P<close>\}*+)(?P<mark>" + mark + rb"|\Z)", re.DOTALL
    )


def _parse_nested(body: bytes, element: Callable[[bytes], object], delimiter: bytes) -> list[Any]:
    """Each token is one element with the braces around it; `path` contains the open lists."""
    outer: list[Any] = []
    path: list[list[Any]] = [outer]
    depth = 0
    at = 0
    more = True
    match = _tokens(delimiter).match
    while more:
        token = match(body, at)
        if token is None:
            raise DecodeError(f"an array literal has no element at byte {at}")
        for _ in token["open"]:
            path[-1].append([])
            path.append(path[-1][-1])
        depth = depth or len(path)
        closed = len(token["close"])
        # PostgreSQL's arrays are rectangular: every element has the depth of the first one.
        if depth < 2 or len(path) != depth or closed >= depth:
            raise DecodeError(f"an array literal has unbalanced braces at byte {at}")
        quoted = token["quoted"]
        if quoted is None:
            path[-1].append(_plain(token["plain"], element))
        else:
            path[-1].append(element(_ESCAPE.sub(rb"\1", quoted)))
        del path[depth - closed :]
        at = token.end()
        more = bool(token["mark"])
    # A second pair of braces after the first would be another list in `outer`.
    if len(path) != 1 or len(outer) != 1:
        raise DecodeError("an array literal is not one pair of braces")
    result: list[Any] = outer[0]
    return result
