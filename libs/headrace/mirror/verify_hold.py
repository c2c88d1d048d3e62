"""Holds a mirror for a moment, so that `headrace verify` finds it at a known position.

A request on the mirror's own core subject holds it where it is; a second one lets it continue up to
an LSN, and no further; a third one, or the requested time, ends the hold. A dead verifier holds
nobody for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from nats.aio.client import Client
from nats.aio.msg import Msg

from headrace import log as logs
from headrace.bus import subjects
from headrace.errors import DecodeError
from headrace.timing.waits import wait_for

log = logs.logger("mirror")

HOLD_S_MAX = 120.0


@dataclass(slots=True)
class VerifyHold:
    """`lsn`: no transaction that committed at or after it is applied; 0 stops immediately, None
    holds nothing.
    """

    lsn: int | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _until: float = 0.0

    def set(self, lsn: int | None, for_s: float) -> None:
        self.lsn = lsn
        # Bounded: a verifier that dies must not hold up the mirror for long.
        self._until = time.monotonic() + min(for_s, HOLD_S_MAX)
        self.stopped.clear()
        self.changed.set()

    def stops(self, lsn: int) -> bool:
        """Whether a transaction that committed there must wait."""
        if self.lsn is not None and time.monotonic() >= self._until:
            log.warning("hold_ended", reason="its time is over")
            self.lsn = None
        return self.lsn is not None and lsn >= self.lsn

    async def wait(self, wait_s: float) -> None:
        """Wait until something about the hold changes, or a little while."""
        # A change from before this wait has been heeded already.
        self.changed.clear()
        self.stopped.set()
        await wait_for(self.changed, wait_s)

    @contextlib.asynccontextmanager
    async def served(self, client: Client, identity: str) -> AsyncIterator[None]:
        """Listen to requests."""
        subscription = await client.subscribe(subjects.hold(identity), cb=self._heard)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                await subscription.unsubscribe()

    async def _heard(self, message: Msg) -> None:
        try:
            body = json.loads(message.data)
            lsn = body["lsn"]
            for_s = float(body["for_s"])
        except (ValueError, KeyError, TypeError) as error:
            log.warning("hold_not_understood", error=type(DecodeError(str(error))).__name__)
            return
        self.set(None if lsn is None else int(lsn), for_s)
        # The verifier takes its snapshot only after this answer: nothing is applied from then on.
        if lsn == 0:
            await wait_for(self.stopped, for_s)
        if message.reply:
            await message.respond(json.dumps({"stopped": self.stopped.is_set()}).encode())
