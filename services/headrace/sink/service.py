"""The process of one sink: sessions one after the other, and the instructions of operators.

Promises: while the target, the stream or the source is unavailable it waits, unready, with the
reason, and recovers automatically, however long that takes. Nothing is skipped silently: a refused
record stops the sink or is parked, and a loss in the stream is bridged or reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.bus import participation
from headrace.consumer import (
    Event,
    MemoryWatermarks,
    ReaderTakenOverError,
    RetentionGapError,
    Start,
    StreamMissingError,
    Subscription,
    Watermark,
    follow,
)
from headrace.consumer.behind import behind
from headrace.contract.subjects_and_ids import table_token
from headrace.errors import HeadraceError, SettingError, describe
from headrace.jetstream.state import Cell, bucket_patiently
from headrace.mirror.reach import READ_S, Reach
from headrace.process.lifecycle import Scope
from headrace.process.service import on_the_bus
from headrace.settings import Settings
from headrace.sink import source_lane
from headrace.sink.catching_up import CatchingUp
from headrace.sink.replay import Replay
from headrace.sink.tables import TablesWorker
from headrace.sinks.bootstrap import described
from headrace.sinks.building import router_of, sink_of
from headrace.sinks.configuration import ConfigurationError, SinkConfiguration, load_sinks
from headrace.sinks.configuration_keys import Initial, OnError
from headrace.sinks.control import Control, ResetTo, control_key, durable_name, marks_key
from headrace.sinks.dead_letters import DeadLetters
from headrace.sinks.port import (
    SEEN,
    DisabledError,
    RefusedError,
    Sink,
    SinkFencedError,
)
from headrace.sinks.reading import SourceTransactions, source_mark
from headrace.sinks.remembered import StateMarks
from headrace.sinks.routing import Router, UnroutableError, event_id
from headrace.sinks.session import SinkSession
from headrace.sinks.targets import is_database
from headrace.timing.backoff import Backoff

log = logs.logger("sink")

BACKOFF_S = 0.2
BACKOFF_S_MAX = 10.0
LOOK_S = 1.0
MEASURE_S = 5.0
CLOSE_S = 5.0


async def run(scope: Scope, settings: Settings, name: str) -> None:
    """Run the sink of this name until the service stops."""
    file = Path(settings.sinks.file)
    sinks = load_sinks(file, os.environ)
    if name not in sinks:
        known = ", ".join(sinks) or "none"
        raise ConfigurationError(f"{file} has no sink {name!r}; its sinks: {known}")

    async def work(client: Client) -> None:
        state = await bucket_patiently(scope, client.jetstream(), settings.streams.state)
        if state is not None:
            kind = TablesWorker if is_database(sinks[name].address(os.environ)) else Worker
            worker = kind(scope, settings, client, state, sinks[name])
            scope.spawn("instructions", worker.watch())
            scope.spawn("behind", worker.measure())
            await worker.run()

    await on_the_bus(scope, settings, work)


@dataclass(eq=False)
class Worker:
    scope: Scope
    settings: Settings
    client: Client
    state: KeyValue
    sink: SinkConfiguration
    router: Router = field(init=False)
    control: Control = field(init=False)
    letters: DeadLetters = field(init=False)
    # Set while no session may work: a stop, a pause, a reset.
    halt: asyncio.Event = field(default_factory=asyncio.Event)
    # The events that the stream discarded before the sink read them.
    lost: RetentionGapError | None = None
    # The current session, or the last one.
    session: SinkSession | None = None

    def __post_init__(self) -> None:
        source = self.settings.source.slot
        self.router = router_of(self.sink)
        self.control = Control(self.state, control_key(source, self.sink.name))
        self.letters = DeadLetters(self.client.jetstream(), self.settings.streams.parked, source)

    async def run(self) -> None:
        backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        while not self.scope.stopping.is_set():
            # Before each session, also after an error: an operator may have paused it because of
            # that.
            if await self._is_paused():
                await self.scope.pause(LOOK_S)
                continue
            self.session = None
            try:
                # One session from the target's marks on: they decide everything that was in doubt
                # (ADR 0036).
                await self._session()
            except (SinkFencedError, ReaderTakenOverError, SettingError, ConfigurationError):
                # Another process has taken over, or no attempt could succeed.
                raise
            except DisabledError as error:
                await self._disabled(error)
            except (RefusedError, UnroutableError) as error:
                await self._refused(error)
            except RetentionGapError as error:
                await self._lost(error)
            except Exception as error:  # noqa: BLE001  # clients may raise anything
                self._blocked(error)
                # An error after a success is a new one; the pauses are short again.
                if self._worked:
                    backoff.reset()
                await self.scope.pause(backoff.pause_s())

    async def _lost(self, error: RetentionGapError) -> None:
        """The next session begins with what the stream has lost."""
        if self.lost is not None:
            # Lost again before anything of it was read: retention is faster than this sink.
            await self.scope.pause(BACKOFF_S_MAX)
        self.lost = error
        self.scope.health.stats.count("sink_gaps")
        log.error("sink_beyond_the_stream", sink=self.sink.name, reason=str(error))

    @property
    def _worked(self) -> bool:
        return self.session is not None and self.session.worked

    async def _disabled(self, error: DisabledError) -> None:
        log.error("sink_disabled", sink=self.sink.name, reason=str(error))
        # Stored, because a restart would only meet the same refusal.
        await self.control.pause(str(error))

    async def _is_paused(self) -> bool:
        try:
            found = await self.control.read()
        except (NatsError, TimeoutError) as error:
            self.scope.health.block("jetstream", describe(error))
            return True
        self.scope.health.unblock("jetstream")
        if not found.paused:
            self.scope.health.unblock("paused")
            self.halt.clear()
            return False
        self.scope.health.block("paused", found.reason or "paused by an operator")
        return True

    async def watch(self) -> None:
        """Halt the session when there is an instruction, or the service stops."""
        while not self.scope.stopping.is_set():
            with contextlib.suppress(NatsError, TimeoutError):
                found = await self.control.read()
                # The session ends at the end of a transaction; the next one follows the
                # instruction.
                if found.paused or found.reset or found.replay:
                    self.halt.set()
                await self._name_system()
            await self.scope.pause(LOOK_S)
        self.halt.set()

    async def _system(self) -> str:
        return await source_lane.system_of(self.state, self.settings.source.slot)

    async def _name_system(self) -> None:
        """Store with the marks which server they belong to, once that is known."""
        session = self.session
        if session is None or source_lane.named_system(session.marks):
            return
        system_id = await self._system()
        # The session may have ended meanwhile; its marks are not committed any more.
        if system_id:
            source_lane.name_system(session.marks, system_id)

    async def _session(self) -> None:
        sink = await self._opened()
        try:
            marks = await self._marks(sink)
            await self._follow(sink, marks)
        finally:
            # The outcome is known: a target that does not answer changes nothing.
            with contextlib.suppress(Exception):
                # A client that hangs must not keep the next session from starting.
                async with asyncio.timeout(CLOSE_S):
                    await sink.close()

    async def _opened(self) -> Sink:
        info = await self.client.jetstream().stream_info(self.settings.streams.cdc)
        source = self.settings.source.slot
        return sink_of(
            self.sink,
            os.environ,
            f"{self.settings.streams.cdc}@{info.created}",
            StateMarks(Cell(self.state, marks_key(source, self.sink.name))),
            self._described,
        )

    async def _described(self, schema: str, table: str) -> Mapping[str, Any] | None:
        """The newest description of a table that the suite has published."""
        token = table_token(schema, table)
        return await described(self.client.jetstream(), self.settings.streams.schemas, token)

    async def _marks(self, sink: Sink) -> dict[str, Watermark]:
        """The committed marks; those that a reset asks for are committed before anything else."""
        async with asyncio.timeout(self.sink.pace.timeout_s):
            # It also fences an older process, so it comes before anything is read or written.
            marks = dict(await sink.open())
        # Parked records are not tried again without an instruction.
        self.router.parked.update(one for _, one in await self.letters.names(self.sink.name))
        instructions = await self.control.read()
        system_id = await self._system()
        if instructions.reset is None:
            # Before anything is skipped by a position.
            source_lane.check(marks, system_id)
        catching_up = CatchingUp(self.client, self.settings, self.sink, self.router, sink)
        if instructions.reset is not None:
            marks = await catching_up.reset(instructions.reset)
            # After the marks were committed: a crash in between repeats the reset instead of losing
            # it.
            await self.control.change(lambda found: replace(found, reset=None))
            self.lost = None
        elif not marks and self.sink.snapshot is Initial.INITIAL:
            marks = await catching_up.reset(ResetTo.SNAPSHOT)
        if self.lost is not None:
            marks = await catching_up.bridge(marks, self.lost)
            self.lost = None
        if system_id:
            source_lane.name_system(marks, system_id)
        # Copies before the stream: a change of a row is never written before the row.
        await catching_up.copy(marks)
        if instructions.replay:
            await Replay(self.control, self.letters, self.router, sink).run(
                self.sink.name, instructions.replay, marks
            )
        self.halt.clear()
        # A stop in this moment was cleared with the rest.
        if self.scope.stopping.is_set():
            self.halt.set()
        return marks

    async def _follow(self, sink: Sink, marks: dict[str, Watermark]) -> None:
        source = self.settings.source.slot
        store = MemoryWatermarks()
        # In memory only: the target's marks are the truth, and the consumer needs a start.
        for lane in (SEEN, source):
            await store.save(lane, marks.get(lane, Watermark()))
        streams = self.settings.streams
        subscription = Subscription(
            streams.cdc,
            durable=durable_name(source, self.sink.name),
            start=Start.ALL,
            state_bucket=streams.state,
        )
        async with follow(self.client, subscription, store) as consumer:
            reach = Reach(self.client.jetstream(timeout=READ_S), streams.state)
            reader = SourceTransactions(consumer, source, reach, source_mark(marks, source))
            stats = self.scope.health.stats
            self.session = SinkSession(sink, self.router, reader, marks, stats, self.sink.pace)
            self._ready(marks)
            await self.session.run(self.halt)

    def _ready(self, marks: dict[str, Watermark]) -> None:
        for part in ("target", "stream", "refused"):
            self.scope.health.unblock(part)
        self.scope.health.started()
        seen = marks.get(SEEN, Watermark()).stream_seq
        position = source_mark(marks, self.settings.source.slot)
        log.info("sink_follows", sink=self.sink.name, position=str(position), stream_seq=seen)

    async def _refused(self, error: RefusedError | UnroutableError) -> None:
        """Park the record, or stop at it: it is tried again, because someone may correct it."""
        stats = self.scope.health.stats
        stats.count("sink_refused")
        event, record_id, destination = _place(error)
        if self.sink.on_error is OnError.STOP:
            self.scope.health.block("refused", str(error))
            log.error("sink_refused", sink=self.sink.name, id=record_id, reason=str(error))
            await self.scope.pause(BACKOFF_S_MAX)
            return
        # Stored first, then left out: a crash in between parks the record twice under one ID.
        await self.letters.park(self.sink.name, record_id, destination, event, error.reason)
        # The next session leaves it out; one in another process parks it again.
        self.router.parked.add(record_id)
        stats.count("sink_parked")
        log.error("sink_parked", sink=self.sink.name, id=record_id, reason=error.reason)

    def _blocked(self, error: Exception) -> None:
        # It never reconnects after that: only a new process helps.
        if self.client.is_closed:
            raise participation.BusClosedError("the NATS client gave up") from error
        is_stream = isinstance(error, NatsError | StreamMissingError)
        # The text of an unknown error may contain a row's values.
        known = isinstance(error, HeadraceError | NatsError | OSError)
        reason = describe(error) if known else type(error).__name__
        self.scope.health.block("stream" if is_stream else "target", reason)
        self.scope.health.stats.count("sink_recoveries")
        log.warning("sink_again", sink=self.sink.name, reason=reason)

    async def measure(self) -> None:
        """Measure now and then how far the sink is behind the stream, also while it waits."""
        stats = self.scope.health.stats
        while not self.scope.stopping.is_set():
            if self.session is not None and self.client.is_connected:
                # Only a figure: the session reports that the stream does not answer.
                with contextlib.suppress(NatsError, OSError):
                    js = self.client.jetstream()
                    found = await behind(js, self.settings.streams.cdc, self.session.seen_seq)
                    stats.set("sink_behind_messages", found.messages)
                    stats.set("sink_behind_seconds", found.age_s)
            await self.scope.pause(MEASURE_S)


def _place(error: RefusedError | UnroutableError) -> tuple[Event, str, str]:
    """The event, the record's ID and its destination."""
    if isinstance(error, RefusedError):
        record = error.record
        return record.event, record.id, record.destination
    return error.event, event_id(error.event), ""
