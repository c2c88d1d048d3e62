"""A receiver of webhooks, in the test's own process."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from standardwebhooks import Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Receiver:
    """Remembers requests; gives the answers that a test has prepared."""

    port: int = 0
    # Each with its body and headers, in the order of arrival.
    requests: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)
    # Those that were answered with success.
    accepted: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)
    # The bodies as they came, by the ID of the record; the last one of each.
    bodies: dict[str, bytes] = field(default_factory=dict)
    # Answers of the next requests; 204 without any.
    answers: list[Answer] = field(default_factory=list)
    # Requests that are being answered, and the most of them at the same time.
    active: int = 0
    busiest: int = 0
    delay_s: float = 0.0

    async def receive(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((json.loads(body), dict(request.headers)))
        self.bodies[request.headers["headrace-id"]] = body
        Webhook(SECRET).verify(body, dict(request.headers))
        self.active += 1
        self.busiest = max(self.busiest, self.active)
        await asyncio.sleep(self.delay_s)
        self.active -= 1
        if self.answers:
            return await self.answers.pop(0)(request)
        self.accepted.append((json.loads(body), dict(request.headers)))
        return web.Response(status=204)

    @property
    def ids(self) -> list[int]:
        return [body["data"]["id"] for body, _ in self.requests]


def status(code: int, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=code, headers=named, text="because")

    return answer


async def serve(receiver: Receiver, context: ssl.SSLContext | None = None) -> web.AppRunner:
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_post("/hook", receiver.receive)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    receiver.port = runner.addresses[0][1]
    return runner
