"""Events of plain rows, assembled from bytes that are prepared once: for a table, and for a
transaction.

Encoding a whole payload defines the meaning of these bytes, and is the oracle of the test. Pure.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.confirming.native_rows import native_rows
from headrace.confirming.row_compiler import QuickRow, compiled
from headrace.contract import events
from headrace.contract.events import Payload
from headrace.contract.values import Encoding
from headrace.lsn import ORIGIN
from headrace.publisher.table_events import Kind, TableEvents

_HOLES = ("msg_id", "data", "lsn", "tx")
# An event takes less than this without its values: names of 63 bytes, two of them as a subject's
# token, and up to 32 as the key, of which JSON may escape every byte.
AROUND_BYTES_MAX = 8192 + 32 * 6 * 64


class RowWriter(NamedTuple):
    """The common part of all events of one relation and kind."""

    read: QuickRow
    subject: str
    id_end: str
    head: bytes
    after_id: bytes
    after_data: bytes


def heads(relation_id: int) -> tuple[bytes, bytes, bytes]:
    """The start of messages that can be read quickly: an insert, an update, and one with the whole
    old row.
    """
    relation = struct.pack(">I", relation_id)
    return b"I" + relation + b"N", b"U" + relation + b"N", b"U" + relation + b"O"


def writer(
    table: TableEvents, kind: Kind, source: str, encoding: Encoding, *, with_old: bool
) -> dict[bytes, RowWriter]:
    """A writer for messages that start like this, with an old row or without; none if only the slow
    path can read them.

    Created when such a row arrives: compiling takes longer than writing a hundred of them.
    """
    insert, update, update_full = heads(table.shape.relation.relation_id)
    if kind not in (table.insert, table.update) or (with_old and kind is table.insert):
        return {}
    if kind is table.insert:
        head = insert
    else:
        head = update_full if with_old else update
    made = _writer(table, kind, source, encoding, with_old=with_old)
    if made is None:
        return {}
    return {head: made}


def change(table: TableEvents, kind: Kind, source: str) -> Payload:
    """The payload of a change, without the parts that differ between rows."""
    return events.change(
        subject=kind.subject,
        table=table.shape.relation.name,
        operation=kind.operation,
        msg_id=None,
        relation_id=table.shape.relation.relation_id,
        data=None,
        schema=table.shape.relation.schema,
        source=source,
        key=table.event_key,
        lsn=None,
        tx=None,
    )


def _writer(
    table: TableEvents, kind: Kind, source: str, encoding: Encoding, *, with_old: bool = False
) -> RowWriter | None:
    payload = change(table, kind, source)
    old_head = None
    holes: tuple[str, ...] = _HOLES
    if with_old:
        payload["old"] = None
        holes = (*_HOLES, "old")
    head, after_id, after_data, _, *rest, end = events.pieces(payload, holes, encoding)
    if with_old:
        old_head = rest[0]
    columns = table.shape.columns
    read = native_rows(columns, encoding, old_head=old_head, end=end) or compiled(
        columns, events.writer(encoding), old_head=old_head, end=end
    )
    if read is None:
        return None
    return RowWriter(read, kind.subject, kind.id_end, head, after_id, after_data)


class TransactionWriter:
    """The payload's `tx`, whose values belong to the transaction except for `seq` and `last`."""

    def __init__(self, encoding: Encoding) -> None:
        write = events.writer(encoding)
        self._write = write
        _, key, _ = events.pieces({"lsn": None, "tx": None}, ("lsn", "tx"), encoding)
        tx = events.transaction(0, ORIGIN, None, last=False)
        begin, self._lsn, self._ts, self._seq, last, end = events.pieces(tx, tuple(tx), encoding)
        self._begin = key + begin
        self.not_last, self.last = last + write(False) + end, last + write(True) + end

    def head(self, xid: int, lsn: int, ts: str) -> bytes:
        """From the key `tx` up to the value of `seq`."""
        write = self._write
        return b"".join(
            (self._begin, write(xid), self._lsn, write(lsn), self._ts, write(ts), self._seq)
        )
