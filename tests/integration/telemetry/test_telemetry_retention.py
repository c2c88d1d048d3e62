"""Telemetry tells of a durable consumer before it loses events, and of a slot before PostgreSQL
gives it up.
"""

from __future__ import annotations

import asyncio

import nats
from nats.js.api import ConsumerConfig, StreamConfig

from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.process import service
from tests.support.telemetry_answers import (
    environment,
    make_slot,
    status_when,
    values,
)


async def test_a_consumer_near_the_end_of_retention_is_told_of_and_one_that_lost_events_too(
    database: Database, own_nats: OwnNats, names: Names
) -> None:
    server = await own_nats()
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(StreamConfig("CDC", subjects=["cdc.>"], max_bytes=100_000, max_age=3600))
    await js.add_stream(StreamConfig("INIT", subjects=["init.>"]))
    await js.add_consumer("CDC", ConsumerConfig(durable_name="slow"))
    await js.add_consumer("CDC", ConsumerConfig(durable_name="other", filter_subject="cdc.other.>"))
    settings = environment(database, server.url, names, HEADRACE_STREAM_INTERVAL_S="0.1")
    async with service(settings, "telemetry") as telemetry:
        for _ in range(9):
            await js.publish("cdc.users.insert", b"x" * 10_000)
        near = await telemetry.logs("consumer_near_loss")
        status = await status_when(telemetry, lambda status: len(status["consumers"]) == 2)
        metrics = values((await telemetry.get("/metrics"))[1])
        for _ in range(5):
            await js.publish("cdc.users.insert", b"x" * 10_000)
        lost = await telemetry.logs("consumer_lost_events")
    await client.close()
    assert near["consumer"] == lost["consumer"] == "slow"
    assert lost["messages"] >= 1
    seen = {view["name"]: view for view in status["consumers"]}
    assert seen["other"]["left_ratio"] == 1.0
    own = f'service="telemetry",source="{names.slot}",stream="CDC"'
    assert metrics[f'headrace_consumer_left_ratio{{consumer="slow",{own}}}'] < 0.25
    assert metrics[f'headrace_consumer_pending_messages{{consumer="slow",{own}}}'] == 9
    assert 0 < metrics[f'headrace_consumer_left_seconds{{consumer="slow",{own}}}'] <= 3600
    assert metrics[f"headrace_stream_messages{{{own}}}"] == 9


async def test_the_end_of_a_slots_room_is_projected_and_its_loss_is_told(
    own_postgres: OwnPostgres, nats_server: EmbeddedNats, names: Names
) -> None:
    server = await own_postgres(
        settings={"max_slot_wal_keep_size": "32MB", "min_wal_size": "32MB", "max_wal_size": "48MB"}
    )
    database = Database(server, "postgres")
    await make_slot(database, names)
    await database.execute("CREATE TABLE filler (t text)")
    fill = "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, {})"
    settings = environment(database, nats_server.url, names, HEADRACE_WAL_INTERVAL_S="0.1")
    async with service(settings, "telemetry") as telemetry:
        await telemetry.logs("slot_visible")

        async def room_shrinks() -> bool:
            await database.execute(fill.format(200))
            await asyncio.sleep(0.2)
            return "headrace_slot_loss_seconds{" in (await telemetry.get("/metrics"))[1]

        async with asyncio.timeout(60):
            while not await room_shrinks():
                pass
        metrics = values((await telemetry.get("/metrics"))[1])
        near = await telemetry.logs("slot_loss_near")
        async with asyncio.timeout(60):
            while not telemetry.events("slot_lost"):
                await database.execute(fill.format(10_000))
                await database.execute("CHECKPOINT")
        text = (await telemetry.get("/metrics"))[1]
    await database.close()
    own = f'service="telemetry",source="{names.slot}"'
    assert 0 < metrics[f"headrace_slot_loss_seconds{{{own}}}"] < 3600
    assert metrics[f'headrace_slot_wal_status{{{own},status="reserved"}}'] == 1
    assert near["safe_bytes"] <= 48 << 20
    assert values(text)[f'headrace_wal_alarm{{level="lost",{own}}}'] == 1
