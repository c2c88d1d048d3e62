"""A statement that PostgreSQL itself runs, on tables of the same names in another schema. Pure.

The text loses the schemas before the names of the lake's tables, so that `search_path` decides.
Whether that left the meaning is not believed but compared: the analyzer's tree of the new text must
be the tree of the statement, with other tables in the places of the lake's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.sql.builtins import Builtins
from headrace.sql.query_tree import Node, Value
from headrace.sql.statements import Piece, identifier, split

# They say who may read, which is checked for the statement itself, on what plans depend, and how a
# conversion was written: PostgreSQL's own comparison of trees leaves these out, too.
_OTHERWISE: Final = frozenset(
    {
        "checkAsUser",
        "coerceformat",
        "constraintDeps",
        "convertformat",
        "funcformat",
        "queryId",
        "relabelformat",
        "row_format",
    }
)
_RELATION_FIELDS: Final = frozenset({"relid", "resorigtbl"})
# Nodes that PostgreSQL's planner evaluates if their arguments are constants.
_EVALUATED: Final = frozenset(
    {
        "ARRAYCOERCEEXPR",
        "COERCETODOMAIN",
        "COERCEVIAIO",
        "DISTINCTEXPR",
        "FUNCEXPR",
        "NULLIFEXPR",
        "OPEXPR",
        "SCALARARRAYOPEXPR",
        "SUBSCRIPTINGREF",
    }
)
# Nodes whose value depends on a row, a session or another query.
_VARIABLE: Final = frozenset(
    {
        "AGGREF",
        "GROUPINGFUNC",
        "NEXTVALUEEXPR",
        "QUERY",
        "SQLVALUEFUNCTION",
        "SUBLINK",
        "VAR",
        "WINDOWFUNC",
    }
)
# Conversions that can't fail.
_SAFE: Final = frozenset(
    {
        "int4(int2)",
        "int8(int2)",
        "int8(int4)",
        "float8(int4)",
        "float8(int8)",
        "float8(float4)",
        "numeric(int2)",
        "numeric(int4)",
        "numeric(int8)",
        "text(bpchar)",
    }
)


def without_schemas(text: bytes, tables: Collection[tuple[str, str]]) -> bytes:
    """The statement without the schemas, and the database, before these tables' names."""
    wanted = {(schema.encode(), name.encode()) for schema, name in tables}
    pieces = split(text)
    if len(pieces) != 1:
        return text
    piece = pieces[0]
    kept: list[bytes] = []
    at = 0
    for first, name in _qualified(piece, wanted):
        start = piece.tokens[first].start - piece.start
        kept.append(piece.text[at:start])
        at = piece.tokens[name].start - piece.start
    return b"".join([*kept, piece.text[at:]])


def _qualified(piece: Piece, wanted: Collection[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
    """The places of qualified names: of the first word before each name, and of the name."""
    found = []
    for place in range(1, len(piece.tokens) - 1):
        if piece.word(place) != "." or not _named(piece, place - 1) or not _named(piece, place + 1):
            continue
        if (identifier(piece, place - 1), identifier(piece, place + 1)) not in wanted:
            continue
        first = place - 1
        # The database's name may come before.
        if first > 1 and piece.word(first - 1) == ".":
            first -= 2
        found.append((first, place + 1))
    return found


def _named(piece: Piece, place: int) -> bool:
    return piece.tokens[place].kind in ("word", "name")


@dataclass(frozen=True, slots=True)
class Replaced:
    """The tables, and their row types, that stand for others."""

    relations: Mapping[int, int]
    types: Mapping[int, int]


def is_same(before: Value, after: Value, replaced: Replaced, name: str = "") -> bool:
    """Whether one tree is the other with each relation replaced."""
    if isinstance(before, Node):
        if not isinstance(after, Node) or before.kind != after.kind:
            return False
        if before.fields.keys() != after.fields.keys():
            return False
        return all(
            is_same(value, after.fields[field], replaced, field)
            for field, value in before.fields.items()
            if field not in _OTHERWISE
        )
    if isinstance(before, list):
        return (
            isinstance(after, list)
            and len(before) == len(after)
            and all(is_same(*pair, replaced) for pair in zip(before, after, strict=True))
        )
    # 1 equals True in Python, and a name can look like a number.
    if type(before) is not type(after):
        return False
    if isinstance(before, int) and not isinstance(before, bool):
        known = replaced.relations if name in _RELATION_FIELDS else replaced.types
        return known.get(before, before) == after
    return before == after


def mentions(value: Value, numbers: Collection[int]) -> bool:
    """Whether one of these numbers stands in a tree."""
    if isinstance(value, Node):
        return any(mentions(each, numbers) for each in value.fields.values())
    if isinstance(value, list):
        return any(mentions(each, numbers) for each in value)
    return isinstance(value, int) and not isinstance(value, bool) and value in numbers


def calls(value: Value, functions: Collection[int]) -> bool:
    """Whether a tree calls one of these functions."""
    if isinstance(value, Node):
        if value.get("funcid") in functions:
            return True
        return any(calls(each, functions) for each in value.fields.values())
    return isinstance(value, list) and any(calls(each, functions) for each in value)


def may_fail_in_planning(value: Value, builtins: Builtins) -> bool:
    """Whether PostgreSQL's planner evaluates an expression of constants that could raise an error.
    Rather too often than too seldom.
    """
    return _Folding(builtins).of(value)[1]


class _Folding:
    def __init__(self, builtins: Builtins) -> None:
        self._builtins = builtins

    def of(self, value: Value) -> tuple[bool, bool]:
        """Whether a part of a tree is constant, and whether it has what the planner evaluates."""
        if isinstance(value, list):
            return self._all(value)
        if not isinstance(value, Node):
            return True, False
        constant, evaluated = self._all(list(value.fields.values()))
        # A part of it, such as a subquery's condition, can be evaluated nevertheless.
        if value.kind in _VARIABLE:
            return False, evaluated
        if value.kind not in _EVALUATED:
            return constant, evaluated
        if value.kind == "FUNCEXPR":
            signature = self._builtins.function(value.integer("funcid"))
            if signature in _SAFE:
                return constant, evaluated
            # now() and the like.
            if not value.items("args"):
                return False, evaluated
        return constant, evaluated or constant

    def _all(self, values: list[Value]) -> tuple[bool, bool]:
        found = [self.of(each) for each in values]
        return all(each for each, _ in found), any(each for _, each in found)
