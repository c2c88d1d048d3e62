"""A sink that the stream can't help: a new one starts with exact copies, one that was away for too
long continues from the archive; nothing is missing and nothing comes twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest

from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.archiving import WITH_ARCHIVE, Archiving
from tests.support.exactly_once import environment, prepare, source_rows, write
from tests.support.sinks import changes_of, events_of, sink_process

WAIT_S = 120.0
KEPT = 7


def configured(tmp_path: Path, more: str = "") -> tuple[Path, Path]:
    """The configuration, and the folder of the sink's files."""
    folder = tmp_path / "changes"
    folder.mkdir()
    config = tmp_path / "headrace.toml"
    config.write_text(
        f'[[sink]]\nname = "files"\nto = "{folder.as_uri()}"\nbatch = {{wait_ms = 50}}\n{more}'
    )
    return config, folder


async def until(fulfilled: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not fulfilled():  # noqa: ASYNC110  # files give no event
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_sink_beyond_the_stream_continues_from_the_archive(
    archiving: Archiving, tmp_path: Path
) -> None:
    config, folder = configured(tmp_path)
    settings = archiving.environment()
    postgres = archiving.database.server
    async with Suite(settings, tmp_path, WITH_ARCHIVE) as suite:
        await suite.logged("archiver", "epoch_joined")
        await write(postgres, 500, 1)
        before = len(await archiving.oracle.changes())
        async with sink_process(settings, config, "files"):
            await until(lambda: len(changes_of(events_of(folder))) == before)
        first = changes_of(events_of(folder))
        await write(postgres, 500, 2, first_id=1_000_000)
        committed = await archiving.oracle.changes()
        # The rest of the stream is discarded in the middle of a transaction.
        client = await nats.connect(archiving.nats.url)
        js = client.jetstream()
        async with asyncio.timeout(WAIT_S):
            while (await js.stream_info("CDC")).state.messages < before + len(committed):  # noqa: ASYNC110  # a stream gives no event
                await asyncio.sleep(0.1)
        await js.purge_stream("CDC", keep=KEPT)
        await client.close()
        async with sink_process(settings, config, "files") as one:
            await one.logged("event=sink_reads_the_archive")
            await one.logged("event=sink_is_back_in_the_stream")
            await write(postgres, 10, 3, first_id=2_000_000)
            committed += await archiving.oracle.changes()
            await until(lambda: len(changes_of(events_of(folder))) >= before + len(committed))
    found = changes_of(events_of(folder))
    assert found[:before] == first
    assert found[before:] == committed


@pytest.mark.slow
async def test_without_an_archive_a_sink_says_what_it_lost_and_waits(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres = await own_postgres()
    server = await own_nats()
    database, _ = await prepare(postgres)
    settings = environment(postgres, server, "event")
    config, folder = configured(tmp_path)
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("wal-reader", "epoch_opened")
        await write(postgres, 100, 1)
        async with sink_process(settings, config, "files") as one:
            await until(lambda: bool(changes_of(events_of(folder))))
            assert await one.stop() == 0
        await write(postgres, 100, 2, first_id=1_000_000)
        # Everything is in the stream before most of it is discarded.
        end = await database.fetchval("SELECT pg_current_wal_flush_lsn()::text")
        async with asyncio.timeout(WAIT_S):
            while not await database.fetchval(  # noqa: ASYNC110  # PostgreSQL doesn't tell
                f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots"
                f" WHERE slot_name = 'headrace'"
            ):
                await asyncio.sleep(0.1)
        await database.close()
        client = await nats.connect(server.url)
        await client.jetstream().purge_stream("CDC", keep=KEPT)
        await client.close()
        written = events_of(folder)
        async with sink_process(settings, config, "files") as one:
            await one.logged("sinks reset NAME --to snapshot")
            assert one.running
    assert events_of(folder) == written


def folded(events: list[dict[str, Any]]) -> dict[int, tuple[int, str]]:
    """The rows of `orders` that the events leave; raises for an insert of a row that exists."""
    rows: dict[int, tuple[int, str]] = {}
    for event in events:
        if event["table"] != "orders" or event["operation"] == "SCHEMA":
            continue
        data = event["data"]
        if event["operation"] == "DELETE":
            del rows[data["id"]]
            continue
        assert (data["id"] in rows) == (event["operation"] == "UPDATE"), event
        rows[data["id"]] = (data["n"], data["note"])
    return rows


@pytest.mark.slow
@pytest.mark.spark
async def test_a_new_sink_has_exact_copies_and_every_later_change_though_it_is_killed(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres = await own_postgres()
    server = await own_nats()
    database, _ = await prepare(postgres)
    settings = environment(postgres, server, "event")
    config, folder = configured(tmp_path, 'snapshot = "initial"\ntables = ["orders"]\n')
    services = ("wal-reader", "publisher", "schema-publisher", "snapshot-responder")
    await write(postgres, 30_000, 1)
    async with Suite(settings, tmp_path, services) as suite:
        await suite.logged("wal-reader", "epoch_opened")
        enough = asyncio.Event()
        later = write(postgres, 2000, 2, first_id=1_000_000, enough=enough)
        writer = asyncio.create_task(later, name="writer")
        kill = "sink.chunk_copied:2"
        async with sink_process(settings, config, "files", HEADRACE_FAILPOINT=kill) as one:
            assert await one.exit_code(WAIT_S) == -9, one.output[-3000:]
        async with sink_process(settings, config, "files") as one:
            await one.logged("event=sink_follows")
            enough.set()
            await writer
            rows = await source_rows(database)
            await database.close()
            await until(lambda: len(folded(events_of(folder))) == len(rows))
            await until(lambda: folded(events_of(folder)) == rows)
    copied = [event for event in events_of(folder) if event.get("snapshot")]
    assert len(copied) > 20_000
    assert len({event["msg_id"] for event in copied}) == len(copied)
