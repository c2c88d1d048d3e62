"""`headrace up` with several slots: separate suites on shared servers and
streams.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import asyncpg
import nats
import pytest

from headrace.cli.up import selection
from headrace.cli.up.selection import Chosen, SlotInUseError, paired, require_free_slot
from headrace.contract.events import Payload, decode
from headrace.errors import SettingError
from headrace.settings import load
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats
from headrace.testing.process import service
from headrace.testing.up import Up, ready

ROWS, PER_TRANSACTION = 600, 10
TWO = ("--slot", "a", "--pub", "p1", "--slot", "b", "--pub", "p2")


def test_each_slot_goes_with_the_publication_of_its_place() -> None:
    assert paired(["a", "b"], ["p1", "p2"]) == (Chosen("a", "p1"), Chosen("b", "p2"))
    assert paired([], []) == (Chosen(),)
    assert paired(["a"], []) == (Chosen("a"),)


@pytest.mark.parametrize(
    ("slots", "pubs", "word"),
    [
        (["a", "b"], ["p1"], "--slot is given twice, --pub once"),
        (["a", "b"], [], "--slot is given twice, --pub not at all"),
        (["a"], ["p1", "p2", "p3"], "--slot is given once, --pub 3 times"),
        (["a", "a"], ["p1", "p2"], "--slot a is given twice"),
        (["a", "b"], ["p", "p"], "--pub p is given twice"),
    ],
)
def test_slots_and_publications_that_do_not_pair_are_refused_by_name(
    slots: list[str], pubs: list[str], word: str
) -> None:
    with pytest.raises(SettingError, match=word) as refused:
        paired(slots, pubs)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (
            "CREATE PUBLICATION {p1} FOR TABLE t; CREATE PUBLICATION {p2} FOR TABLE t, u",
            "table public.t is in the pub",
        ),
        (
            "CREATE PUBLICATION {p1} FOR TABLE t; CREATE PUBLICATION {p2} FOR ALL TABLES",
            "{p2} includes all tables",
        ),
        ("CREATE PUBLICATION {p1} FOR TABLE t", "publication {p2} does not exist"),
    ],
)
async def test_suites_that_would_deliver_a_table_twice_are_one_error_and_make_nothing(
    made: str, word: str, empty_folder: Path, database: Database, own_nats: OwnNats, names: Names
) -> None:
    server, pubs = (
        await own_nats(),
        {"p1": f"{names.publication}_1", "p2": f"{names.publication}_2"},
    )
    await database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)"
    )
    await database.execute(made.format(**pubs))
    environment = {**database.server.environment(), "PG_DB": database.name, "NATS_URL": server.url}
    one, two = f"{names.slot}_1", f"{names.slot}_2"
    arguments = ("--slot", one, "--pub", pubs["p1"], "--slot", two, "--pub", pubs["p2"])
    async with Up(empty_folder, "--once", *arguments, **environment) as up:
        assert await up.ends() == 1
    last = up.output.splitlines()[-1]
    assert last.startswith("headrace: ")
    assert word.format(**pubs) in last
    assert "CREATE PUBLICATION" in last
    assert (
        await database.fetchval(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name IN ($1, $2)", one, two
        )
        == 0
    )


async def test_an_audit_trail_of_several_suites_is_refused(empty_folder: Path) -> None:
    async with Up(empty_folder, *TWO, HEADRACE_AUDIT="true") as up:
        assert await up.ends() == 1
    assert re.fullmatch(r"headrace: HEADRACE_AUDIT=true works with one suite only.*\n", up.output)


async def test_a_slot_that_somebody_reads_is_refused_with_the_readers_name(
    database: Database, own_nats: OwnNats, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION {names.publication} FOR TABLE t"
    )
    environment = {
        "PG_HOST": "127.0.0.1",
        "PG_PORT": str(database.port),
        "POSTGRES_BRIDGE_USER": database.user,
        "PG_DB": database.name,
        "NATS_URL": (await own_nats()).url,
        **names.settings,
        "HEADRACE_HTTP_PORT": "0",
    }
    settings = load(environment)
    await require_free_slot(settings)
    monkeypatch.setattr(selection, "SLOT_WAIT_S", 0.0)
    async with service(environment, "wal-reader"), service(environment, "publisher") as publisher:
        await publisher.logs("epoch_joined")
        with pytest.raises(
            SlotInUseError,
            match=r"is read by another suite \(application \"headrace wal-reader [0-9a-f]{16}\"",
        ):
            await require_free_slot(settings)


def rows(output: str) -> Iterator[tuple[str, str, str, int]]:
    """The table's services: suite, service, address, process."""
    for slot, name, url, pid in re.findall(
        r"^([ab]) (\S+) +(http://\S+) +(\d+)", output, re.MULTILINE
    ):
        yield slot, name, url, int(pid)


