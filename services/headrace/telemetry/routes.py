"""Telemetry's HTTP routes.

Promises the bridge's paths, fields and metric names in addition to the suite's own. `POST
/shutdown` stops the suite: it requires the bearer token unless only this machine can reach the
port. Never answers with a row's values or a secret.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from aiohttp import web
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from headrace import log as logs
from headrace.bus import participation, subjects
from headrace.errors import HeadraceError
from headrace.http.answers import refusal
from headrace.http.authority import bears, is_loopback
from headrace.http.page import page
from headrace.jetstream.connection import shown
from headrace.jetstream.state import bucket
from headrace.metrics.exposition import CONTENT_TYPE, bridge_exposition, exposition
from headrace.process.health import Health
from headrace.settings import Settings
from headrace.suite import pause as pauses
from headrace.suite.pause import Pause
from headrace.telemetry.history import History
from headrace.telemetry.suite import SuiteStatus

log = logs.logger("telemetry")

# It becomes part of a subject: a dot would address another part of JetStream's API.
_STREAM_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
_INFO_TIMEOUT_S = 3.0
_NOT_FOUND = 404


@dataclass(eq=False)
class Routes:
    """The paths of the telemetry port; `client` is set once NATS has been reached."""

    _settings: Settings
    _suite: SuiteStatus
    _history: History
    _health: Health
    client: Client | None = None

    def extend(self, app: web.Application) -> None:
        get: list[tuple[str, Callable[[web.Request], Any]]] = [
            ("/", self.page),
            ("/history", self.history),
            ("/health", self.health),
            ("/status", self.status),
            ("/metrics", self.metrics),
            ("/streams/info", self.stream_info),
        ]
        for path, handler in get:
            app.router.add_get(path, handler)
        app.router.add_post("/shutdown", self.shutdown)
        app.router.add_post("/pause", self.pause)
        app.router.add_post("/resume", self.resume)

    async def page(self, _: web.Request) -> web.Response:
        return page("headrace.telemetry", cached="no-cache")

    async def health(self, _: web.Request) -> web.Response:
        # The bridge's answer, which only means that the process lives; /readyz says how it is.
        return web.json_response({"status": "ok"})

    async def status(self, _: web.Request) -> web.Response:
        now = time.monotonic()
        watch = self._suite.watch
        return _json(
            {
                **self._suite.totals(now).status(),
                "source": self._settings.source.slot,
                "publication": self._settings.source.publication,
                "slot": asdict(watch.slot) if watch.slot else None,
                "postgres": {
                    "reachable": watch.reachable,
                    "reason": watch.reason,
                    "waiting_s": self._suite.waiting_s(now),
                },
                "nats": {
                    "connected": self._connected is not None,
                    "server": shown(self._settings.nats),
                },
                "streams": [asdict(view) for view in self._suite.streams],
                "consumers": [asdict(view) for view in self._suite.consumers],
                "services": self._suite.services(now),
            }
        )

    async def history(self, request: web.Request) -> web.Response:
        try:
            after = float(request.query.get("after", "0"))
        except ValueError:
            return refusal(400, "after is a time in seconds", "Ask for /history?after=0.")
        return _json(self._history.columns(after))

    async def metrics(self, _: web.Request) -> web.Response:
        now = time.monotonic()
        exposed = self._suite.exposed(now)
        # Its own figures directly: without NATS its report would not arrive.
        exposed[self._health.service] = {**self._health.refreshed(), "up": 1}
        bridge = bridge_exposition(self._suite.totals(now).bridge())
        body = bridge + exposition(exposed, self._settings.source.slot)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def stream_info(self, request: web.Request) -> web.Response:
        name = request.query.get("stream", "")
        if not _STREAM_NAME.fullmatch(name):
            return refusal(400, "name a stream", "Ask for /streams/info?stream=CDC.")
        client = self._connected
        if client is None:
            return refusal(503, "NATS is not connected", "See /readyz for the reason.")
        subject = f"$JS.API.STREAM.INFO.{name}"
        try:
            answer = await client.request(subject, timeout=_INFO_TIMEOUT_S)
        except NoRespondersError:
            return refusal(
                503, "JetStream does not answer", "Start nats-server with JetStream (-js)."
            )
        except (NatsError, TimeoutError):
            return refusal(503, f"no answer about stream {name}", _remedy(client, subject))
        body = orjson.loads(answer.data)
        if "error" in body:
            code = body["error"].get("code")
            reason = body["error"].get("description", "unknown error")
            return refusal(
                404 if code == _NOT_FOUND else 502, f"stream {name}: {reason}", "Run headrace init."
            )
        # `type` is a detail of JetStream's API.
        return _json({"name": name, **{key: value for key, value in body.items() if key != "type"}})

    async def shutdown(self, request: web.Request) -> web.Response:
        client = self._acting(request)
        if isinstance(client, web.Response):
            return client
        log.info("stop_requested", by="POST /shutdown", peer=request.remote)
        slot = self._settings.source.slot
        token = self._settings.process.shutdown_token
        await client.publish(subjects.stop(slot), participation.stop_command(slot, token))
        # The answer promises that the command was sent, so it waits until NATS has received it.
        async with asyncio.timeout(self._settings.nats.flush_timeout_s):
            await client.flush()
        return web.Response(text="Shutdown initiated\n")

    async def pause(self, request: web.Request) -> web.Response:
        return await self._keep(request, paused=True)

    async def resume(self, request: web.Request) -> web.Response:
        return await self._keep(request, paused=False)

    async def _keep(self, request: web.Request, *, paused: bool) -> web.Response:
        """Store the pause or resume request."""
        client = self._acting(request)
        if isinstance(client, web.Response):
            return client
        wanted = Pause(
            paused=paused, by=f"http {request.remote}", reason=request.query.get("reason", "")
        )
        log.info("pause_requested" if paused else "resume_requested", peer=request.remote)
        try:
            state = await bucket(client.jetstream(), self._settings.streams.state)
            await pauses.write(client, state, self._settings, wanted)
        except (HeadraceError, NatsError, TimeoutError) as error:
            return refusal(503, f"could not store the pause request: {error}", "Ask again.")
        return _json({"paused": paused})

    def _acting(self, request: web.Request) -> Client | web.Response:
        """The connection to act on; or an answer that says why this request is refused, or
        impossible.
        """
        refused = self._may_not_act(request)
        if refused is not None:
            return refused
        client = self._connected
        if client is None:
            return refusal(
                503,
                "NATS is not connected, so no service can be reached",
                "Send each process a SIGTERM.",
            )
        return client

    def _may_not_act(self, request: web.Request) -> web.Response | None:
        token = self._settings.process.shutdown_token
        # First: with the token, a request may come from anywhere.
        if bears(request.headers.get("Authorization", ""), token):
            return None
        if not is_loopback(self._settings.process.http_host):
            if token:
                remedy = "Send Authorization: Bearer <HEADRACE_SHUTDOWN_TOKEN>."
            else:
                remedy = "Set HEADRACE_SHUTDOWN_TOKEN."
            # 401 asks for a token; if none was configured, no request can succeed.
            return refusal(401 if token else 403, "this endpoint requires a bearer token", remedy)
        if "Origin" in request.headers:
            # A page in this machine's browser reaches loopback too.
            return refusal(403, "browser requests are not accepted", "Use curl -X POST.")
        return None

    @property
    def _connected(self) -> Client | None:
        if self.client is not None and self.client.is_connected:
            return self.client
        return None


def _remedy(client: Client, subject: str) -> str:
    """The remedy for a query without an answer: nats-server names the subject that it forbids."""
    complaint = str(client.last_error).lower()
    if "permissions violation" in complaint and subject.lower() in complaint:
        return f"Allow the NATS user to publish to {subject}."
    return "Try again; if it persists, check that nats-server runs and is not overloaded."


def _json(body: dict[str, Any]) -> web.Response:
    return web.Response(
        body=orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE), content_type="application/json"
    )
