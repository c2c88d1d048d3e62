"""One session of the trail: follows the stream from the position in the destination's state.

Promises: reads ahead while a commit is under way, but never more than the settings allow; commits
only complete batches, in order. Any failure ends the session; the next one reads the state again,
and so resolves any doubt.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime

from headrace import log as logs
from headrace.audit.destination import Destination
from headrace.audit.rows import RowMaker
from headrace.audit.settings import AuditSettings
from headrace.audit.stitching import Batch, Stitcher
from headrace.audit.table_book import Names, Noted, TableBook
from headrace.audit_writer import source
from headrace.consumer import Consumer, Event, RetentionGapError, Watermark
from headrace.contract.events import GAP, SCHEMA
from headrace.contract.selection import Selection
from headrace.lsn import ORIGIN, Position
from headrace.process.lifecycle import Scope
from headrace.settings import PostgresSettings
from headrace.timing.waits import heed_cancellation

log = logs.logger("audit-writer")

WAIT_S = 0.5
# How often the position is stored if no change was audited; rarely if all changes were the audit's
# own, because storing it is a change itself.
IDLE_S = 10.0
OWN_S = 600.0
# A table that is truncated all the time must not make the writer read the catalog as often.
FILES_S = 1.0
# The kinds of tables: the audit's own, audited ones, and others.
_OWN = "own"
_WANTED = "wanted"
_OTHER = "other"
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "TRUNCATE"})


@dataclass(slots=True)
class Marks:
    """The destination's state as the consumer library queries it."""

    destination: Destination
    lane: str

    async def load(self) -> dict[str, Watermark]:
        state = self.destination.state
        return {self.lane: Watermark(state.position, state.stream_seq)}

    async def save(self, lane: str, watermark: Watermark) -> None:
        """Does nothing: the position is stored with the rows."""


