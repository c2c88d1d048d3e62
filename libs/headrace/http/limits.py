"""Who may come in at an HTTP port, and how long anyone may stay: bounds that hold whoever is
outside.

Promises: no more than `CONNECTIONS_MAX` connections; one that has not sent a request's head in time
is closed; a request that takes too long is answered with 503; no answer tells a version. Bodies are
bounded by the application.
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

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Door:
    """Makes the protocol of each connection to an application."""

    def __init__(
        self, *, head_timeout_s: float = HEAD_TIMEOUT_S, connections_max: int = CONNECTIONS_MAX
    ) -> None:
        self._head_timeout_s = head_timeout_s
        self._connections_max = connections_max
        # Those that have not sent a head yet.
        self._silent: set[asyncio.BaseProtocol] = set()

    def guard(self, app: web.Application) -> None:
        """To be called before the application runs."""

        @web.middleware
        async def in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._silent.discard(request.protocol)
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    return await handler(request)
            except TimeoutError:
                body = {
                    "error": "it took too long",
                    "remedy": "Ask again; see /readyz for what is away.",
                }
                return web.json_response(body, status=503)

        app.middlewares.append(in_time)

    async def open(self, runner: web.AppRunner, host: str, port: int) -> asyncio.Server:
        """Listen for the application."""
        # No answer tells a version. aiohttp has no setting for it, and no signal for answers to
        # what it can't parse. Not at import: a program that imports the library may have a web
        # server of its own.
        web_response.SERVER_SOFTWARE = "headrace"  # type: ignore[attr-defined]  # a name of its own use
        loop = asyncio.get_running_loop()
        server = runner.server
        assert server is not None, "the runner was set up"

        def come_in() -> asyncio.BaseProtocol:
            if len(server.connections) >= self._connections_max:
                return _Refused()
            handler = server()
            self._silent.add(handler)
            loop.call_later(self._head_timeout_s, self._throw_out, handler)
            return handler

        return await loop.create_server(come_in, host, port)

    def _throw_out(self, handler: web.RequestHandler) -> None:
        """Unless it has asked for something meanwhile."""
        if handler in self._silent:
            self._silent.discard(handler)
            handler.force_close()
            if handler.transport is not None:
                handler.transport.close()
