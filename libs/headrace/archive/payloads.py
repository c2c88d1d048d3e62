"""Rebuilds the contract's change events from archived rows: same ids, positions and values. Pure.

Facts that the archive doesn't store follow from others: an id's suffix from the rows of the same
WAL record, whether an event is its transaction's last from the next row. Values have their JSON
forms.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from headrace.archive.entry import RowEntry, RowKind
from headrace.archive.errors import ArchiveError
from headrace.archive.metadata import TableInfo, WalFileInfo
from headrace.contract import events
from headrace.contract.json_bytes import compact_json
from headrace.contract.subjects_and_ids import (
    Operation,
    change_subject,
    emitted_message_id,
    message_id,
    message_subject,
    table_token,
)
from headrace.lsn import Position

Rows = Iterable[tuple[WalFileInfo, RowEntry]]


@dataclass(frozen=True, slots=True)
class Replayed:
    """An event, encoded as JSON."""

    subject: str
    msg_id: str
    position: Position
    payload: bytes
    info: WalFileInfo
    table: TableInfo | None


class Payloads:
    """Builds events from rows; one instance per pass through an archive."""

    def __init__(self) -> None:
        self._lsn = -1
        self._repeats: dict[str, int] = {}

    def count(self, entry: RowEntry) -> None:
        """Account for a row that has no event but shares a WAL record with rows that do."""
        if entry.schema is not None and entry.table is not None:
            self._repeat(
                entry.lsn, f"{table_token(entry.schema, entry.table)}-{Operation(entry.operation)}"
            )

    def of(self, rows: Rows) -> Iterator[Replayed]:
        """An event for each row except gaps, which are up to the reader."""
        held: tuple[WalFileInfo, RowEntry] | None = None
        for info, entry in rows:
            # It may be in the middle of what the reader wants: the reader decides.
            if entry.kind is RowKind.GAP:
                continue
            # One row behind: only the next row shows whether this one was the last of its
            # transaction.
            if held is not None:
                yield self._event(*held, last=held[1].commit_lsn != entry.commit_lsn)
            held = info, entry
        if held is not None:
            info, entry = held
            # The rest of its transaction may be in a later file, which doesn't exist yet or was not
            # requested.
            yield self._event(info, entry, last=info.whole or entry.commit_lsn != info.last.lsn)

    def _event(self, info: WalFileInfo, entry: RowEntry, *, last: bool) -> Replayed:
        time = entry.commit_time
        if time is None:
            ts = None
        else:
            ts = time.isoformat(timespec="microseconds").replace("+00:00", "Z")
        tx = events.transaction(entry.xid, entry.position, ts, last=last)
        if entry.kind is RowKind.MESSAGE:
            return self._message(info, entry, tx)
        assert entry.schema is not None, "a row of a table has its name"
        assert entry.table is not None, "a row of a table has its name"
        table = table_of(info, entry)
        operation = Operation(entry.operation)
        token = table_token(entry.schema, entry.table)
        subject = change_subject(token, operation)
        msg_id = message_id(
            entry.lsn, token, operation, self._repeat(entry.lsn, f"{token}-{operation}")
        )
        payload: dict[str, Any] = {
            "subject": subject,
            "table": entry.table,
            "operation": operation.upper(),
            "msg_id": msg_id,
            "relation_id": table.relation_id,
            "data": _data(entry, table),
            "schema": entry.schema,
            "source": info.source,
            "lsn": entry.lsn,
            "tx": tx,
        }
        if entry.exact_json is not None:
            payload |= exact_texts(entry)
        if entry.before_json is not None:
            payload["old"] = orjson.Fragment(entry.before_json)
        if entry.unchanged:
            payload["unchanged"] = entry.unchanged
        return Replayed(subject, msg_id, entry.position, compact_json(payload), info, table)

    def _message(self, info: WalFileInfo, entry: RowEntry, tx: dict[str, Any]) -> Replayed:
        prefix = (entry.key or {})["prefix"]
        content = (entry.after or {})["content"]
        subject = message_subject(prefix)
        msg_id = emitted_message_id(entry.lsn, prefix, info.source)
        body = {
            "subject": subject,
            "operation": "MESSAGE",
            "msg_id": msg_id,
            "prefix": prefix,
            "content": content,
        }
        payload = compact_json({**body, "source": info.source, "lsn": entry.lsn, "tx": tx})
        return Replayed(subject, msg_id, entry.position, payload, info, None)

    def _repeat(self, lsn: int, of: str) -> int:
        """The number of earlier changes of its table and kind in the same WAL record."""
        # Changes of one WAL record (a multi-row COPY, a TRUNCATE) follow each other.
        if lsn != self._lsn:
            self._lsn = lsn
            self._repeats = {}
        before = self._repeats.get(of, 0)
        self._repeats[of] = before + 1
        return before


def table_of(info: WalFileInfo, entry: RowEntry) -> TableInfo:
    """The table of a row that has one, in the row's shape."""
    assert entry.schema is not None, "a row of a table has its name"
    assert entry.table is not None, "a row of a table has its name"
    table = info.table(entry.schema, entry.table, entry.schema_version or 0)
    if table is None:
        raise ArchiveError(f"file {info.id} does not describe {entry.schema}.{entry.table}")
    return table


def exact_texts(entry: RowEntry) -> dict[str, Any]:
    """The texts that accompany `data` and `old`; a DELETE's `data` contains only the key."""
    key = (entry.key or {}).keys()
    before = entry.exact_before
    after = entry.exact
    if entry.kind is RowKind.DELETE:
        after = {name: text for name, text in before.items() if name in key}
    texts: dict[str, Any] = {}
    if after:
        texts["exact"] = after
    if before:
        texts["exact_old"] = before
    return texts


def members(text: str) -> dict[str, orjson.Fragment]:
    """The members of a JSON object, each as its text: read as Python has them, they could lose
    something.
    """
    found = {}
    at = 1
    read = json.JSONDecoder().raw_decode
    while text[at] != "}":
        name, at = read(text, at)
        start = at + 1
        _, at = read(text, _end_of_spaces(text, start))
        at = _end_of_spaces(text, at)
        found[name] = orjson.Fragment(text[start:at])
        at += text[at] == ","
    return found


def _end_of_spaces(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at


def _data(entry: RowEntry, table: TableInfo) -> Any:
    if entry.after_json is not None:
        return orjson.Fragment(entry.after_json)
    if entry.kind is RowKind.TRUNCATE:
        return {}
    # DELETE: the key columns, the others null.
    if entry.exact_json:
        known = members(entry.before_json or "{}")
    else:
        known = entry.before or {}
    return {
        column.name: known.get(column.name) if column.is_key else None for column in table.columns
    }
