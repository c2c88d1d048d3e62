"""Subjects and message ids of the contract, and the token of a table in them.

Owns the mapping of a PostgreSQL name to one token that is valid in NATS subjects, KV keys and
headers, and every subject of the contract. Promises that two tables never share a token, that a
token identifies its table, and that no table's subject has another meaning. Pure.

A name keeps `A-Z a-z 0-9 _ -`; any other byte of its UTF-8 is `=XX`. Three cases keep that
one-to-one:

- `=2F` stands for the slash between schema and table only; a slash within either name is `=2f`;
- a public table named like a special subject (`_message`, `_gap`) starts with `=5F`;
- an empty message prefix is `=`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final

from headrace.errors import DecodeError

CDC: Final = "cdc"
INIT: Final = "init"
SNAPSHOT: Final = "snapshot"

CDC_SUBJECTS: Final = f"{CDC}.>"
SNAPSHOT_REQUEST_SUBJECTS: Final = f"{SNAPSHOT}.request.>"
SNAPSHOT_CANCEL_SUBJECTS: Final = f"{SNAPSHOT}.cancel.>"

PUBLIC: Final = "public"
GAP_SUBJECT: Final = f"{CDC}._gap"
MESSAGES: Final = "_message"
RESERVED_TOKENS: Final = frozenset({MESSAGES, "_gap"})

_SEPARATOR = "=2F"
_INNER_SLASH = "=2f"
# An escape starts with `=`: KV keys don't allow a percent sign (docs/adr/0004).
_OTHER_BYTE = re.compile(rb"[^A-Za-z0-9_-]")
# `2f`, a slash within a name, is the only escape in lower case.
_ESCAPE = re.compile(rb"=([0-9A-F]{2}|2f)")


class Operation(StrEnum):
    """A row change as subjects and ids spell it."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"


@lru_cache(4096)
def table_token(schema: str, table: str) -> str:
    """One token for a table: its name in schema `public`, `{schema}=2F{table}` in any other."""
    name = _encode_part(table)
    if schema != PUBLIC:
        return f"{_encode_part(schema)}{_SEPARATOR}{name}"
    # Its changes would have the subject of emitted messages or gaps.
    if name in RESERVED_TOKENS:
        return f"=5F{name[1:]}"
    return name


def split_table_token(token: str) -> tuple[str, str]:
    """Schema and table of a token; `DecodeError` for what `table_token` never returns."""
    schema, separator, name = token.rpartition(_SEPARATOR)
    try:
        result = (_decode(schema) if separator else PUBLIC, _decode(name))
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise DecodeError(f"{token!r} is not the token of a table") from error
    # Encoded again, because several texts decode to one table, and only one of them is its token.
    if not all(result) or table_token(*result) != token:
        raise DecodeError(f"{token!r} is not the token of a table")
    return result


def _encode(name: str) -> str:
    return _OTHER_BYTE.sub(lambda other: b"=%02X" % other[0][0], name.encode()).decode()


def _encode_part(name: str) -> str:
    # A slash in a name must not look like the separator (docs/adr/0004).
    return _encode(name).replace(_SEPARATOR, _INNER_SLASH)


def _decode(part: str) -> str:
    return _ESCAPE.sub(lambda escape: bytes([int(escape[1], 16)]), part.encode()).decode()


def change_subject(token: str, operation: Operation) -> str:
    """The subject of a row change with `--delivery event` and `transaction`."""
    return f"{CDC}.{token}.{operation}"


def batch_subject(token: str) -> str:
    """The subject of a table's changes with `--delivery batch`."""
    return f"{CDC}.{token}.batch"


def schema_subject(token: str) -> str:
    """The subject of changes of a table's shape."""
    return f"{CDC}.{token}.schema"


def message_subject(prefix: str) -> str:
    """The subject of messages from `pg_logical_emit_message`."""
    # NATS forbids an empty token in a subject (docs/adr/0004).
    return f"{CDC}.{MESSAGES}.{_encode(prefix) or '='}"


def message_id(lsn: int, token: str, operation: Operation, repeat: int = 0) -> str:
    """A change's `Nats-Msg-Id`; `repeat` counts the earlier changes that share its LSN, table and
    operation.
    """
    # COPY and an INSERT of several rows write them in one WAL record, under one LSN.
    suffix = f"-{repeat}" if repeat else ""
    return f"{lsn:x}-{token}-{operation}{suffix}"


def emitted_message_id(lsn: int, prefix: str, source: str) -> str:
    """The id of an emitted message: PostgreSQL sends it to every slot, so the source has to
    distinguish two of them.
    """
    return f"{lsn:x}-{message_subject(prefix).removeprefix(f'{CDC}.')}-{source}"


def gap_id(up_to: int, source: str, first_lost: int = 0) -> str:
    """The id of a gap: two sources of one server may have one at the same place.

    The ID of a gap in the middle of the stream names the first lost sequence, because several gaps
    may end at the same LSN.
    """
    token = GAP_SUBJECT.removeprefix(f"{CDC}.")
    if first_lost:
        token = f"{token}.{first_lost}"
    return f"{up_to:x}-{token}-{source}"


def snapshot_request_subject(token: str) -> str:
    """The subject of requests for a table."""
    return f"{SNAPSHOT}.request.{token}"


def snapshot_cancel_subject(token: str) -> str:
    """The core subject on which running snapshots are cancelled."""
    return f"{SNAPSHOT}.cancel.{token}"


def snapshot_progress_subject(token: str) -> str:
    """The core subject of a snapshot's progress."""
    return f"{SNAPSHOT}.progress.{token}"


def chunk_subject(token: str, snapshot_id: str, chunk: int) -> str:
    """One chunk of a snapshot's rows."""
    return f"{INIT}.snap.{token}.{snapshot_id}.{chunk}"


def meta_subject(token: str) -> str:
    """The subject of the message that completes a snapshot."""
    return f"{INIT}.meta.{token}"


def snapshot_error_subject(token: str) -> str:
    """The subject of the message that reports a failed snapshot."""
    return f"{INIT}.error.{token}"
