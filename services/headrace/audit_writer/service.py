"""The audit-writer's process: one session after another, and the removal of old rows.

Promises: while the destination, the stream or the source is unavailable it waits, unready, with the
reason, and recovers automatically, however long that takes; a refusal by the destination at startup
ends the process with the remedy. Permanent losses are recorded in the table of gaps, never skipped
silently.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
from aiohttp import web
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from headrace import log as logs
from headrace.audit.destination import ClaimedError, Destination, connect
from headrace.audit.settings import AuditSettings, load_audit
from headrace.audit_writer.page import Page
from headrace.audit_writer.session import Marks, Session, opened
from headrace.audit_writer.trail import Trail
from headrace.bus import participation
from headrace.consumer import RetentionGapError, StreamMissingError, Subscription, follow
from headrace.consumer.behind import behind
from headrace.errors import HeadraceError
from headrace.metrics.exposition import CONTENT_TYPE, exposition
from headrace.postgres.connection import BROKEN
from headrace.process.health import application, serving
from headrace.process.lifecycle import Scope
from headrace.process.service import on_the_bus
from headrace.settings import Settings
from headrace.timing.backoff import Backoff

log = logs.logger("audit-writer")

SERVICE = "audit-writer"
BACKOFF_S = 0.2
BACKOFF_S_MAX = 5.0
EXPIRE_S = 600.0
LOOK_S = 5.0


async def run(scope: Scope, settings: Settings) -> None:
    audit = load_audit(os.environ)
    trail = Trail(scope.health, settings) if audit.health_ready else None

    async def work(client: Client) -> None:
        if trail is not None:
            await trail.listen(client)
        writer = AuditWriter(scope, settings, audit, client)
        if audit.keep_days is not None:
            scope.spawn("expire", writer.expire(audit.keep_days))
        scope.spawn("behind", writer.look())
        await writer.run()

    async with _zemis_ports(scope, settings, audit, trail):
        await on_the_bus(scope, settings, work, Page(settings, audit).extend)


@dataclass(eq=False)
class AuditWriter:
    _scope: Scope
    _settings: Settings
    _audit: AuditSettings
    _client: Client
    _worked: bool = False
    # Of the current session.
    _wrote: bool = False
    # The current session, or the last one.
    _session: Session | None = None

    async def run(self) -> None:
        backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        while not self._scope.stopping.is_set():
            self._wrote = False
            try:
                async with self._destination() as destination:
                    # Two writers would write every row twice: one of them is refused.
                    await destination.claim()
                    await destination.prepare()
                    await self._follow(destination)
            except (HeadraceError, NatsError, asyncpg.PostgresError, *BROKEN) as error:
                self._blocked(error)
                # A session that has committed something was no failed attempt.
                if self._wrote:
                    backoff.reset()
                await self._scope.pause(backoff.pause_s())

    @contextlib.asynccontextmanager
    async def _destination(self) -> AsyncIterator[Destination]:
        # Otherwise a server that disappeared would be waited for forever.
        timeout_s = self._audit.commit_timeout_s
        connection = await connect(
            self._audit, self._settings.postgres, f"headrace {SERVICE}", timeout_s
        )
        try:
            yield Destination(connection, self._audit, self._settings.source.slot)
        finally:
            connection.terminate()

    async def _follow(self, destination: Destination) -> None:
        """One session."""
        slot = self._settings.source.slot
        session = await opened(self._scope, self._audit, self._settings.postgres, destination, slot)
        self._session = session
        streams = self._settings.streams
        subscription = Subscription(streams.cdc, state_bucket=streams.state)
        try:
            async with follow(self._client, subscription, Marks(destination, slot)) as consumer:
                self._ready(destination)
                await session.run(consumer)
        except RetentionGapError as gap:
            await self._note(destination, gap)
        finally:
            self._wrote = session.worked

    def _ready(self, destination: Destination) -> None:
        for part in ("destination", "stream", "audit"):
            self._scope.health.unblock(part)
        self._scope.health.started()
        self._worked = True
        log.info(
            "audit_follows",
            position=str(destination.state.position),
            stream_seq=destination.state.stream_seq,
        )

    async def _note(self, destination: Destination, gap: RetentionGapError) -> None:
        log.error("gap", reason=str(gap))
        self._scope.health.stats.count("audit_gaps")
        # The last committed state: the session that ended may have been ahead of it.
        await destination.prepare()
        if gap.rewritten:
            # Another stream, or an older copy that was continued: read from its start, and compare
            # positions.
            await destination.note_gap(
                0, f"the stream was recreated; its events from {gap.first_lost} on may be lost"
            )
        else:
            reason = f"the stream discarded {gap.first_lost} to {gap.last_lost} unread"
            if gap.damaged:
                reason = str(gap)
            await destination.note_gap(gap.last_lost, reason)

    def _blocked(self, error: Exception) -> None:
        """An error at startup ends the process with its remedy; once it has worked, errors are
        waited for.

        So is a missing stream: a suite that is just starting may create it.
        """
        waited_for = self._worked or isinstance(error, StreamMissingError)
        if isinstance(error, HeadraceError) and not error.retry and not waited_for:
            raise error
        if self._client.is_closed:
            raise participation.BusClosedError("the NATS client gave up") from error
        stream = isinstance(error, NatsError | APIError | StreamMissingError)
        if isinstance(error, asyncpg.PostgresError):
            message = str(error.args[0])
        else:
            message = str(error)
        if not message and isinstance(error, TimeoutError):
            message = "it did not answer in time"
        part = "stream" if stream else "destination"
        if isinstance(error, ClaimedError):
            self._scope.health.stand_by(part, message)
        else:
            self._scope.health.block(part, message or type(error).__name__)
        self._scope.health.stats.count("audit_recoveries")

    async def look(self) -> None:
        """Measure now and then how far the trail is behind the stream, even while its destination
        is unavailable.
        """
        stats = self._scope.health.stats
        stream = self._settings.streams.cdc
        while not self._scope.stopping.is_set():
            if self._session is not None and self._client.is_connected:
                # Only a figure: the session reports that the stream does not answer.
                with contextlib.suppress(NatsError, OSError):
                    found = await behind(
                        self._client.jetstream(), stream, self._session.settled_seq
                    )
                    stats.set("audit_behind_messages", found.messages)
                    stats.set("audit_behind_seconds", found.age_s)
            await self._scope.pause(LOOK_S)

    async def expire(self, keep_days: int) -> None:
        """Remove old rows, as long as there are any and then now and then."""
        while not self._scope.stopping.is_set():
            removed = 0
            with contextlib.suppress(HeadraceError, asyncpg.PostgresError, *BROKEN):
                # A separate connection: a long DELETE must not delay the trail.
                async with self._destination() as destination:
                    removed = await destination.expire(keep_days)
            self._scope.health.stats.count("audit_expired", removed)
            # Removed in pieces: it continues soon while there is more.
            await self._scope.pause(1.0 if removed else EXPIRE_S)


@contextlib.asynccontextmanager
async def _zemis_ports(
    scope: Scope, settings: Settings, audit: AuditSettings, trail: Trail | None
) -> AsyncIterator[None]:
    """Serve the ports of HEALTH_PORT and METRICS_PORT, in addition to the service's own."""

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def metrics(_: web.Request) -> web.Response:
        body = exposition({SERVICE: scope.health.refreshed()}, settings.source.slot)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async with contextlib.AsyncExitStack() as stack:
        host = settings.process.http_host
        for port in {audit.health_port, audit.metrics_port} - {None}:

            def extend(app: web.Application, port: int | None = port) -> None:
                app.router.add_get("/metrics", metrics)
                if port == audit.health_port:
                    app.router.add_get("/{path:.*}", alive if trail is None else trail.answer)

            assert port is not None, "taken out above"
            await stack.enter_async_context(
                serving(application(scope.health, settings.source.slot, extend), host, port)
            )
        yield
