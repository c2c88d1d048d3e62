"""Limits on connections and requests of the HTTP ports.

Promises: at most `CONNECTIONS_MAX` connections are open; a connection that has not sent a request's
head in time is closed; a request that takes too long is answered with 503; no response reveals a
version. Applications limit the size of bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web, web_response

CONNECTIONS_MAX = 128
HEAD_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 15.0
IDLE_TIMEOUT_S = 30.0
BODY_BYTES_MAX = 64 * 1024

# Paths of an application whose answers have no end: streams of events.
ENDLESS_PATHS: web.AppKey[frozenset[str]] = web.AppKey("endless_paths", frozenset)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Refused(asyncio.Protocol):
    """Closes a connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Door:
    """Creates the protocol of each connection to an application."""

    def __init__(
        self, *, head_timeout_s: float = HEAD_TIMEOUT_S, connections_max: int = CONNECTIONS_MAX
    ) -> None:
        self._head_timeout_s = head_timeout_s
        self._connections_max = connections_max
        # Connections that have not sent a request's head yet.
        self._silent: set[asyncio.BaseProtocol] = set()

    def guard(self, app: web.Application) -> None:
        """Add these limits to an application; call it before the application runs."""

        @web.middleware
        async def in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
            # aiohttp calls a middleware when the head has arrived, before it reads the body.
            self._silent.discard(request.protocol)
            if request.path in app.get(ENDLESS_PATHS, ()):
                return await handler(request)
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    return await handler(request)
            except TimeoutError:
                body = {
                    "error": "the request took too long",
                    "remedy": "Try again; /readyz shows what is unavailable.",
                }
                return web.json_response(body, status=503)

        app.middlewares.append(in_time)

    async def open(self, runner: web.AppRunner, host: str, port: int) -> asyncio.Server:
        """Listen for the application."""
        # Responses reveal no version. aiohttp has no setting for it, and no signal for responses to
        # requests it can't parse. Not at import: a program that imports the library may run its own
        # web server. The module's types don't list the name.
        web_response.SERVER_SOFTWARE = "headrace"  # type: ignore[attr-defined]
        loop = asyncio.get_running_loop()
        server = runner.server
        assert server is not None, "the runner was set up"

        def come_in() -> asyncio.BaseProtocol:
            # The event loop has accepted the connection by now, so it can only be closed again.
            if len(server.connections) >= self._connections_max:
                return _Refused()
            handler = server()
            self._silent.add(handler)
            loop.call_later(self._head_timeout_s, self._throw_out, handler)
            return handler

        return await loop.create_server(come_in, host, port)

    def _throw_out(self, handler: web.RequestHandler) -> None:
        """Close the connection, unless it has sent a request meanwhile."""
        if handler in self._silent:
            self._silent.discard(handler)
            handler.force_close()
            if handler.transport is not None:
                handler.transport.close()
