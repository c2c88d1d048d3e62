"""The console's answers and its memory stay small with rows of any kind, and its searches name what
they could not compare.
"""

from __future__ import annotations

import asyncio
import json
import random
import string
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import nats
import pytest
import pytest_asyncio

from headrace.testing.line import Line
from headrace.testing.servers import SessionServers
from tests.support.console_api import Console, frames_of, running_console
from tests.support.console_line import described_line

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
# More than a search or a file may hold at a time.
LARGE_ROWS = 160
LARGE_BYTES = 600_000
# Several times as much as one file; all of the rows would take twice this.
MEMORY_MAX = 200 * MIB
PAGE_MAX = 6 * MIB
LIVE_MAX = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def line(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Line]:
    folder = tmp_path_factory.mktemp("line")
    async with described_line(session_servers, folder) as line:
        yield line


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(line: Line) -> AsyncIterator[Console]:
    async with running_console(line.suite, HEADRACE_CONSOLE_LIVE_MAX=str(LIVE_MAX)) as console:
        yield console


async def pages(console: Console, path: str) -> AsyncIterator[dict[str, Any]]:
    """Every page; not compared with the description, which takes long for large ones."""
    cursor = "&"
    while True:
        async with console.http.get(f"{console.base}/api/v1{path}{cursor}") as answer:
            text = await answer.text()
        assert answer.status == 200, text
        assert len(text) < PAGE_MAX
        page = json.loads(text)
        yield page
        if page["next"] is None:
            return
        cursor = f"&cursor={page['next']}"


