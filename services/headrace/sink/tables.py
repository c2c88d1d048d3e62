"""A sink whose target is a database: a mirror, instructed and shown like any other sink.

Promises: one machinery and one book-keeping with `headrace mirror`. Rows and position are committed
together, and a table that the target refuses is parked while the others continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, field, replace

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.errors import describe
from headrace.jetstream.state import LostRaceError
from headrace.mirror import Mirror, Streams
from headrace.mirror.scope import MirrorScope
from headrace.mirror.target import ReadableTarget, TargetAwayError, target_of
from headrace.mirror.watching import judge, measure
from headrace.process.lifecycle import Scope
from headrace.settings import Settings
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.control import Control, control_key, durable_name

log = logs.logger("sink")

LOOK_S = 1.0
MEASURE_S = 5.0


@dataclass(eq=False)
class TablesWorker:
    """Runs a sink's mirror, and follows an operator's instructions."""

    scope: Scope
    settings: Settings
    client: Client
    state: KeyValue
    sink: SinkConfiguration
    control: Control = field(init=False)
    mirror: Mirror = field(init=False)
    target: ReadableTarget = field(init=False)
    # Set while the mirror must not run: a stop, a pause, a reset.
    halt: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        source = self.settings.source.slot
        self.control = Control(self.state, control_key(source, self.sink.name))
        address = self.sink.address(os.environ)
        self.target = target_of(address, self.sink.secrets(os.environ))
        names = self.settings.streams
        self.mirror = Mirror(
            self.client,
            self.target,
            streams=Streams(names.cdc, names.init, names.schemas, names.state),
            scope=MirrorScope(
                self.sink.takes, durable_name(source, self.sink.name), self.sink.rules
            ),
        )
        # So that the process shows the mirror's figures under their own names.
        self.mirror.stats = self.scope.health.stats

    async def run(self) -> None:
        """Run until the service stops; a pause ends the mirror at the end of a transaction."""
        self.scope.spawn("judge", judge(self.scope.health, self.scope.stopping, self.mirror))
        self.scope.spawn("figures", measure(self.scope.stopping, self.mirror))
        try:
            while not self.scope.stopping.is_set():
                if await self._may_run():
                    await self.mirror.run(self.halt)
                else:
                    await self.scope.pause(LOOK_S)
        finally:
            await self.target.close()

    async def _may_run(self) -> bool:
        """Whether nobody has paused the sink; what a reset asks for is noted before that."""
        health = self.scope.health
        try:
            found = await self.control.read()
            if found.reset is not None:
                # Stored before the instruction is removed: a process that dies in between repeats
                # it, and forgets nothing.
                await self.mirror.copy_again()
                log.warning("sink_reset", sink=self.sink.name, to=str(found.reset))
                await self.control.change(lambda now: replace(now, reset=None))
        except (NatsError, TimeoutError, LostRaceError, TargetAwayError) as error:
            health.block("instructions", describe(error))
            return False
        health.unblock("instructions")
        if found.paused:
            health.block("paused", found.reason or "paused by an operator")
            return False
        health.unblock("paused")
        self.halt.clear()
        # A stop that came before the event was cleared must not be lost.
        if self.scope.stopping.is_set():
            self.halt.set()
        return True

    async def watch(self) -> None:
        """Halt the mirror when there is an instruction, or the service stops."""
        while not self.scope.stopping.is_set():
            with contextlib.suppress(NatsError, TimeoutError):
                found = await self.control.read()
                if found.paused or found.reset:
                    self.halt.set()
            await self.scope.pause(LOOK_S)
        self.halt.set()

    async def measure(self) -> None:
        """Show the mirror's figures under the names of all sinks, too."""
        stats = self.scope.health.stats
        while not self.scope.stopping.is_set():
            for name in ("behind_messages", "behind_seconds"):
                stats.set(f"sink_{name}", stats.number(f"mirror_{name}"))
            await self.scope.pause(MEASURE_S)
