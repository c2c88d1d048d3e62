"""The console's process: shows the suite, and acts for callers with the role.

Promises: answers from its first moment to its last, with what is known and since when; holds no
state that matters, and nothing of the suite depends on it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from aiohttp import web
from nats.aio.client import Client
from nats.errors import Error as NatsError

from headrace import log as logs
from headrace.audit.settings import load_audit
from headrace.console import assets, endpoints
from headrace.console.access import Caller, Role, access_of
from headrace.console.acts import ActsLog
from headrace.console.audit_answers import AuditAnswers
from headrace.console.backups import BackupAnswers
from headrace.console.cells import Redaction
from headrace.console.drafts import Drafts
from headrace.console.endpoints import ENDLESS, ApiEndpoint, Handler
from headrace.console.exports import Exports
from headrace.console.guard import CALLER, Guard
from headrace.console.identity import SignIn
from headrace.console.lake import LakeView
from headrace.console.last_known import FAILURES
from headrace.console.letters import LetterActs
from headrace.console.live import LiveRing
from headrace.console.liveness import ANSWER_S, NO_ANSWER
from headrace.console.operations import Operations
from headrace.console.plans import Plans
from headrace.console.problem import ProblemError
from headrace.console.reading import EventReader
from headrace.console.sessions import Sessions
from headrace.console.sink_lsns import SinkLsns
from headrace.console.sinks import Sinks
from headrace.console.snapshots import SnapshotList
from headrace.console.sql import SqlRuns
from headrace.console.sse import Live
from headrace.console.suite_answers import SuiteAnswers
from headrace.console.suite_view import SuiteView
from headrace.console.system import System
from headrace.console.tables import Tables
from headrace.console.trace import Tracing
from headrace.errors import SettingError, describe
from headrace.http.limits import ENDLESS_PATHS
from headrace.metrics.counters import Counters
from headrace.process.lifecycle import Scope
from headrace.process.service import on_the_bus
from headrace.settings import Settings

log = logs.logger("console")

RETRY_S = 1.0
PAUSE_S = 3.0


async def run(scope: Scope, settings: Settings) -> None:
    await ConsoleParts(scope, settings).run()


class ConsoleParts:
    """The parts of the service, and every endpoint that they serve."""

    def __init__(self, scope: Scope, settings: Settings) -> None:
        self._scope = scope
        self._settings = settings
        console = settings.console
        host = settings.process.http_host
        # Both raise before the port is open: a console that would be open to everyone never is.
        access = access_of(console, host, _text_of(console.access_file))
        redaction = _redaction(settings)
        self._sessions = Sessions()
        self._acts = ActsLog(settings)
        self._reader = EventReader(settings)
        self._sink_lsns = SinkLsns(self._reader)
        self._suite = SuiteView(settings, redaction, self._sink_lsns)
        self._ring = LiveRing(self._reader, console.ring_bytes)
        tables = Tables(settings, self._reader, self._suite)
        self._identity = SignIn(access, self._sessions, settings.source.slot)
        self._seen = SuiteAnswers(self._suite, self._reader, tables, redaction, self._acts)
        self._snapshots = SnapshotList(settings, self._reader, self._suite, redaction)
        self._system = System(settings, self._reader, self._suite, redaction)
        self._audit = AuditAnswers(settings, self._suite, redaction)
        plans = Plans(self._acts, scope.health.stats)
        self._operations = Operations(settings, self._reader, self._suite, tables, redaction, plans)
        self._sinks = Sinks(settings, self._reader, self._suite, tables, redaction, plans)
        self._tracing = Tracing(settings, self._reader, self._suite, redaction, self._sinks)
        self._letters = LetterActs(self._sinks, redaction, plans)
        self._drafts = Drafts(settings, self._sinks, plans)
        self._backups = BackupAnswers(settings, self._suite)
        self._sql = SqlRuns(settings, self._suite, redaction, self._acts)
        self._exports = Exports(
            self._reader, redaction, self._audit, self._sql, self._tracing, self._acts
        )
        self._lake = LakeView(settings, self._suite)
        self._live = Live(
            scope,
            self._suite,
            self._ring,
            redaction,
            settings.source.slot,
            console.streams_max,
            self._snapshots.document_for,
        )
        self.endpoints = self._listed()
        # From the same list as the routes: no route can be without its role.
        roles = {endpoint.place: endpoint.role for endpoint in self.endpoints}
        self._guard = Guard(access, self._sessions, host, console.hosts, roles, self._refused)

    def _listed(self) -> list[ApiEndpoint]:
        seen = self._seen
        viewer = [
            ("/overview", seen.overview),
            ("/waterline", seen.waterline),
            ("/history", seen.history),
            ("/tables", seen.tables),
            ("/tables/{token}", seen.table),
            ("/tables/{token}/schemas", seen.schemas),
            ("/events", seen.events),
            ("/events/export", self._exports.events),
            ("/events/{position}", seen.event),
            ("/events/{position}/trace", self._tracing.answer),
            ("/events/{position}/trace/export", self._exports.trace),
            ("/transactions/{lsn}", seen.transaction),
            ("/consumers", seen.consumers),
            ("/services", seen.services),
            ("/snapshots", self._snapshots.page),
            ("/sinks", self._sinks.page),
            ("/sinks/{name}", self._sinks.one),
            ("/lake", self._lake.page),
            ("/lake/tables", self._lake.tables),
            ("/backups", self._backups.page),
            ("/backups/drops", self._backups.drops),
            ("/backups/plan", self._backups.plan),
            ("/sql/catalog", self._sql.catalog),
            ("/sql/runs/{id}", self._sql.one),
            ("/sql/runs/{id}/rows", self._sql.rows),
            ("/sql/runs/{id}/export", self._exports.sql),
            ("/gaps", self._system.gaps),
            ("/parked", self._system.parked),
            ("/settings", self._system.settings),
            ("/doctor", self._system.doctor),
            ("/audit/transactions", self._audit.transactions),
            ("/audit/export", self._exports.audit),
            ("/rows/{token}/history", self._audit.history),
            ("/live", self._follow),
        ]
        return [
            ApiEndpoint("GET", "/openapi.yaml", None, endpoints.description),
            ApiEndpoint("GET", "/me", None, self._identity.me),
            ApiEndpoint("POST", "/session", None, self._identity.sign_in),
            ApiEndpoint("DELETE", "/session", None, self._identity.sign_out),
            *(ApiEndpoint("GET", path, Role.VIEWER, handler) for path, handler in viewer),
            *(
                ApiEndpoint("POST", path, Role.OPERATOR, handler)
                for path, handler in self._acting()
            ),
            # They read: the right `sql` decides, and not a role.
            ApiEndpoint("POST", "/sql/runs", Role.VIEWER, self._sql.start),
            ApiEndpoint("DELETE", "/sql/runs/{id}", Role.VIEWER, self._sql.cancel),
            ApiEndpoint("GET", "/acts", Role.ADMIN, seen.acts),
        ]

    def _acting(self) -> list[tuple[str, Handler]]:
        """The acts of operators, each of which is planned first and logged; and two previews."""
        operations = self._operations
        return [
            ("/snapshots", operations.request_snapshot),
            ("/snapshots/{id}/cancel", operations.cancel_snapshot),
            ("/suite/pause", operations.pause),
            ("/suite/resume", operations.resume),
            ("/sinks/{name}/pause", self._sinks.pause),
            ("/sinks/{name}/resume", self._sinks.resume),
            ("/sinks/{name}/reset", self._sinks.reset),
            ("/sinks/{name}/replay", self._sinks.replay),
            ("/sinks/{name}/correct", self._letters.correct),
            ("/sinks/{name}/drop", self._letters.drop),
            ("/sinks/{name}/test", self._drafts.test),
            ("/sinks/drafts", self._drafts.check),
            ("/audit/reverts", self._audit.revert),
        ]

    async def _refused(
        self, request: web.Request, caller: Caller | None, problem: ProblemError
    ) -> None:
        self._scope.health.stats.count_in("console_refusals", problem.code)
        await self._acts.note_refusal(request, caller, problem)

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        return await self._live.serve(
            request, request[CALLER], lambda: self._guard.may_continue(request)
        )

    async def run(self) -> None:
        self._scope.refreshers.append(self._refresh)
        # Before the bus: the page has to say that NATS is away, so it can't wait for it.
        self._scope.spawn("suite-view", self._suite.run(self._scope))
        self._scope.spawn("live-ring", self._ring.run(self._scope))
        await on_the_bus(self._scope, self._settings, self._work, self._extend)

    def _extend(self, app: web.Application) -> None:
        # A live stream is never finished in the time that other requests have.
        app[ENDLESS_PATHS] = frozenset({ENDLESS})
        self._guard.add(app)
        endpoints.add_all(app, self.endpoints)
        app.router.add_get("/assets/{name}", assets.asset)
        # Last, because it matches everything: a page's address is the browser's business.
        app.router.add_get("/{page:.*}", assets.document)

    async def _work(self, client: Client) -> None:
        self._reader.connect(client)
        # JetStream may come later than NATS; the pages work in the meantime.
        while not self._scope.stopping.is_set():
            try:
                await self._acts.connect(client)
                await self._snapshots.connect(client)
            except (NatsError, TimeoutError, *FAILURES) as error:
                self._scope.health.block("jetstream", describe(error))
                self._suite.nats_is(describe(error))
                await self._scope.pause(RETRY_S)
            else:
                break
        self._scope.health.unblock("jetstream")
        self._scope.health.started()
        self._scope.spawn("pause-view", self._watch_pause(client))
        self._scope.spawn("sink-lsns", self._watch_sinks(client))
        while not self._scope.stopping.is_set():
            # The connection comes back on its own; until then, answers say what is stale.
            self._suite.nats_is(await _nats_reason(client))
            await self._scope.pause(RETRY_S / 2)

    async def _watch_pause(self, client: Client) -> None:
        while not self._scope.stopping.is_set():
            # Without a connection, the reading would wait for one.
            if client.is_connected:
                try:
                    async with asyncio.timeout(PAUSE_S):
                        await self._operations.read_pause()
                except FAILURES as error:
                    log.debug("pause_not_visible", reason=describe(error))
            # Not more often than people look: it is a request to the state bucket.
            await self._scope.pause(PAUSE_S)

    async def _watch_sinks(self, client: Client) -> None:
        while not self._scope.stopping.is_set():
            try:
                if client.is_connected:
                    async with asyncio.timeout(PAUSE_S):
                        await self._sink_lsns.read(self._suite.status)
                else:
                    self._sink_lsns.forget()
            except FAILURES as error:
                self._sink_lsns.forget()
                log.debug("sinks_not_placed", reason=describe(error))
            await self._scope.pause(RETRY_S)

    def _refresh(self, stats: Counters) -> None:
        stats.set("console_requests", self._guard.requests)
        stats.set("console_live_tabs", self._live.open)
        stats.set("console_ring_messages", self._ring.count)


async def _nats_reason(client: Client) -> str:
    """Why NATS can't be used; empty if it can."""
    if not client.is_connected:
        return "the connection is interrupted"
    try:
        # The client itself notices a server that went silent after several pings only.
        await client.request("$JS.API.INFO", timeout=ANSWER_S)
    except (NatsError, TimeoutError):
        return NO_ANSWER
    return ""


def _text_of(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingError(
            f"HEADRACE_CONSOLE_ACCESS_FILE={file!r} can't be read: {describe(error)}",
            remedy="Name a readable TOML file.",
        ) from error


def _redaction(settings: Settings) -> Redaction:
    """One policy for every place that shows a value: the trail's and the console's own."""
    redaction = Redaction((*load_audit(os.environ).redact, *settings.console.redact))
    # A malformed pattern is refused now, and not at the first value.
    redaction.columns("public", "users")
    return redaction
