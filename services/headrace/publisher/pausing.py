"""Pauses and resumes publishing when `headrace pause` and `headrace resume` request it.

While paused it publishes nothing and gives no credit: messages in flight are acknowledged, written
down and confirmed, then the slot retains the rest. It keeps its lease. When resumed, it starts like
after any restart, from the stream's tail. Promises: the record is read before the first event is
published, so a restart does not end a pause; a record that can't be read, or isn't signed as
required, changes nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.bus import subjects
from headrace.errors import describe
from headrace.process.lifecycle import Scope
from headrace.settings import Settings
from headrace.suite import pause
from headrace.suite.pause import Pause, PauseRefusedError
from headrace.timing.waits import wait_for

log = logs.logger("publisher")

# The notification comes over the bus, which may lose it.
LOOK_INTERVAL_S = 5.0
RETRY_S = 0.5


@dataclass(eq=False)
class Pausing:
    _scope: Scope
    _settings: Settings
    _client: Client
    _state: KeyValue
    _look: asyncio.Event = field(default_factory=asyncio.Event)
    # Neither is set before the record was read: nothing may be published until then.
    paused: asyncio.Event = field(default_factory=asyncio.Event)
    _going: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Follow the pause record for the service's lifetime."""
        await self._client.subscribe(subjects.pause(self._settings.source.slot), cb=self._wake)
        while not self._scope.stopping.is_set():
            # Cleared before the record is read: a notification in between must not be lost.
            self._look.clear()
            wait_s = await self._read()
            await self._scope.until_stopping(wait_for(self._look, wait_s))

    async def until_going(self) -> None:
        """Wait until it is known that the suite isn't paused, or the service stops; nothing is
        published meanwhile.
        """
        if self.paused.is_set():
            self._scope.health.stats.set("paused", 1)
        await self._scope.until_stopping(self._going.wait())

    async def _wake(self, _: Msg) -> None:
        self._look.set()

    async def _read(self) -> float:
        """Read the record once; returns the time until it is read again without a notification."""
        try:
            found = await pause.read(self._state, self._settings)
        except PauseRefusedError as error:
            log.warning("pause_refused", reason=str(error))
            # Not paused by an authorized record: without an earlier valid one, publishing
            # continues.
            if not self.paused.is_set():
                self._going.set()
            return LOOK_INTERVAL_S
        except (NatsError, TimeoutError) as error:
            log.debug("pause_unknown", reason=describe(error))
            return RETRY_S
        self._obey(found)
        return LOOK_INTERVAL_S

    def _obey(self, found: Pause) -> None:
        if found.paused and not self.paused.is_set():
            log.warning("paused", by=found.by, reason=found.reason)
            self._going.clear()
            self.paused.set()
            self._scope.health.block("paused", found.told)
        elif not found.paused:
            if self.paused.is_set():
                log.info("resumed", by=found.by)
            self.paused.clear()
            self._going.set()
            self._scope.health.unblock("paused")
            self._scope.health.stats.set("paused", 0)
