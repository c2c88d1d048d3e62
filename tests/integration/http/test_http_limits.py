"""An HTTP port stays usable for any client: silent connections, too many of them, responses that
are not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from headrace.http import limits as doors
from headrace.http.limits import Door


@contextlib.asynccontextmanager
async def port(door: Door) -> AsyncIterator[int]:
    async def quick(_: web.Request) -> web.Response:
        return web.Response(text="there")

    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    app = web.Application(client_max_size=doors.BODY_BYTES_MAX)
    app.router.add_get("/", quick)
    app.router.add_get("/never", never)
    door.guard(app)
    runner = web.AppRunner(app)
    await runner.setup()
    server = await door.open(runner, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await runner.cleanup()


async def ask(at: int, path: str = "/") -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{at}{path}") as answer:
        return answer.status, await answer.text()


async def test_a_connection_that_asks_nothing_is_closed_and_one_that_asks_slowly_too() -> None:
    async with port(Door(head_timeout_s=0.3)) as at:
        silent, _writer = await asyncio.open_connection("127.0.0.1", at)
        slow, writer = await asyncio.open_connection("127.0.0.1", at)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
        async with asyncio.timeout(30):
            assert await silent.read() == b""
            assert b"200 OK" not in await slow.read()
        assert await ask(at) == (200, "there")
        writer.close()
        _writer.close()


async def test_a_connection_that_has_asked_stays_open_for_the_next_request() -> None:
    async with port(Door(head_timeout_s=0.2)) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at)
        for pause_s in (0.0, 0.6):
            await asyncio.sleep(pause_s)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"there" in await reader.readuntil(b"there")
        writer.close()


async def test_a_connection_too_many_is_refused_until_there_is_room() -> None:
    async with port(Door(connections_max=2)) as at:
        held = [await asyncio.open_connection("127.0.0.1", at) for _ in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(aiohttp.ClientError):
            await ask(at)
        held[0][1].close()
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    assert await ask(at) == (200, "there")
                    break
        held[1][1].close()


async def test_an_answer_that_does_not_come_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "ANSWER_TIMEOUT_S", 0.1)
    async with port(Door()) as at:
        code, text = await ask(at, "/never")
    assert code == 503
    assert "remedy" in text


@pytest.mark.parametrize(
    "said",
    ["GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET /no HTTP/1.1\r\nHost: x\r\n\r\n", "no\r\n\r\n"],
)
async def test_no_answer_tells_which_version_answers(said: str) -> None:
    async with port(Door()) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at)
        writer.write(said.replace("HTTP/1.1\r\n", "HTTP/1.1\r\nConnection: close\r\n").encode())
        async with asyncio.timeout(30):
            answer = (await reader.read()).decode()
        writer.close()
    assert answer.startswith("HTTP/1.")
    assert not [name for name in ("aiohttp", "python", "traceback") if name in answer.lower()], (
        answer
    )


async def test_no_answer_tells_a_version_not_even_one_to_what_is_no_request() -> None:
    async with port(Door()) as at:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{at}/") as answer:
            assert answer.headers["Server"] == "headrace"
        reader, writer = await asyncio.open_connection("127.0.0.1", at)
        writer.write(b"no request\r\n\r\n")
        async with asyncio.timeout(30):
            refused = await reader.read()
        assert b" 400 " in refused
        assert b"aiohttp" not in refused
        writer.close()
