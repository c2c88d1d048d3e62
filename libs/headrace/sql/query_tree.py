"""PostgreSQL's query trees as texts: what `debug_print_rewritten` logs, read into nodes.

A node is `{KIND :field value :field value}`. A value is a node, a list, a number, a truth value, a
word, nothing (`<>`), a set of numbers `(b 1 2)`, or the bytes of a datum `4 [ 3 0 0 0 … ]`. Words
escape spaces and brackets with a backslash. PostgreSQL breaks lines at 78 columns: a line end is a
space, also one that a backslash escapes.

The reader is strict. Anything unexpected raises `QueryTreeError`; it never guesses. Fields that
only say where something stood in the statement's text are left out, so that equal expressions are
equal nodes. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace.errors import HeadraceError

# Other white space, such as a no-break space, is part of a name: PostgreSQL neither escapes it nor
# ends a token there.
_TOKEN = re.compile(r"[(){}]|(?:\\.|[^ \n\t(){}\\])+", re.DOTALL)
# PostgreSQL escapes a name that begins with a digit or a sign, so nothing else looks like this.
_INTEGER = re.compile(r"-?[0-9]+\Z")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_BRACKETS: Final = frozenset("(){}")
# Places in the text of the statement, and names as the statement spelled them.
_PLACES: Final = frozenset(
    {
        "list_end",
        "list_start",
        "location",
        "stmt_len",
        "stmt_location",
        "varattnosyn",
        "varnosyn",
    }
)
# Each level takes two calls; Python would give up at 1,000, at a depth that depends on the caller.
_DEPTH_MAX: Final = 200


class QueryTreeError(HeadraceError):
    """A query tree is not in the form that PostgreSQL 16 to 18 write."""

    remedy = "Use PostgreSQL 16 or 18 as the private server."


class Word(str):
    """A word, as opposed to a text in quotes."""

    __slots__ = ()


Value: TypeAlias = "Node | list[Value] | frozenset[int] | str | int | bool | bytes | None"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the tree. The methods read a field whose type the caller knows."""

    kind: str
    fields: Mapping[str, Value]

    def get(self, name: str) -> Value:
        """The field, or None if it is empty or this version of PostgreSQL doesn't write it."""
        return self.fields.get(name)

    def node(self, name: str) -> Node:
        value = self.fields.get(name)
        if not isinstance(value, Node):
            raise QueryTreeError(f"{self.kind}.{name} is not a node")
        return value

    def optional(self, name: str) -> Node | None:
        return None if self.fields.get(name) is None else self.node(name)

    def nodes(self, name: str) -> list[Node]:
        """The nodes of a list, which may be empty."""
        found = []
        for item in self.items(name):
            if not isinstance(item, Node):
                raise QueryTreeError(f"{self.kind}.{name} has an item that is not a node")
            found.append(item)
        return found

    def items(self, name: str) -> list[Value]:
        value = self.fields.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise QueryTreeError(f"{self.kind}.{name} is not a list")
        return value

    def integers(self, name: str) -> list[int]:
        """The numbers of a list of integers or OIDs."""
        found = []
        for item in self.items(name):
            if isinstance(item, bool) or not isinstance(item, int):
                raise QueryTreeError(f"{self.kind}.{name} has an item that is not a number")
            found.append(item)
        return found

    def integer(self, name: str) -> int:
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise QueryTreeError(f"{self.kind}.{name} is not a number")
        return value

    def flag(self, name: str) -> bool:
        value = self.fields.get(name)
        if not isinstance(value, bool):
            raise QueryTreeError(f"{self.kind}.{name} is neither true nor false")
        return value

    def word(self, name: str) -> str:
        """A name; names can look like other values."""
        value = self.fields.get(name)
        if isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, str):
            raise QueryTreeError(f"{self.kind}.{name} is not a word")
        return value

    def members(self, name: str) -> frozenset[int]:
        value = self.fields.get(name)
        if not isinstance(value, frozenset):
            raise QueryTreeError(f"{self.kind}.{name} is not a set")
        return value


