"""`--zstd-events`: single events with a dictionary of their table, which any reader with the state
bucket reads once each.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from headrace.consumer import MemoryWatermarks, Start, Subscription, follow
from headrace.contract import dictionaries
from headrace.contract.events import decode
from headrace.embedded.postgres import SUPERUSER
from headrace.jetstream.provisioning import ensure
from headrace.jetstream.state import Cell
from headrace.publisher.compression import Compression
from headrace.publisher.published_event import PublishedEvent
from headrace.settings import FormatSettings, Settings, StreamSettings
from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats
from headrace.testing.suite import Suite

PATIENCE_S = 60.0
ROWS = 1500


@pytest.mark.parametrize("delivery", ["event", "transaction"])
async def test_compressed_events_are_the_plain_ones_across_a_kill_and_each_is_there_once(
    database: Database, own_nats: OwnNats, tmp_path: Path, delivery: str
) -> None:
    server = await own_nats()
    await database.execute("CREATE TABLE people (id int PRIMARY KEY, name text, plan text)")
    await database.execute("CREATE PUBLICATION headrace FOR TABLE people")
    environment = {
        "PG_HOST": "127.0.0.1",
        "PG_PORT": str(database.port),
        "PG_DB": database.name,
        "POSTGRES_BRIDGE_USER": SUPERUSER,
        "NATS_URL": server.url,
        "HEADRACE_SLOT": f"s_{database.name}",
        "HEADRACE_ZSTD_EVENTS": "true",
        "HEADRACE_DELIVERY": delivery,
        "HEADRACE_DEDUPE_WINDOW_S": "0.1",
        "HEADRACE_LEASE_TTL_S": "1",
    }
    client = await nats.connect(server.url)
    async with Suite(environment, tmp_path) as suite:
        await suite.logged("wal-reader", "event=ready", PATIENCE_S)
        for first in (1, ROWS + 1):
            await database.execute(
                "INSERT INTO people SELECT g, 'name ' || g, 'plan of this one' "
                f"FROM generate_series({first}, {first + ROWS - 1}) g"
            )
            async with asyncio.timeout(PATIENCE_S):
                while (await client.jetstream().stream_info("CDC")).state.messages < first + ROWS:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await suite.kill("publisher")
            await suite.start("publisher")
        assert suite.log("publisher").count("event=dictionary_trained") == 1
        await check(client)
    await client.close()
    with pytest.raises(dictionaries.UnknownDictionaryError):
        decode(dictionaries.Compressor(dictionaries.train(SAMPLES) or b"").compress(b"x" * 100))


async def test_a_replaced_dictionary_is_kept_for_as_long_as_the_stream_keeps_messages(
    own_nats: OwnNats,
) -> None:
    client = await nats.connect((await own_nats()).url)
    js = client.jetstream()
    settings = Settings(format=FormatSettings(zstd_events=True))
    await ensure(js, settings.streams)
    config = (await js.stream_info("CDC")).config
    # An operator's choice, which the settings don't contain.
    await js.update_stream(replace(config, max_age=10 * DAY_S))
    state = await js.key_value(settings.streams.state)
    retired = {7: 3 * DAY_S, 8: 12 * DAY_S}
    for dictionary_id in retired:
        await state.put(dictionaries.key(dictionary_id), b"any")
    entries = [
        [dictionary_id, int(time.time() - age_s)] for dictionary_id, age_s in retired.items()
    ]
    await Cell(state, f"dictionaries.{settings.source.slot}").write(
        {"tables": {}, "retired": entries}
    )
    compression = Compression(js, state, settings)
    await compression.open()
    await compression.of(
        [
            PublishedEvent("cdc.people.insert", str(place), sample)
            for place, sample in enumerate(SAMPLES)
        ]
    )
    assert dictionaries.key(7) in await state.keys()
    assert dictionaries.key(8) not in await state.keys()
    await client.close()


DAY_S = 86_400
SAMPLES = [
    b'{"id": %d, "name": "name %d", "plan": "one of them"}' % (place, place)
    for place in range(1000)
]


async def check(client: Client) -> None:
    """Read by the library from the stream's start; the messages that are compressed are much
    smaller.
    """
    seen: list[int] = []
    async with follow(
        client, Subscription(StreamSettings().cdc, start=Start.ALL), MemoryWatermarks()
    ) as consumer:
        async with asyncio.timeout(PATIENCE_S):
            while len(seen) < 2 * ROWS:
                event = await consumer.next()
                if event is not None and event.operation == "INSERT":
                    assert event.data["name"] == f"name {event.data['id']}"
                    seen.append(event.data["id"])
    assert seen == list(range(1, 2 * ROWS + 1))
    last = await client.jsm().get_last_msg("CDC", "cdc.people.insert")
    assert (last.headers or {})["Content-Encoding"] == "zstd"
    dictionary_id = dictionaries.named_by(last.data or b"")
    state = await client.jetstream().key_value(StreamSettings().state)
    assert (await state.get(dictionaries.key(dictionary_id))).value
    first = await client.jsm().get_msg("CDC", subject="cdc.people.insert", seq=1, next=True)
    assert "Content-Encoding" not in (first.headers or {})
    assert len(last.data or b"") < len(first.data or b"") / 2
