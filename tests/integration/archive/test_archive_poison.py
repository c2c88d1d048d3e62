"""A change that can't be read: with HEADRACE_POISON=park it holds up neither a required archive nor
the slot.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgpack
import nats

from headrace.archive import WalReader
from headrace.testing.database import fresh_database
from headrace.testing.names import Names
from headrace.testing.oracle import stored
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.archiving import (
    WITH_ARCHIVE,
    environment,
)
from tests.support.slot import until_confirmed

ASCII = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
POISON = r"""
BEGIN; INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES (2, E'\xff\xfe'); INSERT INTO t VALUES (3, 'c'); COMMIT
"""
LATER = r"""
UPDATE t SET v = E'\xfe' WHERE id = 3;
INSERT INTO t SELECT g, 'later' FROM generate_series(10, 500) g
"""


async def test_a_parked_change_holds_up_neither_a_required_archive_nor_the_slot(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres, nats_server = await own_postgres(), await own_nats()
    async with fresh_database(postgres, Names.new().other("ascii"), ASCII) as database:
        await database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION headrace FOR TABLE t"
        )
        url = f"file://{tmp_path}/archive"
        settings = environment(
            database, nats_server.url, url, HEADRACE_ARCHIVE_REQUIRED="true", HEADRACE_POISON="park"
        )
        async with Suite(settings, tmp_path, WITH_ARCHIVE) as suite:
            await suite.logged("archiver", "epoch_joined", timeout_s=60)
            await database.execute(POISON)
            await suite.logged("archiver", "message_parked", timeout_s=60)
            # Parked changes come again, and are skipped again.
            await suite.kill("archiver")
            await suite.start("archiver")
            await database.execute(LATER)
            await until_confirmed(database, settings["HEADRACE_SLOT"])
            assert suite.running("archiver")
        entries = await asyncio.to_thread(lambda: list(WalReader(url).follow(wait=False)))
        found = [(entry.position, entry.key["id"]) for entry in entries if entry.key is not None]
        assert [key for _, key in found] == [1, 3, *range(10, 501)]
        assert [position.seq for position, _ in found[:2]] == [0, 2], (
            "the parked change has its place"
        )
        events = [
            event.payload
            for event in await stored(nats_server.url)
            if event.payload["operation"] == "INSERT"
        ]
        assert [(event["tx"]["lsn"], event["tx"]["seq"]) for event in events] == [
            tuple(place) for place, _ in found
        ]
        assert [raw for _, raw in await parked(nats_server.url)] == [b"\xff\xfe", b"\xfe"]


async def parked(nats_url: str) -> list[tuple[str, bytes]]:
    """The names of the parked changes, and the bytes that could not be read, with nothing but a
    client of NATS.
    """
    client = await nats.connect(nats_url)
    store = await client.jetstream().object_store("headrace_parked")
    found = []
    for entry in await store.list():
        body = msgpack.unpackb((await store.get(entry.name)).data or b"")
        assert "UTF-8" in body["reason"]
        found.append((entry.name, body["message"].split(b"t")[-1][4:]))
    await client.close()
    return sorted(found)
