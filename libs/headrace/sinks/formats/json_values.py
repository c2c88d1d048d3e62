"""Decoded values as JSON holds them, by the wire contract's table of values. Pure."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from headrace.contract.json_bytes import compact_json

_NAMED = {math.inf: "Infinity", -math.inf: "-Infinity"}


def dumps(value: object) -> bytes:
    """JSON of a value in which `plain_row` has replaced what JSON has no form for."""
    return compact_json(value, _other)


def plain_row(row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A row without NaN and infinity, which orjson would write as null."""
    if row is None or not any(_is_special(value) for value in row.values()):
        return row
    return {name: _plain(value) for name, value in row.items()}


def _is_special(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, list) and any(_is_special(one) for one in value)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return _NAMED.get(value, "NaN")
    return value


def _other(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value).__name__)
