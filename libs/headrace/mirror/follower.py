"""The mirror's reader of the stream, for all tables that have finished their bootstrap.

Promises: changes and position are committed together; a commit ends at the end of a transaction,
for every source and every delivery mode; events that the stream dropped are always reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from nats.aio.client import Client

from headrace import log as logs
from headrace.consumer import Consumer, Event, MemoryWatermarks, Subscription, Watermark, follow
from headrace.contract.events import GAP
from headrace.contract.subjects_and_ids import CDC, CDC_SUBJECTS, GAP_SUBJECT
from headrace.jetstream.dictionaries import DictionaryReader
from headrace.lsn import ORIGIN, parse_lsn
from headrace.metrics.counters import Counters
from headrace.mirror.ahead import Ahead
from headrace.mirror.assembly import is_outside
from headrace.mirror.bootstrap import Streams
from headrace.mirror.changes import DIVERGED, Changes, CopyWantedError
from headrace.mirror.mirror_state import SEEN, Book, settled
from headrace.mirror.reach import READ_S, Reach
from headrace.mirror.scope import EVERYTHING, MirrorScope
from headrace.mirror.session import (
    LOOK_S,
    FollowSession,
    StepRefusedError,
    StepsRefusedError,
    TornError,
    refusals,
    without_positions,
)
from headrace.mirror.table import Phase, TableState
from headrace.mirror.target import (
    CommitRefusedError,
    RowMissingError,
    Step,
    TakenOverError,
    TargetAwayError,
    TargetError,
)
from headrace.mirror.verify_hold import VerifyHold
from headrace.timing.waits import heed_cancellation

log = logs.logger("mirror")

# A commit costs the target about the same for one event as for many: whole transactions are
# collected up to this number, or of so many reads, which are limited in bytes, while there is more.
COMMIT_EVENTS = 4000
COMMIT_READS = 32
# A transaction larger than this is written in parts, to bound the memory; it is committed as one.
SPILL_EVENTS = 5000
SPILL_BYTES = 32 * 1024 * 1024
IDLE_S = 1.0
LOOK_S_MAX = 0.25
HOLD_LOOK_S = 0.2
# While a loaded table waits for the others to reach its snapshot.
LOADED_LOOK_S = 0.1
# How often an idle mirror stores how far it has seen the stream. After a restart it reads again
# from there, and retention must not overtake what it has seen.
KEEP_SEEN_S = 5.0
# The same for how far readers see everything, which `wait_for` waits for.
KEEP_VISIBLE_S = 0.5


class Follower:
    def __init__(
        self,
        book: Book,
        client: Client,
        streams: Streams,
        hold: VerifyHold,
        stats: Counters,
        *,
        every_table: bool,
        scope: MirrorScope = EVERYTHING,
    ) -> None:
        self._book = book
        self._client = client
        self._streams = streams
        self._hold = hold
        self._stats = stats
        self._every_table = every_table
        self._changes = Changes(book, every_table=every_table, takes=scope.takes)
        self._durable = scope.durable or f"mirror-{book.identity}"
        # Transactions that a gap cut off, by source and LSN: they never end.
        self._torn: set[tuple[str, int]] = set()
        # When the position was last committed.
        self._kept_at = 0.0
        # The target refused something up to here: apply single steps to find the table.
        self._suspect_seq = 0
        self._session = self._begin()

    def _begin(self) -> FollowSession:
        """Start from the committed state."""
        tokens = frozenset(self._book.tables)
        dictionaries = DictionaryReader(self._client.jetstream(), self._streams.state)
        return FollowSession(
            lanes=dict(self._book.lanes),
            reach=Reach(self._client.jetstream(timeout=READ_S), self._streams.state),
            ahead=Ahead(self._client, self._streams.cdc, dictionaries, tokens),
        )

    async def run(self, stopping: asyncio.Event) -> None:
        """Follow until the event is set."""
        while not stopping.is_set():
            # Readers see a table whose copy is not loaded yet: applying events would show a state
            # that the source never had (docs/adr/0020).
            if self._book.stands:
                await self._stand(stopping)
                continue
            try:
                await self._follow(stopping)
            except (TornError, StepRefusedError) as error:
                # Neither names a table: from the committed state the same events are applied again,
                # without the torn transaction, or one step at a time.
                log.warning("rolled_back", reason=str(error))
                await self._roll_back()
            except CopyWantedError as wanted:
                await self._roll_back(wanted)
            except StepsRefusedError as refused:
                await self._roll_back()
                async with self._book.held():
                    await self._book.park(refused.token, refused.error)

    async def _stand(self, stopping: asyncio.Event) -> None:
        """Wait until every table is loaded that readers need to see a moment of the source."""
        log.warning("standing", tables=[state.token for state in self._book.awaited])
        # From here on, all tables are followed together.
        self._book.subscribed = None
        while self._book.stands and not stopping.is_set():
            heed_cancellation()
            await self._hold.wait(HOLD_LOOK_S)

    async def _roll_back(self, wanted: CopyWantedError | None = None) -> None:
        """Discard the target's open transaction, and bootstrap these tables again from where
        readers are.
        """
        # The rollback needs the lock, even if nothing was written: a bootstrap may be in the middle
        # of another transaction of the same target.
        if not self._session.writing:
            await self._book.lock.acquire()
        try:
            await self._book.roll_back()
            self._changes.diverged.clear()
            if wanted is not None:
                for schema, name in wanted.names:
                    self._book.want(
                        schema, name, wanted.why, awaited=True, diverged_seq=wanted.diverged_seq
                    )
                await self._book.commit()
        finally:
            self._session.writing = False
            self._book.lock.release()

    async def _follow(self, stopping: asyncio.Event) -> None:
        self._session = self._begin()
        filters = self._filters()
        start_seq = self._book.seen_seq + 1
        subscription = Subscription(
            self._streams.cdc,
            filters,
            self._durable,
            start_seq=start_seq,
            state_bucket=self._streams.state,
        )
        if self._every_table:
            self._book.subscribed = None
        else:
            self._book.subscribed = frozenset(self._book.tables)
        async with follow(self._client, subscription, await self._marks()) as consumer:
            log.info("following", tables=len(self._book.tables), stream_seq=self._book.seen_seq)
            while not stopping.is_set():
                heed_cancellation()
                await self._turn(consumer)
                if (
                    not self._session.ready
                    and not self._session.writing
                    and self._filters() != filters
                ):
                    return
                if self._changes.diverged and not self._session.writing:
                    await self._drop_lanes()
                    return
                if self._book.stands and not self._session.writing:
                    return
            await self._flush(consumer)

    async def _marks(self) -> MemoryWatermarks:
        """The start of the consumer, which also shows that the stream is the one that was read."""
        marks = MemoryWatermarks()
        seen_seq = self._book.seen_seq
        for lane, mark in self._book.lanes.items():
            # A source may be applied further than the stream was seen. Reading starts at what was
            # seen; the positions then skip the events that are applied.
            capped = Watermark(mark.position, min(mark.stream_seq, seen_seq))
            await marks.save(lane, capped)
            if lane and "/" not in lane and mark.position > ORIGIN:
                # Arrays have their own lanes.
                for state in self._book.tables.values():
                    if (
                        state.source == lane
                        and f"{lane}/{state.schema}.{state.name}" not in self._book.lanes
                    ):
                        await marks.save(f"{lane}/{state.schema}.{state.name}", capped)
        return marks

    def _filters(self) -> tuple[str, ...]:
        if self._every_table:
            return (CDC_SUBJECTS,)
        return (*(f"{CDC}.{token}.>" for token in sorted(self._book.tables)), GAP_SUBJECT)

    async def _turn(self, consumer: Consumer) -> None:
        waiting = self._book.loaded
        # A mirror of all tables receives every event itself, so there is nothing to find ahead.
        # A transaction may be written completely, with nothing of it left here, and still be open.
        looks = not self._every_table and (
            bool(waiting)
            or bool(self._session.spilled)
            or self._session.assembly.first_seq is not None
        )
        event = await consumer.peek(self._patience_s(looks=looks, waits=bool(waiting)))
        if event is not None:
            self._session.assembly.precede(event)
        elif looks:
            await self._look_ahead(consumer.given_seq)
        self._session.ready += self._session.assembly.ready(self._bound)
        if self._must_wait(event):
            await self._flush(consumer)
            await self._hold.wait(HOLD_LOOK_S)
        elif event is None:
            await self._flush(consumer)
        else:
            self._session.look_s = LOOK_S
            await self._take(consumer, event)
            await self._take_more(consumer)
            await self._go_on(consumer)

    def _patience_s(self, *, looks: bool, waits: bool) -> float:
        if looks:
            return self._session.look_s
        if waits:
            return LOADED_LOOK_S
        if self._book.lags:
            return min(IDLE_S, self._session.reach.look_s)
        return IDLE_S

    async def _look_ahead(self, given_seq: int) -> None:
        """Find the end of a transaction among messages that are not for this mirror."""
        before = self._session.ahead.at
        async for events in self._session.ahead.read(given_seq):
            for event in events:
                self._session.assembly.precede(event)
                self._session.assembly.follow(event)
        if self._session.ahead.at > before:
            self._session.look_s = LOOK_S
        else:
            self._session.look_s = min(2 * self._session.look_s, LOOK_S_MAX)

    @property
    def _bound(self) -> int | None:
        """The LSN from which on transactions are held back; written transactions that can't be
        shown yet continue.
        """
        lsn = self._hold.lsn
        # A verification waits for a moment at which both sides can be compared. A transaction that
        # is already partly written can't be held back: the target could only show it by committing
        # a part.
        if lsn is None or self._session.spilled or self._book.awaited:
            return None
        if self._hold.stops(lsn):
            return lsn
        return None

    def _must_wait(self, event: Event | None) -> bool:
        bound = self._bound
        if bound is None:
            return False
        # Reading on completes nothing earlier: nothing is left to read, everything is held back, or
        # the buffer is full.
        if event is None or bound == 0 or self._session.assembly.size >= SPILL_EVENTS:
            return True
        if event.lane != event.source:
            # Arrays of other tables, from before the LSN, may follow.
            return False
        return event.position.lsn >= bound or self._session.assembly.waits(event.source, bound)

    async def _take(self, consumer: Consumer, seen: Event) -> None:
        event = await consumer.next()
        assert event is not None, "an event that was available can be taken"
        await consumer.done(event)
        # A restart reads again from what was seen; this event is in the target already.
        if self._book.passed(event):
            return
        if event.operation == GAP:
            await self._tear(event)
        # Later events of a torn transaction are left out: the tables are copied again.
        if is_outside(event) or (event.source, event.position.lsn) not in self._torn:
            # `seen` is the event as the message has it; `event` contains the referenced value
            # already.
            reference = seen.payload.get("reference")
            self._session.large_bytes += int(reference["bytes"]) if reference else 0
            self._session.assembly.take(event)

    async def _take_more(self, consumer: Consumer) -> None:
        """Take the other available events, up to a commit's worth, with less work for each."""
        # A verification holds back at an event; each large value may fill the memory.
        if self._hold.lsn is not None or self._session.large_bytes:
            return
        self._session.reads += 1
        for event in await consumer.take_done(COMMIT_EVENTS):
            if self._book.passed(event):
                continue
            if event.operation == GAP:
                await self._tear(event)
            torn = self._torn and not is_outside(event)
            if not torn or (event.source, event.position.lsn) not in self._torn:
                self._session.assembly.take(event)

    async def _go_on(self, consumer: Consumer) -> None:
        """Commit, or write a part, if there is enough."""
        self._session.ready += self._session.assembly.ready(self._bound)
        is_large = self._session.large_bytes >= SPILL_BYTES
        is_full = len(self._session.ready) >= COMMIT_EVENTS or self._session.reads >= COMMIT_READS
        if self._session.ready and (is_large or is_full or not consumer.has_more):
            self._session.reads = 0
            await self._flush(consumer)
        elif self._bound is None and (is_large or self._session.assembly.size >= SPILL_EVENTS):
            # Not while a verification holds back transactions: a part can't be held back.
            await self._spill()

    async def _tear(self, gap: Event) -> None:
        """Copy the tables of a transaction again that is open when a gap comes, because it never
        ends.
        """
        # Read together with it, but complete: they come before the gap.
        self._session.ready += self._session.assembly.ready(self._bound)
        # LSNs have another meaning after it, so none of the source's open transactions continues.
        if gap.payload["reason"] == DIVERGED:
            lsn = None
        else:
            lsn = parse_lsn(str(gap.payload["up_to"]))
        self._session.assembly.tear(gap.source, lsn)
        # Changes in the target's open transaction can't be undone separately: everything since the
        # last commit is rolled back.
        spilled = self._session.spilled.get(gap.source)
        if spilled is not None and (lsn is None or spilled < lsn):
            self._torn.add((gap.source, spilled))
            raise TornError(f"a gap cuts off a transaction of {gap.source}")

    async def _spill(self) -> None:
        """Write a part of a large transaction; the target's transaction stays open."""
        # In stream order: whole transactions come before the part of this one.
        await self._write(self._session.ready)
        self._session.ready = []
        part = self._session.assembly.part()
        self._session.large_bytes = 0
        source = part[0].source
        lsn = part[0].position.lsn
        # Arrays of several tables may bring an earlier transaction after a later one.
        self._session.spilled[source] = max(lsn, self._session.spilled.get(source, 0))
        await self._write(part)

    async def _write(self, events: Sequence[Event]) -> None:
        if not self._session.writing:
            heed_cancellation()
            await self._book.lock.acquire()
            self._session.writing = True
        await self._do(self._changes.of(events), max((e.stream_seq for e in events), default=0))
        self._stats.count("mirror_events", len(events))
        self._session.advance(events)

    async def _do(self, steps: Sequence[Step], last_seq: int) -> None:
        # The target refused these events together without naming the table. Applied one at a time,
        # the step that is refused names it.
        if self._book.seen_seq < self._suspect_seq:
            for step in steps:
                with refusals(step.table.token):
                    await self._book.write([step])
            return
        try:
            await self._book.write(steps)
        except (TargetAwayError, TakenOverError, RowMissingError):
            raise
        except TargetError as error:
            self._suspect_seq = last_seq
            raise StepRefusedError(str(error)) from error

    async def _flush(self, consumer: Consumer) -> None:
        """Commit all transactions that are complete, together with the position."""
        first = self._session.assembly.first_seq
        if first is None:
            seen_seq = consumer.seen_seq
        else:
            # Events that wait for the rest of their transaction must be read again after a restart.
            seen_seq = min(consumer.seen_seq, first - 1)
        idle = (
            not self._session.ready
            and not self._session.writing
            and not await self._to_show(consumer)
        )
        if (
            idle
            and (time.monotonic() - self._kept_at < KEEP_SEEN_S or seen_seq <= self._book.seen_seq)
            and not (first is None and await self._sees_more(seen_seq))
        ):
            return
        events = self._session.ready
        self._session.ready = []
        await self._write(events)
        self._session.spilled = {
            one: lsn
            for one, lsn in self._session.spilled.items()
            if not self._session.assembly.is_whole(one, lsn)
        }
        shown = await self._to_show(consumer)
        if self._session.spilled or shown is None:
            return
        for state in shown:
            await self._show(state)
        self._session.large_bytes = 0
        self._book.keep_lanes(
            settled({**self._session.lanes, SEEN: Watermark(stream_seq=seen_seq)})
        )
        await self._commit()
        self._session.writing = False
        self._book.lock.release()
        self._kept_at = time.monotonic()
        self._stats.set("mirror_stream_seq", seen_seq)
        if events:
            self._stats.set("mirror_lsn", max(event.position.lsn for event in events))

    async def _sees_more(self, seen_seq: int) -> bool:
        """Whether readers see everything up to a later LSN than the target says, because the
        source has nothing else for them.
        """
        news = False
        for source in self._book.sources:
            lsn = await self._session.reach.complete(source, seen_seq)
            news = self._book.complete_to(source, lsn) or news
        return news and time.monotonic() - self._kept_at >= KEEP_VISIBLE_S

    async def _commit(self) -> None:
        """Commit; a deferred constraint refuses its table only here."""
        try:
            await self._book.commit()
        except CommitRefusedError as error:
            token = self._book.token_at(error.table_name)
            state = self._book.tables.get(token)
            # A parked table is refused over another one's rows: to park it again changes nothing.
            if state is None or state.phase is not Phase.FOLLOWING:
                raise
            raise StepsRefusedError(token, error) from error

    async def _show(self, state: TableState) -> None:
        """Replace a table by its copy; if the target refuses that, park the table."""
        with refusals(state.token):
            await self._book.write(self._book.show(state))

    async def _to_show(self, consumer: Consumer) -> list[TableState] | None:
        """The loaded tables that readers may see now; None if what is written must not be shown
        without another table.
        """
        reached = [state for state in self._book.loaded if await self._has_reached(state, consumer)]
        if all(state in reached for state in self._book.awaited):
            return reached
        if self._book.is_moving:
            return None
        return []

    async def _has_reached(self, state: TableState, consumer: Consumer) -> bool:
        """Whether everything is applied that committed before a table's snapshot."""
        run = state.run
        assert run is not None
        if state.diverged_seq:
            # The source as it was sends nothing more, and LSNs mean nothing: the gap itself must be
            # applied.
            return self._session.lanes.get(run.source, Watermark()).stream_seq >= state.diverged_seq
        if self._session.assembly.lacks(run.source, run.lsn):
            # Including complete transactions that are held back.
            return False
        if self._session.assembly.is_whole(run.source, run.lsn - 1):
            return True
        if self._session.lanes.get(run.source, Watermark()).position.lsn >= run.lsn:
            return True
        seen_seq = max(consumer.seen_seq, self._session.ahead.at)
        return await self._session.reach.is_behind(run.source, run.lsn, seen_seq)

    async def _drop_lanes(self) -> None:
        """Positions of a source whose log was replaced would skip new changes."""
        async with self._book.held():
            gone = self._changes.diverged
            self._changes.diverged = set()
            self._book.keep_lanes(without_positions(self._book.lanes, gone))
            await self._book.commit()
