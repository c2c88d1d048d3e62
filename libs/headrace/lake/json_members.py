"""The members of JSON objects as the archive has them: each value's own text, with every digit and
space. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import orjson

from headrace.errors import DecodeError

# Each repetition starts with a character that can't continue the one before, so nothing is tried
# twice. Not by possessive groups: Python before 3.11.5 matches them wrongly (gh-106052).
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_NAME = re.compile(f"({_STRING}):", re.DOTALL)
_SCALAR = rf'{_STRING}|[^"\[\]{{}},\s]+'
_PLAIN = r'[^"\[\]{}]*'
# Up to the next bracket outside strings.
_BRACKET = re.compile(rf"{_PLAIN}(?:{_STRING}{_PLAIN})*([\[\]{{}}])", re.DOTALL)
_SPACES = re.compile(r"\s*")


# Documents of this depth are found by one expression, which is much faster than bracket by bracket.
_SHALLOW = 4


def _nested(depth: int) -> str:
    """Lists and objects of up to this depth; that brackets match is PostgreSQL's promise."""
    found = rf"[\[{{]{_PLAIN}(?:{_STRING}{_PLAIN})*[\]}}]"
    for _ in range(depth - 1):
        found = rf"[\[{{]{_PLAIN}(?:(?:{_STRING}|{found}){_PLAIN})*[\]}}]"
    return found


# With the spaces around it.
_VALUE = re.compile(rf"\s*(?:{_SCALAR}|{_nested(_SHALLOW)})\s*", re.DOTALL)


class Members:
    """Reads the members with these names; others are skipped."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = {name: place for place, name in enumerate(names)}
        # Names as objects have them, in quotes; None for those of no interest.
        self._places: dict[str, int | None] = {
            orjson.dumps(name).decode(): place for place, name in enumerate(names)
        }
        wanted = "|".join(re.escape(name) for name in names)
        # Members of no interest up to the next other one. Names with escapes are left to `_place`.
        self._others = re.compile(
            rf'(?:(?!"(?:{wanted})":)"[^"\\]*":\s*(?:{_SCALAR})\s*,)*', re.DOTALL
        )

    def columns(self, texts: Iterable[str | None]) -> list[list[str | None]]:
        """The members of each name, one for each text; None where it is missing, or null."""
        rows = [self._row(text) for text in texts]
        return [[row[place] for row in rows] for place in range(len(self._names))]

    def _row(self, text: str | None) -> list[str | None]:
        found: list[str | None] = [None] * len(self._names)
        if text is None:
            return found
        at = 1
        while not text.startswith("}", at):
            others = self._others.match(text, at)
            assert others is not None, "it matches everywhere"
            name = _NAME.match(text, others.end())
            if name is None:
                raise DecodeError(f"a row's JSON has no member at character {at}")
            at = _end(text, name.end())
            place = self._place(name[1])
            if place is not None:
                member = text[name.end() : at]
                found[place] = None if member.strip() == "null" else member
            at += text.startswith(",", at)
        return found

    def _place(self, quoted: str) -> int | None:
        if quoted not in self._places:
            self._places[quoted] = self._names.get(orjson.loads(quoted))
        return self._places[quoted]


def _end(text: str, start: int) -> int:
    """The end of the value that starts here, after the spaces that follow it."""
    value = _VALUE.match(text, start)
    if value is not None:
        return value.end()
    depth = 0
    at = start
    while token := _BRACKET.match(text, at):
        at = token.end()
        if token[1] in "[{":
            depth += 1
        else:
            depth -= 1
        if depth == 0:
            spaces = _SPACES.match(text, at)
            assert spaces is not None, "it matches everywhere"
            return spaces.end()
    raise DecodeError(f"a row's JSON has no end of the value at character {start}")
