"""A sink's options as a dataclass: checked before any connection is opened.

It promises that an unknown or mistyped option raises `SettingError`, which names the sink, the
option and what is allowed. Values are never part of a message: they may be secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_origin, get_type_hints

from headrace.errors import SettingError
from headrace.sinks.port import SinkOptions

T = TypeVar("T")


def read_options(kind: type[T], given: SinkOptions) -> T:
    """Build `kind`, a dataclass with a default for each option, from the sink's options."""
    hints = get_type_hints(kind)
    for name, value in given.options.items():
        if name not in hints:
            raise _unknown(given.name, name, list(hints))
        if not _fits(value, hints[name]):
            raise SettingError(
                f"The option {name} of sink {given.name} has a value of the wrong type",
                remedy=f"It must be {_words(hints[name])}.",
            )
    return kind(**given.options)


def check(valid: bool, sink: str, option: str, remedy: str) -> None:
    """Raise `SettingError` for an option's value, unless it is valid."""
    if not valid:
        raise SettingError(f"The option {option} of sink {sink} is invalid", remedy=remedy)


def _unknown(sink: str, name: str, known: list[str]) -> SettingError:
    close = get_close_matches(name, known, 1)
    if close:
        remedy = f"Did you mean {close[0]}?"
    else:
        remedy = f"Its options are {', '.join(known)}."
    return SettingError(f"Sink {sink} has no option {name}", remedy=remedy)


def _fits(value: object, hint: Any) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    if get_origin(hint) is Mapping:
        return isinstance(value, Mapping)
    return isinstance(value, hint)


def _words(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return "a list of texts"
    if get_origin(hint) is Mapping:
        return "a table"
    words = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
    return words[hint]
