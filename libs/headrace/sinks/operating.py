"""The acts of operators on sinks, the same for `headrace sinks` and the console: look, pause,
resume, reset, deliver parked records again.

Promises: an instruction is stored in NATS before it is reported, so a process that starts later
follows it too. Never writes to a sink's target: the sink's own process does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit, urlunsplit

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from nats.js.kv import KeyValue

from headrace.errors import HeadraceError
from headrace.settings import Settings
from headrace.sinks.configuration import ConfigurationError, SinkConfiguration
from headrace.sinks.control import Control, Instructions, ResetTo, control_key, durable_name
from headrace.sinks.dead_letters import DeadLetters
from headrace.sinks.targets import is_database, promise_to

PAUSED = "paused by an operator"


@dataclass(frozen=True, slots=True)
class StreamRead:
    """How far a sink's consumer is."""

    # Messages that the sink has not committed.
    behind: int
    # The sequence up to which it has acknowledged all messages.
    acknowledged: int


@dataclass(frozen=True, slots=True)
class SinkOperator:
    """The sinks of one suite."""

    js: JetStreamContext
    state: KeyValue
    settings: Settings

    @property
    def letters(self) -> DeadLetters:
        """The parked records."""
        return DeadLetters(self.js, self.settings.streams.parked, self.settings.source.slot)

    async def instructions(self, name: str) -> Instructions:
        """The last instructions to a sink."""
        return await self._control(name).read()

    async def read_up_to(self, name: str) -> StreamRead | None:
        """How far a sink has read the stream; None if it has never run."""
        durable = durable_name(self.settings.source.slot, name)
        try:
            info = await self.js.consumer_info(self.settings.streams.cdc, durable)
        except NotFoundError:
            return None
        behind = int(info.num_pending or 0) + int(info.num_ack_pending or 0)
        return StreamRead(behind, int(info.ack_floor.stream_seq) if info.ack_floor else 0)

    async def pause(self, name: str, reason: str = PAUSED) -> None:
        """Store that a sink is to stop at the end of a transaction."""
        await self._control(name).pause(reason)

    async def resume(self, name: str) -> None:
        """Store that a sink is to continue where it was."""
        await self._control(name).resume()

    async def reset(self, sink: SinkConfiguration, to: ResetTo) -> None:
        """Store that a sink is to forget its position."""
        check_reset(sink, to)
        await self._control(sink.name).change(lambda found: replace(found, reset=to))

    async def deliver(self, name: str, record_ids: Sequence[str]) -> None:
        """Store that a sink is to deliver parked records."""
        await self._control(name).change(
            lambda found: replace(found, replay=tuple(dict.fromkeys((*found.replay, *record_ids))))
        )

    def _control(self, name: str) -> Control:
        return Control(self.state, control_key(self.settings.source.slot, name))


def check_reset(
    sink: SinkConfiguration, to: ResetTo, environ: Mapping[str, str] = os.environ
) -> None:
    """Raise if a sink can't continue there."""
    if to is not ResetTo.SNAPSHOT and is_database(sink.address(environ)):
        raise ConfigurationError(
            f"sink {sink.name!r} is a copy of tables, which can't begin in the middle",
            remedy="Use `--to snapshot`, which copies the tables again.",
        )


def promise_text(sink: SinkConfiguration) -> str:
    """The promise of the sink's class; empty if its address is a secret or can't be used here."""
    try:
        return str(promise_to(sink.to))
    except (HeadraceError, ImportError):
        return ""


def shown_address(to: str) -> str:
    """A target's address without what may be a secret: user, password, query."""
    parts = urlsplit(to)
    if not parts.scheme or not parts.netloc:
        # `env:NAME`, `python:package:Class`, `sqlite:///path`; a query may still follow.
        return to.partition("?")[0]
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
