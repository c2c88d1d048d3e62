"""Values whose native form loses information, and their exact text.

A document such as `{"price": 1.50}` has a native form that readers compute with, which loses a
digit. Then an event also contains PostgreSQL's text of the column, in `exact` (for `data`) and
`exact_old` (for `old`); a snapshot's chunk contains it in `exact`, by the row's index. Pure.

`row`, `old_row` and `rows` are for readers that must not lose anything: the native values, with an
`ExactText` in place of each value that has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Texts = Mapping[str, str]


class Inexact:
    """A converter's result for such a value. No encoder accepts it: the code that writes a row has
    to separate the two.
    """

    __slots__ = ("native", "text")

    def __init__(self, native: object, text: str) -> None:
        self.native = native
        self.text = text

    def __repr__(self) -> str:
        return "Inexact()"  # never the value: errors are logged


def native(value: object) -> object:
    """A converter's value without what it loses."""
    if isinstance(value, Inexact):
        return value.native
    return value


class ExactText(str):
    """PostgreSQL's own text of a value, which its input function reads as that very value."""

    __slots__ = ()


def row(payload: Mapping[str, Any]) -> Row:
    """The `data` of an event."""
    return _merged(payload.get("data") or {}, payload.get("exact"))


def old_row(payload: Mapping[str, Any]) -> Row | None:
    """The `old` of an event."""
    old = payload.get("old")
    if old is None:
        return None
    return _merged(old, payload.get("exact_old"))


def rows(payload: Mapping[str, Any]) -> Sequence[Row]:
    """The rows of a snapshot's chunk."""
    data: Sequence[Row] = payload["data"]
    exact = payload.get("exact")
    if not exact:
        return data
    # The index is text in MessagePack too, because JSON's keys can be nothing else.
    return [_merged(values, exact.get(str(place))) for place, values in enumerate(data)]


def _merged(values: Row, texts: Texts | None) -> Row:
    if not texts:
        return values
    return {
        name: ExactText(texts[name]) if name in texts else value for name, value in values.items()
    }