async def insert(dsn: str, slot: str, first: int) -> None:
    connection = await asyncpg.connect(dsn)
    for start in range(first, first + ROWS, PER_TRANSACTION):
        await connection.execute(
            (
                f"INSERT INTO headrace_demo_{slot} (name) SELECT 'row ' || g FROM "
                "generate_series($1::int, $2) g"
            ),
            start,
            start + PER_TRANSACTION - 1,
        )
    await connection.close()


class Stream:
    """All messages of the shared stream as they lie there, by the suite that wrote them."""

    def __init__(self) -> None:
        self.events: dict[str, list[Payload]] = defaultdict(list)

    async def read(self, url: str) -> None:
        client = await nats.connect(url)
        # A plain reader, which would not hide a double as the library's consumer does.
        subscription = await client.jetstream().subscribe("cdc.>", ordered_consumer=True)
        async for message in subscription.messages:
            event = decode(message.data)
            if event["operation"] != "SCHEMA":
                self.events[event["source"]].append(event)

    def names(self, slot: str) -> list[str]:
        """Of the rows that `insert` wrote, in the stream's order."""
        found = [
            event["data"]["name"] for event in self.events[slot] if event["operation"] == "INSERT"
        ]
        return [name for name in found if name.startswith("row ")]

    async def until(self, slot: str, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.names(slot)) < count:  # noqa: ASYNC110  # the reader above is what it waits for
                await asyncio.sleep(0.05)


def expected(count: int) -> list[str]:
    return [f"row {number}" for number in range(count)]


@pytest.mark.slow
async def test_two_suites_deliver_complete_and_in_order_and_one_that_ends_leaves_the_other_running(
    empty_folder: Path,
) -> None:
    async with Up(empty_folder, *TWO) as up:
        await up.says(r"Up after [\d.]+ s")
        services = {(slot, name): (url, pid) for slot, name, url, pid in rows(up.output)}
        assert len({url for url, _ in services.values()}) == 12, "twelve services, twelve ports"
        dsn, url = re.search(r"psql '([^']+)'", up.output), re.search(r"--server (\S+)", up.output)
        assert dsn
        assert url
        stream = Stream()
        reading = asyncio.create_task(stream.read(url[1]), name="reading")
        writing = [asyncio.create_task(insert(dsn[1], slot, 0), name=slot) for slot in "ab"]
        await stream.until("a", ROWS // 10)
        os.kill(services["a", "publisher"][1], signal.SIGKILL)
        await up.says(r"a publisher ended \(killed by SIGKILL\)")
        await asyncio.gather(*writing)
        for slot in "ab":
            await stream.until(slot, ROWS)
        for slot in "ab":
            assert stream.names(slot) == expected(ROWS)
            positions = [(event["tx"]["lsn"], event["tx"]["seq"]) for event in stream.events[slot]]
            assert positions == sorted(set(positions)), slot
            assert {event["table"] for event in stream.events[slot]} == {f"headrace_demo_{slot}"}

        await ready(services["a", "publisher"][0])
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{services['a', 'telemetry'][0]}/shutdown") as answer,
        ):
            assert answer.status == 200
        await up.says(r"suite a stopped")
        await insert(dsn[1], "b", ROWS)
        await stream.until("b", 2 * ROWS)
        assert stream.names("b") == expected(2 * ROWS)
        await ready(services["b", "publisher"][0])

        reading.cancel()
        up.process.send_signal(signal.SIGINT)
        assert await up.ends() == 0, up.output
    assert up.survivors() == []
    assert (empty_folder / ".headrace/env-b").stat().st_mode & 0o077 == 0
