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
    """The effect of a change on the row with its key; a change is never a merge."""

    # An insert or update: the row is now `after`.
    PUT = "put"
    # The row no longer exists.
    DELETE = "delete"
    # The table is empty.
    TRUNCATE = "truncate"
    # An emitted message.
    MESSAGE = "message"
    # Changes before this one are lost.
    GAP = "gap"


_KINDS = {"insert": RowKind.PUT, "update": RowKind.PUT} | {str(kind): kind for kind in RowKind}


class RowEntry(NamedTuple):
    """One change.

    `key_json`, `before_json` and `after_json` are the file's JSON texts, which keep every digit.
    `key`, `before` and `after` are the same as Python values: numbers that neither 64 bits nor a
    double can hold are strings of their digits. `exact` and `exact_before` contain PostgreSQL's
    text of columns whose value there loses information.
    """

    # The LSN of the transaction's commit.
    commit_lsn: int
    # The change's ordinal in the transaction, from 0 on.
    ordinal: int
    # The LSN of the change itself; these neither increase nor are they unique.
    lsn: int
    # The transaction's ID in PostgreSQL.
    xid: int
    # When the transaction committed, in microseconds since 1970; None outside transactions.
    commit_time_us: int | None
    # The table's schema; None for messages and gaps.
    schema: str | None
    # The table's name; None for messages and gaps.
    table: str | None
    # insert, update, delete, truncate, message or gap.
    operation: str
    # The row's key as JSON.
    key_json: str | None
    # The row before the change as JSON, as far as the replica identity contains it.
    before_json: str | None
    # The row after the change as JSON.
    after_json: str | None
    # Columns that are absent from `after`: PostgreSQL doesn't send large values that didn't change.
    unchanged: list[str] | None
    # The version of the table's shape, which is in the file's metadata.
    schema_version: int | None
    # {"after": {column: text}, "before": …}; None in older files.
    exact_json: str | None = None

    @property
    def position(self) -> Position:
        """Strictly increasing within an archive: store it with your output, and compare with it."""
        return Position(self.commit_lsn, self.ordinal)

    @property
    def kind(self) -> RowKind:
        """The effect of the change on the row with its key."""
        return _KINDS[self.operation]

    @property
    def commit_time(self) -> datetime | None:
        """When the transaction committed; None outside transactions."""
        if self.commit_time_us is None:
            return None
        return _EPOCH + timedelta(microseconds=self.commit_time_us)

    @property
    def key(self) -> dict[str, Any] | None:
        """The row's key, by column."""
        return _parsed(self.key_json)

    @property
    def before(self) -> dict[str, Any] | None:
        """The row before the change, by column."""
        return _parsed(self.before_json)

    @property
    def after(self) -> dict[str, Any] | None:
        """The row after the change, by column."""
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
