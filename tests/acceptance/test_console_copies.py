"""The console's pages of copies in a browser, with a whole suite that `headrace up` starts: sinks,
lake, SQL and backups, in every size and theme, and by the keyboard. HEADRACE_CONSOLE_PICTURES is a
folder for the documentation's pictures.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from headrace.testing.browser import Browser, browser, chromium
from headrace.testing.names import Names
from headrace.testing.servers import SessionServers
from headrace.testing.up import Up
from tests.support.console_pages import (
    ALL_LOOKS,
    LOOKS,
    TIMEOUT_S,
    choose,
    is_calm,
    keep_picture,
    pick,
    reach,
    until,
    visit,
)
from tests.support.webhook_receiver import SECRET, Receiver, serve, status

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
SINKS = """[[sink]]
name = "files"
to = "{files}"
batch = {{wait_ms = 50}}

[[sink]]
name = "hook"
to = "http://127.0.0.1:{port}/hook"
on_error = "park"
tables = ["headrace_demo"]
operations = ["insert"]
batch = {{wait_ms = 50}}
options = {{secret = "env:WEBHOOK_SECRET", allow_networks = ["127.0.0.0/8"], allow_http = true}}
"""
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headrace console'"


@dataclass(frozen=True)
class World:
    """A suite with two sinks, a lake, a SQL server and backups."""

    folder: Path
    base: str
    receiver: Receiver

    async def said(self, command: str) -> str:
        """The output of a command in another terminal; it has to succeed."""
        return await said(self.folder, command)

    async def answer(self, path: str) -> Any:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{self.base}/api/v1{path}") as answer,
        ):
            return await answer.json(content_type=None)


async def said(folder: Path, command: str) -> str:
    shell = await asyncio.create_subprocess_shell(
        f". .headrace/env && {command}",
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await shell.communicate()
    assert shell.returncode == 0, output.decode()
    return output.decode().strip()


async def in_time(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not await holds():  # noqa: ASYNC110  # other processes tell nobody
                await asyncio.sleep(0.3)
    except TimeoutError:
        raise AssertionError(what) from None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    # PostgreSQL must be able to enter it under root.
    folder = session_servers.folder / f"copies {Names.new().unique}"
    folder.mkdir(mode=0o711)
    places = tmp_path_factory.mktemp("places")
    (places / "files").mkdir()
    receiver = Receiver()
    runner = await serve(receiver)

    async def picky(request: web.Request) -> web.StreamResponse:
        if "bad" in (await request.json())["data"]["name"]:
            return await status(422)(request)
        return web.Response(status=204)

    receiver.answers = [picky] * 1000
    (folder / "headrace.toml").write_text(
        SINKS.format(files=(places / "files").as_uri(), port=receiver.port)
    )
    environment = {
        "HEADRACE_BACKUP_URL": (places / "backups").as_uri(),
        "HEADRACE_LAKE_ENGINE": "inline",
        "HEADRACE_LAKE_FLUSH_INTERVAL_S": "0.5",
        "WEBHOOK_SECRET": SECRET,
    }
    store = f"HEADRACE_BACKUP_URL={environment['HEADRACE_BACKUP_URL']}"
    lake = ("--lake", (places / "lake").as_uri(), "--sql")
    async with Up(folder, *lake, **environment) as up:
        # The wal-archiver waits for the store, and `up` for the wal-archiver.
        await up.says("Created publication", TIMEOUT_S)

        async def is_written() -> bool:
            return (folder / ".headrace/env").exists()

        await in_time(is_written, "`up` writes the variables of its servers")
        await said(folder, f"{store} headrace backup init")
        await up.says("Up after", TIMEOUT_S)
        found = re.search(r"console +(http://127\.0\.0\.1:\d+)", up.output)
        assert found is not None, up.output
        world = World(folder, found[1], receiver)
        await fill(world, store)
        yield world
    await runner.cleanup()


async def fill(world: World, store: str) -> None:
    """Rows in several cuts, two dead letters, a backup, and a table that was dropped after it."""
    await world.said(
        'psql -qc "CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(12, 2));'
        ' INSERT INTO orders SELECT n, n * 1.37 FROM generate_series(1, 2000) n"'
        ' -c "CREATE TABLE gone (id int PRIMARY KEY);'
        ' INSERT INTO gone SELECT generate_series(1, 500)"'
        " -c \"INSERT INTO headrace_demo (name, price) VALUES ('good', 1), ('bad lamp', 2)\""
    )
    # A backup notes the names of all relations.
    await world.said(f"{store} headrace backup now")
    await world.said('psql -qc "DROP TABLE gone"')

    async def is_filled() -> bool:
        sink = await world.answer("/sinks/hook")
        cuts = (await world.answer("/lake"))["cuts"]
        rows = {one["table"]: one["rows"] for one in (await world.answer("/lake/tables"))["items"]}
        in_lake = len(cuts) > 1 and rows.get("public.orders") == "2000"
        return sink["sink"]["letters"] == "1" and in_lake

    await in_time(is_filled, "a record is parked, and the lake has cuts with all rows")


@pytest_asyncio.fixture(loop_scope="module")
async def page(world: World, tmp_path: Path) -> AsyncIterator[Browser]:
    async with browser(tmp_path, f"{world.base}/") as page:
        await page.listen()
        await page.shows("Waterline")
        yield page


async def test_every_page_of_copies_is_calm_in_every_size_and_theme(
    world: World, page: Browser
) -> None:
    letter = (await world.answer("/sinks/hook"))["letters"][0]["id"]
    found = await world.answer("/events?table=headrace_demo&op=INSERT")
    trace = "/events/" + re.sub(r"[/+]", "-", found["items"][0]["position"])
    pictures = {"/": "overview", trace: "trace", "/sinks/hook": "sink", "/backups": "backups"}
    load = None
    if "HEADRACE_CONSOLE_PICTURES" in os.environ:
        load = asyncio.create_task(world.said("headrace load --rate 200 --seconds 60"))
        samples = "fetch('/api/v1/history').then((a) => a.json()).then((h) => h.at.length)"
        seen = await page.evaluate(samples)
        await until(page, f"{samples}.then((number) => number >= {seen + 40})")
    paths = [
        "/", trace, "/sinks", "/sinks/files", "/sinks/hook", f"/sinks/hook?letter={letter}",
        f"/sinks/hook?letter={letter}&act=correct", f"/sinks/hook?letter={letter}&act=drop",
        "/sinks/hook?act=reset", "/sinks/hook?act=pause", "/sinks/hook?act=test", "/sinks?new=1", "/lake", "/lake/tables", "/sql",
        "/sql?cut=1", "/backups", "/backups?to=%2Fsrv%2Frestored",
        "/backups?what=table&table=gone&moment=before-drop",
        "/backups?to=%2Fx&moment=time&value=2000-01-01",
    ]  # fmt: skip
    looks = ALL_LOOKS if os.environ.get("HEADRACE_CONSOLE_SIZES") == "all" else LOOKS
    for path in paths:
        for width, height, dark in looks:
            await page.looks_like(width, height, dark=dark)
            await visit(page, world.base, path)
            await is_calm(page, f"{path} at {width}, dark {dark}")
            await keep_picture(page, pictures.get(path), path, (width, height, dark))
    if load is not None:
        await load


async def confirm(page: Browser, button: str) -> None:
    """Confirm the plan of the open dialog by the keyboard."""
    await until(page, "!!document.querySelector('dialog ol')")
    await choose(page, button)
    await until(page, "![...document.querySelectorAll('dialog ol')].length")


async def test_one_look_says_that_all_is_well(world: World, page: Browser) -> None:
    await until(page, "!!document.querySelector('.verdict.running')")
    await page.shows("Everything works.")
    assert json.loads(await world.said("headrace status --json"))["is_connected"]


async def test_a_snapshot_is_requested_and_seen_to_end_by_the_keyboard(
    world: World, page: Browser
) -> None:
    await page.press("g", "s")
    await choose(page, "Request a snapshot")
    await until(page, "document.querySelectorAll('dialog option').length > 1")
    await pick(page, "Table", "orders")
    await choose(page, "Preview")
    await confirm(page, "Request the snapshot")
    row = (
        "[...document.querySelectorAll('main tr')].find((one) => one.innerText.includes('orders'))"
    )
    await until(page, f"{row}?.innerText.includes('complete')")
    assert "2\u2009000" in await page.evaluate(f"{row}.innerText")
    assert page.complaints == []


async def test_a_sink_is_paused_and_resumed_by_the_keyboard(world: World, page: Browser) -> None:
    await page.press("g", "k")
    await choose(page, "files")
    await choose(page, "Pause")
    await confirm(page, "Pause the sink")
    await page.shows("The sink is paused.")
    listed = json.loads(await world.said("headrace sinks ls --json"))
    assert {one["sink"]: one["state"] for one in listed} == {"files": "paused", "hook": "active"}
    await until(page, "!!document.querySelector('.facts .pill.paused')")
    await choose(page, "Resume")
    await confirm(page, "Resume the sink")
    await until(page, "!!document.querySelector('.facts .pill.running')")
    listed = json.loads(await world.said("headrace sinks ls --json"))
    assert {one["state"] for one in listed} == {"active"}


async def test_a_dead_letter_is_read_corrected_and_delivered_by_the_keyboard(
    world: World, page: Browser
) -> None:
    await page.press("g", "k")
    await choose(page, "hook")
    await page.shows("it answered 422")
    await choose(page, "headrace_demo")
    await page.shows("bad lamp")
    await choose(page, "Correct")
    await until(page, "!!document.querySelector('dialog input[type=text]')")
    await reach(page, "name")
    await page.evaluate("document.activeElement.select()")
    await page.write("repaired lamp")
    await confirm(page, "Correct")
    await page.shows("repaired lamp")
    assert "repaired lamp" in await world.said(
        "headrace dead-letters show hook $(headrace dead-letters ls --json |"
        " python3 -c 'import json, sys; print(json.load(sys.stdin)[0][\"id\"])')"
    )
    world.receiver.answers = []
    await choose(page, "Deliver again")
    await confirm(page, "Deliver again")
    await page.shows("The target has refused nothing")
    assert [body["data"]["name"] for body, _ in world.receiver.accepted] == ["repaired lamp"]
    assert page.complaints == []


async def test_a_new_sink_is_prepared_by_the_keyboard_and_its_text_is_what_the_command_accepts(
    world: World, page: Browser
) -> None:
    await page.press("g", "k")
    await choose(page, "New sink")
    await until(page, "!!document.querySelector('textarea')")
    await reach(page, "Name")
    await page.write("second")
    await reach(page, "Address of the target")
    await page.write((world.folder / "second").as_uri())
    await reach(page, "Tables")
    await page.write("orders")
    await page.shows("The text is valid")
    await page.shows("public.orders")
    text = str(await page.evaluate("document.querySelector('textarea').value"))
    file = world.folder / "with-second.toml"
    file.write_text((world.folder / "headrace.toml").read_text() + "\n" + text)
    planned = json.loads(await world.said(f"headrace sinks plan --json --config {file.name}"))
    assert planned[-1]["tables"] == ["public.orders"]
    await page.write("")
    await page.evaluate("document.querySelector('textarea').focus()")
    await page.write("\n[[sink]]\nname = 'second'")
    await page.shows("second")
    await until(page, "!!document.querySelector('.problem')")


async def test_the_connection_of_a_sink_is_tested_by_the_keyboard(
    world: World, page: Browser
) -> None:
    await page.press("g", "k")
    await choose(page, "files")
    await choose(page, "Test the connection")
    await confirm(page, "Connect")
    await page.shows("It works")


async def test_the_lake_has_the_cuts_and_rows_that_its_commands_have(
    world: World, page: Browser
) -> None:
    listed = [json.loads(one) for one in (await world.said("headrace lake ls --json")).splitlines()]
    rows = {one["table"]: one["rows"] for one in listed}
    shown = {
        one["table"]: int(one["rows"]) for one in (await world.answer("/lake/tables"))["items"]
    }
    assert shown == rows
    assert rows["public.orders"] == 2000
    cuts = [json.loads(one) for one in (await world.said("headrace lake cuts --json")).splitlines()]
    found = (await world.answer("/lake"))["cuts"]
    assert [one["number"] for one in found] == [str(one["number"]) for one in cuts]
    assert [one["changed"] for one in found][-1] is None
    await visit(page, world.base, "/lake/tables")
    await page.shows("2\u2009000")


async def ask(page: Browser, text: str) -> None:
    """Write a statement and run it by the keyboard."""
    await page.evaluate(
        "(() => { const t = document.querySelector('textarea'); t.focus(); t.select(); })()"
    )
    await page.write(text)
    await until(page, f"document.querySelector('textarea').value === {json.dumps(text)}")
    await page.evaluate(
        "document.querySelector('textarea').dispatchEvent(new KeyboardEvent('keydown',"
        " {key: 'Enter', ctrlKey: true, bubbles: true, cancelable: true}))"
    )


async def test_sql_answers_with_every_digit_as_of_a_cut_and_refuses_to_write(
    world: World, page: Browser
) -> None:
    wanted = await world.said('psql -XAtc "SELECT count(*), sum(total) FROM orders"')
    await visit(page, world.base, "/sql")
    await ask(
        page, "SELECT count(*), sum(total), 9007199254740993 AS big, NULL AS none FROM orders"
    )
    await until(page, "document.querySelectorAll('.result tbody td').length === 4")
    cells = await page.evaluate(
        "[...document.querySelectorAll('.result tbody td')].map((one) => one.innerText).join('|')"
    )
    assert cells == f"{wanted}|9007199254740993|null"
    await ask(page, "DELETE FROM orders")
    await page.shows("25006")
    await ask(page, "SELECT 1; SELECT 2")
    await page.shows("42601")
    cuts = (await world.answer("/lake"))["cuts"]
    before = next(one for one in reversed(cuts) if one["number"] != cuts[0]["number"])
    await visit(page, world.base, f"/sql?cut={before['number']}")
    await ask(page, "SELECT 1")
    await page.shows(f"at {before['lsn']}")
    assert page.complaints == []


async def test_a_statement_is_cancelled_at_the_server(world: World, page: Browser) -> None:
    await visit(page, world.base, "/sql")
    await ask(
        page, "SELECT count(*) FROM orders a, orders b, orders c, orders d WHERE a.total > d.total"
    )
    cancel = "[...document.querySelectorAll('button')].find((one) => one.innerText === 'Cancel')"
    await until(page, f"!!{cancel}")
    await page.evaluate(f"{cancel}.click()")
    await page.shows("The statement was cancelled.")

    async def is_idle() -> bool:
        # The SQL server's own view of its sessions.
        return await world.said(f'psql "$SQL_URL" -XAtc "{SESSIONS}"') == "0"

    await in_time(is_idle, "the server no longer works on it")


async def test_a_restore_ends_in_a_command_that_the_command_line_accepts(
    world: World, page: Browser, tmp_path: Path
) -> None:
    await visit(page, world.base, "/backups?what=table&table=gone&moment=before-drop")
    await page.shows("headrace restore --table=gone --before-drop")
    command = "headrace restore --table=gone --before-drop --plan"
    place = (await world.answer("/backups"))["store"]
    planned = await world.said(f"HEADRACE_BACKUP_URL={place} {command}")
    assert re.search(r"dropped public\.gone at .* by transaction \d+", planned)
    await visit(page, world.base, "/backups?to=%2Fsrv%2Fnew&moment=time&value=1999-01-01")
    await page.shows("no backup is older")
    window = (await world.answer("/backups"))["window"]
    assert window["from"] < window["to"]


async def test_a_dropped_table_is_brought_back_by_the_keyboard(world: World, page: Browser) -> None:
    await page.press("g", "b")
    await page.shows("Restore a moment")
    await pick(page, "What", "One table")
    await until(page, "location.search.includes('what=table')")
    await reach(page, "Table")
    await page.write("gone")
    await page.press("Enter")
    await pick(page, "When", "Before the table was dropped")
    await page.shows("headrace restore --table=gone --before-drop")
    command = await page.text("code.strong")
    place = (await world.answer("/backups"))["store"]
    await world.said(f"HEADRACE_BACKUP_URL={place} {command}")
    rows = await world.said('psql -XAtc "SELECT count(*), sum(id) FROM gone_restored"')
    assert rows == "500|125250"
    assert page.complaints == []
