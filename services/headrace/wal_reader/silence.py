"""Detects half-open connections by silence, on PostgreSQL's side and on the bus.

Promises never to end a walsender that works: decoding a large transaction is silent too, for as
long as it takes. Ends only a walsender of this suite that is idle although it was asked to answer,
or whose reader nobody follows. Never ends one of another suite or program: it may serve a NATS that
can't be reached from here.
"""

from __future__ import annotations

import asyncio
import time

from headrace import log as logs
from headrace.bus import control
from headrace.errors import HeadraceError, describe
from headrace.postgres.connection import PostgresUnreachableError
from headrace.postgres.replication import ReplicationConnection
from headrace.postgres.replication_errors import SlotBusyError
from headrace.postgres.slot_reader import IDENTITY, REMEDY, SlotReader, application_name
from headrace.settings import Settings

log = logs.logger("wal-reader")

APPLICATION = "headrace wal-reader probe"
# From then on PostgreSQL is asked to answer, and so long that may take before its walsender is
# looked at.
ASK_AFTER_S = 3.0
ANSWER_S = 7.0
PROBE_INTERVAL_S = 5.0
# A slot is taken from its walsender if confirmers ask for frames and get none for this long.
STALE_S = 8.0
# A slot that another suite read is taken only after this long without a reader: that suite may be
# restarting.
FOREIGN_AWAY_S = 60.0


class Silence:
    """When this connection's walsender was last heard, and whether it still exists."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # The name of this connection in pg_stat_activity.
        self._application = ""
        self._heard_at = time.monotonic()
        self._probed_at = self._heard_at
        # When PostgreSQL was first asked for a sign of life, since the last one came; None if it
        # wasn't.
        self._asked_at: float | None = None

    def begin(self, application: str) -> None:
        """A new connection streams, under this name."""
        self._application = application
        self._probed_at = time.monotonic()
        self.heard()

    def heard(self) -> None:
        self._heard_at = time.monotonic()
        self._asked_at = None

    def ask(self) -> bool:
        """Whether the caller should now ask PostgreSQL for a sign of life."""
        now = time.monotonic()
        if now - self._heard_at <= ASK_AFTER_S:
            return False
        self._asked_at = self._asked_at or now
        return True

    async def check(self, connection: ReplicationConnection) -> None:
        """Raise if the connection is dead; ends the walsender that it left behind."""
        now = time.monotonic()
        # A process that was suspended has heard nothing, and asked nothing either.
        if (
            self._asked_at is None
            or now - self._asked_at < ANSWER_S
            or now - self._probed_at < PROBE_INTERVAL_S
        ):
            return
        if not await self._is_dead(connection.backend_pid):
            self._probed_at = time.monotonic()
            return
        raise PostgresUnreachableError(
            "the replication connection is dead: nothing was received for "
            f"{now - self._heard_at:.0f} s"
        )

    async def _is_dead(self, pid: int) -> bool:
        try:
            async with asyncio.timeout(PROBE_INTERVAL_S):
                probe = await ReplicationConnection.open(self._settings.postgres, APPLICATION)
                try:
                    reader = await probe.slot_reader(self._settings.source.slot)
                    # Idle means that the walsender waits for its client, so it isn't decoding. It
                    # was asked for an answer and has sent none that arrived: the connection between
                    # us is dead, though both ends believe in it.
                    if reader is not None and reader.idle and self._is_ours(reader, pid):
                        await probe.end_backend(pid)
                        return True
                    # The walsender is gone already, and only this end has not noticed.
                    return reader is None or reader.pid != pid
                finally:
                    probe.close()
        except (HeadraceError, TimeoutError) as error:
            # An unreachable server says nothing about the connection; ask again.
            log.info("walsender_not_visible", reason=describe(error))
            return False

    def _is_ours(self, reader: SlotReader, pid: int) -> bool:
        """After a restart, PostgreSQL may have given the pid to another process."""
        return reader.pid == pid and reader.application == self._application


class StaleSlot:
    """Whether the slot may be read: nothing else reads it, or its reader is ours and nobody follows
    it.
    """

    def __init__(self, settings: Settings) -> None:
        self._slot = settings.source.slot
        # When a confirmer last confirmed, which means that some wal-reader feeds it; when one last
        # asked for frames.
        self._fed_at = 0.0
        self._asked_at = 0.0
        # Since when the slot was found to be read by another connection of this suite.
        self._busy_since: float | None = None
        # The last reader of another suite or program, and when it was seen.
        self._foreign: tuple[SlotReader, float] | None = None
        # Empty with a publisher that is older than the identity.
        self._identity = ""
        # With a new state bucket a suite gets a new identity: what this process opened before still
        # belongs to this suite.
        self._known: set[str] = set()

    @property
    def application(self) -> str:
        """The application name of a connection that reads the slot."""
        return application_name(self._identity)

    def on_control(self, body: control.Control) -> None:
        """A confirmer that confirms is fed by some wal-reader; one that joins or restarts asks for
        one.
        """
        if isinstance(body, control.Confirm):
            self._fed_at = time.monotonic()
            return
        self._asked_at = time.monotonic()
        if IDENTITY.fullmatch(body.suite):
            self._identity = body.suite
            self._known.add(body.suite)

    async def admit(self, connection: ReplicationConnection) -> None:
        """Raise if another suite or program reads the slot, or did just now.

        A reader of this suite is ended if confirmers get no frames all the while; else PostgreSQL
        keeps us waiting.
        """
        reader = await connection.slot_reader(self._slot)
        self._leave_to_others(reader)
        if reader is None:
            self._busy_since = None
            return
        if reader.belongs_to(self._identity) and self._is_stale():
            # Each ended walsender starts a new observation: its successor must have the whole time
            # to feed the confirmers.
            self._busy_since = None
            log.warning("stale_walsender_ended", pid=reader.pid, silent_s=STALE_S)
            await connection.end_backend(reader.pid)

    def _leave_to_others(self, reader: SlotReader | None) -> None:
        """Raise for another suite's reader, even while it may be restarting: taking its slot would
        lose its changes.
        """
        now = time.monotonic()
        if reader is not None and all(reader.is_foreign(known) for known in {*self._known, ""}):
            self._foreign = reader, now
            raise SlotBusyError(
                f'replication slot "{self._slot}" is read by {reader}', remedy=REMEDY
            )
        if reader is not None or self._foreign is None:
            self._foreign = None
            return
        other, seen_at = self._foreign
        if now - seen_at > FOREIGN_AWAY_S:
            self._foreign = None
            return
        raise SlotBusyError(
            (
                f'replication slot "{self._slot}" was read {now - seen_at:.0f} s ago by '
                f"{other}, which may be restarting"
            ),
            remedy=f"{REMEDY} It is taken when no process has read it for {FOREIGN_AWAY_S:.0f} s.",
        )

    def _is_stale(self) -> bool:
        now = time.monotonic()
        self._busy_since = self._busy_since or now
        # Both are needed: confirmers that ask, so that somebody wants the frames, and no Confirm
        # for as long as a reader has held the slot.
        hungry = now - self._asked_at < STALE_S / 2
        return hungry and now - max(self._fed_at, self._busy_since) >= STALE_S
