"""The members of JSON objects as the archive has them: each value's own text, with every digit and
space. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import orjson

from headrace.errors import DecodeError

_NAME = re.compile(r'("(?:[^"\\]++|\\.)*+"):', re.DOTALL)
# A string, number or word, with the spaces around it.
_SCALAR = re.compile(r'\s*+(?:"(?:[^"\\]++|\\.)*+"|[^"\[\]{},\s]++)\s*+', re.DOTALL)
# Up to the next bracket outside strings.
_BRACKET = re.compile(r'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}])', re.DOTALL)
_SPACES = re.compile(r"\s*+")


class Members:
    """Reads the members with these names; others are skipped."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = {name: place for place, name in enumerate(names)}
        # Names as objects have them, in quotes; None for those of no interest.
        self._places: dict[str, int | None] = {
            orjson.dumps(name).decode(): place for place, name in enumerate(names)
        }

    def columns(self, texts: Iterable[str | None]) -> list[list[str | None]]:
        """The members of each name, one for each text; None where it is missing, or null."""
        rows = [self._row(text) for text in texts]
        return [[row[place] for row in rows] for place in range(len(self._names))]

    def _row(self, text: str | None) -> list[str | None]:
        found: list[str | None] = [None] * len(self._names)
        if text is None:
            return found
        at = 1
        while text[at : at + 1] != "}":
            name = _NAME.match(text, at)
            if name is None:
                raise DecodeError(f"a row's JSON has no member at character {at}")
            at = _end(text, name.end())
            place = self._place(name[1])
            if place is not None:
                member = text[name.end() : at]
                found[place] = None if member.strip() == "null" else member
            at += text[at : at + 1] == ","
        return found

    def _place(self, quoted: str) -> int | None:
        if quoted not in self._places:
            self._places[quoted] = self._names.get(orjson.loads(quoted))
        return self._places[quoted]


def _end(text: str, start: int) -> int:
    """The end of the value that starts here, after the spaces that follow it."""
    scalar = _SCALAR.match(text, start)
    if scalar is not None:
        return scalar.end()
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
