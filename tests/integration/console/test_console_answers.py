"""The console answers as its description promises, with PostgreSQL's own values."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from urllib.parse import quote

import nats
import pytest
import pytest_asyncio

from headrace.testing.line import Line
from headrace.testing.servers import SessionServers
from tests.support.console_api import Console, frames_of, running_console
from tests.support.console_line import described_line

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def line(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Line]:
    folder = tmp_path_factory.mktemp("line")
    async with described_line(
        session_servers, folder, {"HEADRACE_STREAM_INTERVAL_S": "0.2"}
    ) as line:
        yield line


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(line: Line) -> AsyncIterator[Console]:
    async with running_console(line.suite) as console:
        yield console


async def until_table(console: Console, token: str) -> None:
    async with asyncio.timeout(60):
        while True:
            found = await console.good("/tables")
            if token in {one["token"] for one in found["items"]}:
                return
            await asyncio.sleep(0.1)


async def test_every_page_answers_as_described(console: Console, line: Line) -> None:
    await line.execute("CREATE TABLE described (id bigint PRIMARY KEY, name text)")
    await line.take("INSERT INTO described VALUES (1, 'a')", "UPDATE described SET name = 'b'")
    await until_table(console, "described")
    for path in ("me", "overview", "waterline", "history", "tables", "events", "consumers"):
        await console.good(f"/{path}")
    for path in ("services", "snapshots", "acts", "gaps", "parked", "settings", "doctor"):
        await console.good(f"/{path}")
    # Each names the setting of what is not configured.
    unset = {
        "/audit/transactions": "HEADRACE_AUDIT",
        "/lake": "HEADRACE_LAKE_URL",
        "/lake/tables": "HEADRACE_LAKE_URL",
        "/backups": "HEADRACE_BACKUP_URL",
        "/backups/drops": "HEADRACE_BACKUP_URL",
        "/backups/plan": "HEADRACE_BACKUP_URL",
        "/sql/catalog": "HEADRACE_CONSOLE_SQL_URL",
    }
    for path, setting in unset.items():
        status, body = await console.get(path)
        assert (status, body["code"]) == (404, "not_found"), body
        assert setting in body["detail"] + body["remedy"]
    assert "HEADRACE_CONFIG" in (await console.good("/sinks"))["configuration"]["problem"]
    await console.good("/tables/described", "/tables/{token}")
    versions = await console.good("/tables/described/schemas", "/tables/{token}/schemas")
    assert [one["current"] for one in versions["items"]] == [True]
    found = await console.good("/events?table=described&op=UPDATE")
    position = found["items"][0]["position"].replace("/", "-").replace("+", "-")
    one = await console.good(f"/events/{position}", "/events/{position}")
    assert one["event"]["key"] == {"id": "1"}
    lsn = position.rpartition("-")[0]
    whole = await console.good(f"/transactions/{lsn}", "/transactions/{lsn}")
    assert whole["tables"] == {"described": "1"}


async def test_records_that_sinks_parked_hide_no_parked_change(
    console: Console, line: Line
) -> None:
    slot = line.source
    client = await nats.connect(line.nats_url)
    store = await client.jetstream().object_store("headrace_parked")
    # Both sides of it: nothing says in which order NATS lists them.
    names = [f"sink-{slot}-{number}" for number in range(100)]
    for name in (*names[:50], f"{slot}-1a-7", *names[50:]):
        await store.put(name, b"why\n")
    await client.close()
    found = await console.good("/parked")
    assert [one["id"] for one in found["items"]] == [f"{slot}-1a-7"]


async def test_values_lose_nothing_and_are_found_again(console: Console, line: Line) -> None:
    await line.execute(
        "CREATE TABLE exact (id bigint PRIMARY KEY, n numeric, f float8, b bytea, j jsonb, t text)"
    )
    digits = "12345678901234567890.12345678901234567890"
    await line.take(
        f"INSERT INTO exact VALUES (9223372036854775807, {digits}, 'NaN', '\\x00ff',"
        """ '{"a": 1.50}', '')""",
        "INSERT INTO exact VALUES (-9223372036854775808, 'NaN', '-Infinity', NULL, NULL, NULL)",
    )
    # The oracle is PostgreSQL's own text.
    row = await line.database.fetch("SELECT id::text, n::text FROM exact WHERE id > 0")
    for text in row[0]:
        found = await console.good(f"/events?table=exact&text={quote(text)}")
        assert len(found["items"]) == 1, text
    found = await console.good("/events?table=exact&key=9223372036854775807")
    cells = {one["name"]: one["after"] for one in found["items"][0]["columns"]}
    assert cells["id"] == {"kind": "number", "text": "9223372036854775807"}
    assert cells["n"]["text"] == digits
    assert cells["f"]["text"] == "NaN"
    assert cells["b"] == {"kind": "bytes", "text": "AP8="}
    assert json.loads(cells["j"]["text"], parse_float=str) == {"a": "1.50"}
    assert cells["t"] == {"kind": "text", "text": ""}
    found = await console.good("/events?table=exact&where=id=-9223372036854775808")
    cells = {one["name"]: one["after"] for one in found["items"][0]["columns"]}
    assert cells["t"] == {"kind": "null", "text": None}


async def test_every_past_change_is_found_by_its_position(console: Console, line: Line) -> None:
    await line.execute("CREATE TABLE many (id int PRIMARY KEY, n int)")
    stored = await line.rows(
        *(f"INSERT INTO many SELECT g, {n} FROM generate_series({n}00, {n}19) g" for n in range(12))
    )
    for message in stored[::7]:
        tx = message.payload["tx"]
        position = f"{tx['lsn'] >> 32:X}-{tx['lsn'] & 0xFFFFFFFF:X}-{tx['seq']}"
        one = await console.good(f"/events/{position}", "/events/{position}")
        assert one["event"]["sequence"] == str(message.seq)
        assert one["event"]["key"] == {"id": str(message.row["id"])}


async def test_pages_of_a_search_have_every_event_once(console: Console, line: Line) -> None:
    await line.execute("CREATE TABLE paged (id int PRIMARY KEY)")
    await line.take(*(f"INSERT INTO paged VALUES ({n})" for n in range(25)))
    seen: list[str] = []
    path = "/events?table=paged&op=INSERT&limit=4"
    cursor = ""
    while True:
        found = await console.good(path + cursor)
        seen += [one["key"]["id"] for one in found["items"]]
        if found["next"] is None:
            break
        cursor = f"&cursor={found['next']}"
    assert seen == [str(n) for n in reversed(range(25))]


async def test_a_position_that_is_not_there_says_why(console: Console) -> None:
    status, body = await console.get("/events/FFFF-0-0", "/events/{position}")
    assert (status, body["code"]) == (404, "not_found")
    status, body = await console.get("/events/nonsense", "/events/{position}")
    assert (status, body["code"]) == (400, "invalid")
    status, body = await console.get("/tables/nosuch", "/tables/{token}")
    assert (status, body["code"]) == (404, "not_found")


async def test_a_tab_is_told_of_every_event_with_exact_numbers(
    console: Console, line: Line
) -> None:
    await line.execute("CREATE TABLE followed (id int PRIMARY KEY)")
    await line.take("INSERT INTO followed VALUES (0)")
    shown = not_shown = 0
    rows: list[str] = []
    async with console.http.get(
        f"{console.base}/api/v1/live?topics=events&table=followed&op=INSERT"
    ) as answer:
        frames = frames_of(answer)
        name, _ = await anext(frames)
        assert name == "hello"
        # The ring reads from the moment at which it is followed.
        while await anext(frames) != ("beat", {}):
            pass
        await asyncio.sleep(1)
        await line.execute("INSERT INTO followed SELECT generate_series(1, 2000)")
        async with asyncio.timeout(60):
            while shown + not_shown < 2000:
                name, body = await anext(frames)
                if name == "events":
                    assert len(body["items"]) <= 100
                    shown += int(body["shown"])
                    not_shown += int(body["not_shown"])
                    rows += [one["key"]["id"] for one in body["items"]]
    assert shown + not_shown == 2000
    assert len(set(rows)) == len(rows) == shown


async def test_a_tab_that_connects_again_gets_exactly_the_events_that_it_lacks(
    console: Console, line: Line
) -> None:
    await line.execute("CREATE TABLE resumed (id int PRIMARY KEY)")
    await line.take("INSERT INTO resumed VALUES (0)")
    url = f"{console.base}/api/v1/live?topics=events&table=resumed&op=INSERT"
    async with console.http.get(url) as answer, asyncio.timeout(60):
        frames = frames_of(answer)
        assert (await anext(frames))[1]["resumed"] is False
        while await anext(frames) != ("beat", {}):
            pass
        await asyncio.sleep(1)
        await line.execute("INSERT INTO resumed VALUES (1)")
        while (frame := await anext(frames))[0] != "events":
            pass
    last = frame[1]["last_sequence"]
    await line.execute("INSERT INTO resumed SELECT generate_series(2, 500)")
    seen = 0
    async with console.http.get(url, headers={"Last-Event-ID": last}) as answer:
        frames = frames_of(answer)
        assert (await anext(frames))[1]["resumed"] is True
        async with asyncio.timeout(60):
            while seen < 499:
                name, body = await anext(frames)
                if name == "events":
                    seen += int(body["shown"]) + int(body["not_shown"])
    assert seen == 499
    # The sequence of another stream, or one that has left the ring.
    for stranger in ("999999999", "0"):
        async with console.http.get(url, headers={"Last-Event-ID": stranger}) as answer:
            assert (await anext(frames_of(answer)))[1]["resumed"] is False


async def test_a_killed_telemetry_is_stale_and_never_green(console: Console, line: Line) -> None:
    await console.good("/overview")
    await line.suite.kill("telemetry")
    async with asyncio.timeout(30):
        body = await console.good("/overview")
        while not body["stale"]:
            await asyncio.sleep(0.1)
            body = await console.good("/overview")
    assert body["stale"][0]["part"] == "telemetry"
    assert body["stale"][0]["since"] is not None
    assert body["health"]["state"] == "failed"
    assert body["rate"]["events_per_s"] is None
