"""What silence means, on PostgreSQL's side and on the bus: a connection that is dead without either end being told.

Promises never to end a walsender that works: decoding a large transaction is silent too, for as long as it takes. Only
one that waits idly, though it was asked to answer, or one whose reader nobody follows, is ended.
"""

from __future__ import annotations

import asyncio
import time

from headrace import log as logs
from headrace.bus import control
from headrace.errors import HeadraceError
from headrace.postgres.connection import PostgresUnreachableError
from headrace.postgres.replication import ReplicationConnection
from headrace.settings import Settings

log = logs.logger("wal-reader")

APPLICATION = "headrace wal-reader probe"
# From then on PostgreSQL is asked to answer, and so long that may take before its walsender is looked at.
ASK_AFTER_S, ANSWER_S = 3.0, 7.0
PROBE_INTERVAL_S = 5.0
# A slot is taken from its walsender when the confirmers ask for frames and get none for so long.
STALE_S = 8.0


class Silence:
    """When this connection's walsender was heard last, and whether it is still there."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._heard_at = self._probed_at = time.monotonic()
        self._asked_at: float | None = None

    def begin(self) -> None:
        """A new connection streams."""
        self._probed_at = time.monotonic()
        self.heard()

    def heard(self) -> None:
        self._heard_at = time.monotonic()
        self._asked_at = None

    def ask(self) -> bool:
        """Whether PostgreSQL is to be asked for a sign of life, which the caller then does."""
        now = time.monotonic()
        if now - self._heard_at <= ASK_AFTER_S:
            return False
        self._asked_at = self._asked_at or now
        return True

    async def check(self, connection: ReplicationConnection) -> None:
        """Raise when the connection is dead; the walsender that it left behind is ended."""
        now = time.monotonic()
        # A process that was asleep has heard nothing, and asked nothing either.
        if self._asked_at is None or now - self._asked_at < ANSWER_S or now - self._probed_at < PROBE_INTERVAL_S:
            return
        if not await self._is_dead(connection.backend_pid):
            self._probed_at = time.monotonic()
            return
        raise PostgresUnreachableError(
            f"the replication connection is dead: nothing came for {now - self._heard_at:.0f} s"
        )

    async def _is_dead(self, pid: int) -> bool:
        try:
            async with asyncio.timeout(PROBE_INTERVAL_S):
                probe = await ReplicationConnection.open(self._settings.postgres, APPLICATION)
                try:
                    reader = await probe.slot_reader(self._settings.source.slot)
                    if reader is not None and reader.pid == pid and reader.idle:
                        await probe.end_backend(pid)
                        return True
                    return reader is None or reader.pid != pid
                finally:
                    probe.close()
        except (HeadraceError, TimeoutError) as error:
            # A server out of reach says nothing about the connection; it is asked again.
            log.info("walsender_not_visible", reason=str(error) or type(error).__name__)
            return False


class StaleSlot:
    """Whether the walsender that holds our slot has a reader behind it: its confirmers would be fed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fed_at = self._asked_at = 0.0
        self._busy_since: float | None = None

    def on_control(self, body: control.Control) -> None:
        """A confirmer that confirms is fed by some wal-reader; one that joins or restarts asks for it."""
        if isinstance(body, control.Confirm):
            self._fed_at = time.monotonic()
        else:
            self._asked_at = time.monotonic()

    def free(self) -> None:
        """The slot was ours."""
        self._busy_since = None

    async def busy(self) -> None:
        """The slot is somebody else's: end its walsender if confirmers go hungry all the while."""
        now = time.monotonic()
        self._busy_since = self._busy_since or now
        hungry = now - self._asked_at < STALE_S / 2
        if not hungry or now - max(self._fed_at, self._busy_since) < STALE_S:
            return
        self._busy_since = None
        async with asyncio.timeout(PROBE_INTERVAL_S):
            probe = await ReplicationConnection.open(self._settings.postgres, APPLICATION)
            try:
                reader = await probe.slot_reader(self._settings.source.slot)
                if reader is not None:
                    log.warning("stale_walsender_ended", pid=reader.pid, silent_s=STALE_S)
                    await probe.end_backend(reader.pid)
            finally:
                probe.close()