def parse_tree(text: str) -> list[Node]:
    """The queries of a rewritten statement."""
    value = _Reader(_TOKEN.findall(text)).whole()
    if not isinstance(value, list):
        raise QueryTreeError("a query tree is not a list")
    queries = [item for item in value if isinstance(item, Node) and item.kind == "QUERY"]
    if len(queries) != len(value):
        raise QueryTreeError("a query tree contains something else than queries")
    return queries


class _Reader:
    """Reads tokens by recursive descent, up to a depth."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def whole(self) -> Value:
        try:
            value = self._value(self._take())
        except (IndexError, ValueError):
            raise QueryTreeError("a query tree ends too early") from None
        if self._next != len(self._tokens):
            raise QueryTreeError("a query tree continues after its end")
        return value

    def _take(self) -> str:
        piece = self._tokens[self._next]
        self._next += 1
        return piece

    def _value(self, piece: str) -> Value:
        if piece not in _BRACKETS:
            return self._scalar(piece)
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise QueryTreeError("a query tree is nested too deeply")
        if piece == "{":
            value: Value = self._node()
        elif piece == "(":
            value = self._list()
        else:
            raise QueryTreeError(f"a query tree has {piece} in the wrong place")
        self._depth -= 1
        return value

    def _scalar(self, piece: str) -> Value:
        if _INTEGER.match(piece) is None:
            return _word(piece)
        number = int(piece)
        if self._next < len(self._tokens) and self._tokens[self._next] == "[":
            return self._datum(number)
        return number

    def _datum(self, length: int) -> bytes:
        """A datum that is passed by value has eight bytes, however many its type has."""
        self._take()
        end = self._tokens.index("]", self._next)
        # PostgreSQL prints the bytes as C's characters, which have a sign on most machines.
        octets = bytes(int(piece) & 0xFF for piece in self._tokens[self._next : end])
        self._next = end + 1
        if len(octets) not in (length, 8):
            raise QueryTreeError("a datum has another length than it says")
        return octets

    def _node(self) -> Node:
        kind = self._take()
        if kind in _BRACKETS or kind.startswith(":"):
            raise QueryTreeError("a node has no kind")
        fields: dict[str, Value] = {}
        while (piece := self._take()) != "}":
            if not piece.startswith(":") or piece[1:] in fields:
                raise QueryTreeError(f"{kind} has {piece} where a field should be")
            value = self._value(self._take())
            if piece[1:] not in _PLACES:
                fields[piece[1:]] = value
        return Node(kind, fields)

    def _list(self) -> Value:
        piece = self._take()
        if piece == "b":
            return frozenset(self._numbers())
        if piece in ("i", "o", "x") and self._tokens[self._next] not in _BRACKETS - {")"}:
            return list(self._numbers())
        found: list[Value] = []
        while piece != ")":
            found.append(self._value(piece))
            piece = self._take()
        return found

    def _numbers(self) -> list[int]:
        found = []
        while (piece := self._take()) != ")":
            if _INTEGER.match(piece) is None:
                raise QueryTreeError(f"a list of numbers has {piece}")
            found.append(int(piece))
        return found


def _word(piece: str) -> Value:
    # A name of these characters, or one in quotes, would begin with a backslash.
    if piece == "<>":
        return None
    if piece == "true":
        return True
    if piece == "false":
        return False
    if piece.startswith('"') and piece.endswith('"') and len(piece) > 1:
        return _unescaped(piece[1:-1])
    return Word(_unescaped(piece))


def _unescaped(piece: str) -> str:
    # A line end within a word is a space where PostgreSQL broke the line, or part of the name.
    # Both become a space: names serve only to find WITH queries.
    return _ESCAPE.sub(r"\1", piece).replace("\n", " ") if "\\" in piece else piece
