"""The open file: takes changes, produces its rows. Pure; one instance per epoch.

Promises: rows are in commit order; changes at or before the starting position are skipped, however
much is replayed; the same log gives the same rows. Positions and times are stored once per run of
rows instead of once per row, because this is the hot path. Nothing here knows where files go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa

from headrace.archive.columns import GROUP_ROWS, SCHEMA
from headrace.archive.metadata import TableInfo
from headrace.archiver.archived_table import ArchivedTable, exact, text
from headrace.archiver.chunk import RowChunk, SharedColumns
from headrace.confirming.relation_shape import DescribedRelations, Values
from headrace.confirming.row_compiler import QuickKeyedRow
from headrace.confirming.transaction_cursor import TransactionCursor
from headrace.contract.json_bytes import compact_json
from headrace.lsn import Gap, Position
from headrace.pgoutput import messages

CHUNK_ROWS = 16_384
# A row group is passed on at this size: rows that are not encoded yet are most of what the process
# holds.
GROUP_BYTES_MAX = 4 << 20
# Counted for each row besides its texts: its positions and its places in lists.
ROW_BYTES = 32
# Above every ordinal, and an ordinal that follows none.
_ALL = 1 << 62
_NO_RUN = -1


@dataclass(frozen=True, slots=True)
class Limits:
    """The size at which a file is full; a single transaction is cut at twice that."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """A full file: its rows that are in no row group yet, and the total number of its rows."""

    rest: pa.Table
    rows: int
    first: Position
    last: Position
    end_lsn: int
    whole: bool
    time_us: int
    tables: tuple[TableInfo, ...]
    versions: Mapping[str, tuple[int, str]]
    gap: Gap | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """The facts from earlier files: where to continue, and the tables' versions."""

    last: Position
    end_lsn: int
    time_us: int = 0
    versions: Mapping[str, tuple[int, str]] | None = None


@dataclass(slots=True)
class _Filling:
    """The open file, without the rows of the chunk at hand."""

    chunks: list[pa.RecordBatch] = field(default_factory=list)
    chunked_rows: int = 0
    bytes: int = 0
    first: Position | None = None
    tables: dict[tuple[str, str, int], TableInfo] = field(default_factory=dict)
    kinds: dict[SharedColumns, int] = field(default_factory=dict)


