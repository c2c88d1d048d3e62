"""Brings a table into the mirror: snapshot, staging table, catching up, then joining the others.

Promises: readers see the old rows until the new ones are complete; after a crash at any point it
resumes where it was; the table joins exactly where the follower is, which shows the table once it
has reached the snapshot's LSN.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nats.aio.client import Client
from nats.js.errors import NoKeysError, NotFoundError

from headrace import log as logs
from headrace.consumer import (
    Consumer,
    Event,
    MemoryWatermarks,
    RetentionGapError,
    Subscription,
    Watermark,
    follow,
)
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import CDC, GAP_SUBJECT, schema_subject
from headrace.errors import HeadraceError
from headrace.jetstream.dictionaries import STATE_BUCKET
from headrace.mirror.changes import staged_steps
from headrace.mirror.event_steps import Resync, shape
from headrace.mirror.history import copied
from headrace.mirror.mirror_state import SEEN, Book
from headrace.mirror.rules import RuleError
from headrace.mirror.snapshots import (
    Progress,
    SnapshotError,
    SnapshotRefusedError,
    Snapshots,
    StoredSnapshot,
)
from headrace.mirror.table import NEW, BootstrapRun, Column, Phase, Table, TableState
from headrace.mirror.target import (
    CreateTable,
    DropTable,
    InsertRows,
    RowMissingError,
    Step,
    TakenOverError,
    TargetAwayError,
    TargetError,
)
from headrace.timing.backoff import Backoff
from headrace.timing.waits import heed_cancellation

log = logs.logger("mirror")

CATCH_UP_EVENTS = 1000
# How long to wait for another event before trying to hand over the table.
PEEK_S = 0.2
PAUSE_S = 0.5
PAUSE_S_MAX = 15.0
# Otherwise, a message that the reader never returns would be awaited without end.
STUCK_S = 60.0


class AgainError(HeadraceError):
    """The table changed during its bootstrap, which must start again."""

    retry = True


class OvertakenError(HeadraceError):
    """The table needs another bootstrap by now, or none."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The names of the streams and buckets that a mirror reads."""

    # The stream of events (HEADRACE_STREAM).
    cdc: str = "CDC"
    # The stream of snapshots (HEADRACE_INIT_STREAM).
    init: str = "INIT"
    # The bucket of schemas (HEADRACE_SCHEMAS_BUCKET).
    schemas: str = "schemas"
    # The bucket of dictionaries (HEADRACE_STATE_BUCKET).
    state: str = STATE_BUCKET


