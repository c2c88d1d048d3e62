"""TLS and basic authentication in front of a server that has neither, with a busy moment."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from headrace.embedded.ports import LOOPBACK

LOGIN = aiohttp.encode_basic_auth("ada", "right")


@contextlib.asynccontextmanager
async def guarded(port: int, context: ssl.SSLContext) -> AsyncIterator[tuple[int, list[str]]]:
    """Forward requests with the right login; yields the port, and the paths of the requests that
    were refused with 429: the first one to each path of bulk requests.
    """
    refused: list[str] = []

    async def forward(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != LOGIN:
            return web.json_response({"error": "no"}, status=401)
        if request.path == "/_bulk" and request.path not in refused:
            refused.append(request.path)
            return web.json_response({"error": {"type": "rejected"}}, status=429)
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        async with (
            aiohttp.ClientSession() as http,
            http.request(
                request.method,
                f"http://{LOOPBACK}:{port}{request.raw_path}",
                data=await request.read(),
                headers=headers,
            ) as answer,
        ):
            body = await answer.read()
            return web.Response(body=body, status=answer.status, content_type="application/json")

    application = web.Application(client_max_size=1 << 27)
    application.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, LOOPBACK, 0, ssl_context=context)
    await site.start()
    try:
        yield runner.addresses[0][1], refused
    finally:
        await runner.cleanup()
