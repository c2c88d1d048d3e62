"""Templates of destinations, such as `{schema}.{table}` or `orders.{data.region}`. Pure.

Promises that a template is checked when the configuration is read, and that an event without a
value for it is an error, never an empty name.
"""

from __future__ import annotations

import string
from collections.abc import Callable

from headrace.consumer.event import Event
from headrace.errors import HeadraceError

_NAMES: dict[str, Callable[[Event], str]] = {
    "source": lambda event: event.source,
    "schema": lambda event: event.schema,
    "table": lambda event: event.table,
    "operation": lambda event: event.operation.lower(),
}
_DATA = "data."
# Events of no table (gaps, messages) have neither schema nor table.
_NO_TABLE = "_"


class TemplateError(HeadraceError):
    """A template can't be used, or an event has no value for it."""

    remedy = (
        "A template consists of text and {source}, {schema}, {table}, {operation} and "
        "{data.column}."
    )


def template(text: str) -> Callable[[Event], str]:
    """The function that fills the template in."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise TemplateError(f"{text!r}: {error}") from error
    if not text:
        raise TemplateError("an empty template names nothing")
    pieces: list[str | Callable[[Event], str]] = []
    for plain, name, form, conversion in parts:
        if plain:
            pieces.append(plain)
        if name is not None:
            if form or conversion:
                raise TemplateError(f"{text!r}: {{{name}}} with a format")
            pieces.append(_value(text, name))

    def fill(event: Event) -> str:
        return "".join(piece if isinstance(piece, str) else piece(event) for piece in pieces)

    return fill


def _value(text: str, name: str) -> Callable[[Event], str]:
    if name in _NAMES:
        read = _NAMES[name]
        return lambda event: read(event) or _NO_TABLE
    if name.startswith(_DATA) and len(name) > len(_DATA):
        return _column(name.removeprefix(_DATA))
    raise TemplateError(f"{text!r}: {{{name}}} is not known")


def _column(column: str) -> Callable[[Event], str]:
    def read(event: Event) -> str:
        row = event.data
        # A delete has only the key, unless PostgreSQL sends the old row.
        if event.operation == "DELETE" and event.old:
            row = event.old
        value = row.get(column)
        if value is None:
            raise TemplateError(
                f"a {event.operation} of {event.schema}.{event.table} has no value of {column}",
                remedy="Use columns of the key, or ALTER TABLE … REPLICA IDENTITY FULL.",
            )
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)

    return read