@dataclass(slots=True)
class Session:
    """Reads, assembles, commits."""

    scope: Scope
    settings: AuditSettings
    postgres: PostgresSettings
    destination: Destination
    source: str
    maker: RowMaker
    selection: Selection
    book: TableBook
    stitcher: Stitcher
    # Whether this session has committed anything: then the next failure is a new one.
    worked: bool = False
    # Set whenever there may be something to commit: after each read, and after each write.
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    # By relation: the audit's own, wanted, or other.
    _what: dict[tuple[int, str, str], str] = field(default_factory=dict)
    _rows: Counter[str] = field(default_factory=Counter)
    # Facts about tables, and their positions, until a batch that reaches there stores them.
    _learned: deque[tuple[Position, Names, Noted]] = field(default_factory=deque)
    # The last event of this source: positions of another one say nothing about this trail.
    _taken: Position = ORIGIN
    # The time at which a relation's files were last read from the catalog.
    _files_at: dict[int, float] = field(default_factory=dict)
    _kept_at: float = field(default_factory=time.monotonic)
    # Whether anything but the audit's own changes came since the position was stored. Storing it is
    # a change as well, which the stream may bring back.
    _foreign: bool = False
    # The reading task has ended: complete transactions are committed, even if no commit is due.
    _ended: bool = False
    # How far the stream was read; whether a batch is being written.
    _read_seq: int = 0
    _writing: bool = False

    async def run(self, consumer: Consumer) -> None:
        """Run until the stop, or the first failure; complete transactions are still committed."""
        read = asyncio.create_task(self._read(consumer), name="audit-read")
        commit = asyncio.create_task(self._commit(), name="audit-commit")
        try:
            await asyncio.wait({read, commit}, return_when=asyncio.FIRST_COMPLETED)
            if not commit.done():
                if isinstance(read.exception(), RetentionGapError):
                    # After the loss nothing completes it, and its rows would be lost with it.
                    self.stitcher.tear()
                self._ended = True
                self._news.set()
                await commit
            commit.result()
            await read
        finally:
            for task in (read, commit):
                task.cancel()
            await asyncio.gather(read, commit, return_exceptions=True)

    @property
    def settled_seq(self) -> int:
        """Every message up to here is in the trail, or has no row in it."""
        kept = self.destination.state.stream_seq
        if self._writing or self.stitcher.rows:
            return kept
        return max(kept, self._read_seq)

    async def _read(self, consumer: Consumer) -> None:
        while not self.scope.stopping.is_set():
            events = await consumer.take(WAIT_S)
            heed_cancellation()
            if events:
                await self._add(events)
            self._read_seq = consumer.seen_seq
            if self.destination.is_lost:
                raise ConnectionResetError("the destination ended the connection")
            # Even without any: waiting facts may be due.
            self._news.set()
            while self._full and not self.scope.stopping.is_set():
                self._room.clear()
                await self.scope.until_stopping(self._room.wait())

    @property
    def _full(self) -> bool:
        # Only rows that can be committed make room: a batch without any may be given back instead.
        stitcher = self.stitcher
        settings = self.settings
        if stitcher.ready is None or not stitcher.ready.lines:
            return False
        return stitcher.rows >= settings.batch_rows_max or stitcher.size >= settings.batch_bytes_max

    async def _add(self, events: list[Event]) -> None:
        missing = self.book.missing(event for event in events if event.source == self.source)
        if missing:
            self.book.complete(await source.noted(self.postgres, missing))
        queued_at = datetime.now(UTC).isoformat().encode()
        for event in events:
            if event.source == self.source:
                self._take(event, queued_at)
        await self._read_files()
        for operation, number in self._rows.items():
            self.scope.health.stats.count_in("audit_rows", operation.lower(), number)
        self._rows.clear()

    async def _read_files(self) -> None:
        """Ask the catalog for the files of tables that may have new ones."""
        now = time.monotonic()
        wanted = {
            relation_id: names
            for relation_id, names in self.book.without_files().items()
            if now - self._files_at.get(relation_id, -FILES_S) >= FILES_S
        }
        if not wanted:
            return
        found = await source.files(self.postgres, wanted)
        for relation_id, names in wanted.items():
            self._files_at[relation_id] = now
            self.book.take_files(names, found.get(relation_id))
            self._learned.append((self._taken, names, self.book.tables[names]))

    def _take(self, event: Event, queued_at: bytes) -> None:
        self._taken = event.position
        if event.operation in _CHANGES:
            table = (event.payload["relation_id"], event.schema, event.table)
            what = self._what.get(table)
            if what is None or what is _OWN:
                # Which tables are the audit's own may change with a month.
                what = self._what_is(*table)
                self._what[table] = what
            if what is not _OWN:
                self._foreign = True
            wanted = what is _WANTED
            news = self.book.hear(event) if wanted else self.book.skip(event)
            if news:
                self._note(event, (event.schema, event.table))
            self.stitcher.add(event, self.maker.line(event, queued_at) if wanted else None)
            if wanted:
                self._rows[event.operation] += 1
        elif event.operation == SCHEMA:
            self._note(event, self.book.learn(event.position, event.payload))
        elif event.operation == GAP:
            self._gap(event)
        else:
            self._foreign = True
            self.stitcher.add(event, None)

    def _note(self, event: Event, names: Names) -> None:
        self._learned.append((event.position, names, self.book.tables[names]))

    def _what_is(self, relation: int, schema: str, table: str) -> str:
        if (relation, schema, table) in self.destination.own:
            return _OWN
        if self.selection.wants(schema, table):
            return _WANTED
        return _OTHER

    def _gap(self, event: Event) -> None:
        payload = event.payload
        reason = (
            f"{payload.get('reason')}: changes from {payload.get('after')} to "
            f"{payload.get('up_to')} are lost"
        )
        if payload.get("reason") == "stream_damaged":
            reason += " to the stream; rows that the trail had read before are complete"
        log.error("gap", reason=reason)
        self.scope.health.stats.count("audit_gaps")
        self.stitcher.gap(event.stream_seq, reason)

    async def _commit(self) -> None:
        while True:
            await self._wait()
            if (batch := self.stitcher.cut()) is not None:
                self._room.set()
                await self._write(batch)
            elif self._ended:
                return

    async def _wait(self) -> None:
        if not self._ended:
            await self._news.wait()
            self._news.clear()

    async def _write(self, batch: Batch) -> None:
        if not (batch.lines or batch.patches or batch.gaps or self._due):
            self.stitcher.give_back(batch)
            return
        # If this fails, unwritten events simply stay unprocessed.
        self._writing = True
        await self.destination.write(batch, self._learned_by(batch))
        self._writing = False
        self._kept_at = time.monotonic()
        self._foreign = False
        self.worked = True
        self._tell(batch)
        # A complete transaction may have arrived meanwhile, and nothing else would announce it.
        self._news.set()

    def _learned_by(self, batch: Batch) -> dict[Names, Noted]:
        """Facts up to the batch's end: reading is ahead of it, and after a crash starts there
        again.
        """
        assert batch.position is not None, "a batch that was cut has one"
        found: dict[Names, Noted] = {}
        while self._learned and self._learned[0][0] <= batch.position:
            _, names, noted = self._learned.popleft()
            found[names] = noted
        return found

    @property
    def _due(self) -> bool:
        return self._ended or time.monotonic() - self._kept_at > (
            IDLE_S if self._foreign else OWN_S
        )

    def _tell(self, batch: Batch) -> None:
        stats = self.scope.health.stats
        stats.count("audit_commits")
        stats.count("audit_transactions", batch.transactions)
        assert batch.position is not None, "it was written"
        stats.set("audit_lsn", batch.position.lsn)
        if batch.committed_at:
            age = datetime.now(UTC) - datetime.fromisoformat(batch.committed_at)
            stats.set("audit_lag_seconds", round(max(0.0, age.total_seconds()), 3))


async def opened(
    scope: Scope,
    settings: AuditSettings,
    postgres: PostgresSettings,
    destination: Destination,
    slot: str,
) -> Session:
    """A session for the destination's current state."""
    book = TableBook(dict(await destination.noted()))
    maker = RowMaker(
        database=await source.database_name(postgres),
        source=slot,
        book=book,
        insert_as=settings.insert_as,
        redact=_redaction(settings),
    )
    stitcher = Stitcher(settings.whole_rows_max, settings.whole_bytes_max, destination.state.open)
    selection = Selection(include=settings.tables)
    return Session(scope, settings, postgres, destination, slot, maker, selection, book, stitcher)


def _redaction(settings: AuditSettings) -> Selection:
    selection = Selection(exclude_columns=settings.redact)
    # Reports a malformed pattern now, and not at the first row.
    selection.hidden_columns("public", "")
    return selection