class Builder:
    def __init__(self, begun: Begun, limits: Limits) -> None:
        self._limits = limits
        self._last = begun.last
        self._time_us = begun.time_us
        self._versions = dict(begun.versions or {})
        # Everything before this was taken or is in the files, in whole transactions.
        self.complete_lsn = begun.end_lsn
        self.tables: DescribedRelations[ArchivedTable] = DescribedRelations()
        self._quick: dict[bytes, QuickKeyedRow | None] = {}
        self._kind_of: dict[tuple[bytes, str], int] = {}
        self.cursor = TransactionCursor()
        self._skip_below = 0
        self._takers: dict[type, Callable[[int, Any], None]] = {
            messages.Begin: self._on_begin,
            messages.Commit: self._on_commit,
            messages.Insert: self._on_insert,
            messages.Update: self._on_update,
            messages.Delete: self._on_delete,
            messages.Truncate: self._on_truncate,
            messages.LogicalMessage: self._on_message,
        }
        self._file = _Filling()
        self._chunk = RowChunk()
        # The next ordinal of the run of positions at hand.
        self._run_next = _NO_RUN
        self._due_bytes = 0
        self._due_rows = 0
        self._due_from_here()

    def _due_from_here(self) -> None:
        self._due_bytes = min(self._file.bytes + GROUP_BYTES_MAX, 2 * self._limits.bytes)
        self._due_rows = min(self._file.chunked_rows + GROUP_ROWS, 2 * self._limits.rows)

    @property
    def rows(self) -> int:
        return self._file.chunked_rows + len(self._chunk.lsns)

    @property
    def full(self) -> bool:
        return self.rows >= self._limits.rows or self._file.bytes >= self._limits.bytes

    @property
    def overfull(self) -> bool:
        """A transaction that no file contains."""
        return self.rows >= 2 * self._limits.rows or self._file.bytes >= 2 * self._limits.bytes

    @property
    def due(self) -> bool:
        """Whether a row group is full, or the file overfull; checked after each row."""
        return (
            self._file.bytes >= self._due_bytes
            or self._file.chunked_rows + len(self._chunk.lsns) >= self._due_rows
        )

    def learn(self, table: ArchivedTable) -> None:
        """Rows of this relation have this form from here on."""
        relation_id = table.shape.relation.relation_id
        raw = relation_id.to_bytes(4, "big")
        self.tables[relation_id] = table
        self._quick[raw] = table.quick
        # Rows of the new shape are another kind, and perhaps of another version.
        for known in [known for known in self._kind_of if known[0] == raw]:
            del self._kind_of[known]

    def keepalive(self, lsn: int) -> None:
        """PostgreSQL reports that it has sent everything before."""
        # Inside a transaction, PostgreSQL has sent only a part of what precedes its LSN.
        if self.cursor.transaction is None:
            self.complete_lsn = max(self.complete_lsn, lsn)

    def insert(self, lsn: int, data: bytes) -> bool:
        """Take the bytes of an Insert message; False if it has to be decoded."""
        cursor = self.cursor
        seq = cursor.ordinal
        if seq < self._skip_below:
            # The archive contains it already.
            cursor.ordinal = seq + 1
            return True
        raw = data[1:5]
        kind = self._kind_of.get((raw, "insert"))
        # The first row of a kind takes the slow path, which makes the kind known.
        if kind is None or (quick := self._quick[raw]) is None or (row := quick(data)) is None:
            return False
        cursor.ordinal = seq + 1
        if seq != self._run_next:
            self._run(seq)
        self._run_next = seq + 1
        after, key = row
        chunk = self._chunk
        chunk.lsns.append(lsn)
        chunk.kinds.append(kind)
        chunk.keys.append(key)
        chunk.afters.append(after)
        self._file.bytes += len(after) + ROW_BYTES
        if len(chunk.lsns) >= CHUNK_ROWS:
            self._close_chunk()
        return True

    def feed(self, lsn: int, message: messages.PgoutputMessage) -> None:
        """Take a decoded message; types and origins contain nothing to store, relations come
        through `learn`.
        """
        take = self._takers.get(type(message))
        if take is not None:
            take(lsn, message)

    def tell_gap(self, gap: Gap, now_us: int) -> Sealed:
        """A file that records a gap; only if nothing is open."""
        assert not self.rows, "a gap is recorded before anything that follows it"
        # Nobody knows when the missing changes were committed, only that it was before now: a
        # reader that starts at a time finds this.
        self._time_us = max(self._time_us, now_us)
        # Before the first change that may follow: a commit's record may start where the last one
        # ended.
        position = max(Position(gap.up_to - 1, 0), Position(self._last.lsn, self._last.seq + 1))
        body = orjson.dumps({"after": gap.after, "up_to": gap.up_to, "reason": gap.reason})
        self._put_alone(gap.up_to, "gap", position, None, body)
        self.complete_lsn = gap.up_to
        return replace(self.seal(), gap=gap)

    def take_group(self) -> pa.Table:
        """The open file's rows that were not taken so far."""
        self._close_chunk()
        taken = pa.Table.from_batches(self._file.chunks, SCHEMA)
        self._file.chunks = []
        self._due_from_here()
        return taken

    def seal(self) -> Sealed:
        """The changes taken since the last time, as a file; the builder continues after it."""
        sealed = Sealed(
            self.take_group(),
            self.rows,
            self._file.first or self._last,
            self._last,
            self.complete_lsn,
            self.cursor.transaction is None,
            self._time_us,
            tuple(self._file.tables.values()),
            dict(self._versions),
        )
        self._file = _Filling()
        # Each file describes its own tables, so kinds are numbered again from their first rows on.
        self._kind_of.clear()
        self._due_from_here()
        return sealed

    def _on_begin(self, _: int, begin: messages.Begin) -> None:
        self.cursor.begin(begin)
        # Its first row may have the ordinal that would continue the transaction before, where the
        # changes ahead of it are of excluded tables.
        self._run_next = _NO_RUN
        self._skip_below = 0
        if begin.final_lsn < self._last.lsn:
            self._skip_below = _ALL
        elif begin.final_lsn == self._last.lsn:
            self._skip_below = self._last.seq + 1

    def _on_commit(self, _: int, commit: messages.Commit) -> None:
        self._note_last()
        self.cursor.commit()
        self.complete_lsn = max(self.complete_lsn, commit.end_lsn)

    def _note_last(self) -> None:
        """The fast path counts no positions: the last one follows from the run."""
        begin = self.cursor.transaction
        if begin is not None and self._run_next != _NO_RUN:
            self._last = max(self._last, Position(begin.final_lsn, self._run_next - 1))

    def _on_insert(self, lsn: int, message: messages.Insert) -> None:
        if (table := self._wanted(message.relation_id)) is not None:
            self._row(lsn, table, "insert", table.shape.row(message.new))

    def _on_update(self, lsn: int, message: messages.Update) -> None:
        if (table := self._wanted(message.relation_id)) is not None:
            old = table.shape.old_row(message.key, message.old)
            self._row(lsn, table, "update", table.shape.row(message.new), old)

    def _on_delete(self, lsn: int, message: messages.Delete) -> None:
        if (table := self._wanted(message.relation_id)) is not None:
            old = table.shape.old_row(message.key, message.old)
            # A message without any old value identifies no row.
            if old is not None:
                self._row(lsn, table, "delete", None, old)

    def _on_truncate(self, lsn: int, message: messages.Truncate) -> None:
        for relation_id in message.relation_ids:
            if (table := self._wanted(relation_id)) is not None:
                self._row(lsn, table, "truncate")

    def _on_message(self, lsn: int, message: messages.LogicalMessage) -> None:
        """`pg_logical_emit_message`: part of a transaction, or a separate transaction at its own
        LSN.
        """
        body = compact_json({"content": _content(message.content)})
        key = compact_json({"prefix": message.readable})
        position = self.cursor.emitted(message)
        if message.transactional:
            if position.seq >= self._skip_below:
                self._put(lsn, self._number(SharedColumns(None, None, "message", None)), key, body)
            return
        # `_skip_below` concerns transactions: here only the position shows what is a replay.
        if position > self._last:
            self._put_alone(message.lsn, "message", position, key, body)

    def _wanted(self, relation_id: int) -> ArchivedTable | None:
        """The relation's table; None where it is excluded, or the change at hand in the archive
        already: that takes its place unread.
        """
        table = self.tables[relation_id]
        if not table.shape.excluded and self.cursor.ordinal >= self._skip_below:
            # It takes its place once it was read: a change that can't be is parked there.
            return table
        self.cursor.advance()
        return None

    def _row(
        self,
        lsn: int,
        table: ArchivedTable,
        operation: str,
        new: Values | None = None,
        old: Values | None = None,
    ) -> None:
        self.cursor.advance()
        chunk = self._chunk
        place = len(chunk.lsns)
        before = text(old)
        if before is not None:
            chunk.befores[place] = before
            self._file.bytes += len(before)
        if new is not None and new.unchanged:
            chunk.unchanged[place] = new.unchanged
        texts = exact(new, old)
        if texts is not None:
            chunk.exacts[place] = texts
            self._file.bytes += len(texts)
        of = table.shape.relation.relation_id.to_bytes(4, "big"), operation
        if of not in self._kind_of:
            self._kind_of[of] = self._number(self._kind(table, operation))
        after = None if new is None else compact_json(new.native)
        self._put(lsn, self._kind_of[of], table.key_of(new, old), after)

    def _kind(self, table: ArchivedTable, operation: str) -> SharedColumns:
        """The common part of rows of this kind; a new shape is a new version of its table."""
        info = table.info
        name = orjson.dumps([info.schema, info.table]).decode()
        # Only the log's part: a later look at the catalog must not create another version of the
        # same shape.
        columns = [(column.name, column.type_oid, column.type_modifier) for column in info.columns]
        shape = hashlib.sha256(orjson.dumps([info.relation_id, info.key, columns])).hexdigest()[:16]
        version, known = self._versions.get(name, (0, ""))
        if known != shape:
            version += 1
            self._versions[name] = (version, shape)
        self._file.tables[info.schema, info.table, version] = replace(info, version=version)
        return SharedColumns(info.schema, info.table, operation, version)

    def _number(self, kind: SharedColumns) -> int:
        return self._file.kinds.setdefault(kind, len(self._file.kinds))

    def _put(self, lsn: int, kind: int, key: bytes | None, after: bytes | None) -> None:
        """A row at the change's position."""
        seq = self.cursor.ordinal - 1
        if seq != self._run_next:
            self._run(seq)
        self._run_next = seq + 1
        self._add(lsn, kind, key, after)

    def _put_alone(
        self, lsn: int, operation: str, position: Position, key: bytes | None, after: bytes
    ) -> None:
        """A row outside any transaction, at its own position."""
        self._chunk.runs.append((len(self._chunk.lsns), position.lsn, position.seq, 0, None))
        self._run_next = _NO_RUN
        self._last = position
        self._file.first = self._file.first or position
        self._add(lsn, self._number(SharedColumns(None, None, operation, None)), key, after)

    def _add(self, lsn: int, kind: int, key: bytes | None, after: bytes | None) -> None:
        chunk = self._chunk
        chunk.lsns.append(lsn)
        chunk.kinds.append(kind)
        chunk.keys.append(key)
        chunk.afters.append(after)
        self._file.bytes += (len(after) if after else 0) + ROW_BYTES
        if len(chunk.lsns) >= CHUNK_ROWS:
            self._close_chunk()

    def _run(self, seq: int) -> None:
        """Positions continue from here one by one."""
        begin = self.cursor.current
        time_us = begin.commit_ts_us + messages.PG_EPOCH_US
        self._time_us = max(self._time_us, time_us)
        self._chunk.runs.append((len(self._chunk.lsns), begin.final_lsn, seq, begin.xid, time_us))
        self._file.first = self._file.first or Position(begin.final_lsn, seq)

    def _close_chunk(self) -> None:
        """The rows so far as Arrow columns, which take a fraction of the memory."""
        self._note_last()
        count = len(self._chunk.lsns)
        if not count:
            return
        self._file.chunks.append(self._chunk.batch(list(self._file.kinds)))
        self._file.chunked_rows += count
        self._chunk = RowChunk()
        self._run_next = _NO_RUN


def _content(content: bytes) -> str:
    """Text if it is valid; other bytes in bytea's form."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "\\x" + content.hex()
