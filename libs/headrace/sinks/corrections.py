"""Other values for columns of a parked record, in the types that the event has. Pure.

Promises: the key and the position stay, so that the record takes its place in the target; a value
that is not one of the column's type is refused before anything is stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.errors import HeadraceError

_WORDS = {"true": True, "false": False}


class CorrectionError(HeadraceError):
    """A parked record can't be corrected like that."""

    remedy = "Correct the row in PostgreSQL, which delivers it again, and drop the record."


def corrected(payload: Mapping[str, Any], wanted: Mapping[str, str | None]) -> dict[str, Any]:
    """The event with these values of columns; a value of None means NULL."""
    if payload.get("operation") == "DELETE" or not payload.get("data"):
        raise CorrectionError("the record has no row to correct")
    data = dict(payload["data"])
    exact = dict(payload.get("exact") or {})
    for name, text in wanted.items():
        if name not in data:
            raise CorrectionError(f"the record has no value of a column {name!r}")
        if name in (payload.get("key") or ()):
            raise CorrectionError(f"{name!r} is a column of the key, which says which row it is")
        native, lost = _value(name, data[name], text, is_exact=name in exact)
        data[name] = native
        exact.pop(name, None)
        if lost is not None:
            exact[name] = lost
    rest = {key: value for key, value in payload.items() if key != "exact"}
    return {**rest, "data": data, **({"exact": exact} if exact else {})}


def _value(
    name: str, before: object, text: str | None, *, is_exact: bool
) -> tuple[object, str | None]:
    """The value as the event has it, and its exact text if that says more."""
    if text is None:
        return None, None
    try:
        if is_exact or isinstance(before, dict | list):
            # As for the value before: a native form to compute with, and PostgreSQL's text.
            return json.loads(text), text
        if isinstance(before, bool):
            return _WORDS[text.strip().lower()], None
        if isinstance(before, int):
            return int(text), None
        if isinstance(before, float):
            return float(text), None
    except (ValueError, KeyError) as error:
        kind = type(before).__name__
        if is_exact or isinstance(before, dict | list):
            kind = "JSON"
        # Without the value: errors are logged.
        raise CorrectionError(f"the value for {name!r} is not of its type ({kind})") from error
    if isinstance(before, bytes):
        raise CorrectionError(f"{name!r} has bytes, which can't be written as text")
    return text, None
