"""Telemetry forgets a service that has left the suite; a dead one stays visible."""

from __future__ import annotations

from pathlib import Path

import nats
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, StreamConfig

from headrace.bus import participation, subjects
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats
from headrace.testing.process import service
from tests.support.hastened import hastened
from tests.support.telemetry_answers import environment, status_when, values

HASTENED = hastened(
    {
        "headrace.telemetry.configured.REMOVED_S": 0.5,
        "headrace.telemetry.suite.STOPPED_S": 1.0,
        "headrace.telemetry.suite.SILENT_S_MIN": 1.0,
        "headrace.telemetry.service.FORGET_S": 0.2,
    }
)
SINK = '[[sink]]\nname = "{}"\nto = "file:///x"\n'


async def test_what_left_the_suite_is_forgotten_and_what_died_is_not(
    database: Database, own_nats: OwnNats, names: Names, tmp_path: Path
) -> None:
    server = await own_nats()
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(StreamConfig("CDC", subjects=["cdc.>"]))
    await js.add_stream(StreamConfig("INIT", subjects=["init.>"]))
    for sink in ("applied", "waiting"):
        durable = f"sink-{names.slot}-{sink}"
        await js.add_consumer("CDC", ConsumerConfig(durable_name=durable))
    file = tmp_path / "headrace.toml"
    file.write_text(SINK.format("dead") + SINK.format("removed"))
    settings = environment(
        database,
        server.url,
        names,
        HEADRACE_CONFIG=str(file),
        HEADRACE_STREAM_INTERVAL_S="0.1",
    )
    last: list[participation.Report] = []

    async def hear(message: Msg) -> None:
        last.append(participation.decode_stats(message.data))

    async with service(settings, "telemetry", program=HASTENED) as telemetry:
        await telemetry.logs("reports_heard")
        await status_when(telemetry, lambda status: len(status["consumers"]) == 2)
        for name in ("sink-dead", "sink-removed", "sink-applied", "sink-waiting", "publisher"):
            await client.publish(
                subjects.stats(names.slot, name), participation.encode_stats({"ready": 1}, {})
            )
        ended = participation.encode_stats({"ready": 1}, {}, stopping=True)
        await client.publish(subjects.stats(names.slot, "console"), ended)
        await client.publish(subjects.stats(names.slot, "wal-reader"), ended)
        await client.flush()
        await status_when(telemetry, lambda status: "sink-removed" in status["services"])
        file.write_text(SINK.format("dead"))
        await js.delete_consumer("CDC", f"sink-{names.slot}-applied")
        kept = {"sink-dead", "sink-waiting", "publisher", "wal-reader", "telemetry"}
        status = await status_when(telemetry, lambda status: set(status["services"]) <= kept)
        metrics = values((await telemetry.get("/metrics"))[1])
        await client.subscribe(subjects.stats(names.slot, "telemetry"), cb=hear)
        await client.flush()
        assert await telemetry.stop() == 0
    await client.close()
    assert set(status["services"]) == kept
    states = {name: one["state"] for name, one in status["services"].items()}
    assert states == dict.fromkeys(kept, "silent") | {"telemetry": "ready"}
    up = {name for name in metrics if name.startswith("headrace_up{")}
    assert up == {f'headrace_up{{service="{one}",source="{names.slot}"}}' for one in kept}
    # A signal ends it in order.
    assert last[-1].stopping
