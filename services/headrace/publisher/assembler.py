"""Assembles events from pgoutput messages: positions, ids, payloads. Pure; one instance per epoch.

Promises: positions strictly increase; the same WAL gives the same ids and positions on every
replay; an event is held back until it is known whether it is its transaction's last. `feed` yields
what to publish, and a `CompleteUpTo` when everything before an LSN is complete; `take` does so for
many messages together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.accelerator import native
from headrace.confirming.relation_shape import DescribedRelations, Values
from headrace.confirming.transaction_cursor import ProtocolError, TransactionCursor
from headrace.contract import events, schemas
from headrace.contract.events import Payload
from headrace.contract.subjects_and_ids import message_subject, schema_subject
from headrace.contract.values import Encoding
from headrace.errors import DecodeError
from headrace.jetstream.publishing.message import NO_HEADERS
from headrace.lsn import Position
from headrace.pgoutput import messages
from headrace.pgoutput.decoder import decode
from headrace.postgres import ddl_trigger
from headrace.postgres.ddl_trigger import Ddl
from headrace.postgres.facts import RelationNow
from headrace.publisher import emitted_messages, quick_events
from headrace.publisher.published_event import Assembled, CompleteUpTo, PublishedEvent
from headrace.publisher.quick_events import RowWriter, TransactionWriter
from headrace.publisher.schema_book import CatalogReading, SchemaBook, SchemaReport
from headrace.publisher.table_events import Kind, TableEvents

# NATS's usual max_payload is 1 MiB, headers included.
PAYLOAD_BYTES_MAX = 1_000_000


# A row written up to the field that says whether it is its transaction's last, the rest of the
# payload, its position, subject, id and both. Not a class, which would cost as much as reading a
# column.
_QuickHeld = tuple[Position, str, str, bytes, bytes]
# NamedTuple's own constructors take twice as long.
_new: Callable[..., Any] = tuple.__new__
_RELATION = ord("R")


@dataclass(slots=True)
class _Held:
    position: Position
    subject: str
    msg_id: str
    payload: Payload
    key: frozenset[str] = frozenset()


class Assembler:
    def __init__(
        self,
        source: str,
        encoding: Encoding,
        book: SchemaBook | None = None,
        *,
        message_prefixes: frozenset[str] = frozenset(),
        compat: bool = False,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        large_bucket: str = "headrace_large",
    ) -> None:
        self._source = source
        self._encoding = encoding
        self._book = SchemaBook() if book is None else book
        self._message_prefixes = message_prefixes
        self._compat = compat
        self._payload_bytes_max = payload_bytes_max
        self._large_bucket = large_bucket
        self.tables: DescribedRelations[TableEvents] = DescribedRelations()
        self.cursor = TransactionCursor()
        # When the first transaction with something in the current frame was committed.
        self.oldest_commit_us: int | None = None
        self._ts = ""
        # Whether an event is its transaction's last is known only when the next message comes.
        self._held: _Held | _QuickHeld | None = None
        self._write = events.writer(encoding)
        self._tx = TransactionWriter(encoding)
        self._tx_head = b""
        self._writers: dict[bytes, RowWriter] = {}
        # Several rows may have one LSN: how often each kind of id was used at the last row's.
        self._lsn = -1
        self._repeats: dict[str, int] = {}
        self._quick_bytes_max = payload_bytes_max - quick_events.AROUND_BYTES_MAX
        self._taken: list[Assembled] = []
        # The catalog's facts about relations that the current message describes.
        self._now: Mapping[int, RelationNow] | None = None
        # The items that `feed` will yield next.
        self._out: list[Assembled] = []
        self._takers: dict[type, Callable[[int, Any], None]] = {
            messages.Insert: self._insert,
            messages.Update: self._update,
            messages.Delete: self._delete,
            messages.Truncate: self._truncate,
            messages.Begin: self._on_begin,
            messages.Commit: self._commit,
            messages.LogicalMessage: self._message,
        }

    def begin_frame(self) -> None:
        """From here on `oldest_commit_us` covers later messages."""
        begin = self.cursor.transaction
        self.oldest_commit_us = begin.commit_ts_us if begin is not None else None

    def learn(self, table: TableEvents) -> None:
        """Rows of this relation have this shape from here on."""
        relation_id = table.shape.relation.relation_id
        self.tables[relation_id] = table
        # Their code was compiled for the columns of the earlier shape.
        for head in quick_events.heads(relation_id):
            self._writers.pop(head, None)

    def keepalive(self, lsn: int) -> Iterator[CompleteUpTo]:
        """PostgreSQL reports that it has sent everything before `lsn`."""
        # Inside a transaction its LSN may be beyond changes that are still to come.
        if self.cursor.transaction is None:
            yield CompleteUpTo(lsn, whole=False)

    def feed(self, lsn: int, message: messages.PgoutputMessage) -> list[Assembled]:
        """Process the next message; yields what it completes."""
        out: list[Assembled] = []
        self._out = out
        take = self._takers.get(type(message))
        # Types and origins contain nothing to deliver; relations come through `learn`.
        if take is not None:
            take(lsn, message)
        return out

    def take(self, entries: Sequence[tuple[int, bytes]], at: int) -> int:
        """`feed` for entries from `at` on; returns the index of the first one that needs more than
        is known here.

        `taken` contains what they complete, even if this raises. Nothing is done for an entry that
        is left.
        """
        while at < len(entries):
            at = self._take_rows(entries, at)
            if at < len(entries):
                lsn, data = entries[at]
                if not self._take_plainly(lsn, data):
                    break
                at += 1
        return at

    def taken(self) -> list[Assembled]:
        """The items that `take` has produced since the last call."""
        taken, self._taken = self._taken, []
        return taken

    def _take_plainly(self, lsn: int, data: bytes) -> bool:
        if not data:
            self._taken += self.keepalive(lsn)
            return True
        if data[0] == _RELATION:
            return False
        try:
            message = decode(data)
            if self.doubts(message):
                return False
            self._taken += self.feed(lsn, message)
        except DecodeError:
            return False
        return True

    def doubts(self, message: messages.PgoutputMessage) -> set[int]:
        """Relations in a message whose claims the catalog has to confirm before it is fed."""
        if (
            self._compat
            or not isinstance(message, messages.LogicalMessage)
            or (ddl := ddl_trigger.claim(message)) is None
        ):
            return set()
        return self._book.concerns(ddl, self.cursor.position)

    def feed_claim(
        self, lsn: int, message: messages.LogicalMessage, now: Mapping[int, RelationNow]
    ) -> list[Assembled]:
        """`feed` for such a message, with the facts of the relations that exist."""
        self._now = now
        try:
            return self.feed(lsn, message)
        finally:
            self._now = None

    def _take_rows(self, entries: Sequence[tuple[int, bytes]], at: int) -> int:
        """Take rows that the fast path can convert; returns the index of the first other entry."""
        if native is None:
            return self._take_rows_until(entries, at, len(entries))
        while (at := self._take_native_rows(entries, at)) < len(entries):
            # A row that was left to Python; then those behind it may be for C again.
            if self._take_rows_until(entries, at, at + 1) == at:
                break
            at += 1
        return at

    def _take_native_rows(self, entries: Sequence[tuple[int, bytes]], at: int) -> int:
        """`_take_rows_until` in C, for as many rows as it reads."""
        assert native is not None
        begin = self.cursor.transaction
        held = self._held
        if begin is None or not self._writers or type(held) is _Held:
            return at
        last = ("", 0)
        if len(self._repeats) == 1:
            (last,) = self._repeats.items()
        after: int
        after, self._held, (lsn, id_end, times), ordinal = native.take_rows(
            entries,
            at,
            self._writers,
            held,
            (self._lsn, *last),
            self.cursor.ordinal,
            self._taken,
            (
                PublishedEvent,
                Position,
                NO_HEADERS,
                self._tx_head,
                self._tx.not_last,
                begin.final_lsn,
                self._quick_bytes_max,
            ),
        )
        if after > at:
            self._lsn = lsn
            self._repeats = {id_end: times}
            self.cursor.ordinal = ordinal
        return after

    def _take_rows_until(self, entries: Sequence[tuple[int, bytes]], at: int, end: int) -> int:
        """`_take_rows` in Python, for entries before `end`."""
        begin = self.cursor.transaction
        writers = self._writers
        write = self._write
        held = self._held
        if begin is None or not writers:
            return at
        # Local names: this loop is most of the publisher's time (docs/performance.md).
        commit = begin.final_lsn
        seq = self.cursor.ordinal
        tx_head = self._tx_head
        room = self._quick_bytes_max
        put = self._taken.append
        not_last = self._tx.not_last
        for index in range(at, end):
            lsn, data = entries[index]
            writer = writers.get(data[:6])
            if (
                writer is None
                or (read := writer[0](data)) is None
                or len(read[0]) + len(read[1]) > room
            ):
                break
            row, rest = read
            _, subject, id_end, head, after_id, after_data = writer
            if lsn == self._lsn:
                msg_id = f"{lsn:x}{id_end}{self._repeat(lsn, id_end)}"
            else:
                self._lsn = lsn
                self._repeats = {id_end: 1}
                msg_id = f"{lsn:x}{id_end}"
            body = b"".join(
                (head, write(msg_id), after_id, row, after_data, write(lsn), tx_head, write(seq))
            )
            if type(held) is tuple:
                place, of, named, before, behind = held
                written = before + not_last + behind
                put(
                    _new(PublishedEvent, (of, named, written, NO_HEADERS, True, place, False, None))
                )
            elif held is not None:
                put(self._release(last=False))
            held = (_new(Position, (commit, seq)), subject, msg_id, body, rest)
            seq += 1
        else:
            index = end
        assert seq >= self.cursor.ordinal, "positions only rise"
        self._held = held
        self.cursor.ordinal = seq
        return index

    def _on_begin(self, _: int, begin: messages.Begin) -> None:
        self.cursor.begin(begin)
        self._ts = messages.pg_timestamp_iso(begin.commit_ts_us)
        self._tx_head = self._tx.head(begin.xid, begin.final_lsn, self._ts)
        if self.oldest_commit_us is None:
            self.oldest_commit_us = begin.commit_ts_us

    def _commit(self, _: int, commit: messages.Commit) -> None:
        self.cursor.commit()
        if self._held is not None:
            self._out.append(self._release(last=True))
        self._out.append(CompleteUpTo(commit.end_lsn, whole=True))

    def _insert(self, lsn: int, message: messages.Insert) -> None:
        if (table := self._wanted(message.relation_id)) is not None:
            self._hold(lsn, table, table.insert, table.shape.row(message.new))

    def _update(self, lsn: int, message: messages.Update) -> None:
        if (table := self._wanted(message.relation_id)) is not None:
            old = table.shape.old_row(message.key, message.old)
            self._hold(lsn, table, table.update, table.shape.row(message.new), old)

    def _delete(self, lsn: int, message: messages.Delete) -> None:
        if (table := self._wanted(message.relation_id)) is not None:
            old = table.shape.old_row(message.key, message.old)
            self._hold(lsn, table, table.delete, table.deleted(old or Values()), old)

    def _truncate(self, lsn: int, message: messages.Truncate) -> None:
        for relation_id in message.relation_ids:
            table = self.tables[relation_id]
            self._book.truncated(relation_id, self.cursor.xid)
            if self._compat:
                # It takes its position, and is not delivered.
                self.cursor.advance()
            else:
                self._hold(lsn, table, table.truncate, Values())

    def _wanted(self, relation_id: int) -> TableEvents | None:
        """The relation's events; None if excluded: its changes take their positions unread."""
        table = self.tables[relation_id]
        if not table.shape.excluded:
            return table
        self.cursor.advance()
        return None

    def _hold(
        self, lsn: int, table: TableEvents, kind: Kind, new: Values, old: Values | None = None
    ) -> None:
        """Hold this event back, release the one before."""
        position = self.cursor.advance()
        if table.shape.excluded:
            return
        if self._held is not None:
            self._out.append(self._release(last=False))
        if not table.told and not self._compat and not self._book.replays(table.table, position):
            self._tell(lsn, table, position)
        msg_id = f"{lsn:x}{kind.id_end}{self._repeat(lsn, kind.id_end)}"
        payload = quick_events.change(table, kind, self._source)
        payload["msg_id"] = msg_id
        payload["data"] = new.native
        payload["lsn"] = lsn
        payload["tx"] = events.transaction(self.cursor.xid, position, self._ts, last=False)
        payload |= _beside(new, old)
        self._held = _Held(position, kind.subject, msg_id, payload, table.key)
        if (
            table.told
            and not self._compat
            and (way := (kind.operation, old is not None)) not in table.quick
        ):
            table.quick.add(way)
            self._writers |= quick_events.writer(
                table, kind, self._source, self._encoding, with_old=way[1]
            )

    def _tell(self, lsn: int, table: TableEvents, position: Position) -> None:
        """The schema event that must precede this row, if the stream does not contain this shape
        yet.
        """
        table.told = True
        xid = self.cursor.xid
        told = self._book.check(table.table, position, lsn, xid, table.catalog)
        if told is not None:
            tx = events.transaction(xid, position, self._ts, last=False)
            self._out.append(self._schema_event(told, position, lsn, tx))

    def read_catalog(self, reading: CatalogReading) -> Iterator[PublishedEvent]:
        """Changes that the catalog shows beyond the stream, reported at the reading's position;
        only between transactions.
        """
        assert self.cursor.transaction is None, "a catalog reading inside a transaction"
        position = Position(reading.lsn, 0)
        for told in () if self._compat else self._book.compare(reading):
            tx = events.transaction(0, position, None, last=False)
            yield self._schema_event(told, position, reading.lsn, tx)._replace(ends=True)

    def _schema_event(
        self, told: SchemaReport, position: Position, lsn: int, tx: Payload
    ) -> PublishedEvent:
        subject = schema_subject(told.token)
        body = schemas.event(
            told.shape,
            source=self._source,
            version=told.version,
            changes=told.changes,
            resync=told.resync,
        )
        payload: Payload = {"subject": subject, "msg_id": told.msg_id, **body, "lsn": lsn, "tx": tx}
        encoded = events.encode(payload, self._encoding)
        if len(encoded) > self._payload_bytes_max:
            encoded = events.encode(schemas.without_fills(payload), self._encoding)
        return PublishedEvent(subject, told.msg_id, encoded, advances=False, position=position)

    def _message(self, lsn: int, message: messages.LogicalMessage) -> None:
        """`pg_logical_emit_message`: part of a transaction, or a separate transaction at its own
        LSN.
        """
        if message.prefix in self._message_prefixes and message.readable != message.prefix:
            raise DecodeError("the prefix of an emitted message is not UTF-8")
        position = self.cursor.emitted(message)
        if message.transactional:
            xid, ts = (self.cursor.xid, self._ts)
        else:
            xid, ts = (0, None)
        if (
            not self._compat
            and self._now is not None
            and (ddl := ddl_trigger.claim(message)) is not None
        ):
            self._ddl(lsn, ddl, position, self._now)
        if self._compat or message.prefix not in self._message_prefixes:
            return
        if self._held is not None:
            self._out.append(self._release(last=False))
        subject = message_subject(message.prefix)
        tx = events.transaction(xid, position, ts, last=False)
        payload = emitted_messages.payload(lsn, message, tx, self._source, self._encoding)
        self._held = _Held(position, subject, str(payload["msg_id"]), payload)
        if not message.transactional:
            self._out.append(self._release(last=True))

    def _ddl(self, lsn: int, ddl: Ddl, position: Position, now: Mapping[int, RelationNow]) -> None:
        """A message of the event trigger: schema events at their position. Others may write
        messages with its prefix.
        """
        tx = events.transaction(self.cursor.xid, position, self._ts, last=False)
        for told in self._book.hear(ddl, position, lsn, self.cursor.xid, now):
            if self._held is not None:
                self._out.append(self._release(last=False))
            self._out.append(self._schema_event(told, position, lsn, tx))

    def _repeat(self, lsn: int, id_end: str) -> str:
        """Distinguishes a change from those of its table and kind in the same WAL record."""
        if lsn != self._lsn:
            self._lsn = lsn
            self._repeats = {id_end: 1}
            return ""
        before = self._repeats.get(id_end, 0)
        self._repeats[id_end] = before + 1
        if before:
            return f"-{before}"
        return ""

    def _release(self, *, last: bool) -> PublishedEvent:
        held = self._held
        assert held is not None
        self._held = None
        if isinstance(held, tuple):
            position, subject, msg_id, body, rest = held
            written = body + (self._tx.last if last else self._tx.not_last) + rest
            return PublishedEvent(subject, msg_id, written, position=position, ends=last)
        held.payload["tx"]["last"] = last
        headers = NO_HEADERS
        payload = held.payload
        if self._compat:
            # The bridge's messages contain no position.
            header = events.position_header(self._source, held.position)
            headers = {events.POSITION_HEADER: header}
            payload = events.as_bridge(payload)
        try:
            encoded = events.encode(payload, self._encoding)
        except DecodeError as error:
            raise ProtocolError(f"event {held.msg_id} can't be encoded: {error}") from error
        if len(encoded) <= self._payload_bytes_max:
            return PublishedEvent(
                held.subject, held.msg_id, encoded, headers, position=held.position, ends=last
            )
        small = self._referring(payload, held.key, len(encoded))
        return PublishedEvent(
            held.subject, held.msg_id, small, headers, True, held.position, last, encoded
        )

    def _referring(self, payload: Payload, key: frozenset[str], size: int) -> bytes:
        small = events.referring(payload, key, size, self._large_bucket)
        if len(encoded := events.encode(small, self._encoding)) <= self._payload_bytes_max:
            return encoded
        # Without a primary key, REPLICA IDENTITY FULL makes every column a key.
        small = events.referring(payload, (), size, self._large_bucket)
        return events.encode(small, self._encoding)


def _beside(new: Values, old: Values | None) -> Payload:
    """Fields that only some events have."""
    parts: Payload = {} if old is None else {"old": old.native}
    if new.unchanged:
        parts["unchanged"] = new.unchanged
    if new.exact:
        parts["exact"] = new.exact
    if old is not None and old.exact:
        parts["exact_old"] = old.exact
    return parts
