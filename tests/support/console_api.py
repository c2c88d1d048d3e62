"""The console as its clients see it: a running one, and what openapi.yaml promises."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import yaml

from headrace.embedded.ports import free_port
from headrace.testing.suite import Suite

DESCRIPTION = Path(__file__).parents[2] / "services/headrace/console/openapi.yaml"
API = "/api/v1"


def described() -> dict[str, Any]:
    """The description of the API."""
    found: dict[str, Any] = yaml.safe_load(DESCRIPTION.read_text())
    return found


def check(description: Mapping[str, Any], method: str, path: str, status: int, body: Any) -> None:
    """Raise if this body is not what the description promises for the answer."""
    operation = description["paths"][path][method.lower()]
    answer = operation["responses"].get(str(status), operation["responses"]["default"])
    if "$ref" in answer:
        answer = description["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    (content,) = answer["content"].values()
    schema = {**content["schema"], "components": description["components"]}
    jsonschema.Draft202012Validator(schema).validate(body)


class Console:
    """A running console. Its answers are checked against the description."""

    def __init__(self, http: aiohttp.ClientSession, port: int) -> None:
        self.http = http
        self.port = port
        self.base = f"http://127.0.0.1:{port}"
        self._description = described()

    async def get(
        self, path: str, template: str | None = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """The status and the body of an answer."""
        return await self.ask("GET", path, template, headers=headers)

    async def ask(
        self,
        method: str,
        path: str,
        template: str | None = None,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Send a request as the page does."""
        data = None if body is None else json.dumps(body)
        sent = {"X-Headrace": "1", "Content-Type": "application/json", **(headers or {})}
        async with self.http.request(
            method, self.base + API + path, data=data, headers=sent
        ) as answer:
            found = await answer.json(content_type=None)
            place = template or path.partition("?")[0]
            check(self._description, method, API + place, answer.status, found)
            return answer.status, found

    async def good(self, path: str, template: str | None = None) -> dict[str, Any]:
        """The body of an answer that has to be good."""
        status, body = await self.get(path, template)
        assert status == 200, body
        return body

    async def frames(self, query: str, number: int, **headers: str) -> list[tuple[str, Any]]:
        """The first frames of a live stream."""
        found: list[tuple[str, Any]] = []
        async with self.http.get(f"{self.base}{API}/live?{query}", headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            async for one in frames_of(answer):
                found.append(one)
                if len(found) == number:
                    break
        return found


async def frames_of(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """The frames of a live stream, by name."""
    name = ""
    async for raw in answer.content:
        line = raw.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@contextlib.asynccontextmanager
async def running_console(suite: Suite, **environment: str) -> AsyncIterator[Console]:
    """A console with telemetry, next to the services of a suite."""
    telemetry, port = free_port(), free_port()
    await suite.start("telemetry", HEADRACE_HTTP_PORT=str(telemetry))
    given = {
        "HEADRACE_HTTP_PORT": str(port),
        "HEADRACE_TELEMETRY_URL": f"http://127.0.0.1:{telemetry}",
        **environment,
    }
    await suite.start("console", **given)
    # Sessions' cookies are for TLS only; tests pass them on by hand.
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        console = Console(http, port)
        await until_ready(console)
        try:
            yield console
        finally:
            for service in ("console", "telemetry"):
                if suite.running(service):
                    await suite.kill(service)


async def until_ready(console: Console, timeout_s: float = 60.0) -> None:
    """Wait until the console works."""
    async with asyncio.timeout(timeout_s):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with console.http.get(f"{console.base}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)
