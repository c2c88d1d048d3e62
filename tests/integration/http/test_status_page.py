"""The status page shows a running suite, live, on a phone and on a desk, and asks nobody but its
own port.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import nats
import pytest
from nats.js.api import ConsumerConfig

from headrace.settings import load
from headrace.suite import pause
from headrace.suite.pause import Pause
from headrace.testing.browser import Browser, browser, chromium
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats
from headrace.testing.process import service
from headrace.testing.suite import Suite

pytestmark = pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")

SIZES = {"desk": (1280, 900), "phone": (390, 844), "small": (320, 640)}
# A name that would be markup if the page were careless.
TABLE = "<b>wages</b>"
# The charts whose last figure is not what the tile says; the page draws both in one turn.
# The text of cards whose content is cut at their edge.
CUT = "[...document.querySelectorAll('.card')].filter((c) => c.scrollWidth > c.clientWidth).map((c) => c.innerText)"
SAME = """
[['#chart-rate', document.querySelector('#rate').textContent + '/s'],
 ['#chart-wal', document.querySelector('#lag').textContent + ', ' + document.querySelector('#kept').textContent]]
  .filter(([chart, tile]) => document.querySelector(chart).parentNode.querySelector('output').textContent !== tile)
"""


async def until(page: Browser, condition: str) -> None:
    """Wait until a JavaScript expression is true in the page."""
    async with asyncio.timeout(60):
        while not await page.evaluate(condition):  # noqa: ASYNC110  # the page tells nobody
            await asyncio.sleep(0.1)


async def write(database: Database, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 10
        await database.execute(
            f'INSERT INTO "{TABLE}" SELECT generate_series({number}, {number + 9})'
        )
        await asyncio.sleep(0.05)


async def see(page: Browser, name: str, width: int, height: int, *, dark: bool) -> None:
    """In this size nothing sticks out; kept as a picture where a folder for it is named."""
    await page.looks_like(width, height, dark=dark)
    await until(page, f"innerWidth === {width}")
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    assert await page.evaluate(CUT) == []
    picture = await page.screenshot()
    assert picture.startswith(b"\x89PNG")
    if folder := os.environ.get("HEADRACE_SCREENSHOTS"):
        file = Path(folder, f"{name}-{'dark' if dark else 'light'}.png")
        await asyncio.to_thread(file.write_bytes, picture)


async def test_the_page_shows_the_suite_live_in_every_size_and_light(
    database: Database, own_nats: OwnNats, names: Names, tmp_path: Path
) -> None:
    server = await own_nats()
    await database.execute(
        f'CREATE TABLE "{TABLE}" (id int PRIMARY KEY); CREATE PUBLICATION headrace FOR ALL TABLES'
    )
    settings = {
        **SETTINGS,
        **database.environment(server.url),
        "HEADRACE_SLOT": names.slot,
        "HEADRACE_STREAM_INTERVAL_S": "0.5",
    }
    stop = asyncio.Event()
    async with Suite(settings, tmp_path) as suite, service(settings, "telemetry") as telemetry:
        await suite.logged("publisher", "epoch_joined")
        client = await nats.connect(server.url)
        await client.jetstream().add_consumer("CDC", ConsumerConfig(durable_name="billing"))
        writing = asyncio.create_task(write(database, stop), name="writing")
        try:
            async with browser(tmp_path / "profile", f"{await telemetry.url()}/") as page:
                await page.shows("running")
                await page.shows(TABLE)
                await page.shows("billing")
                await until(
                    page, "document.querySelector('#chart-rate .a').getAttribute('d').includes('L')"
                )
                await until(page, "parseFloat(document.querySelector('#rate').textContent) > 0")
                assert await page.evaluate(f"({SAME}).length") == 0
                before = await page.text("#events")
                await until(page, f"document.querySelector('#events').textContent !== '{before}'")
                assert await page.evaluate(f"({SAME}).length") == 0
                colours = set()
                for dark in (False, True):
                    for name, (width, height) in SIZES.items():
                        await see(page, name, width, height, dark=dark)
                    colours.add(
                        await page.evaluate("getComputedStyle(document.body).backgroundColor")
                    )
                assert len(colours) == 2
                assert await page.evaluate("document.querySelector('#tables b')") is None
                here = await page.evaluate("location.origin")
                asked = await page.evaluate(
                    "performance.getEntriesByType('resource').map((one) => one.name).join(' ')"
                )
                assert [
                    name for name in asked.split() if not name.startswith((here, "data:"))
                ] == []
                state = await client.jetstream().key_value("headrace_state")
                await pause.write(
                    client, state, load(settings), Pause(paused=True, by="a test", reason="upgrade")
                )
                await page.shows("paused by a test")
                await until(page, "document.querySelector('#state').textContent === 'paused'")
                await see(page, "paused", 390, 844, dark=False)
                await telemetry.kill()
                await page.shows("telemetry does not respond")
        finally:
            stop.set()
            await writing
            await client.close()


async def test_the_page_may_run_only_what_is_in_it(database: Database, names: Names) -> None:
    settings = {
        **database.server.environment(),
        "NATS_URL": "nats://127.0.0.1:1",
        "HEADRACE_SLOT": names.slot,
    }
    async with service(settings, "telemetry") as telemetry:
        code, text = await telemetry.get("/")
        policy = await headers(f"{await telemetry.url()}/")
        assert (await telemetry.get("/history?after=x"))[0] == 400
    assert code == 200
    assert "://" not in text.replace("http://www.w3.org", "")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


async def headers(url: str) -> str:
    import aiohttp

    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        return answer.headers["Content-Security-Policy"]
