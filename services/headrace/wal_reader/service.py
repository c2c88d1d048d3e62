"""The wal-reader's process: one epoch after another, each from the last confirmed LSN.

Promises: never confirms an LSN to PostgreSQL that the required confirmers have not confirmed; holds
a bounded number of bytes; reconnects with backoff and jitter; a second instance waits for the slot
as a warm standby. Never parses a message.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace

import psycopg
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace import log as logs
from headrace.bus import control, participation, subjects
from headrace.bus.frame import Opening, frame_name
from headrace.bus.sender import LIFE_BITS, Action, FrameSender
from headrace.errors import DecodeError, HeadraceError
from headrace.lsn import format_lsn
from headrace.metrics.counters import Counters
from headrace.postgres.connection import PostgresError
from headrace.postgres.replication import (
    Keepalive,
    Message,
    ReplicationConnection,
    SlotState,
    SystemIdentity,
)
from headrace.postgres.replication_errors import (
    SlotBusyError,
    StandbyError,
)
from headrace.process.failpoint import failpoint
from headrace.process.lifecycle import Scope
from headrace.process.service import on_the_bus
from headrace.settings import Settings
from headrace.timing.backoff import Backoff, jittered
from headrace.timing.waits import wait_for
from headrace.wal_reader.holding import Holding
from headrace.wal_reader.silence import Silence, StaleSlot
from headrace.wal_reader.slot import prepared
from headrace.wal_reader.transfers import Transfers

log = logs.logger("wal-reader")

SERVICE = "wal-reader"
PUBLISHER = "publisher"
ARCHIVER = "archiver"
HELLO_INTERVAL_S = 0.5
PING_INTERVAL_S = 0.5
BACKOFF_S = 0.2
BACKOFF_S_MAX = 10.0
STANDBY_POLL_S = 0.5
# Reported earlier than at the interval when this much was confirmed, so that PostgreSQL can remove
# WAL.
STATUS_BYTES_MAX = 1024 * 1024
# Share of the shutdown's time in which data in flight may still be confirmed.
DRAIN_SHARE = 0.6
SILENT_CONFIRMER_S = 1.5


async def run(scope: Scope, settings: Settings) -> None:
    async def work(client: Client) -> None:
        reader = WalReaderService(scope, settings, client)
        scope.refreshers.append(reader.refresh)
        await reader.run()

    await on_the_bus(scope, settings, work)


def _confirmers(settings: Settings) -> tuple[frozenset[str], frozenset[str]]:
    """The required confirmers, and the optional ones, which are awaited for a limited time."""
    if not settings.archive.url:
        return frozenset({PUBLISHER}), frozenset()
    if settings.archive.required:
        return frozenset({PUBLISHER, ARCHIVER}), frozenset()
    return frozenset({PUBLISHER}), frozenset({ARCHIVER})


class WalReaderService:
    def __init__(self, scope: Scope, settings: Settings, client: Client) -> None:
        self._scope = scope
        self._settings = settings
        self._client = client
        self._stats = scope.health.stats
        self._frames = subjects.frames(settings.source.slot)
        required, optional = _confirmers(settings)
        self._sender = FrameSender(
            required,
            optional=optional,
            patience_s=settings.archive.patience_s,
            frame_bytes_max=min(settings.bus.frame_bytes_max, client.max_payload // 2),
            in_flight_bytes_max=settings.bus.in_flight_bytes_max,
            life=secrets.randbits(LIFE_BITS),
        )
        self._connection: ReplicationConnection | None = None
        self._silence, self._stale = Silence(settings), StaleSlot(settings)
        self._transfers = Transfers(scope.health.traces)
        # Set by every control message and by the stop signal; ends any wait of this loop.
        self._attention = asyncio.Event()
        # A confirmer has asked for a new epoch.
        self._reopen = False
        self._epochs = 0
        # The slot's confirmed LSN when this process first opened it.
        self._first_confirmed: int | None = None
        # The end of what was received in this epoch, and the LSN that PostgreSQL was given as
        # confirmed. The second never exceeds what the confirmers reported (docs/adr/0005).
        self._received = 0
        self._reported_lsn = 0
        self._reported_at = 0.0
        # When the last ping was sent, and when a confirmer was last heard.
        self._pinged_at = 0.0
        self._heard_at = 0.0
        archive = settings.archive
        self._holding = Holding(PUBLISHER, required, archive.patience_s + archive.file_age_max_s)

    def refresh(self, stats: Counters) -> None:
        stats.set("in_flight_bytes", self._sender.in_flight_bytes)
        stats.set(
            "credit_bytes",
            max(0, self._settings.bus.in_flight_bytes_max - self._sender.in_flight_bytes),
        )
        stats.set("received_lsn", self._received)
        stats.set("confirmed_lsn", self._reported_lsn)
        stats.set("pg_connected", int(self._connection is not None))
        stats.set("epochs", self._epochs)
        stats.set("pg_reconnects", max(0, self._epochs - 1))

    async def run(self) -> None:
        await self._client.subscribe(
            subjects.control(self._settings.source.slot), cb=self._on_control
        )
        watch = asyncio.create_task(self._wake_on_stop(), name="wake-on-stop")
        backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        try:
            while not self._scope.stopping.is_set():
                began = time.monotonic()
                try:
                    await self._confirmers_joined()
                    await self._epoch()
                except (HeadraceError, NatsError, psycopg.Error) as error:
                    if isinstance(error, HeadraceError) and not error.retry:
                        raise
                    # It ran for a while, so this is a new failure, not the repetition of the last
                    # one.
                    if time.monotonic() - began > BACKOFF_S_MAX:
                        backoff.reset()
                    await self._back_off(error, backoff)
                else:
                    backoff.reset()
        finally:
            watch.cancel()

    async def _back_off(self, error: Exception, backoff: Backoff) -> None:
        if isinstance(error, SlotBusyError | StandbyError):
            self._scope.health.stand_by("postgres", str(error))
            await self._scope.pause(jittered(STANDBY_POLL_S))
            return
        # A bus failure is reported separately.
        self._scope.health.block("bus" if isinstance(error, NatsError) else "postgres", str(error))
        await self._scope.pause(backoff.pause_s())

    async def _wake_on_stop(self) -> None:
        await self._scope.stopping.wait()
        self._wake()

    def _wake(self) -> None:
        self._attention.set()
        if self._connection is not None:
            # It may be waiting for PostgreSQL, which knows nothing of control messages.
            self._connection.interrupt()

    async def _on_control(self, message: Msg) -> None:
        try:
            body = control.decode(message.data)
        except DecodeError as error:
            log.warning("control_message_ignored", reason=str(error))
            return
        self._heard_at = time.monotonic()
        self._stale.on_control(body)
        if isinstance(body, control.Confirm):
            self._transfers.consumed(body.epoch, body.consumed_seq, body.confirmer)
            log.debug(
                "frames_consumed",
                frame=frame_name(body.epoch, body.consumed_seq),
                by=body.confirmer,
            )
        if isinstance(body, control.Restart):
            log.info("restart_requested", confirmer=body.confirmer, reason=body.reason)
            self._holding.restarted(body.confirmer, body.reason)
            self._report_holder(time.monotonic())
        if self._sender.on_control(body, time.monotonic()) is Action.OPEN:
            self._reopen = True
        self._wake()

    async def _confirmers_joined(self) -> None:
        """Wait until the bus is connected, and all awaited confirmers have joined."""
        hello_due = 0.0
        while not self._scope.stopping.is_set() and (self._sender.missing or not self._connected()):
            missing = ", ".join(self._sender.missing) or "NATS"
            self._scope.health.block("bus", f"waiting for {missing}")
            self._let_go_of_the_late()
            self._attention.clear()
            now = time.monotonic()
            if now >= hello_due:
                # At an interval: a HELLO for every answer to it would never end, because those who
                # have joined answer too.
                hello_due = now + HELLO_INTERVAL_S
                await self._call_the_missing()
            await wait_for(self._attention, hello_due - now)
        if not self._sender.missing:
            self._scope.health.unblock("bus")

    async def _call_the_missing(self) -> None:
        # A confirmer that started before this process has announced itself to nobody: HELLO makes
        # it repeat that.
        if self._client.is_connected and self._sender.missing:
            await self._client.publish(self._frames, self._sender.hello())

    def _connected(self) -> bool:
        if self._client.is_closed:
            raise participation.BusClosedError("the NATS client gave up")
        return bool(self._client.is_connected)

    @property
    def _over(self) -> bool:
        """Whether this epoch has to end."""
        return self._reopen or self._scope.stopping.is_set()

    async def _epoch(self) -> None:
        """Stream from the slot until a new epoch is requested, the connection ends, or the service
        stops.
        """
        if self._scope.stopping.is_set():
            return
        application = self._stale.application
        connection = await ReplicationConnection.open(self._settings.postgres, application)
        try:
            identity = await connection.identify()
            forks = await connection.forks(identity.timeline)
            slot = await prepared(connection, self._settings, self._stale, identity.database)
            # From here on the slot is ours: PostgreSQL lets only one connection read it.
            await connection.start(self._settings.source.slot, self._settings.source.publication)
            self._connection = connection
            self._silence.begin(application)
            await self._open(replace(identity, lsn=await self._log_end(identity.lsn)), slot, forks)
            await self._stream(connection)
            if self._scope.stopping.is_set():
                await self._drain(connection)
        finally:
            self._connection = None
            self._sender.close()
            connection.close()

    async def _log_end(self, known: int) -> int:
        """The end of PostgreSQL's WAL, queried while we hold the slot.

        An earlier answer may be older than changes that another reader of the slot passed on before
        it released it.
        """
        try:
            connection = await ReplicationConnection.open(
                self._settings.postgres, f"headrace {SERVICE}"
            )
        except PostgresError as error:
            if "max_wal_senders" not in str(error):
                raise
            # Without a walsender there was no other reader either.
            return known
        try:
            return (await connection.identify()).lsn
        finally:
            connection.close()

    async def _open(
        self, identity: SystemIdentity, slot: SlotState, forks: tuple[tuple[int, int], ...]
    ) -> None:
        self._reopen = False
        if self._first_confirmed is None:
            self._first_confirmed = slot.confirmed_lsn
        opening = Opening(
            sessions=self._sender.sessions(),
            slot=self._settings.source.slot,
            database=identity.database,
            system_id=identity.system_id,
            timeline=identity.timeline,
            confirmed_lsn=slot.confirmed_lsn,
            current_lsn=identity.lsn,
            forks=forks,
            # PostgreSQL forgets its statistics in a crash.
            slot_used=slot.used or slot.confirmed_lsn > self._first_confirmed,
        )
        data = self._sender.begin(opening, clock_ns=time.time_ns(), now=time.monotonic())
        await self._send(data)
        failpoint("wal_reader.after_open")
        self._epochs += 1
        # From here PostgreSQL sends everything again, keepalives too: on another timeline even LSNs
        # that go back.
        self._reported_lsn = slot.confirmed_lsn
        self._received = self._reported_lsn
        self._scope.health.started()
        self._scope.health.unblock("postgres")
        log.info("epoch_opened", epoch=self._sender.epoch, confirmed=format_lsn(slot.confirmed_lsn))

    async def _send(self, data: bytes) -> None:
        failpoint("wal_reader.before_frame")
        self._stats.count("frames_sent")
        self._transfers.sent(self._sender.epoch, self._sender.seq, len(data))
        log.debug(
            "frame_sent", frame=frame_name(self._sender.epoch, self._sender.seq), bytes=len(data)
        )
        await self._client.publish(self._frames, data)
        failpoint("wal_reader.after_frame")

    async def _stream(self, connection: ReplicationConnection) -> None:
        while not self._over:
            await self._keep_in_touch(connection)
            # Without credit nothing is read: the slot is the buffer, and PostgreSQL keeps the WAL
            # (docs/adr/0002).
            if self._may_send():
                messages = await connection.read(self._wait_s())
                if messages:
                    await self._pack(messages, connection)
                else:
                    await self._silence.check(connection)
            else:
                # Data that is not read can't be missed.
                self._silence.heard()
                await self._await_credit()

    def _may_send(self) -> bool:
        return self._connected() and self._sender.has_credit

    def _wait_s(self) -> float:
        return min(PING_INTERVAL_S, self._settings.bus.status_interval_s)

    async def _await_credit(self) -> None:
        self._attention.clear()
        await wait_for(self._attention, self._wait_s())

    async def _pack(self, messages: list[Message], connection: ReplicationConnection) -> None:
        """Pack the available messages, and those that arrive meanwhile, into frames; nothing
        lingers.
        """
        reply_wanted = False
        fit = self._sender.fit
        while messages:
            for message in messages:
                if isinstance(message, Keepalive):
                    reply_wanted = reply_wanted or message.reply_wanted
                    await self._pack_keepalive(message, connection)
                elif not fit(*message):
                    await self._pack_frame(*message, connection)
                else:
                    # Without waiting, nothing can have ended the epoch.
                    continue
                if self._over:
                    break
            self._note(messages)
            if self._over or not self._may_send():
                break
            messages = connection.read_now()
            # The event loop must run for the bus even under a flood of messages.
            await asyncio.sleep(0)
        for data in self._sender.flush():
            await self._send(data)
        # PostgreSQL asks before it ends a connection that it believes dead. Once for all messages
        # is enough.
        if reply_wanted:
            await self._report_confirmed(connection)

    async def _pack_keepalive(
        self, keepalive: Keepalive, connection: ReplicationConnection
    ) -> None:
        # An empty entry carries a keepalive's LSN to the confirmers. Without it, the slot of an
        # idle publication would hold the WAL of all other tables.
        if keepalive.lsn > self._received:
            self._received = keepalive.lsn
            for data in self._sender.add(keepalive.lsn, b""):
                if not await self._send_in_credit(data, connection):
                    return

    def _note(self, messages: list[Message]) -> None:
        """Count all messages of one read: counting each message would cost more than packing it."""
        self._silence.heard()
        data = [message for message in messages if not isinstance(message, Keepalive)]
        if data:
            self._received = max(self._received, data[-1][0])
            self._stats.count("wal_messages", len(data))
            self._stats.count("wal_bytes", sum([len(message) for _, message in data]))

    async def _pack_frame(
        self, lsn: int, message: bytes, connection: ReplicationConnection
    ) -> None:
        """Pack a message that fills a frame."""
        for data in self._sender.add(lsn, message):
            if not await self._send_in_credit(data, connection):
                return

    async def _send_in_credit(self, data: bytes, connection: ReplicationConnection) -> bool:
        """Send a frame, then wait for credit, because one message may have many parts.

        False if the epoch has ended meanwhile: the rest of the message is void, and nothing may
        follow it.
        """
        await self._send(data)
        while not self._over and not self._may_send():
            await self._keep_in_touch(connection)
            await self._await_credit()
        return not self._over

    def _let_go_of_the_late(self) -> None:
        for name in self._sender.tick(time.monotonic()):
            self._stats.count("confirmers_dropped")
            log.warning(
                "confirmer_dropped", confirmer=name, patience_s=self._settings.archive.patience_s
            )

    def _report_holder(self, now: float) -> None:
        """A required archive may hold the slot forever: report it where it is visible."""
        lsn = max(self._reported_lsn, self._sender.confirmed_lsn)
        held = self._holding.look(
            now, lsn, self._sender.held_by, settled=self._sender.open and self._sender.settled
        )
        if held is None:
            self._scope.health.unblock("confirm")
        else:
            self._scope.health.block("confirm", f"the slot waits at {format_lsn(lsn)} for {held}")

    async def _keep_in_touch(self, connection: ReplicationConnection) -> None:
        now = time.monotonic()
        due = now - self._reported_at >= self._settings.bus.status_interval_s
        if due or self._sender.confirmed_lsn - self._reported_lsn >= STATUS_BYTES_MAX:
            await self._report_confirmed(connection)
        if now - self._pinged_at >= PING_INTERVAL_S and self._client.is_connected:
            self._pinged_at = now
            self._let_go_of_the_late()
            self._report_holder(now)
            await self._client.publish(self._frames, self._sender.ping())

    async def _report_confirmed(self, connection: ReplicationConnection) -> None:
        """Confirm to PostgreSQL what the confirmers have made durable, and nothing else."""
        # Never backward: between two epochs the confirmed LSN is 0, which means unknown.
        self._reported_lsn = max(self._reported_lsn, self._sender.confirmed_lsn)
        self._reported_at = time.monotonic()
        failpoint("wal_reader.before_status")
        await connection.status(
            # The received LSN is only for monitoring; the second one lets PostgreSQL remove WAL.
            max(self._received, self._reported_lsn),
            self._reported_lsn,
            answer=self._silence.ask(),
        )
        failpoint("wal_reader.after_status")

    async def _drain(self, connection: ReplicationConnection) -> None:
        """Stop reading, wait for confirmation of data in flight, confirm to PostgreSQL, leave."""
        deadline = time.monotonic() + self._scope.process.shutdown_timeout_s * DRAIN_SHARE
        with self._scope.waiting_for("data in flight to be confirmed"):
            while not self._sender.settled and not self._reopen and time.monotonic() < deadline:
                if self._connected():
                    await self._client.publish(self._frames, self._sender.flush_request())
                self._attention.clear()
                await wait_for(self._attention, 0.1)
                # Confirmers may have stopped first, as when the whole suite stops. Unconfirmed
                # frames are replayed.
                if time.monotonic() - self._heard_at > SILENT_CONFIRMER_S:
                    break
        await self._report_confirmed(connection)
        log.info(
            "slot_left", confirmed=format_lsn(self._reported_lsn), settled=self._sender.settled
        )
