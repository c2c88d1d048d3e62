"""The simulation's nats-server for tests on virtual time: real clients above a simulated wire."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, cast
from unittest import mock

from nats.js import JetStreamContext
from nats.js.kv import KeyValue

from headrace.jetstream import provisioning
from headrace.settings import Settings
from tests.simulation.client import SimClient, list_keys, watch
from tests.simulation.clockwork import VirtualLoop
from tests.simulation.server import Server
from tests.simulation.stream import Stored, Stream


@dataclass
class SimulatedNats:
    """A server with a suite's streams and buckets."""

    server: Server
    settings: Settings

    def client(self) -> SimClient:
        made = SimClient(self.server, None, copy_context())
        made.open()
        return made

    def jetstream(self) -> JetStreamContext:
        return self.client().jetstream()

    async def state(self) -> KeyValue:
        """The suite's state bucket."""
        return await self.jetstream().key_value(self.settings.streams.state)

    @property
    def cdc(self) -> Stream:
        return self.server.streams[self.settings.streams.cdc]

    @property
    def stored(self) -> list[Stored]:
        """The messages of the stream of changes."""
        return list(self.cdc.messages.values())


@asynccontextmanager
async def simulated_nats(settings: Settings) -> AsyncIterator[SimulatedNats]:
    """For a test with `on_virtual_time`."""
    loop = cast("Any", asyncio.get_running_loop())
    assert isinstance(loop, VirtualLoop)
    server = Server(loop, random.Random(0))
    for config in provisioning.declared(settings.streams):
        server._create(config.as_dict())  # as `headrace init`
    with (
        mock.patch.object(KeyValue, "watch", watch),
        mock.patch.object(KeyValue, "keys", list_keys),
    ):
        yield SimulatedNats(server, settings)