async def followed(
    answer: aiohttp.ClientResponse, line: Line
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The frames of a tab, once it gets events."""
    frames = frames_of(answer)
    async with asyncio.timeout(60):
        while (frame := await anext(frames))[0] != "events":
            if frame[0] == "beat":
                await line.execute("UPDATE line_marker SET n = -1")
    return frames


def most_memory(line: Line) -> int:
    """The most that the console's process has ever used."""
    status = Path(f"/proc/{line.suite.pid('console')}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


async def test_a_search_compares_whole_values_also_those_that_a_page_shows_in_part(
    console: Console, line: Line
) -> None:
    await line.execute("CREATE TABLE long (id int PRIMARY KEY, body text)")
    await line.take(f"INSERT INTO long VALUES (1, '{'x' * 5000}needle'), (2, 'other')")
    for query in ("text=Needle", f"where=body={'x' * 5000}needle"):
        (found,) = (await console.good(f"/events?table=long&{query}"))["items"]
        assert found["key"] == {"id": "1"}
        assert len(found["columns"][1]["after"]["text"]) == 2000
        assert found["columns"][1]["after"]["size"] == 5006
    async with console.http.get(
        f"{console.base}/api/v1/live?topics=events&table=long&text=needle"
    ) as answer:
        frames = await followed(answer, line)
        await line.execute(f"INSERT INTO long VALUES (3, '{'y' * 5000}needle')")
        async with asyncio.timeout(60):
            while (frame := await anext(frames))[0] != "events" or frame[1]["shown"] == "0":
                pass
    assert frame[1]["items"][-1]["key"] == {"id": "3"}


async def test_a_search_names_the_events_whose_values_it_could_not_compare(
    console: Console, line: Line
) -> None:
    await line.execute("CREATE TABLE huge (id int PRIMARY KEY, body text)")
    letters = "".join(random.Random(7).choices(string.ascii_letters, k=3 * MIB))
    await line.take(f"INSERT INTO huge VALUES (1, '{letters}')", "INSERT INTO huge VALUES (2, 'a')")
    found = await console.good("/events?table=huge&text=nothing")
    assert (found["items"], found["searched"]["large"]) == ([], "1")
    found = await console.good("/events?table=huge&key=1")
    assert (len(found["items"]), found["searched"]["large"]) == (1, "0")
    # How far it has read, whether or not something fits.
    found = await console.good("/events?table=huge&key=3")
    assert found["searched"]["complete"]
    stored = await console.good("/events?limit=500")
    oldest = min(one["at"] for one in stored["items"] if one["at"])
    assert found["searched"]["oldest"] == oldest


async def test_large_rows_are_each_found_once_in_little_memory(
    console: Console, line: Line
) -> None:
    await line.execute("CREATE TABLE heavy (id int PRIMARY KEY, body text)")
    letters = "".join(random.Random(7).choices(string.ascii_letters, k=LARGE_BYTES))
    await line.execute(*(f"INSERT INTO heavy VALUES ({n}, '{letters}')" for n in range(LARGE_ROWS)))
    await line.take("INSERT INTO heavy VALUES (-1, 'the last')")
    seen: list[int] = []
    async for page in pages(console, "/events?table=heavy&op=INSERT&limit=30"):
        seen += [int(one["key"]["id"]) for one in page["items"]]
    assert seen == [-1, *reversed(range(LARGE_ROWS))]
    exported: list[int] = []
    cursor = ""
    while True:
        url = f"{console.base}/api/v1/events/export?table=heavy&op=INSERT&format=ndjson{cursor}"
        async with console.http.get(url) as answer:
            text = await answer.text()
            following = answer.headers.get("X-Headrace-Next")
            name = answer.headers["Content-Disposition"]
        assert ("-part.ndjson" in name) == (following is not None)
        rows = [json.loads(one) for one in text.splitlines()]
        assert {one["after"]["body"] for one in rows} <= {letters, "the last"}
        exported += [int(one["key"]["id"]) for one in rows]
        if following is None:
            break
        cursor = f"&cursor={following}"
    assert exported == seen
    used = most_memory(line)
    assert used < MEMORY_MAX, used


async def test_an_answer_with_many_columns_stays_small_and_has_every_event_once(
    console: Console, line: Line
) -> None:
    columns = ", ".join(f"c{n} text" for n in range(1599))
    values = ", ".join("'v'" for _ in range(1599))
    await line.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {columns})")
    await line.take(f"INSERT INTO wide SELECT n, {values} FROM generate_series(1, 120) n")
    seen: list[int] = []
    position = ""
    async for page in pages(console, "/events?table=wide&op=INSERT"):
        position = page["items"][-1]["position"] if page["items"] else position
        seen += [int(one["key"]["id"]) for one in page["items"]]
    assert seen == list(range(120, 0, -1))
    lsn = position.rpartition("+")[0].replace("/", "-")
    in_order: list[int] = []
    async for page in pages(console, f"/transactions/{lsn}?limit=500"):
        in_order += [int(one["key"]["id"]) for one in page["items"] if one["operation"] != "SCHEMA"]
    assert in_order == sorted(seen)
    shown = not_shown = 0
    async with console.http.get(
        f"{console.base}/api/v1/live?topics=events&table=wide&op=UPDATE"
    ) as answer:
        frames = await followed(answer, line)
        await line.execute("UPDATE wide SET c7 = 'w'")
        async with asyncio.timeout(60):
            while shown + not_shown < 120:
                name, body = await anext(frames)
                assert len(json.dumps(body)) < 2 * MIB
                if name == "events":
                    assert int(body["shown"]) == len(body["items"])
                    shown += int(body["shown"])
                    not_shown += int(body["not_shown"])
    assert shown + not_shown == 120
    assert shown > 0


async def test_the_newest_versions_of_a_schema_are_listed(console: Console, line: Line) -> None:
    await line.execute("CREATE TABLE changing (id int PRIMARY KEY)")
    for number in range(55):
        await line.execute(f"ALTER TABLE changing ADD c{number} int")
        await line.execute(f"INSERT INTO changing (id) VALUES ({number})")
    await line.take("INSERT INTO changing (id) VALUES (-1)")
    async with asyncio.timeout(60):
        while True:
            _, found = await console.get("/tables/changing/schemas", "/tables/{token}/schemas")
            versions = [one["version"] for one in found.get("items", [])]
            if versions and len(found["items"][0]["columns"]) == 56:
                break
            await asyncio.sleep(0.1)
    assert versions[:50] == list(range(versions[0], versions[0] - 50, -1))


async def test_the_rate_of_a_table_is_that_of_its_events(console: Console, line: Line) -> None:
    await line.execute("CREATE TABLE rated (id int PRIMARY KEY)", "CREATE TABLE unused (id int)")
    await line.take("INSERT INTO rated VALUES (0)")
    rate = 0.0
    async with asyncio.timeout(60):
        number = 1
        while rate == 0.0:
            await line.execute(f"INSERT INTO rated VALUES ({number})")
            number += 1
            items = (await console.good("/tables"))["items"]
            found = {one["token"]: one for one in items}
            rate = found.get("rated", {"events_per_s": 0.0})["events_per_s"] or 0.0
    assert rate > 0
    assert found["rated"]["inserts"] == found["rated"]["events"]
    # A publisher that does not report has no rate.
    with line.suite.frozen("publisher"):
        async with asyncio.timeout(60):
            while (await console.good("/tables"))["items"][0]["events_per_s"] is not None:  # noqa: ASYNC110  # an answer gives no event
                await asyncio.sleep(0.1)
        assert (await console.good("/overview"))["rate"]["events_per_s"] is None


async def test_a_transaction_that_the_stream_has_discarded_in_part_is_not_complete(
    console: Console, line: Line
) -> None:
    # The last test: it discards what the others have written.
    await line.execute("CREATE TABLE cut (id int PRIMARY KEY)")
    await line.take()
    stored = await line.rows("INSERT INTO cut SELECT generate_series(1, 10)")
    lsn = (
        f"{stored[0].payload['tx']['lsn'] >> 32:X}-{stored[0].payload['tx']['lsn'] & 0xFFFFFFFF:X}"
    )
    path = f"/transactions/{lsn}"
    whole = await console.good(path, "/transactions/{lsn}")
    assert (whole["complete"], whole["tables"]) == (True, {"cut": "10"})
    client = await nats.connect(line.nats_url)
    try:
        await client.jetstream().purge_stream("CDC", seq=stored[3].seq)
    finally:
        await client.close()
    rest = await console.good(path, "/transactions/{lsn}")
    assert (rest["complete"], rest["tables"]) == (False, {"cut": "7"})


# Tabs that have left count for another second. Without this pause, each round would find those of
# the round before.
LEFT_S = 1.5


async def served_of(console: Console, tabs: int) -> int:
    """How many of the tabs that come at the same time are served; the others are refused."""
    url = f"{console.base}/api/v1/live?topics=events"
    answers = await asyncio.gather(*(console.http.get(url) for _ in range(tabs)))
    for answer in answers:
        answer.close()
    statuses = [answer.status for answer in answers]
    assert set(statuses) <= {200, 429}
    return statuses.count(200)


async def until_all_are_served(console: Console) -> None:
    """Wait until no tab holds a place."""
    while await served_of(console, LIVE_MAX) < LIVE_MAX:  # noqa: ASYNC110  # it gives no sign
        await asyncio.sleep(LEFT_S)


async def test_tabs_that_come_at_the_same_time_never_pass_the_limit_of_live_streams(
    console: Console,
) -> None:
    async with asyncio.timeout(60):
        served = [0]
        while served[-1] < LIVE_MAX or len(served) < 5:
            served.append(await served_of(console, 30))
            await asyncio.sleep(LEFT_S)
    assert max(served) == LIVE_MAX


async def test_a_live_stream_with_wrong_numbers_is_refused_before_it_begins(
    console: Console,
) -> None:
    async with asyncio.timeout(60):
        await until_all_are_served(console)
        for recent in ("1001", "-1", "\u00b2", "9" * 5000, "x"):
            for _ in range(LIVE_MAX):
                status, body = await console.get(f"/live?topics=events&recent={recent}")
                while status == 429:
                    status, body = await console.get(f"/live?topics=events&recent={recent}")
                assert (status, body["code"]) == (400, "invalid")
        # None of them holds a place.
        await until_all_are_served(console)


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5000, "\u0663"])
async def test_a_number_that_is_none_is_refused_or_ignored(console: Console, number: str) -> None:
    for query in (f"limit={number}", f"cursor={number}.1", f"cursor=1.{number}"):
        status, body = await console.get(f"/events?{query}")
        assert (status, body["code"]) == (400, "invalid"), query
    for path in ("/tables", "/acts"):
        status, body = await console.get(f"{path}?cursor={number}")
        assert status == 200, body
