"""A change as the archive stores it. Pure.

A named tuple of plain values as in the file, because a reader creates half a million of them per
second: anything that takes work (a date, parsed JSON) is a property.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, cast

import orjson

from headrace.contract.values_json import exact_numbers
from headrace.lsn import Position

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RowKind(StrEnum):
    """What a change does to the row with its key; a change is never a merge."""

    PUT = "put"
    DELETE = "delete"
    TRUNCATE = "truncate"
    MESSAGE = "message"
    GAP = "gap"


_KINDS = {"insert": RowKind.PUT, "update": RowKind.PUT} | {str(kind): kind for kind in RowKind}


class RowEntry(NamedTuple):
    """One change. `key_json`, `before_json`, `after_json` are the file's JSON texts, which keep
    every digit.

    `key`, `before` and `after` are the same as Python values: numbers that neither 64 bits nor a
    double can hold are strings of their digits. `exact` and `exact_before` contain PostgreSQL's
    text of columns whose value there loses information.
    """

    commit_lsn: int
    ordinal: int
    lsn: int
    xid: int
    commit_time_us: int | None
    schema: str | None
    table: str | None
    operation: str
    key_json: str | None
    before_json: str | None
    after_json: str | None
    unchanged: list[str] | None
    schema_version: int | None
    # {"after": {column: text}, "before": …}; None in older files.
    exact_json: str | None = None

    @property
    def position(self) -> Position:
        """Strictly increasing throughout the archive: store it with your output, and compare with
        it.
        """
        return Position(self.commit_lsn, self.ordinal)

    @property
    def kind(self) -> RowKind:
        return _KINDS[self.operation]

    @property
    def commit_time(self) -> datetime | None:
        if self.commit_time_us is None:
            return None
        return _EPOCH + timedelta(microseconds=self.commit_time_us)

    @property
    def key(self) -> dict[str, Any] | None:
        return _parsed(self.key_json)

    @property
    def before(self) -> dict[str, Any] | None:
        return _parsed(self.before_json)

    @property
    def after(self) -> dict[str, Any] | None:
        return _parsed(self.after_json)

    @property
    def exact(self) -> dict[str, str]:
        """PostgreSQL's text of columns of `after`."""
        return self._texts("after")

    @property
    def exact_before(self) -> dict[str, str]:
        """PostgreSQL's text of columns of `before`."""
        return self._texts("before")

    def _texts(self, side: str) -> dict[str, str]:
        found: dict[str, str] = orjson.loads(self.exact_json or "{}").get(side, {})
        return found


def _parsed(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    document: Any = exact_numbers(text.encode())
    return cast("dict[str, Any]", document)
