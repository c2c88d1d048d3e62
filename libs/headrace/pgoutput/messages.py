"""The content of pgoutput messages, as plain values.

Owns the shape of every message of protocol version 1. Values of a row stay in PostgreSQL's text
form, as received: `headrace.contract` interprets them by the relation and the options. Nothing here
parses or does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, Literal, TypeAlias

from headrace.errors import DecodeError


class Unchanged(Enum):
    """The type of `UNCHANGED`; an Enum because mypy narrows `value is UNCHANGED` only for one."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
"""Stands for an unchanged TOASTed value, which PostgreSQL doesn't send: it is not NULL."""

Value: TypeAlias = bytes | Literal[Unchanged.UNCHANGED] | None
"""The text form, SQL NULL, or `UNCHANGED`."""

Row: TypeAlias = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction starts: it has committed already, and all of it follows."""

    final_lsn: int
    commit_ts_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction is complete; the next one may start at `end_lsn`."""

    flags: int
    commit_lsn: int
    end_lsn: int
    commit_ts_us: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction was itself replicated from elsewhere."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column at this point of the stream; `is_key` says whether it is part of the replica
    identity.
    """

    is_key: bool
    name: str
    type_oid: int
    type_modifier: int


@dataclass(frozen=True, slots=True)
class Relation:
    """The shape of the following rows of `relation_id`."""

    relation_id: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class TypeMessage:
    """The name of a type that is not built in, sent ahead of the relation that uses it."""

    type_oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation_id: int
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row. `key` is the old key if it changed, `old` the old row under REPLICA IDENTITY
    FULL.
    """

    relation_id: int
    key: Row | None
    old: Row | None
    new: Row


@dataclass(frozen=True, slots=True)
class Delete:
    """A deleted row. Exactly one of `key` (other columns None) and `old` is given."""

    relation_id: int
    key: Row | None
    old: Row | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables truncated by one command."""

    relation_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message from `pg_logical_emit_message`.

    In a SQL_ASCII database the prefix may be any bytes: invalid UTF-8 is represented by surrogates.
    """

    transactional: bool
    lsn: int
    prefix: str
    content: bytes

    @property
    def readable(self) -> str:
        """The prefix as valid UTF-8, with `\\xff` for invalid bytes."""
        return self.prefix.encode(errors="surrogateescape").decode(errors="backslashreplace")


PgoutputMessage: TypeAlias = (
    Begin
    | Commit
    | Origin
    | Relation
    | TypeMessage
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
)

# PostgreSQL counts microseconds from 2000-01-01.
PG_EPOCH_US = 946_684_800_000_000
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def pg_timestamp_iso(us: int) -> str:
    """Microseconds since 2000-01-01 UTC as `2025-12-12T12:00:34.338547Z`: always six digits, so
    that it sorts as text.
    """
    try:
        moment = _EPOCH + timedelta(microseconds=us)
    except OverflowError as error:
        raise DecodeError(
            f"{us} microseconds since 2000-01-01 is not a commit time in the years 1 to 9999"
        ) from error
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