class Bootstrap:
    """Bootstraps one table, until it follows the stream."""

    def __init__(
        self, book: Book, client: Client, streams: Streams, token: str, progress: Progress
    ) -> None:
        self._book = book
        self._client = client
        self._js = client.jetstream()
        self._streams = streams
        self._snapshots = Snapshots(client, streams.cdc, streams.init, streams.state)
        self._token = token
        self._progress = progress
        # The bootstrap that this object stands for. If the book's number changes, the follower has
        # ordered another one, and everything here is void.
        self._number = book.run_of(token)
        # The number of times that the stream had reported the table when the source was last
        # queried.
        self._told_of = book.told_of(token)
        # The end of the stream when the source was queried.
        self._asked_seq = 0

    async def run(self) -> None:
        """Run to the end, with retries; returns early if another bootstrap takes over."""
        backoff = Backoff(PAUSE_S, PAUSE_S_MAX)
        while True:
            try:
                await self._attempt_or_refusal()
            except OvertakenError:
                return
            except (TargetAwayError, TakenOverError):
                # They concern the whole mirror, not this table.
                raise
            except (AgainError, SnapshotError, RowMissingError, RetentionGapError) as error:
                log.warning("bootstrap_again", table=self._token, reason=str(error))
                await self._begin_anew()
                await asyncio.sleep(backoff.pause_s())
            except TargetError as error:
                await self._park(error)
                return
            else:
                return

    async def _attempt_or_refusal(self) -> None:
        self._told_of = self._book.told_of(self._token)
        try:
            await self._attempt()
        except SnapshotRefusedError as error:
            await self._refused(error)

    async def _refused(self, error: SnapshotRefusedError) -> None:
        """The source hasn't the table now, or lets nobody copy it. Should it come (back), the
        stream tells of it.
        """
        async with self._book.held():
            # Checked while holding the lock: the follower may have ordered another bootstrap in the
            # meantime.
            if self._book.run_of(self._token) != self._number:
                return
            state = self._book.tables[self._token]
            # Named by the user, and never seen: a mistake in the settings, which must not pass
            # silently.
            if state.why == NEW:
                # The next run may name another.
                self._book.remove(state)
                await self._book.commit()
                raise error
            # The table came back after the refusal; forgetting it now would lose it until the next
            # schema event.
            if self._book.told_of(self._token) != self._told_of:
                raise AgainError("the stream reported the table while it was refused")
            log.warning("bootstrap_refused", table=self._token, reason=str(error))
            await self._book.write([DropTable(state.live)] if state.live else [])
            # Events of the table up to here are from before the refusal, so they don't show that it
            # exists again.
            self._book.forget(state, self._asked_seq)
            await self._book.commit()

    async def _park(self, error: TargetError) -> None:
        """The target can't store this table; the others continue. If there are none, the target
        itself is unusable.
        """
        async with self._book.held():
            if self._book.run_of(self._token) != self._number:
                return
            await self._book.park(self._token, error)

    async def _begin_anew(self) -> None:
        async with self._book.held():
            if self._book.run_of(self._token) == self._number:
                state = self._book.tables[self._token]
                self._book.put(replace(state, phase=Phase.WANTED, run=None))
                await self._book.commit()

    def _check(self) -> None:
        heed_cancellation()
        if self._book.run_of(self._token) != self._number:
            raise OvertakenError("another bootstrap is needed")

    def _state(self) -> TableState:
        """The table's state, unless this bootstrap has become void."""
        self._check()
        return self._book.tables[self._token]

    async def _attempt(self) -> None:
        run = self._state().run
        if run is None:
            run = await self._obtain()
        run = await self._load(run)
        await self._catch_up(run)

    async def _obtain(self) -> BootstrapRun:
        # Before the source is queried: everything in the stream by then is older than the answer.
        self._asked_seq = int((await self._js.stream_info(self._streams.cdc)).state.last_seq)
        snapshot = await self._snapshots.take(self._token, self._progress)
        place = await self._snapshots.place(snapshot)
        if snapshot.batch_count:
            first = await self._snapshots.chunk(snapshot, 0)
        else:
            first = []
        table, version = await self._shape(list(first[0]) if first else None)
        marks = {SEEN: Watermark(stream_seq=place)}
        run = BootstrapRun(
            snapshot.snapshot_id,
            snapshot.lsn,
            snapshot.batch_count,
            snapshot.row_count,
            table,
            version=version,
            source=snapshot.source,
            marks=marks,
        )
        before = self._state().live
        replaces = before is not None and before.place == table.place
        self._book.check_place(table)
        await self._write([CreateTable(table, replaces=replaces)], run)
        log.info(
            "bootstrap_loading", table=self._token, snapshot=run.snapshot_id, rows=run.row_count
        )
        return run

    async def _shape(self, names: Sequence[str] | None) -> tuple[Table, int]:
        """The staging table for rows with these columns; a column that neither describes is stored
        as text.
        """
        known = [await self._told(), await self._in_bucket()]
        accounts = [account for account in known if account is not None]
        # Neither is always the newer one: the bucket may lag behind the stream, and the stream
        # forgets.
        accounts.sort(key=lambda account: int(account["version"]), reverse=True)
        if not accounts:
            raise SnapshotError(
                f"neither the stream nor the bucket {self._streams.schemas} knows the columns "
                f"of {self._token}"
            )
        # The rows decide: their columns are those of the snapshot's moment, and the newest schema
        # may be from after it.
        fitting = [
            account
            for account in accounts
            if names is None or {c.name for c in shape(account).columns} == {*names}
        ]
        chosen = (fitting or accounts)[0]
        table = replace(shape(chosen), staging=True)
        if names is not None and not fitting:
            types = {
                column.name: column
                for account in reversed(accounts)
                for column in shape(account).columns
            }
            table = replace(
                table, columns=tuple(types.get(name, Column(name, "text")) for name in names)
            )
        try:
            return table.ruled(self._state().rules), int(chosen["version"])
        except RuleError as error:
            raise TargetError(str(error.args[0]), remedy=error.remedy) from error

    async def _told(self) -> Mapping[str, Any] | None:
        try:
            message = await self._js.get_last_msg(self._streams.cdc, schema_subject(self._token))
        except NotFoundError:
            return None
        payload: Mapping[str, Any] = decode(message.data or b"")
        if payload["columns"]:
            return payload
        return None

    async def _in_bucket(self) -> Mapping[str, Any] | None:
        try:
            bucket = await self._js.key_value(self._streams.schemas)
            entry = await bucket.get(self._token)
        except (NotFoundError, NoKeysError):
            return None
        value: Mapping[str, Any] = decode(entry.value or b"")
        return value

    async def _write(self, steps: Sequence[Step], run: BootstrapRun) -> None:
        """One transaction of this bootstrap."""
        async with self._book.held():
            await self._write_locked(steps, run)

    async def _write_locked(self, steps: Sequence[Step], run: BootstrapRun) -> None:
        state = self._state()
        await self._book.write(steps)
        self._book.put(replace(state, phase=Phase.LOADING, run=run))
        await self._book.commit()

    async def _load(self, run: BootstrapRun) -> BootstrapRun:
        snapshot = StoredSnapshot(
            run.snapshot_id,
            self._token,
            run.lsn,
            run.batch_count,
            run.row_count,
            run.source,
            note=None,
        )
        # Rows and `chunks` are committed together, so a crash resumes with the next chunk.
        while run.chunks < run.batch_count:
            rows = await self._snapshots.chunk(snapshot, run.chunks)
            run = replace(run, chunks=run.chunks + 1, rows=run.rows + len(rows))
            rows = copied(run.staged, rows, run.lsn)
            await self._write([InsertRows(run.staged, rows)], run)
            self._progress(run.rows, run.row_count)
        if run.rows != run.row_count:
            raise AgainError(
                f"the chunks of {run.snapshot_id} contained {run.rows} rows, expected "
                f"{run.row_count}"
            )
        return run

    async def _catch_up(self, run: BootstrapRun) -> None:
        """Read the table's own events up to where the follower is, then hand the table over."""
        marks = MemoryWatermarks()
        for lane, mark in run.marks.items():
            await marks.save(lane, mark)
        start_seq = max(mark.stream_seq for mark in run.marks.values()) + 1
        # With gaps: the follower may have passed one while the source was still copying a snapshot
        # from before it, and the follower judges only tables whose snapshot it knows.
        subscription = Subscription(
            self._streams.cdc,
            (self._own_subjects, GAP_SUBJECT),
            start_seq=start_seq,
            state_bucket=self._streams.state,
        )
        moved_at = time.monotonic()
        async with follow(self._client, subscription, marks) as consumer:
            while True:
                events = await self._events(consumer)
                if events:
                    run = await self._apply(events, run, await marks.load())
                    moved_at = time.monotonic()
                elif await self._hand_over(run, await consumer.peek(0)):
                    return
                elif await self._is_waiting(run):
                    moved_at = time.monotonic()
                elif time.monotonic() - moved_at > STUCK_S:
                    raise AgainError(
                        "the stream contains an event of the table that its reader does not return"
                    )

    async def _is_waiting(self, run: BootstrapRun) -> bool:
        """Let the follower continue; whether it is the follower that is waited for."""
        await asyncio.sleep(PEEK_S)
        # A table that the follower's subscription doesn't include yet, or one with nothing left to
        # read, waits for the follower. Only otherwise is this reader stuck.
        return not self._can_join or await self._nothing_left(run)

    @property
    def _can_join(self) -> bool:
        return self._book.subscribed is None or self._token in self._book.subscribed

    async def _events(self, consumer: Consumer) -> list[Event]:
        """Some of the events that the follower has passed."""
        events: list[Event] = []
        while len(events) < CATCH_UP_EVENTS:
            event = await consumer.peek(PEEK_S)
            # Never beyond the follower: events that it hasn't passed yet are for it to apply, in
            # the transactions of all tables.
            if event is None or not self._book.passed(event):
                break
            taken = await consumer.next()
            assert taken is not None
            events.append(taken)
            await consumer.done(taken)
        return events

    async def _apply(
        self, events: Sequence[Event], run: BootstrapRun, marks: Mapping[str, Watermark]
    ) -> BootstrapRun:
        steps: list[Step] = []
        for event in events:
            found = staged_steps(event, run)
            if isinstance(found, Resync):
                raise AgainError(found.why)
            steps += found[0]
            run = found[1]
        if any(e.closes for e in events):
            # A message may contain several events: it is passed only with its last one.
            last = max(event.stream_seq for event in events if event.closes)
        else:
            last = 0
        seen = max(last, run.marks[SEEN].stream_seq)
        run = replace(run, marks={**marks, SEEN: Watermark(stream_seq=seen)})
        await self._write(steps, run)
        return run

    async def _hand_over(self, run: BootstrapRun, coming: Event | None) -> bool:
        """Leave the table to the follower, if nothing is left before where that stands; it is shown
        in its time.
        """
        async with self._book.held():
            state = self._state()
            # A table's events are in order: if one is beyond the follower, all earlier ones were
            # taken here.
            is_there = coming is not None and not self._book.passed(coming)
            if not self._can_join or not (is_there or await self._nothing_left(run)):
                return False
            self._book.put(replace(state, phase=Phase.LOADED, run=run))
            await self._book.commit()
        log.info(
            "bootstrap_loaded", table=self._token, rows=run.row_count, snapshot=run.snapshot_id
        )
        return True

    async def _nothing_left(self, run: BootstrapRun) -> bool:
        """Ask the stream, because messages to the consumer may still be on their way."""
        after = max(mark.stream_seq for mark in run.marks.values())
        for subject in (self._own_subjects, GAP_SUBJECT):
            with contextlib.suppress(NotFoundError):
                message = await self._js.get_msg(
                    self._streams.cdc, after + 1, subject=subject, next=True
                )
                if int(message.seq or 0) <= self._book.reached_seq:
                    return False
        return True

    @property
    def _own_subjects(self) -> str:
        return f"{CDC}.{self._token}.>"
